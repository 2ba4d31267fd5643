"""One test for each known defect of the documented system, which Asterism does not have."""

from __future__ import annotations

import asyncio
import copy
import logging
import random
from typing import Any

import pytest

from asterism.compat.galaxy import (
    DependencyType,
    Event,
    EventType,
    ExecutionResult,
    IEventObserver,
    ModificationRejected,
    TaskStar,
    TaskStarLine,
    TaskStatus,
    get_event_bus,
)
from tests.compat.compat_scenes import DIALECTS, ENDS, GALAXY, ORION, Agent, Devices, Dialect, Session, at

pytestmark = pytest.mark.parametrize("dialect", DIALECTS, ids=repr)


class Restless(Agent):
    """Rewrites tasks that have not started: adds and removes, after a time that varies, with copies of either kind."""

    def __init__(self, dialect: Dialect, bus: Any, random: random.Random) -> None:
        super().__init__(dialect, bus, self.rewrite)
        self.random, self.made, self.removed = random, 0, set[str]()
        self.thinking: list[Any] = []

    async def on_event(self, event: Event) -> None:
        """Works on several ends at once, so that answers overlap."""
        if event.event_type in ENDS:
            self.seconds = self.random.choice([0.0, 0.1, 0.7, 1.0, 2.5])
            self.thinking.append(asyncio.ensure_future(super().on_event(event)))

    def copy_of(self, live: Any) -> Any:
        return copy.deepcopy(live) if self.random.random() < 0.6 else type(live).from_json(live.to_json())

    def rewrite(self, mine: Any, event: Any) -> None:
        waiting = mine.get_modifiable_tasks()
        if waiting and self.random.random() < 0.4:
            task_id = self.random.choice(waiting).task_id
            mine.remove_task(task_id)
            self.removed.add(task_id)
        if self.made < 15 and self.random.random() < 0.6:
            self.made += 1
            mine.add_task(TaskStar(f"new {self.made}"))
            mine.add_dependency(TaskStarLine(event.task_id, f"new {self.made}"))


@pytest.mark.hunt(few=1, many=20)
def test_no_completion_is_lost_and_nothing_runs_twice_when_edits_and_completions_overlap(
    dialect: Dialect, seeds: range
) -> None:
    for seed in seeds if dialect is GALAXY else range(3):
        chance = random.Random(seed)
        names = [f"t{i}" for i in range(24)]
        lines = [f"{names[chance.randrange(i // 6 * 6)]}>{names[i]}" for i in range(6, 24)]
        devices = Devices("one", "two", seconds={name: chance.choice([0.3, 1.0, 1.7]) for name in names})
        session = Session(dialect, devices)
        agent = Restless(dialect, session.bus, chance)
        session.bus.subscribe(agent)
        plan = dialect.plan(*names, lines=lines)
        outcome = session.run(plan, seed=seed)
        assert len(devices.started) == len(set(devices.started)), "a task ran twice"
        assert {task_id for task_id, task in plan.tasks.items() if task.status is TaskStatus.COMPLETED} == set(
            devices.started
        ), "a completion was lost, or a removed task ran"
        assert outcome["statistics"]["task_status_counts"] == {"completed": len(plan.tasks)}
        assert session.synchronizer.get_statistics()["timeout_modifications"] == 0
        assert sorted(session.diary.tasks(EventType.TASK_COMPLETED)) == sorted(devices.started)


def test_an_edit_made_after_the_last_task_counts(dialect: Dialect) -> None:
    def once_more(mine: Any, event: Any) -> None:
        if event.task_id == "last":
            mine.add_task(TaskStar("encore"))

    session = Session(dialect, Devices())
    session.agent(once_more, seconds=10.0)
    assert session.run(dialect.plan("last"))["total_tasks"] == 2
    assert session.devices.started == ["last", "encore"]
    assert session.devices.at("encore") == 11.0


