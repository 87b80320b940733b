-- Looking at events, and removing old ones. Parameters are written :name; each block has a twin of the same name and parameters for SQLite.

-- name: known_events
-- Of events that may have been recorded: the id asked for, and the event that stands for it.
select e->>'id', v.id
from jsonb_array_elements(:events::text::jsonb) as c(e)
join ostinato.events v on v.id = e->>'id'
union all
select e->>'id', v.id
from jsonb_array_elements(:events::text::jsonb) as c(e)
join ostinato.events v on v.idempotency_key = e->>'idempotency_key'
where e ? 'idempotency_key' and v.id <> e->>'id'

-- name: events_by_id
select sequence_no, id, type, entity_type, entity_id, payload::text, caused_by, run_id, source,
       ostinato.micros(occurred_at), ostinato.micros(recorded_at), idempotency_key
from ostinato.events
where id = any(array(select jsonb_array_elements_text(:ids::text::jsonb)))

-- name: recent_events
select sequence_no, id, type, entity_type, entity_id, payload::text, caused_by, run_id, source,
       ostinato.micros(occurred_at), ostinato.micros(recorded_at), idempotency_key
from ostinato.events
where sequence_no >= :first::bigint and recorded_at >= to_timestamp(:since::bigint / 1000000.0)
  and (:source::text is null or source = :source)
  and (:types::text is null or type = any(array(select jsonb_array_elements_text(:types::text::jsonb))))
order by sequence_no desc
limit :limit

-- name: recent_events_of_type
select sequence_no, id, type, entity_type, entity_id, payload::text, caused_by, run_id, source,
       ostinato.micros(occurred_at), ostinato.micros(recorded_at), idempotency_key
from ostinato.events
where type = :type and sequence_no >= :first::bigint and recorded_at >= to_timestamp(:since::bigint / 1000000.0)
  and (:source::text is null or source = :source)
order by sequence_no desc
limit :limit

-- name: recent_events_of_entity
select sequence_no, id, type, entity_type, entity_id, payload::text, caused_by, run_id, source,
       ostinato.micros(occurred_at), ostinato.micros(recorded_at), idempotency_key
from ostinato.events
where entity_type = :entity_type and entity_id = :entity_id
  and sequence_no >= :first::bigint and recorded_at >= to_timestamp(:since::bigint / 1000000.0)
  and (:source::text is null or source = :source)
  and (:types::text is null or type = any(array(select jsonb_array_elements_text(:types::text::jsonb))))
order by sequence_no desc
limit :limit

-- name: number_since
-- The lowest number of what was recorded from a moment on, found by halving: one statement, however many events there are.
with recursive halving (low, high) as (
    select 0::bigint, coalesce((select max(sequence_no) + 1 from ostinato.events), 0)
    union all
    select case when found.is_later then h.low else found.sequence_no + 1 end,
           case when found.is_later then (h.low + h.high) / 2 else h.high end
    from halving h
    cross join lateral (
        select e.sequence_no, e.recorded_at >= to_timestamp(:since::bigint / 1000000.0) as is_later
        from ostinato.events e
        where e.sequence_no >= (h.low + h.high) / 2
        order by e.sequence_no
        limit 1) found
    where h.low < h.high
)
select low from halving where low >= high

-- name: event_types
-- Every type once: a step along the index for each, however many events there are.
with recursive found as (
    (select type from ostinato.events order by type limit 1)
    union all
    select (select v.type from ostinato.events v where v.type > found.type order by v.type limit 1) from found where found.type is not null
)
select type from found where type is not null

-- name: event_counts
select type, source, count, ostinato.micros(last_seen), more from ostinato.event_counts(:limit)

-- name: event_links
-- Events by their ids, by what caused them, and by the runs that recorded them, without their payloads; some of them twice.
select id, type, caused_by, run_id, ostinato.micros(recorded_at) from ostinato.events
where id = any(array(select jsonb_array_elements_text(:ids::text::jsonb)))
union all
select id, type, caused_by, run_id, ostinato.micros(recorded_at) from ostinato.events
where caused_by = any(array(select jsonb_array_elements_text(:causes::text::jsonb)))
union all
select id, type, caused_by, run_id, ostinato.micros(recorded_at) from ostinato.events
where run_id = any(array(select jsonb_array_elements_text(:runs::text::jsonb)))

-- name: run_links
-- Runs by their ids, and by the events and runs that started them.
select id, function, invoked_by, state, ostinato.micros(created_at) from ostinato.runs
where id = any(array(select jsonb_array_elements_text(:ids::text::jsonb)))
union all
select id, function, invoked_by, state, ostinato.micros(created_at) from ostinato.runs
where substr(invoked_by, 1, 6) = 'event:' and invoked_by = any(array(select jsonb_array_elements_text(:reasons::text::jsonb)))
union all
select id, function, invoked_by, state, ostinato.micros(created_at) from ostinato.runs
where substr(invoked_by, 1, 4) = 'run:' and invoked_by = any(array(select jsonb_array_elements_text(:reasons::text::jsonb)))

-- name: allow_pruning
-- Tells the trigger that it is retention that deletes, for the rest of the transaction or until it is over.
select set_config('ostinato_ledger.retention', 'on', true)

-- name: prune_events
-- The oldest, in the order of their numbers, up to the first that is too young or that a drainer has yet to read. What is parked stays.
-- :passed is the number up to which the batch before has removed them, so that nobody walks over their remains.
delete from ostinato.events
where sequence_no = any(array(
    with oldest as materialized (
        select v.sequence_no,
               v.recorded_at < ostinato.clock() - :keep::double precision * interval '1 second'
               and (coalesce(v.recorded_at < ostinato.clock() - :keep_unread::double precision * interval '1 second', false)
                    or not exists (select from ostinato.drainers d
                                   where not ostinato.has_read(d.position::jsonb, d.lineage, v.sequence_no, v.xid))) as goes
        from ostinato.events v
        where v.sequence_no > :passed::bigint and not exists (select from ostinato.parked p where p.sequence_no = v.sequence_no)
        order by v.sequence_no
        limit :limit
    )
    select o.sequence_no from oldest o
    where o.sequence_no < coalesce((select min(stays.sequence_no) from oldest stays where not stays.goes), 9223372036854775807)))
returning sequence_no

-- name: end_pruning
select set_config('ostinato_ledger.retention', '', true)
