"""Changing a series that others change at the same time: read, step, swap, and again if somebody was first.

What a step sees is always the newest state, and its outcome is written only if that is still the newest, so any number
of callers change a series one after the other, whatever their timing. A step has to be a pure function that changes
nothing when it has been taken already (as those of Series do): after a lost reply it is taken again on what is there
then, and finds itself done.

A try that somebody else forestalled is followed by a pause of chance length, so that those who collided once do not go
on colliding. Who runs out of tries is told so with Contended: nothing was written, and that is never a success. Who was
never forestalled is told what went wrong instead. A deadline ends also a try that hangs: if it was writing at that
moment, what became of it is not known. What cannot be read raises UnreadableSeries: it may be anybody's, so nobody gets
it. Only ``mend`` writes over it, and that too by compare-and-swap.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from asterism.core.series.machine import Item, Series, UnreadableSeries
from asterism.series.register import (
    Moved,
    RateLimited,
    RegisterBusy,
    RegisterUnavailable,
    SeriesError,
    SeriesRegister,
    Snapshot,
    Unsure,
)

Step = Callable[[Series, float], Series]
"""What the series becomes, given what it is and the time; the same object, if there is nothing to change."""

Message = str | Callable[[Series, Series], str]
"""What is kept with a change, or what makes it of the series before and after."""

TRIES = 5
JITTER = (0.2, 0.8)
"""The pause between two tries, in seconds: from, to."""

MOST_SPREAD = 8.0
"""How many times longer the longest pause becomes, for those who try without a limit."""

EARLIER = 20
"""How many states before one that is unreadable or lost are looked at for the revision to go on from."""

LONGEST_WAIT = 120.0
"""What a register that is asked too often may ask for, in seconds, if there is no deadline."""


class Contended(SeriesError):
    """Others were first at every try, or until the deadline. Nothing was written. ``forestalled`` is how many of the
    tries it were, if not all."""

    def __init__(self, name: str, tries: int, seconds: float, forestalled: int | None = None) -> None:
        self.tries, self.seconds = tries, seconds
        at = "each" if forestalled in (None, tries) else str(forestalled)
        super().__init__(
            f"series {name} is contended: others were first at {at} of {tries} tries within {seconds:.1f} s, and "
            "nothing was written; try again, or allow more tries"
        )


@dataclass
class Counts:
    """What happened on the way, summed up over all changes that were made with it."""

    swaps: int = 0
    """Changes that were written."""
    retries: int = 0
    """Tries after the first."""
    conflicts: int = 0
    """Tries that somebody else forestalled."""
    unsure: int = 0
    """Replies that were lost."""
    rate_limited: int = 0
    duplicate_prevented: int = 0
    """Claims that found another item active, so that a second one was not assigned."""
    promotion_events: int = 0
    """Items of the queue that became active."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The series ``before`` and ``after``, and whether it was ``changed``: if there was nothing to change they are the
    same. ``token`` stands for ``after`` in the register. ``promoted`` is who came from the queue."""

    before: Series
    after: Series
    changed: bool
    token: str | None
    tries: int
    promoted: Item | None = None


@dataclass(frozen=True)
class Patience:
    """How long to try. With ``tries`` 0 it is until the ``deadline``, in seconds from the beginning, or for ever."""

    tries: int = TRIES
    jitter: tuple[float, float] = JITTER
    deadline: float | None = None
    chance: random.Random = field(default_factory=random.SystemRandom)
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    clock: Callable[[], float] = time.monotonic


async def change(
    register: SeriesRegister,
    name: str,
    step: Step,
    message: Message,
    *,
    patience: Patience | None = None,
    counts: Counts | None = None,
) -> Outcome:
    """Take a step. Raises Contended, UnreadableSeries, and what the register raises."""
    return await _changed(register, name, step, message, False, patience, counts)


async def mend(
    register: SeriesRegister,
    name: str,
    step: Step,
    message: Message,
    *,
    patience: Patience | None = None,
    counts: Counts | None = None,
) -> Outcome:
    """As ``change``, also on a state that cannot be read: ``step`` gets what can be salvaged of it, and what it makes
    of that is written in its place, if nobody mended it meanwhile. The revision goes on where the history ends, as far
    as the register has one."""
    return await _changed(register, name, step, message, True, patience, counts)


async def _changed(
    register: SeriesRegister,
    name: str,
    step: Step,
    message: Message,
    mending: bool,
    patience: Patience | None,
    counts: Counts | None,
) -> Outcome:
    patience = patience or Patience()
    trying = _Trying(name, patience, counts if counts is not None else Counts())
    while True:
        wait, timer = trying.begin(), trying.time_left()
        try:
            async with timer:
                return await _tried(register, name, step, message, mending, trying)
        except Moved as error:
            trying.forestalled(error)
        except Unsure as error:
            trying.doubts(error)
        except RateLimited as error:
            wait += error.retry_after
            trying.limited(wait, error)
        except RegisterBusy as error:
            trying.was_busy(error)
        except RegisterUnavailable as error:
            raise trying.failed(error) from error
        except TimeoutError:
            if not timer.expired():
                raise
            raise trying.cut_off(register.url) from None
        trying.goes_on(wait)
        await patience.sleep(wait)


async def _tried(
    register: SeriesRegister,
    name: str,
    step: Step,
    message: Message,
    mending: bool,
    trying: _Trying,
) -> Outcome:
    """One try."""
    seen = await register.read(name)
    trying.saw(seen)
    broken = mending and unreadable(seen.text, name) is not None
    if broken or (mending and seen.token is None):
        earlier = [one.text for one in await register.history(name, EARLIER)]
        before = Series.salvaged(seen.text, name, earlier)
    else:
        before = Series.from_text(seen.text, name)
    now = register.clock()
    after = step(before, now)
    if after is before:
        if not broken:
            return Outcome(before, before, False, seen.token, trying.tries)
        after = before.stamped(now)
    said = message if isinstance(message, str) else message(before, after)
    text = after.to_text()
    trying.writes = True
    token = await register.swap(name, seen.token, text, said)
    promoted = after.active if after.active in before.queue else None
    trying.counts.swaps += 1
    trying.counts.promotion_events += promoted is not None
    return Outcome(before, after, True, token, trying.tries, promoted)


def unreadable(text: str | None, name: str) -> UnreadableSeries | None:
    """Why a state cannot be read; None if it can."""
    try:
        Series.from_text(text, name)
    except UnreadableSeries as error:
        return error
    return None


class _Trying:
    """How often it was tried, for how long, and whether a try of ours may still come true.

    A swap whose reply was lost may even arrive later. It can do so only while the state is the one it expects: as soon
    as another is seen, it either happened, and the step finds itself done, or it never will."""

    def __init__(self, name: str, patience: Patience, counts: Counts) -> None:
        self.tries = 0
        self.counts = counts
        self.writes = False
        """Whether this try has come to its swap."""
        self.last: SeriesError | None = None
        """Why the last try failed."""
        self._name, self._patience = name, patience
        self._started = self._began = patience.clock()
        self._longest = 0.0
        self._forestalled = 0
        self._seen: Snapshot | None = None
        self._doubt: tuple[str | None, Unsure] | None = None
        self._busy: tuple[str | None, RegisterBusy] | None = None

    def begin(self) -> float:
        """Returns how long to wait after this try, if it comes to that."""
        self.tries += 1
        self.counts.retries += self.tries > 1
        self.writes, self._seen, self._began = False, None, self._patience.clock()
        shortest, longest = self._patience.jitter
        # who goes on until it is done, and was late before, is one of many: it makes room for the others
        spread = 1.0 if self._patience.tries else min(2.0 ** min(self.tries - 1, 10), MOST_SPREAD)
        return self._patience.chance.uniform(shortest, longest * spread)

    def time_left(self) -> asyncio.Timeout:
        """What ends a try that hangs."""
        deadline = self._patience.deadline
        return asyncio.timeout(None if deadline is None else max(0.0, self._started + deadline - self._began))

    def saw(self, seen: Snapshot) -> None:
        self._seen = seen
        if self._busy is not None and self._busy[0] != seen.token:
            self.forestalled(self._busy[1])
        self._busy = None
        if self._doubt is not None and self._doubt[0] != seen.token:
            self._doubt = None

    def forestalled(self, error: SeriesError) -> None:
        self.last = error
        self._forestalled += 1
        self.counts.conflicts += 1

    def was_busy(self, error: RegisterBusy) -> None:
        """Whether others were first is seen with the next look: only if they changed something."""
        self.last, self._busy = error, self._seen and (self._seen.token, error)

    def doubts(self, error: Unsure) -> None:
        """If it was a reading that failed, that changed nothing."""
        self.counts.unsure += 1
        if self._seen is not None:
            self._doubt = (self._seen.token, error)
        self.last = error if self._seen is not None else RegisterUnavailable(str(error))

    def cut_off(self, url: str) -> SeriesError:
        """What to raise when the deadline came in the middle of a try."""
        if self._doubt is not None:
            return self._doubt[1]
        within = f"{url} did not answer within the deadline of {self._patience.deadline:g} s"
        if self.writes:
            self.counts.unsure += 1
            return Unsure(f"whether series {self._name} was changed is not known: {within}")
        return RegisterUnavailable(within)

    def limited(self, wait: float, error: RateLimited) -> None:
        """Raises, unless what is asked for is within reason."""
        self.last = error
        self.counts.rate_limited += 1
        if self._patience.deadline is None and wait > LONGEST_WAIT:
            raise self.failed(error) from error
        if self._too_late(wait):
            raise self.failed(error) from error

    def failed(self, error: RegisterUnavailable) -> SeriesError:
        """What to raise when the register is out of reach: after a lost reply that is not the whole truth."""
        return error if self._doubt is None else self._doubt[1]

    def goes_on(self, wait: float) -> None:
        """Raises, if patience has run out."""
        self._longest = max(self._longest, self._patience.clock() - self._began)
        if (self._patience.tries and self.tries >= self._patience.tries) or self._too_late(wait + self._longest):
            if self._doubt is not None:
                raise self._doubt[1]
            if self.last is not None and not self._forestalled:
                raise self.last
            raise Contended(self._name, self.tries, self._patience.clock() - self._started, self._forestalled)

    def _too_late(self, wait: float) -> bool:
        """A try that would last as long as the longest before is not begun if the deadline would cut it off."""
        deadline = self._patience.deadline
        return deadline is not None and self._patience.clock() + wait >= self._started + deadline


# -- steps -------------------------------------------------------------------------------------------------------------


def expired(series: Series, now: float) -> Series:
    """Without a lease that has run out, and with the next one of the queue active in its place."""
    current = series.expire(now)
    return series if current is series else current.promote(now).as_one_change_of(series)


@dataclass(frozen=True, slots=True)
class Claim:
    """The step that claims an item. ``id`` is that of this one claim, through all its tries."""

    item: Item
    by: str | None = None
    lease: float | None = None
    renew: bool = False
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __call__(self, series: Series, now: float) -> Series:
        """A lease that has run out is over before anybody else is heard."""
        current = series.expire(now)
        if current is not series and current.queue[:1] != (self.item,):
            current = current.promote(now, by=self.by)
        current = current.claim(self.item, now, self.id, self.lease, self.by)
        if self.renew and self.lease is not None:
            current = current.renew(self.item, now, now + self.lease)
        return current.as_one_change_of(series)

    def told(self, before: Series, after: Series) -> str:
        """The message of the change."""
        if before.active == after.active == self.item and before.since == after.since:
            return told(f"{'renew' if before.lease_until is not None else 'lease'} #{self.item}", self.by)
        parts = []
        if before.active is not None and after.since != before.since:
            parts.append(f"end the lease of #{before.active}")
            parts += [f"promote #{after.active}"] if after.active not in (None, self.item) else []
        if after.active == self.item:
            parts.append(f"claim #{self.item}")
        elif not parts or self.item not in before.queue:
            parts.append(f"queue #{self.item}")
        return told("; ".join(parts), self.by)


@dataclass(slots=True)
class Release:
    """The step that releases an item, and promotes the next one unless told otherwise.

    It remembers which claim it found at first. If the item is active by another one later, because ours was released
    at a try whose reply was lost and somebody claimed it anew, that one is not ours to release."""

    item: Item
    by: str | None = None
    promote: bool = True
    _found: tuple[float | None, str | None] | None = None

    def __call__(self, series: Series, now: float) -> Series:
        if series.active == self.item:
            this = (series.since, series.claim_id)
            self._found = self._found or this
            if self._found != this:
                return series
        released = series.leave(self.item, now, self.by) if self.promote else series.release(self.item, now)
        return released.as_one_change_of(series)

    def told(self, before: Series, after: Series) -> str:
        return told(f"release #{self.item}", self.by)


def told(what: str, by: str | None) -> str:
    """The message of a change."""
    return f"{what} by {by}" if by else what


async def claim(
    register: SeriesRegister,
    name: str,
    wanted: Claim,
    *,
    patience: Patience | None = None,
    counts: Counts | None = None,
) -> Outcome:
    """Claim a series: the item is active in ``after``, or waits there for its turn."""
    outcome = await change(register, name, wanted, wanted.told, patience=patience, counts=counts)
    count_claim(counts, outcome, wanted.item)
    return outcome


def count_claim(counts: Counts | None, outcome: Outcome, item: Item) -> None:
    """Count a claim that found another item active."""
    if counts is not None:
        counts.duplicate_prevented += outcome.after.active not in (None, item)
