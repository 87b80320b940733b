-- The ledger. Parameters are written :name; reading in order has blocks of its own on each database, the rest has twins.

-- name: insert_events
select requested, existing from ostinato.insert_events(:events::text::jsonb, :ring)

-- name: park_events
insert into ostinato.parked (subscription, sequence_no, event_id, entity_type, entity_id, code, message, parked_at)
select e->>'subscription', (e->>'sequence_no')::bigint, e->>'event_id', e->>'entity_type', e->>'entity_id', e->>'code', e->>'message',
       ostinato.clock()
from jsonb_array_elements(:parked::text::jsonb) as c(e)
on conflict (subscription, sequence_no) do update set code = excluded.code, message = excluded.message, parked_at = excluded.parked_at

-- name: move_drainer
update ostinato.drainers
set position = :position, processed = processed + :processed::bigint, last_drained_at = ostinato.clock(), failures = 0, halted_on = null,
    error = null, retry_at = null
where name = :drainer

-- name: take_drainer
-- For the rest of the transaction. No row comes back if another holds it.
select d.position, split_part(d.lineage, '/', 1), l.lineage, l.restored_to, l.xmin = l.written_by and l.tableoid = l.home,
       pg_current_xact_id()::text, pg_current_snapshot()::text
from ostinato.drainers d
cross join ostinato.ledger l
where d.name = :name
for update of d skip locked

-- name: find_drainer
select d.position, split_part(d.lineage, '/', 1), l.lineage, l.restored_to, l.xmin = l.written_by and l.tableoid = l.home,
       pg_current_xact_id_if_assigned()::text, pg_current_snapshot()::text
from ostinato.drainers d
cross join ostinato.ledger l
where d.name = :name

-- name: peek_drainer
-- The same, and whether something became visible since its snapshot, unless it is in the middle of a window: then there is.
select d.position, split_part(d.lineage, '/', 1), l.lineage, l.restored_to, l.xmin = l.written_by and l.tableoid = l.home,
       pg_current_xact_id_if_assigned()::text, pg_current_snapshot()::text,
       d.position::jsonb ? 'until'
       or exists (select from ostinato.events_between((d.position::jsonb->>'after')::pg_snapshot, pg_current_snapshot(), l.restored_to, 1))
from ostinato.drainers d
cross join ostinato.ledger l
where d.name = :name

-- name: place
-- Where the ledger is now, for one who is about to read it.
select l.lineage || '/' || ostinato.timeline(), l.restored_to, l.xmin = l.written_by and l.tableoid = l.home,
       pg_current_xact_id_if_assigned()::text, pg_current_snapshot()::text,
       (select case when is_called then last_value else 0 end from ostinato.events_sequence)
from ostinato.ledger l

-- name: adopt_ledger
select ostinato.adopt_ledger()

-- name: events_between
-- What became visible from one snapshot to another. Not in order.
select sequence_no, id, type, entity_type, entity_id, payload::text, caused_by, run_id, source,
       ostinato.micros(occurred_at), ostinato.micros(recorded_at), idempotency_key
from ostinato.events_between(:after::text::pg_snapshot, :until::text::pg_snapshot, :floor, :limit)

-- name: window
-- The lowest and the highest number of what became visible from one snapshot to another.
select min(sequence_no), max(sequence_no)
from (
    select sequence_no from ostinato.events
    where xid >= pg_snapshot_xmax(:after::text::pg_snapshot) and xid < pg_snapshot_xmax(:until::text::pg_snapshot)
      and pg_visible_in_snapshot(xid, :until::text::pg_snapshot) and sequence_no > :floor::bigint
    union all
    select e.sequence_no
    from pg_snapshot_xip(:after::text::pg_snapshot) as open (xid)
    join ostinato.events e on e.xid between open.xid and open.xid and e.sequence_no > :floor::bigint
    where pg_visible_in_snapshot(open.xid, :until::text::pg_snapshot)
) w

-- name: events_in_window
-- A page of a window that has many, in order.
select sequence_no, id, type, entity_type, entity_id, payload::text, caused_by, run_id, source,
       ostinato.micros(occurred_at), ostinato.micros(recorded_at), idempotency_key
from ostinato.events_in_window(:after::text::pg_snapshot, :until::text::pg_snapshot, :last, :end, :restored, :limit,
                               :read_until::text::pg_snapshot, :read_last)

