-- What happens to runs. Parameters are written :name; each block has a twin of the same name and parameters for SQLite.
--
-- A run has a worker while it is running and at no other time. The fences ask for the worker and not for state = 'running', which would
-- invite the planner to the index of running runs, with all the entries that vacuum could not remove yet.

-- name: insert_runs
select requested, existing from ostinato.insert_runs(:requests::text::jsonb, :ring)

-- name: insert_run
-- The same for one run without a key, into a queue that is named and has no cap, as most are: without the cost of starting a function.
-- No row comes back if the queue has a cap. A row is rung for after it was inserted, as insert_runs does.
insert into ostinato.runs (id, function, queue, state, reason, run_at, due, priority, timeout, invoked_by, created_at, input, metadata,
                           trace)
select :id, :function, :queue,
       case when t.run_at > t.moment then 'held' else 'ready' end,
       case when t.run_at > t.moment then 'not_due' end,
       t.run_at, ostinato.micros(t.run_at) - 1000000 * :priority::bigint, :priority::smallint, :timeout::double precision,
       :invoked_by, t.moment, :input::text::jsonb, :metadata::text::jsonb, :trace::text::jsonb
from (select moment, moment + :delay::double precision * interval '1 second' as run_at
      from (select ostinato.clock() as moment) now) t
where not exists (select 1 from ostinato.queues q where q.name = :queue and q.max_waiting is not null)
returning case when :ring::boolean
                and not (pg_try_advisory_lock(hashtext('$channel'), hashtext('q:' || queue))
                         and pg_advisory_unlock(hashtext('$channel'), hashtext('q:' || queue)))
               then ostinato.ring(queue)::text end

-- name: claim
-- The array is built once, so exactly as many rows are taken as asked for, whatever the planner thinks.
-- (due, id) >= the mark is an index bound: entries that vacuum cannot remove yet are not walked.
-- What stands in (select …) is asked once, not for every run.
update ostinato.runs
set state = 'running', reason = null, worker = :worker, lease_no = lease_no + 1, attempt = attempt + 1,
    woken = false, certain = :alone, claimed_at = (select ostinato.clock()), started_at = coalesce(started_at, (select ostinato.clock())),
    version = (select :versions::text::jsonb)->>function
where id = any(array(
    select id from ostinato.runs
    where queue = :queue and suspect = :suspect and state = 'ready'
      and (due, id) >= (:mark_due::bigint, :mark_id::text)
      and exists (select 1 from ostinato.workers where id = :worker and dead_at is null)
      and not exists (select 1 from ostinato.queues where name = :queue and paused)
    order by due, id
    limit :limit
    for update skip locked))
returning id, lease_no, function, queue, attempt, input::text, due,
          date_part('epoch', claimed_at - run_at), key, timeout, metadata::text, invoked_by, trace::text, parent_run

-- name: complete_runs
-- Answers with one row, the runs for which the fence held: rows are dear by the thousand.
with ended as (
    update ostinato.runs r
    set state = 'completed', output = c.e->2, ended_at = (select ostinato.clock()), worker = null, error = null,
        suspect = false, uncounted = 0
    from jsonb_array_elements(:settlements::text::jsonb) as c(e)
    where r.id = c.e->>0 and r.lease_no = (c.e->>1)::integer
      and r.worker is not null and not r.cancel_requested
    returning r.id
)
select ids, ostinato.announce(ids) from (select array_agg(id) as ids from ended) held

-- name: settle_runs
-- What is suspended waits for the first of its pending steps that knows a time, or a hundred years, unless something has come already.
-- A cancelled run is cancelled, whatever else was decided about it meanwhile: the flag is part of the fence.
with settled as (
    update ostinato.runs r
    set state = case when s.state = 'held' and case when s.suspended then r.woken else s.delay <= 0 end then 'ready' else s.state end,
        reason = case when s.state = 'held' and not case when s.suspended then r.woken else s.delay <= 0 end then s.reason end,
        run_at = case when s.state <> 'held' then r.run_at when s.suspended and r.woken then ostinato.clock() else s.until end,
        due = case when s.state <> 'held' then r.due
                   else ostinato.micros(case when s.suspended and r.woken then ostinato.clock() else s.until end)
                        - 1000000 * r.priority::bigint end,
        attempt = r.attempt - s.refund, suspect = s.suspect, uncounted = s.uncounted,
        error = case when r.cancel_requested then r.error else coalesce(s.error, r.error) end, worker = null,
        ended_at = case when s.state in ('failed', 'cancelled') then ostinato.clock() end
    from (
        select e->>'run_id' as id, (e->>'lease_no')::integer as lease_no, e->>'state' as state, e->>'reason' as reason,
               coalesce((e->>'delay')::double precision, 0) as delay, e->'error' as error,
               coalesce((e->>'refund')::integer, 0) as refund, coalesce((e->>'suspect')::boolean, false) as suspect,
               coalesce((e->>'uncounted')::smallint, 0::smallint) as uncounted,
               e ? 'suspended' as suspended,
               case when e ? 'suspended'
                    then coalesce((select min(wake_at) from ostinato.steps
                                   where run_id = e->>'run_id' and status = 'pending'
                                     and id = any(array(select jsonb_array_elements_text(e->'suspended')))),
                                  ostinato.clock() + interval '100 years')
                    else ostinato.clock() + coalesce((e->>'delay')::double precision, 0) * interval '1 second'
               end as until
        from jsonb_array_elements(:settlements::text::jsonb) as c(e)
    ) s
    where r.id = s.id and r.lease_no = s.lease_no and r.worker is not null
      and (s.state = 'cancelled' or not r.cancel_requested)
    returning r.id, r.ended_at
), announced as materialized (
    select ostinato.announce(array_agg(id) filter (where ended_at is not null)) from settled
)
select id from settled cross join announced

