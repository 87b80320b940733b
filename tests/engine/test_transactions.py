"""The user's rows and ours, together or not at all."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, closing
from typing import Any

import asyncpg
import pytest

from ostinato import App, ConfigError, InvalidInput, Retry, Run, RunCancelled, RunFailed, Tx
from ostinato.engine.blocking import BlockingRun
from ostinato.errors import LeaseLost, TransactionMisused
from ostinato.telemetry import RunCompleted
from ostinato.telemetry import RunFailed as AttemptFailed
from ostinato.testing.probe import Probe
from tests.engine.databases import Database, SqliteDatabase, notes, states

NOTE = "insert into notes (text) values ($1)"


class Connection:
    """A connection of the user's own, whatever the driver."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw

    async def note(self, text: str) -> None:
        if isinstance(self.raw, sqlite3.Connection):
            self.raw.execute("insert into notes (text) values (?)", (text,))
        else:
            await self.raw.execute(NOTE, text)

    async def begin(self) -> None:
        if isinstance(self.raw, sqlite3.Connection):
            self.raw.execute("begin immediate")
        else:
            self._transaction = self.raw.transaction()
            await self._transaction.start()

    async def commit(self) -> None:
        if isinstance(self.raw, sqlite3.Connection):
            self.raw.execute("commit")
        else:
            await self._transaction.commit()

    async def rollback(self) -> None:
        if isinstance(self.raw, sqlite3.Connection):
            self.raw.execute("rollback")
        else:
            await self._transaction.rollback()


@asynccontextmanager
async def connected(database: Database) -> AsyncIterator[Connection]:
    """A connection of the user's own."""
    if isinstance(database, SqliteDatabase):
        with closing(sqlite3.connect(database.path, isolation_level=None, timeout=10)) as raw:
            yield Connection(raw)
    else:
        connection = await asyncpg.connect(database.url)
        try:
            yield Connection(connection)
        finally:
            await connection.close()


def every_use(tx: Tx, function: object) -> Iterator[Coroutine[Any, Any, Any]]:
    """Everything that can be asked of a transaction."""
    yield tx.execute(NOTE, "late")
    yield tx.fetch("select 1 as one")
    yield tx.fetchrow("select 1 as one")
    yield tx.fetchval("select 1 as one")
    yield tx.enqueue(function)
    yield tx.enqueue_many(function, [{}])


# --- app.transaction()


async def test_rows_and_runs_are_committed_together(app: App, database: Database):
    """At the end of the block."""

    @app.function
    async def mail(to: str): ...

    async with app.transaction() as tx:
        await tx.execute(NOTE, "signed up")
        run_id = await tx.enqueue(mail, to="Ada")
        many = await tx.enqueue_many(mail.options(priority=5), [{"to": "Bob"}, {"to": "Cy"}])
        assert await app.runs.list() == []
    assert notes(database) == ["signed up"]
    assert {view.id for view in await app.runs.list()} == {run_id, *many}


async def test_rows_and_runs_are_rolled_back_together(app: App, database: Database):
    """When the block raises."""

    @app.function
    async def mail(to: str): ...

    async def fail() -> None:
        async with app.transaction() as tx:
            await tx.execute(NOTE, "signed up")
            await tx.enqueue(mail, to="Ada")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert notes(database) == []
    assert await states(app) == {}


async def test_bad_input_inside_a_transaction_undoes_it(app: App, database: Database):
    """Unless the user catches it."""

    @app.function
    async def mail(to: str): ...

    async def fail() -> None:
        async with app.transaction() as tx:
            await tx.execute(NOTE, "signed up")
            await tx.enqueue(mail, to=5)

    with pytest.raises(InvalidInput):
        await fail()
    assert notes(database) == []


