"""Who ends a server when its owner is gone."""

from __future__ import annotations

import subprocess
from pathlib import Path


class Watchdog:
    """A shell that reads our pipe until it closes, then ends the server and removes its folder.

    The pipe closes when we say so or when this process is gone. (Linux's parent-death signal would not do: it
    is tied to the thread that started the server, and leaves the folder behind.)
    """

    SCRIPT = """
        while read -r line; do server=$line; done
        if [ -n "$server" ]; then
            kill -QUIT "$server" && kill -CONT "$server"
            for i in 1 2 3 4 5 6 7 8 9 9 9 9; do
                [ -e "$1/data/postmaster.pid" ] && kill -0 "$server" || { server=; break; }
                sleep 0.$i
            done
            [ -z "$server" ] || kill -KILL "$server"
        fi
        for i in 1 2 3 4 5 6 7 8 9; do rm -rf "$1" && break; sleep 0.$i; done
    """

    def __init__(self, folder: Path) -> None:
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", self.SCRIPT, "ostinato-watchdog", folder],
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def guard(self, pid: int | None) -> None:
        """Names the process to end, or that there is none."""
        assert self._shell.stdin is not None
        self._shell.stdin.write(f"{pid or ''}\n".encode())
        self._shell.stdin.flush()

    def dismiss(self) -> None:
        """Lets it remove the folder, and waits for that."""
        self._shell.communicate()
