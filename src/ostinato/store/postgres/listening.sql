-- The listener's side of the bells. SQLite has no twins of these: there, listening is watching the file.

-- name: arm
select ostinato.arm(:topic)

-- name: disarm
select ostinato.disarm(:topic)

-- name: still_open
-- Whether any transaction below this one has not ended yet.
select pg_snapshot_xmin(pg_current_snapshot()) < :xid::text::xid8

-- name: probe
select pg_notify('$channel', 'p:' || :token::text)
