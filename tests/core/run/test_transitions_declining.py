"""Devices that will not have a run: that costs nothing, and when all of them will not, they are asked again."""

from __future__ import annotations

import pytest

from asterism.core.errors import RunRefused
from asterism.core.run import transitions
from asterism.core.run.run import Assignment, Owner, Run
from asterism.core.run.work import Workflow
from tests.core.run.run_scenes import (
    FLOW,
    KITCHEN,
    LAPTOP,
    STRICT,
    assigned,
    claimed,
    grant_of,
    lost,
    new,
    strict,
)


def declined(run: Run, by: Owner, why: str, now: float = 1.0) -> Run:
    asked = assigned(run, by, now)
    return transitions.decline(asked, grant_of(asked), why, now)


def test_declining_costs_nothing_and_is_remembered_for_this_round() -> None:
    run = declined(new(), KITCHEN, "on battery", now=1.0)
    assert (run.status, run.failures, run.losses, run.rounds, run.not_before) == ("reassigning", 0, 0, 0, 1.0)
    assert (run.avoid, run.declined) == (("kitchen",), {"kitchen": "on battery"})
    assert run.previous == (Assignment("kitchen", 1, 1.0, 1.0, "declined", "on battery"),)
    assert str(run.story[-1]) == "1.000 reassigning: declined: on battery"


def test_a_device_that_was_only_full_may_be_asked_again() -> None:
    asked = assigned()
    run = transitions.decline(asked, grant_of(asked), "it is full", 1.0, for_now=True)
    assert (run.avoid, run.declined) == ((), {})
    assert run.previous[-1].reason == "declined"


def test_a_device_may_decline_when_it_has_claimed_a_run_and_seen_its_input() -> None:
    run = claimed()
    declined = transitions.decline(run, grant_of(run), "the policy forbids it", 3.0)
    assert (declined.status, declined.avoid, declined.failures) == ("reassigning", (run.device,), 0)
    assert declined.declined == {run.device: "the policy forbids it"}


def test_what_is_offered_again_without_a_delay_is_so_at_once() -> None:
    run = declined(declined(new(), KITCHEN, "on battery", 0.0), LAPTOP, "busy", 0.0)
    again = transitions.offer_again(run, 100.0)  # long after the last try
    assert again.story[-1].why.startswith("at once, every device was tried")


def test_when_all_declined_they_are_asked_again_after_a_while_and_then_it_fails_with_every_reason() -> None:
    run, now = new(), 0.0
    for delay in (1.0, 2.0):
        run = declined(declined(run, KITCHEN, "on battery", now), LAPTOP, "busy", now)
        run = transitions.offer_again(run, now)
        assert (run.status, run.avoid, run.declined, run.not_before) == ("reassigning", (), {}, now + delay)
        assert run.story[-1].what == "offered again"
        now += delay
    run = declined(declined(run, KITCHEN, "still on battery", now), LAPTOP, "busy", now)
    run = transitions.offer_again(run, now)
    assert (run.status, run.rounds, run.failures, run.cancelled) == ("failed", 3, 0, False)
    assert run.error == (
        "all devices declined, in 3 rounds. kitchen (declined): still on battery; laptop (declined): busy"
    )


def test_while_another_device_rests_no_round_is_counted_and_those_that_declined_are_not_asked_again() -> None:
    run = declined(new(flow=STRICT), KITCHEN, "not at night")
    assert transitions.offer_again(run, 2.0, resting=True) is run
    both = strict(declined(lost(now=4.0), LAPTOP, "busy", 5.0))
    after = transitions.offer_again(both, 6.0, resting=True)
    assert (after.rounds, after.avoid, after.declined) == (0, ("laptop",), {"laptop": "busy"})
    assert after.story[-1].why == "at once, every device was tried: kitchen (timeout): not heard of for 90 s"
    assert transitions.offer_again(after, 7.0).status == "failed", "it counts once that one was asked, too"


