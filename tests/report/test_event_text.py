"""Every kind of event has its own sentence."""

from __future__ import annotations

import re

import pytest

from asterism import Constellation, ConstellationEvent, DeviceEvent, EditEvent, Event, Task, TaskEvent, Violation
from asterism.core.errors import RecordedError
from asterism.core.plan.journal import RecordedConstellation
from asterism.core.plan.status import ConstellationState, TaskStatus
from asterism.execution.processes import CommandFailed
from asterism.report.event_text import names, sentence

PLAN = Constellation("release")
PLAN.add(Task("build"))


def told(event: Event) -> str:
    return sentence(event, PLAN)


def task(kind: str, status: TaskStatus = TaskStatus.RUNNING, **fields: object) -> str:
    return told(TaskEvent(kind=kind, at=1.0, task_id="build", status=status, **fields))  # type: ignore[arg-type]


def edit(kind: str, **fields: object) -> str:
    return told(EditEvent(kind=kind, at=1.0, version=3, cycle=3, tasks=("build",), **fields))  # type: ignore[arg-type]


def test_tasks() -> None:
    assert task("task_started", device="laptop", attempt=1) == "build started on laptop"
    assert task("task_started", device="laptop", attempt=2) == "build started on laptop, attempt 2"
    assert task("task_started", device="laptop", provisional=True) == "build started provisionally on laptop"
    assert task("task_completed", TaskStatus.COMPLETED) == "build completed"
    assert task("task_failed", TaskStatus.FAILED, error=ValueError("no")) == "build failed: ValueError: no"
    failed = task("task_failed", TaskStatus.FAILED, error=CommandFailed(3, "no luck\n"))
    assert failed == "build failed: the command exited with 3: no luck"
    recorded = RecordedError.of(CommandFailed(3, "no luck\n"))  # as a plan in a store has it
    assert task("task_failed", TaskStatus.FAILED, error=recorded) == failed
    assert task("task_cancelled", TaskStatus.CANCELLED) == "build cancelled"
    assert task("task_retrying", attempt=1, error=ValueError("no")).startswith("build: attempt 1 failed and will")


def test_in_a_store_a_task_starts_in_the_fleet_and_its_end_names_the_device() -> None:
    kept = RecordedConstellation.of(PLAN)
    begun = TaskEvent(kind="task_started", at=1.0, task_id="build", status=TaskStatus.RUNNING, device="fleet")
    assert sentence(begun, kept) == "build started in the fleet"
    ended = TaskEvent(kind="task_completed", at=2.0, task_id="build", status=TaskStatus.COMPLETED, device="kitchen")
    assert sentence(ended, kept) == "build completed on kitchen"


def test_edits() -> None:
    assert edit("cycle_opened") == "cycle 3 opened for build"
    assert edit("edit_applied", author="repair", edits=("add task 'a'", "remove task 'b'")) == (
        "edit by repair applied: add task 'a'; remove task 'b'"
    )
    assert edit("edit_applied", author="repair", reason="no disk", edits=("add task 'a'",)) == (
        "edit by repair applied (no disk): add task 'a'"
    )
    violation = Violation(0, "unknown_task", "there is no task 'x' in the plan")
    assert edit("edit_rejected", author="repair", violations=(violation,)) == (
        "edit by repair rejected: there is no task 'x' in the plan"
    )
    assert edit("editor_failed", error=ValueError("no")) == "cycle 3: the editor failed: ValueError: no"


def test_the_plan_itself() -> None:
    begun = ConstellationEvent(kind="constellation_started", at=1.0, state=ConstellationState.EXECUTING, version=0)
    assert told(begun) == "release started with 1 task"
    ended = ConstellationEvent(
        kind="constellation_partially_failed", at=1.0, state=ConstellationState.PARTIALLY_FAILED, version=2
    )
    assert told(ended) == "release ended: partially failed, version 2"


def kinds(event: type[Event]) -> list[str]:
    """The kinds that the docstring of an event class promises."""
    text = re.sub(r"\([^)]*\)", "", event.__doc__ or "")
    words = [word for word in re.findall(r"[a-z]+(?:_[a-z]+)*|_[a-z_]+", text) if "_" in word or word == "stuck"]
    return [f"constellation{word}" if word.startswith("_") else word for word in words]


@pytest.mark.parametrize("kind", kinds(TaskEvent))
def test_every_kind_of_task_event_has_words(kind: str) -> None:
    assert kind.replace("_", " ") != task(kind)
    assert "build" in task(kind)


@pytest.mark.parametrize("kind", kinds(EditEvent))
def test_every_kind_of_edit_event_has_words(kind: str) -> None:
    assert edit(kind, author="repair") not in ("", kind.replace("_", " "))


@pytest.mark.parametrize("kind", kinds(ConstellationEvent))
def test_every_kind_of_constellation_event_has_words(kind: str) -> None:
    event = ConstellationEvent(kind=kind, at=1.0, state=ConstellationState.EXECUTING, version=0)
    assert told(event).startswith("release ")


@pytest.mark.parametrize("kind", kinds(DeviceEvent))
def test_every_kind_of_device_event_has_words(kind: str) -> None:
    event = DeviceEvent(kind=kind, at=1.0, device="laptop", detail="build: no device could take it")
    assert told(event) not in ("", kind.replace("_", " "))


def test_an_event_that_is_not_known_yet_still_says_something() -> None:
    assert told(Event(kind="moon_risen", at=1.0)) == "moon risen"


def test_many_names_are_cut() -> None:
    assert names(["a", "b"], 2) == "a, b"
    assert names("abcdefghij", 10) == "a, b, c, d, e, f and 4 more"