async def test_a_cancelled_transaction_is_rolled_back(app: App, database: Database):
    """And its connection can be used again."""
    inside = asyncio.Event()

    async def hang() -> None:
        async with app.transaction() as tx:
            await tx.execute(NOTE, "half")
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(hang())
    await inside.wait()
    task.cancel()
    await asyncio.wait([task])
    assert notes(database) == []
    async with app.transaction() as tx:
        await tx.execute(NOTE, "whole")
    assert notes(database) == ["whole"]


async def test_the_methods_of_a_transaction(app: App):
    """The same on both databases."""
    async with app.transaction() as tx:
        assert await tx.execute(NOTE, "a") == 1
        assert await tx.execute(NOTE, "b") == 1
        assert await tx.fetch("select text from notes order by text") == [{"text": "a"}, {"text": "b"}]
        assert await tx.fetchrow("select text from notes where text = $1", "b") == {"text": "b"}
        assert await tx.fetchrow("select text from notes where text = $1", "z") is None
        assert await tx.fetchval("select count(*) from notes") == 2
        assert await tx.fetchval("select text from notes where text = $1", "z") is None
        assert await tx.execute("update notes set text = $2 where text = $1", "a", "c") == 1
        assert await tx.execute("delete from notes") == 2


async def test_a_transaction_is_not_used_after_its_end(app: App):
    """The error says what to do."""

    @app.function
    async def mail(): ...

    async with app.transaction() as tx:
        pass
    for use in every_use(tx, mail):
        with pytest.raises(TransactionMisused, match="the transaction has ended; use it inside its `async with` block"):
            await use
    assert await states(app) == {}


async def test_a_key_in_a_transaction_answers_the_run_that_holds_it(app: App):
    """As outside of one."""

    @app.function
    async def mail(): ...

    first = await mail.options(key="k").enqueue()
    async with app.transaction() as tx:
        assert await tx.enqueue(mail.options(key="k")) == first.id


async def test_a_run_enqueued_in_a_transaction_is_picked_up_after_the_commit(app: App, probe: Probe):
    """By a worker that is asleep."""

    @app.function
    async def mail(): ...

    async with app.worker():
        async with app.transaction() as tx:
            run_id = await tx.enqueue(mail)
        await probe.next(RunCompleted, run_id=run_id)


# --- run.transaction()


async def test_effects_and_completion_are_committed_together(app: App, database: Database):
    """With the value that the handler returns after the block."""

    @app.function
    async def work(run: Run) -> dict[str, bool]:
        async with run.transaction() as tx:
            await tx.execute(NOTE, "done")
        assert notes(database) == []  # not yet
        return {"ok": True}

    async with app.worker():
        assert await (await work.enqueue()).result(5) == {"ok": True}
    assert notes(database) == ["done"]


async def test_runs_enqueued_in_the_runs_transaction_come_with_its_completion(app: App):
    """And say who made them."""

    @app.function
    async def child(): ...

    @app.function
    async def parent(run: Run) -> str:
        async with run.transaction() as tx:
            return await tx.enqueue(child.options(delay="1h"))

    async with app.worker():
        handle = await parent.enqueue()
        child_id = await handle.result(5)
    assert (await app.runs.get(child_id)).invoked_by == f"run:{handle.id}"


@pytest.mark.parametrize("where", ["inside", "after"])
async def test_effects_are_undone_when_the_handler_raises(app: App, database: Database, where: str):
    """Inside the block or after it; then the retry does it once."""

    @app.function(retry=Retry("0s"))
    async def work(run: Run):
        async with run.transaction() as tx:
            await tx.execute(NOTE, f"attempt {run.attempt}")
            if where == "inside" and run.attempt == 1:
                raise ValueError("inside")
        if where == "after" and run.attempt == 1:
            raise ValueError("after")

    async with app.worker():
        await (await work.enqueue()).result(5)
    assert notes(database) == ["attempt 2"]


