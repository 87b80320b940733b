-- What is remembered of runs. Each block has a twin of the same name and parameters for PostgreSQL, where saving takes one.

-- name: fenced_runs
-- Of the runs of these steps, those for which the fence holds, with their leases, once for each step.
select json_group_array(json_array(r.id, r.lease_no))
from json_each(:steps) s cross join ostinato_runs r on r.id = json_extract(s.value, '$[0]')
where r.lease_no = json_extract(s.value, '$[1]') and r.worker is not null and not r.cancel_requested

-- name: save_steps
insert into ostinato_steps (run_id, id, name, place, kind, status, input, output, error, retry_count, started_at, ended_at, wake_at,
                            child, awaits, wild, matches, since, event_id)
select json_extract(e.value, '$[0]'), json_extract(e.value, '$[2]'), json_extract(e.value, '$[3]'), json_extract(e.value, '$[4]'),
       json_extract(e.value, '$[5]'), json_extract(e.value, '$[6]'), json_extract(e.value, '$[8]'), json_extract(e.value, '$[9]'),
       json_extract(e.value, '$[10]'), json_extract(e.value, '$[11]'),
       cast(n.moment - 1000000 * json_extract(e.value, '$[7]') as integer),
       iif(json_extract(e.value, '$[6]') in ('completed', 'failed'), n.moment, null),
       cast(n.moment + 1000000 * json_extract(e.value, '$[12]') as integer),
       json_extract(e.value, '$[13]'), json_extract(e.value, '$[14]'), coalesce(json_extract(e.value, '$[15]'), 0),
       json_extract(e.value, '$[16]'),
       iif(json_extract(e.value, '$[5]') = 'event',
           coalesce(json_extract(e.value, '$[17]'), (select started_at from ostinato_runs where id = json_extract(e.value, '$[0]'))),
           null),
       json_extract(e.value, '$[18]')
from (select ostinato_now() as moment) n cross join json_each(:steps) e
where true
on conflict (run_id, id) do update
set status = excluded.status, output = excluded.output, error = excluded.error, retry_count = excluded.retry_count,
    ended_at = excluded.ended_at, wake_at = excluded.wake_at, event_id = excluded.event_id
where (status = 'pending' or status = 'running')
  and (excluded.status <> 'running' or excluded.retry_count >= retry_count)  -- a note that comes late changes nothing

-- name: step_memos
select run_id, id, place, kind, status, output, error, retry_count, (wake_at - (select ostinato_now())) / 1000000.0, child, since, event_id
from ostinato_steps
where run_id in (select value from json_each(:ids))

-- name: waits
-- The waits for events of these types, and those for types by a pattern, of runs that have not ended.
select s.run_id, s.id, s.awaits, s.matches, s.since
from json_each(:types) t
cross join ostinato_steps s on s.awaits = t.value and s.ended_at is null and s.awaits is not null and not s.wild
cross join ostinato_runs r on r.id = s.run_id and r.ended_at is null
union all
select s.run_id, s.id, s.awaits, s.matches, s.since
from ostinato_steps s cross join ostinato_runs r on r.id = s.run_id and r.ended_at is null
where s.ended_at is null and s.wild
order by 1, 2

-- name: waiting_steps
-- What these runs wait for, and which events they have got.
select run_id, id, event_id
from ostinato_steps
where run_id in (select value from json_each(:ids)) and (event_id is not null or (awaits is not null and ended_at is null))

-- name: correct_sent
-- Steps that have sent what was recorded before, under the same idempotency key, remember that.
update ostinato_steps as s
set output = e.existing
from (
    select json_extract(value, '$[0]') as run_id, json_quote(json_extract(value, '$[1]')) as asked,
           json_quote(json_extract(value, '$[2]')) as existing
    from json_each(:recorded)
) e
where s.run_id = e.run_id and s.kind = 'send' and s.output = e.asked

-- name: lock_to_wake
-- There is one writer: what is found is locked.
select id from ostinato_runs where id in (select value from json_each(:ids)) order by id

