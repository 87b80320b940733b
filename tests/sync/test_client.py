"""The client: the app's verbs for code without an event loop."""

from __future__ import annotations

import asyncio
import gc
import inspect
import signal
import threading
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, assert_type

import asyncpg
import pytest

from ostinato import (
    App,
    ConfigError,
    InvalidInput,
    InvalidOption,
    ResultTimeout,
    Retry,
    Run,
    RunCancelled,
    RunFailed,
    UnknownFunction,
)
from ostinato.engine.blocking import BlockingRun
from ostinato.engine.door import EnqueueOptions
from ostinato.errors import StoreError, TransactionMisused, UnknownRun, WouldBlock
from ostinato.function import Enqueuer
from ostinato.model.view import FunctionView, RunView
from ostinato.resources import runs
from ostinato.sync import Client, Handle
from ostinato.sync.client import Options
from tests.engine.databases import Database, notes
from tests.sync.helpers import connections, loop_threads, own_connection, until, waits, working

# --- enqueuing


def test_a_run_is_enqueued_by_name_or_by_function(app: App, client: Client):
    """With the input as one object, and options as keywords."""

    @app.function(queue="mail")
    async def post(to: str, copies: int = 1) -> None: ...

    by_name = client.enqueue("greet", {"name": "Ada"}, key="ada", priority=7, metadata={"tenant": "acme"})
    by_function = client.enqueue(post, {"to": "Bob"})
    view = client.runs.get(by_name.id)
    assert ("greet", {"name": "Ada"}, "ada", 7, {"tenant": "acme"}, "api") == (
        view.function,
        view.input,
        view.key,
        view.priority,
        view.metadata,
        view.invoked_by,
    )
    view = client.runs.get(by_function.id)
    assert ("post", "mail", {"to": "Bob"}) == (view.function, view.queue, view.input)


def test_options_of_a_function_are_kept_and_those_of_the_call_win(app: App, client: Client):
    """`fn.options(...)` is a function too."""
    greet = app.function(name="greet twice")(lambda: None)
    first = client.enqueue(greet.options(key="a", priority=1), priority=2)
    again = client.enqueue(greet, key="a")
    assert (True, False) == (first.created, again.created)
    assert first.id == again.id
    assert 2 == client.runs.get(first.id).priority
    forced = client.enqueue(greet, key="a", force=True)
    assert forced.created
    assert forced.id == client.enqueue(greet, key="a").id


def test_a_function_without_input_needs_none(client: Client):
    """The input may be left out."""
    assert "pending" == client.enqueue("greet").status()


def test_many_are_enqueued_or_none(client: Client):
    """Also those of a generator, which is exhausted on the calling thread."""
    threads = []

    def inputs():
        for number in range(100):
            threads.append(threading.current_thread())
            yield {"name": str(number)}

    handles = client.enqueue_many("greet", inputs(), delay="1h")
    assert 100 == len({handle.id for handle in handles})
    assert {threading.current_thread()} == set(threads)
    with pytest.raises(InvalidInput, match=r"\[1\]"):
        client.enqueue_many("greet", [{"name": "x"}, {"name": 3}])
    assert [100] == [count.count for count in client.runs.counts()]
    assert [] == client.enqueue_many("greet", [])


def test_keywords_are_options_and_not_input(client: Client):
    """What is no option is refused, with the place for input."""
    with pytest.raises(InvalidOption, match=r"unknown option 'name'.*second argument.*\('greet', \{\.\.\.\}\)"):
        client.enqueue("greet", name="Ada")  # type: ignore[call-arg]
    assert [] == client.runs.counts()


def test_something_that_is_no_function_is_refused(client: Client):
    """A handler that was not declared, say."""
    with pytest.raises(ConfigError, match=r"declare it with @app\.function"):
        client.enqueue(print)  # type: ignore[arg-type]


def test_an_unknown_function_is_refused_with_the_one_that_may_be_meant(client: Client):
    """As by the app."""
    with pytest.raises(UnknownFunction, match="did you mean 'greet'"):
        client.enqueue("gret")


def test_options_are_those_of_the_app():
    """All of them are known to type checkers."""
    assert set(EnqueueOptions.__slots__) == set(Options.__annotations__)


def test_settings_make_an_app(database: Database):
    """A client can be made from what an app is made from, and not from both."""
    with Client(database.url, input_limit=10, queues={"default": 3}) as client:
        assert {"default": 3} == {name: queue.concurrency for name, queue in client.app.settings.queues.items()}
    with pytest.raises(ConfigError, match="lease= is a setting of the app"):
        Client(client.app, lease="5s")


