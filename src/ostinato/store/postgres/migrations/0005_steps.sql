-- Steps: the parts of a run that are remembered.
--
-- A step is saved under the fence of its run: the run's row is locked for the commit, so that nobody takes the run over between the
-- look and the commit. What is completed or failed is never written again. Outputs are text: jsonb would give 1e22 back as a whole
-- number.
--
-- A run that waits is held until the first moment that one of its pending steps names. What comes earlier (an event, a child's end)
-- completes the step and wakes the run, in one commit. If the run is not held yet, `woken` says so to the commit that would hold it.

create table ostinato.steps (
    run_id text collate "C" not null,
    id text collate "C" not null,
    name text not null,
    place integer not null,                     -- in the order of the first calls
    kind text collate "C" not null check (kind in ('step', 'sleep', 'event', 'send', 'invoke')),
    status text collate "C" not null check (status in ('pending', 'running', 'completed', 'failed')),
    input text,
    output text,
    error text,
    retry_count integer not null default 0,
    started_at timestamptz not null,
    ended_at timestamptz,
    wake_at timestamptz,                        -- when a pending one goes on by itself
    child text collate "C",                     -- the run that it waits for
    awaits text collate "C",                    -- the types of events that it waits for
    wild boolean not null default false,
    matches text,
    since timestamptz,
    event_id text collate "C",
    primary key (run_id, id)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_analyze_scale_factor = 0.05);

create index steps_awaits on ostinato.steps (awaits) where ended_at is null and awaits is not null;
create index steps_wild on ostinato.steps (run_id) where ended_at is null and wild;
create unique index steps_event on ostinato.steps (run_id, event_id) where event_id is not null;
