-- Queues: which there are and what is in them, pausing them, and the ways through runs that verbs for many of them take.
--
-- Nothing here reads runs that ended long ago: counts walk the indexes of what waits and what runs, and what ended lately is the end of
-- an index. Moments are given in microseconds since 1970, as ostinato.micros() tells them.

-- name: moment
select ostinato.micros(ostinato.clock())

-- name: queue_names
-- The queues of waiting runs are found by stepping from one name to the next, however many runs each has.
with recursive ready as (
    (select queue from ostinato.runs where state = 'ready' order by queue limit 1)
    union all
    select (select r.queue from ostinato.runs r where r.state = 'ready' and r.queue > b.queue order by r.queue limit 1)
    from ready b
    where b.queue is not null
), held as (
    (select queue from ostinato.runs where state = 'held' order by queue limit 1)
    union all
    select (select r.queue from ostinato.runs r where r.state = 'held' and r.queue > b.queue order by r.queue limit 1)
    from held b
    where b.queue is not null
)
select name from ostinato.queues
union select queue from ostinato.functions
union select jsonb_object_keys(queues) from ostinato.workers where dead_at is null
union select queue from ready where queue is not null
union select queue from held where queue is not null
union select queue from ostinato.runs where state = 'running'
order by 1

-- name: queues
-- Each count of waiting runs ends at the limit. The longest wait is looked for among those that come next: without priorities,
-- the first has waited longest.
select to_jsonb(v)::text from (
    select n.name, coalesce(q.paused, false) as paused, q.max_waiting,
           (select count(*)
            from (select 1 from ostinato.runs r where r.queue = n.name and r.state = 'ready' limit :limit::bigint) counted) as ready,
           (select count(*)
            from (select 1 from ostinato.runs r where r.queue = n.name and r.state = 'held' limit :limit::bigint) counted) as held,
           coalesce(busy.running, 0) as running, coalesce(served.slots, 0) as slots, coalesce(served.workers, 0) as workers,
           (select extract(epoch from ostinato.clock() - min(run_at))::double precision
            from ((select run_at from ostinato.runs r where r.queue = n.name and not r.suspect and r.state = 'ready'
                   order by due, id limit 100)
                  union all
                  (select run_at from ostinato.runs r where r.queue = n.name and r.suspect and r.state = 'ready'
                   order by due, id limit 100)) upcoming) as longest_wait
    from jsonb_array_elements_text(:names::text::jsonb) as n(name)
    left join ostinato.queues q on q.name = n.name
    left join (
        select queue, count(*) as running from ostinato.runs where state = 'running' group by queue
    ) busy on busy.queue = n.name
    left join (
        select s.queue, sum(s.slots::integer) as slots, count(*) as workers
        from ostinato.workers w, jsonb_each_text(w.queues) as s(queue, slots)
        where w.dead_at is null and not w.stopping and w.expires_at >= ostinato.clock()
        group by s.queue
    ) served on served.queue = n.name
    order by n.name collate "C"
) v

-- name: pause_queue
-- No run is touched: claims look at the queue.
insert into ostinato.queues as q (name, paused)
values (:queue, true)
on conflict (name) do update set paused = true where not q.paused
returning name

-- name: resume_queue
-- Rings after the change, as an enqueue does: a worker that falls asleep meanwhile waits for our commit.
update ostinato.queues set paused = false where name = :queue and paused returning name, ostinato.ring(name)

-- name: ended_lately
-- How many runs have ended between two moments, at most so many of each state.
select queue, state, count(*)
from (
    select lately.queue, lately.state
    from (values ('completed'), ('failed'), ('cancelled')) as s(state)
    cross join lateral (
        select r.queue, r.state from ostinato.runs r
        where r.state = s.state
          and r.ended_at > timestamptz 'epoch' + :since::double precision * interval '1 microsecond'
          and r.ended_at <= timestamptz 'epoch' + :until::double precision * interval '1 microsecond'
        order by r.ended_at
        limit :limit::bigint) lately
) ended
group by queue, state

-- name: latest_failures
select to_jsonb(v)::text from (
    select r.id, r.function, r.queue, r.attempt, r.ended_at, r.error
    from ostinato.runs r
    where r.state = 'failed' and r.ended_at is not null
    order by r.ended_at desc
    limit :limit
) v

-- name: ready_runs
-- The next entries of an index, as far as they fit, and last of all the place that was reached: however few fit, a page costs the
-- same. held_runs and ended_runs do so too.
with page as materialized (
    select id, due as at,
           coalesce((:function::text is null or function = :function)
               and (:key::text is null or key = :key)
               and (:code::text is null or error->>'code' = :code)
               and created_at >= timestamptz 'epoch' + :since::double precision * interval '1 microsecond'
               and created_at <= timestamptz 'epoch' + :until::double precision * interval '1 microsecond', false) as fits
    from ostinato.runs
    where state = 'ready' and queue = :queue and suspect = :suspect and (due, id) > (:after::bigint, :after_id::text)
    order by due, id
    limit :limit
)
select id, at, true from page where fits
union all
(select id, at, false from page order by at desc, id desc limit 1)

-- name: held_runs
with page as materialized (
    select id, ostinato.micros(run_at) as at,
           coalesce((:function::text is null or function = :function)
               and (:key::text is null or key = :key)
               and (:code::text is null or error->>'code' = :code)
               and created_at >= timestamptz 'epoch' + :since::double precision * interval '1 microsecond'
               and created_at <= timestamptz 'epoch' + :until::double precision * interval '1 microsecond', false) as fits
    from ostinato.runs
    where state = 'held' and queue = :queue
      and run_at >= timestamptz 'epoch' + :after::double precision * interval '1 microsecond'
      and (run_at, id) > (timestamptz 'epoch' + :after::double precision * interval '1 microsecond', :after_id::text)
    order by run_at, id
    limit :limit
)
select id, at, true from page where fits
union all
(select id, at, false from page order by at desc, id desc limit 1)

-- name: running_runs
-- As many as there are slots, at most. Those that are being cancelled are left out.
select id from ostinato.runs
where state = 'running' and not cancel_requested and (:queue::text is null or queue = :queue)
  and (:function::text is null or function = :function) and (:key::text is null or key = :key)
  and (:code::text is null or error->>'code' = :code)
  and created_at >= timestamptz 'epoch' + :since::double precision * interval '1 microsecond'
  and created_at <= timestamptz 'epoch' + :until::double precision * interval '1 microsecond'

-- name: ended_runs
with page as materialized (
    select id, ostinato.micros(ended_at) as at,
           coalesce((:function::text is null or function = :function)
               and (:queue::text is null or queue = :queue)
               and (:key::text is null or key = :key)
               and (:code::text is null or error->>'code' = :code), false) as fits
    from ostinato.runs
    where state = :state
      and ended_at >= timestamptz 'epoch' + :after::double precision * interval '1 microsecond'
      and (ended_at, id) > (timestamptz 'epoch' + :after::double precision * interval '1 microsecond', :after_id::text)
      and ended_at <= timestamptz 'epoch' + :until::double precision * interval '1 microsecond'
    order by ended_at, id
    limit :limit
)
select id, at, true from page where fits
union all
(select id, at, false from page order by at desc, id desc limit 1)

-- name: lock_runs
-- Those of the runs that are still in the state in which they were found. What others have locked is moving on.
select id from ostinato.runs
where id = any(array(select jsonb_array_elements_text(:ids::text::jsonb))) and state = :state
order by id
for update skip locked

-- name: purge_runs
delete from ostinato.runs where id = any(array(select jsonb_array_elements_text(:ids::text::jsonb)))
