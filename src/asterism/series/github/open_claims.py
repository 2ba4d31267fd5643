"""Claims that look at the issues themselves: nobody waits behind an issue that is closed, and no such issue is claimed.

A register knows what was claimed and released. That the active issue was closed, transferred or deleted it learns with
the next sync. A claim does not wait for that: it looks at the active issue, and at those that are next if that one is
gone, and takes out what is gone in the same change. Only issues that were looked at leave, so a claim that is late
takes out nothing that came after.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from asterism.core.series.machine import Item, Series, UnreadableSeries
from asterism.series.compare_and_swap import Claim, Counts, Outcome, Patience, change, count_claim, told
from asterism.series.github.github_client import GitHubClient
from asterism.series.github.observed_state import Fate, open_or_fate
from asterism.series.register import NotClaimable, SeriesRegister

MOST_LOOKED_AT = 20
"""Issues of one series that a claim looks at: the rest is left to the next sync."""


@dataclass(frozen=True)
class ClaimAmongOpen:
    """The step that claims, after those have left that are ``gone``. The next one has its turn then."""

    wanted: Claim
    gone: Mapping[int, Fate] = field(default_factory=dict)

    def __call__(self, series: Series, now: float) -> Series:
        return self.wanted(self._left(series, now), now).as_one_change_of(series)

    def _left(self, series: Series, now: float) -> Series:
        current = series
        for number in self.gone:
            current = current.release(number, now)
        if series.active != current.active and current.queue[:1] != (self.wanted.item,):
            current = current.promote(now, by=self.wanted.by)
        return current

    def told(self, before: Series, after: Series) -> str:
        parts = [f"{fate} #{number}" for number, fate in self.gone.items() if before.position(number) is not None]
        left = self._left(before, after.updated_at)
        if left.active not in (None, before.active):
            parts.append(f"promote #{left.active}")
        if parts and self.wanted.item in left.queue and self.wanted.item in after.queue and left.leases == after.leases:
            return told("; ".join(parts), self.wanted.by)  # it waits where it waited
        return "; ".join([*parts, self.wanted.told(left, after)])


class OpenClaims:
    """Makes claims in the series of a repository. ``left`` is what the last one has found gone, and why."""

    def __init__(self, client: GitHubClient) -> None:
        self._client = client
        self._seen: dict[int, Fate | None] = {}
        """What was looked at: None for what is open."""
        self.left: dict[int, Fate] = {}

    async def claim(
        self,
        register: SeriesRegister,
        name: str,
        wanted: Claim,
        *,
        patience: Patience | None = None,
        counts: Counts | None = None,
    ) -> Outcome:
        """As ``claim`` of series/compare_and_swap.py. Raises NotClaimable too."""
        series = await _read(register, name)  # before the issue: if there is no such repository, this tells
        await self._check(wanted.item)
        await self._look_along(series, wanted.item)
        while True:
            step = ClaimAmongOpen(wanted, {number: fate for number, fate in self._seen.items() if fate is not None})
            outcome = await change(register, name, step, step.told, patience=patience, counts=counts)
            self.left |= {number: fate for number, fate in step.gone.items() if number in _left_between(outcome)}
            # somebody may have made another one active since we looked
            if not await self._look_along(outcome.after, wanted.item):
                count_claim(counts, outcome, wanted.item)
                return outcome

    async def _check(self, item: Item) -> None:
        if not isinstance(item, int):
            raise NotClaimable(f"{item!r} is not the number of an issue")
        found = await open_or_fate(self._client, item)
        where = self._client.url
        if found is Fate.DELETED:
            raise NotClaimable(f"there is no issue #{item} in {where}: it cannot be claimed")
        if found is Fate.TRANSFERRED:
            raise NotClaimable(f"#{item} was transferred to another repository: it cannot be claimed in {where}")
        if isinstance(found, Fate):
            raise NotClaimable(f"#{item} is closed ({found}): it cannot be claimed; reopen it, or claim another")
        if "pull_request" in found:
            raise NotClaimable(f"#{item} is a pull request: only issues are claimed")

    async def _look_along(self, series: Series, item: Item) -> bool:
        """Look at the active issue, and if that is gone at those behind it, up to the first that is open. Returns
        whether one is gone that was not known to be."""
        found = False
        for number in (series.active, *series.queue):
            if number is None:
                if series.paused is not None:
                    return found
                continue
            if number == item or not isinstance(number, int) or len(self._seen) >= MOST_LOOKED_AT:
                return found
            if number not in self._seen:
                looked = await open_or_fate(self._client, number)
                self._seen[number] = looked if isinstance(looked, Fate) else None
                found = found or isinstance(looked, Fate)
            if self._seen[number] is None:
                return found
        return found


def _left_between(outcome: Outcome) -> set[Item | None]:
    before, after = outcome.before, outcome.after
    return {before.active, *before.queue} - {after.active, *after.queue}


async def _read(register: SeriesRegister, name: str) -> Series:
    """What the register says; nothing of a state that cannot be read, which the claim itself tells."""
    try:
        return Series.from_text((await register.read(name)).text, name)
    except UnreadableSeries:
        return Series(name)
