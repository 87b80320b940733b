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
select position, lineage,
       (select system_identifier::text from pg_control_system()),
       pg_current_xact_id()::text, pg_current_snapshot()::text
from ostinato.drainers
where name = :name
for update skip locked

-- name: find_drainer
select position, lineage,
       (select system_identifier::text from pg_control_system()),
       null, pg_current_snapshot()::text
from ostinato.drainers
where name = :name

-- name: place
-- Where the ledger is now, for one who is about to read it.
select (select system_identifier::text from pg_control_system()), pg_current_snapshot()::text,
       (select case when is_called then last_value else 0 end from ostinato.events_sequence)

-- name: events_between
-- What became visible from one snapshot to another: from transactions that began after the first, and from those that were open then.
-- Two branches are two index scans; written as one condition it was a walk along the primary key. Not in order.
(select sequence_no, id, type, entity_type, entity_id, payload::text, caused_by, run_id, source,
        ostinato.micros(occurred_at), ostinato.micros(recorded_at), idempotency_key
 from ostinato.events
 where xid >= pg_snapshot_xmax(:after::text::pg_snapshot) and xid < pg_snapshot_xmax(:until::text::pg_snapshot)
   and pg_visible_in_snapshot(xid, :until::text::pg_snapshot)
 order by xid, sequence_no
 limit :limit)
union all
(select sequence_no, id, type, entity_type, entity_id, payload::text, caused_by, run_id, source,
        ostinato.micros(occurred_at), ostinato.micros(recorded_at), idempotency_key
 from ostinato.events
 where xid = any(array(select pg_snapshot_xip(:after::text::pg_snapshot)))
   and pg_visible_in_snapshot(xid, :until::text::pg_snapshot)
 limit :limit)

-- name: window
-- The lowest and the highest number of what became visible from one snapshot to another.
select min(sequence_no), max(sequence_no)
from (
    select sequence_no from ostinato.events
    where xid >= pg_snapshot_xmax(:after::text::pg_snapshot) and xid < pg_snapshot_xmax(:until::text::pg_snapshot)
      and pg_visible_in_snapshot(xid, :until::text::pg_snapshot)
    union all
    select sequence_no from ostinato.events
    where xid = any(array(select pg_snapshot_xip(:after::text::pg_snapshot)))
      and pg_visible_in_snapshot(xid, :until::text::pg_snapshot)
) w

-- name: events_in_window
-- A page of a window that has many: along the primary key, since paging by the two branches would read all of it for every page.
select sequence_no, id, type, entity_type, entity_id, payload::text, caused_by, run_id, source,
       ostinato.micros(occurred_at), ostinato.micros(recorded_at), idempotency_key
from ostinato.events
where sequence_no > :last::bigint and sequence_no <= :end::bigint
  and pg_visible_in_snapshot(xid, :until::text::pg_snapshot)
  and not pg_visible_in_snapshot(xid, :after::text::pg_snapshot)
order by sequence_no
limit :limit

-- name: restored_window
-- After a restore into another cluster: what the snapshot of the old one had not seen, of the events that came with the restore, and all
-- that was recorded here. An event was recorded here if the row's own transaction is the one that it names.
select min(sequence_no), max(sequence_no)
from ostinato.events
where case when xmin::text::bigint = xid::text::numeric % 4294967296 then pg_visible_in_snapshot(xid, :until::text::pg_snapshot)
           else not pg_visible_in_snapshot(xid, :after::text::pg_snapshot)
                and not (sequence_no <= :read_last::bigint and pg_visible_in_snapshot(xid, :read_until::text::pg_snapshot)) end

-- name: restored_events
select sequence_no, id, type, entity_type, entity_id, payload::text, caused_by, run_id, source,
       ostinato.micros(occurred_at), ostinato.micros(recorded_at), idempotency_key
from ostinato.events
where sequence_no > :last::bigint and sequence_no <= :end::bigint
  and case when xmin::text::bigint = xid::text::numeric % 4294967296 then pg_visible_in_snapshot(xid, :until::text::pg_snapshot)
           else not pg_visible_in_snapshot(xid, :after::text::pg_snapshot)
                and not (sequence_no <= :read_last::bigint and pg_visible_in_snapshot(xid, :read_until::text::pg_snapshot)) end
order by sequence_no
limit :limit

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

-- name: subscriptions_version
select count(*), coalesce(max(version), 0) from ostinato.subscriptions

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
select distinct subscription, entity_type, entity_id
from ostinato.parked
where subscription = any(array(select jsonb_array_elements_text(:names::text::jsonb))) and entity_id is not null
