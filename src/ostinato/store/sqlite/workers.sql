-- Workers and their leases; the functions and queues they declare.

-- name: declare_functions
insert into ostinato_functions (name, queue, attempts, timeout, retry, input_schema, version, priority, start_timeout, finish_timeout,
                                lifecycle, on_failure, cancel_on, declared_at)
select json_extract(value, '$.name'), json_extract(value, '$.queue'), json_extract(value, '$.attempts'),
       json_extract(value, '$.timeout'), $json(value, retry), $json(value, input_schema), json_extract(value, '$.version'),
       coalesce(json_extract(value, '$.priority'), 0), json_extract(value, '$.start_timeout'), json_extract(value, '$.finish_timeout'),
       json_extract(value, '$.lifecycle'), json_extract(value, '$.on_failure'), json_extract(value, '$.cancel_on'), (select ostinato_now())
from json_each(:functions)
where true
on conflict (name) do update
set queue = excluded.queue, attempts = excluded.attempts, timeout = excluded.timeout, retry = excluded.retry,
    input_schema = excluded.input_schema, version = excluded.version, priority = excluded.priority,
    start_timeout = excluded.start_timeout, finish_timeout = excluded.finish_timeout, lifecycle = excluded.lifecycle,
    on_failure = excluded.on_failure, cancel_on = excluded.cancel_on, declared_at = excluded.declared_at

-- name: declare_queues
-- A cap that is declared replaces the one before; whether the queue is paused is the operator's.
insert into ostinato_queues (name, max_waiting)
select json_extract(value, '$.name'), json_extract(value, '$.max_waiting')
from json_each(:queues)
where true
on conflict (name) do update set max_waiting = excluded.max_waiting

-- name: register_worker
insert into ostinato_workers (id, name, queues, lease, started_at, renewed_at, expires_at)
select :worker, :name, :queues, :lease, n.moment, n.moment, cast(n.moment + 1000000 * :lease as integer)
from (select ostinato_now() as moment) n

-- name: renew_worker
-- A lease that has run out may still be renewed, as long as nobody has declared its worker dead.
update ostinato_workers
set renewed_at = n.moment, expires_at = cast(n.moment + 1000000 * lease as integer), stopping = :stopping
from (select ostinato_now() as moment) n
where id = :worker and dead_at is null
returning id

-- name: retire_worker
update ostinato_workers set dead_at = ostinato_now() where id = :worker and dead_at is null

-- name: expired_workers
select id, cast(renewed_at as text) from ostinato_workers where dead_at is null and expires_at < (select ostinato_now())

-- name: bury_worker
update ostinato_workers
set dead_at = n.moment
from (select ostinato_now() as moment) n
where id = :worker and dead_at is null and expires_at < n.moment and cast(renewed_at as text) = :renewed
returning id

-- name: lock_orphans
-- Runs of workers declared dead, however long ago: perhaps nobody has looked since.
select r.id, r.lease_no, r.function, r.queue, r.attempt, r.uncounted, r.certain, r.cancel_requested, coalesce(f.attempts, 1), r.worker,
       ((select ostinato_now()) - r.claimed_at) / 1000000.0
from ostinato_runs r indexed by ostinato_runs_running
left join ostinato_functions f on f.name = r.function
where r.state = 'running'
  and r.worker in (select id from ostinato_workers where dead_at is not null)
order by r.id
limit :limit

-- name: forget_workers
delete from ostinato_workers
where dead_at < (select ostinato_now()) - 3600000000
  and not exists (select 1 from ostinato_runs r where r.worker = ostinato_workers.id and r.state = 'running')
