"""Every endpoint with every scope: who may call it. A change of this table is a change of what tokens allow."""

from __future__ import annotations

import pytest

from asterism.api.credentials import allows
from asterism.durable.journal_store import insert_plan
from asterism.server.endpoint import Endpoint
from asterism.server.http_service import endpoints
from tests.durable.durable_scenes import chain
from tests.security.test_requests import problem
from tests.server.server_scenes import ServerScene, server_scene

SCOPES = ("observe", "operate", "series", "event", "admin", "edit:nightly", "edit:other")
EVERYBODY = {"GET /api/v1/health", "GET /api/v1/openapi.json", "GET /login", "POST /api/v1/login"}
ANY_TOKEN = {"GET /api/v1/me", "GET /api/v1/me/operations", "POST /api/v1/logout"}
EDITORS = {
    f"POST /api/v1/plans/{{plan}}/{path}"
    for path in ("edits", "proposals", "undo", "cycles/{cycle}/claim", "cycles/{cycle}/answer")
}
ADMIN = {
    *("GET /api/v1/tokens", "POST /api/v1/tokens", "POST /api/v1/tokens/{token}/revoke", "POST /api/v1/logins"),
    "GET /api/v1/audit",
    *("POST /api/v1/workflows", "DELETE /api/v1/workflows/{workflow}"),
    *("POST /api/v1/settings", "POST /api/v1/devices/invitations", "POST /api/v1/devices/{device}/revoke"),
}
SERIES = {
    f"POST /api/v1/series/{{series}}/{verb}"
    for verb in ("claim", "release", "promote", "pause", "resume", "front", "rebuild")
} | {"POST /api/v1/series/next"}


def named(endpoint: Endpoint) -> str:
    return f"{endpoint.method} {endpoint.full_path}"


def expected(name: str) -> set[str]:
    """The scopes that suffice, without a look at what the endpoint says it needs."""
    if name in EVERYBODY | ANY_TOKEN:
        return set(SCOPES)
    if name == "POST /api/v1/sent-events":
        return {"event", "operate", "admin"}
    if name in SERIES:
        return {"series", "admin"}
    if name in EDITORS:
        return {"operate", "admin", "edit:nightly"}
    if name in ADMIN:
        return {"admin"}
    if not name.startswith("GET "):
        return {"operate", "admin"}
    readers = {"observe", "operate", "admin"}
    if "/plans/{plan}" in name:
        return readers | {"edit:nightly"}
    return readers | {"series"} if "/series" in name else readers


CALLED = {named(endpoint): endpoint for endpoint in endpoints()}
STREAMS = {name for name, called in CALLED.items() if called.media == "text/event-stream"}


def path_of(endpoint: Endpoint) -> str:
    known = {"plan": "nightly", "task": "a", "version": "0"}
    return endpoint.full_path.format(**{name: known.get(name, "1") for name in endpoint.parameters})


@pytest.mark.parametrize("name", CALLED)
async def test_every_endpoint_refuses_strangers_and_other_scopes(name: str) -> None:
    endpoint = CALLED[name]
    async with server_scene() as scene, scene.stranger() as client:
        await insert_plan(scene.fleet.store, chain("a"))
        answer = await client.request(endpoint.method, path_of(endpoint))
        if name not in EVERYBODY:
            problem(answer, 401)
        for scope in sorted(set(SCOPES) - expected(name)):
            await refused(scene, endpoint, scope)
        if endpoint.needs is not None:
            need = endpoint.needs.format(plan="nightly")
            assert {scope for scope in SCOPES if allows([scope], need)} == expected(name)


async def refused(scene: ServerScene, endpoint: Endpoint, scope: str) -> None:
    async with scene.client(scope) as client:
        assert "needs the scope" in problem(await client.request(endpoint.method, path_of(endpoint), json={}), 403)


async def test_without_the_check_of_scopes_a_token_for_one_plan_cancels_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The ablation."""
    async with server_scene() as scene, scene.client("edit:other") as client:
        await insert_plan(scene.fleet.store, chain("a"))
        problem(await client.post("/api/v1/plans/nightly/cancel"), 403)
        monkeypatch.setattr("asterism.api.credentials.allows", lambda *_: True)
        assert (await client.post("/api/v1/plans/nightly/cancel")).status_code == 200
