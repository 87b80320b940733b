-- What a doctor asks. The first block needs none of our tables, so that it answers before there are any.

-- name: database_facts
select json_object(
    'version', sqlite_version(),
    'journal_mode', (select journal_mode from pragma_journal_mode),
    'bytes', (select page_count from pragma_page_count) * (select page_size from pragma_page_size),
    'free_bytes', (select freelist_count from pragma_freelist_count) * (select page_size from pragma_page_size))

-- name: database_time
select ostinato_now() / 1000000.0

-- name: queue_health
-- The queues in which runs wait, and how many workers would take them.
select json_object(
    'queue', waiting.queue, 'ready', waiting.ready, 'held', waiting.held, 'paused', $truth(waiting.paused),
    'oldest', ((select ostinato_now()) - waiting.oldest) / 1000000.0,
    'workers', (select count(*) from ostinato_workers w
                where w.dead_at is null and w.expires_at >= (select ostinato_now()) and not w.stopping
                  and waiting.queue in (select key from json_each(w.queues))))
from (select r.queue, sum(r.state = 'ready') as ready, sum(r.state = 'held') as held,
             min(case when r.state = 'ready' then r.run_at end) as oldest, coalesce(q.paused, 0) as paused
      from ostinato_runs r
      left join ostinato_queues q on q.name = r.queue
      where r.state in ('ready', 'held')
      group by r.queue) waiting
order by waiting.queue

-- name: stranded_runs
-- Running runs whose worker has no lease any more, by worker.
select r.worker, count(*),
       coalesce(((select ostinato_now()) - min(min(coalesce(w.dead_at, w.expires_at), w.expires_at))) / 1000000.0, 0.0)
from ostinato_runs r
left join ostinato_workers w on w.id = r.worker
where r.state = 'running' and (w.id is null or w.dead_at is not null or w.expires_at < (select ostinato_now()))
group by r.worker
order by r.worker

-- name: undeclared_functions
-- Functions that waiting runs name and no worker has ever declared.
select r.function, count(*)
from ostinato_runs r
where r.state in ('ready', 'held') and not exists (select 1 from ostinato_functions f where f.name = r.function)
group by r.function
order by r.function

-- name: forget_runs
delete from ostinato_runs where id in (select value from json_each(:ids))

-- name: forget_function
delete from ostinato_functions where name = :function

-- name: forget_queue
delete from ostinato_queues where name = :queue

-- name: forget_worker
delete from ostinato_workers where id = :worker