-- name: restored_window
-- After a restore: of the events that came along, those that the snapshot of the other cluster had not seen, and all that was recorded here.
select min(sequence_no), max(sequence_no)
from ostinato.events
where case when sequence_no > :restored::bigint then pg_visible_in_snapshot(xid, :until::text::pg_snapshot)
           else not pg_visible_in_snapshot(xid, :after::text::pg_snapshot)
                and not (sequence_no <= :read_last::bigint and pg_visible_in_snapshot(xid, :read_until::text::pg_snapshot)) end

-- name: set_lineage
update ostinato.drainers set lineage = :lineage, position = :position where name = :name

-- name: halt_drainer
update ostinato.drainers
set failures = failures + 1, halted_on = :event, error = :error,
    retry_at = ostinato.clock() + :delay::double precision * interval '1 second'
where name = :name

-- name: declare_drainers
-- One that is there keeps its position.
insert into ostinato.drainers (name, glob, origin, position, lineage, created_at)
select e->>'name', e->>'glob', e->>'origin', e->>'position', :lineage::text, ostinato.clock()
from jsonb_array_elements(:drainers::text::jsonb) as c(e)
order by 1
on conflict (name) do update set glob = excluded.glob, origin = excluded.origin
where drainers.glob <> excluded.glob or drainers.origin <> excluded.origin

-- name: bearings
-- What is different whenever a subscription is, and the functions that there are, with the events that cancel their runs.
select count(*), coalesce(max(version), 0),
       (select coalesce(jsonb_object_agg(name, cancel_on::text), '{}')::text from ostinato.functions)
from ostinato.subscriptions

-- name: subscriptions
select name, glob, function, filter, mapper::text, ordered, enabled, origin, since_sequence, ostinato.micros(since_at)
from ostinato.subscriptions
order by name

-- name: declare_subscriptions
-- What an operator has switched off stays off, and where it began it goes on. Only what differs is written.
insert into ostinato.subscriptions (name, glob, function, filter, mapper, ordered, enabled, origin, since_sequence, since_at, declared_at,
                                    version)
select e->>'name', e->>'glob', e->>'function', e->>'filter', nullif(e->'mapper', 'null'), coalesce((e->>'ordered')::boolean, false),
       coalesce((e->>'enabled')::boolean, true), e->>'origin', (e->>'since_sequence')::bigint, to_timestamp((e->>'since_at')::double precision / 1000000),
       ostinato.clock(), nextval('ostinato.subscriptions_changes')
from jsonb_array_elements(:subscriptions::text::jsonb) as c(e)
order by 1
on conflict (name) do update
set glob = excluded.glob, function = excluded.function, filter = excluded.filter, mapper = excluded.mapper, ordered = excluded.ordered,
    origin = excluded.origin, declared_at = excluded.declared_at, version = excluded.version
where (subscriptions.glob, subscriptions.function, subscriptions.filter, subscriptions.mapper, subscriptions.ordered, subscriptions.origin)
      is distinct from (excluded.glob, excluded.function, excluded.filter, excluded.mapper, excluded.ordered, excluded.origin)

-- name: parked_entities
-- Of some entities, those that have events parked, and the subscriptions in which. Offset keeps the planner from walking all that is parked.
select distinct found.subscription, c.e->>0, c.e->>1
from jsonb_array_elements(:entities::text::jsonb) as c(e)
cross join lateral (
    select p.subscription from ostinato.parked p
    where p.entity_type = c.e->>0 and p.entity_id = c.e->>1 and p.entity_id is not null
      and p.subscription = any(array(select jsonb_array_elements_text(:names::text::jsonb)))
    offset 0) found

-- name: unpark_events
delete from ostinato.parked p
using jsonb_array_elements(:unparked::text::jsonb) as c(e)
where p.subscription = e->>'subscription' and p.sequence_no = (e->>'sequence_no')::bigint

-- name: parked
-- In the order in which they were recorded, after one of them.
select p.subscription, p.event_id, v.type, p.sequence_no, p.entity_type, p.entity_id, p.code, p.message, ostinato.micros(p.parked_at)
from ostinato.parked p
left join ostinato.events v on v.sequence_no = p.sequence_no
where (:subscription::text is null or p.subscription = :subscription) and (:event::text is null or p.event_id = :event)
  and (p.sequence_no, p.subscription) > (:last::bigint, :last_subscription) and p.sequence_no <= :end::bigint
