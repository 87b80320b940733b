-- What happens to runs. Parameters are written :name; each block has a twin of the same name and parameters for PostgreSQL, except that
-- inserting takes several blocks here (targets, count_waiting, drop_old_keys, take_keys, key_holders, insert_runs), since SQL alone
-- cannot refuse, and that nobody is rung: committing is what wakes others.
--
-- A run has a worker while it is running and at no other time. The fences ask for the worker and not for state = 'running', which
-- would invite the planner to walk all running runs.
--
-- (select ostinato_now()) is asked once per statement; without the parentheses it would be asked for every row.
-- $json(value, name) is a member of a JSON object as JSON, $time(column) a moment as RFC 3339, $truth(column) a boolean as JSON.

-- name: targets
-- The queue that each pair of function and queue asked for comes to (none: the function is unknown), the queue's cap, and what the
-- function declares about its runs.
select a.function, coalesce(a.queue, f.queue), q.max_waiting, a.asked, f.priority, f.start_timeout, f.finish_timeout,
       f.cancel_on is not null
from (
    select json_extract(value, '$.function') as function, json_extract(value, '$.queue') as queue,
           json_extract(value, '$.asked') as asked
    from json_each(:pairs)
) a
left join ostinato_functions f on f.name = a.function
left join ostinato_queues q on q.name = coalesce(a.queue, f.queue)

-- name: count_waiting
select (select count(*) from (select 1 from ostinato_runs where queue = :queue and state = 'ready' limit :limit))
     + (select count(*) from (select 1 from ostinato_runs where queue = :queue and state = 'held' limit :limit))

-- name: drop_old_keys
delete from ostinato_keys
where until <= (select ostinato_now()) and (function, key) in (
    select json_extract(value, '$.function'), json_extract(value, '$.key') from json_each(:requests))

-- name: take_keys
-- Within one bulk the first comes first.
insert into ostinato_keys (function, key, run_id, mode, until)
select json_extract(e.value, '$.function'), json_extract(e.value, '$.key'), json_extract(e.value, '$.id'),
       coalesce(json_extract(e.value, '$.unique'), 'active'),
       case when json_extract(e.value, '$.unique') = 'until'
            then coalesce(cast((select ostinato_now()) + 1000000 * json_extract(e.value, '$.unique_for') as integer),
                          9223372036854775807) end
from json_each(:requests) e
where true
order by e.key
on conflict (function, key) do nothing

-- name: force_keys
-- Gives keys to runs, whoever holds them; the last of several with one key gets it.
insert into ostinato_keys (function, key, run_id, mode, until)
select json_extract(e.value, '$.function'), json_extract(e.value, '$.key'), json_extract(e.value, '$.id'),
       coalesce(json_extract(e.value, '$.unique'), 'active'),
       case when json_extract(e.value, '$.unique') = 'until'
            then coalesce(cast((select ostinato_now()) + 1000000 * json_extract(e.value, '$.unique_for') as integer),
                          9223372036854775807) end
from json_each(:requests) e
where true
order by e.key
on conflict (function, key) do update set run_id = excluded.run_id, mode = excluded.mode, until = excluded.until

-- name: key_holders
-- Of runs that did not get their key: the id asked for, and the run that holds the key.
select json_extract(e.value, '$.id'), k.run_id
from json_each(:requests) e
cross join ostinato_keys k on k.function = json_extract(e.value, '$.function') and k.key = json_extract(e.value, '$.key')
where k.run_id <> json_extract(e.value, '$.id')

-- name: insert_runs
insert into ostinato_runs (id, function, queue, state, reason, run_at, due, priority, key, unique_mode,
                           timeout, invoked_by, created_at, input, metadata, trace, parent_run, parent_step)
select t.id, t.function, coalesce(t.queue, f.queue),
       case when t.run_at > t.moment then 'held' else 'ready' end,
       case when t.run_at > t.moment then 'not_due' end,
       t.run_at, t.run_at - 1000000 * t.priority, t.priority, t.key, case when t.key is not null then t.mode end,
       t.timeout, t.invoked_by, t.moment, t.input, t.metadata, t.trace, t.parent_run, t.parent_step
