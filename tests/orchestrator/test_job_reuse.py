"""A task that another one's end starts follows in the same ``asyncio.Task``, if nobody can tell."""

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from asterism import Constellation, LocalDevice, Orchestrator, Task
from asterism.core.plan.task import Lane
from asterism.core.run.placement import Candidate
from asterism.orchestrator import execution as execution_module
from asterism.orchestrator import scheduler as scheduler_module
from asterism.orchestrator.roster import Roster
from asterism.orchestrator.scheduler import LONGEST_TURN, DeviceScheduler

pytestmark = pytest.mark.virtual_time


async def names_of_jobs(body: Callable[[], Awaitable[object]], tasks: int = 50) -> list[str]:
    """The jobs that execute a chain of equal tasks, one name per task."""
    names: list[str] = []

    async def named() -> None:
        await body()
        names.append(getattr(asyncio.current_task(), "get_name", str)())

    plan = Constellation()
    for number in range(tasks):
        plan.add(Task(str(number), call=named), after=[str(number - 1)] if number else None)
    result = await Orchestrator([LocalDevice("here")]).run(plan)
    assert result.state == "completed"
    assert len(names) == tasks
    return names


async def nothing() -> None:
    """Never waits."""


async def pause() -> None:
    await asyncio.sleep(0)


async def nested() -> None:
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        group.create_task(pause())


@pytest.mark.parametrize("body", [nothing, pause, nested])
async def test_the_tasks_of_a_chain_share_a_job(body: Callable[[], Awaitable[object]]) -> None:
    assert len(set(await names_of_jobs(body))) <= 2


async def test_each_task_has_its_own_job_once_the_turn_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_module, "LONGEST_TURN", 0.0)
    assert len(set(await names_of_jobs(nothing))) == 50


async def test_a_job_that_others_hold_weakly_executes_no_other_task() -> None:
    """Such as the key of a registry of sessions, one for each task."""
    sessions: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    async def register() -> None:
        assert asyncio.current_task() not in sessions
        sessions[asyncio.current_task()] = 1

    assert len(set(await names_of_jobs(register))) == 50


@pytest.mark.parametrize("safe", [True, False])
async def test_a_timer_that_a_task_left_cancels_no_other_task(safe: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ablation: if references to the job are not counted, the timer of the first task cancels the second one."""
    if not safe:
        monkeypatch.setattr(execution_module, "count_references", lambda job: 0)

    async def leave_timer() -> None:
        job = asyncio.current_task()
        assert job is not None
        asyncio.get_running_loop().call_later(1, job.cancel)

    async def work() -> None:
        await asyncio.sleep(5)

    plan = Constellation()
    plan.add(Task("warm", call=nothing))  # its end begins the turn
    plan.add(Task("timer", call=leave_timer), "warm")
    plan.add(Task("work", call=work), "timer")
    result = await Orchestrator([LocalDevice("here")]).run(plan)
    assert result["work"].status == ("completed" if safe else "failed")


async def test_a_task_that_is_stopped_before_its_job_begins_it_never_begins() -> None:
    begun: list[str] = []

    async def note() -> None:
        begun.append("b")

    def cancel_meanwhile(free: Sequence[Candidate], lane: Lane) -> Candidate:
        execution = orchestrator.scheduler.find(None)
        if execution.plan["b"].status == "running":  # its job is about to begin it
            execution.cancel()
        return free[0]

    orchestrator = Orchestrator([LocalDevice("one"), LocalDevice("two")], strategy=cancel_meanwhile)
    plan = Constellation()
    plan.add(Task("warm", call=nothing))
    plan.add(Task("a", call=nothing), "warm")
    plan.add(Task("b", call=note), "a")
    plan.add(Task("c", call=note), "a")
    result = await orchestrator.run(plan)
    assert (result.state, result["b"].status, result["b"].attempts, begun) == ("cancelled", "cancelled", 0, [])


async def test_a_turn_ends_and_the_loop_begins_the_next() -> None:
    """Tasks that never wait must not keep the loop from its other work."""
    now = 100.0
    scheduler = DeviceScheduler(Roster((), "score"), clock=lambda: now)
    scheduler.attach_loop()
    assert not scheduler.keeps_turn(now), "nobody knows for how long the loop has waited"
    await asyncio.sleep(0)
    assert scheduler.keeps_turn(now)
    assert scheduler.keeps_turn(now + LONGEST_TURN / 2)
    now += LONGEST_TURN
    assert not scheduler.keeps_turn(now)
    assert not scheduler.keeps_turn(now)
    await asyncio.sleep(0)
    assert scheduler.keeps_turn(now)
