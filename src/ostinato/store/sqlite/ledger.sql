-- The ledger. Each block has a twin of the same name and parameters for PostgreSQL, except for reading in order, which is simple here, and
-- for inserting, which takes two blocks.

-- name: insert_events
-- Numbers are given in the order of the array. Each is an array itself, by whose places members are found faster than by their names; where
-- all are `plain`, having nothing but a payload and an entity, the rest is not looked for.
insert into ostinato_events (id, type, entity_type, entity_id, payload, caused_by, run_id, source, occurred_at, recorded_at,
                             idempotency_key)
select json_extract(e.value, '$[0]'), json_extract(e.value, '$[1]'), json_extract(e.value, '$[3]'), json_extract(e.value, '$[4]'),
       $json(e.value, 2),
       case when not :plain then json_extract(e.value, '$[5]') end,
       case when not :plain then json_extract(e.value, '$[6]') end,
       case when not :plain then json_extract(e.value, '$[7]') end,
       coalesce(case when not :plain then json_extract(e.value, '$[8]') end, n.moment), n.moment,
       case when not :plain then json_extract(e.value, '$[9]') end
from (select ostinato_now() as moment) n
cross join json_each(:events) e
where true
order by e.key
on conflict (idempotency_key) where idempotency_key is not null do nothing

-- name: used_event_keys
-- Of events that were not inserted: the id asked for, and the event that has the key.
select e.key, v.id
from json_each(:keys) e
cross join ostinato_events v on v.idempotency_key = e.value
where v.id <> e.key

-- name: park_events
insert into ostinato_parked (subscription, sequence_no, event_id, entity_type, entity_id, code, message, parked_at)
select json_extract(value, '$.subscription'), json_extract(value, '$.sequence_no'), json_extract(value, '$.event_id'),
       json_extract(value, '$.entity_type'), json_extract(value, '$.entity_id'), json_extract(value, '$.code'),
       json_extract(value, '$.message'), (select ostinato_now())
from json_each(:parked)
where true
on conflict (subscription, sequence_no) do update set code = excluded.code, message = excluded.message, parked_at = excluded.parked_at

-- name: move_drainer
update ostinato_drainers
set position = :position, processed = processed + :processed, last_drained_at = (select ostinato_now()), failures = 0, halted_on = null,
    error = null, retry_at = null
where name = :drainer

-- name: find_drainer
select position from ostinato_drainers where name = :name

-- name: place
-- The last number given, also if its event is gone by now.
select coalesce((select seq from sqlite_sequence where name = 'ostinato_events'), 0)

-- name: events_after
select sequence_no, id, type, entity_type, entity_id, payload, caused_by, run_id, source, occurred_at, recorded_at, idempotency_key
from ostinato_events
where sequence_no > :last
order by sequence_no
limit :limit

-- name: halt_drainer
update ostinato_drainers
set failures = failures + 1, halted_on = :event, error = :error,
    retry_at = cast((select ostinato_now()) + 1000000 * :delay as integer)
where name = :name

-- name: declare_drainers
-- One that is there keeps its position.
insert into ostinato_drainers (name, glob, origin, position, lineage, created_at)
select json_extract(value, '$.name'), json_extract(value, '$.glob'), json_extract(value, '$.origin'),
       json_extract(value, '$.position'), :lineage, (select ostinato_now())
from json_each(:drainers)
where true
on conflict (name) do update set glob = excluded.glob, origin = excluded.origin
where glob <> excluded.glob or origin <> excluded.origin

-- name: bearings
-- What is different whenever a subscription is, and the functions that there are, with the events that cancel their runs.
select 0, number, (select json_group_object(name, cancel_on) from ostinato_functions)
from ostinato_subscriptions_changes

-- name: subscriptions
select name, glob, function, filter, mapper, ordered, enabled, origin, since_sequence, since_at
from ostinato_subscriptions
order by name

-- name: declare_subscriptions
-- What an operator has switched off stays off, and where it began it goes on. Only what differs is written.
insert into ostinato_subscriptions (name, glob, function, filter, mapper, ordered, enabled, origin, since_sequence, since_at, declared_at,
                                    version)
