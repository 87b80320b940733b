-- Subscriptions, for those who declare and switch them. What drainers read of them is with the ledger.

-- name: lock_subscriptions
-- There is one writer.
select 1

-- name: subscription_views
select json_object(
    'name', s.name, 'glob', s.glob, 'function', s.function, 'filter', s.filter, 'mapper', json(s.mapper), 'ordered', $truth(s.ordered),
    'enabled', $truth(s.enabled), 'origin', s.origin, 'since_sequence', s.since_sequence, 'since_at', $time(s.since_at),
    'declared_at', $time(s.declared_at),
    'function_known', $truth(s.function_known),
    'parked', (select count(*) from ostinato_parked p where p.subscription = s.name))
from (select *, exists (select 1 from ostinato_functions f where f.name = function) as function_known from ostinato_subscriptions) s
where :name is null or s.name = :name
order by s.name

-- name: undeclare_subscriptions
-- Those of the modules that their code declares no more. They go on; that they are left over is all that is noted.
update ostinato_subscriptions
set origin = 'undeclared ' || substr(origin, 6)
where origin like 'code %' and substr(origin, 6, instr(substr(origin, 6), ':') - 1) in (select value from json_each(:modules))
  and name not in (select value from json_each(:names))

-- name: switch_subscription
-- One that is switched on begins there: what was recorded while it was off is none of its business, drained or not.
update ostinato_subscriptions
set enabled = :enabled, version = (select max(version) from ostinato_subscriptions) + 1,
    since_sequence = case when :enabled and since_sequence >= 0
                          then coalesce((select seq from sqlite_sequence where name = 'ostinato_events'), 0)
                          else since_sequence end
where name = :name and enabled <> :enabled
returning name

-- name: caught_up
update ostinato_subscriptions
set since_sequence = 0, version = (select max(version) from ostinato_subscriptions) + 1
where name = :name and since_sequence < 0

-- name: remove_subscription
delete from ostinato_subscriptions where name = :name returning name

-- name: forget_parked
delete from ostinato_parked where subscription = :name
