"""Claims at once in virtual time: seed by seed another crowd, other delays, other faults, other deaths.

Each question takes a while, of chance length, in which the others go on. A reply may get lost, and what was asked for
has happened then, or never will, or happens later, when nobody counts on it any more. Some of those who claim die on
the way. What everybody was told is then held against what is there.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Callable

import pytest

from asterism.core.series.machine import Series
from asterism.series import compare_and_swap
from asterism.series.claims import Claim, claim
from asterism.series.compare_and_swap import Contended, Outcome, RetryOptions, UpdateCounts
from asterism.series.register import Change, OutcomeUnknown, RevisionConflict, Snapshot
from asterism.testing.virtual_time import run

NAME = "RFC-093"
CLAIMS = int(os.environ.get("ASTERISM_SERIES_SIMULATED", "800"))
"""How many claims in all; ``make series-million`` says a million."""
FIRST = int(os.environ.get("ASTERISM_SERIES_FIRST", "0"))
"""The first seed. Two who simulate a half each begin with different ones."""
LATEST = 5.0
"""When the last write with a lost reply arrives, in seconds after it was sent."""


class Slow:
    """A register with one series, and everything that can happen between it and those who ask."""

    url = "simulated"

    def __init__(self, chance: random.Random, losing: float) -> None:
        self.text: str | None = None
        self.number = 0
        self._chance, self._losing = chance, losing

    def clock(self) -> float:
        return 1000.0 + asyncio.get_running_loop().time()

    async def read(self, name: str) -> Snapshot:
        await asyncio.sleep(self._chance.uniform(0.01, 0.2))
        return Snapshot(self.text, str(self.number) if self.number else None)

    async def swap(self, name: str, expected: str | None, text: str, message: str) -> str:
        await asyncio.sleep(self._chance.uniform(0.01, 0.1))
        lost = self._chance.random() < self._losing
        if lost and self._chance.random() < 0.5:
            asyncio.get_running_loop().call_later(self._chance.uniform(0.0, LATEST), self._arrived, expected, text)
            raise OutcomeUnknown("the reply was lost, and the question is on its way")
        token = self._arrived(expected, text)
        if lost:
            raise OutcomeUnknown("the reply was lost")
        await asyncio.sleep(self._chance.uniform(0.01, 0.1))
        if token is None:
            raise RevisionConflict(name)
        return token

    def _arrived(self, expected: str | None, text: str) -> str | None:
        if expected != (str(self.number) if self.number else None):
            return None
        self.text, self.number = text, self.number + 1
        return str(self.number)

    async def names(self) -> list[str]:
        return [NAME]

    async def history(self, name: str, limit: int) -> list[Change]:
        return []

    async def close(self) -> None:
        pass


class Careless(Slow):
    """It does not compare: for the test that this would be noticed."""

    def _arrived(self, expected: str | None, text: str) -> str | None:
        return super()._arrived(str(self.number) if self.number else None, text)


Register = Callable[[random.Random, float], Slow]


def contest(seed: int, register_of: Register = Slow) -> Counter[str]:
    """One crowd, all of whom claim at the same moment. Returns how many were told what."""
    chance = random.Random(seed)
    number, tries = chance.randint(2, 100), chance.choice((0, 5))
    losing, dying = (chance.choice((0.0, chance.uniform(0.0, 0.3))) for _ in range(2))

    async def main() -> tuple[list[Outcome | BaseException], Series, UpdateCounts]:
        loop, register, counts = asyncio.get_running_loop(), register_of(chance, losing), UpdateCounts()
        retry = RetryOptions(tries=tries, deadline=None, chance=chance, clock=loop.time)
        claims = [
            asyncio.ensure_future(claim(register, NAME, Claim(item), retry=retry, counts=counts))
            for item in range(1, number + 1)
        ]
        for running_claim in claims:
            if chance.random() < dying:
                loop.call_later(chance.uniform(0.0, 4.0), running_claim.cancel)
        outcomes = await asyncio.gather(*claims, return_exceptions=True)
        await asyncio.sleep(LATEST)
        return outcomes, Series.from_text(register.text, NAME), counts

    outcomes, series, counts = run(main(), seed=seed)
    told = _push_result(outcomes, series)
    assert counts.duplicate_prevented == told["queued"]
    told["conflicts"], told["lost"] = counts.conflicts, counts.unsure
    if not tries and not dying:
        assert (told["claimed"] + told["queued"], told["claimed"]) == (number, 1), seed
    return told


def _push_result(outcomes: list[Outcome | BaseException], series: Series) -> Counter[str]:
    """What everybody was told, held against what is there."""
    there = {series.active, *series.queue} if series.revision else set()
    assert len(there) == series.revision, "nobody is in it twice, and nobody without a change"
    assert there <= set(range(1, len(outcomes) + 1)), "only claimed issues are in it"
    told: Counter[str] = Counter()
    for item, outcome in enumerate(outcomes, 1):
        if isinstance(outcome, Outcome):
            active = outcome.after.active == item
            assert (item == series.active) if active else (item in series.queue), "who was told so is there"
            told["claimed" if active else "queued"] += 1
        elif isinstance(outcome, Contended):
            assert item not in there, "who was told that nothing was written is not there"
            told["contended"] += 1
        else:
            assert isinstance(outcome, OutcomeUnknown | asyncio.CancelledError), outcome
            told["unsure" if isinstance(outcome, OutcomeUnknown) else "dead"] += 1
    assert told["claimed"] <= 1
    return told


def test_whatever_gets_lost_and_whoever_dies_there_is_one_winner_and_everybody_else_was_told_the_truth() -> None:
    told: Counter[str] = Counter()
    claims, seed = 0, FIRST
    while claims < CLAIMS:
        try:
            counts = contest(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        told += counts
        claims += sum(counts.values()) - counts["conflicts"] - counts["lost"]
        seed += 1
    for what in ("claimed", "queued", "contended", "unsure", "dead", "lost"):
        assert told[what] > 0, f"nobody was ever {what}"
    assert told["conflicts"] > claims, "they did not get in each other's way"
    print(f"{claims} claims, seeds {FIRST} to {seed - 1}: {dict(told)}")


def noticed(register_of: Register = Slow, first: int = 0) -> None:
    for seed in range(first, first + 200):
        try:
            contest(seed, register_of)
        except AssertionError:
            return
    raise pytest.fail.Exception("nothing was noticed in 200 worlds")


def test_a_register_that_does_not_compare_is_noticed() -> None:
    noticed(Careless)


def test_a_lost_reply_that_is_taken_for_a_refusal_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ablation: a claim whose error says that nothing was written is in the state, in some world."""

    def forgets(self: compare_and_swap._Attempts, error: OutcomeUnknown) -> None:
        self.lost_race(RevisionConflict(NAME))

    monkeypatch.setattr(compare_and_swap._Attempts, "lost_reply", forgets)
    noticed(first=11)
