"""MCP over streamable HTTP: clients of the official SDK on a real socket; credentials, origins, sessions and limits."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import httpcore2  # noqa: F401  (the first client would import it in the loop of its test)
import httpx
import httpx2
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

from asterism.api.credentials import Credentials
from asterism.api.operation import LARGEST_BODY
from asterism.base.listen_address import ListenAddress
from asterism.core.run.work import Workflow
from asterism.fleet.fleet import Fleet
from asterism.mcp import mcp_http
from asterism.mcp.mcp_http import mcp_routes
from asterism.server.endpoint import ServerState
from asterism.server.http_service import HttpService, http_service, server_app
from asterism.server.request_guard import CredentialEnds
from asterism.store.memory import MemoryStore
from tests.mcp.mcp_scenes import ADD, MODES, REMOVE, Person, Refused, TasksExtension, ask_task, call
from tests.process_scenes import PATIENCE
from tests.security.test_requests import problem
from tests.server.server_scenes import BASE, plan_text, server_scene

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}
ACCEPT = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-11-25"}


class HttpScene:
    """A server on a socket of this machine. No process runs its plans."""

    def __init__(self, service: HttpService, endpoint: Any) -> None:
        self.endpoint, self.service, self.state, self.fleet = endpoint, service, service.state, service.state.fleet
        self.url = f"{service.url}/mcp"
        self.credentials = Credentials(self.fleet.store)

    async def token(self, *scopes: str, name: str = "ann") -> str:
        return (await self.credentials.create(name, scopes or ["admin"], by="test")).token

    @asynccontextmanager
    async def client(self, *scopes: str, name: str = "ann", **options: Any) -> AsyncIterator[Client]:
        headers = {"authorization": f"Bearer {await self.token(*scopes, name=name)}"}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=PATIENCE) as http,
            Client(streamable_http_client(self.url, http_client=http), **options) as client,
        ):
            yield client

    async def begun(self, name: str, request: Coroutine[Any, Any, Any]) -> tuple[asyncio.Task[Any], str]:
        """A request of a caller, when the server has authenticated it; and the id of its credential."""
        [credential] = [candidate for candidate in await self.credentials.all() if candidate.name == name]
        await self._until(lambda: not self.state.gate._under_way._busy.get(credential.id))  # earlier requests are over
        task = asyncio.create_task(request)
        await self._until(lambda: self.state.gate._under_way._busy.get(credential.id))
        return task, credential.id

    async def _until(self, condition: Callable[[], Any]) -> None:
        for _ in range(10_000):
            if condition():
                return
            await asyncio.sleep(0.01)
        raise AssertionError("it never happened")

    @asynccontextmanager
    async def raw(self, **headers: str) -> AsyncIterator[httpx.AsyncClient]:
        more_headers = {name.replace("_", "-"): value for name, value in headers.items()}
        async with httpx.AsyncClient(headers={**ACCEPT, **more_headers}, timeout=PATIENCE) as client:
            yield client


@asynccontextmanager
async def http_scene() -> AsyncIterator[HttpScene]:
    fleet, routes = Fleet(MemoryStore(), by="server"), list[Any]()

    def mcp(state: ServerState) -> list[Any]:
        routes.extend(mcp_routes(state))
        return routes

    async with fleet, http_service(fleet, ListenAddress("127.0.0.1", 0), more=mcp) as service:
        yield HttpScene(service, routes[0].app)


async def submit(client: Client, *names: str, **options: Any) -> None:
    await call(client, "submit_plan", text=plan_text(*names), **options)


# -- what clients do ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
async def test_a_client_plans_watches_and_edits(mode: str) -> None:
    async with http_scene() as scene, scene.client(mode=mode) as client:
        assert {"read_plan", "edit_plan"} <= {tool.name for tool in (await client.list_tools()).tools}
        await submit(client, "a", "b", "c")
        document = await call(client, "read_plan", plan="nightly")
        waiting = asyncio.create_task(
            call(client, "wait_for_events", plan="nightly", since=document["position"], kinds="edit", timeout=50)
        )
        assert (await call(client, "edit_plan", plan="nightly", edits=[REMOVE], base_version=0))["version"] == 1
        assert (await waiting)["items"][0]["author"] == "ann"
        assert (await call(client, "undo_edit", plan="nightly"))["version"] == 2
        with pytest.raises(Refused, match="the edit was rejected"):
            await call(client, "edit_plan", plan="nightly", edits=[{"op": "remove_task", "task_id": "x"}])
        assert "nightly" in (await client.read_resource("asterism://plans/nightly/story")).contents[0].text  # type: ignore[union-attr]
        assert len((await client.list_prompts()).prompts) == 3


async def test_two_clients_with_their_own_credentials_edit_at_once() -> None:
    async with http_scene() as scene, scene.client() as ann, scene.client("edit:nightly", name="bob") as bob:
        await submit(ann, "a", "b")

        async def edit(client: Client, name: str) -> Any:
            edits = [{"op": "add_task", "task": {"id": name, "shell": "true"}}]
            return await call(client, "edit_plan", plan="nightly", edits=edits)

        done = await asyncio.gather(*(edit((ann, bob)[number % 2], f"t{number}") for number in range(12)))
        assert sorted(accepted["version"] for accepted in done) == list(range(1, 13))
        versions = (await call(bob, "list_versions", plan="nightly"))["items"][1:]
        assert [version["author"] for version in versions].count("ann") == 6
        assert {version["author"] for version in versions} == {"ann", "bob"}
        change = {"op": "update_task", "task_id": "b", "changes": {"timeout": 60}}
        answers = await asyncio.gather(
            *(call(client, "edit_plan", plan="nightly", edits=[change], base_version=12) for client in (ann, bob)),
            return_exceptions=True,
        )
        [refused] = [answer for answer in answers if isinstance(answer, Refused)]
        assert [violation["rule"] for violation in refused.problem["violations"]] == ["stale"]


async def test_a_token_that_may_do_everything_is_an_editor_over_mcp_and_a_person_over_the_api() -> None:
    async with http_scene() as scene, scene.client() as client:
        await submit(client, "a", "b", scopes=["edits=update_task tasks=* fields=timeout"])
        edit = {"op": "remove_task", "task_id": "b"}
        with pytest.raises(Refused) as refused:
            await call(client, "edit_plan", plan="nightly", edits=[edit])
        assert [violation["rule"] for violation in refused.value.problem["violations"]] == ["scope"]
        async with scene.raw(authorization=f"Bearer {await scene.token()}") as person:
            answer = await person.post(f"{scene.service.url}/api/v1/plans/nightly/edits", json={"edits": [edit]})
            assert (answer.status_code, answer.json()["version"]) == (200, 1)


@pytest.mark.parametrize("mode", MODES)
async def test_a_person_is_asked_over_http(mode: str) -> None:
    person = Person({"decision": "approve", "reason": "fine"})
    async with http_scene() as scene, scene.client(mode=mode, elicitation_callback=person) as client:
        await submit(client, "a", "b", approvals=["destructive"])
        edit = {"op": "remove_task", "task_id": "b"}
        assert (await call(client, "edit_plan", plan="nightly", edits=[edit]))["version"] == 1
        assert len(person.questions) == 1


async def test_long_work_is_a_task_over_http() -> None:
    tasks = TasksExtension()
    async with http_scene() as scene, scene.client(extensions=[tasks]) as client:
        await scene.fleet.workflows.add(Workflow("dig", shell="true"))
        handle: Any = await client.session.call_tool(
            "create_run", {"workflow": "dig", "follow": True}, allow_claimed=True
        )
        assert (await ask_task(client.session, "get", handle.task_id)).status == "working"
        await ask_task(client.session, "cancel", handle.task_id)
        state = await ask_task(client.session, "get", handle.task_id)
        assert state.result is not None
        assert state.result.structured_content["status"] == "cancelled"


# -- who may -----------------------------------------------------------------------------------------------------------


async def test_foreign_hosts_and_origins_and_unknown_callers_are_refused() -> None:
    async with http_scene() as scene, scene.raw() as stranger:
        token = f"Bearer {await scene.token()}"
        for method in ("POST", "GET", "DELETE"):
            answer = await stranger.request(method, scene.url, json=INITIALIZE)
            problem(answer, 401)
            assert answer.headers["www-authenticate"].startswith("Bearer")
        for headers, status in (
            ({"authorization": token, "origin": "https://evil.example"}, 403),
            ({"authorization": token, "host": "evil.example"}, 421),
            ({"authorization": token, "sec-fetch-site": "cross-site"}, 403),
            ({"authorization": "Bearer ast_wrong"}, 401),
            ({"cookie": f"asterism_session={token.removeprefix('Bearer ')}"}, 401),  # without the key of a page
        ):
            problem(await stranger.post(scene.url, json=INITIALIZE, headers=headers), status)
        own = {"authorization": token, "origin": scene.service.url}
        assert (await stranger.post(scene.url, json=INITIALIZE, headers=own)).status_code == 200


async def test_a_session_belongs_to_the_credential_that_opened_it() -> None:
    async with http_scene() as scene, scene.raw(authorization=f"Bearer {await scene.token()}") as client:
        opened = await client.post(scene.url, json=INITIALIZE)
        session = opened.headers["mcp-session-id"]
        listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
        ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        assert (await client.post(scene.url, json=ready, headers={"mcp-session-id": session})).status_code == 202
        assert (await client.post(scene.url, json=listing, headers={"mcp-session-id": session})).status_code == 200
        async with scene.raw(authorization=f"Bearer {await scene.token(name='bob')}") as other:
            for method in ("POST", "GET", "DELETE"):
                answer = await other.request(method, scene.url, json=listing, headers={"mcp-session-id": session})
                assert answer.status_code == 404
        assert (await client.delete(scene.url, headers={"mcp-session-id": session})).status_code == 200


async def test_scopes_hold_for_each_request_and_a_revoked_token_ends_them() -> None:
    async with http_scene() as scene, scene.client() as operator, scene.client("edit:nightly", name="bob") as bob:
        await submit(operator, "a")
        assert (await call(bob, "edit_plan", plan="nightly", edits=[ADD]))["version"] == 1
        with pytest.raises(Refused, match="this needs the scope operate"):
            await call(bob, "cancel_plan", plan="nightly")
        waiting, identity = await scene.begun("bob", call(bob, "wait_for_events", plan="nightly", timeout=55))
        await scene.credentials.revoke(identity)
        with pytest.raises(MCPError):
            await waiting
        with pytest.raises(MCPError):
            await call(bob, "read_plan", plan="nightly")


async def test_without_the_check_of_revoked_credentials_a_wait_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ablation of the test above."""

    async def never(self: CredentialEnds, identity: str) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(CredentialEnds, "wait", never)
    async with http_scene() as scene, scene.client() as operator, scene.client("edit:nightly", name="bob") as bob:
        await submit(operator, "a")
        await bob.list_tools()  # so that the client needs no further request
        waiting, identity = await scene.begun("bob", call(bob, "wait_for_events", plan="nightly", timeout=1))
        await scene.credentials.revoke(identity)
        assert (await waiting)["items"] == []


