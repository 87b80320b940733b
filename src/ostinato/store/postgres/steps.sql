-- What is remembered of runs. Each block has a twin of the same name and parameters for SQLite, where saving takes two.

-- name: save_steps
-- The runs for which the fence held. They stay locked until the commit, against those who would take them over.
with s as materialized (
    select e->>0 as run_id, (e->>1)::integer as lease_no, e->>2 as id, e->>3 as name, (e->>4)::integer as place, e->>5 as kind,
           e->>6 as status, (e->>7)::double precision as duration, e->>8 as input, e->>9 as output, e->>10 as error,
           coalesce((e->>11)::integer, 0) as retry_count, (e->>12)::double precision as delay, e->>13 as child, e->>14 as awaits,
           coalesce((e->>15)::boolean, false) as wild, e->>16 as matches, to_timestamp((e->>17)::bigint / 1000000.0) as since, e->>18 as event_id
    from jsonb_array_elements(:steps::text::jsonb) as c(e)
), fenced as materialized (
    select r.id, r.started_at
    from (select distinct run_id, lease_no from s) f
    join ostinato.runs r on r.id = f.run_id and r.lease_no = f.lease_no
    where r.worker is not null and not r.cancel_requested
    for share of r
), saved as (
    insert into ostinato.steps (run_id, id, name, place, kind, status, input, output, error, retry_count, started_at, ended_at, wake_at,
                                child, awaits, wild, matches, since, event_id)
    select s.run_id, s.id, s.name, s.place, s.kind, s.status, s.input, s.output, s.error, s.retry_count,
           now.moment - s.duration * interval '1 second',
           case when s.status in ('completed', 'failed') then now.moment end,
           now.moment + s.delay * interval '1 second',
           s.child, s.awaits, s.wild, s.matches, case when s.kind = 'event' then coalesce(s.since, fenced.started_at) end, s.event_id
    from s join fenced on fenced.id = s.run_id cross join (select ostinato.clock() as moment) now
    on conflict (run_id, id) do update
    set status = excluded.status, output = excluded.output, error = excluded.error, retry_count = excluded.retry_count,
        ended_at = excluded.ended_at, wake_at = excluded.wake_at, event_id = excluded.event_id
    where steps.status in ('pending', 'running')
)
select id from fenced

-- name: step_memos
select run_id, id, place, kind, status, output, error, retry_count,
       extract(epoch from wake_at - ostinato.clock())::double precision, child, ostinato.micros(since), event_id
from ostinato.steps
where run_id = any(array(select jsonb_array_elements_text(:ids::text::jsonb)))

-- name: waits
-- The pending waits for events of these types, and those for types by a pattern.
select run_id, id, awaits, matches, ostinato.micros(since)
from ostinato.steps
where status = 'pending' and awaits = any(array(select jsonb_array_elements_text(:types::text::jsonb))) and not wild
union all
select run_id, id, awaits, matches, ostinato.micros(since) from ostinato.steps where status = 'pending' and wild
order by 1, 2

-- name: lock_to_wake
-- Runs are locked before their steps, as when steps are saved.
select id from ostinato.runs where id = any(array(select jsonb_array_elements_text(:ids::text::jsonb))) order by id for update

-- name: meet_waits
update ostinato.steps s
set status = 'completed', output = m.e->>'output', event_id = m.e->>'event_id', ended_at = ostinato.clock()
from jsonb_array_elements(:waits::text::jsonb) as m(e)
where s.run_id = m.e->>'run_id' and s.id = m.e->>'step_id' and s.status = 'pending'
  and not exists (select 1 from ostinato.steps o where o.run_id = s.run_id and o.event_id = m.e->>'event_id')
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
  and s.run_id = c.parent_run and s.id = c.parent_step and s.status = 'pending'
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
-- Steps that will be done again when their run is.
delete from ostinato.steps
where run_id = any(array(select jsonb_array_elements_text(:ids::text::jsonb))) and status <> 'completed'

-- name: prune_steps
delete from ostinato.steps where run_id = any(array(select jsonb_array_elements_text(:ids::text::jsonb)))

-- name: events_from
select sequence_no, id, type, entity_type, entity_id, payload::text, caused_by, run_id, source, ostinato.micros(occurred_at),
       ostinato.micros(recorded_at), idempotency_key
from ostinato.events
where type = :type and sequence_no >= :first::bigint and recorded_at >= to_timestamp(:since::bigint / 1000000.0)
order by sequence_no
limit :limit