class OnlyFor(Agent):
    """An agent that looks after one plan, on a bus that carries others."""

    def __init__(self, session: Session, plan_id: str, **options: Any) -> None:
        super().__init__(session.dialect, session.bus, **options)
        self.plan_id = plan_id
        session.bus.subscribe(self)

    async def on_event(self, event: Event) -> None:
        if event.data.get(f"{self.dialect.noun}_id") == self.plan_id:
            await super().on_event(event)


@pytest.mark.virtual_time
@pytest.mark.parametrize("other", DIALECTS, ids=repr)
async def test_two_orchestrators_on_the_bus_of_the_process_keep_apart(dialect: Dialect, other: Dialect) -> None:
    """The same task ids in both. One agent edits its plan; the other plan waits for an agent that never comes."""

    def add(mine: Any, event: Any) -> None:
        if event.task_id == "A":
            mine.add_task(TaskStar("only here"))

    first, second = Session(dialect, Devices(), get_event_bus()), Session(other, Devices(), get_event_bus())
    second.synchronizer.set_modification_timeout(50.0)
    OnlyFor(first, "one", change=add)
    plans = dialect.plan("A", "B", lines=["A>B"], id="one"), other.plan("A", "B", lines=["A>B"], id="two")
    await asyncio.gather(first.orchestrate(plans[0]), second.orchestrate(plans[1]))
    assert sorted(first.devices.started) == ["A", "B", "only here"]
    assert second.devices.started == ["A", "B"]
    assert (first.devices.at("B"), second.devices.at("B")) == (1.0, 51.0)
    assert (
        first.synchronizer.get_statistics().items()
        >= {
            "total_modifications": 3,
            "completed_modifications": 3,
            "timeout_modifications": 0,
        }.items()
    )
    assert (
        second.synchronizer.get_statistics().items()
        >= {
            "total_modifications": 2,
            "completed_modifications": 0,
            "timeout_modifications": 2,
        }.items()
    )


@pytest.mark.virtual_time
async def test_two_plans_of_one_id_on_one_bus_are_refused(dialect: Dialect) -> None:
    """Events name a plan by its id, so the two could not be told apart."""
    first, second = Session(dialect, Devices(), get_event_bus()), Session(dialect, Devices(), get_event_bus())
    first.agent()
    running = asyncio.ensure_future(first.orchestrate(dialect.plan("A")))
    await at(0.5)
    with pytest.raises(ValueError, match=r"another .* with the id 'plan' is running on this event bus"):
        await second.orchestrate(dialect.plan("A"))
    await running


def test_a_success_only_dependent_of_a_failed_task_does_not_wait_forever(dialect: Dialect) -> None:
    session = Session(dialect, Devices(answers={"A": RuntimeError("broken")}))
    session.agent()
    plan = dialect.plan("A", "B", "C", "X", lines=[TaskStarLine.create_success_only("A", "B"), "B>C"])
    outcome = session.run(plan)
    assert outcome["status"] == "partially_failed"
    assert {task_id: task.status.value for task_id, task in plan.tasks.items()} == {
        "A": "failed",
        "B": "cancelled",
        "C": "cancelled",
        "X": "completed",
    }
    assert outcome["results"]["B"].status is TaskStatus.CANCELLED
    assert outcome["results"]["B"].error == "unreachable: it needs 'A' to succeed, but 'A' failed"
    assert session.devices.started == ["A", "X"]


@pytest.mark.virtual_time
async def test_a_stale_copy_overwrites_neither_removed_nor_finished_tasks(dialect: Dialect) -> None:
    """The copy is from before the run: in it A has not run, B is still there, and C has not succeeded yet."""
    session = Session(dialect, Devices(answers={"A": "A's own", "C": "C's own"}))
    plan = dialect.plan("A", "B", "C", "D", lines=["A>B", "C>D"])
    stale = copy.deepcopy(plan)
    stale.tasks["A"].description = "run it again"
    stale.remove_task("C")
    stale.add_task(TaskStar("E"))
    running = asyncio.ensure_future(session.orchestrate(plan))
    await at(1.5)
    plan.remove_task("B")
    await session.bus.publish_event(dialect.modified("plan", ["A", "C"], stale))
    session.agent()
    await running
    assert sorted(session.devices.started) == ["A", "C", "D", "E"]
    assert "B" not in plan.tasks
    assert (plan.tasks["A"].result.result, plan.tasks["C"].result.result) == ("A's own", "C's own")
    assert plan.tasks["A"].description == "do A"


