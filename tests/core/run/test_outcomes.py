"""What a record says about the choice of its devices."""

from __future__ import annotations

from hypothesis import given, settings

from asterism.core.record import replace
from asterism.core.run import transitions
from asterism.core.run.run import COMPLETED, REASONS, Assignment, Run
from asterism.core.run.transitions import (
    Outcome,
    attempt_of,
    attempts_of,
    declines,
    outcomes,
    waiting_time,
    was_executed,
    work_time,
)
from tests.core.run.merge_scenes import Peers, histories
from tests.core.run.run_scenes import KITCHEN, LAPTOP, completed, grant_of, new


@settings(max_examples=100)
@given(histories())
def test_every_ended_assignment_has_one_outcome_and_no_time_is_negative(peers: Peers) -> None:
    for run in peers.seen:
        listed = list(outcomes(run))
        assert len(listed) == len(run.previous) + (run.status is COMPLETED)
        assert {outcome.reason for outcome in listed} <= {*REASONS, "completed"}
        assert (waiting_time(run) is None) == (run.started_at is None and run.ended_at is None)
        assert (waiting_time(run) or 0.0) >= 0.0
        assert (work_time(run) or 0.0) >= 0.0
        assert len(list(declines(run))) <= len(run.previous) + len(run.story)


def test_scores_belong_to_the_assignment_that_they_won() -> None:
    scores = {"kitchen": 80.0, "laptop": 60.0}
    run = transitions.assign(new(), KITCHEN, by="hub", now=1.0, scores=scores)
    run = transitions.decline(run, grant_of(run), "on battery", 3.0)
    run = transitions.take(run, LAPTOP, 10.0, starts=True, scores={"laptop": 55.0})
    run = transitions.complete(run, grant_of(run), 42, 14.0)
    assert list(outcomes(run)) == [Outcome("kitchen", "declined", 80.0), Outcome("laptop", "completed", 55.0)]
    assert (waiting_time(run), work_time(run)) == (8.0, 4.0), "two seconds of ten belong to the kitchen"


def test_an_offer_that_is_not_taken_is_a_decline() -> None:
    run = transitions.refuse(new(), "a: b", "no: never", 1.0)
    run = transitions.refuse(run, "attic", "too hot: 40 degrees", 1.0)
    assert list(declines(run))[1:] == ["attic"]
    taken = transitions.take(run, KITCHEN, 3.0)
    declined = transitions.decline(taken, grant_of(taken), "full", 5.0)
    assert next(declines(declined)) == "kitchen"


def test_a_run_that_was_taken_without_scores_has_none() -> None:
    assert list(outcomes(completed())) == [Outcome("kitchen", "completed", None)]


def test_a_run_was_executed_if_a_device_began_it_or_nobody_knows() -> None:
    run = new()
    assert not was_executed(transitions.give_up(run, 9.0, "no device could take it"))
    assert not was_executed(transitions.cancel(run, 9.0, "ann"))
    assigned = transitions.assign(run, KITCHEN, by="kitchen", now=2.0)
    lost = transitions.lose(assigned, 5.0, "no heartbeat")
    assert not was_executed(lost), "it was assigned, and never started"
    begun = transitions.start(transitions.claim(assigned, grant_of(assigned), 3.0), grant_of(assigned), 4.0)
    lost = transitions.lose(begun, 5.0, "no heartbeat")
    assert was_executed(begun)
    assert lost.started_at is None
    assert was_executed(lost)
    assert was_executed(transitions.mark_forgotten(assigned, 9.0, "its store is gone"))


def test_declined_assignments_do_not_count_as_attempts() -> None:
    before = tuple(Assignment("d", n, 0.0, 1.0, reason) for n, reason in enumerate(["declined", "timeout", "failed"]))
    run = Run("r1", "work", 1, 0.0, "test", new().work, previous=before, epoch=3)
    assert (attempt_of(run), attempts_of(run)) == (3, 3)
    assert attempts_of(replace(run, epoch=2)) == 2, "the last one has ended"
    assert attempts_of(new()) == 0
