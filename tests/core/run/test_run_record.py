"""The record of a run and the table of its states."""

from __future__ import annotations

import pytest

from asterism.core.record import replace
from asterism.core.run import transitions
from asterism.core.run.run import (
    OWNED,
    TERMINAL,
    TRANSITIONS,
    UNOWNED,
    Assignment,
    Grant,
    Progress,
    Run,
    RunStatus,
    queue_order,
    state_diagram,
)
from tests.core.run.run_scenes import (
    FLOW,
    KITCHEN,
    NAMES,
    SITUATIONS,
    assigned,
    claimed,
    completed,
    lost,
    new,
    processing,
    strict,
)


def test_every_state_of_the_seed_is_there() -> None:
    told = "created assigned claimed processing completed failed reassigning"
    assert [str(status) for status in RunStatus] == told.split()


def test_a_state_is_owned_or_waits_or_is_an_end() -> None:
    assert set(RunStatus) == OWNED | UNOWNED | TERMINAL
    assert len(OWNED) + len(UNOWNED) + len(TERMINAL) == len(RunStatus)


def test_no_event_leads_out_of_an_end_and_one_leads_to_every_other_state() -> None:
    moves = [(old, new) for moves_of_event in TRANSITIONS.values() for old, new in moves_of_event.items()]
    assert not [old for old, _ in moves if old in TERMINAL]
    assert {status for move in moves for status in move} == set(RunStatus)
    reached, fresh = {RunStatus.CREATED}, [RunStatus.CREATED]
    while fresh:
        here = fresh.pop()
        fresh += (there := {new for old, new in moves if old is here} - reached)
        reached |= there
    assert reached == set(RunStatus)


def test_every_arrow_of_the_seed_is_in_the_table() -> None:
    """Its two states of assigning begin and end inside one write, so their arrows are joined."""
    arrows = {(str(old), str(new)) for moves in TRANSITIONS.values() for old, new in moves.items()}
    assert arrows == {
        ("created", "assigned"),
        ("created", "claimed"),  # created, assigning to self, claimed
        ("created", "failed"),
        ("assigned", "claimed"),
        ("assigned", "reassigning"),
        ("assigned", "failed"),
        ("claimed", "processing"),
        ("claimed", "reassigning"),
        ("claimed", "failed"),
        ("processing", "completed"),
        ("processing", "failed"),
        ("processing", "reassigning"),
        ("reassigning", "assigned"),
        ("reassigning", "claimed"),
        ("reassigning", "failed"),
    }


def test_the_diagram_is_made_from_the_table() -> None:
    lines = state_diagram().splitlines()
    assert lines[:2] == ["stateDiagram-v2", "    [*] --> created"]
    assert lines[-2:] == ["    completed --> [*]", "    failed --> [*]"]
    assert len(lines) == 4 + sum(len(moves) for moves in TRANSITIONS.values())
    for event, moves in TRANSITIONS.items():
        for old, new_state in moves.items():
            assert f"    {old} --> {new_state}: {event}" in lines


@pytest.mark.parametrize("name", SITUATIONS)
def test_a_grant_is_what_the_owner_shows_and_nobody_shows_one_otherwise(name: str) -> None:
    run = SITUATIONS[name]()
    if run.status in OWNED:
        assert run.grant == Grant("r1", KITCHEN.session, 1) == ("r1", "kitchen-1", 1)
    else:
        assert run.grant is None


def test_a_run_is_offered_while_nobody_owns_it_and_nothing_keeps_it_back() -> None:
    assert [name for name, make in SITUATIONS.items() if make().offered] == ["created", "reassigning"]


def test_a_run_has_ended_when_it_is_completed_or_failed() -> None:
    assert [name for name, make in SITUATIONS.items() if make().ended] == ["completed", "failed"]


def test_the_kind_of_a_run_is_its_workflow_with_its_work() -> None:
    run = new()
    assert run.kind == f"transcode@{FLOW.work.digest}" == new(flow=FLOW.at_version(9)).kind
    assert run.changed(workflow="other").kind != run.kind != strict(run).kind


def test_progress_reads_as_a_person_says_it() -> None:
    assert str(Progress(3, 10)) == "3/10"
    assert str(Progress(3)) == "3"


def test_an_assignment_that_ended_needs_no_detail() -> None:
    assert Assignment("kitchen", 1, 0.0, 1.0, "released").detail == ""


def test_a_record_cannot_be_changed_in_place() -> None:
    run = new()
    with pytest.raises(AttributeError):
        run.priority = 9  # type: ignore[misc]


def test_a_changed_copy_leaves_the_record_as_it_was_and_is_what_replace_would_make() -> None:
    run = processing()
    untouched = [getattr(run, name) for name in NAMES]
    after = run.changed(priority=9, error="x")
    assert [getattr(run, name) for name in NAMES] == untouched
    assert type(after) is Run
    assert after == replace(run, priority=9, error="x") != run
    assert run.changed() == run


def test_a_new_run_has_the_defaults_of_the_record_and_the_terms_of_its_workflow() -> None:
    plain = Run("r1", "transcode", 3, 0.0, "ann", FLOW.work, {"file": "a.mp4"})
    made = new()
    assert {name for name in NAMES if getattr(made, name) != getattr(plain, name)} == {"waiting_since", "story"}
    assert [*Run.__struct_fields__] == NAMES


def test_the_record_says_when_each_step_was() -> None:
    run = completed(processing(now=3.0), now=4.0)
    assert (run.created_at, run.assigned_at, run.claimed_at, run.started_at, run.ended_at) == (0.0, 3.0, 3.0, 3.0, 4.0)
    assert (run.device, run.session, run.due_at, run.waiting_since) == ("kitchen", None, None, None)


def test_what_concerns_an_assignment_is_gone_when_nobody_owns_the_run() -> None:
    run = lost()
    assert (run.device, run.assigned_by, run.assigned_at, run.claimed_at, run.started_at) == (None,) * 5
    assert [assignment.device for assignment in run.previous] == ["kitchen"]


def test_a_lease_ends_when_the_workflow_says() -> None:
    assert assigned(now=1.0).due_at == 1.0 + FLOW.assignment_timeout
    assert claimed(now=2.0).due_at == 2.0 + FLOW.claim_timeout
    assert processing().due_at is None


def test_what_a_person_asked_of_a_run_is_its_reported_status() -> None:
    work = processing()
    assert new().reported_status == "created"
    assert transitions.pause(new(), 2.0, "ann").reported_status == "paused"
    assert transitions.pause(work, 9.0, "ann").reported_status == "pausing"
    assert transitions.cancel(work, 9.0, "ann").reported_status == "cancelling"
    assert transitions.cancel(new(), 2.0, "ann").reported_status == "cancelled"


def test_the_most_urgent_run_comes_first_and_then_the_oldest() -> None:
    late, early, urgent = (
        new().changed(id="late", created_at=9.0),
        new().changed(id="early", created_at=1.0),
        new().changed(id="urgent", created_at=5.0, priority=3),
    )
    assert sorted([late, early, urgent], key=queue_order) == [urgent, early, late]
