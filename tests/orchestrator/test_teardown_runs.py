"""Cleanups and teardowns of plans that fail or are cancelled."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asterism import Constellation, LocalDevice, Orchestrator, Task
from asterism.core.plan.edits import CancelTask
from asterism.orchestrator import execution
from tests.laboratory.plan_invariants import check_invariants
from tests.orchestrator.orchestrator_scenes import Script, after, at, failing, orchestrate, stubborn, until

pytestmark = pytest.mark.virtual_time


def database(load: Any, drop: Any = None, **fields: Any) -> Constellation:
    plan = Constellation("p")
    plan.add(Task("create", call=after(1)))
    plan.add(Task("load", call=load), after="create")
    plan.add(Task("verify", call=after(1)), after="load")
    plan.add(Task("drop", call=drop or after(2), **fields), teardown="create")
    return plan


def statuses(plan: Constellation) -> dict[str, str]:
    check_invariants(plan)
    return {task.id: str(task.status) for task in plan}


def start(plan: Constellation, **options: Any) -> tuple[Orchestrator, asyncio.Task[Any]]:
    orchestrator = Orchestrator(devices=[LocalDevice("device")], **options)
    return orchestrator, asyncio.create_task(orchestrator.run(plan))


CANCELLED = {"create": "completed", "load": "cancelled", "verify": "cancelled", "drop": "completed"}


@pytest.mark.parametrize("on", ["completion", "always"])
def test_a_cleanup_runs_exactly_when_it_is_needed_with_always(on: str) -> None:
    plan = Constellation("p")
    plan.add(Task("create", call=failing()))
    plan.add(Task("load", call=after(1)), after="create")
    plan.add(Task("clean", call=after(1)), after={"load": on})
    result = orchestrate(plan)
    assert str(result["clean"].status) == {"completion": "cancelled", "always": "completed"}[on]
    assert result.state == {"completion": "failed", "always": "partially_failed"}[on]


@pytest.mark.parametrize("policy", ["scoped", "global", "speculative"])
def test_a_teardown_runs_after_a_failure_that_an_editor_has_reviewed(policy: str) -> None:
    plan = database(failing())
    result = orchestrate(plan, editor=Script(seconds=1), policy=policy)
    assert statuses(plan) == {"create": "completed", "load": "failed", "verify": "cancelled", "drop": "completed"}
    assert result.state == "partially_failed"


@pytest.mark.parametrize("policy", ["scoped", "global", "speculative"])
async def test_a_cancelled_plan_is_torn_down(policy: str) -> None:
    plan = database(after(100))
    orchestrator, running = start(plan, editor=Script(seconds=1), policy=policy)
    await at(10)
    cancelling = asyncio.create_task(orchestrator.cancel("p"))
    await asyncio.sleep(0.5)
    assert plan.state == "cancelling"
    await cancelling
    result = await running
    assert (result.state, result.exit_code) == ("cancelled", 130)
    assert statuses(plan) == CANCELLED
    assert plan.ended_at is not None
    assert (plan["drop"].ended_at, plan["drop"].device) == (plan.ended_at, "device")


async def test_a_teardown_that_runs_is_not_stopped_by_a_cancellation_and_is_retried() -> None:
    failures = iter([True, False])

    async def drop() -> None:
        await asyncio.sleep(2)
        if next(failures):
            raise RuntimeError("busy")

    plan = database(after(1), drop, retries=1, backoff=1)
    orchestrator, running = start(plan)
    await at(4)
    assert plan["drop"].status == "running"
    await orchestrator.cancel("p")
    await running
    assert (plan["drop"].status, plan["drop"].attempts) == ("completed", 2)


async def test_a_task_that_does_not_stop_delays_the_teardown_by_the_grace_period_at_most() -> None:
    plan = database(stubborn(100))
    orchestrator, running = start(plan, grace=3)
    await at(10)
    await orchestrator.cancel("p")
    await running
    assert statuses(plan) == CANCELLED
    assert plan["drop"].started_at == pytest.approx(plan["load"].ended_at)


async def test_the_teardown_of_a_paused_plan_runs_when_the_plan_is_cancelled() -> None:
    plan = database(after(100))
    orchestrator, running = start(plan)
    await at(10)
    orchestrator.pause("p")
    await orchestrator.cancel("p")
    await running
    assert statuses(plan) == CANCELLED


@pytest.mark.parametrize(("timeout", "seconds"), [(None, execution.TEARDOWN_TIMEOUT), (20, 20)])
async def test_a_teardown_has_a_time_limit_of_its_own(timeout: float | None, seconds: float) -> None:
    plan = database(after(100), after(1e6), timeout=timeout)
    orchestrator, running = start(plan)
    await at(10)
    await orchestrator.cancel("p")
    await running
    assert statuses(plan) == {**CANCELLED, "drop": "failed"}
    assert plan["drop"].reason.endswith(f"took longer than its timeout of {seconds} s")


async def test_a_hard_cancellation_waits_for_no_teardown() -> None:
    plan = database(after(100), after(50))
    plan.add(Task("last", call=after(1)), after={"drop": "always"}, teardown="create")
    orchestrator, running = start(plan)
    await at(10)
    cancelling = asyncio.create_task(orchestrator.cancel("p"))
    await at(12)
    assert plan["drop"].status == "running"
    await orchestrator.cancel("p", hard=True)
    await cancelling
    await running
    assert statuses(plan) == {**CANCELLED, "drop": "cancelled", "last": "cancelled"}


async def test_a_second_interrupt_ends_a_teardown_too() -> None:
    plan = database(after(100), after(50))
    _, running = start(plan)
    await at(10)
    running.cancel()
    await at(12)
    assert plan["drop"].status == "running"
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert plan.state == "cancelled"


async def test_a_teardown_that_no_device_can_run_does_not_keep_a_cancelled_plan_from_its_end() -> None:
    plan = database(after(100), needs=["gpu"])
    orchestrator, running = start(plan, no_device_timeout=30)
    await at(10)
    await orchestrator.cancel("p")
    await running
    assert statuses(plan) == {**CANCELLED, "drop": "failed"}


async def test_why_tells_what_a_teardown_of_a_cancelled_plan_waits_for() -> None:
    plan = database(stubborn(100))
    orchestrator, running = start(plan, grace=30)
    await at(10)
    cancelling = asyncio.create_task(orchestrator.cancel("p"))
    await at(12)
    assert "waits for 'load' (running)" in str(orchestrator.why("drop"))
    await cancelling
    await running


async def test_without_the_exemption_a_cancelled_plan_leaves_what_it_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asterism.core.plan.teardowns.is_due", lambda node: False)
    plan = database(after(100))
    orchestrator, running = start(plan)
    await at(10)
    await orchestrator.cancel("p")
    await running
    assert plan["drop"].status == "cancelled"


async def test_an_end_of_a_teardown_is_announced_while_the_plan_is_cancelled() -> None:
    plan = database(after(100))
    orchestrator, running = start(plan)
    heard: list[tuple[str, str | None]] = []
    orchestrator.events.subscribe(lambda event: heard.append((event.kind, getattr(event, "task_id", None))))
    await at(10)
    await orchestrator.cancel("p")
    await running
    kinds = [event for event in heard if event[0] in ("task_cancelled", "task_completed", "constellation_cancelled")]
    assert kinds[1:] == [
        ("task_cancelled", "verify"),
        ("task_cancelled", "load"),
        ("task_completed", "drop"),
        ("constellation_cancelled", None),
    ]


async def test_a_set_up_that_is_cancelled_in_the_tick_of_its_start_is_not_torn_down() -> None:
    """Its work has not begun, so there is nothing to tear down."""
    begun: list[str] = []
    plan = Constellation("p")
    plan.add(Task("create", call=lambda: begun.append("create")))
    plan.add(Task("drop", call=lambda: begun.append("drop")), teardown="create")
    _, running = start(plan)
    await until(lambda: plan["create"].status == "running")
    plan.edit([CancelTask("create", "not needed")])
    await running
    assert begun == []
    assert statuses(plan) == {"create": "cancelled", "drop": "cancelled"}
    assert plan["drop"].reason == "not needed: its set-up 'create' never started"
