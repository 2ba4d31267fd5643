"""A person moves a run to another device: one step, a new epoch, and the old owner is fenced."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from asterism.core.errors import Fenced, RunRefused
from asterism.core.run import transitions
from asterism.core.run.peer_record_validation import problems_in
from asterism.core.run.run import ASSIGNED, MAX_EPOCHS, OWNED, PROCESSING, Owner, Run
from asterism.core.run.transitions import outcomes
from tests.core.run.merge_scenes import Peers, check_lag, histories
from tests.core.run.run_scenes import KITCHEN, LAPTOP, assigned, claimed, completed, grant_of, new, processing

DESK = Owner("desk", "desk-1")


def moved(run: Run, to: Owner = DESK, **options: Any) -> Run:
    return transitions.move(run, to, by="ann", **{"now": 9.0, "scores": {"desk": 60.0}, **options})


@settings(max_examples=100)
@given(histories())
def test_a_moved_run_belongs_to_the_new_device_alone(peers: Peers) -> None:
    for run in peers.seen:
        try:
            after = moved(run, now=peers.clocks[0] + 1.0)
        except RunRefused:
            stopping = run.status is PROCESSING or run.stop_request is not None
            assert run.ended or stopping or run.paused is not None
            continue
        assert (after.status, after.device, after.session) == (ASSIGNED, *DESK)
        assert after.epoch == run.epoch + 1 == len(list(outcomes(after))) + 1 - (len(run.previous) - own_ended(run))
        assert after.revision > run.revision
        assert not problems_in(after)
        assert after.story[: len(run.story)] == run.story
        check_lag(run, after)  # a copy from before the move undoes nothing
        if run.status in OWNED:
            for step in (transitions.start, transitions.complete):
                with pytest.raises(Fenced):
                    step(after, grant_of(run), *((None,) if step is transitions.complete else ()), 1e9)


def own_ended(run: Run) -> int:
    """How many assignments of its own history have ended."""
    return run.epoch - (run.status in OWNED)


def test_a_waiting_run_is_assigned() -> None:
    run = moved(new())
    assert [(entry.what, entry.why) for entry in run.story[1:]] == [
        ("assigning to other", "desk, score 60.0 of 1, moved by ann"),
        ("assigned", "to desk by ann, epoch 1"),
    ]
    assert run.scores == {"desk": 60.0}


@pytest.mark.parametrize("before", [assigned, claimed])
def test_a_run_that_has_not_started_is_taken_from_its_device(before: Any) -> None:
    run = moved(before())
    assert [(assignment.device, assignment.reason, assignment.detail) for assignment in run.previous] == [
        ("kitchen", "released", "moved to desk by ann")
    ]
    assert (run.losses, run.failures, run.epoch) == (0, 0, 2)


def test_a_run_at_work_and_one_that_ended_stay_where_they_are() -> None:
    with pytest.raises(RunRefused, match="it cannot be moved while kitchen works on it"):
        moved(processing())
    with pytest.raises(RunRefused, match="completed, which is final"):
        moved(completed())


def test_a_move_to_its_own_device_changes_nothing() -> None:
    for run in (assigned(), claimed(), processing()):
        assert moved(run, KITCHEN) is run


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (new(device="kitchen"), "pinned to kitchen"),
        (new(series="s"), "waits for its limits"),
        (transitions.pause(new(), 1.0, "bob"), "paused by bob"),
        (transitions.cancel(claimed(), 3.0, "bob"), "asked to cancel by bob"),
        (transitions.pause(claimed(), 3.0, "bob"), "asked to pause by bob"),
        (new().changed(epoch=MAX_EPOCHS), "assigned 10000 times"),
    ],
)
def test_what_stands_against_a_move_is_said(run: Run, why: str) -> None:
    with pytest.raises(RunRefused, match=why):
        moved(run)


def test_a_run_that_was_stopped_to_be_moved_is_resumed_and_keeps_its_progress() -> None:
    run = transitions.pause(processing(), 5.0, "ann: to move it to desk")
    run = transitions.release(run, grant_of(run), "released", "pause", 6.0, transitions.Progress(3, 10))
    assert run.paused == "by ann: to move it to desk"
    after = moved(run, paused_for=run.paused)
    assert (after.paused, after.device, after.progress) == (None, "desk", transitions.Progress(3, 10))
    with pytest.raises(RunRefused, match="it is paused by ann"):
        moved(run, paused_for="by ann: to move it to attic")


def test_a_person_may_insist_on_a_device_that_declined() -> None:
    run = transitions.refuse(transitions.refuse(new(), "desk", "too hot", 1.0), "laptop", "on battery", 1.0)
    after = moved(run)
    assert (after.avoid, after.declined) == (("laptop",), {"laptop": "on battery"})
    assert moved(run, LAPTOP).avoid == ("desk",)


def test_without_a_new_epoch_the_old_owner_would_not_be_fenced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The move is safe because it is an assignment like any other."""
    held = claimed()
    monkeypatch.setattr(transitions, "assign", lambda run, to, **options: held.changed(device=to.device))
    stale = moved(held)
    assert transitions.start(stale, grant_of(held), 10.0).status is PROCESSING, "two devices would work on it"
