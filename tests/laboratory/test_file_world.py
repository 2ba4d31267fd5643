"""Simulated worlds with files: none that a completed run has made is ever missing, and no other one stays."""

from __future__ import annotations

from typing import Any

import pytest

from asterism.fleet import kept_files
from asterism.store.protocol import Store
from tests.laboratory.simulator import Violation, simulate
from tests.laboratory.simulator.file_world import FileWorld, SimContent

pytestmark = pytest.mark.slow

ABLATED = 20
"""The seed below which a missing safeguard has to show."""


@pytest.mark.hunt(few=2, many=100)
def test_no_file_of_a_completed_run_is_lost_and_no_other_one_stays(seeds: range) -> None:
    assert sum(len(simulate(seed, world=FileWorld).content.kept) for seed in seeds) > len(seeds)


def no_pins(patch: pytest.MonkeyPatch) -> None:
    """What a run under way has put is not kept for its end."""
    patch.setattr(kept_files, "OWNED", frozenset())


def no_times(patch: pytest.MonkeyPatch) -> None:
    """What is put again while it is collected is removed."""
    patch.setattr(SimContent, "remove", lambda self, name, kept_before: self.kept.pop(name, None))


def references_first(patch: pytest.MonkeyPatch) -> None:
    """The references are older than the list of what may be removed."""
    manifests, known = kept_files.manifests, dict[int, set[str]]()

    async def earlier(store: Store) -> set[str]:
        before, known[id(store)] = known.get(id(store), set()), await manifests(store)
        return before

    patch.setattr(kept_files, "manifests", earlier)


@pytest.mark.parametrize(("ablation", "first"), [(no_pins, 0), (no_times, 14), (references_first, 3)])
@pytest.mark.long
def test_a_missing_safeguard_is_noticed(ablation: Any, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """``first`` is the seed of the first world: not far below the first that shows it."""
    ablation(monkeypatch)

    def look() -> None:
        for seed in range(first, first + ABLATED):
            simulate(seed, world=FileWorld)

    with pytest.raises(Violation, match=r"the end of a run was acknowledged, and .* it was removed there"):
        look()
