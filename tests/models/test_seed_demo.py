"""The whole story with a scripted model: plan, failure, repair, prune, approval, end; in a store, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from asterism import Constellation
from asterism.core.plan.edit_rules import ApprovalRule
from asterism.core.plan.edits import WAITING
from asterism.durable.approval_store import list_approvals
from asterism.durable.plan_actor import approve_edit
from asterism.models import Budget, ModelEditor, StoreCassette
from tests.durable.durable_scenes import staged
from tests.models.editor_scenes import ScriptedCaller, add

pytestmark = pytest.mark.virtual_time

FAIL = "tests.models.editor_scenes:fails"

PLAN = [
    *add("collect"),
    *add("compare", "collect", call=FAIL),
    *add("draw", "collect"),
    *add("print", "draw"),
    *add("summary", "compare"),
]
REPAIR = [
    *add("compare-again", "compare", "failure"),
    {"op": "remove_dependency", "source": "compare", "target": "summary"},
    {"op": "add_dependency", "source": "compare-again", "target": "summary"},
]
PRUNE = [{"op": "remove_task", "task_id": "print"}]


def answers(question):
    """A model that plans, repairs a failure, and removes what is not needed."""
    prompt = question.messages[0]["user"]
    if "the plan is empty" in prompt:
        return PLAN
    repair = REPAIR if "task 'compare' failed" in prompt else []
    return [*repair, *(PRUNE if "task 'draw' completed" in prompt else [])]


async def test_a_model_plans_repairs_and_prunes_and_a_person_approves():
    async with staged() as stage:
        caller = ScriptedCaller(answers)
        model = ModelEditor(
            "test:scripted",
            caller=caller,
            fleet=stage.fleet(),
            goal="compare the logs and write a summary",
            ask=["failure", "tasks=draw"],
            budget=Budget(dollars=1, calls=10, tasks=20),
        )
        rules = [ApprovalRule.parse("destructive")]
        orchestrator = stage.orchestrator(editor=model, approvals=rules, policy="scoped")
        running = stage.spawn(orchestrator.run(Constellation("demo")))
        decided = []
        for _ in range(2000):
            if running.done():
                break
            there = await stage.store.register("plan/demo") is not None
            approvals = await list_approvals(stage.store, "demo") if there else []
            for approval in [approval for approval in approvals if approval.state == WAITING]:
                await approve_edit(stage.fleet(), "demo", approval.id, who="ann")
                decided.append(approval)
            await asyncio.sleep(0.5)
        result = await running
        assert {task.id: str(task.status) for task in result} == {
            "collect": "completed",
            "compare": "failed",
            "compare-again": "completed",
            "draw": "completed",
            "summary": "completed",
        }
        assert 1 <= len(decided) <= 2  # the repair removes a dependency, too; ends that come together share a call
        told = [entry.what for entry in result.story() if entry.task is None]
        assert {"began", "edited", "editor called", "edit waits", "edit approved"} <= set(told)
        assert len(caller.asked) == 1 + len(decided)
        assert len(await StoreCassette(stage.store).exchanges("demo")) == len(caller.asked)
        assert result.editor_cost.calls == len(caller.asked)