async def opened(client: httpx.AsyncClient, scene: HttpScene) -> str:
    """A new session, whose client has said that it is ready."""
    answer = await client.post(scene.url, json=INITIALIZE)
    session = str(answer.headers["mcp-session-id"])
    ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert (await client.post(scene.url, json=ready, headers={"mcp-session-id": session})).status_code == 202
    return session


async def listed(client: httpx.AsyncClient, scene: HttpScene, session: str) -> int:
    """The status of a request in a session."""
    listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    return (await client.post(scene.url, json=listing, headers={"mcp-session-id": session})).status_code


async def test_a_credential_has_a_limit_of_sessions_and_locks_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_http, "SESSIONS_EACH", 3)
    monkeypatch.setattr(mcp_http, "MAX_SESSIONS", 5)
    async with (
        http_scene() as scene,
        scene.raw(authorization=f"Bearer {await scene.token('series', name='bob')}") as many,
        scene.raw(authorization=f"Bearer {await scene.token()}") as other,
    ):
        sessions = [await opened(many, scene) for _ in range(3)]
        assert await listed(many, scene, sessions[0]) == 200  # now the second one is unused for longest
        sessions += [await opened(many, scene) for _ in range(1)]
        assert [await listed(many, scene, session) for session in sessions] == [200, 404, 200, 200]
        for _ in range(20):
            await opened(many, scene)
        assert await listed(other, scene, await opened(other, scene)) == 200


