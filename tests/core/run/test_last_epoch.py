"""The number of assignments of a run is limited: then it fails, and a record with more of them is not valid."""

from __future__ import annotations

from asterism.core.run import transitions
from asterism.core.run.merge import own_assignments
from asterism.core.run.peer_record_validation import problems_in
from asterism.core.run.run import COMPLETED, FAILED, MAX_EPOCHS, PROCESSING, REASSIGNING, Assignment, Run
from asterism.core.run.work import Workflow
from tests.core.run.run_scenes import KITCHEN

FLOW = Workflow("transcode", shell="true", version=1, retries=1)


def given_away(epochs: int) -> Run:
    """It is the kitchen's, for the last time."""
    before = tuple(Assignment("d", epoch, 1.0, 2.0, "released") for epoch in range(1, epochs))
    waits = transitions.create("r1", FLOW, {}, by="ann", now=1.0).changed(
        status=REASSIGNING, epoch=epochs - 1, previous=before
    )
    return transitions.take(waits, KITCHEN, 3.0, starts=True)


def test_a_run_that_was_given_away_as_often_as_can_be_fails() -> None:
    last = given_away(MAX_EPOCHS)
    assert (last.status, problems_in(last), own_assignments(last)) == (PROCESSING, [], last.previous)
    for after in (
        transitions.release(last, last.grant, "released", "", 4.0),
        transitions.lose(last, 4.0, "it is gone"),
        transitions.fail(last, last.grant, "no", 4.0),
        transitions.decline(last, last.grant, "no", 4.0),
    ):
        assert (after.status, after.epoch, problems_in(after)) == (FAILED, MAX_EPOCHS, [])
        assert (after.error or "").startswith("assigned 10000 times, the last one ended: ")
    done = transitions.complete(last, last.grant, {}, 4.0)
    assert (done.status, problems_in(done)) == (COMPLETED, [])
    first = given_away(MAX_EPOCHS - 1)
    assert transitions.release(first, first.grant, "released", "", 4.0).status is REASSIGNING


def test_a_record_that_waits_after_the_last_epoch_is_none() -> None:
    last = given_away(MAX_EPOCHS)
    waits = last.changed(
        status=REASSIGNING, device=None, session=None, assigned_at=None,
        previous=(*last.previous, Assignment("kitchen", MAX_EPOCHS, 1.0, 2.0, "released")),
    )  # fmt: skip
    assert problems_in(waits) == ["it is to be assigned again after epoch 10000"]
