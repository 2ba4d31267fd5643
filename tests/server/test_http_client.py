"""``Client`` and ``AsyncClient`` against a server: typed answers, errors as exceptions, streams that continue."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from asterism import AsyncClient, Client, EditRejected, Task, edits
from asterism.api import ApiError, NotAllowed, NotFound, ServerUnreachable, documents
from asterism.api.client import EventLines
from asterism.api.credentials import Credentials
from asterism.api.local import plan_documents
from asterism.api.operation import Operation
from asterism.api.operations import OPERATIONS, ServerOperations
from asterism.base.listen_address import ListenAddress
from asterism.core.errors import AsterismError
from asterism.core.run.work import Workflow
from asterism.durable.journal_store import insert_plan
from asterism.durable.plan_actor import edit_plan
from asterism.durable.stored_plans import read_plan
from asterism.fleet.fleet import Fleet
from asterism.server import event_stream
from asterism.server.http_service import HttpService, endpoints, http_service
from asterism.store.memory import MemoryStore
from tests.durable.durable_scenes import chain
from tests.durable.durable_work import gate
from tests.server.server_scenes import ServerScene, plan_server, plan_text

BASE = "http://127.0.0.1:7400"


def client_of(scene: ServerScene, token: str) -> AsyncClient:
    return AsyncClient(BASE, token, transport=httpx.ASGITransport(scene.app))  # type: ignore[arg-type]


@pytest.mark.virtual_time
async def test_a_plan_is_submitted_edited_and_read_with_the_names_of_the_library() -> None:
    async with plan_server() as (scene, stage), client_of(scene, await scene.token()) as client:
        plan = await client.submit_plan(plan_text("a", "b"))
        while (await client.show_plan("nightly")).state != "completed":
            await stage.fleet().clock.sleep(1.0)
        plan = await client.show_plan("nightly")
        assert [task.status for task in plan.tasks] == ["completed", "completed"]
        add = edits.AddTask(Task("c", shell="true"))
        dry = await client.edit_plan("nightly", [add], dry_run=True)
        assert (dry.version, dry.dry_run) == (1, True)
        outcome = await client.edit_plan("nightly", [add], reason="more")
        assert outcome.edits[0]["op"] == "add_task"
        with pytest.raises(EditRejected) as rejected:
            await client.edit_plan("nightly", [edits.RemoveTask("x"), {"op": "cancel_task", "task_id": "y"}])
        assert [violation.rule for violation in rejected.value.violations] == ["unknown_task", "unknown_task"]
        versions = await client.list_versions("nightly")
        assert [version.reason for version in versions.items] == ["", "more"]
        assert (await client.show_version("nightly", 0)).version == 0
        events = await client.read_changes("nightly", plan.position)
        assert {event["kind"] for event in events.items} >= {"edit"}
        only = await client.read_changes("nightly", plan.position, kinds="edit,cycle")
        assert [change["kind"] for change in only.items] == ["edit"]
        with pytest.raises(ApiError, match="'edits' is not a kind of events; they are: task, edit"):
            await client.read_changes("nightly", kinds="edits")


@pytest.mark.virtual_time
async def test_a_client_waits_for_events_and_for_the_end_of_a_plan() -> None:
    async with plan_server() as (scene, stage), client_of(scene, await scene.token()) as client:
        await client.submit_plan(plan_text("a", call="wait"))
        await gate("a begun").wait()
        began = stage.now()
        assert not (await client.watch_plan("nightly", timeout=5.0)).ended
        quiet = await client.read_changes("nightly", "now", timeout=5.0)
        assert (quiet.items, quiet.reset) == ([], False)
        assert 9.9 <= stage.now() - began < 12.0
        waiting = asyncio.create_task(client.read_changes("nightly", quiet.position, kinds="plan", timeout=50.0))
        await asyncio.sleep(1.0)
        gate("a").set()
        assert [event["kind"] for event in (await waiting).items] == ["plan"]
        assert stage.now() - began < 30.0
        assert (await client.wait_plan("nightly")).counts == {"completed": 1}


@pytest.mark.virtual_time
async def test_errors_of_the_server_are_exceptions() -> None:
    async with plan_server() as (scene, _):
        async with client_of(scene, await scene.token("observe")) as client:
            with pytest.raises(NotFound, match=r"^there is no plan 'x'$"):
                await client.show_plan("x")
            with pytest.raises(NotAllowed, match="scope operate"):
                await client.submit_plan(plan_text("a"))
        async with client_of(scene, await scene.token()) as client:
            with pytest.raises(ApiError, match="the plan file has mistakes") as invalid:
                await client.submit_plan("tasks: 1")
            assert invalid.value.problem == "invalid-plan"
            assert invalid.value.violations
            assert (await client.me()).name == "ann"
            assert (await client.metrics()).endswith("# EOF\n")
            assert (await client.list_runs(limit=5)).items == []
        async with client_of(scene, "ast_wrong") as client:
            with pytest.raises(NotAllowed, match="unknown, expired or revoked"):
                await client.list_plans()


def test_both_clients_have_the_same_operations() -> None:
    own = [name for name, member in vars(ServerOperations).items() if isinstance(member, Operation)]
    built = {*own, *OPERATIONS}
    for kind in (Client, AsyncClient):
        assert built <= set(dir(kind))
        assert all(getattr(kind, name).__doc__ for name in built)


NOT_IN_THE_CLIENT = {"GET /login", "POST /api/v1/logout", "GET /api/v1/openapi.json"}
"""For browsers and generators of clients."""

STREAMED = {"GET /api/v1/plans/{plan}/events": "follow_plan", "GET /api/v1/events": "follow_fleet"}
"""The method of both clients for each endpoint whose answer is a stream."""


def test_every_stream_has_a_method() -> None:
    streams = {
        f"{endpoint.method} {endpoint.full_path}" for endpoint in endpoints() if endpoint.media == "text/event-stream"
    }
    assert streams == set(STREAMED)
    for name in STREAMED.values():
        assert inspect.isgenerator(getattr(Client(BASE, "token"), name)("1"))
        assert inspect.isasyncgen(getattr(AsyncClient(BASE, "token"), name)("1"))
        assert inspect.signature(getattr(Client, name)).parameters == (
            inspect.signature(getattr(AsyncClient, name)).parameters
        )


def test_every_endpoint_has_an_operation() -> None:
    own = [member for member in vars(ServerOperations).values() if isinstance(member, Operation)]
    sent = {(operation.method, operation.path) for operation in (*own, *OPERATIONS.values())}
    for endpoint in endpoints():
        if f"{endpoint.method} {endpoint.full_path}" not in NOT_IN_THE_CLIENT | set(STREAMED):
            assert any(
                endpoint.method == method and re.fullmatch(re.sub(r"{\w+}", "[^/]+", endpoint.path), path)
                for method, path in sent
            ), endpoint.full_path


@pytest.mark.parametrize("url", ["host:7400", "http://host.example:7400", "ftp://127.0.0.1", "http://10.0.0.1"])
def test_a_token_is_not_sent_over_plain_http_to_another_machine(url: str) -> None:
    with pytest.raises(AsterismError, match="https"):
        Client(url, "ast_secret")
    assert "ast_secret" not in repr(Client(BASE, "ast_secret"))


def test_an_event_that_breaks_off_is_not_skipped() -> None:
    lines = EventLines("1")
    assert [lines.add(line) for line in ("id: 2", "event: task", 'data: {"a"')] == [None] * 3
    lines.reset()
    assert lines.last_id == "1"
    for line in (": alive", "", "id: 2", "event: task", "data: {}"):
        assert lines.add(line) is None
    assert lines.add("") == ("2", "task", "{}")
    assert lines.last_id == "2"


@asynccontextmanager
async def a_server() -> AsyncIterator[tuple[Fleet, HttpService, str]]:
    """A server on a socket of this machine, and a token."""
    fleet = Fleet(MemoryStore(), by="server")
    async with fleet, http_service(fleet, ListenAddress("127.0.0.1", 0)) as service:
        yield fleet, service, (await Credentials(fleet.store).create("ann", ["admin"], by="test")).token


async def plan_view(fleet: Fleet) -> documents.Plan:
    return plan_documents.view(await read_plan(fleet, "nightly"), now=0.0)


ODD_NAMES = ("a/b", "/", ".", "..", "~.", "~~..", "a%2Fb", "%2e%2e", "a b", "a?b#c", "why", "ä")


async def test_tasks_of_any_name_are_read_over_a_socket() -> None:
    async with a_server() as (fleet, service, token), AsyncClient(service.url, token) as client:
        await insert_plan(fleet.store, chain(*ODD_NAMES))
        for name in ODD_NAMES:
            assert (await client.show_task("nightly", name)).id == name
            assert (await client.explain_task("nightly", name)).task == name
            assert (await client.read_task_logs("nightly", name)).items == []
        with pytest.raises(NotFound, match="no plan has such a name"):
            await client.show_plan("nightly/tasks/a")  # in keys of a store a slash separates a plan from its parts


async def test_a_plan_a_series_and_a_schedule_named_with_dots_are_found_over_a_socket() -> None:
    async with a_server() as (fleet, service, token), AsyncClient(service.url, token) as client:
        await fleet.workflows.add(Workflow("w", argv=["true"]))
        for name in (".", "..", "~."):
            await client.submit_plan(plan_text("a"), name=name)
            assert (await client.show_plan(name)).name == name
            assert (await client.cancel_plan(name)).name == name
            events = client.follow_plan(name, "0")
            assert (await anext(events)).position
            await events.aclose()
            await client.add_schedule(name, workflow="w", every=3600)
            assert (await client.show_schedule(name)).name == name
            await client.claim_series(name, 5)
            assert (await client.show_series(name)).active == 5
        assert (await client.claim_series("owner/repository", 5)).name == "owner/repository"
        with pytest.raises(NotFound, match=r"^there is no plan '\.\.\.'"):
            await client.show_plan("...")


async def test_the_blocking_client_follows_a_plan_over_a_socket() -> None:
    async with a_server() as (fleet, service, token):
        await insert_plan(fleet.store, chain("a"))

        position = (await plan_view(fleet)).position

        def follow() -> list[int]:
            with Client(service.url, token) as client:
                events = client.follow_plan("nightly", position)
                received = [next(events), next(events)]
                events.close()
                return [event.fields["version"] for event in received]

        following = asyncio.create_task(asyncio.to_thread(follow))
        for name in ("x", "y"):
            batch = edits.EditBatch((edits.AddTask(Task(name, shell="true")),), "bob")
            await edit_plan(fleet, "nightly", batch)
        assert await following == [1, 2]


async def test_a_stream_continues_when_the_server_comes_back() -> None:
    async with Fleet(MemoryStore(), by="server") as fleet:
        await insert_plan(fleet.store, chain("a"))
        token = (await Credentials(fleet.store).create("ann", ["observe"], by="test")).token
        async with http_service(fleet, ListenAddress("127.0.0.1", 0)) as service:
            port = int(service.url.rpartition(":")[2])
            client = AsyncClient(service.url, token)
            events = client.follow_plan("nightly", (await client.show_plan("nightly")).position)
            first = asyncio.create_task(anext(events))
            await edit_plan(fleet, "nightly", edits.EditBatch((edits.AddTask(Task("x", shell="true")),)))
            assert (await first).fields["version"] == 1
            second = asyncio.create_task(anext(events))
        await edit_plan(fleet, "nightly", edits.EditBatch((edits.AddTask(Task("y", shell="true")),)))
        with pytest.raises(ServerUnreachable, match="does not answer"):
            await client.show_plan("nightly")
        async with http_service(fleet, ListenAddress("127.0.0.1", port)):
            assert (await second).fields["version"] == 2
            await events.aclose()
            await client.close()


async def test_a_fleet_is_followed_over_a_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "LOOK_INTERVAL", 0.01)
    async with a_server() as (fleet, service, token), AsyncClient(service.url, token) as client:
        await fleet.workflows.add(Workflow("w", argv=["true"]))
        with Client(service.url, token) as blocking_client:
            events, same = client.follow_fleet(), blocking_client.follow_fleet()

            async def received() -> documents.FleetEvent:
                event = await anext(events)
                assert await asyncio.to_thread(next, same) == event
                return event

            assert (await received()).kind == "reset"
            made = (await client.create_run("w")).id
            first = await received()
            assert (first.kind, first.fields["id"]) == ("run", made)
            await client.cancel_run(made)
            second = await received()
            assert second.fields["status"] == "cancelled"
            later = client.follow_fleet(first.position)
            assert await anext(later) == second
            same.close()
            for stream in (events, later):
                await stream.aclose()


async def test_a_stream_that_is_refused_raises_the_error_of_the_server() -> None:
    async with a_server() as (_, service, token), AsyncClient(service.url, token) as client:
        with pytest.raises(NotFound, match="there is no plan 'x'"):
            await anext(client.follow_plan("x"))
        with Client(service.url, token) as blocking_client, pytest.raises(NotFound, match="there is no plan 'x'"):
            await asyncio.to_thread(next, blocking_client.follow_plan("x"))
        async with AsyncClient(service.url, "ast_wrong") as stranger:
            with pytest.raises(NotAllowed):
                await anext(stranger.follow_fleet())


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "asterism.api.client")
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(AsterismError, match=r"a client of a server needs httpx: install the extra 'http'"):
        importlib.import_module("asterism.api.client")
