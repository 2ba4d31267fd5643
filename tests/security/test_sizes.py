"""Oversized and deeply nested JSON, odd names, slow readers and writers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from asterism.api import operation
from asterism.api.credentials import Credentials
from asterism.api.local import schedule_handlers
from asterism.base import http_limits
from asterism.base.http_limits import Limits
from asterism.base.listen_address import ListenAddress
from asterism.core.record import encode
from asterism.durable.journal_store import insert_plan
from asterism.fleet.fleet import Fleet
from asterism.planfile import loader
from asterism.server import endpoint
from asterism.server.http_service import http_service
from asterism.server.request_guard import SERVER_LIMITS
from asterism.store.memory import MemoryStore
from tests.durable.durable_scenes import chain
from tests.long_tests import rest_long
from tests.security.test_requests import problem
from tests.server.server_scenes import server_scene

EDITS = "/api/v1/plans/nightly/edits"
JSON = {"content-type": "application/json"}


async def test_a_body_that_is_too_large_is_refused_before_it_is_read() -> None:
    async with server_scene() as scene, scene.client() as client:
        await insert_plan(scene.fleet.store, chain("a"))
        answer = await client.post(EDITS, content=b"[" * (operation.LARGEST_BODY + 1), headers=JSON)
        assert "the limit is" in problem(answer, 413)

        async def unending() -> AsyncIterator[bytes]:
            yield b"{}"

        problem(await client.post(EDITS, content=unending(), headers=JSON), 411)


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"edits":' + b"[" * 100 + b"]" * 100 + b"}",
        b'{"edits": [], "edits": []}',
        b'{"base_version": NaN, "edits": []}',
        b'{"base_version": 1e999, "edits": []}',
        b'{"base_version": ' + b"9" * 5000 + b', "edits": []}',
        b'{"reason": "\\ud800", "edits": []}',
        b"\xff\xfe",
        b'{"edits": []',
    ],
)
async def test_what_is_not_strict_json_is_refused(body: bytes) -> None:
    async with server_scene() as scene, scene.client() as client:
        await insert_plan(scene.fleet.store, chain("a"))
        assert "not valid JSON" in problem(await client.post(EDITS, content=body, headers=JSON), 400)


async def test_without_the_limit_deep_json_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ablation: the same body then reaches the edit."""
    monkeypatch.setattr(endpoint, "MAX_DEPTH", 200)
    body = b'{"edits":' + b"[" * 100 + b"]" * 100 + b"}"
    async with server_scene() as scene, scene.client() as client:
        await insert_plan(scene.fleet.store, chain("a"))
        problem(await client.post(EDITS, content=body, headers=JSON), 422)


async def test_many_small_edits_do_not_pass_the_limit_of_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asterism.api.local.edit_handlers.MAX_TASKS", 3)
    async with server_scene() as scene, scene.client() as client:
        await insert_plan(scene.fleet.store, chain("a"))
        answers = [
            await client.post(EDITS, json={"edits": [{"op": "add_task", "task": {"id": name, "shell": "true"}}]})
            for name in "wxyz"
        ]
        assert [answer.status_code for answer in answers] == [200, 200, 413, 413]
        await client.post(EDITS, json={"edits": [{"op": "remove_task", "task_id": "w"}]})
        again = await client.post(EDITS, json={"edits": [{"op": "add_task", "task": {"id": "y", "shell": "true"}}]})
        assert again.status_code == 200


async def test_every_edit_that_cannot_be_read_is_a_violation() -> None:
    async with server_scene() as scene, scene.client() as client:
        await insert_plan(scene.fleet.store, chain("a"))
        unreadable = [{"op": "nonsense"}, {"op": "cancel_task", "task_id": "a"}, {"op": "add_task"}, {}]
        for path in ("edits", "retry", "cycles/1/answer", "approvals/1/approve"):
            answer = await client.post(f"/api/v1/plans/nightly/{path}", json={"edits": unreadable})
            problem(answer, 422)
            assert answer.json()["type"].endswith("invalid-edits")
            assert [violation["edit"] for violation in answer.json()["violations"]] == [0, 2, 3]


async def test_edits_of_a_retry_have_the_limits_of_edits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asterism.api.local.edit_handlers.MAX_TASKS", 3)
    async with server_scene(edits_per_minute=2) as scene, scene.client() as client:
        await insert_plan(scene.fleet.store, chain("a", "b"))
        add = [{"op": "add_task", "task": {"id": name, "shell": "true"}} for name in "xy"]
        retry = "/api/v1/plans/nightly/retry"
        assert "more than 3 tasks" in problem(await client.post(retry, json={"edits": add}), 413)
        problem(await client.post(retry, json={}), 409)
        assert "too many edits" in problem(await client.post(retry, json={}), 429)


