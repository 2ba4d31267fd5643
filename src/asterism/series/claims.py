"""The steps that change a series: claim and release, promote, pause, resume, front and rebuild.

``claim`` and ``release`` apply the steps ``Claim`` and ``Release`` with the update loop of ``compare_and_swap``. Both
can be repeated: a claim of the active item and a release of an absent one change nothing. The other steps are functions
that make one, for ``update`` itself.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from asterism.core.record import Record, Struct, field
from asterism.core.series.machine import Item, Live, Series, UnreadableSeries
from asterism.series.compare_and_swap import Outcome, RetryOptions, Step, UpdateCounts, update
from asterism.series.register import NotClaimable, SeriesRegister, read_all

WAIT_PAUSE, LONGEST_WAIT_PAUSE = 0.2, 5.0
"""The first and the longest pause between two looks for the next item, in seconds."""


class Claim(Record):
    """The step that claims a series for an item. ``id`` identifies the claim through all its tries.

    Without an item it claims the active item, or else the head of the queue, if nobody has it; it queues nothing. With
    ``holder`` the active item is theirs, unless another one holds it: compare ``holder`` of the series after it.
    ``lease`` is in seconds. With ``renew`` the lease of an item that is already active starts again. With ``force`` the
    item belongs to the series whatever its title is, and the state records that."""

    item: Item | None
    by: str | None = None
    lease: float | None = None
    renew: bool = False
    force: bool = False
    reason: str = ""
    holder: str | None = None
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __call__(self, series: Series, now: float) -> Series:
        """End an expired lease first, and then claim."""
        current = series.expire(now)
        if current is not series and current.queue[:1] != (self.item,):
            current = current.promote(now, by=self.by)
        item = self.item if self.item is not None else next_item(current, self.holder)
        if item is not None:
            current = current.claim(item, now, self.id, self.lease, self.by, self.holder)
        if item is None or (item == current.active and current.is_held_from(self.holder)):
            return current.as_one_change_of(series)
        if self.renew and self.lease is not None:
            current = current.renew(item, now, now + self.lease)
        if self.force:
            current = current.force(item, now)
        return current.as_one_change_of(series)

    def message(self, before: Series, after: Series) -> str:
        """The message of the change."""
        parts = []
        item = self.item if self.item is not None else after.active
        if before.active == after.active == item and before.since == after.since:
            if before.holder != after.holder:
                parts.append(f"claim #{item}")
            elif before.lease_until != after.lease_until:
                parts.append(f"{'renew' if before.lease_until is not None else 'lease'} #{item}")
        else:
            if before.active is not None and after.since != before.since:
                parts.append(f"end the lease of #{before.active}")
                parts += [f"promote #{after.active}"] if after.active not in (None, item) else []
            if after.active == item:
                parts.append(f"claim #{item}")
            elif not parts or item not in before.queue:
                parts.append(f"queue #{item}")
        if item in after.forced and item not in before.forced:
            parts.append(f"force #{item}")
        return signed("; ".join(parts) + (f" ({self.reason})" if self.reason else ""), self.by)


class Release(Struct):
    """The step that releases an item and, with ``promote``, makes the next one of the queue active.

    It remembers the claim that it found first. If a later try finds the item active by another claim, an earlier try
    with a lost reply released the first one, and the item was claimed again: that claim stays. With ``holder`` the
    active item of another holder stays, too."""

    item: Item
    by: str | None = None
    promote: bool = True
    reason: str = ""
    holder: str | None = None
    _first_claim: tuple[float | None, str | None] | None = None

    def __call__(self, series: Series, now: float) -> Series:
        if series.active == self.item:
            claim = (series.since, series.claim_id)
            self._first_claim = self._first_claim or claim
            if self._first_claim != claim or series.is_held_from(self.holder):
                return series
        released = series.leave(self.item, now, self.by) if self.promote else series.release(self.item, now)
        return released.as_one_change_of(series)

    def message(self, before: Series, after: Series) -> str:
        """The message of the change."""
        return signed(f"release #{self.item}" + (f" ({self.reason})" if self.reason else ""), self.by)


def signed(message: str, by: str | None) -> str:
    """The message of a change, with its author."""
    return f"{message} by {by}" if by else message


async def claim(
    register: SeriesRegister,
    name: str,
    wanted: Claim,
    *,
    retry: RetryOptions | None = None,
    counts: UpdateCounts | None = None,
) -> Outcome:
    """Claim a series. In ``Outcome.after`` the item is active, or it waits in the queue. Raises as ``update`` does."""
    outcome = await update(register, name, wanted, wanted.message, retry=retry, counts=counts)
    if counts is not None:
        counts.duplicate_prevented += is_other(outcome.after, wanted)
    return outcome


def is_other(after: Series, wanted: Claim) -> bool:
    """Whether the claim found another item active, or another holder of its own."""
    other = wanted.item is not None and after.active not in (None, wanted.item)
    return other or (after.active is not None and wanted.holder not in (None, after.holder))


def next_item(series: Series, holder: str | None) -> Item | None:
    """The item that a claim without one gets: the active one if it is that of ``holder``, or was promoted and not
    claimed since; otherwise the head of the queue, if no item is active. None if there is none, or none to be had."""
    if series.active is not None:
        untaken = series.holder is None and series.claim_id is None
        return series.active if untaken or (holder is not None and series.holder == holder) else None
    return next(iter(series.queue), None) if series.paused is None else None


async def take_next(
    register: SeriesRegister,
    holder: str,
    name: str | None = None,
    *,
    by: str | None = None,
    lease: float | None = None,
    reason: str = "",
    wait: float = 0.0,
    make: Callable[..., Awaitable[Outcome]] | None = None,
    retry: RetryOptions | None = None,
    counts: UpdateCounts | None = None,
) -> Outcome | None:
    """Claim the next item that ``holder`` may have: in one series, or in the first of all that has one. An item that
    they hold already comes first, so a repeated call returns the same item. None if there is none: at once if no series
    has items, otherwise after ``wait`` seconds. ``make`` claims instead of ``claim``, and decides itself whether there
    is one. Raises as ``update`` does; of all series, those that cannot be read are left out."""
    clock, chance, pause = asyncio.get_running_loop().time, (retry or RetryOptions()).chance, WAIT_PAUSE
    end = clock() + wait
    while True:
        seen = {name: await register.read(name)} if name is not None else await read_all(register)
        states = {key: _readable(key, snapshot.text) for key, snapshot in seen.items()}
        own = sorted(states, key=lambda key: (series := states[key]) is None or series.holder != holder)
        for key in own:
            series, now = states[key], register.clock()
            if name is None and (series is None or (make is None and next_item(series.expire(now), holder) is None)):
                continue
            wanted = Claim(None, by or holder, lease, reason=reason, holder=holder)
            outcome = await (make or claim)(register, key, wanted, retry=retry, counts=counts)
            if outcome.after.active is not None and outcome.after.holder == holder:
                return outcome
        left = end - clock()
        empty = all(series is not None and series.active is None and not series.queue for series in states.values())
        if empty or left <= 0:
            return None
        await asyncio.sleep(min(left, chance.uniform(pause / 2, pause)))
        pause = min(2 * pause, LONGEST_WAIT_PAUSE)


def _readable(name: str, text: str | None) -> Series | None:
    try:
        return Series.from_text(text, name)
    except UnreadableSeries:
        return None


async def release(
    register: SeriesRegister,
    name: str,
    wanted: Release,
    *,
    retry: RetryOptions | None = None,
    counts: UpdateCounts | None = None,
) -> Outcome:
    """Release an item. Raises as ``update`` does."""
    return await update(register, name, wanted, wanted.message, retry=retry, counts=counts)


# -- other steps -------------------------------------------------------------------------------------------------------


def promote(by: str) -> Step:
    """End an expired lease, and activate the head of the queue if no item is active."""
    return lambda series, now: series.expire(now).promote(now, by=by).as_one_change_of(series)


def pause(by: str, reason: str) -> Step:
    """Let no item become active until the series is resumed."""
    return lambda series, now: series.pause(now, by, reason)


def resume(by: str) -> Step:
    """End a pause, and activate the head of the queue if no item is active."""

    def step(series: Series, now: float) -> Series:
        if series.paused is None:
            return series
        return series.resume(now).expire(now).promote(now, by=by).as_one_change_of(series)

    return step


def front(issue: int) -> Step:
    """Move a waiting issue to the head of the queue. Raises NotClaimable if it does not wait."""

    def step(series: Series, now: float) -> Series:
        if series.position(issue) is None:
            raise NotClaimable(f"#{issue} is not in the queue of {series.name}: claim it first")
        return series.front(issue, now)

    return step


def rebuild(issues: Sequence[int], active: int | None) -> Step:
    """Write a series again from its open issues, in their order."""
    return partial(rebuilt, live=live_issues(issues, active), active=active)


def live_issues(issues: Sequence[int], active: int | None) -> list[Live]:
    """Open issues in their order. ``active`` is the one that is active, if any is."""
    live = [Live(number, place, number == active) for place, number in enumerate(dict.fromkeys(issues))]
    return live if active is None or active in issues else [*live, Live(active, -1, True)]


def rebuilt(before: Series, now: float, *, live: Sequence[Live], active: int | None, revision: int = 0) -> Series:
    """A series with these open issues. ``revision`` is the last one that something else knows, such as GitHub. Raises
    NotClaimable if another issue would become active in a paused series."""
    unreadable = before.updated_at == 0.0  # or lost
    base = before.counted_from(revision) if unreadable else before
    if active not in (None, before.active) and before.paused is not None:
        raise NotClaimable(f"{before.name} is paused {before.paused}: resume it before an issue becomes active")
    replaced = active is not None and before.active not in (None, active)
    remaining = base.release(before.active or 0, now) if replaced else base
    after = remaining.rebuild(live, now).as_one_change_of(base)
    if after is not base:
        return after
    return before if base is before or before.revision == 0 else base.stamped(now)
