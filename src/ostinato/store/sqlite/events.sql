-- Looking at events, and removing old ones. Each block has a twin of the same name and parameters for PostgreSQL.

-- name: known_events
-- Of events that may have been recorded: the id asked for, and the event that stands for it.
select json_extract(e.value, '$.id'), v.id
from json_each(:events) e
cross join ostinato_events v on v.id = json_extract(e.value, '$.id')
union all
select json_extract(e.value, '$.id'), v.id
from json_each(:events) e
cross join ostinato_events v on v.idempotency_key = json_extract(e.value, '$.idempotency_key')
where v.id <> json_extract(e.value, '$.id')

-- name: events_by_id
select sequence_no, id, type, entity_type, entity_id, payload, caused_by, run_id, source, occurred_at, recorded_at, idempotency_key
from ostinato_events
where id in (select value from json_each(:ids))

-- name: recent_events
-- Along the primary key: the +es keep the planner from taking another index and sorting.
select sequence_no, id, type, entity_type, entity_id, payload, caused_by, run_id, source, occurred_at, recorded_at, idempotency_key
from ostinato_events
where sequence_no >= :first and recorded_at >= :since
  and (:source is null or source = :source)
  and (:types is null or +type in (select value from json_each(:types)))
order by sequence_no desc
limit :limit

-- name: recent_events_of_type
select sequence_no, id, type, entity_type, entity_id, payload, caused_by, run_id, source, occurred_at, recorded_at, idempotency_key
from ostinato_events
where type = :type and sequence_no >= :first and recorded_at >= :since
  and (:source is null or source = :source)
order by sequence_no desc
limit :limit

-- name: recent_events_of_entity
select sequence_no, id, type, entity_type, entity_id, payload, caused_by, run_id, source, occurred_at, recorded_at, idempotency_key
from ostinato_events
where entity_type = :entity_type and entity_id = :entity_id and sequence_no >= :first and recorded_at >= :since
  and (:source is null or source = :source)
  and (:types is null or +type in (select value from json_each(:types)))
order by sequence_no desc
limit :limit

-- name: number_since
-- The lowest number of what was recorded from a moment on, found by halving: one statement, however many events there are.
with recursive halving (low, high) as (
    select 0, coalesce((select max(sequence_no) + 1 from ostinato_events), 0)
    union all
    select iif(e.recorded_at >= :since, h.low, e.sequence_no + 1), iif(e.recorded_at >= :since, (h.low + h.high) / 2, h.high)
    from halving h cross join ostinato_events e
         on e.sequence_no = (select min(sequence_no) from ostinato_events where sequence_no >= (h.low + h.high) / 2)
    where h.low < h.high
)
select low from halving where low >= high

-- name: event_types
-- Every type once: a step along the index for each, however many events there are.
with recursive found (type) as (
    select min(type) from ostinato_events
    union all
    select (select v.type from ostinato_events v where v.type > found.type order by v.type limit 1) from found where found.type is not null
)
select type from found where type is not null

-- name: event_counts
-- Of each type so many of the latest, by source: how many, when the last was recorded, and whether the type may have older ones.
with recursive found (type) as (
    select min(type) from ostinato_events
    union all
    select (select v.type from ostinato_events v where v.type > found.type order by v.type limit 1) from found where found.type is not null
)
select found.type, latest.source, count(*), max(latest.recorded_at), sum(count(*)) over (partition by found.type) >= :limit
from found
cross join ostinato_events latest on latest.type = found.type and latest.sequence_no >= coalesce(
    (select v.sequence_no from ostinato_events v where v.type = found.type order by v.sequence_no desc limit 1 offset :limit - 1), 0)
group by found.type, latest.source
order by found.type, latest.source

-- name: event_links
-- Events by their ids, by what caused them, and by the runs that recorded them, without their payloads; some of them twice. The cross
-- joins leave the planner no choice, which would else scan what it has once seen empty.
select v.id, v.type, v.caused_by, v.run_id, v.recorded_at
from json_each(:ids) e cross join ostinato_events v on v.id = e.value
union all
select v.id, v.type, v.caused_by, v.run_id, v.recorded_at
from json_each(:causes) e cross join ostinato_events v on v.caused_by = e.value
union all
select v.id, v.type, v.caused_by, v.run_id, v.recorded_at
from json_each(:runs) e cross join ostinato_events v on v.run_id = e.value

-- name: run_links
-- Runs by their ids, and by the events and runs that started them.
select r.id, r.function, r.invoked_by, r.state, r.created_at
from json_each(:ids) e cross join ostinato_runs r on r.id = e.value
union all
select r.id, r.function, r.invoked_by, r.state, r.created_at
from json_each(:reasons) e cross join ostinato_runs r on r.invoked_by = e.value
where substr(r.invoked_by, 1, 6) = 'event:'
union all
select r.id, r.function, r.invoked_by, r.state, r.created_at
from json_each(:reasons) e cross join ostinato_runs r on r.invoked_by = e.value
where substr(r.invoked_by, 1, 4) = 'run:'

-- name: allow_pruning
-- Tells the trigger that it is retention that deletes.
insert into ostinato_retention (at_work) values (1)

-- name: prune_events
-- The oldest, in the order of their numbers, up to the first that is too young or that a drainer has yet to read. What is parked stays.
-- Not indexed: along the primary key.
delete from ostinato_events
where sequence_no in (
    with oldest as materialized (
        select v.sequence_no,
               v.recorded_at < (select ostinato_now()) - 1000000 * :keep
               and (v.recorded_at < (select ostinato_now()) - 1000000 * coalesce(:keep_unread, 9e11)
                    or not exists (select 1 from ostinato_drainers d
                                   where v.sequence_no > coalesce(json_extract(d.position, '$.last'), 0))) as goes
        from ostinato_events v not indexed
        where v.sequence_no > :passed and not exists (select 1 from ostinato_parked p where p.sequence_no = v.sequence_no)
        order by v.sequence_no
        limit :limit
    )
    select o.sequence_no from oldest o
    where o.sequence_no < coalesce((select min(stays.sequence_no) from oldest stays where not stays.goes), 9223372036854775807))
returning sequence_no

-- name: end_pruning
delete from ostinato_retention
