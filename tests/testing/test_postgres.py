"""The servers that all other tests lean on: real ones, started, crashed and removed."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import asyncpg
import pytest

from ostinato.errors import ConfigError, StoreUnavailable
from ostinato.testing.postgres import PostgresServer, PostgresServers, Server, find_binaries, places, rights
from ostinato.testing.postgres import server as starting
from ostinato.testing.postgres.binaries import major_version

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has to become somebody else")
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    """A server that may be stopped and killed."""
    with PostgresServer() as server:
        yield server


@pytest.fixture
def public_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of the test's own that stands for the system's temporary one."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        monkeypatch.setattr(places, "temporary_root", lambda: folder)
        yield folder


@pytest.fixture(scope="module")
def private_installation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packaged binaries, where nobody but us can reach them."""
    site = tmp_path_factory.mktemp("private")
    site.chmod(0o700)
    installation = next(bindir.parent for bindir in find_binaries().values() if "pginstall" in str(bindir))
    for folder in rights.folders(installation):
        shutil.copytree(folder, site / folder.relative_to(installation.parents[1]))
    return site / installation.relative_to(installation.parents[1])


async def ask(url: str, statement: str) -> object:
    """The one value that a statement returns, over a connection of its own."""
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


def wait_until(condition: Callable[[], bool], *, seconds: float = 15) -> None:
    """Returns as soon as the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def runs(pid: int) -> bool:
    """Whether a process is there, and more than a zombie that nobody has waited for."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not (status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z")


class TestFinding:
    def test_the_packaged_versions_are_found(self):
        """The development environment always has PostgreSQL 16 and 18."""
        assert {16, 18} <= find_binaries().keys()

    def test_a_named_installation_comes_first(self, monkeypatch, private_installation):
        """OSTINATO_POSTGRES_BINARIES may name an installation or its bin folder, and wins."""
        version = major_version(private_installation / "bin")
        for named in (private_installation, private_installation / "bin"):
            monkeypatch.setenv("OSTINATO_POSTGRES_BINARIES", f"/nowhere{os.pathsep}{named}")
            assert private_installation / "bin" == find_binaries()[version]

    def test_a_missing_version_is_refused_with_the_remedy(self):
        """The error names the version and what to do."""
        with pytest.raises(ConfigError, match=r"PostgreSQL 99 .*OSTINATO_POSTGRES_BINARIES"):
            PostgresServer(99)


CHANGES = (
    "alter table tracks add column year integer",
    "create function one() returns integer language sql as 'select 1'",
    "grant select on tracks to public",
    "update tracks set title = 'Bolero'",
    "truncate plays",
    "insert into plays select n::text from generate_series(1, 200000) n",
)