-- name: meet_waits
update ostinato_steps as s
set status = 'completed', output = m.output, event_id = m.event_id, ended_at = (select ostinato_now())
from (
    select json_extract(value, '$.run_id') as run_id, json_extract(value, '$.step_id') as step_id,
           json_extract(value, '$.output') as output, json_extract(value, '$.event_id') as event_id
    from json_each(:waits)
) m
where s.run_id = m.run_id and s.id = m.step_id and s.ended_at is null
  and not exists (select 1 from ostinato_steps o where o.run_id = s.run_id and o.event_id = m.event_id)
returning run_id

-- name: parents_of
-- Those who wait for these runs.
select distinct parent_run from ostinato_runs where id in (select value from json_each(:ids)) and parent_run is not null

-- name: end_children
-- Tells the steps that wait for these runs what became of them.
update ostinato_steps as s
set status = iif(c.state = 'completed', 'completed', 'failed'),
    output = c.output, ended_at = (select ostinato_now()),
    error = iif(c.state = 'completed', null, json_object(
        'code', 'run_' || c.state, 'message', coalesce(json_extract(c.error, '$.message'), c.state), 'run_id', c.id))
from ostinato_runs c
where c.id in (select value from json_each(:ids)) and c.ended_at is not null
  and s.run_id = c.parent_run and s.id = c.parent_step and s.child = c.id and s.status = 'pending'
returning run_id

-- name: wake_runs
-- What is held until something comes goes on; what is about to be held will not be.
update ostinato_runs as r
set woken = 1,
    state = iif(w.goes_on, 'ready', r.state),
    reason = iif(w.goes_on, null, r.reason),
    run_at = iif(w.goes_on, w.moment, r.run_at),
    due = iif(w.goes_on, w.moment - 1000000 * r.priority, r.due)
from (select id, state = 'held' and reason in ('sleep', 'event', 'child', 'step_retry') as goes_on, ostinato_now() as moment
      from ostinato_runs
      where id in (select value from json_each(:ids)) and ended_at is null) w
where r.id = w.id
returning id, queue

-- name: children_of
-- What these runs wait for and has not ended.
select id from ostinato_runs
where parent_run in (select value from json_each(:ids)) and parent_run is not null and ended_at is null and not cancel_requested

-- name: forget_unfinished
-- Steps that will be done again when their run is. What waits for a run that goes on has not failed.
delete from ostinato_steps as s
where run_id in (select value from json_each(:ids)) and status <> 'completed'
  and not (status = 'pending' and exists (
      select 1 from ostinato_runs c where c.id = s.child and c.ended_at is null and not c.cancel_requested))

-- name: copy_run
-- A new run of an ended one's function and input. It begins as if it had been claimed once: from its second claim on a run is asked what it
-- remembers. The key stays with the one it was enqueued for.
insert into ostinato_runs (id, function, queue, state, run_at, due, priority, lease_no, timeout, start_by, finish_by, watched, invoked_by,
                           created_at, input, metadata, trace, copied_from)
select :copy, r.function, r.queue, 'ready', now.moment, now.moment - 1000000 * r.priority, r.priority, 1,
       r.timeout, cast(now.moment + 1000000 * f.start_timeout as integer), cast(now.moment + 1000000 * f.finish_timeout as integer),
       f.cancel_on is not null, r.invoked_by, now.moment, r.input, r.metadata, r.trace, r.id
from ostinato_runs r cross join (select ostinato_now() as moment) now left join ostinato_functions f on f.name = r.function
where r.id = :id and r.ended_at is not null
returning id, queue

-- name: copy_steps
-- What was completed before a place.
insert into ostinato_steps (run_id, id, name, place, kind, status, input, output, error, retry_count, started_at, ended_at, wake_at,
                            child, awaits, wild, matches, since, event_id)
select :copy, id, name, place, kind, status, input, output, error, retry_count, started_at, ended_at, wake_at,
       child, awaits, wild, matches, since, event_id
from ostinato_steps
where run_id = :id and status = 'completed' and place < :place

-- name: prune_steps
delete from ostinato_steps where run_id in (select value from json_each(:ids))

-- name: events_from
select sequence_no, id, type, entity_type, entity_id, payload, caused_by, run_id, source, occurred_at, recorded_at, idempotency_key
from ostinato_events
where type = :type and sequence_no >= :first and recorded_at >= :since
order by sequence_no
limit :limit
