-- Runs, the keys that make them unique, the attempts that went wrong, and the workers that hold them.
--
-- How it works. A run is inserted as 'ready', or as 'held' with the moment at which it may go on. A worker claims ready runs
-- of its queues in the order of (due, id) and holds them by its own row in workers: its lease. Whoever writes to a claimed run names the
-- lease_no it got at the claim; a claim adds one, so a worker that was given up on cannot write any more. What it held goes
-- back to ready once its lease has run out.
--
-- due is microseconds since 1970 of run_at, less the run's priority in seconds: one key gives the order of claims.
-- ostinato.clock() is the only clock. Tests replace it; nothing else may.

create table ostinato.functions (
    name text collate "C" primary key,
    queue text collate "C" not null,
    attempts integer not null,
    timeout double precision not null,
    retry jsonb not null,
    input_schema jsonb,
    version text,
    start_timeout double precision,             -- seconds after a run is due
    finish_timeout double precision,
    lifecycle jsonb,                            -- which ends of its runs are recorded in the ledger
    on_failure text collate "C",                -- the function that is started when one has failed for good
    cancel_on jsonb,                            -- the events that cancel its runs
    declared_at timestamptz not null
);

create table ostinato.queues (
    name text collate "C" primary key,
    paused boolean not null default false,
    max_waiting integer check (max_waiting > 0)
);

create table ostinato.workers (
    id text collate "C" primary key,
    name text not null,
    queues jsonb not null,
    lease double precision not null,
    started_at timestamptz not null,
    renewed_at timestamptz not null,
    expires_at timestamptz not null,
    stopping boolean not null default false,
    dead_at timestamptz
);

create table ostinato.runs (
    -- First what is never null and has a width of its own: PostgreSQL finds it without walking the row, and an update asks for each
    -- column of an index.
    run_at timestamptz not null,
    due bigint not null,
    created_at timestamptz not null,
    lease_no integer not null default 0,
    priority smallint not null default 0 check (priority between -600 and 600),
    attempt smallint not null default 0,
    uncounted smallint not null default 0,      -- starts in doubt, returned to the budget
    suspect boolean not null default false,     -- its last worker died: claimed alone
    certain boolean not null default false,     -- this claim is known to have become a start
    cancel_requested boolean not null default false,
    woken boolean not null default false,       -- something it waits for came while it was not waiting yet
    watched boolean not null default false,     -- an event may cancel it

    id text collate "C" primary key,
    function text collate "C" not null,
    queue text collate "C" not null,
    state text collate "C" not null check (state in ('held', 'ready', 'running', 'completed', 'failed', 'cancelled')),
    reason text collate "C",
    worker text collate "C",
    parent_run text collate "C",                -- the run and the step that wait for it
    parent_step text collate "C",
    copied_from text collate "C",               -- the run whose first steps it was given
    key text collate "C",
    unique_mode text collate "C",
    timeout double precision,
    start_by timestamptz,                       -- cancelled if it has not started, or not ended, by then
    finish_by timestamptz,
    version text,                               -- the function's, when it last started
    invoked_by text not null,
    claimed_at timestamptz,
    started_at timestamptz,
    ended_at timestamptz,
    input jsonb not null,
    output jsonb,
    error jsonb,
    metadata jsonb,
    trace jsonb                                 -- the trace of whoever enqueued it: traceparent, tracestate
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_analyze_scale_factor = 0.05);

create index runs_ready on ostinato.runs (queue, suspect, due, id) where state = 'ready';
create index runs_held on ostinato.runs (queue, run_at) where state = 'held';
create index runs_running on ostinato.runs (worker) where state = 'running';
create index runs_parent on ostinato.runs (parent_run) where parent_run is not null;
create index runs_ended on ostinato.runs (state, ended_at) where ended_at is not null;
create index runs_start_by on ostinato.runs (start_by) where start_by is not null and started_at is null and ended_at is null;
create index runs_finish_by on ostinato.runs (finish_by) where finish_by is not null and ended_at is null;
create index runs_watched on ostinato.runs (function, created_at) where watched and ended_at is null;

create table ostinato.keys (
    function text collate "C" not null,
    key text collate "C" not null,
    run_id text collate "C" not null,
    mode text collate "C" not null check (mode in ('active', 'failed', 'until')),
    until timestamptz,
    primary key (function, key)
);

create index keys_run on ostinato.keys (run_id);
create index keys_until on ostinato.keys (until) where until is not null;