class TestDatabases:
    async def test_every_version_takes_connections(self, postgres: Server, postgres_url: str):
        """The URL works, and leads to the version that was asked for."""
        number = await ask(postgres_url, "show server_version_num")

        assert postgres.version == int(str(number)) // 10_000

    async def test_a_database_is_a_copy_of_its_template(self, postgres: Server):
        """What the template holds, the copy holds."""
        with postgres.temporary_database() as template:
            await ask(template, "create table tracks as select 'Ostinato' as title")
            with postgres.temporary_database(template=template.rpartition("/")[2]) as copy:
                assert await ask(copy, "select title from tracks") == "Ostinato"

    async def test_a_copy_is_used_again_as_it_was(self, postgres: Server):
        """Without the rows that were written, with those of the template, and counting from the start; not even one
        who forgot to leave is there any more."""
        with postgres.temporary_database() as template:
            await ask(template, "create table tracks as select 'Ostinato' as title")
            await ask(template, "create table plays (id bigint generated always as identity, title text)")
            name = template.rpartition("/")[2]
            with postgres.temporary_database(name) as first:
                forgotten = await asyncpg.connect(first)
                await forgotten.execute("insert into plays (title) select title from tracks")
            with postgres.temporary_database(name) as second:
                assert second == first
                assert await ask(second, "select count(*) from plays") == 0
                assert await ask(second, "select title from tracks") == "Ostinato"
                assert await ask(second, "insert into plays (title) values ('Bolero') returning id") == 1
            forgotten.terminate()
        left = await ask(
            postgres.dsn(), f"select count(*) from pg_database where datname = '{first.rpartition('/')[2]}'"
        )
        assert left == 0

    async def test_a_copy_that_is_not_as_it_was_is_not_used_again(self, postgres: Server):
        """Nor one that has grown large."""
        with postgres.temporary_database() as template:
            await ask(template, "create table tracks as select 'Ostinato' as title")
            await ask(template, "create table plays (title text)")
            name = template.rpartition("/")[2]
            for change in CHANGES:
                with postgres.temporary_database(name) as first:
                    await ask(first, change)
                with postgres.temporary_database(name) as second:
                    assert second != first, change

    async def test_a_database_in_use_can_be_dropped(self, postgres: Server):
        """A test that forgot a connection does not break the next one."""
        forgotten = await asyncpg.connect(postgres.create_database('an "odd" name'))

        postgres.drop_database('an "odd" name')

        left = await ask(postgres.dsn(), "select count(*) from pg_database where datname like '%odd%'")
        assert left == 0
        forgotten.terminate()

    def test_servers_are_shared(self, postgres_server: PostgresServers, postgres: Server):
        """One server per version and process."""
        assert postgres_server(postgres.version) is postgres

    def test_a_given_server_is_used_instead(self, monkeypatch, own_server: PostgresServer):
        """With OSTINATO_TEST_DSN no server is started."""
        monkeypatch.setenv("OSTINATO_TEST_DSN", f"{own_server.dsn()}?application_name=tests")
        servers = PostgresServers()

        assert [own_server.version] == servers.versions
        given = servers(own_server.version)
        assert f"{own_server.dsn('radio')}?application_name=tests" == given.dsn("radio")


class TestLife:
    async def test_it_listens_on_a_unix_socket_too(self, own_server: PostgresServer):
        """For what must not go over TCP."""
        url = f"postgresql://postgres@/postgres?host={own_server.socket_dir}&port={own_server.port}"

        assert await ask(url, "select inet_server_addr() is null")

    @pytest.mark.parametrize("mode", ["fast", "immediate"])
    async def test_a_restart_keeps_data_and_port(self, own_server: PostgresServer, mode):
        """Clients find the same server again, after a crash too."""
        url = own_server.create_database(f"kept_{mode}")
        await ask(url, "create table tracks as select 'Ostinato' as title")
        pid = own_server.pid

        own_server.restart(mode)

        assert pid != own_server.pid
        assert await ask(url, "select title from tracks") == "Ostinato"

    async def test_a_killed_server_leaves_no_process_and_recovers(self, own_server: PostgresServer):
        """Its backends die with it, even in the middle of a statement; what was committed is there again."""
        url = own_server.create_database("killed")
        await ask(url, "create table tracks as select 'Ostinato' as title")
        connection = await asyncpg.connect(url)
        processes = [own_server.pid, connection.get_server_pid()]

        own_server.kill()

        wait_until(lambda: not any(map(runs, processes)))
        with pytest.raises(OSError, match="Connect call failed"):
            await asyncpg.connect(url)
        own_server.start()
        assert await ask(url, "select title from tracks") == "Ostinato"
        connection.terminate()

    async def test_it_outlives_the_thread_that_started_it(self):
        """Servers may be started by a worker thread that ends."""
        with ThreadPoolExecutor(max_workers=1) as thread:
            server = thread.submit(PostgresServer().start).result()

        with server:
            assert await ask(server.dsn(), "select true")

    def test_closing_removes_everything(self):
        """Neither processes nor files stay."""
        with PostgresServer() as server:
            pid, folder = server.pid, server.socket_dir
            assert (folder / "data").exists()

        assert not runs(pid)
        assert not folder.exists()

    async def test_with_fsync_it_is_durable_and_on_disk(self):
        """Crash tests and benchmarks get what production has."""
        with PostgresServer(fsync=True, settings={"work_mem": "8MB"}) as server:
            assert await ask(server.dsn(), "show fsync") == "on"
            assert await ask(server.dsn(), "show full_page_writes") == "on"
            assert await ask(server.dsn(), "show work_mem") == "8MB"
            assert not server.socket_dir.is_relative_to("/dev/shm")

    def test_another_port_is_taken_when_one_is_in_use(self, monkeypatch):
        """Two test processes may pick the same port at the same time."""
        with socket.create_server(("127.0.0.1", 0)) as taken:
            ports = iter([taken.getsockname()[1], free := starting.free_port()])
            monkeypatch.setattr(starting, "free_port", lambda: next(ports))
            with PostgresServer() as server:
                assert free == server.port

    def test_a_failed_start_shows_the_log_and_leaves_nothing(self, public_folder: Path):
        """The reason is in the error."""
        server = PostgresServer(fsync=True, settings={"shared_buffers": "plenty"})

        with pytest.raises(StoreUnavailable, match='invalid value for parameter "shared_buffers"'):
            server.start()

        assert list(public_folder.glob("ostinato-pg-*")) == []

    @on_linux
    def test_it_dies_with_its_owner(self):
        """A test process that is killed leaves neither a server nor its files."""
        owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
        with owner:
            assert owner.stdout is not None
            pid, folder = owner.stdout.readline().split()
            assert runs(int(pid))
            owner.send_signal(signal.SIGKILL)

        wait_until(lambda: not runs(int(pid)))
        wait_until(lambda: not Path(folder).exists())


