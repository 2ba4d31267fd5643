"""Edits that wait for a person, through MCP: the person of the client decides, a model never does."""

from __future__ import annotations

import asyncio
from typing import Any

import mcp_types as types
import pytest
from mcp import Client, MCPError

from asterism.api.system import LocalSystem
from asterism.core.plan.edit_rules import ApprovalRule
from asterism.core.plan.edits import ApprovalGone
from asterism.durable.plan_actor import refuse_edit
from asterism.mcp.mcp_approvals import Decision, decide
from asterism.mcp.mcp_tools import TOOLS
from tests.mcp.mcp_scenes import (
    MODES,
    REMOVE,
    Person,
    Refused,
    TasksExtension,
    call,
    ended,
    open_gates,
    running_plan,
    server_of,
)

pytestmark = pytest.mark.virtual_time

RULES: dict[str, Any] = {"approvals": [ApprovalRule.parse("destructive")]}
APPROVE = {"decision": "approve", "reason": "fine"}
REFUSE = {"decision": "refuse", "reason": "ann reads it"}


@pytest.mark.parametrize("mode", MODES)
async def test_the_person_is_asked_at_once_and_approves(mode: str) -> None:
    person = Person(APPROVE)
    async with running_plan(plan=RULES, mode=mode, elicitation_callback=person) as (client, _, _):
        done = await call(client, "edit_plan", plan="nightly", edits=[REMOVE], reason="not needed")
        assert done["version"] == 1
        [question] = person.questions
        assert question.startswith("Approval 1 of plan 'nightly'. Edit by ann: not needed\n")
        assert '"op": "remove_task"' in question
        assert "It holds: b" in question
        [decided] = (await call(client, "list_approvals", plan="nightly", all=True))["items"]
        assert (decided["state"], decided["decided_by"]) == ("approved", "ann")
        open_gates()
        assert (await ended(client))["counts"] == {"completed": 2}


async def test_a_person_approves_only_what_is_shown() -> None:
    many = [{"op": "add_task", "task": {"id": f"t{number}", "argv": ["true"]}} for number in range(40)]
    person = Person(APPROVE, APPROVE)
    async with running_plan(plan=RULES, elicitation_callback=person) as (client, _, _):
        await call(client, "edit_plan", plan="nightly", edits=[*many, REMOVE])
        assert all(f'"t{number}"' in person.questions[0] for number in range(40))
        assert person.questions[0].count("remove_task") == 1
        long = {"op": "add_task", "task": {"id": "long", "argv": ["echo", "x" * 30_000]}}
        cancel = {"op": "cancel_task", "task_id": "t0"}
        with pytest.raises(Refused, match="the edit waits for approval 2"):
            await call(client, "edit_plan", plan="nightly", edits=[long, cancel])
        with pytest.raises(Refused, match="A person sees all that wait with: asterism plan approvals nightly"):
            await call(client, "ask_approval", plan="nightly", approval=2)
        assert len(person.questions) == 1


@pytest.mark.parametrize("mode", MODES)
async def test_a_refusal_reaches_the_author_with_its_reason(mode: str) -> None:
    async with running_plan(plan=RULES, mode=mode, elicitation_callback=Person(REFUSE)) as (client, _, _):
        with pytest.raises(Refused, match="the person refused the edit: ann reads it") as refused:
            await call(client, "edit_plan", plan="nightly", edits=[REMOVE])
        assert refused.value.kind == "edit-refused"
        assert (await call(client, "list_approvals", plan="nightly"))["items"] == []
        assert (await call(client, "read_plan", plan="nightly"))["version"] == 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("answer", ["decline", "cancel", {"decision": "perhaps"}, {}])
async def test_without_a_decision_the_edit_goes_on_waiting(mode: str, answer: Any) -> None:
    person = Person(answer, APPROVE)
    async with running_plan(plan=RULES, mode=mode, elicitation_callback=person) as (client, _, _):
        with pytest.raises(Refused, match="the edit waits for approval 1"):
            await call(client, "edit_plan", plan="nightly", edits=[REMOVE])
        [waiting] = (await call(client, "list_approvals", plan="nightly"))["items"]
        decided = await call(client, "ask_approval", plan="nightly", approval=waiting["id"])
        assert (decided["state"], decided["outcome"]["version"]) == ("approved", 1)
        with pytest.raises(Refused, match="no edit of plan 'nightly' that a form can show waits for approval 1"):
            await call(client, "ask_approval", plan="nightly", approval=1)


async def test_a_client_that_cannot_ask_is_told_how_a_person_decides() -> None:
    async with running_plan(plan=RULES) as (client, _, _):
        with pytest.raises(Refused) as refused:
            await call(client, "edit_plan", plan="nightly", edits=[REMOVE])
        assert (refused.value.kind, refused.value.problem["approval"]) == ("edit-waits", 1)
        with pytest.raises(Refused, match="asterism plan approve nightly 1"):
            await call(client, "ask_approval", plan="nightly", approval=1)