async def test_effects_are_undone_when_the_result_cannot_be_stored(app: App, database: Database):
    """Nothing of a failed run is left."""

    @app.function
    async def work(run: Run) -> Any:
        async with run.transaction() as tx:
            await tx.execute(NOTE, "lost")
        return object()

    async with app.worker():
        with pytest.raises(RunFailed, match="unserialisable_result"):
            await (await work.enqueue()).result(5)
    assert notes(database) == []


async def test_a_block_that_failed_may_be_tried_again(app: App, database: Database):
    """What was caught is over."""

    @app.function
    async def work(run: Run):
        try:
            async with run.transaction() as tx:
                await tx.execute(NOTE, "first")
                raise ZeroDivisionError
        except ZeroDivisionError:
            pass
        async with run.transaction() as tx:
            await tx.execute(NOTE, "second")

    async with app.worker():
        await (await work.enqueue()).result(5)
    assert notes(database) == ["second"]


async def test_the_runs_transaction_is_its_last_act(app: App, database: Database):
    """A second one, or completing otherwise, is refused by name, and nothing is written."""
    refused: list[str] = []

    async def note_refusals(run: Run) -> None:
        for verb in (run.transaction().__aenter__(), run.complete(conn=object())):
            with pytest.raises(TransactionMisused) as caught:
                await verb
            refused.append(str(caught.value))

    @app.function(retry=Retry.none())
    async def work(run: Run):
        async with run.transaction() as tx:
            await tx.execute(NOTE, "lost")
            await note_refusals(run)
        await note_refusals(run)
        raise ValueError("enough")

    async with app.worker():
        with pytest.raises(RunFailed, match="enough"):
            await (await work.enqueue()).result(5)
    inside, end = "inside run.transaction(); use `tx`", "after the run's last act; run.transaction() and run.complete()"
    assert [inside, inside, end, end] == [words for message in refused for words in (inside, end) if words in message]
    assert notes(database) == []


async def test_effects_are_absent_when_the_run_was_cancelled_meanwhile(app: App, database: Database):
    """The flag came first, so it wins."""

    @app.function
    async def work(run: Run):
        async with run.transaction() as tx:
            await tx.execute(NOTE, "lost")
        if database.dialect == "postgresql":
            await app.runs.cancel([run.id], reason="changed my mind")

    async with app.worker():
        handle = await work.enqueue()
        if database.dialect == "sqlite":  # there, nobody else can write meanwhile
            await handle.cancel("changed my mind")
        with pytest.raises(RunCancelled, match="changed my mind"):
            await handle.result(5)
    assert notes(database) == []


async def test_a_failed_statement_that_was_swallowed_does_not_complete_the_run(app: App, database: Database):
    """On PostgreSQL the transaction is broken, and so is the attempt; on SQLite only the statement was."""

    @app.function(retry=Retry.none())
    async def work(run: Run):
        async with run.transaction() as tx:
            await tx.execute(NOTE, "kept on SQLite")
            try:
                await tx.execute("insert into no_such_table values (1)")
            except Exception:
                return

    async with app.worker():
        handle = await work.enqueue()
        if database.dialect == "sqlite":
            await handle.result(5)
        else:
            with pytest.raises(RunFailed, match="transaction is aborted"):
                await handle.result(5)
    assert notes(database) == (["kept on SQLite"] if database.dialect == "sqlite" else [])


async def test_an_argument_that_does_not_fit_is_the_handlers_failure(app: App, probe: Probe):
    """Whatever words are in it: a value that mentions a connection is no lost connection, and uses up its attempt."""

    @app.function(retry=Retry.none())
    async def work(run: Run):
        async with run.transaction() as tx:
            await tx.fetchval("select $1::int + 1", "a connection")
            raise ValueError("SQLite takes anything")

    async with app.worker():
        handle = await work.enqueue()
        failed = await probe.next(AttemptFailed, run_id=handle.id)
    assert not failed.will_retry


