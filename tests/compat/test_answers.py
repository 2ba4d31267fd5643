"""Which run an agent's answer belongs to: the one that it names, or else the one that waits for its task."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from asterism.compat.galaxy import EventBus, TaskStar
from tests.compat.compat_scenes import DIALECTS, Agent, Devices, Dialect, Session, at

pytestmark = pytest.mark.parametrize("dialect", DIALECTS, ids=repr)


class Misnaming(Agent):
    """Publishes its copy under another id, like an agent that built a new plan or does not know the id."""

    named = ""

    async def on_event(self, event: Any) -> None:
        bus, self.bus = self.bus, EventBus()
        try:
            await super().on_event(event)
        finally:
            self.bus = bus
        if self.heard and self.heard[-1] == getattr(event, "task_id", None) and event.status != "running":
            await bus.publish_event(self.dialect.modified(self.named, [event.task_id], self.copies[event.task_id]))

    def copy_of(self, live: Any) -> Any:
        new = type(live)("a plan of its own")
        for task in live.tasks.values():
            new.add_task(task)
        for line in live.dependencies.values():
            new.add_dependency(line)
        return new


@pytest.mark.parametrize("named", ["", "unheard of"])
def test_an_answer_with_an_unknown_plan_id_is_matched_by_task(dialect: Dialect, named: str) -> None:
    """The origin matches by ``on_task_id`` alone. Before the fix the answer was ignored, and B waited 600 seconds."""

    def add(mine: Any, event: Any) -> None:
        if event.task_id == "A":
            mine.add_task(TaskStar("extra"))

    session = Session(dialect, Devices())
    agent = Misnaming(dialect, session.bus, add)
    agent.named = named
    session.bus.subscribe(agent)
    assert session.run(dialect.plan("A", "B", lines=["A>B"]))["status"] == "completed"
    assert session.devices.at("B") == 1.0
    assert sorted(session.devices.started) == ["A", "B", "extra"]
    assert (
        session.synchronizer.get_statistics().items()
        >= {
            "total_modifications": 3,
            "completed_modifications": 3,
            "timeout_modifications": 0,
        }.items()
    )


def test_the_ablation_without_the_match_by_task_the_plan_waits_for_the_timeout(
    dialect: Dialect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asterism.compat.synchronizer.PlanSynchronizer._waiting", lambda self, tasks: set())
    session = Session(dialect, Devices())
    session.bus.subscribe(Misnaming(dialect, session.bus))
    session.run(dialect.plan("A", "B", lines=["A>B"]))
    assert session.devices.at("B") == 601.0


@pytest.mark.virtual_time
async def test_an_answer_is_ignored_if_two_runs_wait_for_its_task(
    dialect: Dialect, caplog: pytest.LogCaptureFixture
) -> None:
    bus = EventBus()
    first, second = Session(dialect, Devices(), bus), Session(dialect, Devices(), bus)
    with caplog.at_level(logging.WARNING):
        runs = [
            asyncio.ensure_future(session.orchestrate(dialect.plan("A", id=name)))
            for session, name in ((first, "one"), (second, "two"))
        ]
        await at(1.5)
        await bus.publish_event(dialect.modified("", ["A"]))
        assert first.synchronizer.get_pending_task_ids() == second.synchronizer.get_pending_task_ids() == ["A"]
        await bus.publish_event(dialect.modified("one", ["A"]))
        assert second.synchronizer.get_pending_task_ids() == ["A"]
        await bus.publish_event(dialect.modified("", ["A"]))
        assert second.synchronizer.get_pending_task_ids() == [], "by now only one waits for it"
        await asyncio.gather(*runs)
    assert "it is pending in 'one', 'two'; name one of them" in caplog.text


@pytest.mark.virtual_time
async def test_an_answer_for_no_waiting_run_is_logged(dialect: Dialect, caplog: pytest.LogCaptureFixture) -> None:
    session = Session(dialect, Devices())
    with caplog.at_level(logging.WARNING):
        running = asyncio.ensure_future(session.orchestrate(dialect.plan("A")))
        await at(0.5)
        await session.bus.publish_event(dialect.modified("unheard of", ["nothing"], dialect.plan("X", id="other")))
        await at(1.5)
        await session.bus.publish_event(dialect.modified("plan", ["A"]))
        await running
    assert f"its {dialect.noun}_id is 'unheard of'" in caplog.text
    assert "no run waits for it" in caplog.text
    assert session.devices.started == ["A"]


@pytest.mark.virtual_time
async def test_the_other_plan_of_one_orchestrator_is_found(dialect: Dialect) -> None:
    """The agent names a running plan, but another plan has the task."""
    session = Session(dialect, Devices())
    plans = [dialect.plan("A", id="one"), dialect.plan("B", id="two")]
    runs = [asyncio.ensure_future(session.orchestrate(plan)) for plan in plans]
    await at(1.5)
    await session.bus.publish_event(dialect.modified("one", ["B"]))
    assert session.synchronizer.get_pending_task_ids() == ["A"]
    await session.bus.publish_event(dialect.modified("one", ["A"]))
    await asyncio.gather(*runs)
    assert asyncio.get_running_loop().time() < 10


@pytest.mark.virtual_time
async def test_the_plan_of_another_orchestrator_is_found(dialect: Dialect) -> None:
    """Both are on one bus, and the agent names the plan that does not have the task."""
    bus = EventBus()
    first, second = Session(dialect, Devices(), bus), Session(dialect, Devices(), bus)
    plans = dialect.plan("A", id="one"), dialect.plan("B", id="two")
    runs = [asyncio.ensure_future(s.orchestrate(plan)) for s, plan in zip((first, second), plans, strict=True)]
    await at(1.5)
    await bus.publish_event(dialect.modified("two", ["A"]))
    assert (first.synchronizer.get_pending_count(), second.synchronizer.get_pending_count()) == (0, 1)
    await bus.publish_event(dialect.modified("one", ["B"], dialect.plan("B", "C", id="three")))
    await at(2.0)
    assert list(plans[1].tasks) == ["B", "C"]
    assert list(plans[0].tasks) == ["A"]
    second.agent()
    await asyncio.gather(*runs)


@pytest.mark.virtual_time
@pytest.mark.parametrize("tasks", [None, [], "", 7])
async def test_an_answer_without_a_task_is_ignored_and_logged(
    dialect: Dialect, tasks: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The documented code returns silently before it looks at the plan."""
    session = Session(dialect, Devices())
    session.agent(seconds=1.0)
    with caplog.at_level(logging.WARNING):
        running = asyncio.ensure_future(session.orchestrate(dialect.plan("A")))
        await at(0.5)
        await session.bus.publish_event(dialect.modified("plan", tasks, dialect.plan("A", "never")))
        await running
    assert "without on_task_id answers no task and is ignored" in caplog.text
    assert session.devices.started == ["A"]
