"""The published OpenAPI document: valid, complete, and true of real answers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import jsonschema
import pytest

from asterism.core.run.work import Workflow
from asterism.core.schedule.ticks import TICK_STATES
from asterism.server.http_service import endpoints
from asterism.server.openapi import openapi_document
from asterism.store.protocol import Notice
from tests.durable.durable_scenes import Stage
from tests.server.server_scenes import ServerScene, ended, plan_server, plan_text, server_scene

API = "/api/v1"
ADD = {"op": "add_task", "task": {"id": "mail", "shell": "true"}}


async def test_the_document_is_public_and_lists_every_endpoint() -> None:
    async with server_scene() as scene, scene.stranger() as client:
        document = (await client.get(f"{API}/openapi.json")).json()
        assert document["openapi"] == "3.1.0"
        listed = {(method.upper(), path) for path, item in document["paths"].items() for method in item}
        assert listed == {(endpoint.method, endpoint.full_path) for endpoint in endpoints()}
        operations = [operation for item in document["paths"].values() for operation in item.values()]
        names = [operation["operationId"] for operation in operations]
        assert len(names) == len(set(names))


def test_the_states_of_a_tick_are_those_of_the_core(document: dict[str, Any]) -> None:
    """The documents name them, so that no command imports schedules for them."""
    state = document["components"]["schemas"]["CalendarTick"]["properties"]["state"]
    assert state["examples"] == list(TICK_STATES)


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return openapi_document([endpoint for endpoint in endpoints() if endpoint.path != "/openapi.json"])


def test_the_schemas_of_the_document_are_valid(document: dict[str, Any]) -> None:
    for schema in document["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_every_reference_of_the_document_exists(document: dict[str, Any]) -> None:
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}

    def references(value: Any) -> set[str]:
        if isinstance(value, dict):
            own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
            return own.union(*map(references, value.values()))
        return set().union(*map(references, value)) if isinstance(value, list) else set()

    assert references(document) <= known


class Checked:
    """Requests whose answers are compared with the document."""

    def __init__(self, scene: ServerScene, document: dict[str, Any], client: Any) -> None:
        self._document, self._client, self.seen = document, client, set[tuple[str, str]]()

    async def __call__(self, method: str, path: str, body: Any = None, **names: str) -> Any:
        answer = await self._client.request(method, API + path.format(**names), json=body)
        template = API + path.partition("?")[0]
        responses = self._document["paths"][template][method.lower()]["responses"]
        assert str(answer.status_code) in responses, (method, path, answer.status_code, answer.text)
        content = responses[str(answer.status_code)]["content"]
        [(media, described)] = content.items()
        assert answer.headers["content-type"].partition(";")[0] == media
        if media.endswith("json"):
            schema = {**described["schema"], "components": self._document["components"]}
            await asyncio.sleep(0)  # to compare takes long: it has a step of the loop to itself
            jsonschema.Draft202012Validator(schema).validate(answer.json())
            await asyncio.sleep(0)
            self.seen.add((method, template))
            return answer.json()
        return answer.text


async def fleet_of(stage: Stage) -> None:
    """Something of everything."""
    await stage.fleet().workflows.add(Workflow("w", call="tests.durable.durable_work:work"))
    await stage.device("lab", can=["gpu"], labels={"room": "b"})
    await stage.store.commit([Notice(stage.store.clock(), "lost", "a notice")])


@pytest.mark.virtual_time
async def test_real_answers_are_as_the_document_says() -> None:
    async with plan_server() as (scene, stage), scene.client() as client:
        await fleet_of(stage)
        document = (await client.get(f"{API}/openapi.json")).json()
        ask = Checked(scene, document, client)
        for path in ("/health", "/me", "/openapi.json", "/plans", "/devices", "/workflows", "/notices", "/series"):
            await ask("GET", path)
        await ask("POST", "/plans", {"text": plan_text("a", "b")})
        await ask("POST", "/plans", {"text": "tasks: 1"})
        await ask("POST", "/plan-checks", {"text": plan_text("a"), "params": {"x": 1}})
        await ask("GET", "/plans/{plan}", plan="nothing")
        plan = {"plan": "nightly"}
        await ended(client)
        for path in (
            "",
            "/story",
            "/tasks",
            "/files",
            "/changes",
            "/wait",
            "/versions",
            "/versions/{version}",
            "/cycles",
            "/why",
            "/approvals",
            "/budget",
            "/tasks",
            "/tasks/{task}",
            "/tasks/{task}/why",
            "/logs",
            "/drawing",
            "/copy",
            "/cancel",
        ):
            await ask("GET", f"/plans/{{plan}}{path}", **plan, task="a", version="0")
        await ask("GET", "/plans/{plan}/tasks/{task}/logs", **plan, task="a")
        await ask("GET", "/plans/{plan}/files/part", **plan)
        await ask("POST", "/plans/{plan}/edits", {"edits": [ADD], "dry_run": True}, **plan)
        await ask("POST", "/plans/{plan}/edits", {"edits": [ADD]}, **plan)
        await ask("POST", "/plans/{plan}/proposals", {"requests": ["skip the mail"]}, **plan)  # there is no model
        await ask("POST", "/plans/{plan}/undo", {}, **plan)
        for action in ("claim", "release", "answer"):
            await ask("POST", f"/plans/{{plan}}/cycles/{{cycle}}/{action}", {}, **plan, cycle="1")
        for action in ("approve", "refuse"):
            await ask("POST", f"/plans/{{plan}}/approvals/{{approval}}/{action}", {}, **plan, approval="1")
        await ask("POST", "/plans/{plan}/budget", {"limits": "$5"}, **plan)
        for action in ("pause", "resume", "cancel", "retry"):
            await ask("POST", f"/plans/{{plan}}/{action}", {}, **plan)
        await ask("DELETE", "/plans/{plan}", **plan)
        run = (await ask("POST", "/runs", {"workflow": "w", "input": {"name": "x"}}))["id"]
        await ask("GET", "/runs?limit=1")
        await ask("POST", "/runs/bulk", {"workflow": "w", "inputs": [{"name": "x"}]})
        for run_input in ({"name": "x"}, {"no_name": "it fails"}):
            await ask("POST", "/runs", {"workflow": "w", "input": run_input, "batch": "films"})
        await ask("POST", "/limits/{limit}", {"size": 4, "rate": 10, "period": 60}, limit="account/*")
        await ask("POST", "/limits/{limit}", {"rate": 10}, limit="mail")
        await ask("GET", "/limits")
        await ask("GET", "/limits/{limit}", limit="account/*")
        await ask("GET", "/limits/{limit}", limit="nothing")
        await ask("DELETE", "/limits/{limit}", limit="account/*")
        await ask("POST", "/sent-events", {"name": "paid", "data": {"amount": 1}, "key": "k"})
        await ask("GET", "/sent-events")
        await ask("GET", "/batches")
        await ask("GET", "/batches/{batch}", batch="nothing")
        for path in ("/wait", "", "/results"):
            await ask("GET", f"/batches/{{batch}}{path}", batch="films")
        for action in ("cancel", "retry"):
            await ask("POST", f"/batches/{{batch}}/{action}", {}, batch="films")
        await ask("GET", "/fleet")
        await ask("POST", "/workflows", {"workflow": {"name": "v", "argv": ["true"]}})
        await ask("GET", "/workflows/{workflow}", workflow="v")
        for path in ("", "/logs", "/why", "/wait"):
            await ask("GET", f"/runs/{{run}}{path}", run=run)
        while (await ask("GET", "/runs/{run}", run=run))["status"] != "completed":
            await stage.fleet().clock.sleep(1.0)
        await ask("GET", "/runs/{run}/output", run=run)
        for action in ("pause", "resume", "cancel", "retry"):
            await ask("POST", f"/runs/{{run}}/{action}", {}, run=run)
        await ask("POST", "/runs/{run}/move", {"device": "lab"}, run=run)
        await ask("POST", "/runs/actions", {"action": "cancel", "status": "open"})
        await ask("POST", "/runs/prune", {"older_than": 0})
        await ask("GET", "/devices/{device}", device="lab")
        await ask("POST", "/schedules", {"name": "s", "workflow": "w", "every": 60, "input": {"name": "x"}})
        await ask("GET", "/schedules")
        for action in ("pause", "resume", "run"):
            await ask("POST", f"/schedules/{{schedule}}/{action}", {}, schedule="s")
        await ask("GET", "/schedules/{schedule}", schedule="s")
        await ask("POST", "/schedules", {"name": "p", "text": plan_text("a"), "cron": "0 3 * * *"})
        await ask("POST", "/schedules/{schedule}/backfill", {"first": "1970-01-01"}, schedule="p")
        await ask("GET", "/schedules/{schedule}/backfill", schedule="p")
        await ask("GET", "/schedules/{schedule}/ticks", schedule="p")
        await ask("POST", "/schedules/{schedule}/backfill/cancel", {}, schedule="p")
        await ask("DELETE", "/schedules/{schedule}", schedule="s")
        await ask("POST", "/series/{series}/claim", {"issue": 1}, series="RFC")
        await ask("POST", "/series/next", {"holder": "ann"})
        await ask("POST", "/series/{series}/front", {"issue": 1}, series="RFC")
        await ask("POST", "/series/{series}/release", {"issue": 1, "reason": "done"}, series="RFC")
        for action in ("promote", "pause", "resume", "rebuild"):
            await ask("POST", f"/series/{{series}}/{action}", {}, series="RFC")
        await ask("GET", "/series/{series}", series="RFC")
        await ask("GET", "/series/{series}/history", series="RFC")
        await ask("POST", "/login", {"code": "wrong"})
        await ask("POST", "/login", {"code": await scene.credentials.create_login("ann", ["observe"], by="ann")})
        await ask("GET", "/metrics")
        for path in ("/metrics/families", "/settings", "/store", "/scores?subject=w", "/tokens", "/audit"):
            await ask("GET", path)
        await ask("POST", "/settings", {"keep": 60, "weights": {"load": 2}, "reason": "less disk"})
        await ask("POST", "/settings", {"weights": {"beauty": 1}})
        token = (await ask("POST", "/tokens", {"name": "ci", "scopes": ["observe"]}))["id"]
        await ask("POST", "/tokens", {"name": "ci", "scopes": ["root"]})
        await ask("POST", "/tokens/{token}/revoke", {}, token=token)
        await ask("POST", "/logins", {"scopes": ["observe"]})
        await ask("POST", "/workflows", {"workflow": {"name": "v", "shell": "true"}})
        await ask("POST", "/workflows", {"workflow": {"name": "v", "shel": "true"}})
        await ask("GET", "/workflows/{workflow}", workflow="v")
        await ask("DELETE", "/workflows/{workflow}", workflow="v")
        await ask("POST", "/devices/{device}/drain", {}, device="lab")
        await ask("POST", "/devices/invitations", {"name": "lab-*", "can": ["gpu"]})
        await ask("POST", "/devices/invitations", {"name": "plan@host"})
        await ask("POST", "/devices/{device}/revoke", {}, device="lab")
        await ask("GET", "/me/operations")
        await ask("GET", "/me/operations?plan=nightly")
        await ask("POST", "/logout")
        json_paths = {
            (endpoint.method, endpoint.full_path) for endpoint in endpoints() if endpoint.media == "application/json"
        }
        assert json_paths - ask.seen == {("GET", "/login")}
        assert json.dumps(document)