async def test_an_abandoned_tx_is_of_no_use_outside_of_its_block(app: App, database: Database):
    """Its statements belong to the block."""
    kept: list[Tx] = []

    @app.function(retry=Retry.none())
    async def work(run: Run):
        async with run.transaction() as tx:
            kept.append(tx)

    async with app.worker():
        await (await work.enqueue()).result(5)
    with pytest.raises(TransactionMisused, match="has ended"):
        await kept[0].execute(NOTE, "late")
    assert notes(database) == []


async def test_tx_is_of_no_use_between_its_block_and_the_handlers_return(app: App, database: Database):
    """The error says where to move the statement, and the block is committed with the run all the same."""

    @app.function
    async def mail(): ...

    @app.function
    async def work(run: Run) -> str:
        async with run.transaction() as tx:
            await tx.execute(NOTE, "inside")
        for use in every_use(tx, mail):
            with pytest.raises(
                TransactionMisused, match=r"after its block has ended; move this into the block of run\.transaction\(\)"
            ):
                await use
        return "done"

    async with app.worker():
        assert await (await work.enqueue()).result(5) == "done"
    assert notes(database) == ["inside"]
    assert await states(app) == {"completed": 1}


async def test_neighbours_complete_while_a_transaction_is_open(postgres_database: Database):
    """On PostgreSQL a run in its transaction is in nobody's way."""
    async with App(postgres_database.url) as app:
        go, inside = asyncio.Event(), asyncio.Event()

        @app.function
        async def slow(run: Run):
            async with run.transaction() as tx:
                await tx.execute(NOTE, "slow")
                inside.set()
                await go.wait()

        @app.function
        async def quick(): ...

        async with app.worker():
            waiting = await slow.enqueue()
            await inside.wait()
            for handle in await quick.enqueue_many([{}] * 20):
                await handle.result(5)
            go.set()
            await waiting.result(5)


# --- run.complete(conn=)


async def test_a_run_is_completed_in_the_users_own_transaction(app: App, database: Database, probe: Probe):
    """With the user's rows."""

    @app.function
    async def work(run: Run):
        async with connected(database) as connection:
            await connection.begin()
            await connection.note("mine")
            await run.complete({"by": "me"}, conn=connection.raw)
            await connection.commit()

    async with app.worker():
        handle = await work.enqueue()
        assert await handle.result(5) == {"by": "me"}
        await probe.next(RunCompleted, run_id=handle.id)
    assert notes(database) == ["mine"]


async def test_a_completion_that_was_rolled_back_is_tried_again(app: App, database: Database, probe: Probe):
    """With a code that says what happened."""

    @app.function(retry=Retry("0s"))
    async def work(run: Run):
        async with connected(database) as connection:
            await connection.begin()
            await connection.note(f"attempt {run.attempt}")
            await run.complete(run.attempt, conn=connection.raw)
            if run.attempt == 1:
                await connection.rollback()
            else:
                await connection.commit()

    async with app.worker():
        handle = await work.enqueue()
        failed = await probe.next(AttemptFailed, run_id=handle.id)
        assert (failed.error_code, failed.will_retry) == ("not_committed", True)
        assert await handle.result(5) == 2
    assert notes(database) == ["attempt 2"]


async def test_a_run_that_was_completed_is_completed_even_if_its_handler_raises_afterwards(
    app: App, database: Database, probe: Probe
):
    """What is committed is true: it is announced as completed, and never as failed."""

    @app.function(retry=Retry("0s"))
    async def work(run: Run):
        async with connected(database) as connection:
            await connection.begin()
            await connection.note("mine")
            await run.complete("done", conn=connection.raw)
            await connection.commit()
        raise ValueError("too late")

    async with app.worker():
        handle = await work.enqueue()
        assert await handle.result(5) == "done"
        await probe.next(RunCompleted, run_id=handle.id, timeout=1)
    assert probe.seen(AttemptFailed) == []
    assert notes(database) == ["mine"]


