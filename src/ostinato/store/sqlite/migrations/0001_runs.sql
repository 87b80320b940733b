-- Runs, the keys that make them unique, the attempts that went wrong, and the workers that hold them.
--
-- How it works is told in PostgreSQL's step of the same number. The columns and indexes are the same. Moments are microseconds since 1970,
-- JSON is text, and booleans are 0 and 1. ostinato_now() is the only clock: a function that each of our connections brings along.
--
-- Runs have rowids although their key is text: without them, a tenth fewer runs were claimed and completed per second. An IN list
-- in the check of the state cost another sixth.

create table ostinato_functions (
    name text not null primary key,
    queue text not null,
    attempts integer not null,
    timeout real not null,
    retry text not null,
    input_schema text,
    version text,
    start_timeout real,                         -- seconds after a run is due
    finish_timeout real,
    lifecycle text,                             -- which ends of its runs are recorded in the ledger
    on_failure text,                            -- the function that is started when one has failed for good
    cancel_on text,                             -- the events that cancel its runs
    declared_at integer not null
) without rowid;

create table ostinato_queues (
    name text not null primary key,
    paused integer not null default 0,
    max_waiting integer check (max_waiting > 0)
) without rowid;

create table ostinato_workers (
    id text not null primary key,
    name text not null,
    queues text not null,
    lease real not null,
    started_at integer not null,
    renewed_at integer not null,
    expires_at integer not null,
    stopping integer not null default 0,
    dead_at integer
) without rowid;

create table ostinato_runs (
    id text not null primary key,
    function text not null,
    queue text not null,
    state text not null check (state = 'held' or state = 'ready' or state = 'running'
                               or state = 'completed' or state = 'failed' or state = 'cancelled'),
    reason text,
    run_at integer not null,
    due integer not null,
    priority integer not null default 0 check (priority between -600 and 600),
    lease_no integer not null default 0,
    attempt integer not null default 0,
    suspect integer not null default 0,         -- its last worker died: claimed alone
    certain integer not null default 0,         -- this claim is known to have become a start
    uncounted integer not null default 0,       -- starts in doubt, returned to the budget
    cancel_requested integer not null default 0,
    woken integer not null default 0,           -- something it waits for came while it was not waiting yet
    worker text,
    parent_run text,                            -- the run and the step that wait for it
    parent_step text,
    copied_from text,                           -- the run whose first steps it was given
    key text,
    unique_mode text,
    timeout real,
    start_by integer,                           -- cancelled if it has not started, or not ended, by then
    finish_by integer,
    watched integer not null default 0,         -- an event may cancel it
    version text,                               -- the function's, when it last started
    invoked_by text not null,
    created_at integer not null,
    claimed_at integer,
    started_at integer,
    ended_at integer,
    input text not null,
    output text,
    error text,
    metadata text,
    trace text                                  -- the trace of whoever enqueued it: traceparent, tracestate
);

create index ostinato_runs_ready on ostinato_runs (queue, suspect, due, id) where state = 'ready';
create index ostinato_runs_held on ostinato_runs (queue, run_at) where state = 'held';
create index ostinato_runs_running on ostinato_runs (worker) where state = 'running';
create index ostinato_runs_parent on ostinato_runs (parent_run) where parent_run is not null;
create index ostinato_runs_ended on ostinato_runs (state, ended_at) where ended_at is not null;
create index ostinato_runs_start_by on ostinato_runs (start_by) where start_by is not null and started_at is null and ended_at is null;
create index ostinato_runs_finish_by on ostinato_runs (finish_by) where finish_by is not null and ended_at is null;
create index ostinato_runs_watched on ostinato_runs (function, created_at) where watched and ended_at is null;

create table ostinato_keys (
    function text not null,
    key text not null,
    run_id text not null,
    mode text not null check (mode in ('active', 'failed', 'until')),
    until integer,
    primary key (function, key)
);

create index ostinato_keys_run on ostinato_keys (run_id);
create index ostinato_keys_until on ostinato_keys (until) where until is not null;

create table ostinato_attempts (
    run_id text not null,
    lease_no integer not null,
    attempt integer not null,
    worker text not null,
    code text not null,
    message text not null,
    traceback text,
    started_at integer not null,
    ended_at integer not null,
    primary key (run_id, lease_no)
) without rowid;
