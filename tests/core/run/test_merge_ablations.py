"""Each part of the order of records, left out in turn, and histories united in another way: something must break, and
say what."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import permutations
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from asterism.core.run import merge as resolving
from asterism.core.run.run import Run
from tests.core.run import test_merge as rules
from tests.core.run.merge_scenes import Peers, check_healed, check_lag, check_laws, histories, spread

Patch = pytest.MonkeyPatch
Hunt = Callable[[], None]

HUNT = settings(
    max_examples=500,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],  # to find the failure is enough
    suppress_health_check=list(HealthCheck),
)


@HUNT
@given(histories())
def the_laws(peers: Peers) -> None:
    check_laws(spread([*peers.seen, *peers.records], 6))


@HUNT
@given(histories())
def the_steps(peers: Peers) -> None:
    for before, after in peers.lines:
        check_lag(before, after)


@HUNT
@given(histories())
def the_meeting(peers: Peers) -> None:
    check_healed(peers, list(permutations(range(len(peers.records)), 2)))


def without(*names: str) -> Callable[[Patch], None]:
    """The order without these rules."""
    rank = resolving._rank

    def switch_off(patch: Patch) -> None:
        patch.setattr(resolving, "_rank", lambda run: tuple(rule for rule in rank(run) if rule[0] not in names))

    return switch_off


def whichever_comes_first(patch: Patch) -> None:
    patch.setattr(resolving, "_text_form", lambda run: "")


def by_revision(patch: Patch) -> None:
    """In place of the number of steps, as if all peers counted alike."""
    within = resolving._within_assignment
    patch.setattr(resolving, "_within_assignment", lambda run: (("revision", run.revision), *within(run)))


def by_the_length_of_the_whole_story(patch: Patch) -> None:
    patch.setattr(resolving, "own_story", lambda run: run.story)


def by_all_that_ever_ended(patch: Patch) -> None:
    patch.setattr(resolving, "own_assignments", lambda run: run.previous)


def unite_as_lists(patch: Patch) -> None:
    patch.setattr(resolving, "_side_entries", lambda known, line, place: tuple(known))


def unite_in_the_order_of_hearing(patch: Patch) -> None:
    def beside(known: Iterable[Any], line: Iterable[Any], place: Callable[[Any], Any]) -> tuple[Any, ...]:
        items = {place(item): item for item in known}
        return tuple(items[key] for key in items if key not in [place(item) for item in line])

    patch.setattr(resolving, "_side_entries", beside)


def forget_what_was_beside(patch: Patch) -> None:
    patch.setattr(resolving, "_side_entries", lambda known, line, place: ())


def forget_results(patch: Patch) -> None:
    patch.setattr(resolving, "_all_results", lambda run: ())


def keep_the_result_beside_itself(patch: Patch) -> None:
    result = resolving.own_result
    patch.setattr(resolving, "_all_results", lambda run: (*run.superseded, *result(run)))
    patch.setattr(resolving, "own_result", lambda run: ())


def write_what_is_not_new(patch: Patch) -> None:
    def next_revision(mine: Run, resolved: Run) -> Run:
        return resolved.changed(revision=max(mine.revision + 1, resolved.revision))

    patch.setattr("tests.core.run.merge_scenes.next_revision", next_revision)


def write_the_revision_of_the_winner(patch: Patch) -> None:
    def next_revision(mine: Run, resolved: Run) -> Run | None:
        return None if resolved.changed(revision=mine.revision) == mine else resolved

    patch.setattr("tests.core.run.merge_scenes.next_revision", next_revision)


def tell_nobody(patch: Patch) -> None:
    patch.setattr("tests.core.run.merge_scenes.loss_reason", lambda mine, resolved: None)


LAW = "it matters|with itself"
LAG = "lags behind undid"
WRONG = "the wrong one won"


@pytest.mark.long
@pytest.mark.parametrize(
    ("switch_off", "hunt", "complaint"),
    [
        pytest.param(without("completed"), rules.completed_comes_first, WRONG, id="completed"),
        pytest.param(without("epoch"), the_steps, LAG, id="epoch"),
        pytest.param(without("terminal"), the_steps, LAG, id="terminal"),
        pytest.param(without("known"), rules.then_an_end_that_somebody_knows, "the wrong end was kept", id="known"),
        pytest.param(without("free"), the_steps, LAG, id="free"),
        pytest.param(without("origin"), the_steps, LAG, id="origin"),
        pytest.param(without("steps"), the_steps, LAG, id="steps"),
        pytest.param(without("earlier"), rules.then_the_earlier_assignment, WRONG, id="earlier"),
        pytest.param(without("device"), rules.then_the_greater_name, WRONG, id="device"),
        pytest.param(without("session"), rules.then_the_greater_session, WRONG, id="session"),
        pytest.param(without("stage"), rules.then_how_far_the_owner_has_come, "work under way was undone", id="stage"),
        pytest.param(without("reported"), rules.then_what_was_reported, "a report was lost", id="reported"),
        pytest.param(without("origin", "free"), rules.the_original_is_kept, WRONG, id="origin, by example"),
        (whichever_comes_first, the_laws, "who of two comes first"),
        (by_revision, rules.lines_that_cross, LAW),
        (by_the_length_of_the_whole_story, rules.lines_that_cross, LAW),
        (by_all_that_ever_ended, rules.lines_that_cross, LAW),
        (unite_as_lists, the_laws, LAW),
        (unite_in_the_order_of_hearing, rules.lines_that_cross, LAW),
        (forget_what_was_beside, the_meeting, "was lost"),
        (forget_results, the_meeting, "a result was lost"),
        (keep_the_result_beside_itself, the_meeting, "a result is there twice"),
        (write_what_is_not_new, the_meeting, "answer each other for ever"),
        (write_the_revision_of_the_winner, the_meeting, "a store cannot write that"),
        (tell_nobody, the_meeting, "a loser was not told"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_something_breaks_when_a_part_is_missing(
    switch_off: Callable[[Patch], None], hunt: Hunt, complaint: str, monkeypatch: Patch
) -> None:
    switch_off(monkeypatch)
    with pytest.raises(AssertionError, match=complaint):
        hunt()