from (
    select json_extract(e.value, '$.id') as id, json_extract(e.value, '$.function') as function,
           json_extract(e.value, '$.queue') as queue,
           coalesce(json_extract(e.value, '$.run_at'),
                    cast(n.moment + 1000000 * json_extract(e.value, '$.delay') as integer),
                    n.moment) as run_at,
           coalesce(json_extract(e.value, '$.priority'), 0) as priority,
           json_extract(e.value, '$.key') as key, coalesce(json_extract(e.value, '$.unique'), 'active') as mode,
           json_extract(e.value, '$.timeout') as timeout, coalesce(json_extract(e.value, '$.invoked_by'), 'api') as invoked_by,
           $json(e.value, input) as input, json_extract(e.value, '$.metadata') as metadata,
           json_extract(e.value, '$.trace') as trace, json_extract(e.value, '$.parent_run') as parent_run,
           json_extract(e.value, '$.parent_step') as parent_step, n.moment
    from (select ostinato_now() as moment) n
    cross join json_each(:requests) e
) t
left join ostinato_functions f on f.name = t.function

-- name: set_terms
-- What functions declare about runs that were inserted just now. Most declare nothing, and inserting costs as if none did.
update ostinato_runs as r
set start_by = cast(r.run_at + 1000000 * t.start_timeout as integer), finish_by = cast(r.run_at + 1000000 * t.finish_timeout as integer),
    watched = t.watched
from (
    select json_extract(value, '$.id') as id, json_extract(value, '$.start_timeout') as start_timeout,
           json_extract(value, '$.finish_timeout') as finish_timeout, coalesce(json_extract(value, '$.watched'), 0) as watched
    from json_each(:terms)
) t
where r.id = t.id

-- Claims and completions answer in one row each. Python's driver takes its lock again for every row that it fetches, and while
-- the event loop is busy it waits for that lock five milliseconds at a time.

-- name: claimable
-- (due, id) >= the mark is an index bound, and the index gives the order.
select json_group_array(rowid)
from (
    select rowid from ostinato_runs
    where queue = :queue and suspect = :suspect and state = 'ready'
      and (due, id) >= (:mark_due, :mark_id)
      and exists (select 1 from ostinato_workers where id = :worker and dead_at is null)
      and not exists (select 1 from ostinato_queues where name = :queue and paused)
    order by due, id
    limit :limit)

-- name: claim
update ostinato_runs
set state = 'running', reason = null, worker = :worker, lease_no = lease_no + 1, attempt = attempt + 1,
    woken = 0, certain = :alone, claimed_at = (select ostinato_now()), started_at = coalesce(started_at, (select ostinato_now()))
where rowid in (select value from json_each(:rows))

-- name: stamp_versions
-- Which version of their functions these runs are started with.
update ostinato_runs
set version = (select value from json_each(:versions) where key = function)
where rowid in (select value from json_each(:rows))

-- name: claimed
select json_group_array(json_array(
    id, lease_no, function, queue, attempt, input, due, (claimed_at - run_at) / 1000000.0, key, timeout, metadata,
    invoked_by, trace, parent_run))
from ostinato_runs
where rowid in (select value from json_each(:rows))

-- name: completable
-- The rows for which the fence holds, with their outputs; and the runs, where it does not hold for all.
select json_group_array(json_array(r.rowid, $json(value, 2))), count(*),
       case when count(*) < json_array_length(:settlements) then json_group_array(r.id) end
from json_each(:settlements) s cross join ostinato_runs r on r.id = json_extract(s.value, '$[0]')
where r.lease_no = json_extract(s.value, '$[1]') and r.worker is not null and not r.cancel_requested

-- name: complete_runs
update ostinato_runs as r
set state = 'completed', output = s.output, ended_at = (select ostinato_now()), worker = null, error = null,
    suspect = 0, uncounted = 0
from (select json_extract(value, '$[0]') as place, $json(value, 1) as output from json_each(:rows)) s
where r.rowid = s.place

