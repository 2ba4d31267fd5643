"""What an independent review broke, and what must not break again."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from asterism import Constellation, EditBatch, EditRejected, LocalDevice, Orchestrator, PlanError, Task, Work, edits
from asterism.core.errors import DeviceLost
from asterism.core.plan.lock import CycleClaimed
from asterism.testing.virtual_time import run

pytestmark = pytest.mark.virtual_time


def plan_of(name: str, *tasks: Task, chain: bool = False) -> Constellation:
    plan, before = Constellation(name), None
    for task in tasks:
        plan.add(task, after=before if chain else None)
        before = task.id
    return plan


async def a_second() -> None:
    await asyncio.sleep(1)


async def test_two_plans_take_turns_on_one_slot() -> None:
    order: list[str] = []

    async def note(work: Work) -> None:
        order.append(work.constellation)
        await asyncio.sleep(1)

    orchestrator = Orchestrator([LocalDevice("one", slots=1, run=note)])
    plans = [plan_of(name, *(Task(str(n)) for n in range(4))) for name in "AB"]
    await asyncio.gather(*(orchestrator.run(plan) for plan in plans))
    assert "".join(order) in ("ABABABAB", "AABABABB", "ABABABBA")


def test_a_task_whose_device_was_lost_goes_to_another_one() -> None:
    class Gone(LocalDevice):
        async def execute(self, work: Work) -> Any:
            raise DeviceLost("gone")

    result = run(Orchestrator([Gone("gone"), LocalDevice("well")]).run(plan_of("p", Task("a", call=a_second))))
    assert (result.state, result["a"].device) == ("completed", "well")


def test_a_slow_observer_does_not_keep_the_program_from_ending() -> None:
    async def slow(event: Any) -> None:
        await asyncio.sleep(3600)

    orchestrator = Orchestrator([LocalDevice("d")])
    orchestrator.events.subscribe(slow)
    began = time.monotonic()
    orchestrator.run_sync(plan_of("p", *(Task(str(n), call=a_noop) for n in range(20))))
    assert time.monotonic() - began < 1800  # one event alone would take twice that


async def a_noop() -> None:
    await asyncio.sleep(0)


async def test_a_copy_of_a_running_plan_is_refused_and_does_not_hang() -> None:
    plan = plan_of("p", Task("a", call=a_second))
    running = asyncio.ensure_future(Orchestrator([LocalDevice("d")]).run(plan))
    await asyncio.sleep(0.5)
    with pytest.raises(PlanError, match="copy of a plan with running tasks"):
        await Orchestrator([LocalDevice("d")]).run(plan.copy())
    await running


def test_a_condition_that_makes_the_parser_panic_is_a_violation_like_any_other() -> None:
    async def editor(view: Any, events: Any) -> Any:
        return [edits.AddTask(Task("n")), edits.AddDependency("a", "n", when="a" * 70_000 + "+")]

    plan = plan_of("p", Task("a", call=a_second), Task("b", call=a_second), chain=True)
    result = run(Orchestrator([LocalDevice("d")], editor=editor).run(plan))
    assert result.state == "completed"
    assert result.summary.makespan < 10
    assert {cycle.outcome for cycle in result.cycles} == {"abandoned"}


def test_another_attempt_waits_until_the_one_that_timed_out_has_stopped() -> None:
    at_once, most = 0, 0

    async def stubborn() -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        try:
            await asyncio.sleep(100)
        finally:
            try:
                await asyncio.sleep(3)
            finally:
                at_once -= 1

    plan = plan_of("p", Task("a", call=stubborn, timeout=1, retries=3, backoff=0.1))
    result = run(Orchestrator([LocalDevice("d")]).run(plan))
    assert (result["a"].status, result["a"].attempts, most) == ("failed", 4, 1)


def test_a_removal_of_everything_below_is_stale_if_something_was_added_there() -> None:
    plan = plan_of("p", Task("a"), Task("b"), chain=True)
    plan.edit([edits.AddTask(Task("new")), edits.AddDependency("b", "new")])
    with pytest.raises(EditRejected, match="'new' was changed in version 1"):
        plan.apply(EditBatch((edits.RemoveTask("a", "remove"),), base_version=0), 0.0)


async def test_dependents_of_a_task_that_could_not_be_removed_keep_waiting() -> None:
    async def editor(view: Any, events: Any) -> Any:
        if events[0].task_id != "a":
            return None
        copy = view.frozen()
        copy.edit([edits.RemoveTask("b", "bridge"), edits.AddTask(Task("b2", call=a_second))])
        copy.edit([edits.AddDependency("b2", "c")])
        await asyncio.sleep(5)
        return copy

    plan = Constellation("p")
    plan.add(Task("a", call=a_second))
    plan.add(Task("b", call=lambda: None, device="late"))
    plan.add(Task("c", call=a_second), after="b")

    plan.nodes["b"].task = Task("b", call=ten_seconds, device="late")
    orchestrator = Orchestrator([LocalDevice("d")], editor=editor)
    running = asyncio.ensure_future(orchestrator.run(plan))
    await asyncio.sleep(2)
    orchestrator.join(LocalDevice("late", run=None))
    result = await running
    assert result["c"].started_at >= result["b"].ended_at


async def ten_seconds() -> None:
    await asyncio.sleep(10)


def test_a_copy_cannot_reach_the_data_of_the_live_task() -> None:
    plan = plan_of("p", Task("a", data={"x": 1}))
    with pytest.raises(TypeError):
        plan.copy()["a"].task.data["x"] = "forged"  # type: ignore[index]
    given = {"x": 1}
    task = Task("b", inputs=given)
    given["x"] = 2
    assert task.inputs == {"x": 1}


def test_a_generator_function_fails_with_a_clear_message() -> None:
    def generate() -> Any:
        yield 1

    result = run(Orchestrator([LocalDevice("d")]).run(plan_of("p", Task("a", call=generate))))
    assert result["a"].status == "failed"
    assert "is a generator function" in result["a"].reason


async def test_a_paused_plan_does_not_fail_a_task_that_waits_for_a_device() -> None:
    orchestrator = Orchestrator([LocalDevice("d")], no_device_timeout=10)
    running = asyncio.ensure_future(orchestrator.run(plan_of("p", Task("a", needs=["gpu"], call=a_second))))
    await asyncio.sleep(1)
    orchestrator.pause("p")
    await asyncio.sleep(15)
    orchestrator.join(LocalDevice("gpu", can=["gpu"]))
    orchestrator.resume("p")
    assert (await running).state == "completed"


async def test_the_cycle_of_an_editor_in_this_process_cannot_be_claimed() -> None:
    async def editor(view: Any, events: Any) -> None:
        await asyncio.sleep(5)

    orchestrator = Orchestrator([LocalDevice("d")], editor=editor)
    running = asyncio.ensure_future(orchestrator.run(plan_of("p", Task("a", call=a_second))))
    await asyncio.sleep(2)
    with pytest.raises(CycleClaimed, match="belongs to 'editor', the editor of this process"):
        orchestrator.claim(1, "somebody")
    await running


async def test_the_lower_bound_is_one_even_with_waits_between_attempts_and_devices_that_leave() -> None:
    async def fail() -> None:
        await asyncio.sleep(1)
        raise RuntimeError("no")

    orchestrator = Orchestrator([LocalDevice("a", slots=1), LocalDevice("b", slots=1)], seed=1)
    plan = plan_of("p", Task("x", call=fail, retries=3, backoff=10), Task("y", call=ten_seconds))
    running = asyncio.ensure_future(orchestrator.run(plan))
    await asyncio.sleep(5)
    orchestrator.leave("b")
    summary = (await running).summary
    assert summary.lower_bound <= summary.makespan
    assert summary.parallelism.work == 14


def test_timers_for_one_instant_come_in_an_order_that_the_seed_decides() -> None:
    async def main() -> tuple[int, ...]:
        order: list[int] = []
        for number in range(5):
            asyncio.get_running_loop().call_later(1.0, order.append, number)
        await asyncio.sleep(2)
        assert asyncio.get_running_loop().time() == 2.0
        return tuple(order)

    assert len({run(main(), seed) for seed in range(30)}) > 5
    assert run(main(), 7) == run(main(), 7)
