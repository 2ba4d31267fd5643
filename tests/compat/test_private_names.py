"""Private names that the documents show can be read. Writing one raises: the core has the facts."""

from __future__ import annotations

import asyncio

import pytest

from asterism.compat.galaxy import ModificationRejected, TaskStar
from tests.compat.compat_scenes import DIALECTS, GALAXY, Devices, Dialect, Session, at

pytestmark = pytest.mark.virtual_time


@pytest.mark.parametrize("name", ["status", "result", "error", "execution_start_time", "execution_end_time"])
def test_the_private_names_of_a_task(name: str) -> None:
    plan = GALAXY.plan("A", "B", lines=["A>B"])
    plan.mark_task_completed("A", success=True, result=41)
    star = plan.tasks["A"]
    assert getattr(star, f"_{name}") == getattr(star, name)
    with pytest.raises(AttributeError, match=f"_{name} cannot be written: use start_execution"):
        setattr(star, f"_{name}", None)


@pytest.mark.parametrize("dialect", DIALECTS, ids=repr)
async def test_a_running_plan_refuses_progress_by_hand(dialect: Dialect) -> None:
    session = Session(dialect, Devices())
    session.agent()
    plan = dialect.plan("A", "B", lines=["A>B"])
    running = asyncio.ensure_future(session.orchestrate(plan))
    await at(0.5)
    with pytest.raises(ModificationRejected, match="devices report the progress"):
        plan.mark_task_completed("A", success=True)
    with pytest.raises(ModificationRejected, match="devices report the progress"):
        plan.tasks["B"].start_execution()
    await running
    assert session.devices.started == ["A", "B"]


def test_the_mappings_of_a_plan_are_read_only() -> None:
    plan = GALAXY.plan("A", "B", lines=["A>B"])
    for window in (plan.tasks, plan.dependencies, plan._tasks):
        with pytest.raises(TypeError):
            window["X"] = TaskStar("X")  # type: ignore[index]
    with pytest.raises(AttributeError, match="use add_task"):
        plan._tasks = {}
    assert plan._are_dependencies_satisfied("A")
    assert not plan._are_dependencies_satisfied("B")


async def test_the_private_names_of_orchestrator_and_synchronizer() -> None:
    session = Session(GALAXY, Devices())
    session.agent(seconds=1.0)
    orchestrator, synchronizer = session.orchestrator, session.synchronizer
    for thing, name in (
        (orchestrator, "_execution_tasks"),
        (synchronizer, "_modification_timeout"),
        (synchronizer, "_stats"),
        (synchronizer, "_current_constellation"),
    ):
        with pytest.raises(AttributeError, match=f"{name} cannot be written"):
            setattr(thing, name, {})
    orchestrator._device_manager = more = Devices()
    plan = GALAXY.plan("A")
    running = asyncio.ensure_future(session.orchestrate(plan))
    await at(0.5)
    assert list(orchestrator._execution_tasks) == ["A"]
    await at(1.5)
    assert list(synchronizer._pending_modifications) == ["A"]
    with pytest.raises(TypeError):
        synchronizer._pending_modifications["B"] = asyncio.Future()
    assert synchronizer._current_constellation is plan
    await running
    assert not synchronizer._pending_modifications
    assert more.started == ["A"]


@pytest.mark.parametrize("answer", [True, False, None], ids=str)
async def test_a_program_may_set_the_future_of_an_end(answer: bool | None) -> None:
    """The documented code does: the end is answered, or has timed out; and who waits goes on."""
    session = Session(GALAXY, Devices())
    synchronizer = session.synchronizer
    running = asyncio.ensure_future(session.orchestrate(GALAXY.plan("A", "B", lines=["A>B"])))
    await at(1.5)
    waiting = asyncio.ensure_future(synchronizer.wait_for_pending_modifications())
    await at(2.0)
    end = synchronizer._pending_modifications["A"]
    end.cancel() if answer is None else end.set_result(answer)
    assert await waiting is bool(answer)
    session.agent()
    await running
    assert session.devices.at("B") == 2.0
    assert synchronizer.get_statistics()["completed_modifications"] == 1 + bool(answer)
