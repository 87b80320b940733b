-- Subscriptions, for those who declare and switch them. What drainers read of them is with the ledger.

-- name: lock_subscriptions
-- Until the commit, for whoever changes them: so the numbers of changes are in the order of commits, and a drainer that has seen one
-- has seen those before it.
lock table ostinato.subscriptions in share row exclusive mode

-- name: subscription_views
select to_jsonb(v)::text from (
    select s.name, s.glob, s.function, s.filter, s.mapper, s.ordered, s.enabled, s.origin, s.since_sequence, s.since_at, s.declared_at,
           exists (select 1 from ostinato.functions f where f.name = s.function) as function_known,
           (select count(*) from ostinato.parked p where p.subscription = s.name) as parked
    from ostinato.subscriptions s
    where :name::text is null or s.name = :name
    order by s.name
) v

-- name: undeclare_subscriptions
-- Those of the modules that their code declares no more. They go on; that they are left over is all that is noted.
update ostinato.subscriptions
set origin = 'undeclared ' || substr(origin, 6)
where origin like 'code %' and split_part(substr(origin, 6), ':', 1) = any(array(select jsonb_array_elements_text(:modules::text::jsonb)))
  and name <> all(array(select jsonb_array_elements_text(:names::text::jsonb)))

-- name: switch_subscription
-- One that is switched on begins there: what was recorded while it was off is none of its business, drained or not.
update ostinato.subscriptions
set enabled = :enabled::boolean, version = nextval('ostinato.subscriptions_changes'),
    since_sequence = case when :enabled::boolean and since_sequence >= 0
                          then (select case when is_called then last_value else 0 end from ostinato.events_sequence)
                          else since_sequence end
where name = :name and enabled <> :enabled::boolean
returning name

-- name: caught_up
update ostinato.subscriptions
set since_sequence = 0, version = nextval('ostinato.subscriptions_changes')
where name = :name and since_sequence < 0

-- name: remove_subscription
delete from ostinato.subscriptions where name = :name returning name

-- name: forget_parked
delete from ostinato.parked where subscription = :name
