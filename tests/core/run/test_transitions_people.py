"""What a person does to a run: cancel, pause and resume, at every state and in every order."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from asterism.core.errors import RunRefused
from asterism.core.run import transitions
from asterism.core.run.run import Assignment, Run
from tests.core.run.run_scenes import (
    HALF_WAY,
    assigned,
    claimed,
    completed,
    grant_of,
    lost,
    new,
    processing,
    strict,
)

Make = Callable[[], Run]


def cancel(run: Run, now: float = 8.0) -> Run:
    return transitions.cancel(run, now, "ann")


def pause(run: Run, now: float = 7.0, reason: str = "the disk is full") -> Run:
    return transitions.pause(run, now, f"ann: {reason}" if reason else "ann")


def resume(run: Run, now: float = 9.0) -> Run:
    return transitions.resume(run, now, "bob")


def release(run: Run, now: float = 10.0) -> Run:
    return transitions.release(run, grant_of(run), "released", "as wished", now, HALF_WAY)


# -- cancelling --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [new, assigned, lost, lambda: pause(new()), lambda: new(series="films")])
def test_what_nobody_has_claimed_is_cancelled_at_once(make: Make) -> None:
    run = cancel(make())
    assert (run.status, run.cancelled, run.error, run.ended_at) == ("failed", True, "cancelled by ann", 8.0)
    assert (run.paused, run.waiting_since) == (None, None)
    assert str(run.story[-1]) == "8.000 failed: cancelled by ann"


def test_the_assignment_of_what_is_cancelled_is_told() -> None:
    assert cancel(assigned(now=1.0)).previous == (Assignment("kitchen", 1, 1.0, 8.0, "released", "cancelled by ann"),)


@pytest.mark.parametrize("make", [claimed, processing])
def test_the_owner_of_what_is_cancelled_is_asked_to_stop(make: Make) -> None:
    run = make()
    asked = cancel(run)
    assert (asked.status, asked.stop_request, asked.stop_requested_by, asked.grant) == (
        run.status,
        "cancel",
        "ann",
        run.grant,
    )
    assert str(asked.story[-1]) == "8.000 asked to cancel: by ann"
    stopped = release(asked)
    assert (stopped.status, stopped.cancelled, stopped.error) == ("failed", True, "cancelled by ann (as wished)")
    assert (stopped.stop_request, stopped.stop_requested_by, stopped.progress) == (None, None, HALF_WAY)
    assert stopped.previous[-1].reason == "released"


def test_cancelling_twice_changes_nothing() -> None:
    asked = cancel(processing())
    assert cancel(asked) is asked


def test_a_device_that_is_lost_cannot_keep_a_run_from_being_cancelled() -> None:
    run = lost(cancel(processing()), now=100.0)
    assert (run.status, run.cancelled, run.losses) == ("failed", True, 0)
    assert run.error == "cancelled by ann (not heard of for 90 s)"
    assert run.previous[-1].reason == "timeout"


def test_work_that_fails_while_it_is_being_cancelled_is_not_tried_again() -> None:
    run = cancel(processing())
    run = transitions.fail(run, grant_of(run), "killed", 9.0)
    assert (run.status, run.cancelled, run.error, run.failures) == ("failed", True, "cancelled by ann (killed)", 0)


def test_work_that_is_done_before_the_wish_is_heard_is_done() -> None:
    run = completed(cancel(processing()))
    assert (run.status, run.output, run.cancelled, run.stop_request, run.stop_requested_by) == (
        "completed",
        42,
        False,
        None,
        None,
    )


def test_the_start_does_not_forget_the_wish() -> None:
    run = cancel(claimed())
    assert transitions.start(run, grant_of(run), 9.0).stop_request == "cancel"


@pytest.mark.parametrize("make", [completed, lambda: cancel(new())])
def test_an_end_is_neither_cancelled_nor_paused_nor_resumed(make: Make) -> None:
    run = make()
    for say, what in ((cancel, "be cancelled"), (pause, "be paused"), (resume, "be resumed")):
        said = f"it is {run.reported_status}, which is final: it cannot {what}"
        with pytest.raises(RunRefused, match=said):
            say(run)


# -- pausing -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [new, lost])
def test_what_nobody_owns_is_paused_at_once_and_given_to_nobody(make: Make) -> None:
    run = pause(make())
    assert (run.paused, run.offered) == ("by ann: the disk is full", False)
    assert str(run.story[-1]) == "7.000 paused: by ann: the disk is full"
    for say in (
        lambda: claimed(run),
        lambda: assigned(run),
        lambda: transitions.give_up(run, 9.0, "no device"),
        lambda: transitions.offer_again(run, 9.0),
    ):
        with pytest.raises(RunRefused, match="it is paused by ann: the disk is full: it cannot be"):
            say()


def test_a_reason_is_not_needed() -> None:
    assert pause(new(), reason="").paused == "by ann"
    assert pause(claimed(), reason="").stop_requested_by == "ann"


def test_what_was_only_assigned_is_taken_back_and_paused() -> None:
    run = pause(assigned(now=1.0))
    assert (run.status, run.paused, run.device, run.losses) == ("reassigning", "by ann: the disk is full", None, 0)
    assert (run.avoid, run.revision) == ((), 3)
    assert run.previous == (Assignment("kitchen", 1, 1.0, 7.0, "released", "paused by ann: the disk is full"),)
    assert [entry.what for entry in run.story[-2:]] == ["reassigning", "paused"]


@pytest.mark.parametrize("make", [claimed, processing])
def test_the_owner_of_what_is_to_pause_is_asked_to_stop_and_what_it_did_is_kept(make: Make) -> None:
    asked = pause(make())
    assert (asked.stop_request, asked.stop_requested_by, asked.paused) == ("pause", "ann: the disk is full", None)
    assert str(asked.story[-1]) == "7.000 asked to pause: by ann: the disk is full"
    run = release(asked)
    assert (run.status, run.paused, run.progress) == ("reassigning", "by ann: the disk is full", HALF_WAY)
    assert (run.stop_request, run.stop_requested_by) == (None, None)
    assert [entry.what for entry in run.story[-2:]] == ["reassigning", "paused"]


@pytest.mark.parametrize(
    "free",
    [lambda run: lost(run, 10.0), lambda run: transitions.fail(run, grant_of(run), "boom", 10.0)],
    ids=["lost", "failed"],
)
def test_however_its_owner_goes_a_run_that_is_to_pause_pauses(free: Callable[[Run], Run]) -> None:
    run = free(pause(processing()))
    assert (run.status, run.paused) == ("reassigning", "by ann: the disk is full")


def test_a_pause_does_not_raise_the_caps() -> None:
    run = transitions.lose(strict(pause(processing())), 9.0, "silence")
    assert (run.status, run.paused, run.stop_request) == ("failed", None, None)


def test_pausing_twice_changes_nothing() -> None:
    for make in (new, assigned, claimed, processing):
        run = pause(make())
        assert pause(run, reason="another") is run


def test_work_that_is_done_before_the_pause_is_heard_is_done() -> None:
    assert completed(pause(processing())).status == "completed"


# -- resuming ----------------------------------------------------------------------------------------------------------


def test_what_is_resumed_may_be_had_again_and_waits_from_then_on() -> None:
    run = resume(pause(new()), now=500.0)
    assert (run.paused, run.offered, run.waiting_since) == (None, True, 500.0)
    assert str(run.story[-1]) == "500.000 resumed: by bob"


def test_a_backoff_outlives_a_pause() -> None:
    run = processing()
    run = transitions.fail(run, grant_of(run), "boom", 4.0)
    run = resume(pause(run, 4.1), 4.2)
    assert (run.not_before, run.waiting_since) == (5.0, 5.0)


def test_resumed_before_its_owner_has_noticed_it_goes_on_as_if_nothing_had_been() -> None:
    run = resume(pause(processing()))
    assert (run.status, run.stop_request, run.stop_requested_by, run.paused, run.waiting_since) == (
        "processing",
        None,
        None,
        None,
        None,
    )
    assert completed(run).status == "completed"


def test_resumed_after_its_owner_has_noticed_it_is_only_given_back() -> None:
    """The owner learned of the pause, and hands the run back after the pause ended: another device may take it."""
    run = release(resume(pause(processing())))
    assert (run.status, run.paused, run.offered, run.progress) == ("reassigning", None, True, HALF_WAY)


@pytest.mark.parametrize("make", [new, assigned, claimed, processing, lost, lambda: cancel(processing())])
def test_what_is_not_paused_cannot_be_resumed(make: Make) -> None:
    with pytest.raises(RunRefused, match="it cannot be resumed: it is not paused"):
        resume(make())


# -- both --------------------------------------------------------------------------------------------------------------


def test_cancelled_after_a_pause_it_is_cancelled() -> None:
    run = cancel(pause(processing()))
    assert (run.stop_request, run.stop_requested_by) == ("cancel", "ann")
    assert release(run).cancelled
    assert cancel(release(pause(processing()))).cancelled


def test_what_is_being_cancelled_cannot_be_paused() -> None:
    with pytest.raises(RunRefused, match="it cannot be paused: it is being cancelled by ann"):
        pause(cancel(processing()))


def test_every_word_of_a_person_is_in_the_story_with_its_time() -> None:
    run = lost(cancel(resume(pause(processing(now=3.0), 4.0), 5.0), 6.0), 7.0)
    assert [str(entry) for entry in run.story[-4:]] == [
        "4.000 asked to pause: by ann: the disk is full",
        "5.000 resumed: by bob",
        "6.000 asked to cancel: by ann",
        "7.000 failed: cancelled by ann (not heard of for 90 s)",
    ]


@pytest.mark.parametrize("make", [new, assigned, claimed, lost])
def test_the_priority_of_what_has_not_begun_changes(make: Make) -> None:
    run = make()
    after = transitions.prioritise(run, 7, 8.0, "somebody waits")
    assert (after.priority, after.revision, after.status) == (7, run.revision + 1, run.status)
    assert after.story[-1].why == f"from {run.priority} to 7: somebody waits"
    assert transitions.prioritise(after, 7, 9.0) is after
    assert transitions.prioritise(after, 1, 9.0).story[-1].why == "from 7 to 1"


@pytest.mark.parametrize("make", [processing, completed])
def test_the_priority_of_what_has_begun_stays(make: Make) -> None:
    run = make()
    assert transitions.prioritise(run, 7, 8.0) is run
