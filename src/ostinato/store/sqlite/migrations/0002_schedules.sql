-- Schedules: which function is to be started when. PostgreSQL's step of the same number tells how it works.

create table ostinato_schedules (
    name text not null primary key,
    function text not null,
    expression text not null,
    tz text not null,
    missed text not null check (missed in ('skip', 'once', 'all')),
    catch_up real not null,
    jitter real not null,
    priority integer not null,
    input text not null,
    gives_slot integer not null,                -- the input gets the slot, as scheduled_at
    origin text not null,                       -- the handler that declares it, as module:name
    paused integer not null default 0,
    next_at integer not null,
    last_slot integer,
    last_run_id text,
    declared_at integer not null,
    seen_at integer not null
) without rowid;
