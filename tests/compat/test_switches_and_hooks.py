"""Names that programs set or override: the lock policy, conditions, metadata, timeouts, the merge, devices."""

from __future__ import annotations

import asyncio
import copy as copy_module
import time
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from asterism.compat.galaxy import (
    ConstellationModificationSynchronizer,
    DeviceEvent,
    EventType,
    ModificationRejected,
    TaskConstellationOrchestrator,
    TaskStar,
    TaskStarLine,
)
from asterism.core.plan import diff, node_records
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.node_records import SharedNodes
from asterism.orchestrator.options import Options
from tests.compat.compat_scenes import DIALECTS, GALAXY, Agent, Devices, Dialect, Session, at, run

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
async def test_the_orchestrator_assigns_devices(dialect: Dialect) -> None:
    session, plan = Session(dialect, Devices("one", "two")), dialect.plan("A", "B", "C")
    chosen = await session.orchestrator.assign_devices_automatically(plan, "round_robin", {"A": "two"})
    assert chosen == {"A": "two", "B": "one", "C": "two"}
    assert [task.target_device_id for task in plan.get_all_tasks()] == ["two", "one", "two"]


@each_dialect
def test_metadata_of_a_plan_can_be_updated(dialect: Dialect) -> None:
    plan = dialect.plan_class("plan", metadata={"a": 1})
    before = plan.updated_at
    plan.update_metadata({"b": 2})
    assert (plan.metadata, plan.updated_at >= before) == ({"a": 1, "b": 2}, True)


def test_the_condition_of_a_line_can_be_set() -> None:
    plan = GALAXY.plan("A", "B", lines=["A>B"])
    [line] = plan.get_all_dependencies()
    line.dependency_type = "conditional"
    line.condition = lambda result: result == "good"
    text = line.condition
    assert (line.evaluate_condition("good"), line.evaluate_condition("bad")) == (True, False)
    line.condition = "as good as it gets"  # another name for the same function
    assert line.evaluate_condition("good")
    session = Session(GALAXY, Devices(answers={"A": "good"}))
    session.agent()
    session.run(plan)
    assert session.devices.started == ["A", "B"]
    with pytest.raises(ModificationRejected, match="completed"):
        line.condition = text
    assert line.condition == "as good as it gets"
    line = TaskStarLine("A", "B", condition_evaluator=bool)
    line.condition = None
    assert (line.condition, line.condition_evaluator) == (None, None)


@pytest.mark.parametrize(
    "answer", [SimpleNamespace(result=7), SimpleNamespace(status="completed", result=7), Mock(result=7)]
)
async def test_a_single_task_may_be_answered_by_any_object_with_a_result(answer: Any) -> None:
    class Star(TaskStar):
        async def execute(self, device_manager: Any) -> Any:
            return answer

    orchestrator = TaskConstellationOrchestrator(Devices())
    assert await orchestrator.execute_single_task(Star("A")) == 7

    class Manager(Devices):
        async def assign_task_to_device(self, **task: Any) -> Any:
            return answer

    assert await TaskConstellationOrchestrator(Manager()).execute_single_task(TaskStar("A")) == 7


async def test_an_answer_with_an_error_and_no_status_is_a_failure() -> None:
    class Manager(Devices):
        async def assign_task_to_device(self, **task: Any) -> Any:
            return SimpleNamespace(result=None, error=ValueError("broken"))

    with pytest.raises(ValueError, match="broken"):
        await TaskConstellationOrchestrator(Manager()).execute_single_task(TaskStar("A"))


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
    assert session.synchronizer.get_pending_count() == 1
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


def test_a_subclass_may_decide_what_happens_after_the_timeout() -> None:
    session, mine = session_with(Patient)
    session.run(GALAXY.plan("A", "B", lines=["A>B"]))
    assert mine.asked == ["A", "B"]
    assert session.devices.at("B") == 6.0
    assert (
        mine.get_statistics().items()
        >= {
            "total_modifications": 2,
            "completed_modifications": 0,
            "timeout_modifications": 2,
        }.items()
    )


