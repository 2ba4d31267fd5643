"""Deep graphs: nothing recurses, and nothing takes too long."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import pytest

from asterism.compat import galaxy
from asterism.compat.galaxy import EventType, TaskStarLine, get_event_bus
from tests.compat.compat_scenes import GALAXY, Devices, Diary, Session, run


@pytest.mark.parametrize("depth", [1_500, pytest.param(12_000, marks=pytest.mark.long)])
def test_nothing_recurses_on_a_deep_graph(depth: int) -> None:
    """Thousands of tasks one below the other: built, copied, written, read, measured and run."""
    names = [f"t{i}" for i in range(depth)]
    plan = GALAXY.plan(*names, lines=[f"{above}>{below}" for above, below in pairwise(names)])
    read = type(plan).from_json(plan.to_json())
    assert read.get_topological_order() == names
    assert copy.deepcopy(read).get_parallelism_metrics()["critical_path_length"] == depth
    assert plan.get_statistics()["longest_path_length"] == depth
    assert plan.validate_dag() == (True, [])
    with pytest.raises(ValueError, match="cycle"):
        plan.add_dependency(TaskStarLine(names[-1], names[0]))

    bus, devices = get_event_bus(), Devices(seconds=dict.fromkeys(names, 0.0))
    orchestrator = galaxy.TaskConstellationOrchestrator(devices)
    diary = Diary(bus)
    outcome = run(orchestrator.orchestrate_constellation(plan))
    assert outcome["status"] == "completed"
    assert devices.started == names
    assert len(diary.of(EventType.TASK_COMPLETED)) == depth


@pytest.mark.parametrize("depth", [1_500, pytest.param(10_000, marks=pytest.mark.long)])
def test_an_agent_may_edit_a_deep_graph(depth: int) -> None:
    names = [f"t{i}" for i in range(depth)]
    plan = GALAXY.plan("A", *names, lines=[f"{a}>{b}" for a, b in zip(["A", *names], names, strict=False)])

    def cut(mine: Any, event: Any) -> None:
        if event.task_id == "A":
            mine.remove_task(names[0])
            for name in names[2:]:
                mine.remove_task(name)

    session = Session(GALAXY, Devices())
    session.agent(cut)
    session.run(plan)
    assert session.devices.started == ["A", "t1"]
