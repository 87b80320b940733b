-- Reads for people: one JSON text per row, with the same keys on both stores.

-- name: run
select json_object(
    'id', r.id, 'function', r.function, 'queue', r.queue, 'state', r.state, 'reason', r.reason, 'priority', r.priority,
    'attempt', r.attempt, 'lease_no', r.lease_no, 'key', r.key, 'invoked_by', r.invoked_by, 'timeout', r.timeout,
    'created_at', $time(r.created_at), 'run_at', $time(r.run_at), 'claimed_at', $time(r.claimed_at),
    'started_at', $time(r.started_at), 'ended_at', $time(r.ended_at),
    'start_by', $time(r.start_by), 'finish_by', $time(r.finish_by),
    'cancel_requested', $truth(r.cancel_requested), 'suspect', $truth(r.suspect),
    'locked_by', r.worker, 'lease_expires_at', $time(w.expires_at),
    'input', json(r.input), 'output', json(r.output), 'error', json(r.error), 'metadata', json(r.metadata),
    'version', r.version, 'parent', r.parent_run, 'copied_from', r.copied_from,
    'queue_paused', $truth(q.paused), 'attempts_allowed', f.attempts,
    'pending_steps', (select count(*) from ostinato_steps s where s.run_id = r.id and s.status in ('pending', 'running')),
    'attempts', (
        select json_group_array(json_object(
            'lease_no', a.lease_no, 'attempt', a.attempt, 'worker', a.worker, 'code', a.code, 'message', a.message,
            'traceback', a.traceback, 'started_at', $time(a.started_at), 'ended_at', $time(a.ended_at)))
        from (select * from ostinato_attempts where run_id = r.id order by lease_no) a))
from ostinato_runs r
left join ostinato_workers w on w.id = r.worker
left join ostinato_queues q on q.name = r.queue
left join ostinato_functions f on f.name = r.function
where r.id = :id

-- name: runs
select json_object(
    'id', r.id, 'function', r.function, 'queue', r.queue, 'state', r.state, 'reason', r.reason, 'priority', r.priority,
    'attempt', r.attempt, 'lease_no', r.lease_no, 'key', r.key, 'invoked_by', r.invoked_by, 'timeout', r.timeout,
    'created_at', $time(r.created_at), 'run_at', $time(r.run_at), 'claimed_at', $time(r.claimed_at),
    'started_at', $time(r.started_at), 'ended_at', $time(r.ended_at),
    'start_by', $time(r.start_by), 'finish_by', $time(r.finish_by),
    'cancel_requested', $truth(r.cancel_requested), 'suspect', $truth(r.suspect),
    'locked_by', r.worker, 'lease_expires_at', $time(w.expires_at),
    'input', json(r.input), 'output', json(r.output), 'error', json(r.error), 'metadata', json(r.metadata),
    'version', r.version, 'parent', r.parent_run, 'copied_from', r.copied_from,
    'queue_paused', $truth(q.paused), 'attempts_allowed', f.attempts)
from ostinato_runs r
left join ostinato_workers w on w.id = r.worker
left join ostinato_queues q on q.name = r.queue
left join ostinato_functions f on f.name = r.function
where (:function is null or r.function = :function)
  and (:queue is null or r.queue = :queue)
  and (:state is null or r.state = :state)
  and (:key is null or r.key = :key)
  and (:code is null or json_extract(r.error, '$.code') = :code)
  and (:older_than is null or coalesce(r.ended_at, r.created_at) <= (select ostinato_now()) - 1000000 * :older_than)
  and (:newer_than is null or coalesce(r.ended_at, r.created_at) >= (select ostinato_now()) - 1000000 * :newer_than)
  and (:before is null or r.id < :before)
order by r.id desc
limit :limit