# --- handles


def test_handles_block(app: App, client: Client):
    """For a result, until it is there or the time is over."""
    handle = client.enqueue("greet", {"name": "Ada"})
    with pytest.raises(ResultTimeout):
        handle.result(0.01)
    with working(app):
        assert "hello Ada" == handle.result(timeout=10)
        assert "completed" == handle.status()
        failed = client.enqueue("fail", delay=0)
        with pytest.raises(ResultTimeout):
            failed.result(0.01)
    assert failed.cancel("enough")
    assert not failed.cancel()
    with pytest.raises(RunCancelled, match="enough"):
        failed.result(1)
    assert f"Handle({failed.id!r}, created=True)" == repr(failed)


def test_what_a_verb_raises_is_raised_here(client: Client):
    """The same error, with a traceback from this line to where it was found."""
    with pytest.raises(UnknownRun) as raised:
        client.runs.get("nonsense")
    functions = [frame.name for frame in traceback.extract_tb(raised.tb)]
    assert "test_what_a_verb_raises_is_raised_here" == functions[0]
    assert "get" == functions[-1]
    files = [frame.filename for frame in traceback.extract_tb(raised.tb)]
    assert [] == [file for file in files if "concurrent" in file or "asyncio" in file]
    assert ["call", "_ask", "wait", "result", "during"] == functions[1:-1]


# --- recording


def test_events_are_recorded_and_read(app: App, client: Client):
    """With the app's arguments and checks, singly and many, and looked at without an event loop."""
    app.event("price.changed", dict[str, int])
    first = client.record("price.changed", {"price": 7}, entity=("product", "42"), idempotency_key="k", source="shop")
    assert first == client.record("price.changed", {"price": 8}, idempotency_key="k")
    bulk = client.record_many("price.changed", ({"payload": {"price": number}} for number in range(3)), source="bulk")
    with pytest.raises(InvalidInput, match=r"payload of 'price\.changed'"):
        client.record("price.changed", {"price": "dear"})
    event = client.events.get(first)
    assert ({"price": 7}, ("product", "42"), "shop") == (event.payload, event.entity, event.source)
    assert bulk == [event.id for event in reversed(client.events.recent(source="bulk"))]
    page = client.events.read(limit=3)
    assert ([first, *bulk], True) == ([*(event.id for event in page.events), bulk[2]], page.more)
    assert bulk[2:] == [event.id for event in client.events.read(page.token).events]
    assert [1, 3] == sorted(each.count for each in client.events.types())
    assert first == client.events.trace(first).event.id


def test_events_are_followed_without_an_event_loop(client: Client):
    """Each step waits for the next event; the token goes on in another."""
    following = client.events.follow("price.*")
    following.begin()
    seen = []
    recorder = threading.Thread(target=lambda: [client.record("price.changed", number) for number in range(3)])
    recorder.start()
    for event in following:
        seen.append(event.payload)
        if event.payload == 1:
            break
    recorder.join()
    token = following.token
    following.aclose()
    assert [0, 1] == seen
    assert [] == list(following)
    assert 2 == next(client.events.follow(token=token)).payload


def test_events_share_the_fate_of_a_transaction(client: Client, database: Database):
    """`tx.record` and `tx.record_many` are there for threads too."""
    with client.transaction() as tx:
        kept = [tx.record("it.happened", 1), *tx.record_many("it.happened", iter([{}]))]
    with pytest.raises(ZeroDivisionError), client.transaction() as tx:  # noqa: PT012 - it is about the whole block
        tx.record("it.happened", 2)
        _ = 1 / 0
    assert kept == [row[0] for row in database.query("select id from ostinato_events order by sequence_no")]


# --- transactions


def test_a_transaction_commits_statements_and_runs_together(client: Client, database: Database):
    """Or rolls both back."""
    with client.transaction() as tx:
        tx.execute("insert into notes (text) values ($1)", "kept")
        run_id = tx.enqueue("greet", name="Ada")
        assert {"text": "kept"} == tx.fetchrow("select text from notes")
        many = tx.enqueue_many("greet", ({"name": name} for name in "ab"))
    with pytest.raises(ZeroDivisionError), client.transaction() as tx:  # noqa: PT012 - it is about the whole block
        tx.execute("insert into notes (text) values ($1)", "lost")
        tx.enqueue("greet", name="Bob")
        raise ZeroDivisionError
    assert ["kept"] == notes(database)
    assert {run_id, *many} == {run.id for run in client.runs.list()}


