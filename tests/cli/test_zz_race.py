import time, pytest
from tests.cli.conftest import *
from tests.cli.processes import worker
@pytest.mark.parametrize("n", range(30))
def test_race(postgres_database, n):
    import asyncio
    from tests.cli import conftest
    asyncio.run(conftest._introduce(postgres_database))
    cli = Cli(postgres_database)
    with worker(postgres_database, "--log-level", "debug") as w:
        t = time.time()
        r = cli("enqueue", "refuse", "--wait=8")
        if time.time() - t > 3:
            print("SLOW", time.time()-t, r.output)
            print(w.output)
            print(cli.reads("runs", "list"))
            assert 0
