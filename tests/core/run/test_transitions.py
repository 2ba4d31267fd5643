"""What coordinators and owners do to a run, rule by rule."""

from __future__ import annotations

import pytest

from asterism.core.errors import Fenced, RunRefused, truncate
from asterism.core.limits import uses_of
from asterism.core.run import transitions
from asterism.core.run.run import REASONS, Assignment, Owner, Progress, Run
from asterism.core.run.work import Workflow
from tests.core.run.run_scenes import (
    FLOW,
    HALF_WAY,
    KITCHEN,
    LAPTOP,
    assigned,
    claimed,
    completed,
    grant_of,
    lost,
    new,
    processing,
)

ATTIC = Owner("attic", "attic-1")


def told(run: Run) -> list[str]:
    return [entry.what for entry in run.story]


def declined(run: Run, by: Owner, why: str, now: float = 1.0) -> Run:
    asked = assigned(run, by, now)
    return transitions.decline(asked, grant_of(asked), why, now)


# -- creating ----------------------------------------------------------------------------------------------------------


def test_a_new_run_is_nobodys_and_tells_who_made_it() -> None:
    run = new()
    assert (run.status, run.epoch, run.device, run.session, run.waiting_since) == ("created", 0, None, None, 0.0)
    assert [str(entry) for entry in run.story] == ["0.000 created: by ann"]


def test_the_priority_is_the_workflows_unless_it_is_given() -> None:
    urgent = Workflow("urgent", shell="true", priority=5)
    assert new(flow=urgent).priority == 5
    assert new(flow=urgent, priority=0).priority == 0
    assert new().priority == 0


def test_the_device_is_the_workflows_unless_it_is_given() -> None:
    fixed = Workflow("fixed", shell="true", device="kitchen")
    assert new(flow=fixed).pinned == "kitchen"
    assert new(flow=fixed, device="laptop").pinned == "laptop"
    assert new().pinned is None


def test_a_run_keeps_the_timeout_and_the_version_of_its_workflow() -> None:
    run = new(flow=Workflow("w", shell="true", heartbeat_timeout=120.0, version=7))
    assert (run.workflow, run.version, run.timeout) == ("w", 7, 120.0)


def test_a_retry_by_hand_is_a_new_run_that_names_the_old_one() -> None:
    run = new(retry_of="r0")
    assert (run.retry_of, run.epoch, run.failures) == ("r0", 0, 0)
    assert str(run.story[0]) == "0.000 created: by ann, a retry of r0"


def test_a_key_is_kept() -> None:
    assert new(key="a.mp4").key == "a.mp4"


# -- assigning ---------------------------------------------------------------------------------------------------------


def test_assigning_to_another_is_told_with_the_score_that_won() -> None:
    scores = {"kitchen": 71.25, "laptop": 40.0}
    run = transitions.assign(new(), KITCHEN, by="hub", now=1.0, scores=scores)
    assert (run.status, run.device, run.session, run.assigned_by) == ("assigned", "kitchen", "kitchen-1", "hub")
    assert run.scores == scores
    assert [str(entry) for entry in run.story[1:]] == [
        "1.000 assigning to other: kitchen, score 71.2 of 2",
        "1.000 assigned: to kitchen by hub, epoch 1",
    ]


def test_assigning_to_oneself_is_told_as_that() -> None:
    run = transitions.assign(new(), KITCHEN, by="kitchen", now=1.0)
    assert told(run) == ["created", "assigning to self", "assigned"]


def test_taking_is_assigning_to_oneself_and_claiming_in_one_step() -> None:
    run = claimed(now=2.0)
    assert (run.status, run.assigned_by, run.assigned_at, run.claimed_at) == ("claimed", "kitchen", 2.0, 2.0)
    assert (run.epoch, run.revision) == (1, 2)
    assert [str(entry) for entry in run.story[1:]] == [
        "2.000 assigning to self: kitchen",
        "2.000 claimed: by kitchen, epoch 1",
    ]


def test_the_scores_are_those_of_the_present_assignment() -> None:
    asked = transitions.assign(new(), KITCHEN, by="hub", now=1.0, scores={"kitchen": 1.0})
    assert claimed(transitions.lose(asked, 2.0, "silence")).scores == {}


def test_a_run_that_is_for_one_device_goes_to_no_other() -> None:
    run = new(device="laptop")
    with pytest.raises(RunRefused, match="it cannot be assigned to kitchen: it is pinned to laptop"):
        claimed(run)
    with pytest.raises(RunRefused, match="it is pinned to laptop"):
        assigned(run)
    assert claimed(run, LAPTOP).device == "laptop"


