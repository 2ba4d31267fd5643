"""Each safeguard of a run, switched off: the machine of random stories must notice, and say what went wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from asterism.core.errors import Fenced
from asterism.core.record import replace
from asterism.core.run import run as run_module
from asterism.core.run import transitions
from asterism.core.run.run import COMPLETED, FAILED, TRANSITIONS, UNOWNED, Grant, Run
from asterism.core.run.work import Workflow
from tests.core.run.run_machine import RunMachine
from tests.core.run.run_scenes import check, grant_of, new, processing

Patch = pytest.MonkeyPatch

HUNT = settings(
    max_examples=4000,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],  # to find the failure is enough
    suppress_health_check=list(HealthCheck),
)


def hunt() -> None:
    run_state_machine_as_test(RunMachine, settings=HUNT)


def patch_steps(patch: Patch, name: str, function: Callable[..., Any]) -> None:
    """In the module that has the function, and in the one that imports it."""
    modules = [module for module in (transitions, run_module) if hasattr(module, name)]
    assert modules, f"there is no function {name} to take out"
    for module in modules:
        patch.setattr(module, name, function)


def off(patch: Patch, name: str) -> None:
    patch_steps(patch, name, lambda *arguments: None)


def fence_with(patch: Patch, right: Callable[[Run, Grant], bool]) -> None:
    def fence(run: Run, grant: Grant, event: str) -> None:
        if run.session is None or not right(run, grant):
            raise Fenced(run.id, f"it cannot {event}", run.story)

    patch.setattr(transitions, "_fence", fence)


def then(patch: Patch, name: str, spoil: Callable[[Run, Run], dict[str, Any]]) -> None:
    """Let a step happen, and spoil some fields of what it made: ``spoil`` gets the records before and after."""
    step = getattr(transitions, name)

    def spoiled(run: Run, *arguments: Any, **options: Any) -> Run:
        after = step(run, *arguments, **options)
        return after if after is run else after.changed(**spoil(run, after))

    patch_steps(patch, name, spoiled)


# -- whose word counts -------------------------------------------------------------------------------------------------


def believe_everybody(patch: Patch) -> None:
    off(patch, "_fence")


def believe_any_epoch(patch: Patch) -> None:
    fence_with(patch, lambda run, grant: (run.id, run.session) == (grant.run, grant.session))


def believe_any_session(patch: Patch) -> None:
    fence_with(patch, lambda run, grant: (run.id, run.epoch) == (grant.run, grant.epoch))


def believe_a_grant_for_another_run(patch: Patch) -> None:
    fence_with(patch, lambda run, grant: (run.session, run.epoch) == (grant.session, grant.epoch))


def keep_the_epoch(patch: Patch) -> None:
    then(patch, "grant_to", lambda before, after: {"epoch": before.epoch})


def leave_the_owner_in_place(patch: Patch) -> None:
    then(patch, "reassign", lambda before, after: {"session": before.session})


# -- who may have it ---------------------------------------------------------------------------------------------------


def give_away_what_is_paused(patch: Patch) -> None:
    patch.setattr(Run, "offered", property(lambda run: run.status in UNOWNED))


def give_away_what_is_owned(patch: Patch) -> None:
    patch.setattr(Run, "offered", property(lambda run: run.paused is None))


def ask_nothing_before_giving_away(patch: Patch) -> None:
    off(patch, "require_offered")


def forget_whom_it_is_for(patch: Patch) -> None:
    grant = transitions.grant_to

    def anywhere(run: Run, *arguments: Any, **changes: Any) -> Run:
        return grant(run.changed(pinned=None), *arguments, **changes).changed(pinned=run.pinned)

    patch_steps(patch, "grant_to", anywhere)


# -- an end is an end --------------------------------------------------------------------------------------------------


def let_ends_be_left(patch: Patch) -> None:
    patch.setitem(TRANSITIONS["fail"], COMPLETED, FAILED)
    patch.setitem(TRANSITIONS["fail"], FAILED, FAILED)
    patch.setattr(Run, "ended", property(lambda run: False))


def let_ends_be_paused(patch: Patch) -> None:
    patch.setattr(Run, "ended", property(lambda run: False))


def keep_the_owner_of_what_is_completed(patch: Patch) -> None:
    then(patch, "complete", lambda before, after: {"session": before.session})


# -- how often ---------------------------------------------------------------------------------------------------------


def without_cap(patch: Patch, name: str, cap: str) -> None:
    step = getattr(transitions, name)

    def forgiving(run: Run, *arguments: Any, **options: Any) -> Run:
        boundless = run.changed(work=replace(run.work, **{cap: 1000}))
        after: Run = step(boundless, *arguments, **options)
        return run if after is boundless else after.changed(work=run.work)

    patch.setattr(transitions, name, forgiving)


def forgive_every_failure(patch: Patch) -> None:
    without_cap(patch, "fail", "retries")


def forgive_every_loss(patch: Patch) -> None:
    without_cap(patch, "lose", "losses")


def ask_for_ever(patch: Patch) -> None:
    without_cap(patch, "offer_again", "rounds")


def count_a_loss_as_a_failure(patch: Patch) -> None:
    then(patch, "lose", lambda before, after: {"failures": after.failures + 1, "losses": before.losses})


def punish_declining(patch: Patch) -> None:
    then(patch, "decline", lambda before, after: {"failures": after.failures + 1})


# -- what is kept ------------------------------------------------------------------------------------------------------


def forget_the_progress(patch: Patch) -> None:
    then(patch, "reassign", lambda before, after: {"progress": None})


def forget_the_assignment(patch: Patch) -> None:
    then(patch, "reassign", lambda before, after: {"previous": before.previous})


def forget_the_wish_to_pause(patch: Patch) -> None:
    then(patch, "reassign", lambda before, after: {"paused": None})


def forget_the_wish_to_cancel(patch: Patch) -> None:
    then(patch, "start", lambda before, after: {"stop_request": None, "stop_requested_by": None})


def forget_the_lease(patch: Patch) -> None:
    then(patch, "claim", lambda before, after: {"due_at": None})


def keep_the_lease_of_work_under_way(patch: Patch) -> None:
    then(patch, "start", lambda before, after: {"due_at": before.due_at})


def wait_while_it_backs_off(patch: Patch) -> None:
    then(patch, "lose", lambda before, after: {"waiting_since": 0.0})


def keep_the_revision(patch: Patch) -> None:
    then(patch, "request_stop", lambda before, after: {"revision": before.revision})


def tell_nothing(patch: Patch) -> None:
    then(patch, "pause", lambda before, after: {"story": before.story})


def rewrite_the_story(patch: Patch) -> None:
    then(patch, "claim", lambda before, after: {"story": after.story[1:]})


STRANGER = "allowed, and wrong|refused for another reason"
GIVEN = "allowed, and wrong|offered is not what it says|given away and was not on offer"
ENDED = "allowed, and wrong|an end has changed|an end that is none"
PAUSED = "a pause was forgotten|refused, and legal"


@pytest.mark.parametrize(
    ("switch_off", "complaint"),
    [
        (believe_everybody, STRANGER),
        pytest.param(believe_any_epoch, STRANGER, marks=pytest.mark.long),
        pytest.param(believe_any_session, STRANGER, marks=pytest.mark.long),  # as long as all the others
        pytest.param(believe_a_grant_for_another_run, STRANGER, marks=pytest.mark.long),
        (keep_the_epoch, "an epoch counts grants"),
        (leave_the_owner_in_place, "ended and is not told|owned without an owner"),
        pytest.param(give_away_what_is_paused, GIVEN, marks=pytest.mark.long),
        (give_away_what_is_owned, GIVEN),
        (ask_nothing_before_giving_away, f"{GIVEN}|RunStatus"),  # the table itself may be what stops it
        (forget_whom_it_is_for, "allowed, and wrong|it is not for"),
        (let_ends_be_left, ENDED),
        (let_ends_be_paused, ENDED),
        pytest.param(keep_the_owner_of_what_is_completed, "owned without an owner", marks=pytest.mark.long),
        (forgive_every_loss, "more losses than there may be|allowed, and wrong"),
        (ask_for_ever, "more rounds than there may be|allowed, and wrong"),
        (count_a_loss_as_a_failure, "wrongly counted|more failures|allowed, and wrong"),
        (punish_declining, "wrongly counted|more failures"),
        pytest.param(forget_the_progress, "progress was lost", marks=pytest.mark.long),
        (forget_the_assignment, "ended and is not told"),
        pytest.param(forget_the_wish_to_pause, PAUSED, marks=pytest.mark.long),
        pytest.param(forget_the_wish_to_cancel, f"a cancelled run goes on|{PAUSED}", marks=pytest.mark.long),
        pytest.param(forget_the_lease, "due_at belongs to a lease", marks=pytest.mark.long),
        pytest.param(keep_the_lease_of_work_under_way, "due_at belongs to a lease", marks=pytest.mark.long),
        (wait_while_it_backs_off, "the wait begins when the backoff ends|only what nobody owns waits"),
        pytest.param(keep_the_revision, "a change without a new revision", marks=pytest.mark.long),
        (tell_nothing, "a change that is not told"),
        pytest.param(rewrite_the_story, "the story was rewritten", marks=pytest.mark.long),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_hunt_notices_when_a_safeguard_is_off(
    switch_off: Callable[[Patch], None], complaint: str, monkeypatch: Patch
) -> None:
    switch_off(monkeypatch)
    with pytest.raises((AssertionError, KeyError), match=complaint):
        hunt()


def test_every_failure_is_forgiven_when_the_cap_is_off(monkeypatch: Patch) -> None:
    """The hunt finds it too, but only after many thousand steps."""
    flow = Workflow("work", shell="true", retries=0)
    run = processing(new(flow=flow))
    assert transitions.fail(run, grant_of(run), "x", 4.0).status is FAILED
    forgive_every_failure(monkeypatch)
    allowed = transitions.fail(run, grant_of(run), "x", 4.0)
    assert allowed.status is not FAILED
    with pytest.raises(AssertionError, match="more failures than there may be"):
        check(allowed)
