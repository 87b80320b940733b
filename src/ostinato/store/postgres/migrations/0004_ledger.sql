-- The ledger: events, who reads them and how far, which functions they start, and what could not be started.
--
-- How it works. Events get their sequence_no when they are inserted, and become visible when their transaction commits, which is in another
-- order. So a reader does not remember a number but a snapshot (the idea is PgQ's): what it has read is what was visible in that
-- snapshot, and what comes next is visible now and was not then. xid is the transaction that recorded the event. A drainer's position is
-- moved in the transaction that does what the events ask for. Its row is the lock: whoever holds it drains, and nobody else.
--
-- Events are never changed. They are deleted by retention alone, which says so in the setting ostinato.retention.

create sequence ostinato.events_sequence;

create table ostinato.events (
    sequence_no bigint primary key default nextval('ostinato.events_sequence'),
    id text collate "C" not null,
    type text collate "C" not null,
    entity_type text collate "C",
    entity_id text collate "C",
    payload jsonb not null,
    caused_by text collate "C",
    run_id text collate "C",
    source text collate "C",
    occurred_at timestamptz not null,
    recorded_at timestamptz not null,
    idempotency_key text collate "C",
    xid xid8 not null default pg_current_xact_id()
) with (autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.02);

create unique index events_id on ostinato.events (id);
create index events_xid on ostinato.events (xid, sequence_no);
create index events_type on ostinato.events (type, sequence_no);
create index events_entity on ostinato.events (entity_type, entity_id, sequence_no) where entity_id is not null;
create index events_caused_by on ostinato.events (caused_by) where caused_by is not null;
create index events_run on ostinato.events (run_id) where run_id is not null;
create unique index events_key on ostinato.events (idempotency_key) where idempotency_key is not null;

create function ostinato.refuse_changes() returns trigger
    language plpgsql volatile
as $$
begin
    if tg_op = 'DELETE' and current_setting('ostinato.retention', true) = 'on' then
        return null;
    end if;
    raise exception 'events are never changed or deleted: % of the ledger is refused', lower(tg_op)
        using errcode = 'OS005', hint = 'Record another event that says what is different now; retention= decides how long events are kept.';
end $$;

create trigger events_are_kept before update or delete or truncate on ostinato.events
    for each statement execute function ostinato.refuse_changes();

create table ostinato.drainers (
    name text collate "C" primary key,
    glob text collate "C" not null,
    origin text not null,                       -- the handler that declares it, as module:name; 'built-in', or 'external'
    position text not null,
    lineage text not null,                      -- the cluster whose transactions the position speaks of
    processed bigint not null default 0,
    created_at timestamptz not null,
    last_drained_at timestamptz,
    failures integer not null default 0,        -- in a row
    halted_on text collate "C",
    error text,
    retry_at timestamptz
);

create table ostinato.subscriptions (
    name text collate "C" primary key,
    glob text collate "C" not null,
    function text collate "C" not null,
    filter text,
    mapper jsonb,
    ordered boolean not null default false,     -- an entity's later events wait behind a parked one
    enabled boolean not null default true,
    origin text not null,                       -- 'code', with the place that declares it, or 'runtime'
    since_sequence bigint not null,             -- events up to this one are none of its business
    since_at timestamptz,                       -- nor those recorded before
    declared_at timestamptz not null,
    version bigint not null                     -- new with every change
);

create sequence ostinato.subscriptions_changes;

create index subscriptions_version on ostinato.subscriptions (version);

create table ostinato.parked (
    subscription text collate "C" not null,
    sequence_no bigint not null,
    event_id text collate "C" not null,
    entity_type text collate "C",
    entity_id text collate "C",
    code text not null,
    message text not null,
    parked_at timestamptz not null,
    primary key (subscription, sequence_no)
);

create index parked_entity on ostinato.parked (subscription, entity_type, entity_id) where entity_id is not null;

-- Wakes whoever sleeps on the ledger.
create function ostinato.ring_ledger() returns void
    language plpgsql volatile
as $$
begin
    if ostinato.somebody_sleeps('e') then
        perform pg_notify('$channel', 'e');
    end if;
end $$;

-- Records events given as a JSON array (see EventRecorded for the fields). Returns only those whose idempotency key was used before: the
-- id asked for and the event that has the key. Numbers are given in the order of the array; rows go in in the order of their keys, so
-- that two bulks cannot deadlock. Whoever asks for an entity's order holds its lock from before the number is given until the commit.
create function ostinato.insert_events(requests jsonb, ring boolean default true)
    returns table (requested text, existing text)
    language plpgsql volatile
as $$
declare
    moment constant timestamptz := ostinato.clock();
    keyed constant boolean := jsonb_path_exists(requests, '$[*].idempotency_key');
begin
    if jsonb_path_exists(requests, '$[*].ordered') then
        perform pg_advisory_xact_lock(hashtext('$channel' || ' events'), hashtext(entity))
        from (select distinct concat_ws(':', e->>'entity_type', e->>'entity_id') as entity
              from jsonb_array_elements(requests) e where e ? 'ordered' order by 1) locked;
    end if;
    if not keyed then
        insert into ostinato.events (id, type, entity_type, entity_id, payload, caused_by, run_id, source, occurred_at, recorded_at)
        select e->>'id', e->>'type', e->>'entity_type', e->>'entity_id', e->'payload', e->>'caused_by', e->>'run_id', e->>'source',
               coalesce((e->>'occurred_at')::timestamptz, moment), moment
        from jsonb_array_elements(requests) e;
    else
        with numbered as materialized (
            select e, place, nextval('ostinato.events_sequence') as sequence_no
            from jsonb_array_elements(requests) with ordinality as given (e, place)
        )
        insert into ostinato.events (sequence_no, id, type, entity_type, entity_id, payload, caused_by, run_id, source, occurred_at,
                                     recorded_at, idempotency_key)
        select sequence_no, e->>'id', e->>'type', e->>'entity_type', e->>'entity_id', e->'payload', e->>'caused_by', e->>'run_id',
               e->>'source', coalesce((e->>'occurred_at')::timestamptz, moment), moment, e->>'idempotency_key'
        from numbered
        order by e->>'idempotency_key', place
        on conflict (idempotency_key) where idempotency_key is not null do nothing;
    end if;
    if ring and not (pg_try_advisory_lock(hashtext('$channel'), hashtext('e'))
                     and pg_advisory_unlock(hashtext('$channel'), hashtext('e'))) then
        perform ostinato.ring_ledger();
    end if;
    if keyed then
        return query
            select e->>'id', v.id
            from jsonb_array_elements(requests) e
            join ostinato.events v on v.idempotency_key = e->>'idempotency_key'
            where e ? 'idempotency_key' and v.id <> e->>'id';
    end if;
end $$;