select json_extract(e.value, '$.name'), json_extract(e.value, '$.glob'), json_extract(e.value, '$.function'),
       json_extract(e.value, '$.filter'), nullif($json(e.value, mapper), 'null'), coalesce(json_extract(e.value, '$.ordered'), 0),
       coalesce(json_extract(e.value, '$.enabled'), 1), json_extract(e.value, '$.origin'),
       json_extract(e.value, '$.since_sequence'), json_extract(e.value, '$.since_at'), n.moment,
       (select coalesce(max(version), 0) from ostinato_subscriptions) + 1 + e.key
from (select ostinato_now() as moment) n
cross join json_each(:subscriptions) e
where true
on conflict (name) do update
set glob = excluded.glob, function = excluded.function, filter = excluded.filter, mapper = excluded.mapper, ordered = excluded.ordered,
    origin = excluded.origin, declared_at = excluded.declared_at, version = excluded.version
where glob <> excluded.glob or function <> excluded.function or filter is not excluded.filter or mapper is not excluded.mapper
      or ordered <> excluded.ordered or origin <> excluded.origin

-- name: parked_entities
-- Of some entities, those that have events parked, and the subscriptions in which.
select distinct p.subscription, p.entity_type, p.entity_id
from json_each(:entities) e
cross join ostinato_parked p on p.entity_type = json_extract(e.value, '$[0]') and p.entity_id = json_extract(e.value, '$[1]')
where p.entity_id is not null and p.subscription in (select value from json_each(:names))

-- name: unpark_events
delete from ostinato_parked
where (subscription, sequence_no) in (
    select json_extract(value, '$.subscription'), json_extract(value, '$.sequence_no') from json_each(:unparked))

-- name: parked
-- In the order in which they were recorded, after one of them.
select p.subscription, p.event_id, v.type, p.sequence_no, p.entity_type, p.entity_id, p.code, p.message, p.parked_at
from ostinato_parked p
left join ostinato_events v on v.sequence_no = p.sequence_no
where (:subscription is null or p.subscription = :subscription) and (:event is null or p.event_id = :event)
  and (p.sequence_no, p.subscription) > (:last, :last_subscription) and p.sequence_no <= :end
order by p.sequence_no, p.subscription
limit :limit

-- name: parked_chain
-- A parked event, and those of its entity that are parked too, if an entity is given.
select v.sequence_no, v.id, v.type, v.entity_type, v.entity_id, v.payload, v.caused_by, v.run_id, v.source, v.occurred_at, v.recorded_at,
       v.idempotency_key
from ostinato_parked p
join ostinato_events v on v.sequence_no = p.sequence_no
where p.subscription = :subscription
  and p.sequence_no in (
      select :sequence_no
      union
      select sequence_no from ostinato_parked
      where entity_type = :entity_type and entity_id = :entity_id and subscription = :subscription)
order by v.sequence_no

-- name: events_recorded
-- Those of a time, by number.
select sequence_no, id, type, entity_type, entity_id, payload, caused_by, run_id, source, occurred_at, recorded_at, idempotency_key
from ostinato_events
where sequence_no > :last and sequence_no <= :end and recorded_at >= :since and recorded_at < :until
order by sequence_no
limit :limit

-- name: first_since
-- The lowest number, above another one, of what was recorded from a moment on.
select sequence_no
from ostinato_events
where sequence_no > :last and recorded_at >= :since
order by sequence_no
limit 1

-- name: count_after
select count(*) from (select 1 from ostinato_events where sequence_no > :last limit :limit)

-- name: drainers
-- All, or one; the last two columns mean something on PostgreSQL.
select d.name, d.glob, d.origin, d.position, d.created_at, d.last_drained_at, d.processed,
       case d.origin when 'built-in' then (select count(*) from ostinato_parked) else 0 end,
       d.failures, d.halted_on, d.error, d.retry_at, d.lineage, d.lineage
from ostinato_drainers d
where :name is null or d.name = :name
order by d.origin <> 'built-in', d.name

-- name: lock_drainer
-- Whoever writes has locked everything.
select position, lineage, resets from ostinato_drainers where name = :name

-- name: reset_drainer
update ostinato_drainers
set position = :position, lineage = :lineage, resets = resets + 1, failures = 0, halted_on = null, error = null, retry_at = null
where name = :name

-- name: remove_drainer
delete from ostinato_drainers where name = :name returning name
