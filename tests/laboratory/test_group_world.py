"""Simulated plans with a group over a result, whose orchestrators crash: it is expanded once, and gathers all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asterism.base import expressions
from asterism.core.errors import AsterismError
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.status import COMPLETED
from asterism.core.plan.task import Task
from asterism.durable.journal_store import load
from asterism.execution.foreach_expansion import deferred_group
from asterism.orchestrator.execution import Execution
from tests.laboratory.simulator import simulate
from tests.laboratory.simulator.plan_world import PLAN, PlanWorld

ITEMS = ["x", "y", "z"]


def grouped_plan() -> Constellation:
    plan, inputs = Constellation(PLAN), {"steps": 1, "seconds": 1.0, "fails": 0.0}
    plan.add(Task("list", call="work:do", inputs=inputs))
    template = Task("it", call="work:do", inputs={**inputs, "note": "{item}"}, revocable=True)
    plan.add(deferred_group(template, {"from": "list", "select": str(ITEMS)}, {}), "list")
    plan.add(Task("last", call="work:do", inputs=inputs), "it")
    return plan


class GroupWorld(PlanWorld):
    def __init__(self, seed: int, **arguments: Any) -> None:
        super().__init__(seed, **arguments)
        self.plan = grouped_plan()

    async def _check(self) -> None:
        await super()._check()
        plan = (await load(self.store, PLAN, expressions)).plan
        elements = [plan.nodes.get(f"it[{item}]") for item in ITEMS]
        if plan["it"].status != "completed" or plan["it"].value != [node.value for node in elements if node]:
            self.checker.broken(f"the group is {plan['it'].status} with {plan['it'].value}")
        if sum(entry.why.find("by foreach") > 0 for entry in plan.story() if entry.task is None) != 1:
            self.checker.broken("the group was not expanded once")


def play(dies_at: int, after: bool = False) -> GroupWorld:
    return simulate(1, world=GroupWorld, dies_at=dies_at, after=after)


def boundaries() -> list[tuple[int, bool]]:
    """Before and after every commit of an orchestrator without faults."""
    commits = play(10**9).commits
    assert commits > 15
    return [(number, after) for number in range(1, commits + 1) for after in (False, True)]


def play_all(stride: int) -> None:
    for number, after in boundaries()[::stride]:
        play(number, after)


@pytest.mark.parametrize("stride", [pytest.param(41, marks=pytest.mark.long), pytest.param(10, marks=pytest.mark.long)])
def test_an_orchestrator_may_die_at_every_commit(stride: int) -> None:
    play_all(stride)


@pytest.mark.long
def test_a_group_that_is_seen_between_its_start_and_its_end_loses_its_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ablation: start and end are one step of the loop, and so in one record. Otherwise the next owner finds a group
    that is running, and waits for a run that never existed."""
    end = Execution.end

    def later(self: Execution, node: Any, status: Any, value: Any, error: Any = None) -> None:
        if node.task.foreach is None or status is not COMPLETED:
            end(self, node, status, value, error)
        else:
            asyncio.get_running_loop().call_later(1.0, end, self, node, status, value, error)

    monkeypatch.setattr(Execution, "end", later)
    with pytest.raises((AssertionError, AsterismError)):
        play_all(1)