-- name: children
-- The runs that steps of a run have started, in that order.
select json_object(
    'id', r.id, 'function', r.function, 'queue', r.queue, 'state', r.state, 'reason', r.reason, 'priority', r.priority,
    'attempt', r.attempt, 'lease_no', r.lease_no, 'key', r.key, 'invoked_by', r.invoked_by, 'timeout', r.timeout,
    'created_at', $time(r.created_at), 'run_at', $time(r.run_at), 'claimed_at', $time(r.claimed_at),
    'started_at', $time(r.started_at), 'ended_at', $time(r.ended_at),
    'start_by', $time(r.start_by), 'finish_by', $time(r.finish_by),
    'cancel_requested', $truth(r.cancel_requested), 'suspect', $truth(r.suspect),
    'locked_by', r.worker, 'lease_expires_at', $time(w.expires_at),
    'input', json(r.input), 'output', json(r.output), 'error', json(r.error), 'metadata', json(r.metadata),
    'version', r.version, 'parent', r.parent_run, 'copied_from', r.copied_from,
    'queue_paused', $truth(q.paused), 'attempts_allowed', f.attempts)
from ostinato_runs r
left join ostinato_workers w on w.id = r.worker
left join ostinato_queues q on q.name = r.queue
left join ostinato_functions f on f.name = r.function
where r.parent_run = :id and r.parent_run is not null
order by r.id

-- name: steps
-- The steps of a run, in the order of their first calls.
select json_object(
    'id', s.id, 'name', s.name, 'index', s.place, 'kind', s.kind, 'status', s.status, 'input', json(s.input),
    'output', json(s.output), 'error', json(s.error), 'retry_count', s.retry_count, 'started_at', $time(s.started_at),
    'ended_at', $time(s.ended_at), 'wake_at', $time(s.wake_at), 'child', s.child, 'awaits', s.awaits, 'matches', s.matches,
    'since', $time(s.since), 'event_id', s.event_id)
from ostinato_steps s
where s.run_id = :id
order by s.place, s.id

-- name: outcomes
-- What became of runs that somebody waits for: only those that have ended.
select id, state, output, error
from ostinato_runs
where id in (select value from json_each(:ids)) and ended_at is not null

-- name: existing_runs
select id from ostinato_runs where id in (select value from json_each(:ids))

-- name: counts
select json_object('function', function, 'queue', queue, 'state', state, 'count', count(*))
from ostinato_runs
group by function, queue, state
order by function, queue, state

-- name: depths
-- How many runs of each function could start now: ready, or held and due. Queues are walked one by one, so that of the held
-- runs only those that are due are looked at.
with recursive queues (name) as (
    select min(queue) from ostinato_runs where state = 'held'
    union all
    select (select min(r.queue) from ostinato_runs r where r.state = 'held' and r.queue > q.name) from queues q where q.name is not null
)
select function, count(*)
from (
    select function from ostinato_runs where state = 'ready'
    union all
    select r.function
    from queues q
    cross join ostinato_runs r on r.queue = q.name and r.state = 'held' and r.run_at <= (select ostinato_now())
) waiting
group by function

-- name: workers
select json_object(
    'id', w.id, 'name', w.name, 'queues', json(w.queues), 'lease', w.lease, 'started_at', $time(w.started_at),
    'renewed_at', $time(w.renewed_at), 'expires_at', $time(w.expires_at), 'stopping', $truth(w.stopping),
    'dead_at', $time(w.dead_at), 'alive', $truth(w.alive), 'running', w.running)
from (
    select w.*, w.dead_at is null and w.expires_at >= (select ostinato_now()) as alive,
           (select count(*) from ostinato_runs r where r.worker = w.id and r.state = 'running') as running
    from ostinato_workers w
    where :dead or w.dead_at is null
) w
order by w.started_at

-- name: functions
select json_object(
    'name', f.name, 'queue', f.queue, 'attempts', f.attempts, 'timeout', f.timeout, 'retry', json(f.retry),
    'input_schema', json(f.input_schema), 'version', f.version, 'priority', f.priority,
    'start_timeout', f.start_timeout, 'finish_timeout', f.finish_timeout, 'lifecycle', json(f.lifecycle),
    'on_failure', f.on_failure, 'cancel_on', json(f.cancel_on),
    'declared_at', $time(f.declared_at))
from ostinato_functions f
order by f.name

-- name: function_names
select name from ostinato_functions order by name