create table ostinato.attempts (
    run_id text collate "C" not null,
    lease_no integer not null,
    attempt smallint not null,
    worker text not null,
    code text not null,
    message text not null,
    traceback text,
    started_at timestamptz not null,
    ended_at timestamptz not null,
    primary key (run_id, lease_no)
);

create function ostinato.clock() returns timestamptz
    language sql volatile parallel safe
    return clock_timestamp();

-- Only stable, as date_part is: a function that promises more than its body is not inlined.
create function ostinato.micros(moment timestamptz) returns bigint
    language sql stable parallel safe
    return case when moment between '1900-01-01Z' and '2200-01-01Z' then (date_part('epoch', moment) * 1000000)::bigint
                else (extract(epoch from moment) * 1000000)::bigint end;  -- exact in any year, and slower

-- Whether somebody sleeps on a topic: 'q:' and a queue's name, or 'r' for results. A sleeper holds a shared advisory lock; if the
-- exclusive one can be had (and is given back at once, in one expression, so that no interrupt can come between), nobody
-- sleeps. When it cannot be had but the shared one can, the holders are sleepers; when neither, another caller is just asking, and
-- we ask again. A lock is seen at once and by every isolation level, unlike a row, and leaves nothing behind for vacuum.
create function ostinato.somebody_sleeps(topic text) returns boolean
    language plpgsql volatile
as $$
declare
    bell constant integer := hashtext('$channel');
    name constant integer := hashtext(topic);
begin
    for tries in 1..100 loop
        if pg_try_advisory_lock(bell, name) and pg_advisory_unlock(bell, name) then
            return false;
        elsif pg_try_advisory_lock_shared(bell, name) and pg_advisory_unlock_shared(bell, name) then
            return true;
        end if;
    end loop;
    return true;
end $$;

-- Says that the session sleeps on a topic. Transactions that are open by then may have looked for sleepers before, so their commits
-- come without a signal: the answer is a transaction id below which all must have ended before the sleeper may rest, or null if they
-- have. A snapshot does not list the youngest open ones (they are at or above its xmax), so an id of our own marks the end.
create function ostinato.arm(topic text) returns text
    language plpgsql volatile
as $$
declare
    own xid8;
    oldest_open xid8;
begin
    perform pg_advisory_lock_shared(hashtext('$channel'), hashtext(topic));
    own := pg_current_xact_id();
    oldest_open := pg_snapshot_xmin(pg_current_snapshot());
    return case when oldest_open < own then own::text end;
end $$;

create function ostinato.disarm(topic text) returns void
    language plpgsql volatile
as $$
begin
    perform pg_advisory_unlock_shared(hashtext('$channel'), hashtext(topic));
end $$;

-- Wakes the workers that sleep on a queue, when the transaction commits.
create function ostinato.ring(queue text) returns void
    language plpgsql volatile
as $$
begin
    if ostinato.somebody_sleeps('q:' || queue) then
        perform pg_notify('$channel', 'q:' || queue);
    end if;
end $$;

-- Wakes the workers that sleep on the queues of these requests.
create function ostinato.ring_for(requests jsonb) returns void
    language plpgsql volatile
as $$
begin
    perform ostinato.ring(hit.queue)
    from (select distinct coalesce(e->>'queue', f.queue) as queue
          from jsonb_array_elements(requests) e
          left join ostinato.functions f on f.name = e->>'function') hit;
end $$;

-- Tells those who wait for results which runs have ended, in payloads below the limit of 8,000 bytes.
create function ostinato.announce(ids text[]) returns void
    language plpgsql volatile
as $$
begin
    if ids is not null and ostinato.somebody_sleeps('r') then
        perform pg_notify('$channel', 'r:' || string_agg(id, ','))
        from unnest(ids) with ordinality as ended (id, place)
        group by place / 200;
    end if;
end $$;

-- Inserts runs given as a JSON array (see RunInserted for the fields). Returns only those whose key was taken: the id asked for
-- and the run that holds the key. Rings last: a worker that falls asleep after this looked waits for our commit.
-- A single enqueue spends its time in starting executors, so what most callers do not need is asked by plain expressions first:
-- whether there is anything but a queue and an input, and whether anybody sleeps (see somebody_sleeps, which asks more carefully).
create function ostinato.insert_runs(requests jsonb, ring boolean default true)
    returns table (requested text, existing text)
    language plpgsql volatile
