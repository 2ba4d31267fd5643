"""An agent that listens on the bus, edits its own copy and publishes it: all ways to get a copy."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
from typing import Any

import pytest

from asterism.compat.galaxy import EventBus, EventType, ModificationRejected, TaskStar, TaskStarLine, TaskStatus
from tests.compat.compat_scenes import DIALECTS, ENDS, Agent, Devices, Dialect, Session, at

pytestmark = pytest.mark.parametrize("dialect", DIALECTS, ids=repr)


def replace_b(mine: Any, event: Any) -> None:
    """After the end of A, replace B by another task."""
    if event.task_id == "A":
        mine.remove_task("B")
        mine.add_task(TaskStar("B'", description="do it differently"))
        mine.add_dependency(TaskStarLine("A", "B'"))
        mine.add_dependency(TaskStarLine("B'", "C"))


def diamond(dialect: Dialect) -> Any:
    return dialect.plan("A", "B", "C", lines=["A>B", "B>C"])


class Scribe(Agent):
    """Copies through JSON."""

    def copy_of(self, live: Any) -> Any:
        return type(live).from_json(live.to_json())


class Forgetful(Agent):
    """Copies through JSON without undocumented keys."""

    def copy_of(self, live: Any) -> Any:
        data = json.loads(live.to_json())
        del data["version"], data["lineage"]
        return type(live).from_json(json.dumps(data))


class Builder(Agent):
    """Builds a new constellation from the tasks and lines it saw."""

    def copy_of(self, live: Any) -> Any:
        new = type(live)()
        for task in live.tasks.values():
            new.add_task(task)
        for line in live.dependencies.values():
            new.add_dependency(line)
        return new


KINDS = pytest.mark.parametrize("kind", [Agent, Scribe, Forgetful, Builder])


@KINDS
def test_an_edited_copy_replaces_tasks_that_have_not_started(dialect: Dialect, kind: type[Agent]) -> None:
    session = Session(dialect, Devices())
    agent = kind(dialect, session.bus, replace_b, seconds=2.0)
    session.bus.subscribe(agent)
    plan = diamond(dialect)
    outcome = session.run(plan)
    assert outcome["status"] == "completed"
    assert session.devices.started == ["A", "B'", "C"]
    assert session.devices.calls[1]["task_description"] == "Task Description: do it differently"
    assert session.devices.at("B'") == 3.0
    assert sorted(plan.tasks) == ["A", "B'", "C"]
    assert {(line.from_task_id, line.to_task_id) for line in plan.dependencies.values()} == {("A", "B'"), ("B'", "C")}
    assert (
        session.synchronizer.get_statistics().items()
        >= {
            "total_modifications": 3,
            "completed_modifications": 3,
            "timeout_modifications": 0,
        }.items()
    )


@KINDS
def test_answers_to_ends_that_came_together_build_on_each_other(dialect: Dialect, kind: type[Agent]) -> None:
    """A and B end at once. The copy for B is made when the answer to A has been merged: what that added is not new."""

    def add(mine: Any, event: Any) -> None:
        mine.add_task(TaskStar(f"after {event.task_id}")) if event.task_id in ("A", "B") else None

    session = Session(dialect, Devices())
    session.bus.subscribe(kind(dialect, session.bus, add, seconds=1.0))
    session.run(dialect.plan("A", "B"))
    assert sorted(session.devices.started) == ["A", "B", "after A", "after B"]


@pytest.mark.parametrize("kind", [Agent, Scribe])
def test_an_agent_may_remove_a_task_it_has_just_added(dialect: Dialect, kind: type[Agent]) -> None:
    """The copy for B knows that it was made from a plan with ``extra`` in it, so its removal is seen."""

    def change_of_mind(mine: Any, event: Any) -> None:
        if event.task_id == "A":
            mine.add_task(TaskStar("extra"))
        elif "extra" in mine.tasks:
            mine.remove_task("extra")

    session = Session(dialect, Devices())
    session.bus.subscribe(kind(dialect, session.bus, change_of_mind, seconds=1.0))
    session.run(dialect.plan("A", "B"))
    assert session.devices.started == ["A", "B"]


@KINDS
def test_a_task_added_by_an_earlier_answer_can_be_removed(dialect: Dialect, kind: type[Agent]) -> None:
    def change_of_mind(mine: Any, event: Any) -> None:
        if event.task_id == "A":
            mine.add_task(TaskStar("extra"))
            mine.add_dependency(TaskStarLine("B", "extra"))
        elif event.task_id == "B":
            mine.remove_task("extra")

    session = Session(dialect, Devices(seconds={"B": 5.0}))
    session.bus.subscribe(kind(dialect, session.bus, change_of_mind))
    session.run(dialect.plan("A", "B"))
    assert session.devices.started == ["A", "B"]


@pytest.mark.virtual_time
@KINDS
async def test_a_late_answer_does_not_remove_tasks_added_since(dialect: Dialect, kind: type[Agent]) -> None:
    """It comes after its timeout; meanwhile another writer has added a task that the copy does not have."""
    session = Session(dialect, Devices(seconds={"B": 20.0}))
    session.synchronizer.set_modification_timeout(5.0)
    plan = dialect.plan("A", "B", "C", lines=["A>B", "B>C"])
    running = asyncio.ensure_future(session.orchestrate(plan))
    await at(2.0)
    mine = kind(dialect, session.bus).copy_of(plan)
    mine.add_task(TaskStar("from the agent"))
    await at(8.0)
    plan.add_task(TaskStar("from somebody else"))
    plan.add_dependency(TaskStarLine("B", "from somebody else"))
    await session.bus.publish_event(dialect.modified("plan", ["A"], mine))
    session.agent()
    await running
    assert sorted(session.devices.started) == ["A", "B", "C", "from somebody else", "from the agent"]


@pytest.mark.virtual_time
async def test_the_copy_shows_the_merged_plan_afterwards(dialect: Dialect) -> None:
    session = Session(dialect, Devices(seconds={"X": 1.1}))
    plan = dialect.plan("A", "B", "C", "X", lines=["A>B", "B>C"])
    agent = session.agent(replace_b, seconds=0.2)
    running = asyncio.ensure_future(session.orchestrate(plan))
    await at(1.1)
    mine = agent.copies["A"]
    handle, replacement = mine.tasks["X"], mine.tasks["B'"]
    assert handle.status is TaskStatus.RUNNING
    assert mine.tasks["A"].status is TaskStatus.COMPLETED
    await at(1.3)
    assert handle.status is TaskStatus.COMPLETED
    assert mine.tasks["X"] is handle, "a handle stays the same through the merge"
    assert mine.tasks["B'"] is replacement
    assert replacement.status is TaskStatus.PENDING, "it is a copy, and does not follow the run"
    await running
    assert session.synchronizer.current() is plan


def test_a_copy_may_be_kept_and_edited_all_through_the_run(dialect: Dialect) -> None:
    """The agent keeps one copy; changes that it has published once are not applied again."""
    session = Session(dialect, Devices())
    plan = dialect.plan("A", "B", lines=["A>B"])
    kept = copy.deepcopy(plan)

    def grow(mine: Any, event: Any) -> Any:
        if len(kept.tasks) < 5:
            kept.add_task(TaskStar(f"after {event.task_id}"))
            kept.add_dependency(TaskStarLine(event.task_id, f"after {event.task_id}"))
        return kept

    session.agent(grow, seconds=1.0)
    assert session.run(plan)["status"] == "completed"
    assert sorted(session.devices.started) == ["A", "B", "after A", "after B", "after after A"]


def test_the_copy_of_a_copy_keeps_its_base(dialect: Dialect) -> None:
    session = Session(dialect, Devices())

    def twice(mine: Any, event: Any) -> Any:
        replace_b(mine, event)
        return copy.deepcopy(mine)

    session.agent(twice)
    assert session.run(diamond(dialect))["status"] == "completed"
    assert session.devices.started == ["A", "B'", "C"]


def test_the_live_plan_may_be_changed_in_place(dialect: Dialect) -> None:
    session = Session(dialect, Devices())
    plan = diamond(dialect)
    refused: list[str] = []

    def in_place(mine: Any, event: Any) -> Any:
        live = event.data[dialect.noun]
        assert live is plan
        replace_b(live, event)
        for task_id in ("A", "nothing"):
            with pytest.raises(ValueError, match=task_id) as caught:
                live.remove_task(task_id)
            refused.append(caught.value.violations[0].rule)  # type: ignore[attr-defined]
        return live

    session.agent(in_place)
    assert session.run(plan)["status"] == "completed"
    assert session.devices.started == ["A", "B'", "C"]
    assert refused == ["immutable", "unknown_task"] * 3


@pytest.mark.virtual_time
async def test_changes_in_place_are_refused_as_a_whole(dialect: Dialect) -> None:
    """Running tasks and the dependencies into them cannot change; a cycle is refused with its path."""
    session = Session(dialect, Devices(seconds={"B": 5.0}))
    plan = dialect.plan("A", "B", "C", "D", lines=["A>B", "C>D"])
    session.agent()
    running = asyncio.ensure_future(session.orchestrate(plan))
    await at(2.0)
    assert "B" in session.devices.running
    star = plan.tasks["B"]
    with pytest.raises(ModificationRejected, match="running"):
        star.description = "something else"
    with pytest.raises(ModificationRejected, match="running"):
        plan.add_dependency(TaskStarLine("C", "B"))
    plan.add_task(TaskStar("E"))
    plan.add_dependency(TaskStarLine("B", "E"))
    plan.add_task(TaskStar("F"))
    plan.add_dependency(TaskStarLine("E", "F"))
    with pytest.raises(ModificationRejected, match=r"cycle: F -> E -> F|cycle: E -> F -> E"):
        plan.add_dependency(TaskStarLine("F", "E"))
    plan.tasks["F"].description = "do F well"
    await running
    assert session.devices.calls[-1]["task_description"] == "Task Description: do F well"


@pytest.mark.virtual_time
async def test_one_answer_may_serve_several_ends(dialect: Dialect) -> None:
    session = Session(dialect, Devices())
    plan = dialect.plan("A", "B", "C", lines=["A>C", "B>C"])
    running = asyncio.ensure_future(session.orchestrate(plan))
    await at(1.5)
    assert session.synchronizer.get_pending_task_ids() == ["A", "B"]
    mine = copy.deepcopy(plan)
    mine.add_task(TaskStar("D"))
    await session.bus.publish_event(dialect.modified("plan", ["A", "B"], mine))
    session.agent()
    assert (await running)["total_tasks"] == 4
    assert sorted(session.devices.started) == ["A", "B", "C", "D"]


@pytest.mark.virtual_time
async def test_on_task_id_may_be_a_single_id(dialect: Dialect) -> None:
    session = Session(dialect, Devices())
    running = asyncio.ensure_future(session.orchestrate(dialect.plan("AB")))
    await at(1.5)
    await session.bus.publish_event(dialect.modified("plan", "AB"))
    assert (await running)["status"] == "completed"


def test_concurrent_edits_of_different_tasks_both_apply(dialect: Dialect) -> None:
    """Two copies of one version, answered one after the other."""
    session = Session(dialect, Devices())
    plan = dialect.plan("A", "B", "C", lines=["A>C", "B>C"])

    def add(mine: Any, event: Any) -> None:
        if event.task_id in ("A", "B"):
            mine.add_task(TaskStar(f"after {event.task_id}"))

    class Hasty(Agent):
        """Copies at once and answers later, so that two copies have the same version."""

        async def on_event(self, event: Any) -> None:
            if event.event_type in ENDS:
                self.tasks.append(asyncio.ensure_future(super().on_event(event)))

        tasks: list[Any] = []  # noqa: RUF012

    session.bus.subscribe(Hasty(dialect, session.bus, add, seconds=1.0))
    assert session.run(plan)["total_tasks"] == 5
    assert sorted(session.devices.started) == ["A", "B", "C", "after A", "after B"]


@pytest.mark.virtual_time
async def test_concurrent_edits_of_the_same_task_are_not_mixed(
    dialect: Dialect, caplog: pytest.LogCaptureFixture
) -> None:
    """The second copy does not have the change of the first: it is refused completely, with a warning."""
    session = Session(dialect, Devices())
    plan = dialect.plan("A", "B", lines=["A>B"])

    async def main() -> Any:
        running = asyncio.ensure_future(session.orchestrate(plan))
        await at(1.5)
        first, second = copy.deepcopy(plan), copy.deepcopy(plan)
        first.tasks["B"].description = "the first word"
        second.tasks["B"].description = "the last word"
        second.add_task(TaskStar("never"))
        await session.bus.publish_event(dialect.modified("plan", ["unasked"], first))
        await session.bus.publish_event(dialect.modified("plan", ["A"], second))
        session.agent()
        return await running

    with caplog.at_level(logging.WARNING):
        assert (await main())["total_tasks"] == 2
    assert session.devices.calls[1]["task_description"] == "Task Description: the first word"
    assert "was changed in version" in caplog.text


def test_a_changed_condition_comes_back_with_the_copy(dialect: Dialect) -> None:
    """A function cannot be written as JSON, but it is found again by its name, and another one may take its place."""
    session = Session(dialect, Devices(answers={"A": 3}))
    small = TaskStarLine.create_conditional("A", "small", "less than five", lambda result: result < 5)
    large = TaskStarLine.create_conditional("A", "large", "more than five", lambda result: result > 5)
    plan = dialect.plan("Z", "A", "small", "large", lines=["Z>A", small, large])

    class Changer(Scribe):
        def copy_of(self, live: Any) -> Any:
            mine = super().copy_of(live)
            if live.tasks["A"].status is TaskStatus.PENDING:
                line = next(line for line in mine.dependencies.values() if line.to_task_id == "small")
                assert line.condition_evaluator is None
                line.set_condition_evaluator(lambda result: result == 4)
            return mine

    session.bus.subscribe(Changer(dialect, session.bus))
    outcome = session.run(plan)
    assert session.devices.started == ["Z", "A"]
    assert outcome["status"] == "completed", "a branch whose condition does not hold was not needed"


@pytest.mark.virtual_time
async def test_a_line_id_may_be_used_again_for_other_tasks(dialect: Dialect) -> None:
    """The agent moves a line from B to C; B has started meanwhile, so its line stays, and each has an id of its own."""
    session = Session(dialect, Devices(seconds={"A": 1.0, "X": 1.5}))
    plan = dialect.plan("A", "B", "C", "X", lines=[TaskStarLine("A", "B", line_id="L"), "X>C"])
    mine = copy.deepcopy(plan)
    mine.remove_dependency("L")
    mine.add_dependency(TaskStarLine("A", "C", line_id="L"))
    running = asyncio.ensure_future(session.orchestrate(plan))
    await at(1.2)
    await session.bus.publish_event(dialect.modified("plan", ["A"]))
    await at(1.3)
    assert "B" in session.devices.running
    await session.bus.publish_event(dialect.modified("plan", ["unasked"], mine))
    session.agent()
    assert (await running)["status"] == "completed"
    pairs = {(line.from_task_id, line.to_task_id) for line in plan.dependencies.values()}
    assert pairs == {("A", "B"), ("A", "C"), ("X", "C")}
    assert len(plan.dependencies) == 3


@pytest.mark.virtual_time
async def test_a_handle_of_a_removed_task_leaves_the_plan(dialect: Dialect) -> None:
    """The agent holds a handle of a task that another writer has removed from the live plan."""
    session = Session(dialect, Devices())
    plan = dialect.plan("A", "B", lines=["A>B"])
    running = asyncio.ensure_future(session.orchestrate(plan))
    await at(1.5)
    mine = copy.deepcopy(plan)
    handle = mine.tasks["B"]
    plan.remove_task("B")
    await session.bus.publish_event(dialect.modified("plan", ["A"], mine))
    assert list(mine.tasks) == ["A"]
    handle.description = "nobody minds"
    assert (await running)["total_tasks"] == 1


@pytest.mark.virtual_time
async def test_a_very_old_copy_is_compared_with_the_plan_at_the_answered_end(dialect: Dialect) -> None:
    """The version of so old a JSON is no longer stored; the plan at the answered end is used as the base."""
    session = Session(dialect, Devices())
    plan = dialect.plan("A", "B", lines=["A>B"])
    text = plan.to_json()
    running = asyncio.ensure_future(session.orchestrate(plan))
    await at(1.5)
    for n in range(40):
        plan.tasks["B"].description = f"version {n}"
        plan.to_json()
    mine = type(plan).from_json(text)
    mine.add_task(TaskStar("C"))
    await session.bus.publish_event(dialect.modified("plan", ["A"], mine))
    session.agent()
    assert (await running)["total_tasks"] == 3
    assert plan.tasks["B"].description == "version 39", "what the agent did not change stays as it is"


def test_an_answer_that_is_not_a_plan_changes_nothing(dialect: Dialect, caplog: pytest.LogCaptureFixture) -> None:
    session = Session(dialect, Devices())
    session.agent(lambda mine, event: {"tasks": []})
    with caplog.at_level(logging.WARNING):
        assert session.run(dialect.plan("A", "B", lines=["A>B"]))["status"] == "completed"
    assert f"must be a {dialect.noun}" in caplog.text


def test_the_event_has_the_data_that_an_agent_needs(dialect: Dialect) -> None:
    session = Session(dialect, Devices(answers={"A": "done"}))
    session.agent()
    plan = dialect.plan("A", "B", "C", lines=["A>B", "A>C"])
    session.run(plan)
    event = session.diary.of(EventType.TASK_COMPLETED)[0]
    assert event.data == {
        f"{dialect.noun}_id": "plan",
        dialect.noun: plan,
        "newly_ready_tasks": ["B", "C"],
        "result": event.result,
        "execution_time": 1.0,
    }
    assert (event.task_id, event.status, event.result.result, event.error) == ("A", "completed", "done", None)


def test_an_agent_on_another_bus_is_ignored(dialect: Dialect) -> None:
    session = Session(dialect, Devices())
    session.synchronizer.set_modification_timeout(5.0)
    elsewhere = EventBus()
    agent = Agent(dialect, elsewhere, replace_b)
    session.bus.subscribe(agent)
    assert session.run(diamond(dialect))["status"] == "completed"
    assert session.devices.started == ["A", "B", "C"]
    assert session.synchronizer.get_statistics()["timeout_modifications"] == 3


@KINDS
@pytest.mark.parametrize("private", [False, True], ids=["cancel", "_status"])
def test_a_task_that_the_copy_cancels_is_not_executed(dialect: Dialect, kind: type[Agent], private: bool) -> None:
    def cancel_b(mine: Any, event: Any) -> None:
        if event.task_id == "A" and private:
            mine.tasks["B"]._status = "cancelled"
        elif event.task_id == "A":
            mine.tasks["B"].cancel()

    session = Session(dialect, Devices())
    session.bus.subscribe(kind(dialect, session.bus, cancel_b, seconds=2.0))
    plan = dialect.plan("A", "B", "C", lines=["A>B", "A>C"])
    session.run(plan)
    assert session.devices.started == ["A", "C"]
    assert {task_id: task.status.value for task_id, task in plan.tasks.items()} == {
        "A": "completed",
        "B": "cancelled",
        "C": "completed",
    }


def test_progress_wins_over_a_cancellation_in_a_copy(dialect: Dialect, caplog: pytest.LogCaptureFixture) -> None:
    """B ends while the agent thinks about A; its copy cancels B."""

    def cancel_b(mine: Any, event: Any) -> None:
        if event.task_id == "A":
            mine.tasks["B"].cancel()

    session = Session(dialect, Devices("one", "two", seconds={"B": 2.0}))
    session.bus.subscribe(Agent(dialect, session.bus, cancel_b, seconds=3.0))
    plan = dialect.plan("A", "B")
    assert session.run(plan)["status"] == "completed"
    assert plan.tasks["B"].status.value == "completed"
    assert "left out" in caplog.text


def test_a_running_task_that_the_copy_cancels_is_stopped(dialect: Dialect) -> None:
    def cancel_b(mine: Any, event: Any) -> None:
        if event.task_id == "A":
            mine.tasks["B"].cancel()

    session = Session(dialect, Devices("one", "two", seconds={"B": 1000.0}))
    session.bus.subscribe(Agent(dialect, session.bus, cancel_b))
    plan = dialect.plan("A", "B")
    session.run(plan)
    assert plan.tasks["B"].status.value == "cancelled"
