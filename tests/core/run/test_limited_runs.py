"""Runs that use limits: nothing grants them but a step that their limits have admitted, and only that one."""

from __future__ import annotations

import pytest

from asterism.core.errors import RunRefused
from asterism.core.run import transitions
from asterism.core.run.run import Run
from tests.core.run.run_scenes import (
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

USES = '{"warehouse":1}'


def admitted() -> Run:
    return transitions.admit(new(uses=USES))


def test_a_run_that_uses_limits_is_granted_after_their_admission_only() -> None:
    for grant in (assigned, claimed):
        with pytest.raises(RunRefused, match="it waits for its limits: it cannot be assigned to kitchen"):
            grant(new(uses=USES))
        assert grant(admitted()).device == "kitchen"


def test_an_admission_counts_once() -> None:
    again = lost(processing(admitted()))
    assert not again.admitted
    assert again.offered
    with pytest.raises(RunRefused, match="it waits for its limits"):
        claimed(again, now=5.0)
    assert claimed(transitions.admit(again), now=5.0).epoch == 2


def test_what_is_not_offered_is_not_admitted() -> None:
    with pytest.raises(RunRefused, match="it is paused"):
        transitions.admit(transitions.pause(new(uses=USES), 1.0, "ann"))
    with pytest.raises(RunRefused, match="it is completed, which is final"):
        transitions.admit(completed(processing(admitted())))


def test_a_run_is_moved_with_what_it_holds_and_not_while_it_waits() -> None:
    moved = transitions.move(assigned(admitted()), LAPTOP, by="ann", now=2.0)
    assert (moved.device, moved.admitted, moved.epoch) == ("laptop", False, 2)
    with pytest.raises(RunRefused, match="it waits for its limits: it cannot be moved"):
        transitions.move(new(uses=USES), LAPTOP, by="ann", now=2.0)
    assert transitions.move(assigned(), LAPTOP, by="ann", now=2.0).device == "laptop"


def test_a_run_that_waits_for_limits_is_refused_given_up_and_offered_again_like_others() -> None:
    refused = transitions.refuse(new(uses=USES), "kitchen", "no", 1.0)
    assert refused.avoid == ("kitchen",)
    assert transitions.offer_again(refused, 2.0).avoid == ()
    assert transitions.give_up(new(uses=USES), 2.0, "no device could take it").given_up


def test_a_backoff_ends_early_if_the_clock_was_set_back() -> None:
    waits = transitions.release(processing(admitted()), grant_of(processing(admitted())), "released", "", 4.0)
    later = waits.changed(not_before=1e9, waiting_since=1e9)
    after = transitions.end_backoff(later, 5.0, "the clock of the store was set back")
    assert (after.not_before, after.waiting_since, after.revision) == (5.0, 5.0, later.revision + 1)
    assert after.story[-1].why == "the clock of the store was set back"
    with pytest.raises(RunRefused):
        transitions.end_backoff(claimed(to=KITCHEN), 5.0, "no")
