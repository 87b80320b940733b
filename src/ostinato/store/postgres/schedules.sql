-- Schedules. Slots are worked out in Python, from the database's time; they come and go as microseconds since 1970.

-- name: lock_schedules
select s.name, s.expression, s.tz, ostinato.micros(s.next_at), ostinato.micros(s.last_slot)
from ostinato.schedules s
where s.name = any(array(select jsonb_array_elements_text(:names::text::jsonb)))
order by s.name
for update

-- name: declare_schedules
-- Whether it is paused is the operator's. If another worker has declared it since we looked, and fired, its slot does not come again.
insert into ostinato.schedules as s (name, function, expression, tz, missed, catch_up, jitter, priority, input, gives_slot, origin,
                                     next_at, declared_at, seen_at)
select e->>'name', e->>'function', e->>'expression', e->>'tz', e->>'missed', (e->>'catch_up')::double precision,
       (e->>'jitter')::double precision, (e->>'priority')::smallint, e->'input', (e->>'gives_slot')::boolean, e->>'origin',
       timestamptz 'epoch' + (e->>'next_at')::bigint * interval '1 microsecond', now.moment, now.moment
from (select ostinato.clock() as moment) now
cross join jsonb_array_elements(:schedules::text::jsonb) as c(e)
order by 1
on conflict (name) do update
set function = excluded.function, expression = excluded.expression, tz = excluded.tz, missed = excluded.missed,
    catch_up = excluded.catch_up, jitter = excluded.jitter, priority = excluded.priority, input = excluded.input,
    gives_slot = excluded.gives_slot, origin = excluded.origin,
    next_at = case when s.last_slot >= excluded.next_at then s.next_at else excluded.next_at end,
    declared_at = excluded.declared_at, seen_at = excluded.seen_at
returning s.name, pg_notify('$channel', 's')

-- name: keep_schedules
-- One of the workers that declare a schedule says so each minute; the others find it said.
update ostinato.schedules
set seen_at = ostinato.clock()
where name = any(array(select jsonb_array_elements_text(:names::text::jsonb)))
  and seen_at < ostinato.clock() - interval '55 seconds'

-- name: forget_schedules
delete from ostinato.schedules where seen_at < ostinato.clock() - interval '30 days' and not paused

-- name: planned_schedules
select ostinato.micros(s.next_at), ostinato.micros(now.moment), s.name, s.function, s.expression, s.tz, s.missed, s.catch_up, s.jitter,
       s.priority, s.input::text, s.gives_slot, s.origin
from (select ostinato.clock() as moment) now
cross join ostinato.schedules s
where s.name = any(array(select jsonb_array_elements_text(:names::text::jsonb))) and not s.paused
order by s.next_at, s.name
limit :limit

-- name: move_schedules
-- The fence: nobody else has moved it, declared it otherwise or paused it since it was looked at.
update ostinato.schedules s
set next_at = timestamptz 'epoch' + m.next_at * interval '1 microsecond',
    last_slot = coalesce(timestamptz 'epoch' + m.last_slot * interval '1 microsecond', s.last_slot),
    last_run_id = coalesce(m.last_run_id, s.last_run_id)
from (
    select e->>'name' as name, e->>'expression' as expression, e->>'tz' as tz, (e->>'expected')::bigint as expected,
           (e->>'next_at')::bigint as next_at, (e->>'last_slot')::bigint as last_slot, e->>'last_run_id' as last_run_id
    from jsonb_array_elements(:moves::text::jsonb) as c(e)
) m
where s.name = m.name and s.expression = m.expression and s.tz = m.tz and not s.paused
  and s.next_at = timestamptz 'epoch' + m.expected * interval '1 microsecond'
returning s.name

-- name: pause_schedule
update ostinato.schedules set paused = true where name = :name returning name, pg_notify('$channel', 's')

-- name: resume_schedule
update ostinato.schedules
set paused = false, next_at = timestamptz 'epoch' + :next_at::bigint * interval '1 microsecond'
where name = :name and paused
returning name, pg_notify('$channel', 's')

-- name: schedules
select to_jsonb(v)::text from (
    select s.name, s.function, f.queue, s.expression, s.tz, s.missed, s.catch_up, s.jitter, s.priority, s.input, s.gives_slot, s.origin,
           s.paused, s.seen_at >= ostinato.clock() - interval '3 minutes' as declared, s.next_at, s.last_slot, s.last_run_id,
           r.state as last_state, s.declared_at, s.seen_at
    from ostinato.schedules s
    left join ostinato.functions f on f.name = s.function
    left join ostinato.runs r on r.id = s.last_run_id
    where :name::text is null or s.name = :name
    order by s.name
) v
