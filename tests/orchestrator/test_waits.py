"""What tasks wait for, beside other tasks: in virtual time, with a world and a clock that the test plays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from asterism import Constellation, LocalDevice, Orchestrator, PlanError, Task, edits
from asterism.core.plan.awaited import timeout_error
from asterism.core.plan.node import Node
from asterism.orchestrator import waits
from asterism.orchestrator.execution import Execution
from asterism.orchestrator.waits import Waits
from asterism.testing.virtual_time import run
from tests.laboratory.plan_invariants import check_invariants
from tests.orchestrator.orchestrator_scenes import after, orchestrate

pytestmark = pytest.mark.virtual_time

EVENT: Mapping[str, Any] = {"event": "payment/17"}


def instant(seconds: float) -> str:
    """A time of the virtual clock as a plan file would have it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()


class PlayedWorld:
    """A world in which the test says what happens."""

    def __init__(self, waits: Waits) -> None:
        self.waits, self.sought = waits, dict[str, Node]()

    def look_for(self, node: Node) -> None:
        self.sought[node.id] = node

    def forget(self, node: Node) -> None:
        self.sought.pop(node.id, None)

    def time_is_up(self, node: Node) -> None:
        self.waits.fail(node, timeout_error(node.task.wait_for or {}))


class Scene:
    """A plan that runs with a played world."""

    def __init__(self, plan: Constellation, clock: Callable[[], float] | None = None) -> None:
        self.plan = plan
        self.orchestrator = Orchestrator([LocalDevice("device", slots=1)], seed=1)
        if clock is not None:
            self.orchestrator.scheduler.now = clock
        self.orchestrator.scheduler.attach_loop()
        self.execution: Execution = self.orchestrator._execution(plan)
        self.world = self.execution.waits.world = PlayedWorld(self.execution.waits)
        self.orchestrator.options.prepare(plan)
        self.execution.begin()
        self.running = asyncio.create_task(self.orchestrator._ended(self.execution))

    async def turn(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        check_invariants(self.plan, set(self.execution.waits))

    def arrive(self, task: str, value: Any) -> None:
        self.execution.waits.complete(self.world.sought[task], value)


async def test_a_plan_waits_for_a_time_and_uses_no_slot() -> None:
    plan = Constellation("p")
    loop = asyncio.get_running_loop()
    orchestrator = Orchestrator([LocalDevice("device", slots=1)])
    orchestrator.scheduler.attach_loop()
    began = orchestrator.now()
    plan.add(Task("nine", wait_for={"until": instant(began + 3600)}))
    plan.add(Task("work", call=after(10)))
    plan.add(Task("report", call=after(1)), after="nine")
    result = await orchestrator.run(plan)
    assert result.state == "completed"
    assert plan["work"].ended_at == pytest.approx(began + 10)  # the only slot was free
    assert plan["report"].ended_at == pytest.approx(began + 3601, abs=0.01)
    assert [entry.what for entry in plan.story("nine")] == ["waits", "started", "completed"]
    assert loop.time() >= 3600


def test_a_time_that_has_passed_is_not_waited_for() -> None:
    plan = Constellation("p")
    plan.add(Task("past", wait_for={"until": "2001-01-01T00:00"}))
    result = orchestrate(plan)
    assert (result.state, result["past"].value) == ("completed", "2001-01-01T00:00")


@pytest.mark.parametrize("wait", [EVENT, {"plan": "nightly", "task": "load"}])
def test_a_plan_without_a_store_refuses_what_it_cannot_wait_for(wait: Mapping[str, Any]) -> None:
    plan = Constellation("p")
    plan.add(Task("a", wait_for=wait))
    with pytest.raises(PlanError, match=r"task 'a' waits for .*, which needs a plan in a store: run it with --store"):
        orchestrate(plan)


def test_an_edit_that_brings_such_a_wait_into_a_plan_without_a_store_fails_the_task() -> None:
    plan = Constellation("p")
    plan.add(Task("a", call=after(1)))

    async def editor(view: Any, events: Any) -> Any:
        return [edits.AddTask(Task("b", wait_for=EVENT))] if "b" not in view else None

    result = orchestrate(plan, editor=editor)
    assert result.state == "partially_failed"
    assert "which needs a plan in a store" in result["b"].reason


async def test_an_event_ends_the_task_with_its_data() -> None:
    plan = Constellation("p")
    plan.add(Task("paid", wait_for=EVENT))
    plan.add(Task("ship", call=lambda paid: paid["amount"]), after="paid")
    scene = Scene(plan)
    await scene.turn()
    assert str(scene.orchestrator.why("paid")).startswith("paid is waiting: it waits for event 'payment/17'; it has")
    assert "'paid' is pending" in str(scene.orchestrator.why("ship"))
    scene.arrive("paid", {"amount": 42})
    result = await scene.running
    assert (result.state, result["ship"].value) == ("completed", 42)
    assert plan.tainted == {"paid"}


async def test_a_timeout_fails_the_task_with_a_sentence() -> None:
    plan = Constellation("p")
    plan.add(Task("paid", wait_for={**EVENT, "timeout": 3600}))
    scene = Scene(plan)
    result = await scene.running
    assert result.state == "failed"
    assert "event 'payment/17' did not arrive within 1h" in result["paid"].reason
    assert scene.world.sought == {}


@pytest.mark.parametrize("how", ["task", "plan"])
async def test_a_wait_is_cancelled(how: str) -> None:
    plan = Constellation("p")
    plan.add(Task("paid", wait_for=EVENT))
    scene = Scene(plan)
    await scene.turn()
    if how == "plan":
        await scene.orchestrator.cancel("p")
    else:
        scene.orchestrator.edit("p", edits.EditBatch((edits.CancelTask("paid", "nobody pays"),)))
    result = await scene.running
    assert (plan["paid"].status, scene.world.sought) == ("cancelled", {})
    assert result.state == ("cancelled" if how == "plan" else "completed")


async def test_an_edit_changes_what_a_task_waits_for() -> None:
    plan = Constellation("p")
    plan.add(Task("paid", wait_for={**EVENT, "timeout": 60}))
    scene = Scene(plan)
    await asyncio.sleep(50)
    scene.orchestrator.edit("p", edits.EditBatch((edits.UpdateTask("paid", wait_for={**EVENT, "timeout": 600}),)))
    await asyncio.sleep(500)
    await scene.turn()
    assert plan["paid"].status == "pending"  # the first limit is over, and counts no more
    assert plan.node("paid").awaited_since == pytest.approx(plan.started_at + 50, abs=0.01)
    scene.arrive("paid", None)
    assert (await scene.running).state == "completed"


async def test_a_wait_that_comes_to_depend_on_others_begins_again_after_them() -> None:
    plan = Constellation("p")
    plan.add(Task("slow", call=after(100)))
    plan.add(Task("paid", wait_for={**EVENT, "timeout": 60}))
    scene = Scene(plan)
    await asyncio.sleep(30)
    scene.orchestrator.edit("p", edits.EditBatch((edits.AddDependency("slow", "paid"),)))
    await scene.turn()
    assert (scene.world.sought, plan.node("paid").awaited_since) == ({}, None)
    await asyncio.sleep(100)
    await scene.turn()
    assert plan.node("paid").awaited_since == pytest.approx(plan.started_at + 100, abs=0.01)
    result = await scene.running
    assert result["paid"].ended_at == pytest.approx(plan.started_at + 160, abs=0.01)


async def test_a_removed_wait_does_not_keep_the_plan_from_its_end() -> None:
    plan = Constellation("p")
    plan.add(Task("a", call=after(1)))
    plan.add(Task("paid", wait_for=EVENT))
    scene = Scene(plan)
    await asyncio.sleep(10)
    assert not scene.running.done()
    scene.orchestrator.edit("p", edits.EditBatch((edits.RemoveTask("paid"),)))
    assert (await scene.running).state == "completed"


async def test_waits_of_many_tasks_end_in_small_steps() -> None:
    plan = Constellation("p")
    for number in range(1000):
        plan.add(Task(f"t{number}", wait_for={"event": f"e{number}", "timeout": 60}))
    scene = Scene(plan)
    result = await scene.running  # the watchdog of the loop fails a step of more than 100 ms
    assert result.state == "failed"
    assert plan.counts["failed"] == 1000


def test_a_failed_wait_is_retried_with_the_plan() -> None:
    plan = Constellation("p")
    plan.add(Task("soon", wait_for={"until": "2001-01-01"}))
    plan.add(Task("bad", wait_for={"until": "{tick}"}), after="soon")
    first = orchestrate(plan)
    assert first["bad"].reason.startswith("WaitFailed: '{tick}' is not a time")

    async def again() -> Any:
        orchestrator = Orchestrator([LocalDevice("device")])
        return await orchestrator.retry(first, edits=[edits.UpdateTask("bad", wait_for={"until": "2001-01-01"})])

    assert run(again()).state == "completed"


class JumpingScene(Scene):
    """A plan whose clock jumps, and that of the loop does not."""

    def __init__(self, plan: Constellation) -> None:
        self.jumped, loop = 0.0, asyncio.get_running_loop()
        super().__init__(plan, clock=lambda: 1e9 + loop.time() + self.jumped)


def failing_once(delay: float) -> tuple[Task[Any], list[float]]:
    """A task that fails, and succeeds ``delay`` seconds later; and when its attempts began."""
    began: list[float] = []

    async def work() -> None:
        began.append(asyncio.get_running_loop().time())
        if len(began) == 1:
            raise RuntimeError("not yet")

    return Task("work", call=work, retries=1, backoff=delay), began


async def second_attempt_after(jump: float) -> float:
    """How many seconds after the first attempt the second one begins, if the clock jumps between them."""
    task, began = failing_once(8.0)
    plan = Constellation("p")
    plan.add(task)
    scene = JumpingScene(plan)
    await asyncio.sleep(0.5)
    scene.jumped = jump
    await scene.running
    return began[1] - began[0]


@pytest.mark.parametrize("jump", [-3600.0, 3600.0])
async def test_a_clock_that_jumps_does_not_change_a_delay(jump: float) -> None:
    assert await second_attempt_after(jump) == pytest.approx(await second_attempt_after(0.0), abs=0.2)


async def test_ablation_a_clock_that_nobody_follows_changes_a_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "JUMP", float("inf"))
    assert await second_attempt_after(-3600.0) > 3000


async def test_a_jump_of_the_clock_is_noticed_by_a_task_that_waits_for_a_time() -> None:
    plan, loop = Constellation("p"), asyncio.get_running_loop()
    plan.add(Task("nine", wait_for={"until": instant(1e9 + loop.time() + 7200)}))
    scene, began = JumpingScene(plan), loop.time()
    await asyncio.sleep(10)
    scene.jumped = 7200.0
    assert (await scene.running).state == "completed"
    assert loop.time() - began < 10 + waits.LONGEST_SLEEP + 1


async def test_a_plan_that_is_left_has_no_timer() -> None:
    task, began = failing_once(8.0)
    plan = Constellation("p")
    plan.add(task)
    plan.add(Task("paid", wait_for={**EVENT, "timeout": 60}))
    scene = Scene(plan)
    await asyncio.sleep(0.5)
    scene.execution.abandon()
    await asyncio.sleep(100)
    assert (len(began), plan["paid"].status) == (1, "pending")
    scene.running.cancel()
    await asyncio.gather(scene.running, return_exceptions=True)