def test_a_copy_cannot_forge_a_status(dialect: Dialect, caplog: pytest.LogCaptureFixture) -> None:
    def forge(mine: Any, event: Any) -> None:
        if event.task_id == "A":
            mine.mark_task_completed("B", True, result="forged")
            mine.tasks["C"]._status = TaskStatus.COMPLETED
            mine.add_task(TaskStar("D"))
            mine.tasks["D"].start_execution()

    session = Session(dialect, Devices(answers={"B": "honest"}))
    session.agent(forge)
    plan = dialect.plan("A", "B", "C", lines=["A>B", "B>C"])
    with caplog.at_level(logging.WARNING):
        session.run(plan)
    assert sorted(session.devices.started) == ["A", "B", "C", "D"]
    assert plan.tasks["B"].result.result == "honest"
    assert "the copy says that 'B' is completed; it is pending" in caplog.text


def test_the_end_that_the_device_reported_wins(dialect: Dialect) -> None:
    session = Session(dialect, Devices(seconds={"B": 2.0}, answers={"B": RuntimeError("really")}))

    def flatter(mine: Any, event: Any) -> None:
        if event.task_id == "A":
            mine.mark_task_completed("B", True, result="all went well")

    session.agent(flatter, seconds=5.0)
    plan = dialect.plan("A", "B")
    session.run(plan)
    assert plan.tasks["B"].status is TaskStatus.FAILED
    assert str(plan.tasks["B"].error) == "really"


@pytest.mark.virtual_time
async def test_progress_cannot_be_claimed_on_the_live_plan(dialect: Dialect) -> None:
    session = Session(dialect, Devices())
    session.agent()
    plan = dialect.plan("A", "B", lines=["A>B"])
    running = asyncio.ensure_future(session.orchestrate(plan))
    await at(0.5)
    star = plan.tasks["A"]
    for claim in (
        lambda: plan.mark_task_completed("A", True, result="forged"),
        lambda: star.complete_with_success("forged"),
        lambda: star.complete_with_failure(RuntimeError("forged")),
        lambda: plan.tasks["B"].start_execution(),
    ):
        with pytest.raises(ModificationRejected, match="devices report the progress"):
            claim()
    await running
    assert session.devices.started == ["A", "B"]


@pytest.mark.virtual_time
async def test_a_task_cannot_bring_progress_into_the_live_plan(dialect: Dialect) -> None:
    session = Session(dialect, Devices())
    session.agent()
    plan = dialect.plan("A")
    done = TaskStar("B")
    done.start_execution()
    done.complete_with_success("forged")
    running = asyncio.ensure_future(session.orchestrate(plan))
    await at(0.5)
    plan.add_task(done)
    assert done.status is TaskStatus.PENDING
    await running
    assert session.devices.started == ["A", "B"]


def test_a_failing_agent_stalls_the_plan_no_longer_than_the_timeout(dialect: Dialect, complaints: list[str]) -> None:
    def fail(mine: Any, event: Any) -> None:
        raise RuntimeError("the model is not available")

    session = Session(dialect, Devices())
    session.synchronizer.set_modification_timeout(30.0)
    agent = session.agent(fail)
    assert session.run(dialect.plan("A", "B", lines=["A>B"]))["status"] == "completed"
    assert session.devices.at("B") == 31.0
    assert agent.heard == ["A", "B"], "it still receives the next end"
    assert "the model is not available" in complaints[0]
    complaints.clear()


