-- Enqueuing by plain SQL: select id, created from ostinato.enqueue('{"function": "greet", "input": {"name": "Ada"}}').
--
-- How it works. What is given is checked as the Python door checks it, each request becomes one of insert_runs, and that does the rest:
-- keys, caps and waking workers up. All of it happens in the caller's transaction and with the caller's rights.

-- What a function declares about its runs' priority, for those who enqueue it without its code at hand.
alter table ostinato.functions add column priority smallint not null default 0 check (priority between -600 and 600);

-- The seconds in 90, "90s" or "1h 30m".
create function ostinato.seconds_in(value jsonb, what text) returns double precision
    language plpgsql immutable parallel safe
as $$
declare
    written constant text := value #>> '{}';
    seconds numeric;
begin
    if jsonb_typeof(value) = 'number' then
        seconds := written::numeric;
    elsif jsonb_typeof(value) = 'string' and written ~ '^\s*(\d+(\.\d+)?\s*(ms|s|m|h|d|w)\s*)+$' and length(written) <= 100 then
        select sum(part[1]::numeric * case part[2] when 'ms' then 0.001 when 's' then 1 when 'm' then 60 when 'h' then 3600
                                                   when 'd' then 86400 else 604800 end) into seconds
        from regexp_matches(written, '(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)', 'g') as part;
    else
        raise exception '% is % and must be a duration', what, left(value::text, 100)
            using errcode = 'OS003', detail = what, hint = 'Write a number of seconds, or text like "500ms", "30s", "5m", "1h 30m", "7d".';
    end if;
    if seconds not between 0 and 31622400000 then
        raise exception '% is % and must be from zero to a thousand years', what, left(value::text, 100)
            using errcode = 'OS003', detail = what, hint = 'Write a number of seconds, or text like "500ms", "30s", "5m", "1h 30m", "7d".';
    end if;
    return seconds;
end $$;

-- The instant in ISO 8601 text. Without a time zone it would be another one in each session.
create function ostinato.instant_in(value jsonb, what text) returns timestamptz
    language plpgsql stable parallel safe
as $$
declare
    written constant text := value #>> '{}';
    instant timestamptz;
begin
    if jsonb_typeof(value) = 'string'
       and written ~* '^\d{4}-\d\d-\d\d[t ]\d\d:\d\d(:\d\d([.,]\d+)?)?\s*(z|[+-]\d\d(:?\d\d(:?\d\d)?)?)$' then
        instant := written::timestamptz;
    end if;
    if instant >= '0001-01-01Z' and instant < '10000-01-01Z' then  -- the years that Python has
        return instant;
    end if;
    raise datetime_field_overflow;
exception when datetime_field_overflow or invalid_datetime_format or invalid_time_zone_displacement_value then
    raise exception '% is % and must be an instant with its time zone', what, left(value::text, 100)
        using errcode = 'OS003', detail = what, hint = 'Write it like "2027-01-31T09:00:00Z", or give a timestamptz to jsonb_build_object.';
end $$;

-- Refuses JSON that is larger or deeper than Python takes, or has numbers that Python cannot read.
create function ostinato.check_json(value jsonb, what text, most_bytes integer) returns void
    language plpgsql immutable parallel safe
as $$
declare
    written constant text := value::text;
    bytes integer := octet_length(written);
begin
    if bytes > most_bytes and bytes <= 2 * most_bytes then  -- jsonb is written with blanks, which do not count
        bytes := octet_length(regexp_replace(written, '("(?:[^"\\]|\\.)*")|\s+', '\1', 'g'));
    end if;
    if bytes > most_bytes then
        raise exception '% has % bytes as JSON and may have %', what, bytes, most_bytes
            using errcode = 'OS004', detail = what, hint = 'Store it elsewhere and pass a reference.';
    end if;
    if bytes > 200 and jsonb_path_exists(value, '$.**{201}') then
        raise exception '% is nested deeper than 200 levels', what
            using errcode = 'OS004', detail = what, hint = 'Store it elsewhere and pass a reference.';
    end if;
    if bytes > 4000 and jsonb_path_exists(value, '$.** ? (@.type() == "number" && (@ >= 1e4214 || @ <= -1e4214))') then
        raise exception '% has a number of more than 4214 digits', what
            using errcode = 'OS004', detail = what, hint = 'Pass it as text.';
    end if;
end $$;

-- One request as insert_runs wants it, without an id, or the reason why it cannot be. Nulls count as not given.
create function ostinato.run_request(given jsonb, place text) returns jsonb
    language plpgsql stable