order by p.sequence_no, p.subscription
limit :limit

-- name: parked_chain
-- A parked event, and those of its entity that are parked too, if an entity is given.
select v.sequence_no, v.id, v.type, v.entity_type, v.entity_id, v.payload::text, v.caused_by, v.run_id, v.source,
       ostinato.micros(v.occurred_at), ostinato.micros(v.recorded_at), v.idempotency_key
from ostinato.parked p
join ostinato.events v on v.sequence_no = p.sequence_no
where p.subscription = :subscription
  and p.sequence_no = any(array(
      select :sequence_no::bigint
      union
      select sequence_no from ostinato.parked
      where entity_type = :entity_type::text and entity_id = :entity_id::text and subscription = :subscription))
order by v.sequence_no

-- name: events_recorded
-- Those of a time, by number.
select sequence_no, id, type, entity_type, entity_id, payload::text, caused_by, run_id, source,
       ostinato.micros(occurred_at), ostinato.micros(recorded_at), idempotency_key
from ostinato.events
where sequence_no > :last::bigint and sequence_no <= :end::bigint
  and recorded_at >= to_timestamp(:since::bigint / 1000000.0) and recorded_at < to_timestamp(:until::bigint / 1000000.0)
order by sequence_no
limit :limit

-- name: first_since
-- The lowest number, above another one, of what was recorded from a moment on.
select sequence_no
from ostinato.events
where sequence_no > :last::bigint and recorded_at >= to_timestamp(:since::bigint / 1000000.0)
order by sequence_no
limit 1

-- name: count_between
-- How much became visible from one snapshot to another.
select (select count(*) from (
           select 1 from ostinato.events
           where xid >= pg_snapshot_xmax(:after::text::pg_snapshot) and xid < pg_snapshot_xmax(:until::text::pg_snapshot)
             and pg_visible_in_snapshot(xid, :until::text::pg_snapshot) and sequence_no > :floor::bigint
           limit :limit) younger)
     + (select count(*) from (
           select 1 from ostinato.events
           where xid = any(array(select pg_snapshot_xip(:after::text::pg_snapshot)))
             and pg_visible_in_snapshot(xid, :until::text::pg_snapshot) and sequence_no > :floor::bigint
           limit :limit) late)

-- name: count_in_window
-- How much of a window is left, by the same rules as those of ostinato.events_in_window.
select count(*) from (
    select 1 from ostinato.events
    where sequence_no > :last::bigint and sequence_no <= :end::bigint
      and case when sequence_no > :restored::bigint
               then pg_visible_in_snapshot(xid, :until::text::pg_snapshot)
                    and (:restored::bigint > 0 or not pg_visible_in_snapshot(xid, :after::text::pg_snapshot))
               else not pg_visible_in_snapshot(xid, :after::text::pg_snapshot)
                    and not (sequence_no <= :read_last::bigint and pg_visible_in_snapshot(xid, :read_until::text::pg_snapshot)) end
    limit :limit) w

-- name: drainers
-- All, or one; the last column is the ledger whose transactions positions speak of now.
select d.name, d.glob, d.origin, d.position, ostinato.micros(d.created_at), ostinato.micros(d.last_drained_at), d.processed,
       case d.origin when 'built-in' then (select count(*) from ostinato.parked) else 0 end,
       d.failures, d.halted_on, d.error, ostinato.micros(d.retry_at), split_part(d.lineage, '/', 1),
       (select l.lineage from ostinato.ledger l)
from ostinato.drainers d
where :name::text is null or d.name = :name
order by d.origin <> 'built-in', d.name

-- name: lock_drainer
-- For the rest of the transaction, once nobody else holds it.
select position, (select l.lineage from ostinato.ledger l), resets
from ostinato.drainers
where name = :name
for update

-- name: reset_drainer
-- Who sleeps on the ledger has something to read again.
with moved as (
    update ostinato.drainers
    set position = :position, lineage = :lineage, resets = resets + 1, failures = 0, halted_on = null, error = null, retry_at = null
    where name = :name
    returning name
)
select ostinato.ring_ledger() from moved

-- name: remove_drainer
delete from ostinato.drainers where name = :name returning name