def test_a_transaction_is_over_after_its_block(client: Client):
    """It takes nothing more."""
    with client.transaction() as tx:
        tx.fetchval("select 1")
    with pytest.raises(TransactionMisused):
        tx.fetchval("select 1")


def test_writing_past_an_open_transaction_is_refused_on_sqlite(sqlite_database: Database):
    """At once, as with the app: it would wait for the transaction, and that for it."""
    with Client(sqlite_database.url) as client:
        with client.transaction() as tx, pytest.raises(TransactionMisused, match=r"tx\.enqueue"):
            client.enqueue("greet", {}, queue="default")
        with client.transaction() as tx:
            tx.execute("insert into notes (text) values ('x')")
        with pytest.raises(UnknownFunction):
            client.enqueue("greet", {})
    assert ["x"] == notes(sqlite_database)


# --- resources


def test_every_resource_of_the_app_is_there(app: App, client: Client):
    """With every verb, which blocks; also those that nobody has told the client about."""
    resources = [name for name, value in vars(app).items() if type(value).__module__.startswith("ostinato.resources.")]
    assert {"runs", "workers"} <= set(resources)
    assert set(resources) <= set(dir(client))
    for name in resources:
        of_app, of_client = getattr(app, name), getattr(client, name)
        verbs = [verb for verb in dir(of_app) if not verb.startswith("_") and callable(getattr(of_app, verb))]
        assert verbs == dir(of_client)
        assert [] == [verb for verb in verbs if inspect.iscoroutinefunction(getattr(of_client, verb))]
        assert [] == [verb for verb in verbs if _parameters(of_app, verb) != _parameters(of_client, verb)]


def _parameters(resource: object, verb: str) -> list[str]:
    return list(inspect.signature(getattr(resource, verb)).parameters)


def test_a_resource_that_comes_later_is_there_too(app: App, client: Client):
    """It is recognised by where it comes from."""

    class Records:
        __module__ = "ostinato.resources.records"

        async def latest(self, count: int, *, kind: str = "any") -> list[str]:
            return [kind] * count

        async def run(self) -> list[runs.Handle]:
            return [runs.Handle(app.runs, "some id", created=False)]

    app.records = Records()  # type: ignore[attr-defined]
    assert ["new", "new"] == client.records.latest(2, kind="new")
    assert isinstance(client.records.run()[0], Handle)
    assert "records" in dir(client)


def test_what_is_no_resource_is_not_there(client: Client):
    """The app's own methods are for event loops."""
    for name in ("run_worker", "_site", "nonsense"):
        with pytest.raises(AttributeError, match=f"'Client' object has no attribute '{name}'"):
            getattr(client, name)
    with pytest.raises(AttributeError, match="nonsense"):
        client.runs.nonsense()
    with pytest.raises(AttributeError, match="_site"):
        _ = client.runs._site


def test_verbs_have_types(app: App, client: Client):
    """Those of the app, without `await`; a type checker reads this."""
    handle = assert_type(client.enqueue("greet"), Handle)
    assert_type(handle.status(), str)
    assert_type(handle.cancel("why"), bool)
    assert_type(client.runs.get(handle.id), RunView)
    assert_type(client.runs.list(function="greet"), Sequence[RunView])
    assert_type(client.runs.handle(handle.id), Handle)
    assert_type(client.runs.retry(handle.id), Handle)
    assert_type(client.workers.functions(), Sequence[FunctionView])
    with pytest.raises(TypeError):
        client.runs.get()  # type: ignore[call-arg]


# --- inside an event loop


def test_a_blocking_call_inside_an_event_loop_is_refused(client: Client):
    """With what to write instead; nothing is done."""
    handle = client.enqueue("greet", {"name": "Ada"})

    async def careless() -> None:
        with pytest.raises(WouldBlock, match=r"`await app\.enqueue\(\.\.\.\)`"):
            client.enqueue("greet", {"name": "Bob"})
        with pytest.raises(WouldBlock, match=r"`await app\.runs\.get\(\.\.\.\)`"):
            client.runs.get(handle.id)
        with pytest.raises(WouldBlock, match=rf"`await app\.runs\.handle\('{handle.id}'\)\.result\(\.\.\.\)`"):
            handle.result()
        with pytest.raises(WouldBlock, match=r"`async with app\.transaction\(\) as tx:`"), client.transaction():
            pass
        with pytest.raises(WouldBlock, match=r"`async with app:`"), client:
            pass
        assert "pending" == await asyncio.to_thread(handle.status)
        client.close()

    asyncio.run(careless())
    assert [handle.id] == [run.id for run in client.runs.list()]