@pytest.mark.parametrize("give", [assigned, claimed])
def test_what_somebody_owns_is_not_given_away(give: object) -> None:
    with pytest.raises(RunRefused, match="it is processing: it cannot be assigned to a device"):
        give(processing())  # type: ignore[operator]


def test_each_assignment_has_its_own_epoch() -> None:
    run = new()
    for epoch in (1, 2, 3):
        run = assigned(run, to=(KITCHEN, LAPTOP)[epoch % 2])
        assert run.epoch == epoch
        run = transitions.release(run, grant_of(run), "released", "", 2.0)
        assert run.epoch == epoch
    assert [(assignment.device, assignment.epoch) for assignment in run.previous] == [
        ("laptop", 1),
        ("kitchen", 2),
        ("laptop", 3),
    ]


# -- the way through ---------------------------------------------------------------------------------------------------


def test_the_whole_way_is_told_step_by_step() -> None:
    run = assigned(now=1.0)
    run = transitions.claim(run, grant_of(run), 2.0)
    run = transitions.start(run, grant_of(run), 3.0)
    run = transitions.complete(run, grant_of(run), {"size": 7}, 4.0)
    assert (run.status, run.output, run.error, run.ended_at) == ("completed", {"size": 7}, None, 4.0)
    assert [str(entry) for entry in run.story[2:]] == [
        "1.000 assigned: to kitchen by hub, epoch 1",
        "2.000 claimed: by kitchen",
        "3.000 processing: on kitchen",
        "4.000 completed: on kitchen",
    ]
    assert run.previous == ()


def test_a_result_twice_is_refused_the_second_time() -> None:
    run = processing()
    with pytest.raises(Fenced, match="epoch 1 can no longer complete it: it is completed and has no owner"):
        transitions.complete(completed(run), grant_of(run), 43, 5.0)


def test_a_late_result_after_reassignment_is_refused() -> None:
    first = processing()
    second = processing(lost(first), LAPTOP, 5.0)
    with pytest.raises(Fenced, match="epoch 1 can no longer complete it: laptop owns it, at epoch 2"):
        transitions.complete(second, grant_of(first), 43, 6.0)
    assert completed(second).output == 42


def test_a_device_that_gets_a_run_back_in_the_same_life_must_show_the_new_grant() -> None:
    first = processing()
    second = processing(lost(first), KITCHEN, 5.0)
    assert first.session == second.session
    with pytest.raises(Fenced, match="epoch 1 can no longer release it"):
        transitions.release(second, grant_of(first), "released", "", 6.0)


def test_a_new_life_of_a_device_does_not_inherit_the_grants_of_the_old_one() -> None:
    run = processing()
    grant = grant_of(run)._replace(session="kitchen-2")
    with pytest.raises(Fenced):
        transitions.complete(run, grant, 42, 5.0)


def test_the_grant_for_one_run_says_nothing_about_another() -> None:
    run = processing()
    grant = grant_of(run)._replace(run="r2")
    with pytest.raises(Fenced, match="a grant for run r2 can no longer complete it"):
        transitions.complete(run, grant, 42, 5.0)


def test_a_result_before_the_start_is_refused() -> None:
    run = claimed()
    with pytest.raises(RunRefused, match="it is claimed: it cannot complete"):
        transitions.complete(run, grant_of(run), 42, 5.0)


# -- releasing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["released", "preempted", "conflict"])
def test_what_is_given_back_keeps_its_progress_and_says_why(reason: str) -> None:
    run = processing(now=3.0)
    run = transitions.release(run, grant_of(run), reason, "low battery", 6.0, HALF_WAY)
    assert (run.status, run.progress, run.not_before, run.avoid) == ("reassigning", HALF_WAY, 6.0, ())
    assert run.previous == (Assignment("kitchen", 1, 3.0, 6.0, reason, "low battery"),)
    assert str(run.story[-1]) == f"6.000 reassigning: {reason}: low battery"
    assert (run.failures, run.losses) == (0, 0)
    assert processing(run, LAPTOP, 7.0).progress == HALF_WAY


def test_a_release_without_news_keeps_the_progress_there_was() -> None:
    run = assigned(new().changed(progress=HALF_WAY))
    run = transitions.release(run, grant_of(run), "released", "", 2.0)
    assert run.progress == HALF_WAY
    assert str(run.story[-1]) == "2.000 reassigning: released"


def test_progress_of_nothing_is_progress_too() -> None:
    run = processing(new().changed(progress=HALF_WAY))
    assert transitions.release(run, grant_of(run), "released", "", 4.0, Progress(0)).progress == Progress(0)


