"""Names that programs set or override: the lock policy, conditions, metadata, timeouts, the merge, devices."""

from __future__ import annotations

import asyncio
import copy as copy_module
import time
from typing import Any

import pytest

from asterism.compat.galaxy import (
    ConstellationModificationSynchronizer,
    DeviceEvent,
    EventType,
    TaskConstellationOrchestrator,
    TaskStar,
    TaskStarLine,
)
from asterism.core.plan import diff, node_records
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.node_records import SharedNodes
from tests.compat.compat_scenes import DIALECTS, GALAXY, Agent, Devices, Dialect, Session, at

pytestmark = pytest.mark.virtual_time
each_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=repr)


# -- the lock policy ---------------------------------------------------------------------------------------------------


@each_dialect
@pytest.mark.parametrize("policy", ["global", "scoped"])
def test_the_lock_policy_can_be_chosen(dialect: Dialect, policy: str) -> None:
    """A and X end at once. The agent thinks 6 s about A, and at once about X, below which is Y."""

    class Slow(Agent):
        async def on_event(self, event: Any) -> None:
            self.seconds = 6.0 if getattr(event, "task_id", "") == "A" else 0.0
            await super().on_event(event)

    session = Session(dialect, Devices("one", "two", seconds={"X": 2.0}))
    session.orchestrator.set_lock_policy(policy)
    session.bus.subscribe(Slow(dialect, session.bus))
    session.run(dialect.plan("A", "B", "X", "Y", lines=["A>B", "X>Y"]))
    assert session.devices.at("Y") >= 2.0
    assert (session.devices.at("Y") < session.devices.at("B")) == (policy == "scoped")


def test_a_wrong_lock_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="the lock policy is one of global, scoped, speculative, not 'none'"):
        TaskConstellationOrchestrator(Devices()).set_lock_policy("none")


# -- names -------------------------------------------------------------------------------------------------------------


@each_dialect
async def test_an_idle_plan_counts_as_cancelled_and_one_of_another_orchestrator_does_not(dialect: Dialect) -> None:
    session = Session(dialect, Devices(seconds={"A": 5.0}))
    other = dialect.orchestrator_class(Devices(), event_bus=session.bus)
    session.agent()
    assert await session.orchestrator.cancel_execution("plan") is True
    running = asyncio.ensure_future(session.orchestrate(dialect.plan("A")))
    await at(1.0)
    assert await other.cancel_execution("plan") is False
    assert (await running)["status"] == "completed"


# -- timeouts ----------------------------------------------------------------------------------------------------------


@each_dialect
async def test_a_wait_of_zero_seconds_is_the_default_timeout(dialect: Dialect) -> None:
    session = Session(dialect, Devices())
    session.synchronizer.set_modification_timeout(30.0)
    await session.bus.publish_event(dialect.ended("A"))
    assert session.synchronizer.get_pending_task_ids() == ["A"]
    assert await session.synchronizer.wait_for_pending_modifications(0) is False
    assert asyncio.get_running_loop().time() == pytest.approx(30.0)


class Patient(ConstellationModificationSynchronizer):
    """As the documents write it, with a timeout of its own for one task."""

    asked: list[str]

    async def _auto_complete_on_timeout(self, task_id: str, future: asyncio.Future[bool]) -> None:
        self.asked.append(task_id)
        await asyncio.sleep(5.0)
        if not future.done():
            self._stats["timeout_modifications"] += 1
            future.set_result(False)
            if task_id in self._pending_modifications:
                del self._pending_modifications[task_id]


def session_with(synchronizer: type[ConstellationModificationSynchronizer]) -> tuple[Session, Any]:
    session = Session(GALAXY, Devices())
    session.bus.unsubscribe(session.synchronizer)
    mine = session.synchronizer = synchronizer(session.orchestrator)
    mine.asked = []  # type: ignore[attr-defined]
    session.orchestrator.set_modification_synchronizer(mine)
    session.bus.subscribe(mine)
    return session, mine


# -- the merge ---------------------------------------------------------------------------------------------------------


# -- devices -----------------------------------------------------------------------------------------------------------


