"""A client of MCP that may not operate is an editor: it has a scope, and untrusted data limits it, as over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from mcp import Client

from asterism.core.plan.edit_scope import EditScope
from asterism.server.endpoint import Call
from tests.agents.mcp_scenes import ADD, REMOVE, Refused, call, ended, open_gates, plan_client, running_plan, server_of
from tests.durable.durable_work import gate
from tests.server.server_scenes import plan_text

pytestmark = pytest.mark.virtual_time

CANCEL = {"op": "cancel_task", "task_id": "c"}
SCOPES: dict[str, Any] = {"scopes": [EditScope.parse("editors=robot edits=cancel_task")]}


async def test_a_client_that_may_not_operate_has_a_scope() -> None:
    async with running_plan(plan=SCOPES) as (ann, scene, _):
        async with Client(server_of(scene, "edit:nightly", name="robot")) as robot:
            for terms in ({}, {"dry_run": True}):
                with pytest.raises(Refused) as refused:
                    await call(robot, "edit_plan", plan="nightly", edits=[REMOVE], **terms)
                assert [one["rule"] for one in refused.value.problem["violations"]] == ["scope"]
            assert (await call(robot, "edit_plan", plan="nightly", edits=[CANCEL]))["version"] == 1
        async with Client(server_of(scene, "edit:nightly", name="stranger")) as stranger:
            with pytest.raises(Refused) as refused:
                await call(stranger, "edit_plan", plan="nightly", edits=[CANCEL])
            assert "no scope of the plan is for the editor 'stranger'" in str(refused.value.problem["violations"])
        assert (await call(ann, "edit_plan", plan="nightly", edits=[ADD]))["version"] == 2
        open_gates()
        await ended(ann)


async def test_an_answer_to_a_cycle_is_that_of_an_editor_whoever_gives_it() -> None:
    async with running_plan(plan={**SCOPES, "external": True}) as (ann, _, _):
        gate("a").set()
        await asyncio.sleep(2.0)
        with pytest.raises(Refused) as refused:
            await call(ann, "answer_cycle", plan="nightly", cycle=1, edits=[REMOVE])
        assert [one["rule"] for one in refused.value.problem["violations"]] == ["scope"]
        await call(ann, "cancel_plan", plan="nightly")
        open_gates()
        await ended(ann)


async def submitted(ann: Client) -> None:
    """The plan ``nightly``, whose first task is untrusted and runs."""
    text = plan_text("a", "b", "c", call="wait").replace("  a:\n", "  a:\n    untrusted: true\n")
    await call(ann, "submit_plan", file=text)
    await gate("a begun").wait()


async def test_after_untrusted_data_an_edit_waits_for_a_person() -> None:
    async with plan_client() as (ann, scene, _), Client(server_of(scene, "edit:nightly", name="robot")) as robot:
        await submitted(ann)
        with pytest.raises(Refused) as refused:
            await call(robot, "edit_plan", plan="nightly", edits=[ADD])
        assert refused.value.kind == "edit-waits"
        [waiting] = (await call(ann, "list_approvals", plan="nightly"))["items"]
        assert "the editor may have read untrusted data of 'a'" in waiting["reasons"][0]
        assert (await call(robot, "edit_plan", plan="nightly", edits=[CANCEL]))["version"] == 1
        await call(ann, "cancel_plan", plan="nightly")
        open_gates()
        await ended(ann)


async def test_without_the_name_of_the_editor_its_edit_would_be_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ablation."""
    monkeypatch.setattr(Call, "editor", None)
    async with plan_client() as (ann, scene, _), Client(server_of(scene, "edit:nightly", name="robot")) as robot:
        await submitted(ann)
        assert (await call(robot, "edit_plan", plan="nightly", edits=[ADD]))["version"] == 1
        await call(ann, "cancel_plan", plan="nightly")
        open_gates()
        await ended(ann)
