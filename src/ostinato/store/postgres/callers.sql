-- What a caller's own connection is asked before it is used.

-- name: identity
-- The database it is connected to, whatever a pooler or a host calls it.
select current_database()::text, system_identifier::text from pg_control_system()