# --- conn=


@pytest.mark.parametrize("inside_a_loop", [False, True])
def test_a_sync_connection_is_used_inline(app: App, database: Database, inside_a_loop: bool):
    """On the calling thread, in the caller's transaction, without any event loop of ours; also inside one."""
    client = Client(app)

    def enqueue(connection: Any) -> list[Handle]:
        one = client.enqueue("greet", {"name": "Ada"}, key="ada", conn=connection)
        again = client.enqueue(app_function(app), key="ada", conn=connection)
        assert (one.id, True, False) == (again.id, one.created, again.created)
        return [one, *client.enqueue_many("greet", [{"name": "a"}, {"name": "b"}], conn=connection)]

    async def enqueue_in_a_loop(connection: Any) -> list[Handle]:
        return enqueue(connection)

    for ending in ("rollback", "commit"):
        with own_connection(database) as connection:
            handles = asyncio.run(enqueue_in_a_loop(connection)) if inside_a_loop else enqueue(connection)
            getattr(connection, ending)()
        assert [] == loop_threads()
        found = [row[0] for row in database.query("select id from ostinato_runs order by id")]
        assert ([] if ending == "rollback" else [handle.id for handle in handles]) == found
    with client:
        assert ["pending"] * 3 == [handle.status() for handle in handles]


def app_function(app: App) -> Any:
    """The declared function itself."""
    return Enqueuer(app.registry.find("greet"), app.runs)


def test_a_sync_connection_commits_with_its_rows(app: App, database: Database):
    """Both or neither."""
    client = Client(app)
    with own_connection(database) as connection:
        connection.execute("insert into notes (text) values ('mine')")
        client.enqueue("greet", conn=connection)
        connection.rollback()
    assert [] == notes(database)
    assert [(0,)] == database.query("select count(*) from ostinato_runs")


def test_bad_input_is_refused_inline_too(app: App, database: Database):
    """By the same door; what the app does not know is refused by the database."""
    client = Client(app)
    with own_connection(database) as connection:
        with pytest.raises(InvalidInput):
            client.enqueue("greet", {"name": 3}, conn=connection)
        with pytest.raises(UnknownFunction, match="did you mean 'greet'"):
            client.enqueue("gret", conn=connection)
        assert [] == client.enqueue_many("greet", [], conn=connection)


def test_an_async_connection_is_refused(postgres_database: Database):
    """Only its own event loop may use it."""
    client = Client(postgres_database.url)

    async def careless() -> None:
        connection = await asyncpg.connect(postgres_database.url)
        async with connection.transaction():
            with pytest.raises(ConfigError, match=r"async connection.*`await app\.enqueue\(\.\.\., conn=conn\)`"):
                client.enqueue("greet", conn=connection)
            with pytest.raises(ConfigError, match=r"await app\.enqueue_many"):
                client.enqueue_many("greet", [{}], conn=connection)
        await connection.close()

    asyncio.run(careless())


# --- threads


def test_any_number_of_threads_share_one_loop(client: Client, database: Database):
    """And its connections."""
    threads = 32

    def enqueue(number: int) -> str:
        handle = client.enqueue("greet", {"name": str(number)})
        assert str(number) == client.runs.get(handle.id).input["name"]
        return handle.id

    with ThreadPoolExecutor(threads) as pool:
        ids = list(pool.map(enqueue, range(threads * 4)))
    assert 1 == len(loop_threads())
    assert {run.id for run in client.runs.list(limit=1000)} == set(ids)
    if database.dialect == "postgresql":
        assert 10 >= connections(database)


def test_threads_may_be_the_first_together(app: App, database: Database):
    """Who opens the app is decided on the loop."""
    client = Client(app)
    barrier = threading.Barrier(16)

    def count(_: int) -> Sequence[Any]:
        barrier.wait()
        return client.runs.counts()

    with ThreadPoolExecutor(16) as pool:
        assert [[]] * 16 == list(pool.map(count, range(16)))
    client.close()
    assert [] == loop_threads()
    if database.dialect == "postgresql":
        until(lambda: connections(database) == 0)