-- name: settle_runs
-- What is suspended waits for the first of its pending steps that knows a time, or a hundred years, unless something has come already.
-- A cancelled run is cancelled, whatever else was decided about it meanwhile: the flag is part of the fence.
-- Materialized, or each mention of until would ask the clock again.
with s as materialized (
    select json_extract(s.value, '$.run_id') as id, json_extract(s.value, '$.lease_no') as lease_no,
           json_extract(s.value, '$.state') as state, json_extract(s.value, '$.reason') as reason,
           coalesce(json_extract(s.value, '$.delay'), 0) as delay, json_extract(s.value, '$.error') as error,
           coalesce(json_extract(s.value, '$.refund'), 0) as refund, coalesce(json_extract(s.value, '$.suspect'), 0) as suspect,
           coalesce(json_extract(s.value, '$.uncounted'), 0) as uncounted,
           json_extract(s.value, '$.suspended') is not null as suspended, (select ostinato_now()) as moment,
           case when json_extract(s.value, '$.suspended') is not null
                then coalesce((select min(wake_at) from ostinato_steps
                               where run_id = json_extract(s.value, '$.run_id') and status = 'pending'
                                 and id in (select w.value from json_each(s.value, '$.suspended') w)),
                              (select ostinato_now()) + 3155760000000000)
                else cast((select ostinato_now()) + 1000000 * coalesce(json_extract(s.value, '$.delay'), 0) as integer)
           end as until
    from json_each(:settlements) s
)
update ostinato_runs as r
set state = case when s.state = 'held' and iif(s.suspended, r.woken, s.delay <= 0) then 'ready' else s.state end,
    reason = case when s.state = 'held' and not iif(s.suspended, r.woken, s.delay <= 0) then s.reason end,
    run_at = case when s.state = 'held' then iif(s.suspended and r.woken, s.moment, s.until) else r.run_at end,
    due = case when s.state = 'held' then iif(s.suspended and r.woken, s.moment, s.until) - 1000000 * r.priority else r.due end,
    attempt = r.attempt - s.refund, suspect = s.suspect, uncounted = s.uncounted,
    error = iif(r.cancel_requested, r.error, coalesce(s.error, r.error)), worker = null,
    ended_at = case when s.state in ('failed', 'cancelled') then (select ostinato_now()) end
from s
where r.id = s.id and r.lease_no = s.lease_no and r.worker is not null
  and (s.state = 'cancelled' or not r.cancel_requested)
returning id

-- name: start_runs
update ostinato_runs as r
set certain = 1
from (
    select json_extract(value, '$.run_id') as id, json_extract(value, '$.lease_no') as lease_no from json_each(:starts)
) s
where r.id = s.id and r.lease_no = s.lease_no and r.worker is not null
returning id

-- name: add_attempts
insert into ostinato_attempts (run_id, lease_no, attempt, worker, code, message, traceback, started_at, ended_at)
select json_extract(e.value, '$.run_id'), json_extract(e.value, '$.lease_no'), json_extract(e.value, '$.attempt'),
       json_extract(e.value, '$.worker'), json_extract(e.value, '$.code'), json_extract(e.value, '$.message'),
       json_extract(e.value, '$.traceback'),
       cast(n.moment - 1000000 * json_extract(e.value, '$.duration') as integer), n.moment
from (select ostinato_now() as moment) n
cross join json_each(:attempts) e
where true
on conflict (run_id, lease_no) do nothing

-- name: free_keys
-- 'active' keys end with the run, 'failed' ones unless it failed, the others with time alone.
delete from ostinato_keys
where rowid in (
    select k.rowid
    from json_each(:freed) e
    cross join ostinato_keys k on k.run_id = json_extract(e.value, '$.run_id')
    where k.mode = 'active' or (k.mode = 'failed' and json_extract(e.value, '$.state') <> 'failed'))

-- name: fences
-- What stands in the way of settlements that were refused.
select r.id, r.lease_no, r.state, r.cancel_requested, json_extract(r.error, '$.message')
from ostinato_runs r
where r.id in (select value from json_each(:ids))

-- name: release_due
update ostinato_runs
set state = 'ready', reason = null
where rowid in (
    select rowid from ostinato_runs
    where state = 'held' and queue = :queue and run_at <= (select ostinato_now())
    order by run_at
    limit :limit)
returning id

-- name: next_due
select (run_at - (select ostinato_now())) / 1000000.0
from ostinato_runs
where state = 'held' and queue = :queue
order by run_at
limit 1

-- name: cancel_runs
-- Ends what waits; asks the worker to stop what runs. Whichever commits first, the flag or a settlement, wins. Some may have reasons of
-- their own.
update ostinato_runs
set cancel_requested = 1,
    error = case when cancel_requested then error else json_object(
        'code', :code, 'message', coalesce((select value from json_each(:reasons) own where own.key = ostinato_runs.id), :reason)) end,
    state = case when state = 'running' then state else 'cancelled' end,
    reason = null,
    ended_at = case when state = 'running' then null else (select ostinato_now()) end
where id in (select value from json_each(:ids)) and state in ('held', 'ready', 'running')
returning id, state, worker

-- name: overdue
-- What has not started, or not ended, by its time.
select id, 'start_timeout' from (
    select id from ostinato_runs
    where start_by <= (select ostinato_now()) and started_at is null and ended_at is null
    order by start_by
    limit :limit)
