"""Programs that fork, one function each: `python -m tests.sync.forking preload`.

The database comes from the environment. A program ends with 0 when everything in it went well, and says nothing.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

from ostinato import App, OstinatoError, Run
from ostinato.errors import TransactionMisused
from ostinato.sync import Client

LONGEST = 30

app = App(shutdown_grace="1s")
client = Client(app)


@app.function
async def greet(name: str) -> str:
    return f"hello {name}"


@app.function
def spawn(run: Run) -> str:
    """A plain function that has a process of its own do something, as machine learning likes to."""
    process = multiprocessing.get_context("fork").Process(target=client.enqueue, args=("greet", {"name": "grandchild"}))
    process.start()
    process.join()
    return str(process.exitcode)


# --- processes


def child(work: Callable[[], object]) -> int:
    """A forked child that does something and ends as a program does: by leaving, with all its destructors."""
    if pid := os.fork():
        return pid
    signal.alarm(LONGEST)
    work()
    sys.exit()


def wait_for(*pids: int) -> None:
    for pid in pids:
        assert os.waitpid(pid, 0)[1] == 0


def both_colours(name: str) -> None:
    """The client, and the app in an event loop of its own."""
    assert client.enqueue("greet", {"name": name}).status() == "pending"
    asyncio.run(app_enqueues(name))


async def app_enqueues(name: str) -> None:
    async with app:
        assert await (await greet.enqueue(name=name)).status() == "pending"
    await greet.enqueue(name=name)


async def app_declares() -> None:
    """So that the database knows the functions, and others may enqueue them by name."""
    async with app.worker():
        pass


# --- programs


def preload() -> None:
    """As gunicorn does it: the app is used in the parent, then in children, and in the parent again."""
    both_colours("parent")
    children = [child(lambda: both_colours("child")) for _ in range(3)]
    both_colours("parent")
    wait_for(*children)
    both_colours("parent")


def prefork() -> None:
    """As Celery does it: children come and go, and the parent enqueues for each."""
    for _ in range(10):
        client.enqueue("greet", {"name": "parent"})
        wait_for(child(lambda: both_colours("child")))


def idle_children() -> None:
    """Children that let go of everything and never use it: the parent's connections are still good."""
    asyncio.run(app_declares())
    things = [Client(App())]
    things[0].enqueue("greet", {"name": "parent"}, queue="default")

    def forget() -> None:
        things.clear()
        gc.collect()

    wait_for(*[child(forget) for _ in range(3)])
    things[0].enqueue("greet", {"name": "parent"}, queue="default")


def children_of_a_loop() -> None:
    """A process that is started inside an event loop, with the app open in it."""

    async def main() -> None:
        async with app:
            await greet.enqueue(name="parent")
            waiting = asyncio.create_task((await greet.enqueue(name="parent")).result())
            for _ in range(3):
                process = multiprocessing.get_context("fork").Process(target=both_colours, args=("child",))
                process.start()
                await asyncio.to_thread(process.join)
                assert process.exitcode == 0
                await greet.enqueue(name="parent")
            waiting.cancel()

    asyncio.run(main())


def loop_at_rest() -> None:
    """An event loop that does not run just now, with the app open in it, as frameworks for sync code keep one."""
    asyncio.run(app_declares())
    runner, things = asyncio.Runner(), [app, App()]
    for each in things:
        runner.run(each.__aenter__())
        runner.run(each.enqueue("greet", {"name": "parent"}))

    def forget() -> None:
        things.clear()
        gc.collect()
        both_colours("child")

    wait_for(*[child(forget) for _ in range(2)])
    for each in things:
        runner.run(each.enqueue("greet", {"name": "parent"}))
        runner.run(each.__aexit__(None, None, None))
    runner.close()


def forked_pool() -> None:
    _pool("fork")


def spawned_pool() -> None:
    _pool("spawn")


def _pool(method: str) -> None:
    both_colours("parent")
    with multiprocessing.get_context(method).Pool(2) as pool:
        pool.map(both_colours, ["child"] * 6)
        pool.close()
        pool.join()
    both_colours("parent")


def busy_threads() -> None:
    """Forks while other threads are in the middle of calls; what was acknowledged is printed."""
    over, failed = threading.Event(), list[BaseException]()

    def enqueue() -> None:
        try:
            while not over.is_set():
                acknowledge("thread")
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=enqueue) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        wait_for(child(lambda: acknowledge("child")))
    over.set()
    for thread in threads:
        thread.join()
    assert not failed, failed


def acknowledge(name: str) -> None:
    os.write(1, f"{client.enqueue('greet', {'name': name}).id}\n".encode())


def inside_a_transaction() -> None:
    """A child cannot use the parent's open transaction, nor end it."""

    try:
        with client.transaction() as tx:
            tx.enqueue("greet", name="parent")
            if pid := os.fork():
                wait_for(pid)
            tx.enqueue("greet", name="parent")
    except TransactionMisused:
        assert pid == 0
        client.close()
        sys.exit()
    assert pid


def handlers_that_fork() -> None:
    """A worker whose handlers start processes that enqueue."""

    async def main() -> None:
        async with app.worker():
            handles = [await spawn.enqueue() for _ in range(3)]
            assert ["0"] * 3 == [await handle.result(timeout=20) for handle in handles]

    asyncio.run(main())


def threads_at_the_end() -> None:
    """The program ends with everything open, and a daemon thread in the middle of calls."""
    client.enqueue("greet", {"name": "parent"})
    started = threading.Event()

    def enqueue() -> None:
        with suppress(OstinatoError):
            while True:
                client.runs.counts()
                started.set()

    threading.Thread(target=enqueue, daemon=True).start()
    started.wait()


if __name__ == "__main__":
    signal.alarm(LONGEST)
    globals()[sys.argv[1]]()
