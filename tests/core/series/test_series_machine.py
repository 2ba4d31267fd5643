"""Random stories of a series keep its rules; each safeguard, switched off, is noticed; and of a million claims made at
once one wins each time."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from asterism.core.series import machine
from asterism.core.series.machine import Item, Live, Series, UnreadableSeries
from tests.core.series.series_machine import SeriesMachine

Patch = pytest.MonkeyPatch

TestSeries = SeriesMachine.TestCase
TestSeries.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

HUNT = settings(
    max_examples=500,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],  # to find the failure is enough
    suppress_health_check=list(HealthCheck),
)


def hunted() -> None:
    with pytest.raises((AssertionError, UnreadableSeries)):
        run_state_machine_as_test(SeriesMachine, settings=HUNT)


def spoil(patch: Patch, name: str, change: Any) -> None:
    """``change`` gets the series before, what the operation made of it, and its arguments."""
    right = getattr(Series, name)
    patch.setattr(Series, name, lambda self, *args, **options: change(self, right(self, *args, **options), *args))


# -- ablations ---------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_newcomer_that_overtakes_the_queue_is_noticed(monkeypatch: Patch) -> None:
    def overtaking(before: Series, after: Series, item: Item, now: float, *rest: Any) -> Series:
        free = before.active is None and before.paused is None
        return after.promote(now) if not free else replace(after, active=item, queue=before._without(item))

    spoil(monkeypatch, "claim", overtaking)
    hunted()


def test_a_second_active_item_in_place_of_the_first_is_noticed(monkeypatch: Patch) -> None:
    spoil(monkeypatch, "claim", lambda before, after, item, now, *rest: before._activated(item, now, None, None, None))
    hunted()


def test_an_item_that_is_queued_twice_is_noticed(monkeypatch: Patch) -> None:
    def twice(before: Series, after: Series, item: Item, now: float, *rest: Any) -> Series:
        return before._changed(now, queue=(*before.queue, item)) if item in before.queue else after

    spoil(monkeypatch, "claim", twice)
    hunted()


def test_an_active_item_that_stays_in_the_queue_is_noticed(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Series, "_without", lambda self, item: self.queue)
    hunted()


def test_a_promotion_during_a_pause_is_noticed(monkeypatch: Patch) -> None:
    def anyway(before: Series, after: Series, now: float, *rest: Any) -> Series:
        return before.resume(now)._activated(before.queue[0], now, None, None, None) if before.queue else after

    spoil(monkeypatch, "promote", anyway)
    hunted()


def test_a_promotion_over_somebody_who_is_active_is_noticed(monkeypatch: Patch) -> None:
    def over(before: Series, after: Series, now: float, *rest: Any) -> Series:
        return before._activated(before.queue[0], now, None, None, None) if before.queue else after

    spoil(monkeypatch, "promote", over)
    hunted()


@pytest.mark.long
def test_a_lease_that_ends_too_early_is_noticed(monkeypatch: Patch) -> None:
    spoil(monkeypatch, "expire", lambda before, after, now: before.release(before.active or 0, now))
    hunted()


@pytest.mark.long  # many examples do not wait for the end of a lease
def test_a_lease_that_never_ends_is_noticed(monkeypatch: Patch) -> None:
    spoil(monkeypatch, "expire", lambda before, after, now: before)
    hunted()


def test_a_lease_that_nobody_asked_for_is_noticed(monkeypatch: Patch) -> None:
    def leased(before: Series, after: Series, now: float, *rest: Any) -> Series:
        return after if after is before else replace(after, lease=60.0, lease_until=now + 60.0)

    spoil(monkeypatch, "promote", leased)
    hunted()


def test_a_lease_that_is_forgotten_while_one_waits_is_noticed(monkeypatch: Patch) -> None:
    right = Series._changed
    monkeypatch.setattr(
        Series, "_changed", lambda self, now, **changes: replace(right(self, now, **changes), leases=())
    )
    hunted()


def test_a_rebuild_that_makes_somebody_active_during_a_pause_is_noticed(monkeypatch: Patch) -> None:
    right = Series.rebuild

    def anyway(self: Series, live: list[Live], now: float) -> Series:
        after = right(replace(self, paused=None), live, now)
        return self if after == replace(self, paused=None) else replace(after, paused=self.paused)

    monkeypatch.setattr(Series, "rebuild", anyway)
    hunted()


@pytest.mark.long
def test_a_renewal_by_somebody_else_is_noticed(monkeypatch: Patch) -> None:
    right = Series.renew
    monkeypatch.setattr(Series, "renew", lambda self, item, now, until, claim=None: right(self, item, now, until))
    hunted()


def test_a_rebuild_that_takes_it_from_who_has_it_is_noticed(monkeypatch: Patch) -> None:
    right = Series.rebuild
    monkeypatch.setattr(Series, "rebuild", lambda self, live, now: right(replace(self, active=None), live, now))
    hunted()


def test_a_rebuild_that_loses_somebody_is_noticed(monkeypatch: Patch) -> None:
    spoil(monkeypatch, "rebuild", lambda before, after, live, now: replace(after, queue=after.queue[:2]))
    hunted()


def test_found_together_but_queued_in_the_order_of_the_scan_is_noticed(monkeypatch: Patch) -> None:
    def as_found(before: Series, after: Series, scanned: list[tuple[Item, int]], now: float) -> Series:
        new = [item for item, _ in scanned if before.position(item) is None]
        return after if after is before else replace(after, queue=(*before.queue, *new))

    spoil(monkeypatch, "enqueue", as_found)
    hunted()


def test_a_change_that_is_not_counted_is_noticed(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Series, "_changed", lambda self, now, **changes: replace(self, updated_at=now, **changes))
    hunted()


def test_a_document_that_forgets_the_pause_is_noticed(monkeypatch: Patch) -> None:
    right = machine.encode
    monkeypatch.setattr(machine, "encode", lambda series, form: right(replace(series, paused=None), form))
    hunted()


# -- a million claims --------------------------------------------------------------------------------------------------

CLAIMS = int(os.environ.get("ASTERISM_SERIES_CLAIMS", "5000"))
"""How many claims in all; ``make series-million`` says a million."""


class Cell:
    """A register at its barest: a state and its number; a swap that names an old number does nothing."""

    def __init__(self, compares: bool = True) -> None:
        self.series, self.number, self.compares = Series("RFC-093"), 0, compares

    def swap(self, expected: int, series: Series) -> bool:
        if self.compares and expected != self.number:
            return False
        self.series, self.number = series, self.number + 1
        return True


def round_of(cell: Cell, contenders: int, chance: random.Random) -> tuple[int, int]:
    """Everybody claims at once: each reads at some moment and swaps at another, and between the two others do. Returns
    how many were told that they are active, and how many tries failed."""
    told_active = failed = 0
    seen: dict[int, tuple[int, Series]] = {}
    todo = list(range(1, contenders + 1))
    while todo or seen:
        place = chance.randrange(len(todo) + len(seen))
        if place < len(todo) and len(seen) < 5:  # one client reads; those that read before have not written yet
            todo[place], todo[-1] = todo[-1], todo[place]
            seen[todo.pop()] = (cell.number, cell.series)
            continue
        if not seen:
            continue
        item = chance.choice(list(seen))
        number, before = seen.pop(item)
        after = before.claim(item, 1.0, str(item))
        if after is before or cell.swap(number, after):
            told_active += after.active == item
        else:
            failed += 1
            todo.append(item)
    return told_active, failed


def test_of_all_who_claim_at_once_one_wins_and_all_others_wait_their_turn_once() -> None:
    chance = random.Random(93)
    claims = failures = 0
    while claims < CLAIMS:
        cell, contenders = Cell(), chance.randint(2, 200)
        winners, failed = round_of(cell, contenders, chance)
        assert winners == 1
        assert sorted([cell.series.active, *cell.series.queue]) == list(range(1, contenders + 1))  # type: ignore[type-var]
        assert cell.series.revision == cell.number == contenders
        claims += contenders
        failures += failed
    assert failures > claims / 2, "they did not get in each other's way"


def test_without_the_comparison_somebody_is_lost() -> None:
    chance = random.Random(93)
    cell = Cell(compares=False)
    round_of(cell, 100, chance)
    assert len(cell.series.queue) < 99
