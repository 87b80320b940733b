-- Reads for people: one JSON text per row, with the same keys on both stores.

-- name: run
select to_jsonb(v)::text from (
    select r.id, r.function, r.queue, r.state, r.reason, r.priority, r.attempt, r.lease_no, r.key, r.invoked_by, r.timeout,
           r.created_at, r.run_at, r.claimed_at, r.started_at, r.ended_at, r.start_by, r.finish_by, r.cancel_requested, r.suspect,
           r.worker as locked_by, w.expires_at as lease_expires_at, r.input, r.output, r.error, r.metadata,
           r.version, r.parent_run as parent, r.copied_from,
           coalesce(q.paused, false) as queue_paused, f.attempts as attempts_allowed,
           (select count(*) from ostinato.steps s where s.run_id = r.id and s.status in ('pending', 'running')) as pending_steps,
           coalesce((select jsonb_agg(to_jsonb(a) - 'run_id' order by a.lease_no) from ostinato.attempts a where a.run_id = r.id), '[]') as attempts
    from ostinato.runs r
    left join ostinato.workers w on w.id = r.worker
    left join ostinato.queues q on q.name = r.queue
    left join ostinato.functions f on f.name = r.function
    where r.id = :id
) v

-- name: runs
select to_jsonb(v)::text from (
    select r.id, r.function, r.queue, r.state, r.reason, r.priority, r.attempt, r.lease_no, r.key, r.invoked_by, r.timeout,
           r.created_at, r.run_at, r.claimed_at, r.started_at, r.ended_at, r.start_by, r.finish_by, r.cancel_requested, r.suspect,
           r.worker as locked_by, w.expires_at as lease_expires_at, r.input, r.output, r.error, r.metadata,
           r.version, r.parent_run as parent, r.copied_from,
           coalesce(q.paused, false) as queue_paused, f.attempts as attempts_allowed
    from ostinato.runs r
    left join ostinato.workers w on w.id = r.worker
    left join ostinato.queues q on q.name = r.queue
    left join ostinato.functions f on f.name = r.function
    where (:function::text is null or r.function = :function)
      and (:queue::text is null or r.queue = :queue)
      and (:state::text is null or r.state = :state)
      and (:key::text is null or r.key = :key)
      and (:code::text is null or r.error->>'code' = :code)
      and (:older_than::double precision is null
           or coalesce(r.ended_at, r.created_at) <= ostinato.clock() - :older_than * interval '1 second')
      and (:newer_than::double precision is null
           or coalesce(r.ended_at, r.created_at) >= ostinato.clock() - :newer_than * interval '1 second')
      and (:before::text is null or r.id < :before)
    order by r.id desc
    limit :limit
) v

-- name: children
-- The runs that steps of a run have started, in that order.
select to_jsonb(v)::text from (
    select r.id, r.function, r.queue, r.state, r.reason, r.priority, r.attempt, r.lease_no, r.key, r.invoked_by, r.timeout,
           r.created_at, r.run_at, r.claimed_at, r.started_at, r.ended_at, r.start_by, r.finish_by, r.cancel_requested, r.suspect,
           r.worker as locked_by, w.expires_at as lease_expires_at, r.input, r.output, r.error, r.metadata,
           r.version, r.parent_run as parent, r.copied_from,
           coalesce(q.paused, false) as queue_paused, f.attempts as attempts_allowed
    from ostinato.runs r
    left join ostinato.workers w on w.id = r.worker
    left join ostinato.queues q on q.name = r.queue
    left join ostinato.functions f on f.name = r.function
    where r.parent_run = :id
    order by r.id
) v

-- name: steps
-- The steps of a run, in the order of their first calls. Not jsonb: that would give 1e22 back as a whole number.
select to_json(v)::text from (
    select s.id, s.name, s.place as index, s.kind, s.status, s.input::json as input, s.output::json as output, s.error::json as error,
           s.retry_count, s.started_at, s.ended_at, s.wake_at, s.child, s.awaits, s.matches, s.since, s.event_id
    from ostinato.steps s
    where s.run_id = :id
    order by s.place, s.id
) v

-- name: outcomes
-- What became of runs that somebody waits for: only those that have ended.
select id, state, output::text, error::text
from ostinato.runs
where id = any(array(select jsonb_array_elements_text(:ids::text::jsonb))) and ended_at is not null

-- name: existing_runs
select id from ostinato.runs where id = any(array(select jsonb_array_elements_text(:ids::text::jsonb)))

-- name: counts
select jsonb_build_object('function', function, 'queue', queue, 'state', state, 'count', count(*))::text
from ostinato.runs
group by function, queue, state
order by function, queue, state

-- name: depths
-- How many runs of each function could start now: ready, or held and due. Queues are walked one by one, so that of the held
-- runs only those that are due are looked at.
with recursive queues (name) as (
    select min(queue) from ostinato.runs where state = 'held'
    union all
    select (select min(r.queue) from ostinato.runs r where r.state = 'held' and r.queue > q.name) from queues q where q.name is not null
)
select function, count(*)
from (
    select function from ostinato.runs where state = 'ready'
    union all
    select r.function
    from (select ostinato.clock() as moment) now, queues q
    join ostinato.runs r on r.queue = q.name and r.state = 'held'
    where r.run_at <= now.moment
) waiting
group by function

-- name: workers
select to_jsonb(v)::text from (
    select w.id, w.name, w.queues, w.lease, w.started_at, w.renewed_at, w.expires_at, w.stopping, w.dead_at,
           w.dead_at is null and w.expires_at >= ostinato.clock() as alive,
           (select count(*) from ostinato.runs r where r.worker = w.id and r.state = 'running') as running
    from ostinato.workers w
    where :dead or w.dead_at is null
    order by w.started_at
) v

-- name: functions
select to_jsonb(f)::text from ostinato.functions f order by f.name

-- name: function_names
select name from ostinato.functions order by name
