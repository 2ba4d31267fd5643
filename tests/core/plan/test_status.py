"""The table of states: what follows from it, and the diagram that is made from it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from asterism.core.plan.status import (
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

STATE_MACHINE = Path(__file__).parents[3] / "docs" / "explanation" / "state-machine.md"


def test_no_way_leads_out_of_a_terminal_state() -> None:
    assert not [event for event, moves in TRANSITIONS.items() if TERMINAL & moves.keys()]


def test_every_status_is_reached_from_pending() -> None:
    reached = {PENDING}
    for _ in TaskStatus:
        reached |= {new for moves in TRANSITIONS.values() for old, new in moves.items() if old in reached}
    assert reached == set(TaskStatus)


def test_each_end_has_the_event_that_leads_to_it() -> None:
    assert set(EVENTS) == TERMINAL == {COMPLETED, FAILED, CANCELLED}
    assert all(TRANSITIONS[event][RUNNING] is status for status, event in EVENTS.items())


def test_a_pending_task_can_fail_or_be_cancelled_but_not_complete() -> None:
    assert {event for event, moves in TRANSITIONS.items() if PENDING in moves} == {"start", "fail", "cancel"}


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
    moves = [(old, new, event) for event, moves in TRANSITIONS.items() for old, new in moves.items()]
    for old, new, event in moves:
        assert f"    {old} --> {new}: {event}" in lines
    assert len(lines) == 2 + len(moves) + len(TERMINAL)


def test_the_documentation_shows_the_diagram_of_the_table() -> None:
    [drawn] = re.findall(r"^```mermaid\n(.*?)^```$", STATE_MACHINE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert drawn == state_diagram(), f"put the text of status.state_diagram() into {STATE_MACHINE.name}"