@pytest.mark.virtual_time
async def test_an_agent_that_hangs_does_not_stall_the_end(dialect: Dialect) -> None:
    session = Session(dialect, Devices())
    session.synchronizer.set_modification_timeout(30.0)
    session.agent(seconds=100_000.0)
    await session.orchestrate(dialect.plan("A", "B", lines=["A>B"]))
    assert (
        asyncio.get_running_loop().time() == 63.0
    )  # twice a second and the timeout, and one second for observers to catch up


def test_an_invalid_copy_is_refused_and_the_plan_continues(dialect: Dialect, caplog: pytest.LogCaptureFixture) -> None:
    def break_it(mine: Any, event: Any) -> Any:
        if event.task_id != "A":
            return None
        line = TaskStarLine("A", "B", DependencyType.CONDITIONAL, condition="an unknown function")
        built = dialect.plan("A", "B", "extra", lines=[line])
        return built

    session = Session(dialect, Devices())
    session.agent(break_it)
    plan = dialect.plan("A", "B", lines=["A>B"])
    with caplog.at_level(logging.WARNING):
        assert session.run(plan)["status"] == "completed"
    assert session.devices.started == ["A", "B"]
    assert "no condition_evaluator is known for it" in caplog.text


@pytest.mark.virtual_time
@pytest.mark.parametrize("how", ["cancel_execution", "the caller"])
async def test_cancel_leaves_nothing_running_and_the_orchestrator_usable(dialect: Dialect, how: str) -> None:
    session = Session(dialect, Devices())
    session.agent()
    plan = dialect.plan("A", "B", "C", lines=["A>B", "A>C"])
    running = asyncio.ensure_future(session.orchestrate(plan))
    await at(1.5)
    assert session.devices.running == {"B", "C"}
    if how == "cancel_execution":
        assert await session.orchestrator.cancel_execution("plan") is True
        assert (await running)["status"] == "cancelled"
    else:
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert session.devices.running == set()
    assert await session.orchestrator.cancel_execution("plan") is True  # it does not run, as asked
    assert (await session.orchestrate(dialect.plan("A", id="next")))["status"] == "completed"
    assert (await session.orchestrate(dialect.plan("A")))["status"] == "completed", "the id is free again"
    assert {task.status for task in plan.tasks.values()} == {TaskStatus.COMPLETED, TaskStatus.CANCELLED}
    assert plan.state == "cancelled"
    assert session.diary.of(dialect.event_type("failed"))[0].data["statistics"]["state"] == "cancelled"


@pytest.mark.virtual_time
async def test_cancel_while_an_answer_is_due(dialect: Dialect) -> None:
    session = Session(dialect, Devices())
    plan = dialect.plan("A", "B", lines=["A>B"])
    running = asyncio.ensure_future(session.orchestrate(plan))
    await at(1.5)
    assert session.synchronizer.has_pending_modifications()
    await session.orchestrator.cancel_execution("plan")
    await running
    assert not session.synchronizer.has_pending_modifications()
    assert asyncio.get_running_loop().time() < 10
    assert plan.tasks["B"].status is TaskStatus.CANCELLED


def test_retry_count_is_honoured(dialect: Dialect) -> None:
    answers = {"A": [RuntimeError("once"), ExecutionResult("A", "failed", error="twice"), "third time lucky"]}
    session = Session(dialect, Devices(answers=answers))
    agent = session.agent()
    plan = dialect.plan(TaskStar("A", retry_count=2))
    assert session.run(plan)["status"] == "completed"
    assert session.devices.started == ["A", "A", "A"]
    assert agent.heard == ["A"], "the agent is asked after the last attempt, not in between"
    assert session.diary.tasks(EventType.TASK_STARTED) == ["A"]

    stubborn = Session(dialect, Devices(answers={"A": [RuntimeError("one"), RuntimeError("two")]}))
    stubborn.agent()
    plan = dialect.plan(TaskStar("A", retry_count=1))
    assert stubborn.run(plan)["status"] == "failed"
    assert str(plan.tasks["A"].error) == "two"