async def test_completing_needs_an_open_transaction(app: App, database: Database):
    """Otherwise nothing would hold it together."""

    @app.function(retry=Retry.none())
    async def work(run: Run):
        async with connected(database) as connection:
            await run.complete(conn=connection.raw)

    async with app.worker():
        with pytest.raises(RunFailed, match=r"TransactionMisused: conn= has no open transaction; "):
            await (await work.enqueue()).result(5)


async def test_completing_needs_a_connection_that_is_known(app: App):
    """The error names what was given and what may be."""

    @app.function(retry=Retry.none())
    async def work(run: Run):
        await run.complete(conn=object())

    async with app.worker():
        with pytest.raises(RunFailed, match=r"ConfigError: conn= is a builtins.object; give an asyncpg\.Connection"):
            await (await work.enqueue()).result(5)


async def test_completing_a_cancelled_run_is_refused(app: App, database: Database):
    """The user's transaction is rolled back by the error, and nothing of it is left."""

    @app.function(retry=Retry.none())
    async def work(run: Run):
        await app.runs.cancel([run.id], reason="changed my mind")
        async with connected(database) as connection:
            await connection.begin()
            await connection.note("lost")
            try:
                await run.complete(conn=connection.raw)
            except BaseException:
                await connection.rollback()
                raise
            await connection.commit()

    async with app.worker():
        with pytest.raises(RunCancelled, match="was cancelled"):
            await (await work.enqueue()).result(5)
    assert notes(database) == []


async def test_a_transaction_left_open_keeps_nobody_else_from_completing(postgres_database: Database):
    """The run's row is locked by the user; the other runs of the worker are settled all the same."""
    returned = asyncio.Event()
    async with App(postgres_database.url) as app, connected(postgres_database) as connection:

        @app.function(retry=Retry("1h"))
        async def forgetful(run: Run):
            await connection.begin()
            await run.complete(conn=connection.raw)
            returned.set()

        @app.function
        async def quick(): ...

        async with app.worker():
            await forgetful.enqueue()
            await returned.wait()
            try:
                for _ in range(5):
                    await (await quick.enqueue()).result(2)
            finally:
                await connection.rollback()


# --- run.complete(conn=), and on which thread


def opened(database: Database) -> sqlite3.Connection:
    """A connection that only the thread that made it may use, in a transaction that may write."""
    connection = sqlite3.connect(database.url.removeprefix("sqlite:///"), isolation_level=None, timeout=10)
    connection.execute("begin immediate")
    return connection


async def test_a_thread_completes_its_run_on_the_connection_it_made(sqlite_database: Database):
    """sqlite3 refuses a connection on any other thread than its own."""
    threads: set[int] = set()
    async with App(sqlite_database.url) as app:

        @app.function
        def work(run: BlockingRun):
            with closing(opened(sqlite_database)) as connection:
                connection.set_trace_callback(lambda _: threads.add(threading.get_ident()))
                connection.execute("insert into notes (text) values (?)", ("mine",))
                run.complete({"by": "me"}, conn=connection)
                connection.commit()

        with Probe(app.telemetry) as probe:
            async with app.worker():
                handle = await work.enqueue()
                assert await handle.result(5) == {"by": "me"}
                await probe.next(RunCompleted, run_id=handle.id)
    assert notes(sqlite_database) == ["mine"]
    assert len(threads) == 1
    assert threading.get_ident() not in threads


async def test_a_coroutine_completes_its_run_on_a_sync_connection_it_made(sqlite_database: Database):
    """On the event loop's thread, where the coroutine is."""
    threads: set[int] = set()
    async with App(sqlite_database.url) as app:

        @app.function
        async def work(run: Run):
            with closing(opened(sqlite_database)) as connection:
                connection.set_trace_callback(lambda _: threads.add(threading.get_ident()))
                await run.complete({"by": "me"}, conn=connection)
                connection.commit()

        async with app.worker():
            assert await (await work.enqueue()).result(5) == {"by": "me"}
    assert threads == {threading.get_ident()}


