"""Temporary stand-in for ostinato.testing.postgres.PostgresServer."""
import os, pwd, shutil, socket, subprocess, tempfile
class PostgresServer:
    def __init__(self, *, fsync: bool = False, settings: dict[str, str] | None = None) -> None:
        self.settings = settings or {}
    def __enter__(self):
        self.base = tempfile.mkdtemp(prefix="bench-pg-", dir="/var/tmp"); os.chmod(self.base, 0o755); shutil.chown(self.base, "postgres", "postgres")
        with socket.socket() as s: s.bind(("127.0.0.1", 0)); self.port = s.getsockname()[1]
        b = "/usr/lib/postgresql/15/bin"; opts = " ".join(f"-c {k}={v}" for k, v in self.settings.items())
        self.run(f"{b}/initdb -D {self.base}/d -A trust -U postgres"); self.run(f"{b}/pg_ctl -D {self.base}/d -l {self.base}/log -w -o '-p {self.port} -k {self.base} {opts}' start")
        return self
    def run(self, c): subprocess.run(["su", "postgres", "-c", c], check=True, stdout=subprocess.DEVNULL)
    def __exit__(self, *a):
        self.run(f"/usr/lib/postgresql/15/bin/pg_ctl -D {self.base}/d -m fast stop"); shutil.rmtree(self.base)
    def dsn(self, database="postgres"): return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"