async def test_a_body_of_another_type_is_refused() -> None:
    """A form of another page cannot send JSON without a preflight, which is refused."""
    async with server_scene() as scene, scene.client() as client:
        await insert_plan(scene.fleet.store, chain("a"))
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
            answer = await client.post(EDITS, content=b'{"edits": []}', headers={"content-type": kind})
            problem(answer, 415)


async def test_a_compressed_body_is_refused() -> None:
    async with server_scene() as scene, scene.client() as client:
        await insert_plan(scene.fleet.store, chain("a"))
        for encoding in ("gzip", "gzip, gzip", "br"):
            answer = await client.post(EDITS, content=b"{}", headers=JSON | {"content-encoding": encoding})
            assert "must not be compressed" in problem(answer, 415)
        answer = await client.post(EDITS, json={"edits": []}, headers={"content-encoding": "identity"})
        assert answer.status_code == 200


async def test_a_batch_and_a_plan_have_a_limit_of_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asterism.api.local.edit_handlers.MAX_TASKS", 3)
    async with server_scene() as scene, scene.client() as client:
        await insert_plan(scene.fleet.store, chain("a", "b"))
        add = [{"op": "add_task", "task": {"id": name, "shell": "true"}} for name in "xy"]
        assert "more than 3 tasks" in problem(await client.post(EDITS, json={"edits": add}), 413)
        many = [{"op": "cancel_task", "task_id": "a"}] * 5001
        problem(await client.post(EDITS, json={"edits": many}), 422)
        text = "asterism: 1\ntasks: {" + ", ".join(f"t{n}: {{shell: x}}" for n in range(4)) + "}"
        assert "limit is 3" in problem(await client.post("/api/v1/plans", json={"text": text, "name": "p"}), 413)


@pytest.mark.parametrize("small", [10, 50_000], ids=["guarded", "ablation"])
async def test_a_large_file_is_read_beside_the_event_loop(small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else heartbeats and leases would wait for it."""
    threads = list[threading.Thread]()
    real = loader.examine

    def noted(*arguments: Any, **named: Any) -> Any:
        threads.append(threading.current_thread())
        return real(*arguments, **named)

    monkeypatch.setattr(schedule_handlers, "SMALL_FILE", small)
    monkeypatch.setattr(loader, "examine", noted)
    async with server_scene() as scene, scene.client() as client:
        answer = await client.post("/api/v1/plans", json={"text": "asterism: 1\ntasks: {a: {shell: x}}", "name": "p"})
        assert answer.status_code == 201
        timed = {"name": "s", "text": "asterism: 1\ntasks: {a: {shell: x}}", "every": 60}
        assert (await client.post("/api/v1/schedules", json=timed)).status_code == 201
    assert [thread is threading.main_thread() for thread in threads] == [small == 50_000] * 2


@pytest.mark.parametrize(
    "name", ["../../../etc/passwd", "%2e%2e%2fsecrets", "a\nb", "a\0b", "/etc/passwd", "C:\\secret", "x" * 600]
)
async def test_a_name_is_never_a_path(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task may have any name; logs and results are found by ids that the server made."""
    opened: list[object] = []
    real = Path.open
    async with server_scene() as scene, scene.client() as client:
        await insert_plan(scene.fleet.store, chain("a"))
        monkeypatch.setattr(Path, "open", lambda self, *a, **t: (opened.append(self), real(self, *a, **t))[1])
        quoted = quote(name, safe="")
        for path in (f"plans/{quoted}", f"plans/nightly/tasks/{quoted}", f"plans/nightly/tasks/{quoted}/logs"):
            assert (await client.get(f"/api/v1/{path}")).status_code in (404, 405)
        for path in (f"runs/{quoted}", f"devices/{quoted}", f"schedules/{quoted}", f"plans/nightly/versions/{quoted}"):
            assert (await client.get(f"/api/v1/{path}")).status_code in (404, 405)
        assert (await client.get(f"/api/v1/series/{quoted}")).status_code in (404, 405, 422)
    assert opened == []


# -- over a socket -----------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def listening(**limited: float) -> AsyncIterator[tuple[Fleet, int, str]]:
    """A server on a socket, its port and a token."""
    limits = Limits(**{**encode(SERVER_LIMITS), **limited})
    fleet = Fleet(MemoryStore(), by="server")
    async with fleet, http_service(fleet, ListenAddress("127.0.0.1", 0), limits=limits) as service:
        token = (await Credentials(fleet.store).create("ann", ["admin"], by="test")).token
        yield fleet, int(service.url.rpartition(":")[2]), token


def request(path: str, token: str) -> bytes:
    head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}"
    return f"{head}\r\nConnection: close\r\n\r\n".encode()


async def closed(reader: asyncio.StreamReader) -> bytes:
    """What the server sends until it closes the connection."""
    with contextlib.suppress(ConnectionError):
        return await reader.read()
    return b""