@pytest.mark.parametrize("reason", [*sorted({*REASONS} - {*transitions.RELEASE_REASONS}), "bored"])
def test_a_reason_that_counts_for_something_cannot_be_had_for_nothing(reason: str) -> None:
    run = processing()
    with pytest.raises(ValueError, match=f"released, conflict, preempted, not '{reason}'"):
        transitions.release(run, grant_of(run), reason, "", 4.0)


# -- losing ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [assigned, claimed, processing])
def test_a_device_that_is_silent_loses_the_run_wherever_it_stands(make: object) -> None:
    run: Run = make()  # type: ignore[operator]
    run = lost(run.changed(progress=HALF_WAY), now=9.0)
    assert (run.status, run.losses, run.failures, run.avoid) == ("reassigning", 1, 0, ("kitchen",))
    assert run.previous[-1].reason == "timeout"
    assert run.progress == HALF_WAY


def test_losses_are_forgiven_so_often_and_then_it_fails() -> None:
    run = lost(processing(lost()))
    assert (run.status, run.losses, run.avoid) == ("reassigning", 2, ("kitchen",))
    run = lost(processing(run))
    assert (run.status, run.losses, run.failures) == ("failed", 3, 0)
    assert run.error == "lost 3 times, the last time because not heard of for 90 s"
    assert [assignment.reason for assignment in run.previous] == ["timeout"] * 3


