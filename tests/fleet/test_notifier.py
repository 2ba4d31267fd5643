"""The notifier: commands and addresses of the settings, judged by the device policy."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from asterism.fleet import coordinator
from asterism.fleet.coordinator import Notifier
from asterism.fleet.fleet import Fleet
from asterism.fleet.policy.device_policy import DevicePolicy, Rules
from asterism.store.memory import MemoryStore
from asterism.store.protocol import NOTIFIED, Notice
from tests.process_scenes import alive, soon_async


class Handler(BaseHTTPRequestHandler):
    """Redirects ``/to?…`` there, and keeps the bodies it gets."""

    def answer(self) -> None:
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        path, _, query = self.path.partition("?")
        self.send_response(307 if path == "/to" else 200)
        if path == "/to":
            self.send_header("location", query)
        self.end_headers()

    do_GET = do_POST = answer

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def servers() -> Iterator[list[Any]]:
    made = [ThreadingHTTPServer(("127.0.0.1", 0), Handler) for _ in range(2)]
    threads = [threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}) for server in made]
    for server, thread in zip(made, threads, strict=True):
        server.asked = []  # type: ignore[attr-defined]
        server.host = f"127.0.0.1:{server.server_address[1]}"  # type: ignore[attr-defined]
        thread.start()
    yield made
    for server, thread in zip(made, threads, strict=True):
        server.shutdown()
        thread.join()
        server.server_close()


async def told(policy: DevicePolicy, *messages: str, times: int = 1, **settings: Any) -> int:
    """Tell of these failures, in so many passes. Returns how far it came."""
    async with Fleet(MemoryStore()) as fleet:
        await fleet.configure(**settings)
        await fleet.store.commit([Notice(0.0, "failed", message) for message in messages])
        notifier = Notifier(fleet, policy)
        try:
            for _ in range(times):
                await notifier.deliver()
        finally:
            notifier.close()
        cursor = await fleet.store.register(NOTIFIED)
        return 0 if cursor is None else int(cursor.value["after"])


def only(*commands: str, **rules: Any) -> DevicePolicy:
    return DevicePolicy(Rules(commands=commands, **rules), "policy.yaml")


async def test_the_notification_address_cannot_redirect_to_a_host_that_is_not_allowed(
    servers: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    listed, other = servers
    policy = only(hosts=(listed.host,))
    address = f"http://{listed.host}/to?http://{other.host}/inside"
    assert await told(policy, "a", notify_url=address) == 0
    assert listed.asked
    assert not other.asked
    assert "policy.yaml of this device does not allow" in caplog.text
    assert await told(DevicePolicy.open(), "a", notify_url=address) == 1
    assert other.asked == ["/inside"]


async def test_a_server_without_a_device_policy_file_executes_no_command_and_reaches_no_private_address(
    servers: list[Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Everybody who can write into the store can write its settings."""
    mark, (local, _) = tmp_path / "mark", servers
    assert await told(DevicePolicy.without_file(), "a", notify_command=["touch", str(mark)]) == 0
    assert await told(DevicePolicy.without_file(), "a", notify_url=f"http://{local.host}/") == 0
    assert not mark.exists()
    assert not local.asked
    advice = "list it under 'commands' in a file, and name the file with --device-policy"
    assert f"a server without a device policy file does not allow the command 'touch': {advice}" in caplog.text
    assert f"{local.host}, whose address 127.0.0.1 is not public" in caplog.text


async def test_the_notification_command_runs_under_the_allowed_name(tmp_path: Path) -> None:
    """A program of many names does what its name says."""
    link = tmp_path / "teller"
    link.symlink_to(Path("/bin/sh").resolve())
    command = [str(link), "-c", f'echo "$0" > {tmp_path}/name']
    assert await told(only(str(link)), "a", notify_command=command) == 1
    assert (tmp_path / "name").read_text().strip() == str(link)


