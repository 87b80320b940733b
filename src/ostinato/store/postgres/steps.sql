-- What is remembered of runs. Each block has a twin of the same name and parameters for SQLite, where saving takes two.

-- name: save_steps
-- The runs for which the fence held. They stay locked until the commit, against those who would take them over. A join of s with what
-- is fenced would walk the one for each row of the other.
with s as (
    select e->>0 as run_id, (e->>1)::integer as lease_no, e->>2 as id, e->>3 as name, (e->>4)::integer as place, e->>5 as kind,
           e->>6 as status, (e->>7)::double precision as duration, e->>8 as input, e->>9 as output, e->>10 as error,
           coalesce((e->>11)::integer, 0) as retry_count, (e->>12)::double precision as delay, e->>13 as child, e->>14 as awaits,
           coalesce((e->>15)::boolean, false) as wild, e->>16 as matches, to_timestamp((e->>17)::bigint / 1000000.0) as since, e->>18 as event_id
    from jsonb_array_elements(:steps::text::jsonb) as c(e)
), fenced as materialized (
    select s.*, r.started_at as run_started_at
    from s join ostinato.runs r on r.id = s.run_id and r.lease_no = s.lease_no
    where r.worker is not null and not r.cancel_requested
    for share of r
), saved as (
    insert into ostinato.steps (run_id, id, name, place, kind, status, input, output, error, retry_count, started_at, ended_at, wake_at,
                                child, awaits, wild, matches, since, event_id)
    select s.run_id, s.id, s.name, s.place, s.kind, s.status, s.input, s.output, s.error, s.retry_count,
           now.moment - s.duration * interval '1 second',
           case when s.status in ('completed', 'failed') then now.moment end,
           now.moment + s.delay * interval '1 second',
           s.child, s.awaits, s.wild, s.matches, case when s.kind = 'event' then coalesce(s.since, s.run_started_at) end, s.event_id
    from fenced s cross join (select ostinato.clock() as moment) now
    on conflict (run_id, id) do update
    set status = excluded.status, output = excluded.output, error = excluded.error, retry_count = excluded.retry_count,
        ended_at = excluded.ended_at, wake_at = excluded.wake_at, event_id = excluded.event_id
    where steps.status in ('pending', 'running')
      and (excluded.status <> 'running' or excluded.retry_count >= steps.retry_count)  -- a note that comes late changes nothing
)
select run_id from fenced

-- name: step_memos
select run_id, id, place, kind, status, output, error, retry_count,
       extract(epoch from wake_at - ostinato.clock())::double precision, child, ostinato.micros(since), event_id
from ostinato.steps
where run_id = any(array(select jsonb_array_elements_text(:ids::text::jsonb)))

-- name: waits
-- The waits for events of these types, and those for types by a pattern, of runs that have not ended.
select s.run_id, s.id, s.awaits, s.matches, ostinato.micros(s.since)
from ostinato.steps s join ostinato.runs r on r.id = s.run_id and r.ended_at is null
where s.ended_at is null and s.awaits = any(array(select jsonb_array_elements_text(:types::text::jsonb))) and not s.wild
union all
select s.run_id, s.id, s.awaits, s.matches, ostinato.micros(s.since)
from ostinato.steps s join ostinato.runs r on r.id = s.run_id and r.ended_at is null
where s.ended_at is null and s.wild
order by 1, 2

-- name: waiting_steps
-- What these runs wait for, and which events they have got.
select run_id, id, event_id
from ostinato.steps
where run_id = any(array(select jsonb_array_elements_text(:ids::text::jsonb)))
  and (event_id is not null or (awaits is not null and ended_at is null))

-- name: correct_sent
-- Steps that have sent what was recorded before, under the same idempotency key, remember that.
update ostinato.steps s
set output = to_json(c.e->>2)::text
from jsonb_array_elements(:recorded::text::jsonb) as c(e)
where s.run_id = c.e->>0 and s.kind = 'send' and s.output = to_json(c.e->>1)::text

-- name: lock_to_wake
-- Runs are locked before their steps, as when steps are saved.
select id from ostinato.runs where id = any(array(select jsonb_array_elements_text(:ids::text::jsonb))) order by id for update

-- name: meet_waits
-- Written so that the planner cannot walk all steps for each wait, which it would while it believes that there are few: the waits are one
-- object, the steps are those of the runs, and offset keeps the look for others with the event from becoming a join.
with m as materialized (
    select jsonb_object_agg((e->>'run_id') || ' ' || (e->>'step_id'), e) as waits from jsonb_array_elements(:waits::text::jsonb) as c(e)
)
update ostinato.steps s
set status = 'completed', output = m.waits->(s.run_id || ' ' || s.id)->>'output',
    event_id = m.waits->(s.run_id || ' ' || s.id)->>'event_id', ended_at = ostinato.clock()