def test_the_first_loss_is_made_good_at_once_and_later_ones_after_a_while() -> None:
    flow = Workflow("w", shell="true", losses=9, backoff=2.0, backoff_most=10.0)
    run, waits = new(flow=flow), []
    for _ in range(6):
        run = transitions.lose(processing(run, now=10.0), 10.0, "silence")
        waits.append(run.not_before - 10.0)
    assert waits == [0.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_what_nobody_owns_cannot_be_taken_away() -> None:
    with pytest.raises(RunRefused, match="it is reassigning: it cannot be taken away"):
        lost(lost())


# -- failing -----------------------------------------------------------------------------------------------------------


def failed(run: Run, now: float = 4.0, flow: Workflow = FLOW, **options: bool) -> Run:
    return transitions.fail(run.changed(work=flow.work), grant_of(run), "exit code 1", now, **options)


def test_failed_work_is_tried_again_elsewhere_after_a_while() -> None:
    run = failed(processing(new().changed(progress=HALF_WAY)), now=4.0)
    assert (run.status, run.failures, run.losses, run.avoid) == ("reassigning", 1, 0, ("kitchen",))
    assert (run.not_before, run.waiting_since, run.progress) == (5.0, 5.0, HALF_WAY)
    assert run.previous[-1] == Assignment("kitchen", 1, 3.0, 4.0, "failed", "exit code 1")


def test_the_wait_doubles_up_to_its_cap() -> None:
    flow = Workflow("w", shell="true", retries=9, backoff=1.5, backoff_most=5.0)
    run, waits = new(), []
    for _ in range(5):
        run = failed(processing(run, now=10.0), 10.0, flow)
        waits.append(run.not_before - 10.0)
    assert waits == [1.5, 3.0, 5.0, 5.0, 5.0]


def test_failures_are_forgiven_so_often_and_then_it_has_failed() -> None:
    run = failed(processing(failed(processing(failed(processing())))))
    assert (run.status, run.failures, run.error, run.cancelled) == ("failed", 3, "exit code 1", False)
    assert [assignment.reason for assignment in run.previous] == ["failed"] * 3
    assert str(run.story[-1]) == "4.000 failed: exit code 1"


def test_a_failure_that_no_retry_can_mend_is_the_end_at_once() -> None:
    run = failed(processing(), final=True)
    assert (run.status, run.failures, len(run.previous)) == ("failed", 1, 1)


def test_losses_and_failures_do_not_use_up_each_others_cap() -> None:
    run = lost(processing(failed(processing(lost(processing(failed(processing())))))))
    assert (run.status, run.failures, run.losses) == ("reassigning", 2, 2)
    assert [assignment.reason for assignment in run.previous] == ["failed", "timeout", "failed", "timeout"]


def test_a_run_that_backs_off_is_not_yet_waiting_for_a_device() -> None:
    """Or the longest backoff would look like so much time without a device."""
    flow = Workflow("w", shell="true", retries=20, backoff=300.0)
    assert failed(processing(), 4.0, flow).waiting_since == 304.0


# -- giving up, and series ---------------------------------------------------------------------------------------------


def test_what_no_device_can_take_is_given_up() -> None:
    run = transitions.give_up(new(), 300.0, "no device with gpu for 300 s")
    assert (run.status, run.error, run.waiting_since) == ("failed", "no device with gpu for 300 s", None)
    assert (run.previous, run.device, run.given_up) == ((), None, True)


def test_what_nobody_knows_the_end_of_says_so() -> None:
    run = transitions.mark_forgotten(processing(), 300.0, "its judge does not know it any more")
    assert (run.status, run.error, run.session) == ("failed", "its judge does not know it any more", None)
    assert run.story[-1].what == transitions.FORGOTTEN
    assert run.previous[-1].reason == "timeout"


def test_what_a_device_abroad_did_not_answer_is_no_loss() -> None:
    run = transitions.take_back(transitions.assign(new(), LAPTOP, by="hub", now=1.0), 300.0, "the peer was not met")
    assert (run.status, run.losses, run.failures, run.avoid) == ("reassigning", 0, 0, ("laptop",))
    assert (run.not_before, run.previous[-1].reason) == (300.0, "timeout")


def test_a_run_of_a_series_needs_its_turn() -> None:
    run = new(series="films")
    assert run.awaits_turn
    assert uses_of(run.uses) == {"series/films": 1}
    with pytest.raises(RunRefused, match="it waits for its limits: it cannot be assigned to"):
        claimed(run)
    after = transitions.take(transitions.admit(run), KITCHEN, 2.0)
    assert (after.status, after.awaits_turn, after.admitted) == ("claimed", False, False)


def test_three_devices_that_take_turns_leave_a_history_in_order() -> None:
    run = lost(processing(failed(processing(declined(new(), ATTIC, "busy")), 4.0), LAPTOP, 5.0), 6.0)
    assert [(assignment.device, assignment.epoch, assignment.reason) for assignment in run.previous] == [
        ("attic", 1, "declined"),
        ("kitchen", 2, "failed"),
        ("laptop", 3, "timeout"),
    ]
    assert run.avoid == ("attic", "kitchen", "laptop")
    assert run.declined == {"attic": "busy"}


def test_an_owner_that_cannot_go_on_breaks_off_and_that_is_a_loss() -> None:
    run = processing(new())
    again = transitions.abandon(run, grant_of(run), "the store was out of reach", 5.0)
    assert (again.status, again.losses, again.failures, again.avoid) == ("reassigning", 1, 0, (run.device,))
    with pytest.raises(Fenced):
        transitions.abandon(run, grant_of(run)._replace(epoch=99), "whatever", 5.0)


def test_to_take_and_start_in_one_step_is_to_take_and_then_to_start() -> None:
    at_once = transitions.take(new(), KITCHEN, 5.0, starts=True)
    taken = transitions.take(new(), KITCHEN, 5.0)
    one_by_one = transitions.start(taken, grant_of(taken), 5.0)
    assert at_once == one_by_one.changed(revision=at_once.revision)
    assert at_once.revision == new().revision + 1


# -- what is said ------------------------------------------------------------------------------------------------------


def test_however_much_is_said_of_a_failure_a_record_keeps_its_beginning_and_its_end() -> None:
    words = "ValueError: " + "x" * 10_000_000 + " the end"
    flow = Workflow("work", shell="true", retries=1)
    run = processing(new(flow=flow))
    run = transitions.fail(run, grant_of(run), words, 2.0)
    run = processing(run)
    run = transitions.fail(run, grant_of(run), words, 3.0)
    assert run.error is not None
    assert run.error.startswith("ValueError: xxx")
    assert run.error.endswith("xxx the end")
    assert "characters are left out" in run.error
    kept = [run.error, *(entry.why for entry in run.story), *(assignment.detail for assignment in run.previous)]
    assert max(map(len, kept)) < 11_000
    assert truncate(run.error) == run.error


def test_however_much_those_say_who_decline_a_record_stays_small() -> None:
    run = declined(declined(new(), KITCHEN, "y" * 1_000_000), LAPTOP, "z" * 1_000_000)
    assert max(map(len, run.declined.values())) <= 10_000
    assert max(len(entry.why) for entry in run.story) < 11_000


def test_an_end_may_name_the_files_that_were_made() -> None:
    working = processing()
    run = transitions.complete(working, grant_of(working), 42, 4.0, files="1a2b" * 16)
    assert run.files == "1a2b" * 16
    assert run.story[-1].why == "on kitchen; it has kept its files (1a2b1a2b1a2b)"
    assert completed().files is None
