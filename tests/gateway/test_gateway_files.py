"""Files over the gateway: in parts over real connections, which are cut; grants, quota, full disks, and devices that
lie."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import json
import os
import random
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.applications import Starlette

from asterism.base.content_store import ContentAccess, ContentFolder
from asterism.base.http_limits import Bodies, Limits
from asterism.base.listen_address import ListenAddress
from asterism.core.record import replace
from asterism.core.run.run import PROCESSING, Owner, Run
from asterism.core.run.work import Workflow
from asterism.execution.artifacts import Artifacts
from asterism.fleet.fleet import Fleet
from asterism.gateway import device_storage, gateway_connection, gateway_content
from asterism.gateway.device_key import DeviceKey
from asterism.gateway.enrolment import invite
from asterism.gateway.gateway_connection import GatewayAccess, GatewayConnection
from asterism.gateway.gateway_messages import GatewayRefused, part_message
from asterism.gateway.gateway_transport import HttpTransport, enrol
from asterism.server.gateway_routes import GatewayRoutes
from asterism.server.http_service import endpoints, http_service
from asterism.store.memory import MemoryStore
from asterism.store.protocol import PutRun
from tests.base.bucket_server import bucket_server
from tests.gateway.memory_outbox import MemoryOutbox
from tests.gateway.test_gateway_http import device, served

endpoints()  # the first time is slow, since it makes the schemas

PART = 10_000
CONTENT = random.Random(1).randbytes(7 * PART + 123)
NAME = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def small_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for module in (device_storage, gateway_content):
        monkeypatch.setattr(module, "FILE_PART", PART)
    monkeypatch.setattr(gateway_content, "PAUSE", (0.001, 0.01))


def chunks(size: int = 4096) -> list[bytes]:
    return [CONTENT[start : start + size] for start in range(0, len(CONTENT), size)]


class Relay:
    """Carries connections to a server. Once it cuts, each is carried for so many bytes as ``next_cut`` says."""

    def __init__(self) -> None:
        self.port = 0
        self.next_cut: Callable[[], int] | None = None
        self.cut = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, here = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:  # the server is away
            writer.transport.abort()
            return
        left: int | None = None

        async def carry(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            nonlocal left
            while data := await source.read(65536):
                if left is None and self.next_cut is not None:
                    left = self.next_cut()
                if left is not None:
                    data, left = data[:left], left - len(data)
                target.write(data)
                await target.drain()
                if left is not None and left <= 0:
                    self.cut += 1
                    break
            for end in (writer, here):
                end.transport.abort()

        with contextlib.suppress(OSError):
            await asyncio.gather(carry(reader, here), carry(there, writer), return_exceptions=True)


class Scene:
    """A device that has a run, and reaches the files of its fleet."""

    def __init__(self, fleet: Fleet, connection: GatewayConnection, run: Run, content: ContentAccess) -> None:
        self.fleet, self.connection, self.run, self.content = fleet, connection, run, content

    @property
    def token(self) -> str:
        return self.connection._tokens[self.run.id, self.run.epoch]

    async def ask(self, operation: str, body: Any) -> Any:
        return await self.connection._ask(operation, body)

    async def place(self) -> ContentFolder:
        place = await self.fleet.artifacts()
        assert isinstance(place, ContentFolder)
        return place

    async def unfinished(self) -> list[Path]:
        return list((await self.place()).folder.glob(".new-*"))

    async def put(self, content: Any = None) -> Any:
        return await asyncio.to_thread(self.content.put, chunks() if content is None else content)

    async def read(self, name: str, offset: int = 0) -> bytes | None:
        def read() -> bytes | None:
            file = self.content.open(name, offset)
            if file is None:
                return None
            with file:
                return file.read()

        return await asyncio.to_thread(read)


@asynccontextmanager
async def scene(
    next_cut: Callable[[], int] | None = None, run_input: Callable[[Fleet], Any] | None = None, **settings: Any
) -> AsyncIterator[Scene]:
    """With ``next_cut`` over real connections that are cut, otherwise without a network."""
    async with Fleet(MemoryStore()) as fleet, contextlib.AsyncExitStack() as stack:
        await fleet.configure(**settings)
        relay = Relay()
        if next_cut is None:
            routes = GatewayRoutes(fleet, Bodies(Limits()))
            stack.push_async_callback(routes.close)
            transport = HttpTransport("http://server", inner=httpx.ASGITransport(Starlette(routes=routes.routes)))
        else:
            service = await stack.enter_async_context(http_service(fleet, ListenAddress("127.0.0.1", 0)))
            relay.port = urlsplit(service.url).port or 0
            server = await stack.enter_async_context(await asyncio.start_server(relay.serve, "127.0.0.1", 0))
            transport = HttpTransport(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        stack.push_async_callback(transport.close)
        connection = await joined(fleet, transport, "lab-1")
        run = await granted(fleet, connection.owner, None if run_input is None else run_input(fleet))
        await connection.own_runs()  # with their tokens
        relay.next_cut = next_cut
        yield Scene(fleet, connection, run, await connection.artifacts(run))
        assert next_cut is None or relay.cut, "nothing was cut"


async def joined(fleet: Fleet, transport: HttpTransport, name: str) -> GatewayConnection:
    key = DeviceKey.new()
    await enrol(transport, key, name, await invite(fleet.store, name="*"))
    connection = GatewayAccess(transport, key, MemoryOutbox()).connect(Owner(name, f"session-of-{name}"))
    await connection._ask("join", {"host": "h", "can": [], "slots": 1, "backlog": 0, "timeout": 90.0, "profile": {}})
    return connection


async def granted(fleet: Fleet, owner: Owner, run_input: Any) -> Run:
    """A run that a device works on."""
    run = await fleet.create(Workflow("work", call="tests:work"), run_input)
    now = fleet.store.clock()
    at_work = replace(
        run, status=PROCESSING, device=owner.device, session=owner.session, epoch=1, started_at=now, assigned_at=now
    )
    await fleet.store.commit([PutRun(at_work, run.revision)])
    return await fleet.run(run.id)


# -- whole -------------------------------------------------------------------------------------------------------------


async def test_content_is_sent_and_fetched_in_parts() -> None:
    async with scene() as here:
        assert await here.put() == (NAME, len(CONTENT))
        place = await here.place()
        assert place.path(NAME).read_bytes() == CONTENT
        assert await here.unfinished() == []
        assert await here.read(NAME) == CONTENT
        assert await here.read(NAME, 12_345) == CONTENT[12_345:]
        assert await here.read(NAME, len(CONTENT)) == b""
        empty = await here.put([])
        assert (empty.size, await here.read(empty.name)) == (0, b"")
        assert here.content.location.startswith("http://server")


async def test_parts_that_are_as_long_as_a_message_lose_nothing() -> None:
    async with scene() as here:
        for size in (PART - 1, PART, PART + 1, 3 * PART):
            name, length = await here.put([CONTENT[:size]])
            assert (length, await here.read(name)) == (size, CONTENT[:size])


@pytest.mark.hunt(few=3, many=60)
async def test_cut_connections_cost_no_byte(seeds: range) -> None:
    for seed in seeds:
        async with scene(partial(random.Random(seed).randrange, 200, 3 * PART)) as here:
            assert await here.put() == (NAME, len(CONTENT))
            assert (await here.place()).path(NAME).read_bytes() == CONTENT
            assert await here.read(NAME) == CONTENT


async def test_chunks_that_break_off_leave_nothing_to_see() -> None:
    def broken() -> Iterator[bytes]:
        yield from chunks()
        raise RuntimeError("broken off")

    async with scene() as here:
        with pytest.raises(RuntimeError, match="broken off"):
            await here.put(broken())
        assert list((await here.place()).names()) == []
        place = await here.place()
        place.sweep(float("inf"))
        assert await here.unfinished() == []


@pytest.mark.long
async def test_content_goes_on_into_a_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    with bucket_server() as server:
        server.use(monkeypatch)
        server.create("films")
        async with scene(artifacts="s3://films/all") as here:
            assert await here.put() == (NAME, len(CONTENT))
            assert await here.read(NAME, 5) == CONTENT[5:]
            assert list((await here.fleet.artifacts()).names()) == [NAME]


async def test_an_end_that_takes_long_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_storage, "END_WAIT", 0.0)
    async with scene() as here:
        assert await here.put() == (NAME, len(CONTENT))
        assert (await here.place()).path(NAME).read_bytes() == CONTENT


# -- what the server does not have any more ----------------------------------------------------------------------------


async def test_an_upload_goes_on_after_the_server_has_forgotten_all_of_it_but_the_file() -> None:
    """As after it was started again: the rest of the hash is computed from the file."""
    async with scene() as here:
        head = {"grant": here.token, "upload": "u", "offset": 0}
        assert await here.ask("upload", part_message(head, CONTENT[:PART])) == {"size": PART}
        _files(here)._uploads.clear()
        head["offset"] = PART
        assert await here.ask("upload", part_message(head, CONTENT[PART : 2 * PART])) == {"size": 2 * PART}
        name = hashlib.sha256(CONTENT[: 2 * PART]).hexdigest()
        end = {"grant": here.token, "upload": "u", "size": 2 * PART, "name": name}
        assert await here.ask("upload_end", end) == {"done": True}
        assert await here.ask("upload_end", end) == {"done": True}, "as if the first answer was lost"
        assert await here.read(name) == CONTENT[: 2 * PART]


def _files(here: Scene) -> device_storage.DeviceFiles:
    [files] = [it for it in _instances if it._fleet.store is here.fleet.store]
    return files


_instances: list[device_storage.DeviceFiles] = []


@pytest.fixture(autouse=True)
def instances(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    begin = device_storage.DeviceFiles.__init__

    def remembered(self: device_storage.DeviceFiles, *args: Any) -> None:
        begin(self, *args)
        _instances.append(self)

    monkeypatch.setattr(device_storage.DeviceFiles, "__init__", remembered)
    yield
    _instances.clear()


class Losing:
    """Chunks during which the server loses what it has, as often as ``times`` says."""

    def __init__(self, here: Scene, folder: Path, times: int) -> None:
        self._here, self._folder, self.times = here, folder, times

    def __iter__(self) -> Iterator[bytes]:
        for number, chunk in enumerate(chunks(PART)):
            if number == 4 and self.times:
                self.times -= 1
                for path in self._folder.glob(".new-*"):
                    path.unlink()
            yield chunk


async def test_an_upload_that_the_server_lost_begins_again() -> None:
    async with scene() as here:
        folder = (await here.place()).folder
        assert await here.put(Losing(here, folder, 2)) == (NAME, len(CONTENT))
        assert await here.read(NAME) == CONTENT
        with pytest.raises(OSError, match=r"has lost a part of a file: it has .* bytes, and .* were sent"):
            await here.put(Losing(here, folder, 3))
        with pytest.raises(OSError, match="has lost a part of a file"):
            await here.put(iter(Losing(here, folder, 1)))  # what cannot be read again


# -- grants ------------------------------------------------------------------------------------------------------------


async def test_a_device_that_has_lost_its_grant_sends_and_fetches_nothing() -> None:
    async with scene() as here:
        name = (await here.put([b"before"])).name
        head = {"grant": here.token, "upload": "u", "offset": 0}
        await here.ask("upload", part_message(head, b"half"))
        assert len(await here.unfinished()) == 1
        await _take_away(here)
        for operation, body in {
            "upload": part_message({**head, "offset": 4}, b" a file"),
            "upload_end": {"grant": here.token, "upload": "u", "size": 4, "name": hashlib.sha256(b"half").hexdigest()},
            "download": {"grant": here.token, "name": name, "offset": 0},
        }.items():
            with pytest.raises(GatewayRefused, match="does not belong to this device any more"):
                await here.ask(operation, body)
        assert await here.unfinished() == []
        assert list((await here.place()).names()) == [name]
        with pytest.raises(OSError, match="does not belong to this device any more"):
            await here.put()


async def test_ablation_without_the_question_a_lost_grant_still_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene() as here:
        await _take_away(here)

        async def unasked(self: Any, grant: Any) -> Any:
            return here.run

        monkeypatch.setattr(device_storage.DeviceFiles, "_granted", unasked)
        await here.put()
        assert list((await here.place()).names()) == [NAME]


async def _take_away(here: Scene) -> None:
    """As the monitor does when a device is silent, while the device still works."""
    now = await here.fleet.store.run(here.run.id)
    assert now is not None
    await here.fleet.store.commit([PutRun(replace(now, epoch=now.epoch + 1), now.revision)])


async def test_a_grant_of_another_device_counts_for_nothing() -> None:
    async with scene() as here:
        stranger = await joined(here.fleet, here.connection._transport, "lab-2")  # type: ignore[arg-type]
        head = {"grant": here.token, "upload": "u", "offset": 0}
        with pytest.raises(GatewayRefused, match="this grant was not given to this device"):
            await stranger._ask("upload", part_message(head, b"half"))


async def test_a_run_reads_the_files_of_its_input_and_no_others() -> None:
    names: dict[str, str] = {}

    def given(fleet: Fleet) -> Mapping[str, Any]:
        place = ContentFolder(fleet.store.files_folder, fleet.store.clock)  # type: ignore[arg-type]
        source = place.folder.parent / f"{place.folder.name}-source"
        source.mkdir()
        (source / "frame").write_bytes(CONTENT)
        names["manifest"] = Artifacts(place).keep_outputs(source, {"frames": "frame"})
        names["other"] = place.put([b"a secret of another plan"]).name
        return {"frames": {"files_from": "render.frames", "manifests": [names["manifest"]]}}

    async with scene(run_input=given) as here:
        assert await here.read(NAME) == CONTENT
        assert b"frame" in (await here.read(names["manifest"]) or b"")
        with pytest.raises(OSError, match="this run has no such file in its input"):
            await here.read(names["other"])


async def test_what_is_missing_on_the_server_is_missing_on_the_device() -> None:
    async with scene() as here:
        name = (await here.put([b"content"])).name
        (await here.place()).path(name).unlink()
        assert await here.read(name) is None


# -- limits and trouble ------------------------------------------------------------------------------------------------


async def test_a_device_stores_no_more_files_than_its_quota_and_is_told_what_to_set() -> None:
    async with scene(device_bytes=3 * PART) as here:
        await here.put([CONTENT[:PART]])
        with pytest.raises(OSError, match=r"may store 30,000 bytes .* yet \(setting device_bytes\): raise it with"):
            await here.put()
        assert [path.stat().st_size for path in await here.unfinished()] == [2 * PART]
        await here.fleet.configure(device_bytes=30 * PART)
        assert await here.put() == (NAME, len(CONTENT))


async def complete(here: Scene, manifest: str) -> Any:
    """The answer to the end of the run, which names the files that it has made."""
    step = {"do": "complete", "grant": here.token, "output": None, "files": manifest}
    [answer] = (await here.ask("steps", {"steps": [step]}))["steps"]
    return answer


async def outputs(here: Scene, tmp_path: Path) -> str:
    """The manifest of a file that was sent, with the file."""
    (tmp_path / "film").write_bytes(CONTENT)
    return await asyncio.to_thread(Artifacts(here.content).keep_outputs, tmp_path, {"film": "film"})


async def test_files_count_no_more_once_their_run_has_ended(tmp_path: Path) -> None:
    async with scene(device_bytes=10 * PART) as here:
        await here.fleet.workflows.add(Workflow("work", call="tests:work"))
        manifest = await outputs(here, tmp_path)
        with pytest.raises(OSError, match="device_bytes"):
            await here.put([b"x" * len(CONTENT)])
        assert await complete(here, manifest) == {}
        assert (await here.fleet.run(here.run.id)).status == "completed"
        assert _files(here)._storage._level("lab-1", 10 * PART) < PART * 5, "only what belongs to no run is left"


async def test_a_run_does_not_end_with_files_that_are_not_there(tmp_path: Path) -> None:
    async with scene() as here:
        manifest = await outputs(here, tmp_path)
        place = await here.place()
        _files(here)._readable.clear()  # as after the server was started again
        place.path(NAME).unlink()
        answer = await complete(here, manifest)
        assert answer["message"].startswith("1 of the files that it has made are not on the server; the first: ")
        assert (await here.fleet.run(here.run.id)).status == "processing"
        assert (await complete(here, "0" * 64))["error"] == "invalid"


async def test_a_part_that_is_sent_twice_counts_once() -> None:
    async with scene(device_bytes=PART + 100) as here:
        head = {"grant": here.token, "upload": "u", "offset": 0}
        for _ in range(2):  # as if the first answer was lost
            assert await here.ask("upload", part_message(head, b"x" * 60)) == {"size": 60}
        name = hashlib.sha256(b"x" * 60).hexdigest()
        end = {"grant": here.token, "upload": "u", "size": 60, "name": name}
        assert await here.ask("upload_end", end) == {"done": True}


async def test_a_full_disk_at_the_server_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    full = [True]
    append = device_storage.Upload.append

    def no_space(self: device_storage.Upload, offset: int, data: memoryview) -> tuple[int, int]:
        if full and offset:
            append(self, offset, data[: len(data) // 2])  # a part of it was written
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return append(self, offset, data)

    async with scene() as here:
        monkeypatch.setattr(device_storage.Upload, "append", no_space)
        with pytest.raises(
            OSError, match=r"the server has no space for files \(No space left on device\): free some"
        ) as it:
            await here.put()
        assert it.value.errno == errno.ENOSPC, "another device may be able to"
        assert list((await here.place()).names()) == []
        full.clear()
        assert await here.put() == (NAME, len(CONTENT))


async def test_a_fleet_without_a_place_for_files_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async with scene(artifacts=f"file://{tmp_path}/away") as here:
        with pytest.raises(OSError, match=r"the server cannot keep files in .*/away/.*: the folder .* is not there"):
            await here.put()
        await here.fleet.configure(artifacts=None)
        monkeypatch.setattr(MemoryStore, "files_folder", None)
        with pytest.raises(OSError, match="this fleet has no place for the files of tasks"):
            await here.put()


@pytest.mark.parametrize(
    ("head", "part", "why"),
    [
        ({"offset": 5}, b"behind the end", None),
        ({"offset": -1}, b"x", "offset must be a number"),
        ({"offset": 2**60}, b"x", "offset must be a number"),
        ({"offset": 0}, b"x" * (PART + 1), "a part of a file has at most"),
        ({"offset": 0, "upload": 5}, b"x", "upload must be a text"),
        ({"offset": 0, "grant": "astg_x"}, b"x", "a step needs the token of its grant"),
    ],
)
async def test_a_device_that_lies_about_parts_is_refused(head: Any, part: bytes, why: str | None) -> None:
    async with scene() as here:
        message = part_message({"grant": here.token, "upload": "u", **head}, part)
        if why is None:
            assert await here.ask("upload", message) == {"size": 0}
        else:
            with pytest.raises(GatewayRefused, match=why):
                await here.ask("upload", message)
        assert list((await here.place()).names()) == []


async def test_a_device_that_lies_about_the_whole_puts_nothing() -> None:
    async with scene() as here:
        place = await here.place()
        head = {"grant": here.token, "upload": "u", "offset": 0}
        right = {"grant": here.token, "upload": "u", "size": 5, "name": hashlib.sha256(b"bytes").hexdigest()}
        for wrong, why in {
            "size": "5 of 6 bytes have come",
            "hash": "does not match its hash: it was damaged",
            "name": "content is named by its SHA-256",
            "nothing": "nothing of this upload is here",
        }.items():
            await here.ask("upload", part_message(head, b"bytes"))
            changes = {
                "size": {"size": 6},
                "hash": {"name": "0" * 64},
                "name": {"name": "../../etc/passwd"},
                "nothing": {"upload": "another"},
            }[wrong]
            with pytest.raises(GatewayRefused, match=why):
                await here.ask("upload_end", {**right, **changes})
            assert list(place.names()) == []
        with pytest.raises(GatewayRefused, match="begins with a line"):
            await here.ask("upload", b"no line")
        with pytest.raises(GatewayRefused, match="is not JSON"):
            await here.ask("upload", b"{\n")
        with pytest.raises(GatewayRefused, match="a message is a JSON object"):
            await here.ask("upload", b"[]\nx")


async def test_bytes_damaged_on_their_way_are_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    damage = [3]

    def damaged(head: Any, part: bytes | memoryview) -> bytes:
        if head["offset"] == 2 * PART and damage:
            damage.pop()
            part = b"\0" + bytes(part[1:])
        return part_message(head, part)

    async with scene() as here:
        monkeypatch.setattr(gateway_content, "part_message", damaged)
        assert await here.put() == (NAME, len(CONTENT))
        assert (await here.place()).path(NAME).read_bytes() == CONTENT


async def test_ablation_without_the_comparison_damaged_bytes_are_put(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene() as here:
        monkeypatch.setattr(gateway_content, "part_message", lambda head, part: part_message(head, b"\0" * len(part)))
        monkeypatch.setattr(device_storage.Upload, "check", lambda self, size, name: None)
        await here.put()
        assert (await here.place()).path(NAME).read_bytes() != CONTENT


async def test_a_grant_has_few_unfinished_uploads() -> None:
    async with scene() as here:
        for number in range(device_storage.UPLOADS_AT_ONCE + 3):
            await here.ask("upload", part_message({"grant": here.token, "upload": f"u{number}", "offset": 0}, b"x"))
        assert len(await here.unfinished()) == device_storage.UPLOADS_AT_ONCE


async def test_a_part_beside_the_end_does_not_get_into_the_content(monkeypatch: pytest.MonkeyPatch) -> None:
    check, checked, go_on = device_storage.Upload.check, threading.Event(), threading.Event()

    def slow(self: device_storage.Upload, size: int, name: str) -> None:
        check(self, size, name)
        checked.set()
        assert go_on.wait(60)

    monkeypatch.setattr(device_storage.Upload, "check", slow)
    async with scene() as here:
        head, name = {"grant": here.token, "upload": "u"}, hashlib.sha256(b"bytes").hexdigest()
        await here.ask("upload", part_message({**head, "offset": 0}, b"bytes"))
        end = asyncio.create_task(here.ask("upload_end", {**head, "size": 5, "name": name}))
        await asyncio.to_thread(checked.wait, 60)
        for number in range(device_storage.UPLOADS_AT_ONCE + 1):  # an upload that ends is not forgotten for others
            await here.ask("upload", part_message({**head, "upload": f"{number}", "offset": 0}, b"x"))
        more = asyncio.create_task(here.ask("upload", part_message({**head, "offset": 5}, b" and more")))
        await asyncio.wait([more], timeout=0.05)
        go_on.set()
        assert (await end, await more) == ({"done": True}, {"size": 0})
        assert (await here.place()).path(name).read_bytes() == b"bytes"


async def test_a_file_is_sent_again_when_the_server_has_lost_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    check, lost = device_storage.Upload.check, [True]

    def losing(self: device_storage.Upload, size: int, name: str) -> None:
        if lost.pop() if lost else False:
            self.remove()  # as if the answer to the end was lost with the server
        check(self, size, name)

    async with scene() as here:
        monkeypatch.setattr(device_storage.Upload, "check", losing)
        manifest = await outputs(here, tmp_path)
        assert Artifacts(await here.place()).stored_files(manifest)["film"][0].read() == CONTENT
        assert not lost


@pytest.mark.parametrize("text", ["5", "[]", '{"film": 5}', '{"film": [["../x", 1, "' + NAME + '", 420]]}'])
async def test_a_run_does_not_end_with_a_damaged_list_of_files(text: str) -> None:
    async with scene() as here:
        answer = await complete(here, (await here.put([text.encode()])).name)
        assert "is not the list of the files of a task" in answer["message"]
        assert (await here.fleet.run(here.run.id)).status == "processing"


def listed(*entries: tuple[str, int, str]) -> list[bytes]:
    """A list of files as a device makes it, of their paths, sizes and hashes."""
    return [json.dumps({"film": [[path, size, name, 420] for path, size, name in entries]}).encode()]


async def refusal(here: Scene, *entries: tuple[str, int, str]) -> str:
    """Why a run does not end with these files; empty if it does."""
    answer = await complete(here, (await here.put(listed(*entries))).name)
    return str(answer.get("message", ""))


async def test_a_run_names_only_files_that_were_sent_for_it_or_given_to_it() -> None:
    """Who knows a hash must not read its content in the next run."""
    hidden, given = hashlib.sha256(b"of others").hexdigest(), hashlib.sha256(b"given").hexdigest()
    manifest = listed(("given", 5, given))
    reference = {"files_from": "a.b", "manifests": [hashlib.sha256(manifest[0]).hexdigest()]}
    async with scene(run_input=lambda fleet: {"files": reference}) as here:
        await here.fleet.workflows.add(Workflow("work", call="tests:work"))
        place = await here.place()
        for content in ([b"of others"], [b"given"], manifest):
            place.put(content)
        why = await refusal(here, ("mine", 9, hidden))
        assert why.startswith("'mine' is no file that this device has sent or that the run was given: ")
        answer = await complete(here, place.put(listed(("given", 5, given), ("b", 5, given))).name)
        assert answer["message"].startswith("the list of its files was not sent for this run")
        assert (await here.fleet.run(here.run.id)).status == "processing"
        await here.put([b"of others"])
        assert await refusal(here, ("mine", 9, hidden), ("taken", 5, given)) == ""


async def test_what_was_sent_counts_after_the_server_was_started_again() -> None:
    async with scene() as here:
        await here.fleet.workflows.add(Workflow("work", call="tests:work"))
        await here.put()
        manifest = await here.put(listed(("film", len(CONTENT), NAME)))
        routes = GatewayRoutes(here.fleet, Bodies(Limits()))
        here.connection._transport = HttpTransport(
            "http://server", inner=httpx.ASGITransport(Starlette(routes=routes.routes))
        )
        assert await complete(here, manifest.name) == {}
        await here.connection._transport.close()
        await routes.close()


async def test_sizes_are_compared_and_repetitions_count() -> None:
    async with scene(device_bytes=3 * len(CONTENT)) as here:
        await here.fleet.workflows.add(Workflow("work", call="tests:work"))
        await here.put()
        assert await refusal(here, ("film", 5, NAME)) == f"'film' has {len(CONTENT):,} bytes, not 5"
        many = [(f"{number}", len(CONTENT), NAME) for number in range(4)]
        assert "device_bytes" in await refusal(here, *many)
        assert (await here.fleet.run(here.run.id)).status == "processing"
        assert await refusal(here, *many[:2]) == ""


async def test_a_list_of_too_many_files_is_refused() -> None:
    async with scene() as here:
        await here.put()
        why = await refusal(here, *((f"{number}", len(CONTENT), NAME) for number in range(10_001)))
        assert why == "it has made 10,001 files; 10,000 are allowed: pack them into an archive"
        large = await here.put([b" " * (5 << 20)])
        assert "the list of its files is longer than" in (await complete(here, large.name))["message"]


async def test_a_message_ends_a_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each end with files reads their list, however often a message repeats it."""
    async with scene() as here:
        await here.fleet.workflows.add(Workflow("work", call="tests:work"))
        await here.put()
        manifest = (await here.put(listed(("film", len(CONTENT), NAME)))).name
        step = {"do": "complete", "grant": here.token, "output": None, "files": manifest}
        opened = list[str]()
        opening = ContentFolder.open
        monkeypatch.setattr(
            ContentFolder, "open", lambda self, name, *rest: opened.append(name) or opening(self, name, *rest)
        )
        first, *others = (await here.ask("steps", {"steps": [step] * 40}))["steps"]
        assert first == {}
        assert others == [{"error": "invalid", "message": "a message ends a run once"}] * 39
        assert opened == [manifest]


