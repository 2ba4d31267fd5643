"""The table of states: what follows from it, and the diagram that is made from it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from asterism.core.status import (
    CANCELLED,
    COMPLETED,
    ENDED_STATES,
    EVENTS,
    EXIT_CODES,
    FAILED,
    PENDING,
    RUNNING,
    TERMINAL,
    TRANSITIONS,
    ConstellationState,
    TaskStatus,
    state_diagram,
)

STATE_MACHINE = Path(__file__).parents[2] / "docs" / "explanation" / "state-machine.md"


def test_no_way_leads_out_of_a_terminal_state() -> None:
    assert not [source for source, _ in TRANSITIONS if source in TERMINAL]


def test_every_status_is_reached_from_pending() -> None:
    reached = {PENDING}
    for _ in TaskStatus:
        reached |= {target for (source, _), target in TRANSITIONS.items() if source in reached}
    assert reached == set(TaskStatus)


def test_each_end_has_the_event_that_leads_to_it() -> None:
    assert set(EVENTS) == TERMINAL == {COMPLETED, FAILED, CANCELLED}
    assert all(TRANSITIONS[RUNNING, event] is status for status, event in EVENTS.items())


def test_a_pending_task_can_fail_or_be_cancelled_but_not_complete() -> None:
    assert (PENDING, "fail") in TRANSITIONS
    assert (PENDING, "cancel") in TRANSITIONS
    assert (PENDING, "complete") not in TRANSITIONS


@pytest.mark.parametrize(
    ("state", "code"), [("completed", 0), ("failed", 1), ("partially_failed", 2), ("cancelled", 130)]
)
def test_the_command_exits_with_a_code_for_each_end(state: str, code: int) -> None:
    assert EXIT_CODES[ConstellationState(state)] == code
    assert set(EXIT_CODES) == ENDED_STATES


def test_a_status_is_its_name() -> None:
    assert {PENDING: 1}["pending"] == 1  # type: ignore[index]
    assert str(RUNNING) == "running"


def test_the_diagram_shows_every_transition_of_the_table() -> None:
    lines = state_diagram().splitlines()
    assert lines[0] == "stateDiagram-v2"
    for (source, event), target in TRANSITIONS.items():
        assert f"    {source} --> {target}: {event}" in lines
    assert len(lines) == 2 + len(TRANSITIONS) + len(TERMINAL)


def test_the_documentation_shows_the_diagram_of_the_table() -> None:
    [drawn] = re.findall(r"^```mermaid\n(.*?)^```$", STATE_MACHINE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert drawn == state_diagram(), f"put the text of status.state_diagram() into {STATE_MACHINE.name}"
