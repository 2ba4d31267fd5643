"""Two real PostgreSQL servers, one of which replicates the other: fail over, cut the line between them, come back."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping

from tests.store.postgres_server import NoServer, Server

SETTINGS = {
    "wal_log_hints": "on",
    "wal_keep_size": "256MB",
    "wal_retrieve_retry_interval": "100ms",
    "wal_sender_timeout": "0",
    "wal_receiver_timeout": "0",
}
"""What pg_rewind needs, short waits, and no limits: a standby that a test freezes stays connected."""


class Cluster:
    """A primary and its standby, which is ``synchronous`` or not."""

    def __init__(self, settings: Mapping[str, object] | None = None, *, synchronous: bool = True) -> None:
        self.synchronous = synchronous
        self.primary = Server({**SETTINGS, **(settings or {})})
        try:
            self.standby = Server(standby_of=self.primary)
        except BaseException:
            self.primary.close()
            raise
        if synchronous:
            for server in (self.primary, self.standby):  # each will be the primary at times
                _configure(server, "synchronous_standby_names", "*")
        self.until_replicated()

    def url(self, **more: str) -> str:
        """The address, with the standby first: a client has to find the server that takes writes."""
        folders = f"{self.standby.folder},{self.primary.folder}"
        return self.primary.url(**{"host": folders, **more})

    # -- faults -----------------------------------------------------------------------------------------------------

    def fail_over(self) -> None:
        """Kill the primary as ``kill -9`` does, and promote the standby."""
        self.primary.kill()
        self.primary, self.standby = self.standby, self.primary
        self.primary.promote()

    def come_back(self) -> None:
        """Make the killed server a standby of the new primary. Return when it replicates."""
        self.standby.follow(self.primary)
        self.until_replicated()

    def cut(self) -> None:
        """Cut the line between the two."""
        _configure(self.standby, "primary_conninfo", "")
        while self.standby.sql("SELECT count(*) FROM pg_stat_wal_receiver").strip() != "0":
            time.sleep(0.01)

    def mend(self) -> None:
        _configure(self.standby, "primary_conninfo", f"host={self.primary.folder} user=postgres")
        self.until_replicated()

    def freeze(self) -> int:
        """Stop the process of the standby that receives, with its connection open. Return its number."""
        receiver = int(self.standby.sql("SELECT pid FROM pg_stat_wal_receiver"))
        os.kill(receiver, signal.SIGSTOP)
        return receiver

    def until_replicated(self) -> None:
        """Wait until the standby is connected, and synchronous if it should be."""
        expected = "sync" if self.synchronous else "async"
        query = "SELECT sync_state FROM pg_stat_replication WHERE state = 'streaming'"
        while self.primary.sql(query).strip() != expected:
            if not self.standby.running:
                raise NoServer(f"the standby does not run: {self.standby.log()[-2000:]}")
            time.sleep(0.01)

    def close(self) -> None:
        self.standby.close()
        self.primary.close()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _configure(server: Server, name: str, value: str) -> None:
    server.sql(f"ALTER SYSTEM SET {name} = '{value}'")
    server.sql("SELECT pg_reload_conf()")
