-- Workers and their leases; the functions and queues they declare.

-- name: declare_functions
insert into ostinato.functions (name, queue, attempts, timeout, retry, input_schema, version, priority, start_timeout, finish_timeout,
                                lifecycle, on_failure, cancel_on, declared_at)
select e->>'name', e->>'queue', (e->>'attempts')::integer, (e->>'timeout')::double precision, e->'retry', e->'input_schema',
       e->>'version', coalesce((e->>'priority')::smallint, 0::smallint), (e->>'start_timeout')::double precision,
       (e->>'finish_timeout')::double precision, nullif(e->'lifecycle', 'null'), e->>'on_failure', nullif(e->'cancel_on', 'null'),
       ostinato.clock()
from jsonb_array_elements(:functions::text::jsonb) as c(e)
order by 1
on conflict (name) do update
set queue = excluded.queue, attempts = excluded.attempts, timeout = excluded.timeout, retry = excluded.retry,
    input_schema = excluded.input_schema, version = excluded.version, priority = excluded.priority,
    start_timeout = excluded.start_timeout, finish_timeout = excluded.finish_timeout, lifecycle = excluded.lifecycle,
    on_failure = excluded.on_failure, cancel_on = excluded.cancel_on, declared_at = excluded.declared_at

-- name: declare_queues
-- A cap that is declared replaces the one before; whether the queue is paused is the operator's.
insert into ostinato.queues (name, max_waiting)
select e->>'name', (e->>'max_waiting')::integer
from jsonb_array_elements(:queues::text::jsonb) as c(e)
order by 1
on conflict (name) do update set max_waiting = excluded.max_waiting

-- name: register_worker
insert into ostinato.workers (id, name, queues, lease, started_at, renewed_at, expires_at)
select :worker, :name, :queues::text::jsonb, :lease::double precision, now.at, now.at,
       now.at + :lease::double precision * interval '1 second'
from (select ostinato.clock() as at) now

-- name: renew_worker
-- A lease that has run out may still be renewed, as long as nobody has declared its worker dead.
update ostinato.workers
set renewed_at = ostinato.clock(), expires_at = ostinato.clock() + lease * interval '1 second', stopping = :stopping
where id = :worker and dead_at is null
returning id

-- name: retire_worker
update ostinato.workers set dead_at = ostinato.clock() where id = :worker and dead_at is null

-- name: expired_workers
select id, extract(epoch from renewed_at)::text from ostinato.workers where dead_at is null and expires_at < ostinato.clock()

-- name: bury_worker
update ostinato.workers
set dead_at = ostinato.clock()
where id = :worker and dead_at is null and expires_at < ostinato.clock() and extract(epoch from renewed_at)::text = :renewed
returning id

-- name: lock_orphans
-- Runs of workers declared dead, however long ago: perhaps nobody has looked since, or a claim was under way at that moment.
select r.id, r.lease_no, r.function, r.queue, r.attempt, r.uncounted, r.certain, r.cancel_requested, coalesce(f.attempts, 1), r.worker,
       extract(epoch from ostinato.clock() - r.claimed_at)::double precision
from ostinato.runs r
left join ostinato.functions f on f.name = r.function
where r.state = 'running'
  and r.worker = any(array(select id from ostinato.workers where dead_at is not null))
order by r.id
limit :limit
for update of r skip locked

-- name: forget_workers
delete from ostinato.workers w
where w.dead_at < ostinato.clock() - interval '1 hour'
  and not exists (select 1 from ostinato.runs r where r.worker = w.id and r.state = 'running')
