"""The observers that come with the documented API: the figures of a session, and the bridge to an agent."""

from __future__ import annotations

import copy
import json
import time
from typing import Any

import pytest

from asterism.compat.galaxy import (
    AgentEvent,
    DeviceEvent,
    Event,
    EventType,
    IEventObserver,
    SessionMetricsObserver,
    TaskStar,
)
from tests.compat.compat_scenes import DIALECTS, ENDS, GALAXY, Devices, Dialect, Session, run

pytestmark = pytest.mark.virtual_time

each_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=repr)


class Modifying(IEventObserver):
    """An agent that reports the old plan, the new plan, and the time it took."""

    def __init__(self, session: Session) -> None:
        self.session = session

    async def on_event(self, event: Any) -> None:
        if event.event_type not in ENDS:
            return
        dialect = self.session.dialect
        old = copy.deepcopy(event.data[dialect.noun])
        new = copy.deepcopy(old)
        if event.task_id == "A":
            new.remove_task("gone")
            new.add_task(TaskStar("new"))
        modified = dialect.modified("plan", [event.task_id], new)
        modified.data |= {f"old_{dialect.noun}": old, "modification_type": "Edited", "processing_duration": 0.5}
        await self.session.bus.publish_event(modified)


@each_dialect
def test_the_figures_of_a_session(dialect: Dialect) -> None:
    session = Session(dialect, Devices(seconds={"A": 1.0, "B": 3.0, "new": 2.0}, answers={"B": RuntimeError("no")}))
    observer = dialect.module.SessionMetricsObserver("session")
    session.bus.subscribe(observer)
    session.bus.subscribe(Modifying(session))
    session.run(dialect.plan("A", "B", "gone", lines=["A>gone"]))
    metrics, noun = observer.get_metrics(), dialect.noun
    assert metrics["session_id"] == "session"
    assert metrics["task_statistics"] == {
        "total_tasks": 3,
        "completed_tasks": 2,
        "failed_tasks": 1,
        "success_rate": 2 / 3,
        "failure_rate": 1 / 3,
        "average_task_duration": 2.0,
        "min_task_duration": 1.0,
        "max_task_duration": 3.0,
        "total_task_execution_time": 6.0,
    }
    assert metrics[f"{noun}_statistics"] == {
        f"total_{noun}s": 1,
        f"completed_{noun}s": 1,
        f"failed_{noun}s": 0,
        "success_rate": 1.0,
        f"average_{noun}_duration": 3.0,
        f"min_{noun}_duration": 3.0,
        f"max_{noun}_duration": 3.0,
        f"total_{noun}_time": 3.0,
        f"average_tasks_per_{noun}": 3.0,
    }
    assert metrics["modification_statistics"] == {
        "total_modifications": 3,
        f"{noun}s_modified": 1,
        f"average_modifications_per_{noun}": 3.0,
        f"max_modifications_for_single_{noun}": 3,
        f"most_modified_{noun}": "plan",
        f"modifications_per_{noun}": {"plan": 3},
        "modification_types_breakdown": {"Edited": 3},
    }
    first = metrics[f"{noun}_modifications"]["plan"][0]
    assert first["changes"] == {
        "modification_type": f"{noun}_updated",
        "added_tasks": ["new"],
        "removed_tasks": ["gone"],
        "modified_tasks": [],
        "added_dependencies": [],
        "removed_dependencies": [("A", "gone")],
        "modified_dependencies": [],
    }
    assert (first["on_task_id"], first["processing_duration"]) == (["A"], 0.5)
    timing = metrics[f"{noun}_timings"]["plan"]
    assert (timing["initial_statistics"]["total_tasks"], timing["final_statistics"]["state"]) == (3, "partially_failed")
    assert json.dumps(metrics)


def test_an_observer_without_events_has_metrics_too() -> None:
    metrics = SessionMetricsObserver("empty").get_metrics()
    assert metrics["task_statistics"]["success_rate"] == 0.0
    assert metrics["constellation_statistics"]["average_constellation_duration"] == 0.0
    assert metrics["modification_statistics"]["most_modified_constellation"] is None


def test_it_counts_a_plan_that_fails_and_one_whose_beginning_it_missed() -> None:
    session = Session(GALAXY, Devices(answers={"A": RuntimeError("no")}))
    session.agent()
    early, late = SessionMetricsObserver("early"), SessionMetricsObserver("late")
    session.bus.subscribe(early)
    session.bus.subscribe(late, ENDS)
    session.run(GALAXY.plan("A"))
    assert early.metrics["failed_constellations"] == 1
    assert early.get_metrics()["constellation_statistics"]["success_rate"] == 0.0
    assert (late.metrics["failed_tasks"], late.metrics["total_execution_time"]) == (1, 0.0)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda plan: None, "no_change"),
        (lambda plan: plan.add_task(TaskStar("new")), "tasks_added"),
        (lambda plan: plan.remove_task("B"), "tasks_removed"),
        (lambda plan: setattr(plan.tasks["B"], "name", "another"), "task_properties_updated"),
        (lambda plan: plan.remove_dependency(plan.get_all_dependencies()[0].line_id), "constellation_updated"),
    ],
)
def test_the_kinds_of_changes(change: Any, kind: str) -> None:
    observer, old = SessionMetricsObserver("session"), GALAXY.plan("A", "B", lines=["A>B"])
    new = copy.deepcopy(old)
    change(new)
    event = GALAXY.modified("plan", ["A"], new)
    event.data["old_constellation"] = old
    run(observer.on_event(event))
    (record,) = observer.metrics["constellation_modifications"]["plan"]
    assert record["changes"]["modification_type"] == kind
    assert record["modification_type"] == "unknown"


@each_dialect
def test_the_bridge_to_an_agent(dialect: Dialect) -> None:
    told: list[Event] = []

    class Agent:
        async def add_task_completion_event(self, event: Event) -> None:
            told.append(event)

        async def add_constellation_completion_event(self, event: Event) -> None:
            told.append(event)

        add_orion_completion_event = add_constellation_completion_event

    session = Session(dialect, Devices(answers={"A": 1}))
    session.agent()
    observer = getattr(dialect.module, f"{dialect.noun.capitalize()}ProgressObserver")(agent=Agent())
    session.bus.subscribe(observer)
    session.run(dialect.plan("A"))
    assert [event.event_type for event in told] == [EventType.TASK_COMPLETED, dialect.event_type("completed")]
    assert observer.task_results["A"]["status"] == "completed"
    assert observer.task_results["A"]["result"].result == 1


async def test_agents_and_devices_have_events_of_their_own() -> None:
    session = Session(GALAXY, Devices())
    said = AgentEvent(EventType.AGENT_RESPONSE, "agent", time.time(), {}, "planner", "llm", "text", {"said": "hello"})
    came = DeviceEvent(EventType.DEVICE_STATUS_CHANGED, "manager", time.time(), {}, "robot", "busy")
    await session.bus.publish_event(said)
    await session.bus.publish_event(came)
    assert session.diary.events == [said, came]
    assert (said.agent_name, said.output_data, came.device_info, came.all_devices) == (
        "planner",
        {"said": "hello"},
        None,
        {},
    )