@pytest.mark.parametrize("files", [9_000, 180_000])
async def test_ends_with_long_lists_hold_up_nobody_else(monkeypatch: pytest.MonkeyPatch, files: int) -> None:
    """Forty messages of a device end its run at once. The watchdog of the loop fails a step of more than 100 ms."""
    for module in (device_storage, gateway_content):
        monkeypatch.setattr(module, "FILE_PART", 1 << 20)
    async with scene(device_bytes=10**9) as here:
        await here.fleet.workflows.add(Workflow("work", call="tests:work"))
        other = await joined(here.fleet, here.connection._transport, "lab-2")  # type: ignore[arg-type]
        run = await granted(here.fleet, other.owner, None)
        await other.own_runs()
        content = await other.artifacts(run)
        await here.put()
        entries = [(f"{number:06}", len(CONTENT), NAME) for number in range(files)]
        manifest = (await here.put(await asyncio.to_thread(listed, *entries))).name
        opened = list[str]()
        opening = ContentFolder.open
        monkeypatch.setattr(
            ContentFolder, "open", lambda self, name, *rest: opened.append(name) or opening(self, name, *rest)
        )
        ends = asyncio.gather(*(complete(here, manifest) for _ in range(40)))
        await asyncio.to_thread(content.put, [b"of another"])
        answers = await ends
        if files > 10_000:
            assert {answer["message"] for answer in answers} == {"the list of its files is longer than 4,194,304 bytes"}
        assert ((await here.fleet.run(here.run.id)).status == "completed") == (files < 10_000)
        assert opened.count(manifest) <= (files < 10_000)


