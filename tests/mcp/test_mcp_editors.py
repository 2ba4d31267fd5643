"""A client of MCP is an editor, whatever its credential allows: it has a scope, untrusted data limits it, and it
neither approves an edit nor raises a budget."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from mcp import Client, MCPError

from asterism.api.local import edit_handlers
from asterism.api.local.edit_handlers import cancel_obstacle
from asterism.api.system import LocalSystem
from asterism.core.plan.edit_rules import ApprovalRule, EditScope
from asterism.core.plan.edits import AddTask, EditBatch, RemoveTask
from asterism.durable.editor_budget import Budget, raise_budget
from asterism.durable.plan_actor import cancel_plan, edit_plan
from asterism.mcp.mcp_tasks import Work, task_id
from asterism.mcp.mcp_tools import TOOLS
from asterism.models import ModelEditor
from asterism.server.endpoint import ServerState
from tests.durable.durable_scenes import task, written
from tests.durable.durable_work import gate
from tests.mcp.mcp_scenes import (
    ADD,
    REMOVE,
    Refused,
    TasksExtension,
    ask_task,
    call,
    ended,
    open_gates,
    plan_client,
    running_plan,
    server_of,
)
from tests.models.editor_scenes import REPAIR, ScriptedCaller, pipeline
from tests.server.server_scenes import plan_text

pytestmark = pytest.mark.virtual_time

CANCEL = {"op": "cancel_task", "task_id": "c"}
SCOPES: dict[str, Any] = {"scopes": [EditScope.parse("editors=robot edits=cancel_task tasks=*")]}
FIXES: dict[str, Any] = {"scopes": [EditScope.parse("tasks=fix-*")]}
RULES: dict[str, Any] = {"approvals": [ApprovalRule.parse("all")]}
CREDENTIALS = (("edit:nightly",), ("observe", "operate", "edit:nightly"), ("admin",))
"""What the client may do: in each case it is an editor."""


def rules_of(refused: pytest.ExceptionInfo[Refused]) -> list[str]:
    return [violation["rule"] for violation in refused.value.problem["violations"]]


# -- edits and answers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("credential", CREDENTIALS)
async def test_a_client_has_a_scope_whatever_its_credential_allows(credential: tuple[str, ...]) -> None:
    async with running_plan(plan=SCOPES) as (ann, scene, stage):
        async with Client(server_of(scene, *credential, name="robot")) as robot:
            for options in ({}, {"dry_run": True}):
                with pytest.raises(Refused) as refused:
                    await call(robot, "edit_plan", plan="nightly", edits=[REMOVE], **options)
                assert rules_of(refused) == ["scope"]
            assert (await call(robot, "edit_plan", plan="nightly", edits=[CANCEL]))["version"] == 1
        async with Client(server_of(scene, *credential, name="stranger")) as stranger:
            with pytest.raises(Refused) as refused:
                await call(stranger, "edit_plan", plan="nightly", edits=[CANCEL])
            assert "no scope of the plan is for the editor 'stranger'" in str(refused.value.problem["violations"])
        person = EditBatch((AddTask(task("d", "wait")),))  # without MCP
        assert (await edit_plan(stage.fleet(), "nightly", person)).applied.version == 2
        open_gates("abd")
        await ended(ann)


async def test_a_client_waits_for_no_plan_that_its_credential_may_not_observe() -> None:
    async with running_plan(plan={"external": True}) as (ann, scene, _):
        async with Client(server_of(scene, "edit:nightly", name="robot")) as robot:
            for wait in ({"plan": "secret", "task": "t"}, {"event": "paid"}):
                spy = {"op": "add_task", "task": {"id": "spy", "wait_for": wait}}
                for tool in ({"tool": "edit_plan"}, {"tool": "answer_cycle", "cycle": 1}):
                    with pytest.raises(Refused, match="this needs the scope observe"):
                        await call(robot, **tool, plan="nightly", edits=[spy])
                assert (await call(ann, "edit_plan", plan="nightly", edits=[spy], dry_run=True))["dry_run"]
        await call(ann, "cancel_plan", plan="nightly")
        await ended(ann)


async def test_an_answer_to_a_cycle_is_that_of_an_editor() -> None:
    async with running_plan(plan={**SCOPES, "external": True}) as (ann, _, stage):
        gate("a").set()
        await asyncio.sleep(2.0)
        with pytest.raises(Refused) as refused:
            await call(ann, "answer_cycle", plan="nightly", cycle=1, edits=[REMOVE])
        assert rules_of(refused) == ["scope"]
        with pytest.raises(Refused, match=r"has scopes\. A person does with: asterism plan release-cycle nightly 1"):
            await call(ann, "release_cycle", plan="nightly", cycle=1)
        await cancel_plan(stage.fleet(), "nightly")
        open_gates()
        await ended(ann)


async def test_an_undo_is_an_edit_of_an_editor() -> None:
    async with running_plan(plan=FIXES) as (ann, _, stage):
        await edit_plan(stage.fleet(), "nightly", EditBatch((RemoveTask("c"),)))
        for options in ({}, {"dry_run": True}):
            with pytest.raises(Refused) as refused:
                await call(ann, "undo_edit", plan="nightly", **options)
            assert set(rules_of(refused)) == {"scope"}
        open_gates()
        assert (await ended(ann))["counts"] == {"completed": 2}


@asynccontextmanager
async def untrusted_plan(*credential: str) -> AsyncIterator[tuple[Client, Client]]:
    """A person's client and that of a robot, and the plan ``nightly``, whose first task is untrusted and runs."""
    async with plan_client() as (ann, scene, stage), Client(server_of(scene, *credential, name="robot")) as robot:
        text = plan_text("a", "b", "c", call="wait").replace("  a:\n", "  a:\n    untrusted: true\n")
        await call(ann, "submit_plan", text=text)
        await gate("a begun").wait()
        yield ann, robot
        await cancel_plan(stage.fleet(), "nightly")
        open_gates()
        await ended(ann)


