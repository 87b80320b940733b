-- The listener's side of the bells. SQLite has no twins of these: there, listening is watching the file.

-- name: arm
select ostinato.arm(:topic)

-- name: disarm
select ostinato.disarm(:topic)

-- name: still_open
-- Whether any of these transactions has not ended yet.
select exists (
    select 1 from unnest(:xids::text[]) as open (xid)
    where not pg_visible_in_snapshot(open.xid::xid8, pg_current_snapshot()))

-- name: probe
select pg_notify('$channel', 'p:' || :token::text)