# -- the cache of the device -------------------------------------------------------------------------------------------


async def test_a_device_fetches_the_same_content_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene() as here:
        await here.put()
        assert await here.read(NAME) == CONTENT
        fetched = []
        part = gateway_content.GatewayContent.part
        monkeypatch.setattr(
            gateway_content.GatewayContent, "part", lambda self, *args: fetched.append(args) or part(self, *args)
        )
        assert await here.read(NAME) == CONTENT
        assert await here.read(NAME, 9) == CONTENT[9:]
        assert fetched == [(NAME, len(CONTENT))] * 2, "whether the fleet has it"
        (await here.place()).path(NAME).unlink()
        assert await here.read(NAME) is None, "it counts only while the fleet has it"


async def test_the_cache_of_a_device_is_bounded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gateway_connection, "CACHE_LIMIT", 2 * PART)
    async with scene() as here:
        for number in range(4):
            data = bytes([number]) * PART
            name = (await here.put([data])).name
            assert await here.read(name) == data
        await here.put()
        assert await here.read(NAME) == CONTENT, "more than the cache has room for"
        files = [path for path in (tmp_path / "state/asterism/files").rglob("*") if path.is_file()]
        assert [path.stat().st_size for path in files] == [PART, PART]


async def test_a_damaged_cache_is_not_used(tmp_path: Path) -> None:
    async with scene() as here:
        await here.put()
        assert await here.read(NAME) == CONTENT
        cached = tmp_path / "state/asterism/files" / NAME[:2] / NAME
        cached.write_bytes(b"x" * len(CONTENT))
        assert await here.read(NAME) == CONTENT


