"""Each safeguard of the server taken away: the attack that it stops then succeeds, so the tests of it prove something.

Those of hosts, scopes, repeated headers, deep JSON, chunks, large files and busy streams are beside their tests.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from asterism.api.credentials import Credential, Credentials
from asterism.api.local import edit_handlers
from asterism.base import http_limits
from asterism.base.http_server import LimitedProtocol
from asterism.base.listen_address import CannotServe, ListenAddress, parse_listen_address
from asterism.durable.journal_store import insert_plan
from asterism.server import endpoint, request_guard
from asterism.server.request_guard import Gate, RequestGuard
from asterism.store.protocol import PutRegister
from tests.durable.durable_scenes import chain
from tests.security.test_requests import ME, logged_in, problem
from tests.security.test_sizes import EDITS, JSON, closed, listening
from tests.server.server_scenes import ServerScene, server_scene

LOGOUT = "/api/v1/logout"
both = pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "ablation"])


@asynccontextmanager
async def session() -> AsyncIterator[tuple[ServerScene, httpx.AsyncClient]]:
    """A browser that has logged in."""
    async with server_scene() as scene, scene.stranger() as client:
        await logged_in(scene, client)
        yield scene, client


@both
async def test_a_form_of_another_site_changes_nothing(guarded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not guarded:
        monkeypatch.setattr(Gate, "_check_page_key", lambda *_: None)
    async with session() as (_, client):
        del client.headers["x-asterism-page"]
        assert (await client.post(LOGOUT)).status_code == (401 if guarded else 200)


@both
async def test_a_page_of_another_origin_reads_nothing(guarded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not guarded:
        monkeypatch.setattr(RequestGuard, "refusal", lambda *_: None)
    async with session() as (_, client):
        for headers in ({"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}):
            assert (await client.get(ME, headers=headers)).status_code == (403 if guarded else 200)


@both
async def test_a_token_that_was_revoked_or_has_expired_opens_nothing(
    guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not guarded:
        monkeypatch.setattr(Credential, "state", lambda *_: "active")
    async with server_scene() as scene:
        revoked, old = await scene.token("observe"), await scene.token("observe", valid_for=-1.0)
        await scene.credentials.revoke(revoked.split("_")[1])
        for token in (revoked, old):
            async with scene.client(token=token) as client:
                assert (await client.get(ME)).status_code == (401 if guarded else 200)


@both
async def test_the_id_of_a_token_without_its_secret_opens_nothing(
    guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not guarded:
        monkeypatch.setattr("asterism.api.credentials.hmac.compare_digest", lambda *_: True)
    async with server_scene() as scene:
        token = await scene.token("observe")
        async with scene.client(token=token[:-43] + "x" * 43) as client:
            assert (await client.get(ME)).status_code == (401 if guarded else 200)


@both
async def test_a_code_logs_in_once_also_for_two_at_one_time(guarded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async with server_scene() as scene, scene.stranger() as client:
        store = scene.fleet.store
        code = await scene.credentials.create_login("ann", ["admin"], by="ann")
        real = store.commit

        async def forgetful(writes: list[object]) -> object:
            kept = [
                write for write in writes if not (isinstance(write, PutRegister) and write.key.startswith("login/"))
            ]
            return await real(kept)  # type: ignore[arg-type]

        if not guarded:
            monkeypatch.setattr(store, "commit", forgetful)
        answers = await asyncio.gather(*(client.get(f"/login?code={code}") for _ in range(5)))
        assert [answer.status_code for answer in answers].count(303) == (1 if guarded else 5)


@both
async def test_a_credential_makes_only_so_many_edits_in_a_minute(
    guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not guarded:
        monkeypatch.setattr(Gate, "count_edit", lambda *_: None)
    async with server_scene(edits_per_minute=3) as scene, scene.client() as client:
        await insert_plan(scene.fleet.store, chain("a"))
        answers = [await client.post(EDITS, json={"edits": [], "dry_run": True}) for _ in range(5)]
        assert [answer.status_code for answer in answers].count(429) == (2 if guarded else 0)
        if guarded:
            assert int(answers[-1].headers["retry-after"]) > 0


@both
async def test_a_credential_has_only_so_many_requests_under_way(guarded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not guarded:
        monkeypatch.setattr(Gate, "counted", lambda *_: contextlib.nullcontext())
    async with listening(per_client=100) as (_, port, token):
        headers = {"authorization": f"Bearer {token}"}
        address = f"http://127.0.0.1:{port}/api/v1"
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(limits=limits, headers=headers) as client, contextlib.AsyncExitStack() as streams:
            for _ in range(request_guard.REQUESTS_AT_ONCE):
                stream = await streams.enter_async_context(client.stream("GET", f"{address}/events"))
                assert stream.status_code == 200
            assert (await client.get(f"{address}/me")).status_code == (429 if guarded else 200)


@both
async def test_wrong_tokens_are_slowed_down(guarded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not guarded:
        monkeypatch.setattr(http_limits.RecentEvents, "add", lambda *_: None)
    async with server_scene() as scene, scene.client(token="ast_wrong") as client:
        answers = [(await client.get(ME)).status_code for _ in range(request_guard.MAX_FAILURES + 2)]
        assert answers.count(429) == (2 if guarded else 0)


@both
async def test_large_bodies_headers_and_plans_are_refused(guarded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not guarded:
        monkeypatch.setattr(endpoint, "LARGEST_BODY", 1 << 30)
        monkeypatch.setattr(request_guard, "LONGEST_HEADERS", 1 << 30)
    monkeypatch.setattr(edit_handlers, "MAX_TASKS", 1 if guarded else 10)
    async with server_scene() as scene, scene.client() as client:
        await insert_plan(scene.fleet.store, chain("a"))
        body = b'{"edits": [], "dry_run": true' + b" " * (4 * 1024 * 1024) + b"}"
        assert (await client.post(EDITS, content=body, headers=JSON)).status_code == (413 if guarded else 200)
        assert (await client.get(ME, headers={"x-long": "x" * 20_000})).status_code == (431 if guarded else 200)
        add = [{"op": "add_task", "task": {"id": "b", "shell": "true"}}]
        assert (await client.post(EDITS, json={"edits": add})).status_code == (413 if guarded else 200)


@both
async def test_a_slow_head_is_cut_off(guarded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the safeguard the connection is open after several times the limit."""
    if not guarded:
        monkeypatch.setattr(LimitedProtocol, "_expect_a_head", lambda *_: None)
    async with listening(head=0.05) as (_, port, _token):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /api/v1/health HTTP/1.1\r\nX-")
        ended = asyncio.create_task(closed(reader))
        await asyncio.wait([ended], timeout=None if guarded else 0.3)
        assert ended.done() is guarded
        ended.cancel()
        writer.close()