def test_a_handler_in_a_thread_may_use_the_client(app: App, client: Client):
    """What it enqueues says by which run; it may even wait for the result, if there is a slot for that."""

    @app.function
    def outer(run: Run) -> list[str]:
        handle = client.enqueue("greet", {"name": "Ada"})
        with client.transaction() as tx:
            second = tx.enqueue("greet")
        return [handle.id, second, handle.result(timeout=10)]

    with working(app):
        handle = client.enqueue("outer")
        first, second, result = handle.result(timeout=15)
    assert "hello Ada" == result
    assert {f"run:{handle.id}"} == {client.runs.get(run_id).invoked_by for run_id in (first, second)}


def test_a_handler_cannot_write_past_its_own_transaction_on_sqlite(sqlite_database: Database):
    """It would wait for the transaction that waits for it."""
    app = App(sqlite_database.url)

    @app.function
    async def greet(name: str) -> None: ...

    @app.function(retry=Retry.none())
    def outer(run: BlockingRun) -> str:
        with run.transaction():
            return client.enqueue("greet", {"name": "Ada"}).id

    with Client(app) as client, working(app), pytest.raises(RunFailed, match=r"use tx\.enqueue"):
        client.enqueue(outer).result(timeout=10)


def test_an_interrupted_wait_is_called_off(app: App, client: Client):
    """Ctrl-C in the middle of a wait; the client goes on."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # one who runs us in the background may have it ignored
    handle = client.enqueue("greet")
    main = threading.current_thread()

    def interrupt() -> None:
        until(lambda: waits(main))
        signal.pthread_kill(main.ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        handle.result()
    thread.join()
    assert "pending" == handle.status()
    site = app._site
    until(lambda: all(not here.results._waiting for here in site._places.values()))


def test_an_interrupted_transaction_is_rolled_back(client: Client, database: Database):
    """Whatever is raised in its block."""
    with pytest.raises(KeyboardInterrupt), client.transaction() as tx:  # noqa: PT012 - it is about the whole block
        tx.execute("insert into notes (text) values ('lost')")
        raise KeyboardInterrupt
    assert [] == notes(database)
    with client.transaction() as tx:
        assert 0 == tx.fetchval("select count(*) from notes")


# --- opening and closing


def test_connections_are_opened_at_the_first_call_and_reused(postgres_database: Database):
    """And closed by `close`, with the thread; the next call opens them again."""
    client = Client(postgres_database.url)
    assert (0, []) == (connections(postgres_database), loop_threads())
    for _ in range(3):
        client.runs.counts()
    assert (1, 1) == (connections(postgres_database), len(loop_threads()))
    client.close()
    client.close()
    assert (0, []) == (connections(postgres_database), loop_threads())
    assert [] == client.runs.counts()
    client.close()


def test_clients_do_not_close_each_other(app: App):
    """Also two of the same app; the loop ends with the last."""
    with Client(app) as first:
        with Client(app) as second:
            second.enqueue("greet")
        assert 1 == len(loop_threads())
        assert 1 == len(first.runs.list())
    assert [] == loop_threads()


def test_a_client_that_nobody_has_any_more_is_closed(app: App, database: Database):
    """As a file would be, without a word."""
    client = Client(app)
    client.enqueue("greet")
    handle = client.enqueue("greet")
    del client
    gc.collect()
    assert "pending" == handle.status()
    del handle
    gc.collect()
    until(lambda: loop_threads() == [])
    if database.dialect == "postgresql":
        until(lambda: connections(database) == 0)


def test_calls_under_way_outlive_close(app: App):
    """The loop stays for them."""
    client = Client(app)
    handle = client.enqueue("greet", {"name": "Ada"})
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(handle.result(timeout=10)))
    thread.start()
    until(lambda: waits(thread))
    client.close()
    with working(app):
        thread.join()
    assert ["hello Ada"] == results
    assert [] == loop_threads()


def test_a_database_that_cannot_be_reached_is_an_error_each_time():
    """And nothing is left behind."""
    client = Client("postgresql://nobody@127.0.0.1:1/none")
    for _ in range(2):
        with pytest.raises(StoreError):
            client.enqueue("greet")
    with pytest.raises(StoreError), client:
        pass
    assert [] == loop_threads()


def test_failed_runs_raise(app: App, client: Client):
    """As the app's handles do."""

    @app.function(retry=Retry.none())
    async def never() -> None:
        raise ValueError("no")

    with working(app), pytest.raises(RunFailed, match="ValueError"):
        client.enqueue(never).result(timeout=10)