async def test_a_thread_completes_its_run_without_waiting_for_the_event_loop(sqlite_database: Database):
    """Which may itself be waiting for the lock that the thread's transaction holds."""
    started, completed = threading.Event(), threading.Event()
    async with App(sqlite_database.url) as app:

        @app.function
        def work(run: BlockingRun):
            with closing(opened(sqlite_database)) as connection:
                started.set()
                run.complete("done", conn=connection)
                connection.commit()
                completed.set()

        async with app.worker():
            handle = await work.enqueue()
            await asyncio.to_thread(started.wait, 5)
            assert completed.wait(2)  # this holds the event loop
            assert await handle.result(5) == "done"


async def test_a_threads_completion_that_was_rolled_back_is_tried_again(sqlite_database: Database):
    """As that of any handler."""
    async with App(sqlite_database.url) as app:

        @app.function(retry=Retry("0s"))
        def work(run: BlockingRun):
            with closing(opened(sqlite_database)) as connection:
                run.complete(run.attempt, conn=connection)
                if run.attempt == 2:
                    connection.commit()

        with Probe(app.telemetry) as probe:
            async with app.worker():
                handle = await work.enqueue()
                failed = await probe.next(AttemptFailed, run_id=handle.id)
                assert (failed.error_code, failed.will_retry) == ("not_committed", True)
                assert await handle.result(5) == 2


async def test_a_threads_completion_is_its_runs_last_act(sqlite_database: Database):
    """A second one, or a transaction after it, is refused by name."""
    async with App(sqlite_database.url) as app:

        @app.function(retry=Retry.none())
        def work(run: BlockingRun):
            with closing(opened(sqlite_database)) as connection:
                run.complete("done", conn=connection)
                with pytest.raises(TransactionMisused, match=r"run\.complete\(\) after the run's last act"):
                    run.complete("again", conn=connection)
                connection.commit()
            with pytest.raises(TransactionMisused, match=r"run\.transaction\(\) after the run's last act"):
                run.transaction().__enter__()

        async with app.worker():
            assert await (await work.enqueue()).result(5) == "done"


async def test_a_thread_cannot_complete_a_cancelled_run(sqlite_database: Database):
    """The same fence as anywhere else."""
    started, cancelled = threading.Event(), threading.Event()
    refused: list[BaseException] = []
    async with App(sqlite_database.url) as app:

        @app.function(retry=Retry.none())
        def work(run: BlockingRun):
            started.set()
            assert cancelled.wait(5)
            with closing(opened(sqlite_database)) as connection:
                connection.execute("insert into notes (text) values (?)", ("lost",))
                try:
                    run.complete("done", conn=connection)
                except LeaseLost as error:
                    refused.append(error)

        async with app.worker():
            handle = await work.enqueue()
            await asyncio.to_thread(started.wait, 5)
            await handle.cancel("changed my mind")
            cancelled.set()
            with pytest.raises(RunCancelled, match="changed my mind"):
                await handle.result(5)
    assert len(refused) == 1
    assert notes(sqlite_database) == []


async def test_a_thread_that_was_let_go_completes_nothing(sqlite_database: Database):
    """Its run was given back: it is somebody else's to complete."""
    started, go, ended = threading.Event(), threading.Event(), threading.Event()
    refused: list[BaseException] = []
    async with App(sqlite_database.url, shutdown_grace="50ms") as app:

        @app.function
        def hang(run: BlockingRun):
            started.set()
            go.wait(10)
            with closing(opened(sqlite_database)) as connection:
                try:
                    run.complete("late", conn=connection)
                except Exception as error:
                    refused.append(error)
                finally:
                    ended.set()

        async with app.worker():
            handle = await hang.enqueue()
            await asyncio.to_thread(started.wait, 5)
        go.set()
        await asyncio.to_thread(ended.wait, 5)
        assert await handle.status() == "pending"
    assert [str(error).partition(";")[0] for error in refused] == ["run.complete() after the attempt is over"]