async def test_a_credential_for_edits_does_not_approve_its_own() -> None:
    """Its person is not even asked: who may only edit cannot decide, whatever the client answers."""
    person = Person(APPROVE)
    async with running_plan("edit:nightly", plan=RULES, elicitation_callback=person) as (client, _, _):
        with pytest.raises(Refused, match="the edit waits for approval 1"):
            await call(client, "edit_plan", plan="nightly", edits=[REMOVE])
        with pytest.raises(Refused, match="this needs the scope operate"):
            await call(client, "ask_approval", plan="nightly", approval=1)
        assert person.questions == []


def test_no_tool_takes_a_decision_as_an_argument() -> None:
    for tool in TOOLS.values():
        assert not tool.arguments & {"decision", "approve", "approved", "refuse"}, tool.name
    assert TOOLS["ask_approval"].arguments == {"plan", "approval"}


async def test_a_forged_state_is_refused_and_one_of_another_call_too() -> None:
    """A client may not say which edit a person has approved: the state is sealed, for one caller and one call."""
    async with running_plan(plan=RULES, elicitation_callback=Person()) as (client, scene, _):
        edit = {"plan": "nightly", "edits": [REMOVE]}
        asked = await client.session.call_tool("edit_plan", edit, allow_input_required=True)
        assert isinstance(asked, types.InputRequiredResult)
        answer: Any = {"decision": types.ElicitResult(action="accept", content=dict(APPROVE))}

        async def repeat(caller: Client, arguments: dict[str, Any], state: str | None) -> Any:
            return await caller.session.call_tool(
                "edit_plan", arguments, input_responses=answer, request_state=state, allow_input_required=True
            )

        forged = '{"plan": "nightly", "approval": 1}'
        for arguments, state in ((edit, forged), ({**edit, "reason": "other"}, asked.request_state)):
            with pytest.raises(MCPError, match="Invalid or expired requestState"):
                await repeat(client, arguments, state)
        async with Client(server_of(scene, name="bob"), elicitation_callback=Person()) as bob:
            with pytest.raises(MCPError, match="Invalid or expired requestState"):
                await repeat(bob, edit, asked.request_state)
        assert (await call(client, "read_plan", plan="nightly"))["version"] == 0
        done = await repeat(client, edit, asked.request_state)
        assert done.structured_content["version"] == 1


async def test_an_edit_that_was_decided_elsewhere_meanwhile_is_not_decided_twice() -> None:
    async with running_plan(plan=RULES) as (_, scene, stage):

        async def slow(context: Any, params: Any) -> types.ElicitResult:
            await refuse_edit(stage.fleet(), "nightly", 1, "no", who="bob")
            return types.ElicitResult(action="accept", content=dict(APPROVE))

        async with Client(server_of(scene), elicitation_callback=slow) as client:
            with pytest.raises(Refused, match="nothing waits for approval 1"):
                await call(client, "edit_plan", plan="nightly", edits=[REMOVE])
            assert (await call(client, "read_plan", plan="nightly"))["version"] == 0


async def test_a_decision_counts_only_for_the_edit_that_was_shown() -> None:
    """A later plan of the same name may have another edit with the same number."""
    async with running_plan(plan=RULES, elicitation_callback=Person("decline")) as (client, _, stage):
        with pytest.raises(Refused, match="the edit waits for approval 1"):
            await call(client, "edit_plan", plan="nightly", edits=[REMOVE])
        with pytest.raises(ApprovalGone, match="nothing waits for approval 1"):
            await decide(LocalSystem(stage.fleet()), "nightly", 1, "another edit", Decision(**APPROVE))
        assert [approval["state"] for approval in (await call(client, "list_approvals", plan="nightly"))["items"]] == [
            "waiting"
        ]


async def test_a_person_who_never_answers_does_not_block_the_call_of_an_older_client() -> None:
    async def never(context: Any, params: Any) -> types.ElicitResult:
        await asyncio.sleep(1e9)
        raise AssertionError

    async with running_plan(plan=RULES, mode="legacy", elicitation_callback=never) as (client, _, stage):
        began = stage.now()
        with pytest.raises(Refused, match="the edit waits for approval 1"):
            await call(client, "edit_plan", plan="nightly", edits=[REMOVE])
        assert 600.0 <= stage.now() - began < 660.0


@pytest.mark.parametrize(("answer", "counts"), [(APPROVE, {"completed": 2}), (REFUSE, {"completed": 3})])
async def test_a_followed_plan_asks_through_its_task(answer: dict[str, str], counts: dict[str, int]) -> None:
    tasks = TasksExtension(Person(answer))
    async with running_plan(plan=RULES, extensions=[tasks], elicitation_callback=Person("decline")) as (client, _, _):
        with pytest.raises(Refused, match="the edit waits for approval 1"):
            await call(client, "edit_plan", plan="nightly", edits=[REMOVE])
        open_gates()
        document = await call(client, "follow_plan", plan="nightly")
        assert (document["ended"], document["counts"]) == (True, counts)
        assert "input_required" in tasks.states
        assert tasks.states[-1] == "completed"