as $$
declare
    moment constant timestamptz := ostinato.clock();
    special constant boolean := jsonb_path_exists(requests, '$[*] ? (exists(@.key) || !exists(@.queue) || exists(@.terms))');
    keyed boolean := false;
    taken text[];
begin
    if special then
        keyed := jsonb_path_exists(requests, '$[*].key');
        perform ostinato.check_functions(requests);
    end if;
    if keyed then
        taken := ostinato.take_keys(requests, moment);
    end if;
    if exists (select from ostinato.queues where max_waiting is not null) then
        perform ostinato.check_room(requests, keyed, taken);
    end if;
    insert into ostinato.runs (id, function, queue, state, reason, run_at, due, priority, key, unique_mode,
                               timeout, invoked_by, created_at, input, metadata, trace, parent_run, parent_step,
                               start_by, finish_by, watched)
    select e->>'id', e->>'function',
           coalesce(e->>'queue', (select f.queue from ostinato.functions f where f.name = e->>'function')),
           case when t.run_at > moment then 'held' else 'ready' end,
           case when t.run_at > moment then 'not_due' end,
           t.run_at,
           ostinato.micros(t.run_at) - 1000000 * t.priority::bigint, t.priority,
           e->>'key', case when e ? 'key' then coalesce(e->>'unique', 'active') end,
           (e->>'timeout')::double precision, coalesce(e->>'invoked_by', 'api'), moment, e->'input', e->'metadata',
           e->'trace', e->>'parent_run', e->>'parent_step',
           t.run_at + (t.terms->>'start_timeout')::double precision * interval '1 second',
           t.run_at + (t.terms->>'finish_timeout')::double precision * interval '1 second',
           coalesce((t.terms->>'watched')::boolean, false)
    from jsonb_array_elements(requests) e,
         lateral (select case when e ? 'run_at' then greatest((e->>'run_at')::timestamptz, '1970-01-01Z')
                              when e ? 'delay' then moment + (e->>'delay')::double precision * interval '1 second'
                              else moment end as run_at,
                         case when not special then null
                              when not e ? 'queue' or (e->'terms'->>'declared')::boolean then ostinato.terms_of(e->>'function')
                              else e->'terms' end as terms,
                         coalesce((e->>'priority')::smallint,
                                  case when special and e ? 'priority'
                                       then (select f.priority from ostinato.functions f where f.name = e->>'function') end,
                                  0::smallint) as priority) t
    where not keyed or not e ? 'key' or e->>'id' = any(taken);
    if ring and not coalesce(
        jsonb_array_length(requests) = 1
        and pg_try_advisory_lock(hashtext('$channel'), hashtext('q:' || (requests->0->>'queue')))
        and pg_advisory_unlock(hashtext('$channel'), hashtext('q:' || (requests->0->>'queue'))), false
    ) then
        perform ostinato.ring_for(requests);
    end if;
    if keyed then
        return query
            select e->>'id', k.run_id
            from jsonb_array_elements(requests) e
            join ostinato.keys k on k.function = e->>'function' and k.key = e->>'key'
            where e ? 'key' and not e->>'id' = any(taken);
    end if;
end $$;

-- What a function declares about its runs, for those who enqueue it without its code at hand.
create function ostinato.terms_of(function text) returns jsonb
    language sql stable
    return (select jsonb_build_object('start_timeout', f.start_timeout, 'finish_timeout', f.finish_timeout,
                                      'watched', f.cancel_on is not null)
            from ostinato.functions f
            where f.name = terms_of.function
              and (f.start_timeout is not null or f.finish_timeout is not null or f.cancel_on is not null));

-- A request without a queue asks for a function by name only: it must be one that a worker has declared.
create function ostinato.check_functions(requests jsonb) returns void
    language plpgsql volatile
as $$
declare
    unknown text;
begin
    select e->>'function' into unknown
    from jsonb_array_elements(requests) e
    where not e ? 'queue' and not exists (select 1 from ostinato.functions f where f.name = e->>'function')
    limit 1;
    if found then
        raise exception 'no function is named "%"', unknown
            using errcode = 'OS001', detail = unknown,
                  hint = 'Start a worker that declares it once, so that the database knows it.';
    end if;
end $$;

-- Asks for room for what will be inserted: not for requests whose key another run holds.
-- A cap is looked at, not locked: producers never wait for each other, and those that look at the same moment may overshoot.
create function ostinato.check_room(requests jsonb, keyed boolean, taken text[]) returns void
    language plpgsql volatile
as $$
declare
    capped record;
    waiting bigint;