async def test_a_thread_cannot_use_an_async_connection(postgres_database: Database):
    """It belongs to its event loop. The error names both, and what to do; the connection is left alone."""
    async with App(postgres_database.url) as app, connected(postgres_database) as connection:
        await connection.begin()

        @app.function(retry=Retry.none())
        def work(run: BlockingRun):
            run.complete(conn=connection.raw)

        async with app.worker():
            with pytest.raises(
                RunFailed,
                match=r"ConfigError: conn= is an async connection \(asyncpg\.connection\.Connection\), which only its "
                r"event loop may use, and 'work' is a plain function in a thread; declare it with `async def`, or use",
            ):
                await (await work.enqueue()).result(5)
        await connection.note("mine")
        await connection.commit()
    assert notes(postgres_database) == ["mine"]


# --- conn= of enqueue


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_a_run_enqueued_with_a_connection_shares_its_fate(app: App, database: Database, end: str):
    """Directly, by name and in bulk."""

    @app.function
    async def mail(): ...

    async with connected(database) as connection:
        await connection.begin()
        await connection.note("mine")
        await mail.options(conn=connection.raw).enqueue()
        await app.enqueue_many("mail", [{}, {}], conn=connection.raw)
        await (connection.commit() if end == "commit" else connection.rollback())
    assert await states(app) == ({"ready": 3} if end == "commit" else {})
    assert notes(database) == (["mine"] if end == "commit" else [])


async def test_a_connection_without_a_transaction_is_refused(app: App, database: Database):
    """It would commit at once, and nothing would be together."""

    @app.function
    async def mail(): ...

    async with connected(database) as connection:
        with pytest.raises(TransactionMisused, match=r"^conn= has no open transaction; "):
            await mail.options(conn=connection.raw).enqueue()
    assert await states(app) == {}


async def test_a_connection_to_another_kind_of_database_is_refused(postgres_database: Database):
    """By name."""
    app = App(postgres_database.url)

    @app.function
    async def mail(): ...

    with (
        closing(sqlite3.connect(":memory:")) as other,
        pytest.raises(ConfigError, match="conn= is a sqlite connection"),
    ):
        await mail.options(conn=other).enqueue()


# --- writing past one's own transaction


async def test_on_sqlite_nothing_else_is_written_from_inside_a_transaction(sqlite_database: Database):
    """It would wait for itself; the error names what to use, and comes at once."""
    async with App(sqlite_database.url) as app:

        @app.function
        async def mail(): ...

        @app.function(retry=Retry.none())
        async def work(run: Run):
            async with run.transaction():
                await mail.enqueue()

        async with app.worker():
            with pytest.raises(RunFailed, match=r"TransactionMisused: inside a transaction on SQLite .*use tx.enqueue"):
                await (await work.enqueue()).result(2)
        async with app.transaction():
            with pytest.raises(TransactionMisused, match=r"use tx\.enqueue"):
                await mail.enqueue()
        assert await states(app) == {"failed": 1}


async def test_on_sqlite_a_transaction_may_not_last_long(sqlite_database: Database, monkeypatch: pytest.MonkeyPatch):
    """It holds the only write lock: the attempt fails with the reason, and the others go on."""
    monkeypatch.setattr("ostinato.engine.tools.TRANSACTION_LIMIT", 0.2)
    async with App(sqlite_database.url) as app:

        @app.function(retry=Retry.none())
        async def slow(run: Run):
            async with run.transaction() as tx:
                await tx.execute(NOTE, "lost")
                await asyncio.sleep(0.5)

        @app.function
        async def quick(): ...

        async with app.worker():
            with pytest.raises(RunFailed, match=r"the transaction lasted longer than 0\.2 s and was rolled back"):
                await (await slow.enqueue()).result(5)
            await (await quick.enqueue()).result(5)
    assert notes(sqlite_database) == []