OWNER = """
import signal
from ostinato.testing.postgres import PostgresServer
server = PostgresServer().start()
print(server.pid, server.socket_dir, flush=True)
signal.pause()
"""


class TestRights:
    @on_linux
    def test_no_process_of_it_is_roots(self, own_server: PostgresServer):
        """Root's servers belong to somebody else, all others to who started them."""
        owner = Path(f"/proc/{own_server.pid}").stat()

        if os.geteuid() == 0:
            assert owner.st_uid != 0
            assert owner.st_gid != 0
        else:
            assert owner.st_uid == os.geteuid()

    @as_root
    async def test_root_may_keep_the_binaries_to_itself(
        self, monkeypatch, public_folder: Path, private_installation: Path
    ):
        """They are copied to where the server's account can reach them."""
        monkeypatch.setenv("OSTINATO_POSTGRES_BINARIES", str(private_installation))

        with PostgresServer(major_version(private_installation / "bin")) as server:
            assert await ask(server.dsn(), "select true")
            assert server._binaries.is_relative_to(public_folder)

    def test_one_copy_serves_all_who_ask_at_once(self, public_folder: Path, private_installation: Path):
        """Test processes start together."""
        with ThreadPoolExecutor(max_workers=4) as threads:
            copies = set(threads.map(rights.public_copy, [private_installation] * 4))

        assert len(copies) == 1
        assert copies.pop().is_relative_to(public_folder)

    def test_a_copy_with_missing_files_is_made_again(self, public_folder: Path, private_installation: Path):
        """Systems tidy up their temporary folders file by file."""
        copy = rights.public_copy(private_installation)
        (copy / "bin" / "initdb").unlink()

        assert rights.public_copy(private_installation) == copy
        assert (copy / "bin" / "initdb").exists()

    def test_a_folder_of_somebody_else_is_not_trusted(self, public_folder: Path, private_installation: Path):
        """Others may write to the system's temporary folder, too."""
        planted = public_folder / f"ostinato-postgres-{os.geteuid()}"
        planted.mkdir()
        planted.chmod(0o777)

        with pytest.raises(ConfigError, match="written by somebody else"):
            rights.public_copy(private_installation)