@pytest.mark.parametrize("credential", CREDENTIALS)
async def test_after_untrusted_data_an_edit_waits_for_a_person(credential: tuple[str, ...]) -> None:
    async with untrusted_plan(*credential) as (ann, robot):
        with pytest.raises(Refused, match="asterism plan approve nightly 1") as refused:
            await call(robot, "edit_plan", plan="nightly", edits=[ADD])
        assert (refused.value.kind, refused.value.problem["approval"]) == ("edit-waits", 1)
        [waiting] = (await call(ann, "list_approvals", plan="nightly"))["items"]
        assert "the editor may have read untrusted data of 'a'" in waiting["reasons"][0]
        assert (await call(robot, "edit_plan", plan="nightly", edits=[CANCEL]))["version"] == 1


@pytest.mark.parametrize("credential", CREDENTIALS)
async def test_without_the_name_of_the_editor_its_edit_would_be_applied(
    credential: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ablation."""
    as_it_is = ServerState.system_of

    def of_a_person(*arguments: Any, **named: Any) -> LocalSystem:
        return replace(as_it_is(*arguments, **named), editor=None)

    monkeypatch.setattr(ServerState, "system_of", of_a_person)
    async with untrusted_plan(*credential) as (_, robot):
        assert (await call(robot, "edit_plan", plan="nightly", edits=[ADD]))["version"] == 1


async def test_if_only_the_credential_counted_an_operator_would_edit_as_a_person(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The ablation of the mark of calls through MCP."""
    as_it_is = ServerState.system_of
    monkeypatch.setattr(ServerState, "system_of", lambda state, caller, agent: as_it_is(state, caller))
    async with untrusted_plan("admin") as (_, robot):
        assert (await call(robot, "edit_plan", plan="nightly", edits=[ADD]))["version"] == 1


# -- decisions of people -----------------------------------------------------------------------------------------------


def test_no_tool_approves_refuses_or_raises_a_budget() -> None:
    names = {tool.operation.name for tool in TOOLS.values()}
    assert not names & {"approve_edit", "refuse_edit", "decide_budget"}
    for tool in TOOLS.values():
        assert not tool.arguments & {"limits", "without_editor", "budget"}, tool.name
    assert TOOLS["read_budget"].read_only


async def test_the_budget_is_read_with_what_is_spent_and_why_it_holds() -> None:
    async with plan_client("edit:pipeline") as (client, _, stage):
        model = ModelEditor("test:scripted", caller=ScriptedCaller(REPAIR), fleet=stage.fleet(), budget=Budget(calls=0))
        job = stage.spawn(stage.orchestrator(editor=model).run(pipeline()))
        account = await _held_budget(client)
        assert (account["budget"], account["spent"]) == ({"calls": 0, "tasks": 500}, {})
        assert account["held_why"] == "0 of 0 calls are spent"
        with pytest.raises(Refused, match="read_budget has no argument 'limits'"):
            await call(client, "read_budget", plan="pipeline", limits="5calls")
        await raise_budget(stage.fleet(), "pipeline", Budget(calls=5))
        assert (await job)["publish"].status == "completed"
        assert (await call(client, "read_budget", plan="pipeline"))["held_why"] == ""


async def _held_budget(client: Client) -> Any:
    for _ in range(200):
        with contextlib.suppress(Refused):  # until the model was to be asked, it has none
            account = await call(client, "read_budget", plan="pipeline")
            if "held_since" in account:
                return account
        await asyncio.sleep(0.5)
    raise AssertionError("the budget does not hold the plan")


# -- whole plans and runs ----------------------------------------------------------------------------------------------

ALLOWING = (
    "any",
    "edits=cancel_task tasks=*",
    "edits=cancel_task,add_task tasks=* executors=argv adds=1",
    "editors=rob* edits=cancel_task tasks=*",
)
NOT_ALLOWING = ("tasks=fix-*", "edits=add_task", "editors=other edits=cancel_task tasks=*", "edits=cancel_task")


@pytest.mark.parametrize("scope", ALLOWING)
def test_a_scope_for_all_cancellations_allows_to_cancel_a_plan(scope: str) -> None:
    assert cancel_obstacle([EditScope.parse("tasks=fix-*"), EditScope.parse(scope)], [], "robot") is None


@pytest.mark.parametrize("scope", NOT_ALLOWING)
def test_no_other_scope_does(scope: str) -> None:
    assert cancel_obstacle([EditScope.parse(scope)], [], "robot") is not None


@pytest.mark.parametrize(
    ("rule", "waits"),
    [
        ("all", True),
        ("destructive", True),
        ("edits=cancel_task tasks=deploy-*", True),
        ("authors=rob*", True),
        ("authors=ann", False),
        ("edits=add_task", False),
        ("cost=5", False),
    ],
)
def test_a_rule_that_may_name_a_cancellation_lets_a_person_cancel_the_plan(rule: str, waits: bool) -> None:
    assert (cancel_obstacle([], [ApprovalRule.parse(rule)], "robot") is not None) == waits


@pytest.mark.parametrize("limits", [FIXES, RULES, {"approvals": [ApprovalRule.parse("destructive")]}])
async def test_a_client_cancels_a_plan_only_within_its_scope_and_without_a_rule(limits: dict[str, Any]) -> None:
    tasks = TasksExtension()
    async with running_plan(plan=limits, extensions=[tasks]) as (ann, _, _):
        with pytest.raises(Refused, match="asterism plan cancel nightly"):
            await call(ann, "cancel_plan", plan="nightly")
        begun = task_id(Work("plan", "nightly", True))  # as if a call of the client had begun it
        with pytest.raises(MCPError, match="asterism plan cancel nightly"):
            await ask_task(ann.session, "cancel", begun)
        open_gates()
        assert (await ended(ann))["counts"] == {"completed": 3}


async def test_without_that_check_it_would_cancel_what_its_scope_forbids(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ablation."""
    monkeypatch.setattr(edit_handlers, "cancel_obstacle", lambda *about: None)
    async with running_plan(plan=FIXES) as (ann, _, _):
        await call(ann, "cancel_plan", plan="nightly")
        assert (await ended(ann))["state"] == "cancelled"


async def test_a_client_cancels_no_plan_by_a_further_one_of_its_file() -> None:
    text = plan_text("a").replace("tasks:", "overlap: replace\ntasks:", 1)
    async with running_plan(plan=FIXES) as (ann, _, _):
        with pytest.raises(Refused, match="`overlap: replace` is for people"):
            await call(ann, "submit_plan", text=text, name="nightly-2")
        assert (await call(ann, "submit_plan", text=text.replace("replace", "queue"), name="nightly-2"))["name"]
        open_gates()
        assert (await ended(ann))["counts"] == {"completed": 3}


async def test_a_client_cancels_a_plan_that_does_not_limit_it_and_pauses_any() -> None:
    async with running_plan(plan=SCOPES) as (ann, scene, _):
        assert (await call(ann, "pause_plan", plan="nightly", reason="lunch"))["paused"]
        assert (await call(ann, "resume_plan", plan="nightly"))["paused"] is None
        async with Client(server_of(scene, name="robot")) as robot:
            await call(robot, "cancel_plan", plan="nightly")
        assert (await ended(ann))["state"] == "cancelled"


@pytest.mark.parametrize(
    ("limits", "mark", "why"),
    [
        ({"scopes": ["tasks=fix-*"]}, "", "scopes"),
        ({"approvals": ["destructive"]}, "", "rules for approvals"),
        ({}, "    untrusted: true\n", "untrusted tasks"),
        ({}, "", None),
    ],
)
async def test_a_plan_that_limits_its_editors_is_retried_by_a_person(
    limits: dict[str, Any], mark: str, why: str | None
) -> None:
    async with plan_client() as (ann, _, _):
        text = plan_text("a", "b").replace("  a:\n", f"  a:\n{mark}")
        await call(ann, "submit_plan", text=text, **limits)
        assert (await ended(ann))["counts"] == {"completed": 2}
        if why is not None:
            with pytest.raises(Refused, match=f"has {why}.*asterism plan retry nightly"):
                await call(ann, "retry_plan", plan="nightly", from_tasks=["b"])
            assert (await ended(ann))["ended_at"] is not None
        else:
            assert (await call(ann, "retry_plan", plan="nightly", from_tasks=["b"]))["tasks"] == ["b"]
            await ended(ann)
        with pytest.raises(Refused, match="retry_plan has no argument 'edits'"):
            await call(ann, "retry_plan", plan="nightly", edits=[ADD])


async def test_the_run_of_a_task_is_cancelled_by_an_edit() -> None:
    async with running_plan(plan={**FIXES, "local": 0}) as (ann, _, _):
        await written("a")
        [run] = (await call(ann, "list_runs"))["items"]
        with pytest.raises(Refused, match="is a task of plan 'nightly': cancel it with edit_plan"):
            await call(ann, "cancel_run", run=run["id"])
        open_gates()
        assert (await ended(ann))["counts"] == {"completed": 3}


async def test_a_dry_run_says_that_the_edit_would_wait() -> None:
    async with untrusted_plan("admin") as (ann, robot):
        dry = await call(robot, "edit_plan", plan="nightly", edits=[ADD], dry_run=True)
        assert "the editor may have read untrusted data of 'a'" in dry["waits"][0]
        assert (await call(ann, "list_approvals", plan="nightly"))["items"] == []
