"""The libraries that users would pick instead: where their environments are, and how they are built and started.

Each peer has an environment of its own (`bench/.venvs/<name>` or `bench/.node/<name>`), made by the Makefile when a
session first needs it, with the versions pinned in `bench/peers/<name>/`.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

BENCH = Path(__file__).parents[1]
BUILD_SECONDS = 900.0


class PeerUnavailable(Exception):
    """A peer that cannot be measured here, and why."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A library that is measured beside Ostinato.

    The shares say how much of a session's bulk, drain and workflows a slow one is given; without any of the workflows,
    it has none. One that is not measured as a queue takes part in the workflows alone. The reasons are printed where
    Ostinato turns out to be behind it, in `single`, `bulk`, `drain`, `workflows`, `memory` or `pickup`. They are
    differences read in its code, not causes that were measured.
    """

    name: str
    label: str
    package: str
    batch: int
    bulk_share: float = 1.0
    drain_share: float = 1.0
    workflow_share: float = 0.0
    queues: bool = True
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """Where its versions are pinned."""
        return BENCH / "peers" / self.name

    @property
    def version(self) -> str:
        raise NotImplementedError

    @property
    def command(self) -> list[str]:
        """What starts its child program, before the task."""
        raise NotImplementedError

    @property
    def variables(self) -> dict[str, str]:
        return {}

    def prepare(self) -> str:
        """Build its environment if it is not there, and say what is measured: version and interpreter."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class PythonPeer(Peer):
    """One from PyPI, in a virtual environment; it runs the harness's own child program."""

    python: tuple[int, int] = (3, 11)

    @property
    def version(self) -> str:
        pinned = re.search(rf"^{re.escape(self.package)}(?:\[\w+\])?==(\S+)", self._requirements(), re.MULTILINE)
        assert pinned, f"{self.package} is not pinned in {self.folder}/requirements.txt"
        return pinned[1]

    @property
    def command(self) -> list[str]:
        return [str(self._interpreter), "-m", "bench.child"]

    def prepare(self) -> str:
        target = f".venvs/{self.name}/.ready"
        if not _is_made(target):
            _make(target, f"PYTHON={self._base()}")
        return f"{self.version}, {_output(self._interpreter, '--version')}"

    @property
    def _interpreter(self) -> Path:
        return BENCH / ".venvs" / self.name / "bin" / "python"

    def _requirements(self) -> str:
        return (self.folder / "requirements.txt").read_text()

    def _base(self) -> str:
        """The interpreter to build with: ours where it is new enough, so that most are measured on the same."""
        found = next((path for path in _interpreters() if _python_version(path) >= self.python), None)
        if found is None:
            wanted = ".".join(map(str, self.python))
            raise PeerUnavailable(f"needs Python {wanted}, and none was found (PATH, pyenv)")
        return found


@dataclass(frozen=True, slots=True)
class NodePeer(Peer):
    """One from npm, with a child program of its own in `bench/contenders`, and the Node that it asks for beside it."""

    program: str = ""

    @property
    def version(self) -> str:
        return str(json.loads((self.folder / "package.json").read_text())["dependencies"][self.package])

    @property
    def command(self) -> list[str]:
        return [str(self._node), str(BENCH / "contenders" / self.program)]

    @property
    def variables(self) -> dict[str, str]:
        return {"BENCH_MODULES": str(self._modules), "NODE_ENV": "production", "NO_LOG_SUCCESS": "1"}

    def prepare(self) -> str:
        if shutil.which("npm") is None:
            raise PeerUnavailable("needs npm, which is not installed")
        _make(f".node/{self.name}/.ready")
        return f"{self.version}, Node {_output(self._node, '--version')}"

    @property
    def _modules(self) -> Path:
        return BENCH / ".node" / self.name / "node_modules"

    @property
    def _node(self) -> Path:
        return self._modules / "node" / "bin" / "node"


def _is_made(target: str) -> bool:
    return _run_make("--question", target).returncode == 0


