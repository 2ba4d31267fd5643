"""Tasks for agents in this process."""

from __future__ import annotations

import pytest

from asterism import Constellation, LocalDevice, Orchestrator, Task, Work


def plan_for_an_agent() -> Constellation:
    plan = Constellation("p")
    plan.add(Task("a", agent={"description": "x"}))
    return plan


async def test_only_a_device_with_an_agent_gets_the_task() -> None:
    asked: list[Work] = []
    devices = [LocalDevice("plain", run=pytest.fail), LocalDevice("coder", can=["agent"], run=asked.append)]
    result = await Orchestrator(devices).run(plan_for_an_agent())
    assert result.exit_code == 0
    assert [work.task.id for work in asked] == ["a"]


async def test_without_such_a_device_the_task_fails_and_says_so() -> None:
    result = await Orchestrator([LocalDevice("plain")], no_device_timeout=0.01).run(plan_for_an_agent())
    assert "no device with 'agent'" in str(result["a"].error)


async def test_a_device_that_only_claims_to_have_an_agent_does_not_complete_the_task() -> None:
    result = await Orchestrator([LocalDevice("boaster", can=["agent"])]).run(plan_for_an_agent())
    assert "has no agent for task 'a'" in str(result["a"].error)