async def test_without_the_limit_one_credential_locks_the_others_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ablation."""
    monkeypatch.setattr(mcp_http, "SESSIONS_EACH", 1000)
    monkeypatch.setattr(mcp_http, "MAX_SESSIONS", 5)
    async with (
        http_scene() as scene,
        scene.raw(authorization=f"Bearer {await scene.token('series', name='bob')}") as many,
        scene.raw(authorization=f"Bearer {await scene.token()}") as other,
    ):
        for _ in range(5):
            await opened(many, scene)
        assert (await other.post(scene.url, json=INITIALIZE)).status_code == 503


async def test_sessions_in_use_are_not_ended_for_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_http, "SESSIONS_EACH", 1)
    async with http_scene() as scene, scene.raw(authorization=f"Bearer {await scene.token()}") as client:
        session = await opened(client, scene)
        async with client.stream("GET", scene.url, headers={"mcp-session-id": session}) as stream:
            assert stream.status_code == 200
            answer = await client.post(scene.url, json=INITIALIZE)
            assert "1 MCP sessions of ann are in use" in problem(answer, 429)
        assert (await client.delete(scene.url, headers={"mcp-session-id": session})).status_code == 200
        await opened(client, scene)


async def test_the_sessions_of_a_credential_end_with_it() -> None:
    async with http_scene() as scene, scene.raw(authorization=f"Bearer {await scene.token()}") as client:
        await opened(client, scene)
        await opened(client, scene)
        assert len(scene.endpoint._manager._server_instances) == 2
        await scene.credentials.revoke((await scene.credentials.all())[0].id)
        await scene._until(lambda: not scene.endpoint._manager._server_instances)


async def test_edits_are_counted_as_those_of_the_api() -> None:
    async with http_scene() as scene, scene.client() as client:
        await submit(client, "a")
        scene.state.gate._edits._most = 3
        for _ in range(3):
            await call(client, "edit_plan", plan="nightly", edits=[ADD], dry_run=True)
        with pytest.raises(Refused, match="too many edits of ann in a minute"):
            await call(client, "edit_plan", plan="nightly", edits=[ADD], dry_run=True)


async def test_a_body_that_is_too_large_or_not_json_is_refused() -> None:
    async with server_scene() as scene:
        app: Any = server_app(scene.state, ["127.0.0.1"], mcp_routes(scene.state))
        headers = {"authorization": f"Bearer {await scene.token()}", "content-type": "application/json"}
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=BASE, headers=headers) as client:
            problem(await client.post("/mcp", content=b"x" * (LARGEST_BODY + 1)), 413)
            for text in (b"{", b'{"a": 1, "a": 2}', b"[" * 100 + b"]" * 100):
                assert "not valid JSON" in problem(await client.post("/mcp", content=text), 400)


# -- start and end -----------------------------------------------------------------------------------------------------


async def test_a_server_stops_while_clients_wait() -> None:
    async with http_scene() as scene, scene.client() as client:
        await submit(client, "a")
        await client.list_tools()
        waiting, _ = await scene.begun("ann", call(client, "follow_plan", plan="nightly", timeout=55))
        await scene.state.close()
        [answer] = await asyncio.gather(waiting, return_exceptions=True)
        assert isinstance(answer, MCPError) or not answer["ended"]


async def test_without_the_sdk_the_server_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_http, "find_spec", lambda name: None)
    async with http_scene() as scene, scene.raw(authorization=f"Bearer {await scene.token()}") as client:
        assert "install the extra 'mcp'" in problem(await client.post(scene.url, json=INITIALIZE), 501)


@pytest.mark.long
def test_a_server_without_mcp_clients_does_not_import_the_sdk() -> None:
    script = "import sys, asterism.mcp.mcp_http; assert 'mcp' not in sys.modules and 'mcp_types' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=PATIENCE)
