-- Queues: which there are and what is in them, pausing them, and the ways through runs that verbs for many of them take.
--
-- Nothing here reads runs that ended long ago: counts walk the indexes of what waits and what runs, and what ended lately is the end of
-- an index.

-- name: moment
select ostinato_now()

-- name: queue_names
-- The queues of waiting runs are found by stepping from one name to the next, however many runs each has.
with recursive ready (queue) as (
    select min(queue) from ostinato_runs where state = 'ready'
    union all
    select (select min(r.queue) from ostinato_runs r where r.state = 'ready' and r.queue > b.queue)
    from ready b
    where b.queue is not null
), held (queue) as (
    select min(queue) from ostinato_runs where state = 'held'
    union all
    select (select min(r.queue) from ostinato_runs r where r.state = 'held' and r.queue > b.queue)
    from held b
    where b.queue is not null
)
select name from ostinato_queues
union select queue from ostinato_functions
union select s.key from ostinato_workers w, json_each(w.queues) s where w.dead_at is null
union select queue from ready where queue is not null
union select queue from held where queue is not null
union select queue from ostinato_runs where state = 'running'
order by 1

-- name: queues
-- Each count of waiting runs ends at the limit. The longest wait is looked for among those that come next: without priorities,
-- the first has waited longest.
select json_object(
    'name', n.value, 'paused', $truth(q.paused), 'max_waiting', q.max_waiting,
    'ready', (select count(*) from (
        select 1 from ostinato_runs r where r.queue = n.value and r.state = 'ready' limit :limit)),
    'held', (select count(*) from (
        select 1 from ostinato_runs r where r.queue = n.value and r.state = 'held' limit :limit)),
    'running', coalesce(busy.running, 0), 'slots', coalesce(served.slots, 0), 'workers', coalesce(served.workers, 0),
    'longest_wait', (select ((select ostinato_now()) - min(run_at)) / 1000000.0 from (
        select run_at from (
            select run_at from ostinato_runs r where r.queue = n.value and r.suspect = 0 and r.state = 'ready'
            order by due, id limit 100)
        union all
        select run_at from (
            select run_at from ostinato_runs r where r.queue = n.value and r.suspect = 1 and r.state = 'ready'
            order by due, id limit 100))))
from json_each(:names) n
left join ostinato_queues q on q.name = n.value
left join (
    select queue, count(*) as running from ostinato_runs where state = 'running' group by queue
) busy on busy.queue = n.value
left join (
    select s.key as queue, sum(s.value) as slots, count(*) as workers
    from ostinato_workers w, json_each(w.queues) s
    where w.dead_at is null and not w.stopping and w.expires_at >= (select ostinato_now())
    group by s.key
) served on served.queue = n.value
order by n.value

-- name: pause_queue
-- No run is touched: claims look at the queue.
insert into ostinato_queues (name, paused)
values (:queue, 1)
on conflict (name) do update set paused = 1 where not paused
returning name

-- name: resume_queue
update ostinato_queues set paused = 0 where name = :queue and paused returning name

-- name: ended_lately
-- How many runs have ended between two moments, at most so many of each state.
select queue, state, count(*)
from (
    select * from (
        select queue, state from ostinato_runs
        where state = 'completed' and ended_at > :since and ended_at <= :until order by ended_at limit :limit)
    union all
    select * from (
        select queue, state from ostinato_runs
        where state = 'failed' and ended_at > :since and ended_at <= :until order by ended_at limit :limit)
    union all
    select * from (
        select queue, state from ostinato_runs
        where state = 'cancelled' and ended_at > :since and ended_at <= :until order by ended_at limit :limit)
)
group by queue, state

-- name: latest_failures
select json_object(
    'id', r.id, 'function', r.function, 'queue', r.queue, 'attempt', r.attempt, 'ended_at', $time(r.ended_at),
    'error', json(r.error))
from ostinato_runs r
where r.state = 'failed' and r.ended_at is not null
order by r.ended_at desc
limit :limit

-- name: ready_runs
-- The next entries of an index, as far as they fit, and last of all the place that was reached: however few fit, a page costs the
-- same. held_runs and ended_runs do so too.
with page as materialized (
    select id, due as at,
           (:function is null or function = :function)
            and (:key is null or key = :key)
            and (:code is null or json_extract(error, '$.code') = :code)
            and created_at >= :since and created_at <= :until as fits
    from ostinato_runs
    where state = 'ready' and queue = :queue and suspect = :suspect and (due, id) > (:after, :after_id)
    order by due, id
    limit :limit
)
select id, at, 1 from page where fits
union all
select id, at, 0 from (select id, at from page order by at desc, id desc limit 1)

-- name: held_runs
with page as materialized (
    select id, run_at as at,
           (:function is null or function = :function)
            and (:key is null or key = :key)
            and (:code is null or json_extract(error, '$.code') = :code)
            and created_at >= :since and created_at <= :until as fits
    from ostinato_runs
    where state = 'held' and queue = :queue and run_at >= :after and (run_at, id) > (:after, :after_id)
    order by run_at, id
    limit :limit
)
select id, at, 1 from page where fits
union all
select id, at, 0 from (select id, at from page order by at desc, id desc limit 1)

-- name: running_runs
-- As many as there are slots, at most. Those that are being cancelled are left out.
select id from ostinato_runs
where state = 'running' and not cancel_requested and (:queue is null or queue = :queue)
  and (:function is null or function = :function) and (:key is null or key = :key)
  and (:code is null or json_extract(error, '$.code') = :code)
  and created_at >= :since and created_at <= :until

-- name: ended_runs
with page as materialized (
    select id, ended_at as at,
           (:function is null or function = :function)
            and (:queue is null or queue = :queue)
            and (:key is null or key = :key)
            and (:code is null or json_extract(error, '$.code') = :code) as fits
    from ostinato_runs
    where state = :state and ended_at >= :after and (ended_at, id) > (:after, :after_id) and ended_at <= :until
    order by ended_at, id
    limit :limit
)
select id, at, 1 from page where fits
union all
select id, at, 0 from (select id, at from page order by at desc, id desc limit 1)

-- name: lock_runs
-- Those of the runs that are still in the state in which they were found.
select id from ostinato_runs where id in (select value from json_each(:ids)) and state = :state order by id

-- name: purge_runs
delete from ostinato_runs where id in (select value from json_each(:ids))
