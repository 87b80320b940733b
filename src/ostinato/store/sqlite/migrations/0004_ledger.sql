-- The ledger: events, who reads them and how far, which functions they start, and what could not be started.
--
-- PostgreSQL's step of the same number tells how it works. There is one writer, so the order of sequence_no is the order of commits, and a
-- position is the last number read; autoincrement, since the highest number would be given again after its row was deleted.
-- Retention says that it is at work in a row of ostinato_retention, which it takes away before it commits.

create table ostinato_events (
    sequence_no integer not null primary key autoincrement,
    id text not null,
    type text not null,
    entity_type text,
    entity_id text,
    payload text not null,
    caused_by text,
    run_id text,
    source text,
    occurred_at integer not null check (occurred_at between -62135596800000000 and 253402300799999999),  -- the years of Python
    recorded_at integer not null,
    idempotency_key text
);

create unique index ostinato_events_id on ostinato_events (id);
create index ostinato_events_type on ostinato_events (type, sequence_no);
create index ostinato_events_entity on ostinato_events (entity_type, entity_id, sequence_no) where entity_id is not null;
create index ostinato_events_caused_by on ostinato_events (caused_by) where caused_by is not null;
create index ostinato_events_run on ostinato_events (run_id) where run_id is not null;
create unique index ostinato_events_key on ostinato_events (idempotency_key) where idempotency_key is not null;

create table ostinato_retention (at_work integer not null primary key) without rowid;

create trigger ostinato_events_unchanged before update on ostinato_events
begin
    select raise(abort, 'events are never changed or deleted: update of the ledger is refused');
end;

create trigger ostinato_events_kept before delete on ostinato_events
when not exists (select 1 from ostinato_retention)
begin
    select raise(abort, 'events are never changed or deleted: delete of the ledger is refused');
end;

create table ostinato_drainers (
    name text not null primary key,
    glob text not null,
    origin text not null,                       -- the handler that declares it, as module:name; 'built-in', or 'external'
    position text not null,
    lineage text not null,                      -- on PostgreSQL, the ledger's when the position was written
    resets integer not null default 0,          -- how often somebody has put it elsewhere
    processed integer not null default 0,
    created_at integer not null,
    last_drained_at integer,
    failures integer not null default 0,        -- in a row
    halted_on text,
    error text,
    retry_at integer
) without rowid;

create table ostinato_subscriptions (
    name text not null primary key,
    glob text not null,
    function text not null,
    filter text,
    mapper text,
    ordered integer not null default 0,         -- an entity's later events wait behind a parked one
    enabled integer not null default 1,
    origin text not null,                       -- 'code', or 'undeclared' since, with the place that declares it; or 'runtime'
    since_sequence integer not null,            -- events up to this one are none of its business; -1 until it was given those before it
    since_at integer,                           -- nor those recorded before
    declared_at integer not null,
    version integer not null                    -- new with every change
) without rowid;

create index ostinato_subscriptions_version on ostinato_subscriptions (version);

-- How often they were changed. A highest version alone would be given again after its row was deleted.
create table ostinato_subscriptions_changes (number integer not null primary key) without rowid;

insert into ostinato_subscriptions_changes values (0);

create trigger ostinato_subscriptions_added after insert on ostinato_subscriptions
begin
    update ostinato_subscriptions_changes set number = number + 1;
end;

create trigger ostinato_subscriptions_changed after update on ostinato_subscriptions
begin
    update ostinato_subscriptions_changes set number = number + 1;
end;

create trigger ostinato_subscriptions_removed after delete on ostinato_subscriptions
begin
    update ostinato_subscriptions_changes set number = number + 1;
end;

create table ostinato_parked (
    subscription text not null,
    sequence_no integer not null,
    event_id text not null,
    entity_type text,
    entity_id text,
    code text not null,
    message text not null,
    parked_at integer not null,
    primary key (subscription, sequence_no)
) without rowid;

create index ostinato_parked_entity on ostinato_parked (entity_type, entity_id, subscription) where entity_id is not null;
create index ostinato_parked_event on ostinato_parked (sequence_no);

create index ostinato_runs_of_event on ostinato_runs (invoked_by) where substr(invoked_by, 1, 6) = 'event:';
create index ostinato_runs_of_run on ostinato_runs (invoked_by) where substr(invoked_by, 1, 4) = 'run:';