@both
async def test_a_slow_body_is_cut_off(guarded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not guarded:
        monkeypatch.setattr(http_limits, "_next_part", lambda parts, gap, deadline: anext(parts, None))
    async with listening(head=0.05, gap=0.05) as (fleet, port, token):
        await insert_plan(fleet.store, chain("a"))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST {EDITS} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\nContent-Length: 1000"
        writer.write(f"{head}\r\n\r\n{{".encode())
        ended = asyncio.create_task(closed(reader))
        await asyncio.wait([ended], timeout=None if guarded else 0.3)
        assert ended.done() is guarded
        ended.cancel()
        writer.close()


@pytest.mark.parametrize("text", ["0.0.0.0:7400", "[::]:7400", "10.0.0.5:7400", "host.example:7400", "2130706433:1"])
def test_an_address_for_others_needs_tls_or_a_proxy(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CannotServe, match="--tls-cert"):
        parse_listen_address(text, None, None, False)
    assert parse_listen_address(text, None, None, True).behind_proxy
    monkeypatch.setattr(ListenAddress, "is_loopback", property(lambda self: True))  # the ablation
    assert not parse_listen_address(text, None, None, False).behind_proxy


def test_a_certificate_that_is_not_there_is_named(tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    key.touch()
    address = parse_listen_address("10.0.0.5:7400", str(tmp_path / "cert.pem"), str(key), False)
    with pytest.raises(CannotServe, match=r"^no such file: \S+cert\.pem$"):
        address.tls_context()


async def test_a_cookie_of_a_session_is_no_bearer_of_scopes_beyond_its_own() -> None:
    """The session of a link with the scope observe changes nothing, whatever else the browser sends."""
    async with server_scene() as scene, scene.stranger() as client:
        code = await Credentials(scene.fleet.store).create_login("bob", ["observe"], by="ann")
        key = (await client.get(f"/login?code={code}")).headers["location"].partition("#key=")[2]
        await insert_plan(scene.fleet.store, chain("a"))
        answer = await client.post("/api/v1/plans/nightly/cancel", headers={"x-asterism-page": key})
        assert "scope operate" in problem(answer, 403)