async def test_a_client_that_sends_its_head_slowly_is_disconnected() -> None:
    """Slowloris: many connections, each with a request that never ends."""
    async with listening(head=0.3) as (_, port, token):
        slow = [await asyncio.open_connection("127.0.0.1", port) for _ in range(30)]
        for _, writer in slow:
            writer.write(b"GET /api/v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = (
            f"GET /api/v1/me HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
        )
        writer.write(head.encode())
        assert b'"name":"ann"' in await closed(reader)
        assert [await closed(reader) for reader, _ in slow] == [b""] * 30
        for _, stream in [*slow, (reader, writer)]:
            stream.close()


async def test_a_client_that_sends_its_body_slowly_is_refused() -> None:
    async with listening(head=0.3, gap=0.3) as (fleet, port, token):
        await insert_plan(fleet.store, chain("a"))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            f"POST {EDITS} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
            'Content-Length: 1000\r\n\r\n{"edits"'.encode()
        )
        assert b" 408 " in (await closed(reader)).partition(b"\r\n")[0]
        writer.close()


@pytest.mark.parametrize("guarded", rest_long([True, False], 1), ids=["guarded", "ablation"])
async def test_a_client_that_does_not_read_is_disconnected(guarded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the safeguard it is connected after several times the limit."""
    monkeypatch.setattr(endpoint, "SLOWEST_READ", 0.3 if guarded else 3600.0)
    fleet = Fleet(MemoryStore(), by="server")
    async with fleet, http_service(fleet, ListenAddress("127.0.0.1", 0)) as service:
        await insert_plan(fleet.store, chain(*[f"t{number}" for number in range(300)]))
        token = (await Credentials(fleet.store).create("ann", ["admin"], by="test")).token
        head = f"GET /api/v1/plans/nightly HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n\r\n"
        connections = service.server.listeners[0].connections

        async def admitted(wanted: bool) -> None:
            while bool(connections.admitted) is not wanted:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

        with socket.create_connection(("127.0.0.1", int(service.url.rpartition(":")[2]))) as client:
            client.setblocking(False)
            await asyncio.get_running_loop().sock_sendall(client, head.encode() * 200)  # more than buffers hold
            await admitted(True)
            ended = asyncio.create_task(admitted(False))
            await asyncio.wait([ended], timeout=None if guarded else 1.0)
            assert ended.done() is guarded
            ended.cancel()


@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "ablation"])
async def test_a_body_in_chunks_is_refused_also_with_a_false_length(
    guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The length in the head counts for the limits, but chunks may have any length."""
    if not guarded:
        monkeypatch.setattr(http_limits, "length_of", lambda request, most: 4)
    async with listening() as (_, port, token):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            f"POST {EDITS} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n"
            "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n8\r\nnot json\r\n0\r\n\r\n".encode()
        )
        answer = await closed(reader)
        writer.close()
        assert (b" 411 " in answer) is guarded
        assert (b"the body is not valid JSON" in answer) is not guarded


async def test_what_is_not_http_is_a_problem_too() -> None:
    async with listening() as (_, port, _token):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"\0\0 nonsense\r\n\r\n")
        head, _, body = (await closed(reader)).partition(b"\r\n\r\n")
        writer.close()
        assert b"application/problem+json" in head
        assert json.loads(body)["status"] == 400


async def test_a_connection_may_change_hands_and_each_credential_has_connections_of_its_own() -> None:
    """A browser keeps its connection when somebody else logs in; two programs may have one name."""
    async with listening(per_client=1) as (fleet, port, _):
        tokens = [(await Credentials(fleet.store).create("ci", ["observe"], by="test")).token for _ in range(2)]
        headers = [{"authorization": f"Bearer {token}"} for token in tokens]
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client, httpx.AsyncClient() as other:
            for header in (*headers, headers[0]):
                assert (await client.get("/api/v1/me", headers=header)).status_code == 200
            async with other.stream("GET", f"http://127.0.0.1:{port}/api/v1/events", headers=headers[1]) as events:
                assert events.status_code == 200
                assert (await client.get("/api/v1/me", headers=headers[0])).status_code == 200
                refused = await client.get("/api/v1/me", headers=headers[1])
                assert "1 requests of ci" in problem(refused, 429)


async def test_a_header_that_is_too_long_is_refused() -> None:
    async with listening() as (_, port, token):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = b"GET /api/v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nX-Long: "
        writer.write(head + b"x" * 100_000 + b"\r\n\r\n")  # it may be read in one piece, or in several
        answer = await closed(reader)
        assert answer.partition(b"\r\n")[0].split()[1] in (b"400", b"431")
        writer.close()
        assert token not in answer.decode("latin-1")


async def test_tokens_and_codes_are_in_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with listening() as (fleet, port, token):
        code = await Credentials(fleet.store).create_login("ann", ["admin"], by="ann")
        for path in (f"/login?code={code}", f"/login?code={code}", "/api/v1/plans/x", "/nothing"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            head = (
                f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
            )
            writer.write(head.encode())
            await closed(reader)
            writer.close()
    logged = caplog.text + json.dumps([str(record.args) for record in caplog.records])
    assert token not in logged
    assert code not in logged
