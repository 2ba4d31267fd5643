"""The audit log of a server: every change and every refusal, by whom, from where; and who may read it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from asterism.api.operation import API
from asterism.api.operations import OPERATIONS
from asterism.api.system import LocalSystem
from asterism.server import request_guard
from asterism.server.endpoint import ServerState
from tests.server.server_scenes import ServerScene, plan_server, plan_text, server_scene

pytestmark = pytest.mark.virtual_time


async def audited(scene: ServerScene, **query: Any) -> list[dict[str, Any]]:
    async with scene.client("admin") as client:
        answer = await client.get(f"{API}/audit", params=query)
        assert answer.status_code == 200, answer.text
        return list(answer.json()["items"])


async def test_who_changed_what_is_recorded_with_reason_key_and_address() -> None:
    async with plan_server() as (scene, _):
        async with scene.client("operate") as client:
            await client.post(f"{API}/plans", json={"text": plan_text("a")})
            headers = {"idempotency-key": "k1"}
            for _ in range(2):  # the repeat is not done, and is no second entry
                paused = f"{API}/plans/nightly/pause"
                assert (await client.post(paused, json={"reason": "lunch"}, headers=headers)).status_code == 200
            await client.get(f"{API}/plans/nightly")
        submitted, paused = reversed(await audited(scene, by="ann", outcome="done"))
        assert (submitted["operation"], submitted["target"]) == ("submit_plan", "nightly")
        shown = {name: paused[name] for name in ("by", "kind", "operation", "target", "reason", "address", "key")}
        assert shown == {
            **{"by": "ann", "kind": "token", "operation": "pause_plan", "target": "nightly"},
            **{"reason": "lunch", "address": "127.0.0.1", "key": "k1"},
        }
        assert len(paused["credential"]) == 10


async def test_who_was_refused_what_is_recorded() -> None:
    async with server_scene() as scene:
        async with scene.client("observe") as client:
            assert (await client.post(f"{API}/plans/release/cancel", json={})).status_code == 403
        async with scene.client("operate") as client:
            assert (await client.post(f"{API}/plans/release/cancel", json={"reason": "old"})).status_code == 404
            dry = {"edits": [], "dry_run": True}
            await client.post(f"{API}/plans/release/edits", json=dry)
        unknown, forbidden = await audited(scene, target="release")
        assert (forbidden["outcome"], forbidden["detail"]) == (
            "refused",
            "this needs the scope operate; ann has observe",
        )
        assert (unknown["outcome"], unknown["reason"]) == ("refused", "old")


async def test_only_admins_read_it_and_it_comes_in_pages() -> None:
    async with server_scene() as scene:
        async with scene.client("operate") as client:
            for number in range(5):
                await client.post(f"{API}/sent-events", json={"name": f"event-{number}"})
            assert (await client.get(f"{API}/audit")).status_code == 403
        first = (await _page(scene, limit=3))["items"]
        rest = await _page(scene, limit=3, after=first[-1]["id"])
        targets = [entry["target"] for entry in (*first, *rest["items"])]
        assert targets == [f"event-{number}" for number in reversed(range(5))]
        assert rest["next"] is None
        async with scene.client("admin") as client:
            assert (await client.get(f"{API}/audit", params={"after": "x"})).status_code == 422


async def _page(scene: ServerScene, **query: Any) -> dict[str, Any]:
    async with scene.client("admin") as client:
        return dict((await client.get(f"{API}/audit", params=query)).json())


async def test_a_client_that_is_always_refused_does_not_fill_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_guard, "REFUSALS_PER_MINUTE", 5)
    async with server_scene() as scene, scene.client("observe") as client:
        answers = [(await client.post(f"{API}/plans/x/cancel", json={})).status_code for _ in range(9)]
        assert answers == [403] * 5 + [429] * 4
        assert len(await audited(scene, outcome="refused")) == 5


async def test_reads_cost_no_write_and_a_token_is_never_in_it() -> None:
    async with server_scene() as scene:
        async with scene.client("admin") as client:
            before = len(await scene.fleet.store.registers("audit/"))
            await client.get(f"{API}/plans")
            await client.get(f"{API}/audit")
            assert len(await scene.fleet.store.registers("audit/")) == before
            made = (await client.post(f"{API}/tokens", json={"name": "ci", "scopes": ["observe"]})).json()
        [entry] = await audited(scene, operation="create_token")
        assert (entry["target"], entry["detail"]) == ("ci", "scopes observe")
        everything = json.dumps([register.value for register in await scene.fleet.store.registers("audit/")])
        assert made["token"] not in everything


async def test_every_changing_operation_goes_through_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is asked for by somebody who may do nothing: each is in the log, and no read is."""
    monkeypatch.setattr(request_guard, "REFUSALS_PER_MINUTE", 1000)
    async with server_scene() as scene, scene.client("event") as client:
        for operation in OPERATIONS.values():
            if operation.needs != "event":
                path = operation.path.replace("{", "").replace("}", "")
                answer = await client.request(operation.method, API + path, json={} if operation.changes else None)
                assert answer.status_code == 403, operation.name
        recorded = {entry["operation"] for entry in await audited(scene, outcome="refused", limit=1000)}
        changing = {name for name, one in OPERATIONS.items() if one.changes and one.needs != "event"}
        assert recorded == changing


async def test_without_the_record_of_the_system_a_change_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unrecorded(self: LocalSystem, operation: Any, request: Any) -> Any:
        return await operation.function(self, request)

    monkeypatch.setattr(LocalSystem, "call", unrecorded)
    async with server_scene() as scene:
        async with scene.client("operate") as client:
            await client.post(f"{API}/sent-events", json={"name": "paid"})
        assert await audited(scene) == []


async def test_entries_are_written_before_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async with server_scene() as scene, scene.client("operate") as client:
        assert isinstance(scene.state, ServerState)
        await client.post(f"{API}/sent-events", json={"name": "paid"})
        assert len(await scene.fleet.store.registers("audit/")) == 1