as $$
declare
    known constant text[] := array['delay', 'force', 'function', 'input', 'key', 'metadata', 'priority', 'queue', 'run_at', 'timeout',
                                   'unique'];
    e constant jsonb := case when jsonb_typeof(given) = 'object' then jsonb_strip_nulls(given - 'input' - 'metadata') end;
    input constant jsonb := coalesce(nullif(given->'input', 'null'), '{}');
    metadata constant jsonb := nullif(given->'metadata', 'null');
    made jsonb;
    wrong text;
    seconds double precision;
begin
    if e is null then
        raise exception '%a request must be an object and is %', place, left(given::text, 100)
            using errcode = 'OS003', hint = 'Write it like {"function": "greet", "input": {"name": "Ada"}}.';
    end if;
    select name into wrong from jsonb_object_keys(given) as name where name <> all(known) order by name limit 1;
    if found then
        raise exception '%unknown field "%"; fields are %', place, left(wrong, 100), array_to_string(known, ', ')
            using errcode = 'OS003', detail = wrong, hint = 'What the function takes goes into "input".';
    end if;

    if jsonb_typeof(e->'function') is distinct from 'string' or length(e->>'function') not between 1 and 200 then
        raise exception '%function is % and must be the name of a function', place, coalesce(left((e->'function')::text, 100), 'missing')
            using errcode = 'OS003', detail = 'function', hint = 'Write it like {"function": "greet", "input": {"name": "Ada"}}.';
    end if;
    if jsonb_typeof(input) <> 'object' then
        raise exception '%input of "%" must be an object and is %', place, e->>'function', left(input::text, 100)
            using errcode = 'OS004', detail = 'input', hint = 'Write it like {"id": 1}.';
    end if;
    perform ostinato.check_json(input, place || format('input of "%s"', e->>'function'), 1048576);
    made := jsonb_build_object('function', e->'function', 'input', input, 'invoked_by', 'sql', 'terms', '{"declared": true}'::jsonb);

    if metadata is not null then
        if jsonb_typeof(metadata) <> 'object' then
            raise exception '%metadata is % and must be an object', place, left(metadata::text, 100)
                using errcode = 'OS003', detail = 'metadata', hint = 'Write it like {"tenant": "acme"}.';
        end if;
        perform ostinato.check_json(metadata, place || 'metadata', 16384);
        made := made || jsonb_build_object('metadata', metadata);
    end if;

    if e ? 'queue' then
        if jsonb_typeof(e->'queue') <> 'string' or length(e->>'queue') not between 1 and 100
           or e->>'queue' ~ '[,:\u0001-\u001f\u007f-\u009f]' then
            raise exception '%queue is % and must be a name of 1 to 100 printable characters without "," and ":"',
                    place, left((e->'queue')::text, 120)
                using errcode = 'OS003', detail = 'queue', hint = 'Leave it out to use the queue that the function declares.';
        end if;
        made := made || jsonb_build_object('queue', e->'queue');
    end if;

    if not e ? 'priority' then
        made := made || coalesce((select jsonb_build_object('priority', f.priority) from ostinato.functions f
                                  where f.name = e->>'function' and f.priority <> 0), '{}');
    elsif jsonb_typeof(e->'priority') = 'number' and e->>'priority' ~ '^-?\d{1,3}$' and (e->>'priority')::integer between -600 and 600 then
        made := made || jsonb_build_object('priority', e->'priority');
    else
        raise exception '%priority is % and must be a whole number of seconds from -600 to 600', place, left((e->'priority')::text, 100)
            using errcode = 'OS003', detail = 'priority', hint = 'A run sorts as if it had been due that many seconds earlier.';
    end if;

    if e ? 'delay' and e ? 'run_at' then
        raise exception '%give delay or run_at, not both', place
            using errcode = 'OS003', detail = 'run_at', hint = 'delay counts from now, run_at is an instant.';
    elsif e ? 'delay' then
        made := made || jsonb_build_object('delay', ostinato.seconds_in(e->'delay', place || 'delay'));
    elsif e ? 'run_at' then
        made := made || jsonb_build_object('run_at', ostinato.instant_in(e->'run_at', place || 'run_at'));
    end if;

    if e ? 'timeout' then
        seconds := ostinato.seconds_in(e->'timeout', place || 'timeout');
        if seconds = 0 then
            raise exception '%timeout is % and must be longer than zero', place, e->'timeout'
                using errcode = 'OS003', detail = 'timeout', hint = 'Leave it out to use the timeout that the function declares.';
        end if;
        made := made || jsonb_build_object('timeout', seconds);
    end if;

    if e ? 'key' then
        if jsonb_typeof(e->'key') <> 'string' or length(e->>'key') not between 1 and 500 then
            raise exception '%key is % and must be text of 1 to 500 characters', place, left((e->'key')::text, 100)
                using errcode = 'OS003', detail = 'key', hint = 'Turn a number into text, like "order:42".';
        end if;
        made := made || jsonb_build_object('key', e->'key');
    elsif coalesce(e->>'unique', 'active') <> 'active' then
        raise exception '%unique is % and needs a key', place, left((e->'unique')::text, 100)
            using errcode = 'OS003', detail = 'unique', hint = 'Give a key too: it is what is unique.';
    end if;
    if e ? 'force' then
        if jsonb_typeof(e->'force') <> 'boolean' then
            raise exception '%force is % and must be true or false', place, left((e->'force')::text, 100)
                using errcode = 'OS003', detail = 'force', hint = 'True runs it again, whoever holds the key.';
        elsif (e->>'force')::boolean then
            made := made || '{"force": true}';
        end if;
    end if;
    if e ? 'key' and e ? 'unique' then
        if e->'unique' in ('"active"', '"failed"') then
            made := made || jsonb_build_object('unique', e->'unique');
        elsif e->'unique' = '"forever"' then
            made := made || '{"unique": "until"}';
        elsif jsonb_typeof(e->'unique') = 'number' or e->>'unique' ~ '^\s*\d' then
            made := made || jsonb_build_object('unique', 'until', 'unique_for', ostinato.seconds_in(e->'unique', place || 'unique'));
        else
            raise exception '%unique is % and must be "active", "failed", "forever" or a duration', place, left((e->'unique')::text, 100)
                using errcode = 'OS003', detail = 'unique', hint = 'Write it like "1d", for one day from now.';
        end if;
    end if;
    return made;