-- name: start_runs
update ostinato.runs r
set certain = true
from jsonb_array_elements(:starts::text::jsonb) as c(e)
where r.id = c.e->>'run_id' and r.lease_no = (c.e->>'lease_no')::integer and r.worker is not null
returning r.id

-- name: add_attempts
insert into ostinato.attempts (run_id, lease_no, attempt, worker, code, message, traceback, started_at, ended_at)
select e->>'run_id', (e->>'lease_no')::integer, (e->>'attempt')::smallint, e->>'worker', e->>'code', e->>'message', e->>'traceback',
       ostinato.clock() - (e->>'duration')::double precision * interval '1 second', ostinato.clock()
from jsonb_array_elements(:attempts::text::jsonb) as c(e)
on conflict (run_id, lease_no) do nothing

-- name: free_keys
-- 'active' keys end with the run, 'failed' ones unless it failed, the others with time alone.
delete from ostinato.keys k
using jsonb_array_elements(:freed::text::jsonb) as c(e)
where k.run_id = c.e->>'run_id' and (k.mode = 'active' or (k.mode = 'failed' and c.e->>'state' <> 'failed'))

-- name: fences
-- What stands in the way of settlements that were refused.
select r.id, r.lease_no, r.state, r.cancel_requested, r.error->>'message'
from ostinato.runs r
where r.id = any(array(select jsonb_array_elements_text(:ids::text::jsonb)))

-- name: release_due
update ostinato.runs
set state = 'ready', reason = null
where id = any(array(
    select id from ostinato.runs
    where state = 'held' and queue = :queue and run_at <= ostinato.clock()
    order by run_at
    limit :limit
    for update skip locked))
returning id

-- name: ring
select ostinato.ring(:queue)

-- name: next_due
select extract(epoch from run_at - ostinato.clock())::double precision
from ostinato.runs
where state = 'held' and queue = :queue
order by run_at
limit 1

-- name: cancel_runs
-- Ends what waits; asks the worker to stop what runs. Whichever commits first, the flag or a settlement, wins. Some may have reasons of
-- their own.
with cancelled as (
    update ostinato.runs r
    set cancel_requested = true,
        error = case when r.cancel_requested then r.error
                     else jsonb_build_object('code', :code::text, 'message', coalesce(:reasons::text::jsonb->>r.id, :reason::text)) end,
        state = case when r.state = 'running' then r.state else 'cancelled' end,
        reason = null,
        ended_at = case when r.state = 'running' then null else ostinato.clock() end
    where r.id = any(array(
        select id from ostinato.runs
        where id = any(array(select jsonb_array_elements_text(:ids::text::jsonb)))
          and state in ('held', 'ready', 'running')
        order by id
        for update))
    returning r.id, r.state, r.worker, r.ended_at
), announced as materialized (
    select ostinato.announce(array_agg(id) filter (where ended_at is not null)),
           case when count(*) filter (where ended_at is null) > 0 then pg_notify('$channel', 'c') end
    from cancelled
)
select id, state, worker from cancelled cross join announced

-- name: overdue
-- What has not started, or not ended, by its time. The clock is asked first, so that the indexes can be walked up to it.
select id, 'start_timeout' from (
    select id from ostinato.runs
    where start_by <= (select ostinato.clock()) and started_at is null and ended_at is null
    order by start_by
    limit :limit
    for update skip locked) unstarted
union all
select id, 'finish_timeout' from (
    select id from ostinato.runs
    where finish_by <= (select ostinato.clock()) and ended_at is null and not cancel_requested
    order by finish_by
    limit :limit
    for update skip locked) unended

