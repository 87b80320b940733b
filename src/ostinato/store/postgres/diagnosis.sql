-- What a doctor asks. The first blocks need none of our tables, so that they answer before there are any.

-- name: database_facts
select jsonb_build_object(
    'version', current_setting('server_version'),
    'version_number', current_setting('server_version_num')::integer,
    'role', current_user,
    'standby', pg_is_in_recovery(),
    'settings', (
        select jsonb_object_agg(name, setting) from pg_settings
        where name in ('fsync', 'full_page_writes', 'synchronous_commit', 'autovacuum', 'track_counts', 'max_connections',
                       'superuser_reserved_connections', 'reserved_connections', 'idle_in_transaction_session_timeout',
                       'idle_session_timeout', 'statement_timeout', 'transaction_timeout', 'lock_timeout', 'default_transaction_read_only')),
    'connections', (select count(*) from pg_stat_activity where coalesce(backend_type, 'client backend') = 'client backend'),
    'hidden_sessions', (select count(*) from pg_stat_activity where query = '<insufficient privilege>'),
    'horizon', (
        select jsonb_build_object('transactions', held.transactions, 'holder', held.holder)
        from (select age(backend_xmin) as transactions, format('the session with pid %s', pid) as holder
              from pg_stat_activity where backend_xmin is not null and pid <> pg_backend_pid()
              union all
              select age(xmin), format('the replication slot %s', slot_name) from pg_replication_slots where xmin is not null
              union all
              select age(transaction), format('the prepared transaction %s', gid) from pg_prepared_xacts) held
        order by held.transactions desc
        limit 1),
    'prepared', (select count(*) from pg_prepared_xacts where prepared < clock_timestamp() - interval '5 minutes'),
    'runs', (
        select jsonb_build_object(
            'live', s.n_live_tup, 'dead', s.n_dead_tup, 'bytes', pg_total_relation_size(s.relid),
            'vacuumed_at', greatest(s.last_vacuum, s.last_autovacuum),
            'autovacuum', not coalesce('autovacuum_enabled=false' = any(c.reloptions) or 'autovacuum_enabled=off' = any(c.reloptions), false))
        from pg_stat_all_tables s join pg_class c on c.oid = s.relid
        where s.schemaname = '$channel' and s.relname = 'runs'))::text

-- name: open_transactions
-- The oldest transactions of others that have lasted longer than so many seconds.
select jsonb_build_object('pid', pid, 'role', usename, 'application', application_name, 'database', datname, 'state', state,
                          'seconds', extract(epoch from clock_timestamp() - xact_start))::text
from pg_stat_activity
where backend_type = 'client backend' and pid <> pg_backend_pid()
  and xact_start < clock_timestamp() - :older_than::double precision * interval '1 second'
order by xact_start
limit 5

-- name: missing_grants
-- What the roles that were let into the schema lack, and what ours does. What kind of role it is meant to be follows from what it may do to
-- runs, or is told. The schema's owner and superusers lack nothing.
with place as (
    select oid, nspowner, nspacl from pg_namespace where nspname = '$channel'
), tables as (
    select c.oid, c.relname::text as name from pg_class c join place on c.relnamespace = place.oid where c.relkind in ('r', 'p')
), others as (
    select r.oid, r.rolname::text as name from pg_roles r cross join place where not r.rolsuper and not pg_has_role(r.oid, place.nspowner, 'member')
), roles as (
    select r.oid, r.name,
           case when has_any_column_privilege(r.oid, runs.oid, 'update') then 'worker'
                when has_any_column_privilege(r.oid, runs.oid, 'insert') then 'producer'
                when has_any_column_privilege(r.oid, runs.oid, 'select') then 'reader' end as kind
    from others r cross join place join tables runs on runs.name = 'runs'
    where r.name = current_user or r.oid in (select grantee from aclexplode(place.nspacl))
    union
    select r.oid, r.name, e->>'kind' from others r join jsonb_array_elements(:meant::text::jsonb) as c(e) on e->>'role' = r.name
), wanted as (
    select r.oid as role, r.name as role_name, r.kind as role_kind, e->>'verb' as verb, e->>'kind' as kind, e->>'name' as name,
           e->>'column' as column, e->>'but' as but
    from roles r join jsonb_array_elements(:expected::text::jsonb) as c(e) on e->>'role_kind' = r.kind
), lacking as (
    select role_name, role_kind, 'usage on the schema' as what
    from wanted cross join place
    where kind = 'schema' and not has_schema_privilege(role, place.oid, verb)
    union all
    select role_name, role_kind, format('%s on the table %s', verb, t.name)
    from wanted join tables t on (wanted.name is null or t.name = wanted.name) and t.name is distinct from but
    where kind = 'table' and not case when wanted.column is null then has_table_privilege(role, t.oid, verb)
                                      else has_column_privilege(role, t.oid, wanted.column, verb) end
    union all
    select role_name, role_kind, format('execute on the function %s', f.proname)
    from wanted cross join place join pg_proc f on f.pronamespace = place.oid and (wanted.name is null or f.proname = wanted.name)
    where kind = 'function' and not has_function_privilege(role, f.oid, verb)
    union all
    select role_name, role_kind, format('%s on the sequence %s', verb, s.relname)
    from wanted cross join place
    join pg_class s on s.relnamespace = place.oid and s.relkind = 'S' and (wanted.name is null or s.relname = wanted.name)
    where kind = 'sequence' and not has_sequence_privilege(role, s.oid, verb)
    union all
    select name, 'nothing', 'everything' from roles where kind is null and name = current_user
)
select distinct role_name, role_kind, what from lacking order by 1, 2, 3

-- name: database_time
select extract(epoch from ostinato.clock())::double precision

-- name: queue_health
-- The queues in which runs wait, and how many workers would take them.
select jsonb_build_object(
    'queue', waiting.queue, 'ready', waiting.ready, 'held', waiting.held, 'paused', coalesce(q.paused, false),
    'oldest', extract(epoch from ostinato.clock() - waiting.oldest),
    'workers', (select count(*) from ostinato.workers w
                where w.dead_at is null and w.expires_at >= ostinato.clock() and not w.stopping and w.queues ? waiting.queue))::text
from (select queue, count(*) filter (where state = 'ready') as ready, count(*) filter (where state = 'held') as held,
             min(run_at) filter (where state = 'ready') as oldest
      from ostinato.runs
      where state in ('ready', 'held')
      group by queue) waiting
left join ostinato.queues q on q.name = waiting.queue
order by waiting.queue

-- name: stranded_runs
-- Running runs whose worker has no lease any more, by worker.
select r.worker, count(*),
       coalesce(extract(epoch from ostinato.clock() - min(least(w.dead_at, w.expires_at))), 0)::double precision
from ostinato.runs r
left join ostinato.workers w on w.id = r.worker
where r.state = 'running' and (w.id is null or w.dead_at is not null or w.expires_at < ostinato.clock())
group by r.worker
order by r.worker

-- name: undeclared_functions
-- Functions that waiting runs name and no worker has ever declared.
select r.function, count(*)
from ostinato.runs r
where r.state in ('ready', 'held') and not exists (select 1 from ostinato.functions f where f.name = r.function)
group by r.function
order by r.function

-- name: forget_runs
delete from ostinato.runs where id = any(array(select jsonb_array_elements_text(:ids::text::jsonb)))

-- name: forget_function
delete from ostinato.functions where name = :function

-- name: forget_queue
delete from ostinato.queues where name = :queue

-- name: forget_worker
delete from ostinato.workers where id = :worker
