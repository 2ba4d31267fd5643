"""Random stories of a series keep its rules; and of a million claims made at once one wins each time."""

from __future__ import annotations

import os
import random

from hypothesis import settings

from asterism.core.series.machine import Series
from tests.core.series.series_machine import SeriesMachine

TestSeries = SeriesMachine.TestCase
TestSeries.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


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