from m
where s.run_id = any(array(select e->>'run_id' from jsonb_array_elements(:waits::text::jsonb) as c(e)))
  and s.ended_at is null and m.waits->(s.run_id || ' ' || s.id) is not null
  and not exists (select 1 from ostinato.steps o
                  where o.run_id = s.run_id and o.event_id = m.waits->(s.run_id || ' ' || s.id)->>'event_id' offset 0)
returning s.run_id

-- name: parents_of
-- Those who wait for these runs.
select distinct parent_run
from ostinato.runs
where id = any(array(select jsonb_array_elements_text(:ids::text::jsonb))) and parent_run is not null

-- name: end_children
-- Tells the steps that wait for these runs what became of them.
update ostinato.steps s
set status = case when c.state = 'completed' then 'completed' else 'failed' end,
    output = c.output::text, ended_at = ostinato.clock(),
    error = case when c.state <> 'completed' then jsonb_build_object(
        'code', 'run_' || c.state, 'message', coalesce(c.error->>'message', c.state), 'run_id', c.id)::text end
from ostinato.runs c
where c.id = any(array(select jsonb_array_elements_text(:ids::text::jsonb))) and c.ended_at is not null
  and s.run_id = c.parent_run and s.id = c.parent_step and s.child = c.id and s.status = 'pending'
returning s.run_id

-- name: wake_runs
-- What is held until something comes goes on; what is about to be held will not be.
update ostinato.runs r
set woken = true,
    state = case when w.goes_on then 'ready' else r.state end,
    reason = case when w.goes_on then null else r.reason end,
    run_at = case when w.goes_on then ostinato.clock() else r.run_at end,
    due = case when w.goes_on then ostinato.micros(ostinato.clock()) - 1000000 * r.priority::bigint else r.due end
from (select id, state = 'held' and reason in ('sleep', 'event', 'child', 'step_retry') as goes_on
      from ostinato.runs
      where id = any(array(select jsonb_array_elements_text(:ids::text::jsonb))) and ended_at is null) w
where r.id = w.id
returning r.id, r.queue, ostinato.ring(r.queue)

-- name: children_of
-- What these runs wait for and has not ended.
select id from ostinato.runs
where parent_run = any(array(select jsonb_array_elements_text(:ids::text::jsonb))) and ended_at is null and not cancel_requested

-- name: forget_unfinished
-- Steps that will be done again when their run is. What waits for a run that goes on has not failed.
delete from ostinato.steps s
where run_id = any(array(select jsonb_array_elements_text(:ids::text::jsonb))) and status <> 'completed'
  and not (status = 'pending' and exists (
      select 1 from ostinato.runs c where c.id = s.child and c.ended_at is null and not c.cancel_requested))

-- name: copy_run
-- A new run of an ended one's function and input. It begins as if it had been claimed once: from its second claim on a run is asked what it
-- remembers. The key stays with the one it was enqueued for.
insert into ostinato.runs (id, function, queue, state, run_at, due, priority, lease_no, timeout, start_by, finish_by, watched, invoked_by,
                           created_at, input, metadata, trace, copied_from)
select :copy, r.function, r.queue, 'ready', now.moment, ostinato.micros(now.moment) - 1000000 * r.priority::bigint, r.priority, 1,
       r.timeout, now.moment + f.start_timeout * interval '1 second', now.moment + f.finish_timeout * interval '1 second',
       f.cancel_on is not null, r.invoked_by, now.moment, r.input, r.metadata, r.trace, r.id
from ostinato.runs r cross join (select ostinato.clock() as moment) now left join ostinato.functions f on f.name = r.function
where r.id = :id and r.ended_at is not null
for share of r
returning id, queue, ostinato.ring(queue)

-- name: copy_steps
-- What was completed before a place.
insert into ostinato.steps (run_id, id, name, place, kind, status, input, output, error, retry_count, started_at, ended_at, wake_at,
                            child, awaits, wild, matches, since, event_id)
select :copy, id, name, place, kind, status, input, output, error, retry_count, started_at, ended_at, wake_at,
       child, awaits, wild, matches, since, event_id
from ostinato.steps
where run_id = :id and status = 'completed' and place < :place

-- name: prune_steps
delete from ostinato.steps where run_id = any(array(select jsonb_array_elements_text(:ids::text::jsonb)))

-- name: events_from
select sequence_no, id, type, entity_type, entity_id, payload::text, caused_by, run_id, source, ostinato.micros(occurred_at),
       ostinato.micros(recorded_at), idempotency_key
from ostinato.events
where type = :type and sequence_no >= :first::bigint and recorded_at >= to_timestamp(:since::bigint / 1000000.0)
order by sequence_no
limit :limit