def test_a_device_may_refuse_before_it_is_given_a_run() -> None:
    run = transitions.refuse(new(), "kitchen", "the policy forbids it", 1.0)
    assert (run.status, run.epoch, run.previous, run.device) == ("created", 0, (), None)
    assert (run.avoid, run.declined) == (("kitchen",), {"kitchen": "the policy forbids it"})
    assert str(run.story[-1]) == "1.000 declined: by kitchen: the policy forbids it"
    assert transitions.refuse(run, "kitchen", "again", 2.0) is run
    again = transitions.offer_again(run, 1.5)
    assert (again.rounds, again.avoid, again.not_before) == (1, (), 2.0)
    assert again.story[-1].why == "in 0.5 s, every device was tried: kitchen (declined): the policy forbids it"
    failed = transitions.offer_again(strict(transitions.refuse(again, "kitchen", "no", 3.0)), 3.0)
    assert failed.error == "all devices declined, in 2 rounds. kitchen (declined): no"
    with pytest.raises(RunRefused, match="it cannot be refused"):
        transitions.refuse(assigned(), "laptop", "no", 2.0)


def test_a_round_names_those_too_that_failed_or_were_lost() -> None:
    run = declined(lost(now=4.0), LAPTOP, "busy", 5.0)
    run = transitions.offer_again(run, 6.0)
    said = "at once, every device was tried: kitchen (timeout): not heard of for 90 s; laptop (declined): busy"
    assert run.story[-1].why == said


def test_a_round_in_which_nobody_declined_is_not_counted() -> None:
    run = transitions.offer_again(strict(lost()), 5.0)
    assert (run.status, run.rounds, run.avoid) == ("reassigning", 0, ())


def test_devices_that_refuse_by_their_own_rules_have_declined() -> None:
    asked = transitions.create("r1", FLOW, {}, by="ann", now=0.0)
    no = {"kitchen": "its own rule: no", "laptop": "its own rule: never"}
    run = transitions.offer_again(asked, 5.0, refusals=no)
    assert (run.status, run.rounds, run.avoid, run.declined) == ("created", 1, (), {})
    assert (run.revision, run.not_before) == (asked.revision + 1, 6.0)
    told = [(entry.what, entry.why) for entry in run.story[1:3]]
    assert told == [("declined", f"by {device}: {why}") for device, why in no.items()]
    ended = transitions.offer_again(strict(asked), 5.0, refusals=no)
    said = "kitchen (declined): its own rule: no; laptop (declined): its own rule: never"
    assert (ended.status, ended.error) == ("failed", f"all devices declined, in 1 round. {said}")
    assert ended.revision == asked.revision + 1


def test_a_loss_that_is_not_counted_leaves_run_and_device_as_they_were() -> None:
    run = strict(assigned())
    for _ in range(STRICT.losses + 3):
        run = transitions.lose(run, 5.0, "its plan was left", counted=False)
        assert (run.status, run.losses, run.avoid, run.not_before) == ("reassigning", 0, (), 5.0)
        run = transitions.assign(run, KITCHEN, by="ann", now=5.0)


def test_a_round_waits_as_long_as_the_worst_that_happened_calls_for() -> None:
    flow = Workflow("w", shell="true", retries=9, losses=9, rounds=9)
    run = lost(now=10.0).changed(work=flow.work, failures=4, losses=2, rounds=1)
    assert transitions.offer_again(run, 10.0).not_before == 10.0 + 8.0
    assert transitions.offer_again(run, 15.0).not_before == 10.0 + 8.0, "a late step does not extend the wait"
    assert transitions.offer_again(run, 30.0).not_before == 30.0


def test_there_is_no_next_round_while_nobody_is_avoided() -> None:
    asked = assigned()
    run = transitions.decline(asked, grant_of(asked), "it is full", 1.0, for_now=True)
    with pytest.raises(RunRefused, match="it cannot be offered again: no device is avoided"):
        transitions.offer_again(run, 2.0)