union all
select id, 'finish_timeout' from (
    select id from ostinato_runs
    where finish_by <= (select ostinato_now()) and ended_at is null and not cancel_requested
    order by finish_by
    limit :limit)

-- name: next_overdue
-- Seconds until a run is overdue.
select (min(deadline) - (select ostinato_now())) / 1000000.0
from (
    select (select start_by from ostinato_runs where start_by is not null and started_at is null and ended_at is null
            order by start_by limit 1) as deadline
    union all
    select (select finish_by from ostinato_runs where finish_by is not null and ended_at is null and not cancel_requested
            order by finish_by limit 1)
)

-- name: watched_runs
-- The runs of a function that events cancel, and which do: those that began before it, and whose input has its values at the paths.
-- Both lists of values are written by the same function, so that equal ones are equal texts.
with unended as materialized (
    select r.id, r.created_at, (select json_group_array(json_extract(r.input, '$.' || given.value)) from json_each(:paths) given) as found
    from ostinato_runs r
    where r.function = :function and r.watched and r.ended_at is null and not r.cancel_requested
), wanted as materialized (
    select json_extract(e.value, '$.place') as place, json_extract(e.value, '$.recorded') as recorded,
           (select json_group_array(json_extract(e.value, v.fullkey)) from json_each(e.value, '$.values') v) as found
    from json_each(:wanted) e
)
select u.id, w.place
from wanted w join unended u on u.found = w.found
where u.created_at < w.recorded

-- name: ends
-- What is to be told of runs that have ended: to the ledger, and to the function that is for those that failed.
select r.id, r.function, r.state, r.input, r.error, max(r.attempt - 1, 0), r.started_at, r.ended_at,
       (select count(*) from ostinato_steps s where s.run_id = r.id and s.status = 'completed'),
       exists (select 1 from json_each(f.lifecycle) l where l.value = r.state), n.name, n.queue, n.priority
from ostinato_runs r
join ostinato_functions f on f.name = r.function
left join ostinato_functions n on n.name = f.on_failure and r.state = 'failed'
where r.id in (select value from json_each(:ids)) and r.ended_at is not null
  and (n.name is not null or exists (select 1 from json_each(f.lifecycle) l where l.value = r.state))
order by r.id

-- name: owned_runs
-- What a worker holds in a queue, whether it knows or not.
select id, lease_no from ostinato_runs where worker = :worker and state = 'running' and queue = :queue

-- name: cancelled_of
-- The runs of one worker that somebody wants stopped.
select id, json_extract(error, '$.message')
from ostinato_runs
where worker = :worker and state = 'running' and cancel_requested

-- name: retake_keys
-- A run that is to go again needs its key back; one whose period is over is free.
insert into ostinato_keys (function, key, run_id, mode)
select r.function, r.key, r.id, r.unique_mode
from ostinato_runs r
where r.id in (select value from json_each(:ids))
  and r.state in ('failed', 'cancelled') and r.key is not null and r.unique_mode in ('active', 'failed')
on conflict (function, key) do update
set run_id = excluded.run_id, mode = excluded.mode, until = null
where until <= (select ostinato_now())

-- name: retry_runs
update ostinato_runs as r
set state = 'ready', attempt = 0, suspect = 0, uncounted = 0, certain = 0, woken = 0, cancel_requested = 0,
    run_at = n.moment, due = n.moment - 1000000 * r.priority, ended_at = null,
    start_by = case when r.start_by is not null then cast(n.moment + 1000000 * (
        select f.start_timeout from ostinato_functions f where f.name = r.function) as integer) end,
    finish_by = case when r.finish_by is not null then cast(n.moment + 1000000 * (
        select f.finish_timeout from ostinato_functions f where f.name = r.function) as integer) end
from (select ostinato_now() as moment) n
where r.id in (select value from json_each(:ids)) and r.state in ('failed', 'cancelled')
  and (r.key is null or r.unique_mode = 'until'
       or exists (select 1 from ostinato_keys k where k.function = r.function and k.key = r.key and k.run_id = r.id))
returning id, queue

-- name: prune_runs
delete from ostinato_runs
where rowid in (
    select rowid from ostinato_runs
    where state = :state and ended_at < (select ostinato_now()) - 1000000 * :keep
    order by ended_at
    limit :limit)
returning id

-- name: prune_attempts
delete from ostinato_attempts where run_id in (select value from json_each(:ids))

-- name: prune_keys
delete from ostinato_keys
where rowid in (select rowid from ostinato_keys where until <= (select ostinato_now()) order by until limit :limit)
