-- Schedules. Slots are worked out in Python, from the database's time; they come and go as microseconds since 1970.

-- name: lock_schedules
select name, expression, tz, next_at, last_slot
from ostinato_schedules
where name in (select value from json_each(:names))
order by name

-- name: declare_schedules
-- Whether it is paused is the operator's. If another worker has declared it since we looked, and fired, its slot does not come again.
insert into ostinato_schedules (name, function, expression, tz, missed, catch_up, jitter, priority, input, gives_slot, origin,
                                next_at, declared_at, seen_at)
select json_extract(e.value, '$.name'), json_extract(e.value, '$.function'), json_extract(e.value, '$.expression'),
       json_extract(e.value, '$.tz'), json_extract(e.value, '$.missed'), json_extract(e.value, '$.catch_up'),
       json_extract(e.value, '$.jitter'), json_extract(e.value, '$.priority'), $json(e.value, input),
       json_extract(e.value, '$.gives_slot'), json_extract(e.value, '$.origin'), json_extract(e.value, '$.next_at'),
       (select ostinato_now()), (select ostinato_now())
from json_each(:schedules) e
where true
on conflict (name) do update
set function = excluded.function, expression = excluded.expression, tz = excluded.tz, missed = excluded.missed,
    catch_up = excluded.catch_up, jitter = excluded.jitter, priority = excluded.priority, input = excluded.input,
    gives_slot = excluded.gives_slot, origin = excluded.origin,
    next_at = case when last_slot >= excluded.next_at then next_at else excluded.next_at end,
    declared_at = excluded.declared_at, seen_at = excluded.seen_at
returning name

-- name: keep_schedules
-- One of the workers that declare a schedule says so each minute; the others find it said.
update ostinato_schedules
set seen_at = (select ostinato_now())
where name in (select value from json_each(:names)) and seen_at < (select ostinato_now()) - 55000000

-- name: forget_schedules
delete from ostinato_schedules where seen_at < (select ostinato_now()) - 30 * 86400000000 and not paused

-- name: planned_schedules
select next_at, (select ostinato_now()), name, function, expression, tz, missed, catch_up, jitter, priority, input, gives_slot, origin
from ostinato_schedules
where name in (select value from json_each(:names)) and not paused
order by next_at, name
limit :limit

-- name: move_schedules
-- The fence: nobody else has moved it, declared it otherwise or paused it since it was looked at.
update ostinato_schedules as s
set next_at = m.next_at, last_slot = coalesce(m.last_slot, s.last_slot), last_run_id = coalesce(m.last_run_id, s.last_run_id)
from (
    select json_extract(value, '$.name') as name, json_extract(value, '$.expression') as expression,
           json_extract(value, '$.tz') as tz, json_extract(value, '$.expected') as expected,
           json_extract(value, '$.next_at') as next_at, json_extract(value, '$.last_slot') as last_slot,
           json_extract(value, '$.last_run_id') as last_run_id
    from json_each(:moves)
) m
where s.name = m.name and s.expression = m.expression and s.tz = m.tz and not s.paused and s.next_at = m.expected
returning name

-- name: pause_schedule
update ostinato_schedules set paused = 1 where name = :name returning name

-- name: resume_schedule
update ostinato_schedules set paused = 0, next_at = :next_at where name = :name and paused returning name

-- name: schedules
select json_object(
    'name', s.name, 'function', s.function, 'queue', f.queue, 'expression', s.expression, 'tz', s.tz, 'missed', s.missed,
    'catch_up', s.catch_up, 'jitter', s.jitter, 'priority', s.priority, 'input', json(s.input), 'gives_slot', $truth(s.gives_slot),
    'origin', s.origin, 'paused', $truth(s.paused), 'declared', $truth(s.declared), 'next_at', $time(s.next_at),
    'last_slot', $time(s.last_slot), 'last_run_id', s.last_run_id, 'last_state', r.state,
    'declared_at', $time(s.declared_at), 'seen_at', $time(s.seen_at))
from (select *, seen_at >= (select ostinato_now()) - 180000000 as declared from ostinato_schedules) s
left join ostinato_functions f on f.name = s.function
left join ostinato_runs r on r.id = s.last_run_id
where :name is null or s.name = :name
order by s.name
