-- Steps: the parts of a run that are remembered. How it works is told in PostgreSQL's step of the same number.

create table ostinato_steps (
    run_id text not null,
    id text not null,
    name text not null,
    place integer not null,
    kind text not null check (kind in ('step', 'sleep', 'event', 'send', 'invoke')),
    status text not null check (status = 'completed' or status = 'pending' or status = 'running' or status = 'failed'),
    input text,
    output text,
    error text,
    retry_count integer not null default 0,
    started_at integer not null,
    ended_at integer,
    wake_at integer,
    child text,
    awaits text,
    wild integer not null default 0,
    matches text,
    since integer,
    event_id text,
    primary key (run_id, id)
) without rowid;

create index ostinato_steps_awaits on ostinato_steps (awaits) where ended_at is null and awaits is not null;
create index ostinato_steps_wild on ostinato_steps (run_id) where ended_at is null and wild;
create unique index ostinato_steps_event on ostinato_steps (run_id, event_id) where event_id is not null;