@each_dialect
async def test_a_device_that_the_manager_announces_is_used_at_once(
    dialect: Dialect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asterism.compat.plan_orchestrator.POLL_INTERVAL", 1000.0)
    devices = Devices("one", "two")
    devices.connected = ["one"]
    session = Session(dialect, devices)
    session.agent()
    running = asyncio.ensure_future(session.orchestrate(dialect.plan(TaskStar("A", target_device_id="two"))))
    await at(3.0)
    assert devices.started == []
    devices.connected = ["one", "two"]
    data: dict[str, Any] = {}
    await session.bus.publish_event(
        DeviceEvent(EventType.DEVICE_CONNECTED, "manager", time.time(), data, "two", "connected", {}, {})
    )
    assert (await running)["status"] == "completed"
    assert devices.at("A") == 3.0


# -- what an answer costs ----------------------------------------------------------------------------------------------


@each_dialect
def test_an_answer_costs_one_difference_and_no_copy_of_the_plan(
    dialect: Dialect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent makes one copy for each answer. Merging it makes no other, and compares only the tasks that differ."""
    copies, compared = [], []
    copy, differences = Constellation.copy, diff.differences
    monkeypatch.setattr(Constellation, "copy", lambda plan: copies.append(1) or copy(plan))
    monkeypatch.setattr(diff, "differences", lambda old, new: compared.append(1) or differences(old, new))

    def add(mine: Any, event: Any) -> None:
        if event.task_id.startswith("t"):
            mine.add_task(TaskStar(f"after {event.task_id}"))
            mine.add_dependency(TaskStarLine(event.task_id, f"after {event.task_id}"))

    count = 20
    session = Session(dialect, Devices(*(f"d{number}" for number in range(count))))
    session.agent(add)
    session.run(dialect.plan(*(f"t{number}" for number in range(count))))
    assert session.synchronizer.get_statistics()["completed_modifications"] == 2 * count
    assert len(copies) == 2 * count
    assert compared == []


def _lines_made(dialect: Dialect, count: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many objects for lines a run makes in which an agent adds a task and a line after each of ``count`` ends."""
    made: dict[int, TaskStarLine] = {}
    bind = TaskStarLine.bind

    def counted(line: TaskStarLine, *where: Any) -> None:
        made[id(line)] = line
        bind(line, *where)

    def add(mine: Any, event: Any) -> None:
        if event.task_id.startswith("t"):
            mine.add_task(TaskStar(f"after {event.task_id}"))
            mine.add_dependency(TaskStarLine(event.task_id, f"after {event.task_id}"))

    session = Session(dialect, Devices(*(f"d{number}" for number in range(count))))
    session.agent(add)
    with monkeypatch.context() as patch:
        patch.setattr(TaskStarLine, "bind", counted)
        session.run(dialect.plan(*(f"t{number}" for number in range(count))))
    assert len(session.devices.started) == 2 * count
    return len(made)


def _nodes_made(dialect: Dialect, count: int, idle: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """How many nodes the agent's copies make, and how many records the plan and its copies make after the first copy,
    in a run in which an agent adds a task and a line after each of ``count`` ends, and nothing after those of ``idle``
    other tasks."""
    thawed, recorded = [], []
    thaw, record_of = SharedNodes._thaw, node_records.record_of

    def add(mine: Any, event: Any) -> None:
        if event.task_id.startswith("t"):
            mine.add_task(TaskStar(f"after {event.task_id}"))
            mine.add_dependency(TaskStarLine(event.task_id, f"after {event.task_id}"))

    session = Session(dialect, Devices(*(f"d{number}" for number in range(count))))
    session.agent(add)
    names = [f"t{number}" for number in range(count)]
    plan = dialect.plan(*names, *(f"x{number}" for number in range(idle)), lines=[f"t0>x{n}" for n in range(idle)])
    copy_module.deepcopy(plan)
    with monkeypatch.context() as patch:
        patch.setattr(SharedNodes, "_thaw", lambda nodes, name: thawed.append(name) or thaw(nodes, name))
        patch.setattr(node_records, "record_of", lambda node: recorded.append(node.id) or record_of(node))
        session.run(plan)
    assert len(session.devices.started) == 2 * count + idle
    return len(thawed), len(recorded)


@each_dialect
def test_an_answer_makes_the_nodes_that_it_changes(dialect: Dialect, monkeypatch: pytest.MonkeyPatch) -> None:
    """One node for each line that the agent adds, and a few records for each end, however many tasks the plan has."""
    for count, idle in ((10, 0), (20, 0), (40, 0), (10, 80)):
        nodes, records = _nodes_made(dialect, count, idle, monkeypatch)
        assert nodes == count
        assert records <= 8 * count + 2 * idle, "the records of a task are made when it starts, ends or is edited"


@each_dialect
def test_a_copy_that_is_used_after_the_answer_shows_the_live_plan(dialect: Dialect) -> None:
    """Handles of tasks that the agent has kept show it too."""
    kept: dict[str, Any] = {}

    def keep(mine: Any, event: Any) -> None:
        if event.task_id == "A":
            kept.update(plan=mine, star=mine.get_task("B"))

    session = Session(dialect, Devices())
    session.agent(keep)
    plan = dialect.plan("A", "B", lines=["A>B"])
    session.run(plan)
    assert (kept["star"].status.value, kept["plan"].state.value) == ("completed", plan.state.value)
    assert kept["star"].home is kept["plan"]
    kept["plan"].metadata["mine"] = True
    assert plan.metadata == {}