# -- tasks -------------------------------------------------------------------------------------------------------------


async def test_files_pass_from_run_to_run_on_a_device_without_a_store() -> None:
    async with served() as (fleet, app), device(fleet, app):
        render = Workflow(
            "render", shell="mkdir out; printf one > out/1; printf two > out/2", outputs={"frames": "out/*"}
        )
        made = await fleet.wait((await fleet.create(render)).id)
        assert (made.status, made.error) == ("completed", None)
        assert made.files is not None
        files = Artifacts(await fleet.artifacts()).stored_files(made.files)["frames"]
        assert [(file.path, file.read()) for file in files] == [("out/1", b"one"), ("out/2", b"two")]
        frames = {"files_from": "render.frames", "manifests": [made.files]}
        pack = Workflow("pack", shell="cat out/*", outputs={})
        taken = await fleet.wait((await fleet.create(pack, {"frames": frames})).id)
        assert (taken.status, taken.output) == ("completed", "onetwo")


async def test_files_of_work_that_failed_are_kept() -> None:
    async with served() as (fleet, app), device(fleet, app):
        test = Workflow("test", shell="echo report > r.xml; exit 3", outputs={"junit": "r.xml", "log": "*.log"})
        failed = await fleet.wait((await fleet.create(test)).id)
        assert failed.error == "CommandFailed: the command exited with 3"
        assert failed.files is not None
        files = Artifacts(await fleet.artifacts()).stored_files(failed.files)
        assert [(file.path, file.read()) for file in files["junit"]] == [("r.xml", b"report\n")]
        assert files["log"] == ()
        late = Workflow("late", shell="echo report > r.xml; sleep 100", outputs={"junit": "r.xml"}, timeout=1)
        failed = await fleet.wait((await fleet.create(late)).id)
        assert failed.error is not None
        assert failed.files is not None, "what took too long has failed"
