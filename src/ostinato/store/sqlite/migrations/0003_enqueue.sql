-- Enqueuing by plain SQL is PostgreSQL's alone. SQLite keeps no functions in its file: what a statement may call is what the program
-- that executes it has brought along. So there, other programs enqueue with `ostinato enqueue`, or through the HTTP API, and Python code
-- hands its own connection over: `fn.options(conn=connection).enqueue(...)`. What the two have in common is below.

-- What a function declares about its runs' priority, for those who enqueue it without its code at hand.
alter table ostinato_functions add column priority integer not null default 0 check (priority between -600 and 600);
