-- Schedules: which function is to be started when.
--
-- next_at is the slot that comes next. Whoever starts the slot's run moves next_at in the same commit, and only from the value it has seen:
-- of any number of workers at the same slot, one finds it unmoved. Workers write the schedules they declare at their start, and say
-- from time to time that they still do (seen_at); only those that declare a schedule fire it. paused is the operator's alone.

create table ostinato.schedules (
    name text collate "C" primary key,
    function text collate "C" not null,
    expression text collate "C" not null,
    tz text collate "C" not null,
    missed text collate "C" not null check (missed in ('skip', 'once', 'all')),
    catch_up double precision not null,
    jitter double precision not null,
    priority smallint not null,
    input jsonb not null,
    gives_slot boolean not null,                -- the input gets the slot, as scheduled_at
    origin text not null,                       -- the handler that declares it, as module:name
    paused boolean not null default false,
    next_at timestamptz not null,
    last_slot timestamptz,
    last_run_id text collate "C",
    declared_at timestamptz not null,
    seen_at timestamptz not null
);