end $$;

-- Ten digits of Crockford's base 32: 50 bits.
create function ostinato.base32(value bigint) returns text
    language sql immutable strict parallel safe
    return (select substr(d, (value >> 45 & 31)::integer + 1, 1) || substr(d, (value >> 40 & 31)::integer + 1, 1)
                || substr(d, (value >> 35 & 31)::integer + 1, 1) || substr(d, (value >> 30 & 31)::integer + 1, 1)
                || substr(d, (value >> 25 & 31)::integer + 1, 1) || substr(d, (value >> 20 & 31)::integer + 1, 1)
                || substr(d, (value >> 15 & 31)::integer + 1, 1) || substr(d, (value >> 10 & 31)::integer + 1, 1)
                || substr(d, (value >> 5 & 31)::integer + 1, 1) || substr(d, (value & 31)::integer + 1, 1)
            from (select '0123456789ABCDEFGHJKMNPQRSTVWXYZ' as d) digits);

-- So many ULIDs in a row: 48 bits of milliseconds, then the microseconds within them, so that those of one session come in order, then
-- 69 random bits, counted up from the first to the last.
create function ostinato.new_ids(how_many integer) returns setof text
    language plpgsql volatile
as $$
declare
    micros constant bigint := extract(epoch from clock_timestamp()) * 1000000;
    random constant text := gen_random_uuid();
    high constant bigint := ('x' || left(random, 8))::bit(32)::bigint >> 2;
    low constant bigint := ('x' || right(random, 12))::bit(48)::bigint & 549755813887;
    head constant text := ostinato.base32(micros / 1000) || right(ostinato.base32(micros % 1000 << 30 | high), 8);
begin
    return query select head || right(ostinato.base32(low + place), 8) from generate_series(0, how_many - 1) as place;
end $$;

-- Enqueues a run, or each of an array, all or none. Answers their ids in the order given, and whether they are new: where a key was taken,
-- it is the run that holds the key. Null and an empty array enqueue nothing, so that a trigger may give what jsonb_agg made of no rows.
create function ostinato.enqueue(requests jsonb) returns table (id text, created boolean)
    language plpgsql volatile
as $$
#variable_conflict use_column
declare
    many constant boolean := jsonb_typeof(requests) = 'array';
    made jsonb;
    taken jsonb;
begin
    if requests is null or requests = '[]' then
        return;
    end if;
    select jsonb_agg(ostinato.run_request(given.request, case when many then format('[%s]: ', given.place - 1) else '' end)
                     || jsonb_build_object('id', fresh.id) order by given.place)
    into made
    from jsonb_array_elements(case when many then requests else jsonb_build_array(requests) end) with ordinality as given (request, place)
    join ostinato.new_ids(case when many then jsonb_array_length(requests) else 1 end) with ordinality as fresh (id, place) using (place);

    select jsonb_object_agg(requested, existing) into taken from ostinato.insert_runs(made);
    return query
        select coalesce(taken->>(run.request->>'id'), run.request->>'id'), not coalesce(taken ? (run.request->>'id'), false)
        from jsonb_array_elements(made) with ordinality as run (request, place)
        order by run.place;
end $$;
