"""PgBouncer in transaction mode, between a test and its PostgreSQL server. ``make pgbouncer`` installs it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import tempfile
import time
from pathlib import Path

import pytest

from tests.store.postgres_server import NoServer, RunningServer, kept, ordinary_user, reachable_folder

PROGRAM = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")
needs_pgbouncer = pytest.mark.skipif(PROGRAM is None, reason="pgbouncer is not installed (make pgbouncer)")

CONFIGURATION = """\
[databases]
* = host={server} user=postgres
[pgbouncer]
listen_addr =
unix_socket_dir = {folder}
listen_port = 5432
auth_type = any
pool_mode = {mode}
default_pool_size = {sessions}
max_client_conn = 500
server_idle_timeout = 0
{more}
"""


class PgBouncer(RunningServer):
    """``sessions`` of the server are shared by all clients, each for a transaction at a time."""

    def __init__(self, server: RunningServer, *, mode: str = "transaction", sessions: int = 3, more: str = "") -> None:
        user = ordinary_user()
        folder = Path(tempfile.mkdtemp(prefix="ast-pb-", dir=reachable_folder(user)))
        super().__init__(folder, server.binaries, server._database)
        file = folder / "pgbouncer.ini"
        file.write_text(
            CONFIGURATION.format(server=server.folder, folder=folder, mode=mode, sessions=sessions, more=more), "utf-8"
        )
        for path in (folder, file):
            if user is not None:
                os.chown(path, *user)
        assert PROGRAM is not None
        self._keeper = kept(folder, user, PROGRAM, "-q", str(file), stop=signal.SIGTERM)
        assert self._keeper.stdin is not None
        self._keeper.stdin.write("start\n")
        self._keeper.stdin.flush()
        while not _accepts(folder / ".s.PGSQL.5432"):
            log = (folder / "log").read_text("utf-8") if (folder / "log").exists() else ""
            if "FATAL" in log:
                self.close()
                raise NoServer(f"PgBouncer did not start: {log[-2000:]}")
            time.sleep(0.01)

    def follow(self, server: RunningServer) -> None:
        """Send all clients to another server, without their noticing. Return when they get there."""
        file = self.folder / "pgbouncer.ini"
        file.write_text(re.sub(r"host=\S+", f"host={server.folder}", file.read_text("utf-8")), "utf-8")
        assert self._keeper.stdin is not None
        self._keeper.stdin.write(f"signal {int(signal.SIGHUP)}\n")
        self._keeper.stdin.flush()
        expected, shown = server.sql("SHOW data_directory"), ""
        while shown != expected:
            with contextlib.suppress(NoServer):
                shown = self.sql("SHOW data_directory")

    def close(self) -> None:
        assert self._keeper.stdin is not None
        assert self._keeper.stdout is not None
        self._keeper.stdin.close()
        self._keeper.wait()
        self._keeper.stdout.close()

    def __enter__(self) -> PgBouncer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _accepts(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(path))
        except OSError:
            return False
    return True