async def test_the_notification_command_gets_the_variables_of_every_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_TOKEN", "hush")
    monkeypatch.setenv("MEDIA_ROOT", "/srv")
    place = tmp_path / "place"
    place.mkdir()
    words = (
        "import json, os, sys; json.dump([dict(os.environ), os.getcwd(), json.load(sys.stdin)], open(sys.argv[1], 'w'))"
    )
    command = [sys.executable, "-c", words, str(tmp_path / "got")]
    policy = only(sys.executable, environment=("MEDIA_*",), directories=(str(place),))
    assert await told(policy, "a", notify_command=command) == 1
    environment, cwd, notice = json.loads((tmp_path / "got").read_text())
    assert "API_TOKEN" not in environment
    assert environment["MEDIA_ROOT"] == "/srv"
    assert cwd == str(place.resolve())
    assert (notice["kind"], notice["message"]) == ("failed", "a")


async def test_a_failed_delivery_is_tried_a_few_times_before_the_next_notice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    count = tmp_path / "count"
    command = ["sh", "-c", f'grep -o \'"message": "[ab]\' >> {count}; exit 3']
    assert await told(DevicePolicy.open(), "a", "b", times=coordinator.TRIES - 1, notify_command=command) == 0
    count.unlink()
    assert await told(DevicePolicy.open(), "a", "b", times=coordinator.TRIES, notify_command=command) == 1
    assert [line[-1] for line in count.read_text().splitlines()] == ["a"] * coordinator.TRIES + ["b"]
    assert "exited with 3" in caplog.text


async def test_processes_of_a_notification_command_do_not_outlive_it(tmp_path: Path) -> None:
    number = tmp_path / "number"
    command = ["sh", "-c", f"sleep 1000 & echo $! > {number}.new; mv {number}.new {number}; wait"]
    telling = asyncio.create_task(told(DevicePolicy.open(), "a", notify_command=command))
    await soon_async(number.exists)
    telling.cancel()
    await asyncio.gather(telling, return_exceptions=True)
    await soon_async(lambda: not alive(int(number.read_text())))


# -- from when on ------------------------------------------------------------------------------------------------------


async def failed(fleet: Fleet, *messages: str) -> None:
    await fleet.store.commit([Notice(0.0, "failed", message) for message in messages])


async def delivered(fleet: Fleet, file: Path) -> list[str]:
    """The notices that one pass delivers."""
    notifier = Notifier(fleet, DevicePolicy.open())
    try:
        await notifier.deliver()
    finally:
        notifier.close()
    return taken_from(file)


def taken_from(file: Path) -> list[str]:
    said = file.read_text().splitlines() if file.exists() else []
    file.unlink(missing_ok=True)
    return [json.loads(line)["message"] for line in said]


def telling(file: Path) -> list[str]:
    return ["sh", "-c", f'cat >> "{file}"; echo >> "{file}"']


async def test_a_new_receiver_gets_only_new_notices(tmp_path: Path) -> None:
    file = tmp_path / "told"
    async with Fleet(MemoryStore()) as fleet:
        await failed(fleet, "long ago", "yesterday")
        await fleet.configure(notify_command=telling(file))
        await failed(fleet, "now")
        assert await delivered(fleet, file) == ["now"]
        await fleet.configure(notify_command=["sh", *telling(file)[1:]], hold=1.0)  # another one, not the first
        await failed(fleet, "again")
        await fleet.configure(notify_url=None)
        assert await delivered(fleet, file) == ["again"]
        await fleet.configure(notify_command=None)
        await failed(fleet, "while nobody was told")
        assert await delivered(fleet, file) == []
        await fleet.configure(notify_command=telling(file))
        await failed(fleet, "at last")
        assert await delivered(fleet, file) == ["at last"]


async def test_after_a_restore_only_undelivered_notices_are_delivered(tmp_path: Path) -> None:
    file = tmp_path / "told"
    async with Fleet(MemoryStore()) as fleet, Fleet(MemoryStore()) as restored:
        await fleet.configure(notify_command=telling(file))
        await failed(fleet, "one", "two")
        assert await delivered(fleet, file) == ["one", "two"]
        await failed(fleet, "three")
        await restored.store.load(fleet.store.dump())
        assert await delivered(restored, file) == ["three"]
        assert await delivered(restored, file) == []
