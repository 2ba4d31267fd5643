"""Peers without a common store: whatever happens while they are apart, and in whatever order they meet, they end with
one record, nothing that was done is lost, and every loser learns why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import combinations, permutations, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asterism.core.errors import RunRefused
from asterism.core.run import merge, transitions
from asterism.core.run.merge import FIXED, NotTheSameRun, loss_reason, next_revision, was_taken_away
from asterism.core.run.run import Owner, Progress, Run, Superseded
from asterism.core.run.work import KEEP_RULES
from asterism.store import row_codec
from tests.core.run.merge_scenes import (
    ATTIC,
    DAY,
    EVENTS,
    Peers,
    check_healed,
    check_lag,
    check_laws,
    check_nothing_lost,
    check_owners,
    check_works_on,
    histories,
    resolve,
    spread,
)
from tests.core.run.run_scenes import KITCHEN, LAPTOP, SITUATIONS, claimed, completed, grant_of, lost, new


@settings(max_examples=100, deadline=None)
@given(histories())
def test_the_three_laws_hold_for_whatever_was_ever_in_a_store(peers: Peers) -> None:
    check_laws(spread([*peers.seen, *peers.records], 6))


@settings(max_examples=100, deadline=None)
@given(histories())
def test_a_copy_that_lags_behind_undoes_nothing(peers: Peers) -> None:
    for before, after in peers.lines:
        check_lag(before, after)


@settings(max_examples=100, deadline=None)
@given(histories(), st.randoms(use_true_random=False))
def test_when_all_have_met_there_is_one_record_and_every_loser_is_told(peers: Peers, chance: Any) -> None:
    pairs = list(permutations(range(len(peers.records)), 2))
    chance.shuffle(pairs)
    check_healed(peers, pairs)
    check_works_on(peers.records[0])


@pytest.mark.parametrize("keep", KEEP_RULES)
@pytest.mark.parametrize(
    "begin", [pytest.param(new, id="free"), pytest.param(claimed, id="owned", marks=pytest.mark.long)]
)
def test_three_stores_with_up_to_two_steps_each_end_in_one_record_whoever_meets_first(
    begin: Callable[[Run], Run], keep: str
) -> None:
    """Not at random: every three of the lines that two steps make."""
    begun = new(keep=keep) if begin is new else claimed(new(keep=keep))
    words = ["take, start", "start", "complete", "fail", "release", "lose", "pause"]
    made = [line(begun, pair, who) for who, pair in enumerate(product(words, repeat=2))]
    lines = [begun, *{repr(run): run for run in made if run is not begun}.values()]
    both = {(a, b): resolve(lines[a], lines[b]) for a, b in product(range(len(lines)), repeat=2)}
    for a, b in both:
        assert both[a, b] == both[b, a]
        check_owners([lines[a], lines[b]], both[a, b])
    for a, b, c in combinations(range(len(lines)), 3):
        final = resolve(both[a, b], lines[c])
        assert final == resolve(both[b, c], lines[a]) == resolve(both[a, c], lines[b])
        check_nothing_lost([lines[a], lines[b], lines[c]], final)


def line(run: Run, words: Sequence[str], who: int) -> Run:
    """By one device, with a clock that may be a day ahead. What is refused does not happen."""
    for offset, word in enumerate(words):
        with suppress(RunRefused):
            run = EVENTS[word](run, 10.0 + offset + DAY * (who % 2), who % 3)
    return run


# -- each rule, by example ---------------------------------------------------------------------------------------------


def taken(run: Run, owner: Owner, now: float) -> Run:
    return transitions.take(run, owner, now, starts=True)


def ended(run: Run, now: float, output: Any = 42) -> Run:
    return transitions.complete(run, grant_of(run), output, now)


def retried(run: Run, now: float, by: Owner = LAPTOP) -> Run:
    return taken(transitions.lose(run, now, "silence"), by, now)


def check_won(winner: Run, loser: Run, *words: str) -> Run:
    """It wins from both sides, and the loser gets this reason."""
    merged = resolve(winner, loser)
    assert merged == resolve(loser, winner)
    won = (merged.status, merged.grant, merged.device) == (winner.status, winner.grant, winner.device)
    assert won, "the wrong one won"
    assert loss_reason(winner, merged) is None
    why = loss_reason(loser, merged)
    assert why is not None
    assert not [word for word in words if word not in why], f"told wrongly: {why}"
    return merged


def completed_comes_first() -> None:
    for keep in KEEP_RULES:
        apart = new(keep=keep)
        done = ended(taken(apart, KITCHEN, 5.0), 6.0)
        check_won(done, retried(taken(apart, LAPTOP, 1.0), 2.0, ATTIC), "kitchen completed it in epoch 1")


def then_the_later_epoch() -> None:
    begun = taken(new(), KITCHEN, 1.0)
    merged = check_won(
        retried(begun, 100.0), begun, "kitchen no longer owns", "later assignment", "epoch 2, laptop has it"
    )
    assert merged == retried(begun, 100.0)


def then_an_end() -> None:
    failed = transitions.fail(taken(new(), LAPTOP, 9.0), grant_of(taken(new(), LAPTOP, 9.0)), "no", 9.5, final=True)
    check_won(failed, taken(new(), KITCHEN, 1.0), "an end outranks", "it failed (no)")


def then_an_end_that_somebody_knows() -> None:
    """A record without the end ranks lower, however many steps it has."""
    for keep in KEEP_RULES:
        begun = taken(new(keep=keep), KITCHEN, 1.0)
        closed = transitions.mark_forgotten(begun, 90.0, "nobody knows")
        ends = (
            transitions.fail(begun, grant_of(begun), "disk is full", 2.0, final=True),
            transitions.fail(transitions.cancel(begun, 2.0, "ann"), grant_of(begun), "stopped", 3.0),
            transitions.give_up(transitions.release(begun, grant_of(begun), "released", "", 2.0), 3.0, "no device"),
        )
        for end in ends:
            merged = resolve(end, closed)
            assert merged == resolve(closed, end)
            assert (merged.error, merged.cancelled) == (end.error, end.cancelled), "the wrong end was kept"
        assert resolve(begun, closed).error == "nobody knows"
        check_laws([begun, closed, *ends])


def then_what_nobody_owns() -> None:
    begun = taken(new(), KITCHEN, 1.0)
    freed = transitions.release(begun, grant_of(begun), "released", "low battery", 2.0)
    check_won(freed, begun, "an ended assignment", "it waits for a device")


def then_the_earlier_assignment() -> None:
    for keep in KEEP_RULES:
        apart = new(keep=keep)
        early, late = taken(apart, KITCHEN, 1.0), taken(apart, LAPTOP, 3.5)
        check_won(early, late, "laptop no longer owns", "it was assigned to kitchen 2.5 s earlier", "kitchen has it")
        check_won(early, taken(apart, LAPTOP, 1.0 + DAY), "8.64e+04 s earlier")


def then_the_greater_name() -> None:
    for keep in KEEP_RULES:
        apart = new(keep=keep)
        a, b = taken(apart, Owner("a", "2"), 1.0), taken(apart, Owner("b", "1"), 1.0)
        check_won(b, a, "it was assigned to b at the same moment", "greater name")


def then_the_greater_session() -> None:
    for keep in KEEP_RULES:
        apart = new(keep=keep)
        other = transitions.pause(taken(apart, Owner("a", "1"), 1.0), 2.0, "ann")
        check_won(taken(apart, Owner("a", "2"), 1.0), other, "another session")


def then_how_far_the_owner_has_come() -> None:
    """Or else its result would be refused: what is only claimed cannot be completed."""
    for keep in KEEP_RULES:
        begun = claimed(new(keep=keep))
        works = transitions.start(begun, grant_of(begun), 3.0)
        wished = transitions.resume(transitions.pause(begun, 3.0, "ann"), 4.0, "ann")
        assert resolve(works, wished) == resolve(wished, works)
        assert resolve(works, wished).status == "processing", "work under way was undone"
        assert loss_reason(wished, resolve(works, wished)) is None


def then_the_number_of_steps() -> None:
    for keep in KEEP_RULES:
        paused = transitions.pause(new(keep=keep), 3.0, "ann")
        assert resolve(paused, transitions.resume(paused, 4.0, "ann")).paused is None
        again = transitions.pause(transitions.resume(paused, 4.0, "ann"), 5.0, "ann")
        assert resolve(transitions.resume(paused, 4.0, "ann"), again) == again


def then_what_was_reported() -> None:
    for keep in KEEP_RULES:
        begun = taken(new(keep=keep), KITCHEN, 1.0)
        reports = [begun, begun.changed(progress=Progress(9)), begun.changed(progress=Progress(10))]
        for first, second, third in permutations(reports):
            assert resolve(resolve(first, second), third).progress == Progress(10), "a report was lost"


def the_original_is_kept() -> None:
    """Where two lines part the earlier one wins, also against later epochs; but not against its own replacement."""
    apart = new(keep="original")
    first = taken(apart, KITCHEN, 1.0)
    other = retried(taken(apart, ATTIC, 2.0), 3.0)
    check_won(first, other, "laptop no longer owns", "it was assigned to kitchen 1 s earlier", "kitchen has it")
    check_won(retried(first, 90.0), first, "assigned again", "epoch 2, laptop has it")
    check_won(transitions.lose(first, 90.0, "silence"), first, "an ended assignment")
    check_won(transitions.lose(first, 90.0, "silence"), other, "1 s earlier", "it waits for a device")
    assert resolve(new(keep="epoch"), new(keep="epoch")).keep == "epoch"


def the_original_is_kept_against_a_takeover_by_its_own_word() -> None:
    """An owner that was taken for lost and is at work says so, and then its replacement loses."""
    first = taken(new(keep="original"), KITCHEN, 1.0)
    replacement = taken(transitions.lose(first, 90.0, "silence"), LAPTOP, 95.0)
    assert was_taken_away(first, replacement)
    assert not was_taken_away(replacement, first)
    assert not was_taken_away(first, first)
    assert not was_taken_away(new(keep="original"), replacement), "it had no owner"
    kept = transitions.confirm_ownership(first, grant_of(first), "it is at work", 96.0)
    check_won(kept, replacement, "kitchen had it first and was only unreachable, not lost", "the original owner")


def lines_that_cross() -> None:
    """What is beside a line has no part in its rank, or else it would matter whom it met before."""
    begun, busy = taken(new(), KITCHEN, 1.0), taken(new(), LAPTOP, 2.0).changed(revision=9)
    check_laws([begun, transitions.pause(begun, 3.0, "ann"), busy])
    apart = new(keep="original")
    first, second = taken(apart, KITCHEN, 1.0), taken(apart, ATTIC, 2.0)
    check_laws([retried(first, 20.0), retried(second, 10.0), retried(first, 50.0, ATTIC)])


RULES = (
    completed_comes_first,
    then_the_later_epoch,
    then_an_end,
    then_an_end_that_somebody_knows,
    then_what_nobody_owns,
    then_the_earlier_assignment,
    then_the_greater_name,
    then_the_greater_session,
    then_how_far_the_owner_has_come,
    then_the_number_of_steps,
    then_what_was_reported,
    the_original_is_kept,
    the_original_is_kept_against_a_takeover_by_its_own_word,
    lines_that_cross,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_order_has_this_rule(rule: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """By example; and the example shows it: it fails if the first of two records wins."""
    rule()
    monkeypatch.setattr(merge, "_winner", lambda a, b: a)
    with pytest.raises(AssertionError):
        rule()


ASSIGNMENT = ["session", "stage", "steps", "reported"]
ORDERS = {
    "epoch": ["completed", "epoch", "terminal", "known", "free", "earlier", "device", *ASSIGNMENT],
    "original": ["completed", "origin", "free", "terminal", "known", *ASSIGNMENT],
}


@pytest.mark.parametrize("keep", KEEP_RULES)
def test_the_rules_come_in_this_order(keep: str) -> None:
    begun = taken(new(keep=keep), KITCHEN, 1.0)
    assert [name for name, _ in merge._rank(begun)] == ORDERS[keep]
    assert [name for name, _ in merge._rank(ended(begun, 2.0))] == ORDERS["epoch"], "results are compared alike"


def test_a_result_that_lost_is_kept_and_its_device_is_told() -> None:
    early, late = ended(taken(new(), KITCHEN, 1.0), 9.0, "early"), ended(taken(new(), LAPTOP, 2.0), 3.0, {"x": [1]})
    merged = check_won(
        early, late, "the result of laptop (epoch 1) is kept, but it is not the result of run r1", "1 s earlier"
    )
    assert (merged.output, merged.superseded) == ("early", (Superseded("laptop", 1, 3.0, {"x": [1]}),))
    third = ended(retried(taken(new(), ATTIC, 1.5), 2.0), 4.0, "third")
    assert [result.output for result in resolve(merged, third).superseded] == ["early", {"x": [1]}]
    assert resolve(merged, third).output == "third"


def test_two_results_of_one_grant_are_both_kept() -> None:
    """That cannot be, unless a device says one thing here and another there. Even so all peers agree."""
    begun = taken(new(), KITCHEN, 1.0)
    merged = check_won(
        ended(begun, 2.0, "y"), ended(begun, 2.0, "x"), "two records of one assignment", "kitchen completed it"
    )
    assert [result.output for result in merged.superseded] == ["x"]


def test_what_happened_beside_comes_first_and_once_and_the_line_goes_on_after_it() -> None:
    first, other = taken(new(), KITCHEN, 1.0), taken(new(), LAPTOP, 2.0)
    merged = resolve(first, other)
    assert merged.story == (*sorted(other.story[1:], key=lambda entry: (entry.at, entry.what)), *first.story)
    freed = transitions.release(merged, grant_of(merged), "released", "low battery", 5.0)
    retry = retried(transitions.take(freed, ATTIC, 6.0), 7.0)
    assert [assignment.epoch for assignment in retry.previous] == [1, 2]
    assert resolve(retry, retried(other, 3.0, ATTIC)).previous[0].device == "laptop"
    assert resolve(retry, retried(other, 3.0, ATTIC)).previous[1:] == retry.previous


def test_the_same_words_at_the_same_moment_in_two_stores_are_told_once() -> None:
    begun = taken(new(), KITCHEN, 1.0)
    a, b = (retried(begun, 5.0, by) for by in (LAPTOP, ATTIC))
    assert len(resolve(a, b).previous) == 1
    assert [entry.what for entry in resolve(a, b).story].count("reassigning") == 1


def scored_apart() -> tuple[Run, Run, Run]:
    """Two records of an assignment to one device at one moment with different scores, and one that wins over both."""
    run = new()
    low, high = (
        retried(transitions.take(run, KITCHEN, 1.0, starts=True, scores={"kitchen": score}), 5.0)
        for score in (40.0, 60.0)
    )
    return low, high, ended(retried(taken(run, ATTIC, 1.0), 2.0), 9.0)


def test_assignments_that_differ_only_in_their_score_are_both_kept() -> None:
    low, high, winner = scored_apart()
    merged = resolve(resolve(low, high), winner)
    assert merged == resolve(resolve(winner, high), low)
    assert [assignment.score for assignment in merged.previous if assignment.device == "kitchen"] == [40.0, 60.0]


def test_without_the_score_in_the_key_the_order_of_merges_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    key = merge._assignment_key
    monkeypatch.setattr(merge, "_assignment_key", lambda assignment: key(assignment)[:-1])
    low, high, winner = scored_apart()
    assert resolve(resolve(winner, low), high) != resolve(resolve(winner, high), low)


def test_a_run_that_nobody_owned_has_no_loser() -> None:
    for run in (new(), lost(), SITUATIONS["failed"]()):
        assert loss_reason(run, resolve(run, completed())) is None


def test_a_story_without_a_beginning_is_all_line() -> None:
    """No store writes one, but a peer may send it."""
    headless = new().changed(story=taken(new(), KITCHEN, 1.0).story[1:])
    assert resolve(headless, new()) == resolve(new(), headless)


# -- stores ------------------------------------------------------------------------------------------------------------


def test_a_store_takes_a_record_over_above_its_own_revision_and_only_once() -> None:
    mine, other = taken(new(), LAPTOP, 2.0).changed(revision=50), taken(new(), KITCHEN, 1.0)
    merged = resolve(mine, other)
    written, answer = next_revision(mine, merged), next_revision(other, merged)
    assert written is not None
    assert answer is not None
    assert (written.revision, answer.revision) == (51, other.revision + 1)
    assert next_revision(written, resolve(written, answer)) is None
    assert next_revision(answer, resolve(written, answer)) is None


@pytest.mark.parametrize("keep", KEEP_RULES)
def test_what_is_kept_is_read_back_from_a_row(keep: str) -> None:
    apart = new(keep=keep)
    run = resolve(ended(taken(apart, KITCHEN, 1.0), 9.0), ended(taken(apart, LAPTOP, 2.0), 3.0, {"x": None}))
    for record in (apart, run):
        again = row_codec.run_of((*row_codec.fixed(record), *row_codec.moving(record)))
        assert again == record
        assert [type(result) for result in again.superseded] == [Superseded] * len(record.superseded)
    assert ("keep" in row_codec.moving(apart)[-1]) == (keep != "epoch")
    assert "superseded" not in row_codec.moving(new())[-1]


# -- bad records -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FIXED)
def test_two_records_that_differ_in_what_is_fixed_are_not_of_one_run(name: str) -> None:
    run = new()
    forged = run.changed(**{name: "original" if name == "keep" else "forged"})
    for pair in ((run, forged), (forged, run)):
        with pytest.raises(NotTheSameRun, match=f"{name} is .* in one and .* in the other") as caught:
            resolve(*pair)
        assert caught.value.fields == (name,)


def test_what_is_fixed_is_all_that_a_run_is_created_with() -> None:
    assert {"id", "workflow", "version", "input", "created_at", "created_by", "keep", "key", "work"} < set(FIXED)
    assert "revision" not in FIXED


def test_a_rule_that_is_not_known_here_is_not_guessed() -> None:
    odd = new().changed(keep="coin")
    with pytest.raises(NotTheSameRun, match=r"their rule is 'coin'.*epoch, original"):
        resolve(odd, taken(odd, KITCHEN, 1.0))
    with pytest.raises(ValueError, match=r"one of epoch, original, not 'coin'"):
        new(keep="coin")
