-- What is remembered of runs. Each block has a twin of the same name and parameters for PostgreSQL, where saving takes one.

-- name: fenced_runs
-- Of the runs of these steps, those for which the fence holds.
select json_group_array(id)
from (
    select distinct r.id
    from json_each(:steps) s cross join ostinato_runs r on r.id = json_extract(s.value, '$[0]')
    where r.lease_no = json_extract(s.value, '$[1]') and r.worker is not null and not r.cancel_requested)

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
where status = 'pending' or status = 'running'

-- name: step_memos
select run_id, id, place, kind, status, output, error, retry_count, (wake_at - (select ostinato_now())) / 1000000.0, child, since, event_id
from ostinato_steps
where run_id in (select value from json_each(:ids))

-- name: waits
-- The pending waits for events of these types, and those for types by a pattern.
select run_id, id, awaits, matches, since
from ostinato_steps
where status = 'pending' and awaits is not null and awaits in (select value from json_each(:types)) and not wild
union all
select run_id, id, awaits, matches, since from ostinato_steps where status = 'pending' and wild
order by 1, 2

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
where s.run_id = m.run_id and s.id = m.step_id and s.status = 'pending'
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
  and s.run_id = c.parent_run and s.id = c.parent_step and s.status = 'pending'
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
-- Steps that will be done again when their run is.
delete from ostinato_steps where run_id in (select value from json_each(:ids)) and status <> 'completed'

-- name: prune_steps
delete from ostinato_steps where run_id in (select value from json_each(:ids))

-- name: events_from
select sequence_no, id, type, entity_type, entity_id, payload, caused_by, run_id, source, occurred_at, recorded_at, idempotency_key
from ostinato_events
where type = :type and sequence_no >= :first and recorded_at >= :since
order by sequence_no
limit :limit