-- name: next_overdue
-- Seconds until a run is overdue.
select extract(epoch from least(
    (select start_by from ostinato.runs where start_by is not null and started_at is null and ended_at is null
     order by start_by limit 1),
    (select finish_by from ostinato.runs where finish_by is not null and ended_at is null and not cancel_requested
     order by finish_by limit 1)) - ostinato.clock())::double precision

-- name: watched_runs
-- The runs of a function that events cancel, and which do: those that began before it, and whose input has its values at the paths.
with unended as materialized (
    select r.id, r.created_at, coalesce((select jsonb_agg(r.input #> string_to_array(given.path, '.') order by given.place)
                                         from jsonb_array_elements_text(:paths::text::jsonb) with ordinality as given (path, place)),
                                        '[]') as found
    from ostinato.runs r
    where r.function = :function and r.watched and r.ended_at is null and not r.cancel_requested
)
select u.id, (w.e->>'place')::integer
from jsonb_array_elements(:wanted::text::jsonb) as w(e)
join unended u on u.found = w.e->'values'
where u.created_at < to_timestamp((w.e->>'recorded')::bigint / 1000000.0)

-- name: ends
-- What is to be told of runs that have ended: to the ledger, and to the function that is for those that failed.
select r.id, r.function, r.state, r.input::text, r.error::text, greatest(r.attempt - 1, 0), ostinato.micros(r.started_at),
       ostinato.micros(r.ended_at),
       (select count(*) from ostinato.steps s where s.run_id = r.id and s.status = 'completed'),
       coalesce(jsonb_exists(f.lifecycle, r.state), false), n.name, n.queue, n.priority
from ostinato.runs r
join ostinato.functions f on f.name = r.function
left join ostinato.functions n on n.name = f.on_failure and r.state = 'failed'
where r.id = any(array(select jsonb_array_elements_text(:ids::text::jsonb))) and r.ended_at is not null
  and (jsonb_exists(f.lifecycle, r.state) or n.name is not null)
order by r.id

-- name: owned_runs
-- What a worker holds in a queue, whether it knows or not.
select id, lease_no from ostinato.runs where worker = :worker and state = 'running' and queue = :queue

-- name: cancelled_of
-- The runs of one worker that somebody wants stopped.
select id, error->>'message' from ostinato.runs where worker = :worker and state = 'running' and cancel_requested

-- name: retake_keys
-- A run that is to go again needs its key back; one whose period is over is free.
insert into ostinato.keys (function, key, run_id, mode)
select distinct on (r.function, r.key) r.function, r.key, r.id, r.unique_mode
from ostinato.runs r
where r.id = any(array(select jsonb_array_elements_text(:ids::text::jsonb)))
  and r.state in ('failed', 'cancelled') and r.key is not null and r.unique_mode in ('active', 'failed')
order by r.function, r.key
on conflict (function, key) do update
set run_id = excluded.run_id, mode = excluded.mode, until = null
where keys.until <= ostinato.clock()

-- name: retry_runs
update ostinato.runs r
set state = 'ready', attempt = 0, suspect = false, uncounted = 0, certain = false, woken = false, cancel_requested = false,
    run_at = ostinato.clock(), due = ostinato.micros(ostinato.clock()) - 1000000 * r.priority::bigint, ended_at = null,
    start_by = case when r.start_by is not null then ostinato.clock() + interval '1 second' * (
        select f.start_timeout from ostinato.functions f where f.name = r.function) end,
    finish_by = case when r.finish_by is not null then ostinato.clock() + interval '1 second' * (
        select f.finish_timeout from ostinato.functions f where f.name = r.function) end
where r.id = any(array(
    select id from ostinato.runs
    where id = any(array(select jsonb_array_elements_text(:ids::text::jsonb))) and state in ('failed', 'cancelled')
    order by id
    for update))
  and (r.key is null or r.unique_mode = 'until'
       or exists (select 1 from ostinato.keys k where k.function = r.function and k.key = r.key and k.run_id = r.id))
returning r.id, r.queue, ostinato.ring(r.queue)

-- name: prune_runs
delete from ostinato.runs
where id = any(array(
    select id from ostinato.runs
    where state = :state and ended_at < ostinato.clock() - :keep::double precision * interval '1 second'
    order by ended_at
    limit :limit
    for update skip locked))
returning id

-- name: prune_attempts
delete from ostinato.attempts where run_id = any(array(select jsonb_array_elements_text(:ids::text::jsonb)))

-- name: prune_keys
delete from ostinato.keys
where (function, key) in (select function, key from ostinato.keys where until <= ostinato.clock() order by until limit :limit)
