-- The ledger: events, who reads them and how far, which functions they start, and what could not be started.
--
-- How it works. Events get their sequence_no when they are inserted, and become visible when their transaction commits, which is in another
-- order. So a reader does not remember a number but a snapshot (the idea is PgQ's): what it has read is what was visible in that
-- snapshot, and what comes next is visible now and was not then. xid is the transaction that recorded the event. A drainer's position is
-- moved in the transaction that does what the events ask for. Its row is the lock: whoever holds it drains, and nobody else.
--
-- Transactions have other numbers in another cluster, so what a restore brings along must not be compared with snapshots taken here. The one
-- row of ostinato.ledger knows the transaction that wrote it and the number of its table. After a dump and restore both are wrong, and whoever
-- records or reads first notes up to where the ledger came with the restore; copies of the files (pg_upgrade, a base backup, a template)
-- keep both, and the numbers of transactions too.
--
-- Events are never changed. They are deleted by retention alone, which says so in the setting ostinato_ledger.retention.

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
    occurred_at timestamptz not null check (occurred_at >= '0001-01-01Z' and occurred_at < '10000-01-01Z'),  -- the years of Python
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
    if tg_op = 'DELETE' and current_setting('ostinato_ledger.retention', true) = 'on' then
        return null;
    end if;
    raise exception 'events are never changed or deleted: % of the ledger is refused', lower(tg_op)
        using errcode = 'OS005', hint = 'Record another event that says what is different now; retention= decides how long events are kept.';
end $$;

create trigger events_are_kept before update or delete or truncate on ostinato.events
    for each statement execute function ostinato.refuse_changes();

create table ostinato.ledger (
    only_one boolean primary key default true check (only_one),
    lineage text collate "C" not null,          -- new with every restore
    restored_to bigint not null,                -- events up to this one came with the last restore
    written_by xid not null,
    home oid not null
);

insert into ostinato.ledger (lineage, restored_to, written_by, home) values (gen_random_uuid()::text, 0, '0', 0);
update ostinato.ledger set written_by = xmin, home = tableoid;

-- Notes that the ledger was restored, if it was. It comes before anything is recorded here, so all events that there are came along. It has
-- its owner's rights, so that who may only record need not be allowed to write this.
create function ostinato.adopt_ledger() returns void
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
begin
    if exists (select from ostinato.ledger where xmin = written_by and tableoid = home) then
        return;
    end if;
    perform from ostinato.ledger for update;
    if exists (select from ostinato.ledger where xmin = written_by and tableoid = home) then
        return;                                 -- another was first
    end if;
    update ostinato.ledger
    set lineage = gen_random_uuid()::text, restored_to = coalesce((select max(sequence_no) from ostinato.events), 0);
    update ostinato.ledger set written_by = xmin, home = tableoid;  -- xmin, since that may be a subtransaction
end $$;

revoke execute on function ostinato.adopt_ledger from public;

-- Which of the histories of the server this is: a promoted standby, or a restore to a point in time, begins another.
create function ostinato.timeline() returns text
    language plpgsql stable
as $$
begin
    return left(pg_walfile_name(pg_current_wal_lsn()), 8);
exception
    when feature_not_supported or insufficient_privilege or object_not_in_prerequisite_state then
        return 'unknown';                       -- servers without files of WAL
end $$;

-- What became visible from one snapshot to another: from transactions that began after the first, and from those that were open then. Not
-- in order. Two branches are two index scans; written as one condition it was a walk along the primary key, as it was with
-- `e.xid = open.xid`, for which that has the same order. The planner is left no choice here and in the next, since both are also called on
-- connections that are users': by the statistics of a table that has grown since, a page was read by a bitmap of all that is left.
create function ostinato.events_between(after pg_snapshot, until pg_snapshot, floor bigint, most bigint) returns setof ostinato.events
    language plpgsql stable
    set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
begin
    return query
        (select e.* from ostinato.events e
         where e.xid >= pg_snapshot_xmax(after) and e.xid < pg_snapshot_xmax(until)
           and pg_visible_in_snapshot(e.xid, until) and e.sequence_no > floor
         order by e.xid, e.sequence_no
         limit most)
        union all
        (select late.* from pg_snapshot_xip(after) as open (xid)
         cross join lateral (
             select e.* from ostinato.events e
             where e.xid between open.xid and open.xid and e.sequence_no > floor
             order by e.xid, e.sequence_no
             limit most
         ) late
         where pg_visible_in_snapshot(open.xid, until)
         limit most);
end $$;

-- A page of a window that has many, in order: along the primary key, since paging by the two branches would read all of it for every page.
-- Of what came with a restore, up to `restored`, the snapshots `after` and `read_until` speak of the cluster from which it came.
create function ostinato.events_in_window(after pg_snapshot, until pg_snapshot, last bigint, ending bigint, restored bigint, most bigint,
                                          read_until pg_snapshot, read_last bigint)
    returns setof ostinato.events
    language plpgsql stable
    set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
begin
    if restored = 0 then
        return query
            select e.* from ostinato.events e
            where e.sequence_no > last and e.sequence_no <= ending
              and pg_visible_in_snapshot(e.xid, until) and not pg_visible_in_snapshot(e.xid, after)
            order by e.sequence_no
            limit most;
    else
        return query
            select e.* from ostinato.events e
            where e.sequence_no > last and e.sequence_no <= ending
              and case when e.sequence_no > restored then pg_visible_in_snapshot(e.xid, until)
                       else not pg_visible_in_snapshot(e.xid, after)
                            and not (e.sequence_no <= read_last and pg_visible_in_snapshot(e.xid, read_until)) end
            order by e.sequence_no
            limit most;
    end if;
end $$;

-- Of each type so many of the latest events, by source: how many, when the last was recorded, and whether the type may have older ones. The
-- planner is left no choice here either: it walked along the primary key for a rare type, and made a bitmap of all of a frequent one.
create function ostinato.event_counts(most bigint)
    returns table (type text, source text, count bigint, last_seen timestamptz, more boolean)
    language plpgsql stable
    set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
    return query
        with recursive found as (
            (select e.type from ostinato.events e order by e.type limit 1)
            union all
            select (select e.type from ostinato.events e where e.type > found.type order by e.type limit 1)
            from found where found.type is not null
        )
        select found.type, latest.source, count(*), max(latest.recorded_at), sum(count(*)) over (partition by found.type) >= most
        from found
        cross join lateral (
            select e.source, e.recorded_at from ostinato.events e
            where e.type between found.type and found.type
            order by e.type desc, e.sequence_no desc
            limit most
        ) latest
        group by found.type, latest.source
        order by found.type, latest.source nulls first;
end $$;

create table ostinato.drainers (
    name text collate "C" primary key,
    glob text collate "C" not null,
    origin text not null,                       -- the handler that declares it, as module:name; 'built-in', or 'external'
    position text not null,
    lineage text not null,                      -- the ledger's when the position was written
    resets integer not null default 0,          -- how often somebody has put it elsewhere
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
    origin text not null,                       -- 'code', or 'undeclared' since, with the place that declares it; or 'runtime'
    since_sequence bigint not null,             -- events up to this one are none of its business; -1 until it was given those before it
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

create index parked_entity on ostinato.parked (entity_type, entity_id, subscription) where entity_id is not null;
create index parked_event on ostinato.parked (sequence_no);

-- What events and runs have started, for who follows a chain of them.
create index runs_of_event on ostinato.runs (invoked_by) where substr(invoked_by, 1, 6) = 'event:';
create index runs_of_run on ostinato.runs (invoked_by) where substr(invoked_by, 1, 4) = 'run:';

-- Whether a drainer has read an event, by its position and lineage. When in doubt, it has not.
create function ostinato.has_read(reached jsonb, lineage text, number bigint, recorded_by xid8) returns boolean
    language sql stable
    return (select case
                when l.lineage <> split_part(has_read.lineage, '/', 1) or l.xmin <> l.written_by or l.tableoid <> l.home then false
                when (reached->>'restored')::bigint > 0 then number <= l.restored_to and number <= coalesce((reached->>'last')::bigint, 0)
                when number <= l.restored_to then reached->>'after' <> '3:3:'
                     or (reached ? 'until' and number <= coalesce((reached->>'last')::bigint, 0))
                else pg_visible_in_snapshot(recorded_by, (reached->>'after')::pg_snapshot)
                     or (reached ? 'until' and number <= coalesce((reached->>'last')::bigint, 0)
                         and pg_visible_in_snapshot(recorded_by, (reached->>'until')::pg_snapshot))
            end
            from ostinato.ledger l);

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
    moment timestamptz;
    keyed constant boolean := jsonb_path_exists(requests, '$[*].idempotency_key');
begin
    perform ostinato.adopt_ledger();
    if jsonb_path_exists(requests, '$[*].ordered') then
        perform pg_advisory_xact_lock(hashtext('$channel' || ' events'), hashtext(entity))
        from (select distinct concat_ws(':', e->>'entity_type', e->>'entity_id') as entity
              from jsonb_array_elements(requests) e where e ? 'ordered' order by 1) locked;
    end if;
    moment := ostinato.clock();  -- not before the locks: numbers and moments are given together, so that a moment can be looked for
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

-- Text of a request to record an event, or the reason why it cannot be taken.
create function ostinato.event_text(given jsonb, name text, place text, longest integer) returns jsonb
    language plpgsql immutable parallel safe
as $$
begin
    if jsonb_typeof(given) <> 'string' or length(given #>> '{}') not between 1 and longest then
        raise exception '% is % and must be text of 1 to % characters', place || name, left(given::text, 100), longest
            using errcode = 'OS003', detail = name, hint = 'Turn a number into text, like "42".';
    end if;
    return given;
end $$;

-- One request as insert_events wants it, without an id, or the reason why it cannot be. Nulls count as not given, but for the payload.
create function ostinato.event_request(given jsonb, place text) returns jsonb
    language plpgsql stable
as $$
declare
    known constant text[] := array['caused_by', 'entity', 'idempotency_key', 'occurred_at', 'ordered', 'payload', 'source', 'type'];
    e constant jsonb := case when jsonb_typeof(given) = 'object' then jsonb_strip_nulls(given - 'payload') end;
    payload constant jsonb := coalesce(given->'payload', '{}');
    made jsonb;
    wrong text;
begin
    if e is null then
        raise exception '%a request must be an object and is %', place, left(given::text, 100)
            using errcode = 'OS003', hint = 'Write it like {"type": "price.changed", "payload": {"price": 7}}.';
    end if;
    select name into wrong from jsonb_object_keys(given) as name where name <> all(known) order by name limit 1;
    if found then
        raise exception '%unknown field "%"; fields are %', place, left(wrong, 100), array_to_string(known, ', ')
            using errcode = 'OS003', detail = wrong, hint = 'What the event says goes into "payload".';
    end if;
    if jsonb_typeof(e->'type') is distinct from 'string' or length(e->>'type') not between 1 and 200
       or e->>'type' ~ '[* \u0001-\u001f\u007f-\u00a0]' then
        raise exception '%type is % and must be 1 to 200 printable characters without * and spaces',
                place, coalesce(left((e->'type')::text, 100), 'missing')
            using errcode = 'OS003', detail = 'type', hint = 'Write it like {"type": "price.changed", "payload": {"price": 7}}.';
    end if;
    perform ostinato.check_json(payload, place || format('payload of "%s"', e->>'type'), 1048576);
    made := jsonb_build_object('type', e->'type', 'payload', payload);

    if e ? 'entity' then
        if jsonb_typeof(e->'entity') <> 'array' or jsonb_array_length(e->'entity') <> 2 then
            raise exception '%entity is % and must be a pair of texts', place, left((e->'entity')::text, 100)
                using errcode = 'OS003', detail = 'entity', hint = 'Write it like ["product", "42"].';
        end if;
        made := made || jsonb_build_object('entity_type', ostinato.event_text(e->'entity'->0, 'type of entity', place, 100),
                                           'entity_id', ostinato.event_text(e->'entity'->1, 'id of entity', place, 500));
    end if;
    if e ? 'idempotency_key' then
        made := made || jsonb_build_object('idempotency_key', ostinato.event_text(e->'idempotency_key', 'idempotency_key', place, 500));
    end if;
    if e ? 'caused_by' then
        made := made || jsonb_build_object('caused_by', ostinato.event_text(e->'caused_by', 'caused_by', place, 500));
    end if;
    if e ? 'source' then
        made := made || jsonb_build_object('source', ostinato.event_text(e->'source', 'source', place, 200));
    end if;
    if e ? 'occurred_at' then
        made := made || jsonb_build_object('occurred_at', ostinato.instant_in(e->'occurred_at', place || 'occurred_at'));
    end if;
    if e->'ordered' = 'true' then
        if not e ? 'entity' then
            raise exception '%ordered needs an entity', place
                using errcode = 'OS003', detail = 'ordered', hint = 'It is the events of one entity that are in order.';
        end if;
        made := made || '{"ordered": true}';
    elsif e->'ordered' <> 'false' then
        raise exception '%ordered is % and must be true or false', place, left((e->'ordered')::text, 100)
            using errcode = 'OS003', detail = 'ordered', hint = 'True holds the entity''s lock until the commit.';
    end if;
    return made;
end $$;

-- Records an event, or each of an array, all or none: select id, created from ostinato.record('{"type": "price.changed", "payload": {}}').
-- Answers their ids in the order given, and whether they are new: where an idempotency key was used before, it is the event that has it.
-- Null and an empty array record nothing.
create function ostinato.record(requests jsonb) returns table (id text, created boolean)
    language plpgsql volatile
as $$
#variable_conflict use_column
declare
    many constant boolean := jsonb_typeof(requests) = 'array';
    made jsonb;
    used jsonb;
begin
    if requests is null or requests = '[]' then
        return;
    end if;
    select jsonb_agg(ostinato.event_request(given.request, case when many then format('[%s]: ', given.place - 1) else '' end)
                     || jsonb_build_object('id', fresh.id) order by given.place)
    into made
    from jsonb_array_elements(case when many then requests else jsonb_build_array(requests) end) with ordinality as given (request, place)
    join ostinato.new_ids(case when many then jsonb_array_length(requests) else 1 end) with ordinality as fresh (id, place) using (place);

    select jsonb_object_agg(requested, existing) into used from ostinato.insert_events(made);
    return query
        select coalesce(used->>(event.request->>'id'), event.request->>'id'), not coalesce(used ? (event.request->>'id'), false)
        from jsonb_array_elements(made) with ordinality as event (request, place)
        order by event.place;
end $$;
