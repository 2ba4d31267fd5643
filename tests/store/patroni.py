"""Two PostgreSQL servers that Patroni runs, with etcd: nobody promotes a server by hand.

``make failover-patroni`` installs and uses them. All listen on this machine only.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from tests.store.postgres_server import kept, ordinary_user, reachable_folder, usable_binaries

PROGRAMS = tuple(shutil.which(name) for name in ("patroni", "etcd"))

_NODE = """\
scope: fleet
name: {name}
restapi: {{listen: "127.0.0.1:{api}", connect_address: "127.0.0.1:{api}"}}
etcd3: {{hosts: "127.0.0.1:{etcd}"}}
bootstrap:
  dcs:
    ttl: 20
    loop_wait: 2
    retry_timeout: 3
    synchronous_mode: true
    postgresql:
      use_pg_rewind: true
      parameters: {{wal_log_hints: "on", wal_keep_size: 256MB, shared_buffers: 64MB}}
  initdb: [{{encoding: UTF8}}, {{locale: C}}, data-checksums]
postgresql:
  listen: "127.0.0.1:{port}"
  connect_address: "127.0.0.1:{port}"
  data_dir: {folder}/{name}
  bin_dir: {binaries}
  pgpass: {folder}/{name}.pgpass
  authentication:
    superuser: {{username: postgres, password: secret}}
    replication: {{username: replicator, password: secret}}
    rewind: {{username: postgres, password: secret}}
  parameters: {{unix_socket_directories: "{folder}"}}
  pg_hba:
  - local all all trust
  - host all all 127.0.0.1/32 scram-sha-256
  - host replication all 127.0.0.1/32 scram-sha-256
"""


class PatroniCluster:
    """``fail_over`` and ``come_back`` are those of a Cluster, but Patroni promotes the standby."""

    def __init__(self) -> None:
        user = ordinary_user()
        self._folder = Path(tempfile.mkdtemp(prefix="ast-pt-", dir=reachable_folder(user)))
        self._binaries = usable_binaries(user, self._folder)
        etcd, peer, *ports = _free_ports(6)
        self._api = {"one": ports[0], "two": ports[1]}
        self._ports = {"one": ports[2], "two": ports[3]}
        for name in self._api:
            text = _NODE.format(
                name=name,
                api=self._api[name],
                port=self._ports[name],
                etcd=etcd,
                folder=self._folder,
                binaries=self._binaries,
            )
            (self._folder / f"{name}.yml").write_text(text, "utf-8")
        if user is not None:
            os.chown(self._folder, *user)
        patroni, program = PROGRAMS
        assert patroni is not None
        assert program is not None
        urls = f"http://127.0.0.1:{etcd}", f"http://127.0.0.1:{peer}"
        store = ("--data-dir", f"{self._folder}/etcd", "--listen-client-urls", urls[0], "--advertise-client-urls")
        peers = ("--listen-peer-urls", urls[1], "--initial-advertise-peer-urls", urls[1])
        cluster = ("--initial-cluster", f"default={urls[1]}", "--enable-v2")
        # the keeper removes its folder when it ends, so each has one of its own
        self._keepers = {"etcd": self._kept(user, program, *store, urls[0], *peers, *cluster)}
        self._pids: dict[str, int] = {}
        self._start("etcd")
        for node in ("one", "two"):
            self._keepers[node] = self._kept(user, patroni, f"{self._folder}/{node}.yml")
            self._start(node)
        self.leader = self._until_led(None)
        self._until_replicated()

    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{self._ports[name]}" for name in ("one", "two"))
        return f"postgresql://postgres:secret@{hosts}/postgres"

    def fail_over(self) -> None:
        """Kill the primary and its Patroni, and wait until Patroni has promoted the other."""
        postmaster = int((self._folder / self.leader / "postmaster.pid").read_text("utf-8").split()[0])
        for pid in (self._pids[self.leader], postmaster):
            os.kill(pid, signal.SIGKILL)
        self._ask(self.leader, "wait")
        self._down = self.leader
        self.leader = self._until_led(self._down)

    def come_back(self) -> None:
        self._start(self._down)
        self._until_replicated()

    def close(self) -> None:
        for name in ("one", "two", "etcd"):
            keeper = self._keepers[name]
            assert keeper.stdin is not None
            assert keeper.stdout is not None
            keeper.stdin.close()
            keeper.wait()
            keeper.stdout.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> PatroniCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _kept(self, user: tuple[int, int] | None, *command: str) -> subprocess.Popen[str]:
        folder = Path(tempfile.mkdtemp(prefix="ast-pt-", dir=reachable_folder(user)))
        if user is not None:
            os.chown(folder, *user)
        return kept(folder, user, *command, stop=signal.SIGTERM)  # then Patroni stops its server

    def _start(self, name: str) -> None:
        self._pids[name] = int(self._ask(name, "start"))

    def _ask(self, name: str, line: str) -> str:
        keeper = self._keepers[name]
        assert keeper.stdin is not None
        assert keeper.stdout is not None
        keeper.stdin.write(line + "\n")
        keeper.stdin.flush()
        return keeper.stdout.readline().strip()

    def _status(self, name: str) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._api[name]}/patroni", timeout=5) as answer:
                status: dict[str, Any] = json.load(answer)
        except OSError as error:
            status = json.loads(error.read()) if isinstance(error, urllib.request.HTTPError) else {}
        return status

    def _until_led(self, down: str | None) -> str:
        while True:
            for name in self._api:
                if name != down and self._status(name).get("role") in ("master", "primary"):
                    return name
            time.sleep(0.1)

    def _until_replicated(self) -> None:
        while not any(one.get("sync_state") == "sync" for one in self._status(self.leader).get("replication", ())):
            time.sleep(0.1)


def _free_ports(number: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