def test_timeout_is_honoured(dialect: Dialect) -> None:
    session = Session(dialect, Devices(seconds={"A": 100.0}))
    session.agent()
    plan = dialect.plan(TaskStar("A", timeout=7.0), "B", lines=["A>B"])
    assert session.run(plan)["status"] == "partially_failed"
    assert session.devices.calls[0]["timeout"] == 7.0
    assert session.devices.at("B") == 7.0
    assert session.devices.running == set()
    assert isinstance(plan.tasks["A"].error, TimeoutError)
    assert isinstance(session.diary.of(EventType.TASK_FAILED)[0].error, TimeoutError)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (ExecutionResult("A", "failed", error="disk full"), "disk full"),
        (ExecutionResult("A", TaskStatus.FAILED, error=OSError("disk full")), "disk full"),
        (OSError("disk full"), "disk full"),
        (ExecutionResult("A", "failed", result="the screen was locked"), "the screen was locked"),
        (ExecutionResult("A", "unheard of"), "the device reported 'unheard of' and no reason"),
        (SystemExit("out of order"), "out of order"),
    ],
)
def test_the_error_message_is_kept(dialect: Dialect, answer: Any, said: str) -> None:
    session = Session(dialect, Devices(answers={"A": answer}))
    session.agent()
    plan = dialect.plan("A")
    outcome = session.run(plan)
    event = session.diary.of(EventType.TASK_FAILED)[0]
    assert str(event.error) == str(plan.tasks["A"].error) == said
    assert (event.status, event.result.task_id) == ("failed", "A")
    assert outcome["status"] == "failed"
    assert outcome["results"]["A"] == event.result
    assert said in (str(event.result.error), str(event.result.result), str(event.error))
    if isinstance(answer, ExecutionResult) and isinstance(answer.error, str):
        assert event.result is answer


def test_a_slow_observer_delays_no_dispatch(dialect: Dialect) -> None:
    class Slow(IEventObserver):
        async def on_event(self, event: Event) -> None:
            await asyncio.sleep(1000.0)

    session = Session(dialect, Devices())
    session.bus.subscribe(Slow())
    session.agent()
    session.run(dialect.plan("A", "B", "C", lines=["A>B", "B>C"]))
    assert (session.devices.at("B"), session.devices.at("C")) == (1.0, 2.0)


def timers() -> int:
    return sum(not timer.cancelled() for timer in asyncio.get_running_loop()._scheduled)  # type: ignore[attr-defined]


@pytest.mark.virtual_time
async def test_no_timer_is_left_when_everything_is_answered(dialect: Dialect) -> None:
    synchronizer = dialect.synchronizer_class(None)
    await synchronizer.on_event(dialect.ended("A"))
    await synchronizer.on_event(dialect.ended("B"))
    assert timers() == 1
    await synchronizer.on_event(dialect.modified("plan", ["A", "B"]))
    assert timers() == 0


@pytest.mark.virtual_time
async def test_no_timer_is_leaked(dialect: Dialect) -> None:
    """Two hundred ends are pending at once, on one timer, which is removed afterwards."""

    session = Session(dialect, Devices())
    names = [f"t{i}" for i in range(200)]
    running = asyncio.ensure_future(session.orchestrate(dialect.plan(*names)))
    await at(2.0)
    assert session.synchronizer.get_pending_count() == 200
    assert timers() == 1
    for name in names:
        await session.bus.publish_event(dialect.modified("plan", [name]))
    await running
    assert timers() == 0


def test_the_two_dialects_are_one_implementation(dialect: Dialect) -> None:
    assert GALAXY.plan_class.__mro__[1] is ORION.plan_class.__mro__[1]
    assert GALAXY.orchestrator_class.__mro__[1] is ORION.orchestrator_class.__mro__[1]
    assert dialect.synchronizer_class.__mro__[1] is GALAXY.synchronizer_class.__mro__[1]