def test_the_timeout_of_a_subclass_ends_with_the_answer_and_may_call_ours() -> None:
    class Ours(Patient):
        async def _auto_complete_on_timeout(self, task_id: str, future: asyncio.Future[bool]) -> None:
            self.asked.append(task_id)
            await ConstellationModificationSynchronizer._auto_complete_on_timeout(self, task_id, future)

    session, mine = session_with(Ours)
    mine.set_modification_timeout(4.0)
    agent = Agent(GALAXY, session.bus)
    session.bus.subscribe(agent)
    session.run(GALAXY.plan("A"))
    assert mine.get_statistics()["completed_modifications"] == 1
    session.bus.unsubscribe(agent)
    session.run(GALAXY.plan("B", id="other"))
    assert mine.get_statistics()["timeout_modifications"] == 1


class Broken(ConstellationModificationSynchronizer):
    async def _auto_complete_on_timeout(self, task_id: str, future: asyncio.Future[bool]) -> None:
        raise RuntimeError("broken")


def test_a_timeout_of_a_subclass_that_fails_holds_nothing_for_ever(
    caplog: pytest.LogCaptureFixture,
) -> None:
    session, mine = session_with(Broken)
    mine.set_modification_timeout(30.0)
    assert session.run(GALAXY.plan("A", "B", lines=["A>B"]))["status"] == "completed"
    assert session.devices.at("B") == 31.0
    statistics = mine.get_statistics()
    assert statistics["timeout_modifications"] == statistics["failed_hooks"] == 2
    assert (statistics["hold_seconds"], statistics["longest_hold_seconds"]) == (60.0, 30.0)
    assert "RuntimeError: broken" in caplog.text


class BrokenEvents(ConstellationModificationSynchronizer):
    async def _handle_task_event(self, event: Any) -> None:
        raise RuntimeError("broken")


class BrokenWait(ConstellationModificationSynchronizer):
    async def wait_for_pending_modifications(self, timeout: float | None = None) -> bool:
        raise RuntimeError("broken")


class BrokenMerge(ConstellationModificationSynchronizer):
    def merge_and_sync_constellation_states(self, orchestrator_constellation: Any) -> Any:
        raise RuntimeError("broken")


