"""Simulated fleets whose runs share limits; and that the simulator notices a missing safeguard."""

from __future__ import annotations

from typing import Any

import pytest

from asterism.core.limits import Account, LimitBook
from asterism.fleet.stored_limits import StoredLimits
from tests.laboratory.simulator import Violation, simulate
from tests.laboratory.simulator.fleet_world import LimitWorld

pytestmark = pytest.mark.slow

ABLATED = 10
"""The seed below which a missing safeguard has to show."""


@pytest.mark.hunt(few=2, many=60)
def test_no_limit_is_exceeded_and_none_is_held_by_the_dead(seeds: range) -> None:
    assert sum(simulate(seed, world=LimitWorld).acquisitions for seed in seeds) > 4 * len(seeds)


def no_accounts(patch: pytest.MonkeyPatch) -> None:
    """A grant is written without the accounts of its limits."""
    patch.setattr(StoredLimits, "account_writes", lambda self, book: [])


def no_admission(patch: pytest.MonkeyPatch) -> None:
    """A run is granted whether or not its limits have room; their rates count."""
    every = LimitBook.shortages
    patch.setattr(LimitBook, "shortages", lambda self, *given: [short for short in every(self, *given) if short.at])


def no_rate(patch: pytest.MonkeyPatch) -> None:
    """What has begun is not counted."""
    patch.setattr(Account, "begin", lambda self, *given: None)


@pytest.mark.parametrize(
    ("ablation", "first", "words"),
    [(no_accounts, 1, "are held|limit mail let"), (no_admission, 5, "are held"), (no_rate, 1, "limit mail let")],
    ids=["no_accounts", "no_admission", "no_rate"],
)
@pytest.mark.long
def test_a_missing_safeguard_is_noticed(ablation: Any, first: int, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """``first`` is the seed of the first world: not far below the first that shows it."""
    ablation(monkeypatch)

    def look() -> None:
        for seed in range(first, first + ABLATED):
            simulate(seed, world=LimitWorld)

    with pytest.raises(Violation, match=words):
        look()
