-- What a caller's own connection is asked before it is used.

-- name: identity
-- The file it is connected to. It fails if it does not know our clock yet; asking for a list of what it knows would take 80 µs.
select file from pragma_database_list where name = 'main' and ostinato_now() is not null
