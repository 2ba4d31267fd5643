"""The update loop of series registers: read, apply a step, compare-and-swap, try again after a conflict.

``update`` reads the newest state, passes it to a step, and writes the result only if the state is still the newest. Any
number of callers can therefore change a series at the same time: their changes happen one after the other.

The register may be on a git remote or on GitHub, so the reply to a write can get lost and a try can hang. For the
records of a store, which are written by ``commit``, store/optimistic_update.py has the loop.

A step is a pure function that returns the same object when there is nothing to change, as the operations of ``Series``
do. After a lost reply the step runs again on the state that is there then, and finds its change already made.

After a conflict the loop pauses for a random time, so that callers that collided once do not collide again; without a
limit of tries, which is the default, the pauses grow. When the time or the tries run out it raises Contended: nothing
was written. If no try met a conflict, it raises the last error instead. A
deadline also ends a try that hangs; if that try was writing, the outcome is unknown. A state that cannot be read raises
UnreadableSeries, because it may hold any claim. Only an update with ``repair`` replaces it, also by compare-and-swap.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable

from asterism.core.backoff import retry_delay
from asterism.core.record import Record, Struct, field
from asterism.core.series.machine import SCHEMA, Item, Series, UnreadableSeries
from asterism.series.register import (
    OutcomeUnknown,
    RateLimited,
    RegisterBusy,
    RegisterUnavailable,
    RevisionConflict,
    SeriesError,
    SeriesRegister,
    Snapshot,
)

Step = Callable[[Series, float], Series]
"""Maps a series and the current time to the changed series, or to the same object if there is nothing to change."""

Message = str | Callable[[Series, Series], str]
"""The message of a change, or a function that makes it from the series before and after."""

DEFAULT_DEADLINE = 120.0
"""How long an update is tried, in seconds. A limit of tries gives up under load, where the caller is one of many."""
RETRY_PAUSE = (0.2, 0.8)
"""The shortest and the longest pause between two tries, in seconds."""

MAX_PAUSE_FACTOR = 8.0
"""Without a limit of tries the longest pause grows with each try, up to this factor."""

REPAIR_HISTORY = 20
"""How many earlier states a repair searches for the last revision."""

MAX_RATE_LIMIT_WAIT = 120.0
"""The longest wait for a rate limit without a deadline, in seconds."""


class Contended(SeriesError):
    """Other writers won every try until the limit. Nothing was written.

    ``conflicts`` is the number of tries that met a conflict; None for all of them."""

    def __init__(self, name: str, tries: int, seconds: float, conflicts: int | None = None) -> None:
        self.tries, self.seconds = tries, seconds
        lost = f"all {tries}" if conflicts in (None, tries) else f"{conflicts} of {tries}"
        super().__init__(
            f"series {name} is contended: other writers won {lost} tries within {seconds:.1f} s; nothing "
            "was written; run the command again, or allow more time (--deadline) or tries (--tries)"
        )


class UpdateCounts(Struct):
    """What happened during updates, added up over all of them."""

    swaps: int = 0
    """Changes that were written."""
    retries: int = 0
    """Tries after the first."""
    conflicts: int = 0
    """Tries that another writer won."""
    unsure: int = 0
    """Lost replies."""
    rate_limited: int = 0
    duplicate_prevented: int = 0
    """Claims that found another item active, so that no second item was assigned."""
    promotion_events: int = 0
    """Items that became active from the queue."""


class Outcome(Record):
    """The series ``before`` and ``after`` an update; the same object if nothing ``changed``.

    ``token`` identifies ``after`` in the register. ``promoted`` is the item that became active from the queue."""

    before: Series
    after: Series
    changed: bool
    token: str | None
    tries: int
    promoted: Item | None = None


class RetryOptions(Record):
    """How often and how long to try.

    With ``tries`` 0 there is no limit but the ``deadline``, in seconds from the start; None for no deadline."""

    tries: int = 0
    jitter: tuple[float, float] = RETRY_PAUSE
    deadline: float | None = DEFAULT_DEADLINE
    chance: random.Random = field(default_factory=random.SystemRandom)
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def limited(cls, tries: int | None, deadline: float | None) -> RetryOptions:
        """With the limits that a person gave. The default deadline is for who gave neither."""
        if tries is None:
            return cls() if deadline is None else cls(deadline=deadline)
        return cls(tries=tries, deadline=deadline)


async def update(
    register: SeriesRegister,
    name: str,
    step: Step,
    message: Message,
    *,
    repair: bool = False,
    retry: RetryOptions | None = None,
    counts: UpdateCounts | None = None,
) -> Outcome:
    """Change a series by a step.

    :param repair: also change a state that cannot be read, or that was lost: ``step`` gets what can be salvaged, and
        its result replaces the state unless another writer was faster. The revision continues from the history, as far
        as the register keeps one.
    :raises Contended: other writers won every try.
    :raises UnreadableSeries: the state cannot be read, and ``repair`` is False.
    :raises SeriesError: as the register raises it.
    """
    retry = retry or RetryOptions()
    attempts = _Attempts(name, retry, counts if counts is not None else UpdateCounts())
    while True:
        pause, timer = attempts.begin()
        try:
            async with timer:
                return await _try_once(register, name, step, message, repair, attempts)
        except RevisionConflict as error:
            attempts.lost_race(error)
        except OutcomeUnknown as error:
            attempts.lost_reply(error)
        except RateLimited as error:
            pause += error.retry_after
            attempts.rate_limited(pause, error)
        except RegisterBusy as error:
            attempts.found_busy(error)
        except RegisterUnavailable as error:
            raise attempts.unavailable(error) from error
        except TimeoutError:
            if not timer.expired():
                raise
            raise attempts.cut_off(register.url) from None
        attempts.check_limits(pause)
        await retry.sleep(pause)


async def _try_once(
    register: SeriesRegister, name: str, step: Step, message: Message, repair: bool, attempts: _Attempts
) -> Outcome:
    seen = await register.read(name)
    attempts.seen = seen
    if attempts.tries > 1:
        attempts.compare_with_earlier(seen)
    broken = repair and unreadable_reason(seen.text, name) is not None
    if broken or (repair and seen.token is None):
        earlier = [change.text for change in await register.history(name, REPAIR_HISTORY)]
        before = Series.salvaged(seen.text, name, earlier)
    else:
        before = Series.from_text(seen.text, name)
    now = register.clock()
    after = step(before, now)
    if after is before:
        if not broken:
            return Outcome(before, before, False, seen.token, attempts.tries)
        after = before.stamped(now)
    text = after.to_text()
    said = message if isinstance(message, str) else message(before, after)
    attempts.writing = True
    token = await register.swap(name, seen.token, text, said)
    promoted = after.active if after.active in before.queue else None
    attempts.counts.swaps += 1
    attempts.counts.promotion_events += promoted is not None
    return Outcome(before, after, True, token, attempts.tries, promoted)


def unreadable_reason(text: str | None, name: str) -> UnreadableSeries | None:
    """Why a state cannot be read; None if it can."""
    try:
        Series.from_text(text, name)
    except UnreadableSeries as error:
        return error
    return None


def is_newer_version(text: str | None) -> bool:
    """Whether a later version of Asterism wrote this state."""
    try:
        version = json.loads(text or "null")["version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return False
    return type(version) is int and version > SCHEMA


class _Attempts:
    """The tries of one update: their number and time, and whether an earlier write may still take effect.

    A swap whose reply was lost may even arrive later, but only while the state is the one that it expects. As soon as
    another state is seen, the swap either happened, and the step finds its change made, or it never will."""

    def __init__(self, name: str, retry: RetryOptions, counts: UpdateCounts) -> None:
        self.tries = 0
        self.counts = counts
        self.writing = False
        """Whether this try has reached its swap."""
        self._last_error: SeriesError | None = None
        self._name, self._retry = name, retry
        self._started = self._try_started = retry.clock()
        self._longest_try = 0.0
        self._conflicts = 0
        self.seen: Snapshot | None = None
        """What this try has read."""
        self._unknown: tuple[str | None, OutcomeUnknown] | None = None
        """The token that a swap with a lost reply expects, and its error."""
        self._busy: tuple[str | None, RegisterBusy] | None = None

    def begin(self) -> tuple[float, asyncio.Timeout]:
        """Begin a try. Returns the pause after it, and the timeout that ends it at the deadline."""
        self.tries += 1
        self.counts.retries += self.tries > 1
        self.writing, self.seen, self._try_started = False, None, self._retry.clock()
        shortest, longest = self._retry.jitter
        # without a limit of tries, a caller that lost before is one of many: it makes room for the others
        factor = 1.0 if self._retry.tries else retry_delay(self.tries, 1.0, MAX_PAUSE_FACTOR)
        deadline = self._retry.deadline
        left = None if deadline is None else max(0.0, self._started + deadline - self._try_started)
        return self._retry.chance.uniform(shortest, longest * factor), asyncio.timeout(left)

    def compare_with_earlier(self, seen: Snapshot) -> None:
        """Resolve what earlier tries left open: another state shows that another writer was faster, or that a swap with
        a lost reply takes no effect any more."""
        if self._busy is not None and self._busy[0] != seen.token:
            self.lost_race(self._busy[1])
        self._busy = None
        if self._unknown is not None and self._unknown[0] != seen.token:
            self._unknown = None

    def lost_race(self, error: SeriesError) -> None:
        self._last_error = error
        self._conflicts += 1
        self.counts.conflicts += 1

    def found_busy(self, error: RegisterBusy) -> None:
        """It counts as a conflict if the next read shows another state."""
        self._last_error, self._busy = error, self.seen and (self.seen.token, error)

    def lost_reply(self, error: OutcomeUnknown) -> None:
        """A read that failed changed nothing."""
        self.counts.unsure += 1
        if self.seen is not None:
            self._unknown = (self.seen.token, error)
        self._last_error = error if self.seen is not None else RegisterUnavailable(str(error))

    def cut_off(self, url: str) -> SeriesError:
        """The error of a try that the deadline ended."""
        if self._unknown is not None:
            return self._unknown[1]
        reason = f"{url} did not answer within the deadline of {self._retry.deadline:g} s"
        if self.writing:
            self.counts.unsure += 1
            return OutcomeUnknown(f"it is unknown whether series {self._name} was changed: {reason}")
        return RegisterUnavailable(reason)

    def rate_limited(self, pause: float, error: RateLimited) -> None:
        """Raises if the pause is too long."""
        self._last_error = error
        self.counts.rate_limited += 1
        too_long = self._retry.deadline is None and pause > MAX_RATE_LIMIT_WAIT
        if too_long or self._exceeds_deadline(pause):
            raise self.unavailable(error) from error

    def unavailable(self, error: RegisterUnavailable) -> SeriesError:
        """The error of an unavailable register: after a lost reply the outcome is unknown."""
        return error if self._unknown is None else self._unknown[1]

    def check_limits(self, pause: float) -> None:
        """Raises if there is no try or no time left after the pause."""
        self._longest_try = max(self._longest_try, self._retry.clock() - self._try_started)
        last_try = self._retry.tries and self.tries >= self._retry.tries
        # a try that would take as long as the longest one so far must end before the deadline
        if last_try or self._exceeds_deadline(pause + self._longest_try):
            if self._unknown is not None:
                raise self._unknown[1]
            if self._last_error is not None and not self._conflicts:
                raise self._last_error
            raise Contended(self._name, self.tries, self._retry.clock() - self._started, self._conflicts)

    def _exceeds_deadline(self, seconds: float) -> bool:
        deadline = self._retry.deadline
        return deadline is not None and self._retry.clock() + seconds >= self._started + deadline
