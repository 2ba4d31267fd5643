"""People whom a proxy has logged in: believed from the proxy alone, by their groups of this moment; and what each check
is good for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from asterism.api.credentials import InvalidScope
from asterism.api.operation import API
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.task import Task
from asterism.durable.durable_orchestrator import DurableOrchestrator
from asterism.server import people_proxy
from asterism.server.people_proxy import WORD_LASTS, InvalidProxy, PeopleProxy, parse_groups, parse_networks
from asterism.server.request_guard import Gate
from tests.process_scenes import PATIENCE
from tests.server.server_scenes import BASE, EventClient, ServerScene, server_scene

ME = f"{API}/me"
SECRET = b"a-secret-of-the-proxy-and-the-server"
both = pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "ablation"])


def the_proxy(**more: Any) -> PeopleProxy:
    scopes = parse_groups(["ops=operate", "ops=series", "night=edit:nightly", "*=observe"])
    return PeopleProxy(parse_networks(["10.0.0.7", "10.1.0.0/16", "fd00::/64"]), scopes, SECRET, **more)


@asynccontextmanager
async def from_address(
    scene: ServerScene, peer: str = "10.0.0.7", user: str | bytes | None = "ann", groups: str = "", **headers: str
) -> AsyncIterator[httpx.AsyncClient]:
    """A client whose requests come from an address."""
    headers = {"x-asterism-page": "page", "x-asterism-proxy-secret": SECRET.decode(), **headers}
    sent: list[tuple[str, str | bytes]] = [*headers.items()]
    sent += [("x-forwarded-user", user)] if user is not None else []
    sent += [("x-forwarded-groups", groups)] if groups else []
    transport = httpx.ASGITransport(scene.app, client=(peer, 1))
    async with httpx.AsyncClient(transport=transport, base_url=BASE, headers=sent) as client:
        yield client


async def status(scene: ServerScene, *arguments: Any, **named: Any) -> int:
    async with from_address(scene, *arguments, **named) as client:
        return (await client.get(ME)).status_code


async def test_a_person_has_the_scopes_of_the_groups_that_the_proxy_names() -> None:
    async with server_scene(people=the_proxy(logout="/oauth2/sign_out")) as scene:
        for peer in ("10.0.0.7", "10.1.2.3", "::ffff:10.0.0.7", "fd00::1"):
            async with from_address(scene, peer, groups="dev, ops") as client:
                me = (await client.get(ME)).json()
                assert (me["name"], me["kind"], me["logout"]) == ("ann", "proxy", "/oauth2/sign_out")
                assert me["scopes"] == ["observe", "operate", "series"]
        async with from_address(scene) as client:  # the next request, without the group
            assert (await client.get(ME)).json()["scopes"] == ["observe"]
            assert (await client.post(f"{API}/plans/x/cancel", json={})).status_code == 403
            assert (await client.post(f"{API}/logout")).status_code == 409
        assert await scene.credentials.all() == [], "no session outlives the word of the proxy"


async def test_a_person_approves_the_start_of_a_task_by_the_groups_that_the_proxy_names() -> None:
    plan = Constellation("release")
    plan.add(Task("deploy", shell="true", approval={"by": "group:release-managers"}))
    take = {"edits": [{"op": "update_task", "task_id": "deploy", "changes": {"approval": None}}]}
    async with server_scene(people=the_proxy()) as scene:
        running = asyncio.create_task(DurableOrchestrator(scene.fleet, local=1).run(plan))
        decision = f"{API}/plans/release/approvals/1/approve"
        async with from_address(scene, groups="ops, release-managers") as manager:
            async with asyncio.timeout(PATIENCE):
                while (await manager.get(f"{API}/plans/release/approvals")).json().get("items", []) == []:
                    await scene.fleet.clock.sleep(0.05)
            async with from_address(scene, user="release-managers", groups="ops") as other:
                refused = await other.post(decision, json={})
                taken = await other.post(f"{API}/plans/release/edits", json=take)
            assert (refused.status_code, refused.json()["type"]) == (403, "urn:asterism:problem:approval-forbidden")
            assert (taken.status_code, "only group:release-managers removes" in taken.text) == (422, True)
            async with from_address(scene, user="eve", groups="release-managers") as observer:  # without operate
                assert (await observer.get(ME)).json()["scopes"] == ["observe"]
                refused = await observer.post(decision, json={})
            assert (refused.status_code, refused.json()["type"]) == (403, "urn:asterism:problem:scope-missing")
            async with from_address(scene, user="group:release-managers", groups="ops") as other:
                assert (await other.post(decision, json={})).status_code == 403
                assert (await other.post(f"{API}/plans/release/edits", json=take)).status_code == 422
            assert (await manager.post(decision, json={"author": "release-managers"})).status_code == 403
            assert (await manager.post(decision, json={})).status_code == 200
        assert (await running).state == "completed"


async def test_the_groups_that_the_proxy_names_may_take_the_approval_of_a_task_away() -> None:
    plan = Constellation("release")
    plan.add(Task("deploy", shell="true", approval={"by": "release-managers"}))
    take = {"edits": [{"op": "update_task", "task_id": "deploy", "changes": {"approval": None}}]}
    async with server_scene(people=the_proxy()) as scene:
        running = asyncio.create_task(DurableOrchestrator(scene.fleet, local=1).run(plan))
        async with from_address(scene, groups="ops, release-managers") as manager:
            async with asyncio.timeout(PATIENCE):
                while (await manager.get(f"{API}/plans/release/approvals")).json().get("items", []) == []:
                    await scene.fleet.clock.sleep(0.05)
            assert (await manager.post(f"{API}/plans/release/edits", json={**take, "dry_run": True})).status_code == 200
            assert (await manager.post(f"{API}/plans/release/edits", json=take)).status_code == 200
        assert (await running).state == "completed"


@both
async def test_nobody_else_names_a_person(guarded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not guarded:
        monkeypatch.setattr(PeopleProxy, "_check_sender", lambda *_: None)
    async with server_scene(people=the_proxy()) as scene:
        for peer in ("10.0.0.8", "127.0.0.1", "192.0.2.1", "::1", "testclient"):
            assert await status(scene, peer, groups="ops") == (403 if guarded else 200)
        token = await scene.token()
        bearer = {"authorization": f"Bearer {token}"}
        assert await status(scene, "192.0.2.1", **bearer) == (403 if guarded else 200)
        assert await status(scene, "192.0.2.1", user=None, **bearer) == 200
        assert await status(scene, "192.0.2.1", user=None, groups="ops") == (403 if guarded else 401)
        assert await status(scene, user=None) == 401


async def test_the_header_means_nothing_to_a_server_that_knows_no_proxy() -> None:
    async with server_scene() as scene:
        assert await status(scene, "127.0.0.1", groups="ops") == 401


@both
async def test_the_secret_is_needed_too(guarded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not guarded:
        monkeypatch.setattr(people_proxy.hmac, "compare_digest", lambda *_: True)
    async with server_scene(people=the_proxy()) as scene:
        wrong = {"x-asterism-proxy-secret": "x" * 40}
        assert await status(scene, **wrong) == (403 if guarded else 200)
        assert await status(scene, **{"x-asterism-proxy-secret": SECRET.decode()}) == 200


@both
async def test_a_form_of_another_site_does_nothing_in_the_name_of_a_person(
    guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not guarded:
        monkeypatch.setattr(Gate, "_check_page", lambda *_: None)
    async with server_scene(people=the_proxy()) as scene, from_address(scene, groups="ops") as client:
        event = {"json": {"name": "paid"}}
        assert (await client.post(f"{API}/sent-events", **event, headers={"x-asterism-page": ""})).status_code == (
            401 if guarded else 201
        )
        for headers in ({"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}, {"host": "evil.example"}):
            assert (await client.post(f"{API}/sent-events", **event, headers=headers)).status_code in (403, 421)


async def test_a_name_is_one_short_line_and_is_sent_once() -> None:
    async with server_scene(people=the_proxy()) as scene:
        for user, name in (("  ann  ", "ann"), ("Zoë".encode(), "Zoë"), ("Zoe\u0308".encode(), "Zoë")):
            async with from_address(scene, user=user) as client:
                assert (await client.get(ME)).json()["name"] == name
        for user in ("", "x" * 101, "ann\tbob", "ann\u202egpj.exe".encode(), "a\u200bnn".encode(), b"\x85"):
            assert await status(scene, user=user) == 401, user
        async with from_address(scene) as client:
            twice = [*client.headers.raw, (b"x-forwarded-user", b"bob")]
            assert (await client.get(ME, headers=httpx.Headers(twice))).status_code == 400


async def test_somebody_without_a_group_is_told_so() -> None:
    people = PeopleProxy(parse_networks(["10.0.0.7"]), parse_groups(["ops=operate"]), SECRET)
    async with server_scene(people=people) as scene, from_address(scene, groups="dev|sales") as client:
        answer = await client.get(ME)
        assert (answer.status_code, "none of your groups" in answer.json()["detail"]) == (403, True)


@pytest.mark.virtual_time
@both
async def test_a_stream_ends_when_the_proxy_has_to_be_asked_again(
    guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not guarded:
        monkeypatch.setattr("asterism.server.request_guard.WORD_LASTS", 1e9)
    async with server_scene(people=the_proxy()) as scene:
        token = await scene.token()
        named = {"x_forwarded_user": "ann", "x_asterism_page": "page"}
        monkeypatch.setattr(PeopleProxy, "_check_sender", lambda *_: None)
        monkeypatch.setattr(Gate, "caller", _by_the_proxy)
        stream = EventClient(scene, f"{API}/events", token, **named)
        with contextlib.suppress(TimeoutError):
            await stream_over(stream, WORD_LASTS + 30)
        assert stream.over == guarded


async def _by_the_proxy(gate: Gate, request: Any) -> Any:
    assert gate.people is not None
    return gate.people.person(request)


async def stream_over(stream: EventClient, timeout: float) -> None:
    import asyncio

    async with asyncio.timeout(timeout):
        await asyncio.shield(stream.task)


async def test_the_audit_log_has_the_person_and_the_address_that_the_proxy_names() -> None:
    async with server_scene(people=the_proxy()) as scene:
        forwarded = {"x-forwarded-for": "6.6.6.6, 192.0.2.9"}
        async with from_address(scene, groups="ops", **forwarded) as client:
            await client.post(f"{API}/sent-events", json={"name": "paid"})
        async with from_address(scene, "192.0.2.1", None, **forwarded) as client:
            headers = {"authorization": f"Bearer {await scene.token('operate', name='ci')}"}
            await client.post(f"{API}/sent-events", json={"name": "paid"}, headers=headers)
        async with scene.client("admin") as client:
            entries = (await client.get(f"{API}/audit")).json()["items"]
        who = [(entry["by"], entry["kind"], entry["address"]) for entry in entries]
        assert who == [("ci", "token", "192.0.2.1"), ("ann", "proxy", "192.0.2.9")]


def test_options_that_make_no_sense_are_refused() -> None:
    for networks in (["10.0.0.1/8"], ["proxy.example"], [""]):
        with pytest.raises(InvalidProxy):
            parse_networks(networks)
    for groups in (["ops"], ["=operate"]):
        with pytest.raises(InvalidProxy):
            parse_groups(groups)
    with pytest.raises(InvalidScope):
        parse_groups(["ops=root"])
    assert people_proxy.parse_groups(["cn=ops=observe"]) == {"cn=ops": frozenset({"observe"})}
    with pytest.raises(InvalidProxy, match="'cn=ops,ou=x' never matches"):
        parse_groups(["cn=ops,ou=x=observe"])