@pytest.mark.parametrize("lock_policy", ["global", "scoped", "speculative"])
@pytest.mark.parametrize("broken", [Broken, BrokenEvents, BrokenWait, BrokenMerge, "sync"])
def test_what_an_answer_removes_is_not_executed_when_a_hook_fails(
    broken: Any, lock_policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    session, mine = session_with(ConstellationModificationSynchronizer if broken == "sync" else broken)
    if broken == "sync":

        async def sync(plan: Any) -> Any:
            raise RuntimeError("broken")

        session.orchestrator._sync_constellation_modifications = sync  # type: ignore[assignment]
    session.orchestrator.set_lock_policy(lock_policy)

    def change(plan: Any, event: Any) -> None:
        if event.task_id == "A":
            plan.remove_task("B")

    session.agent(change, seconds=5.0)
    session.run(GALAXY.plan("A", "B", lines=["A>B"]))
    assert session.devices.started == ["A"]
    assert mine.get_statistics()["failed_hooks"] >= 1
    assert mine.get_statistics()["longest_hold_seconds"] == 5.0
    assert "RuntimeError: broken" in caplog.text


# -- the merge ---------------------------------------------------------------------------------------------------------


@each_dialect
def test_a_subclass_may_override_the_synchronisation(dialect: Dialect) -> None:
    calls: list[str] = []

    async def sync(self: Any, plan: Any) -> Any:
        calls.append(plan.plan_id)
        merged = await getattr(super(mine, self), name)(plan)
        if "extra" not in merged.tasks:
            merged.add_task(TaskStar("extra"))
        return merged

    name = f"_sync_{dialect.noun}_modifications"
    mine = type("Mine", (dialect.orchestrator_class,), {name: sync})
    session = Session(dialect, Devices())
    session.orchestrator = mine(session.devices, event_bus=session.bus)
    session.synchronizer.orchestrator = session.orchestrator
    session.orchestrator.set_modification_synchronizer(session.synchronizer)
    session.agent(lambda copy, event: copy.add_task(TaskStar("more")) if event.task_id == "A" else None)
    session.run(dialect.plan("A"))
    assert sorted(session.devices.started) == ["A", "extra", "more"]
    assert calls == ["plan", "plan"]  # after A, and after the two that ended together


def test_without_a_synchronizer_the_synchronisation_returns_the_plan() -> None:
    orchestrator, plan = TaskConstellationOrchestrator(Devices()), GALAXY.plan("A")
    assert run(orchestrator._sync_constellation_modifications(plan)) is plan


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


@each_dialect
def test_copies_share_the_lines_that_nobody_asks_for(dialect: Dialect, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the answers make twice the lines, not four times: two for each line that the agent adds."""
    assert [_lines_made(dialect, count, monkeypatch) for count in (10, 20, 40)] == [20, 40, 80]


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
def test_a_later_copy_shows_what_was_set_by_hand_and_assigned(dialect: Dialect) -> None:
    plan = dialect.plan("A", "B")
    first = copy_module.deepcopy(plan)
    plan.get_task("A")._status = "running"
    plan.get_task("A")._result = 7
    second = copy_module.deepcopy(plan)
    assert [copy.get_task("A").status.value for copy in (first, second)] == ["pending", "running"]
    assert [copy.get_task("A").result for copy in (first, second)] == [None, 7]
    Options().prepare(plan.plan, {"B": "two"})
    third = copy_module.deepcopy(plan)
    assert [copy.get_task("B").target_device_id for copy in (second, third)] == [None, "two"]


@each_dialect
def test_the_lines_of_a_copy_are_its_own(dialect: Dialect) -> None:
    """Also those that are made only after the plan or the copy has changed."""
    plan = dialect.plan("A", "B", "C", lines=["A>B", "A>C"])
    first, second = plan.get_all_dependencies()
    mine = copy_module.deepcopy(plan)
    first.condition_description, second.condition_description = "theirs", "theirs"
    second.update_metadata({"theirs": True})
    mine.get_dependency(first.line_id).update_metadata({"mine": True})
    assert [line.condition_description for line in mine.get_all_dependencies()] == ["", ""]
    assert [line.metadata for line in mine.get_all_dependencies()] == [{"mine": True}, {}]
    assert [line.metadata for line in plan.get_all_dependencies()] == [{}, {"theirs": True}]
    assert all(line.home is mine for line in mine.get_all_dependencies())
    plan.remove_dependency(first.line_id)
    assert (plan.dependency_count, mine.dependency_count) == (1, 2)


@each_dialect
def test_a_line_that_an_answer_changes_or_removes_stays_the_same_object(dialect: Dialect) -> None:
    def change(mine: Any, event: Any) -> None:
        if event.task_id == "A":
            into_b, into_c = mine.get_all_dependencies()
            into_b.dependency_type = "success_only"
            mine.remove_dependency(into_c.line_id)

    plan = dialect.plan("A", "B", "C", lines=["A>B", "A>C"])
    into_b, into_c = plan.get_all_dependencies()
    session = Session(dialect, Devices())
    session.agent(change)
    session.run(plan)
    assert plan.get_all_dependencies() == [into_b]
    assert (into_b.home, into_b.dependency_type.value, into_c.home) == (plan, "success_only", None)
    assert into_c.dependency_type.value == "unconditional"


@each_dialect
def test_a_copy_that_is_used_after_the_answer_shows_the_live_plan(dialect: Dialect) -> None:
    """Handles of tasks and lines that the agent has kept show it too."""
    kept: dict[str, Any] = {}

    def keep(mine: Any, event: Any) -> None:
        if event.task_id == "A":
            kept.update(plan=mine, star=mine.get_task("B"), line=mine.get_all_dependencies()[0])

    session = Session(dialect, Devices())
    session.agent(keep)
    plan = dialect.plan("A", "B", lines=["A>B"])
    session.run(plan)
    [live] = plan.get_all_dependencies()
    live.condition_description = "changed since"
    assert kept["line"].condition_description == "changed since"
    assert (kept["star"].status.value, kept["plan"].state.value) == ("completed", plan.state.value)
    assert kept["star"].home is kept["plan"]
    kept["plan"].update_metadata({"mine": True})
    assert plan.metadata == {}