def _make(target: str, *variables: str) -> None:
    try:
        built = _run_make(target, *variables)
    except subprocess.TimeoutExpired:
        raise PeerUnavailable(f"its environment was not built within {BUILD_SECONDS:.0f} s") from None
    if built.returncode:
        raise PeerUnavailable(f"its environment cannot be built: {complaint(built.stdout + built.stderr)}")


def _run_make(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Without what a make that started this process wants its own children to know."""
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL")}
    command = ("make", "--no-print-directory", "-C", BENCH, *arguments)
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=BUILD_SECONDS, env=environment)


def complaint(output: str) -> str:
    """The line that says most: the last one with an error in it, else the last."""
    stripped = (line.strip(" |+-") for line in output.splitlines() if not line.startswith("make"))
    lines = [line for line in stripped if line]
    telling = [line for line in lines if "error" in line.lower()]
    return (telling or lines or ["no output"])[-1][:300]


def _interpreters() -> Iterator[str]:
    yield sys.executable
    yield from (f"python3.{minor}" for minor in (12, 13, 14))
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    yield from (str(path) for path in sorted(versions.glob("3.*/bin/python")))


def _python_version(path: str) -> tuple[int, ...]:
    """Ask it: a name on the PATH may be a stand-in that starts nothing."""
    answer = _output(path, "-c", "import sys; print(*sys.version_info[:2])")
    return tuple(map(int, answer.split())) if re.fullmatch(r"\d+ \d+", answer) else ()


def _output(*command: str | Path) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30).stdout.strip()
    except FileNotFoundError:
        return ""


NOTIFIES_ALWAYS = (
    "It notifies at every insert. Ostinato's worker says when it goes to sleep, and inserts notify only then: "
    "a little more to do per idle pick-up, and nothing for producers to queue up for while workers are busy."
)
ON_UVLOOP = "It runs on uvloop, Ostinato on asyncio's own loop."

PEERS: tuple[Peer, ...] = (
    PythonPeer(
        "pgqueuer", "PgQueuer", "pgqueuer", batch=1_000,
        reasons={
            "single": f"A single enqueue is one round trip and one flush to the disk, and little else. {ON_UVLOOP}",
            "pickup": f"{NOTIFIES_ALWAYS} {ON_UVLOOP}",
        },
    ),
    PythonPeer(
        "procrastinate", "Procrastinate", "procrastinate", batch=1_000, bulk_share=0.2, drain_share=0.1,
        reasons={"pickup": NOTIFIES_ALWAYS},
    ),
    PythonPeer("dbos", "DBOS", "dbos", batch=1_000, bulk_share=0.02, drain_share=0.1, workflow_share=0.05),
    PythonPeer(
        "absurd", "Absurd", "absurd-sdk", batch=1_000, workflow_share=0.1, queues=False,
        reasons={"memory": "It runs 20 workflows at a time here, and Ostinato 500."},
    ),
    PythonPeer("awa", "awa", "awa-pg", batch=10_000),
    PythonPeer(
        "oban", "Oban", "oban", batch=10_000, bulk_share=0.1, drain_share=0.25, python=(3, 12),
        reasons={"pickup": f"{NOTIFIES_ALWAYS} {ON_UVLOOP}"},
    ),
    NodePeer(
        "graphile-worker", "graphile-worker", "graphile-worker", batch=10_000, program="graphile_worker.mjs",
        reasons={
            "drain": (
                "It deletes a job when it is done: no result is written and no history kept. A claim is a lock for "
                "four hours, with no lease to renew and no fence to check at the completion."
            ),
            "pickup": NOTIFIES_ALWAYS,
        },
    ),
)  # fmt: skip
BY_NAME = {peer.name: peer for peer in PEERS}
WORKFLOWS = "-workflows"


def peer_of(contender: str) -> Peer | None:
    """The peer in whose environment a contender runs: it has the peer's name, or that and what it does."""
    return BY_NAME.get(contender.removesuffix(WORKFLOWS))