begin
    for capped in
        select q.name, q.max_waiting, count(*) as asked
        from jsonb_array_elements(requests) e
        left join ostinato.functions f on f.name = e->>'function'
        join ostinato.queues q on q.name = coalesce(e->>'queue', f.queue) and q.max_waiting is not null
        where (not keyed or not e ? 'key' or e->>'id' = any(taken)) and not e ? 'uncapped'
        group by q.name, q.max_waiting
    loop
        select count(*) into waiting from (
            (select 1 from ostinato.runs where queue = capped.name and state = 'ready' limit capped.max_waiting)
            union all
            (select 1 from ostinato.runs where queue = capped.name and state = 'held' limit capped.max_waiting)
        ) there;
        if waiting + capped.asked > capped.max_waiting then
            raise exception 'queue "%" may hold % waiting runs, has % and was given % more',
                    capped.name, capped.max_waiting, least(waiting, capped.max_waiting), capped.asked
                using errcode = 'OS002', detail = capped.name,
                      hint = 'Try again later, or raise max_waiting of the queue.';
        end if;
    end loop;
end $$;

-- Forgets the keys of these requests whose time is over. It has its owner's rights, so that who may only enqueue need not be
-- allowed to delete keys: it deletes none that anybody could still want.
create function ostinato.drop_old_keys(requests jsonb) returns void
    language sql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
    delete from ostinato.keys k
    using (select distinct e->>'function' as function, e->>'key' as key from jsonb_array_elements(requests) e where e ? 'key') r
    where k.function = r.function and k.key = r.key and k.until <= ostinato.clock()
$$;

revoke execute on function ostinato.drop_old_keys from public;

-- Gives the keys of forced requests to their runs, whoever holds them: the last of several with one key gets it. Returns the ids. It
-- has its owner's rights, so that who may only enqueue need not be allowed to write to keys that others hold.
create function ostinato.force_keys(requests jsonb, moment timestamptz) returns text[]
    language sql volatile security definer
    set search_path = pg_catalog, pg_temp
as $$
    insert into ostinato.keys (function, key, run_id, mode, until)
    select distinct on (e->>'function', e->>'key') e->>'function', e->>'key', e->>'id', coalesce(e->>'unique', 'active'),
           case when e->>'unique' = 'until'
                then coalesce(moment + (e->>'unique_for')::double precision * interval '1 second', 'infinity') end
    from jsonb_array_elements(requests) with ordinality as given (e, place)
    where e ? 'key' and e ? 'force'
    order by e->>'function', e->>'key', place desc
    on conflict (function, key) do update set run_id = excluded.run_id, mode = excluded.mode, until = excluded.until;

    select coalesce(array_agg(e->>'id'), '{}') from jsonb_array_elements(requests) e where e ? 'key' and e ? 'force'
$$;

revoke execute on function ostinato.force_keys from public;

-- Takes the keys that are free, in one order for all callers, so that two bulks cannot deadlock. Returns the ids that got theirs.
-- A key found taken is not locked: the run that holds it may settle meanwhile. If it did, the key is tried again.
create function ostinato.take_keys(requests jsonb, moment timestamptz) returns text[]
    language plpgsql volatile
as $$
declare
    taken text[] := '{}';
    fresh text[];
    lost boolean;
begin
    if jsonb_path_exists(requests, '$[*].force') then
        taken := ostinato.force_keys(requests, moment);
    end if;
    for tries in 1..10 loop
        perform ostinato.drop_old_keys(requests);

        with first as (
            select distinct on (e->>'function', e->>'key') e
            from jsonb_array_elements(requests) with ordinality as given (e, place)
            where e ? 'key' and not e ? 'force'
            order by e->>'function', e->>'key', place
        ), inserted as (
            insert into ostinato.keys (function, key, run_id, mode, until)
            select e->>'function', e->>'key', e->>'id', coalesce(e->>'unique', 'active'),
                   case when e->>'unique' = 'until'
                        then coalesce(moment + (e->>'unique_for')::double precision * interval '1 second', 'infinity') end
            from first
            order by 1, 2
            on conflict (function, key) do nothing
            returning run_id
        )
        select array_agg(run_id) into fresh from inserted;
        taken := taken || coalesce(fresh, '{}');

        select exists (
            select 1 from jsonb_array_elements(requests) e
            where e ? 'key' and not exists (
                select 1 from ostinato.keys k where k.function = e->>'function' and k.key = e->>'key')
        ) into lost;
        exit when not lost;
    end loop;
    return taken;
end $$;
