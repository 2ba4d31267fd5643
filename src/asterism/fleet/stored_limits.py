"""Limits as a store keeps them: what is set, the accounts, who holds and waits; and the queue of runs that use them.

Who holds a limit is a run that a device owns, or a ``Hold``: a register of a task that the process of a plan does
itself. That writes it with the journal of its plan: ``StoredLimits.grant`` returns the writes with which it is granted,
and ``StoredHold.release`` the one with which it ends. A hold of a process that died is removed by the next owner of the
plan, or by the coordinator (``release_lost_holds``).

A limit is a register, and its account another one. Every grant writes the account in place of the revision that was
read, and so does every change of the limit: a grant that was judged by the limit before it meets a conflict. The
account stays when the limit is removed.

``LimitedQueue`` is the only place where a run that uses limits is granted (core/limits.py has the rules). In one commit
it writes the grants and the accounts of their limits, each in place of the revision that was read before the holders
were counted. So whatever another process has granted meanwhile is a conflict, and nothing is granted that would exceed
a limit. A write that frees a limit needs no account: it only makes room.

A device looks here when a run that uses limits, or a limit, has changed, and while some wait. In a store without such
runs that is never: a look costs nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from asterism.base.clock import Clock
from asterism.core.errors import AsterismError, PlanError
from asterism.core.limits import (
    SERIES,
    SERIES_LIMIT,
    Account,
    Hold,
    InvalidLimit,
    Limit,
    LimitBook,
    LimitedRuns,
    UnknownLimit,
    check_uses,
    uses_of,
)
from asterism.core.record import replace
from asterism.core.run import transitions
from asterism.core.run.run import Run
from asterism.core.run.session import Session
from asterism.store.optimistic_update import retried, retry_on_conflict, try_commit
from asterism.store.protocol import (
    LIMIT_ACCOUNTS,
    LIMIT_HOLDS,
    LIMITED,
    LIMITS,
    ExpectSession,
    PutRegister,
    PutRun,
    Slot,
    Store,
    TakeRequest,
    Write,
    read_slot,
)
from asterism.store.store_errors import Conflict

if TYPE_CHECKING:
    from asterism.core.plan.constellation import Constellation

log = logging.getLogger("asterism.device")


class LimitNotSet(AsterismError):
    """A limit that is to be shown or removed is not set."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no limit {name!r} is set; 'asterism limit list' shows those that are")


class StoredHold(NamedTuple):
    """A hold with the revision of its register; None for one that is not written yet."""

    hold: Hold
    revision: int | None = None

    @property
    def key(self) -> str:
        return f"{LIMIT_HOLDS}{quote(self.hold.plan, safe='')}/{self.hold.id}"

    @property
    def group(self) -> LimitedRuns:
        return self.hold.group

    def put(self) -> PutRegister:
        """The write with which it waits."""
        return PutRegister(self.key, self.hold.to_json(), self.revision)

    @property
    def release(self) -> PutRegister:
        """The write with which it ends. It conflicts if somebody has released it: the session had ended."""
        return PutRegister(self.key, None, self.revision)


class StoredLimits(NamedTuple):
    """The limits of a store at one moment, and who uses them. ``revisions`` are those of the accounts, ``holds`` do
    not contain those that wait for a process that does not live."""

    limits: dict[str, Limit]
    accounts: dict[str, Account]
    revisions: dict[str, int]
    runs: list[LimitedRuns]
    holds: list[StoredHold]

    @property
    def groups(self) -> list[LimitedRuns]:
        """All runs and holds."""
        return [*self.runs, *(stored.group for stored in self.holds)]

    def grant(self, stored: StoredHold, book: LimitBook, now: float) -> list[Write] | None:
        """Grant a hold in this book: the writes for the commit with which its work begins, together with
        ``account_writes`` of the book. None if it has to wait.

        Whose turn comes before keeps its room: another hold in any case, a run that a device can take for
        ``LOOK_INTERVAL`` only, since it is not known whether there is such a device."""
        others = [other.group for other in self.holds if other.hold.id != stored.hold.id]
        if now - stored.hold.at < LOOK_INTERVAL:
            others += self.runs
        left = [stored.group, *(group for group in others if group.waiting)]
        while (group := next(book.in_turn(left), None)) is not None:
            uses = uses_of(group.uses)
            if group.first == stored.hold.id:
                book.grant(uses, group.turn)
                return [stored._replace(hold=replace(stored.hold, granted=True, at=now)).put()]
            book.keep(uses)
            left.remove(group)
        return None

    def book(self, now: float) -> LimitBook:
        held: Counter[str] = Counter()
        next_in: dict[str, str] = {}
        for group in self.groups:
            uses = uses_of(group.uses)
            if not group.waiting:
                held.update({name: amount * group.number for name, amount in uses.items()})
            else:
                next_in |= {name: min(next_in.get(name, "~"), group.first) for name in uses if name.startswith(SERIES)}
        return LimitBook(self.limits, self.accounts, held, now, next_in)

    def account_writes(self, book: LimitBook) -> list[Write]:
        """The accounts that a book has changed, in place of those that were read."""
        return [self._account_write(name, book.account(name)) for name in sorted(book.changed)]

    def rewound(self, now: float) -> list[Write]:
        """The accounts that count what began in the future: until they are written, their rates have no room."""
        rates = {name: limit.rate for name, limit in self.limits.items() if limit.rate is not None}
        return [
            self._account_write(name, account)
            for name, account in self.accounts.items()
            if name in rates and account.rewind(rates[name], now)
        ]

    def _account_write(self, name: str, account: Account) -> Write:
        return PutRegister(f"{LIMIT_ACCOUNTS}{name}", account.to_json(), self.revisions.get(name))


async def read_limits(store: Store) -> dict[str, Limit]:
    """The limits that are set, by name, and that of series. Raises an error for one that cannot be read."""
    return {
        limit.name: limit
        for limit in (SERIES_LIMIT, *(one.read(Limit.from_json) for one in await store.registers(LIMITS)))
    }


async def check_plan_limits(store: Store, plan: Constellation) -> None:
    """Raise PlanError for a task that uses a limit which is not set, or more of one than it allows. What the elements
    of a ``foreach`` use is known when they begin."""
    uses = {node.id: node.task.uses for node in plan.nodes.values() if node.task.uses}
    limits = await read_limits(store) if uses else {}
    for task_id, used in uses.items():
        try:
            check_uses(limits, {name: amount for name, amount in used.items() if "{" not in name})
        except (UnknownLimit, InvalidLimit) as error:
            raise PlanError(f"task {task_id!r}: {error}") from None


async def read_stored_limits(store: Store) -> StoredLimits:
    """What a grant is judged by. The accounts are read first: a grant after that changes one of them."""
    registers = await store.registers(LIMIT_ACCOUNTS)
    accounts = {register.key.removeprefix(LIMIT_ACCOUNTS): register for register in registers}
    return StoredLimits(
        await read_limits(store),
        {name: register.read(Account.from_json) for name, register in accounts.items()},
        {name: register.revision for name, register in accounts.items()},
        _readable(await store.limited()),
        await _judged_holds(store),
    )


async def read_holds(store: Store, plan: str | None = None) -> list[StoredHold]:
    """The holds of all plans, or those of one."""
    registers = await store.registers(LIMIT_HOLDS if plan is None else f"{LIMIT_HOLDS}{quote(plan, safe='')}/")
    return [StoredHold(register.read(Hold.from_json), register.revision) for register in registers]


async def _judged_holds(store: Store) -> list[StoredHold]:
    """The holds without those that wait for a process that does not live: they would keep their room for nothing."""
    holds = await read_holds(store)
    if all(stored.hold.granted for stored in holds):
        return holds
    now = store.clock()
    live = {session.id for session in await store.sessions() if session.reachable(now)}
    return [stored for stored in holds if stored.hold.granted or stored.hold.session in live]


async def release_lost_holds(store: Store, silent_for: Callable[[Session], float]) -> None:
    """Remove the holds of sessions that have ended, or were silent for their timeout, by the clock of the store and by
    that of the caller, who has observed them: their processes have stopped their work by then."""
    holds = await read_holds(store)
    if not holds:
        return
    sessions, now = {session.id: session for session in await store.sessions()}, store.clock()
    for stored in holds:
        session = sessions.get(stored.hold.session)
        if session is None:
            await try_commit(store, [stored.release])
        elif now - session.beat_at > session.timeout and silent_for(session) > session.timeout:
            await try_commit(store, [stored.release, ExpectSession(session.id, session.revision)])


async def users(store: Store, stored: StoredLimits, groups: Iterable[LimitedRuns], most: int) -> list[Run | Hold]:
    """The runs and holds of these groups, in their order, at most so many."""
    holds = {other.group: other.hold for other in stored.holds}
    found: list[Run | Hold] = []
    for group in groups:
        if len(found) < most:
            found += [holds[group]] if group in holds else await store.limited_runs(group, most - len(found))
    return found


def _readable(groups: Sequence[LimitedRuns]) -> list[LimitedRuns]:
    readable = []
    for group in groups:
        try:
            uses_of(group.uses)
        except ValueError as error:
            log.error("passed over runs of %s that wait for limits: %s", group.workflow, error)
        else:
            readable.append(group)
    return readable


@retried
async def set_limit(store: Store, limit: Limit) -> Limit | None:
    """Set a limit, or change it: at once for what waits, and what runs goes on. Returns what it was before. Raises
    InvalidLimit for that of a series."""
    if limit.name.startswith(SERIES):
        raise InvalidLimit(f"limit {limit.name!r} is that of a series of runs, which is always 1: choose another name")
    account, definition = await _read(store, limit.name)
    before = None if definition.value is None else Limit.from_json(definition.value)
    after = Account.from_json(account.value)
    after.recount(None if before is None else before.rate, limit.rate, store.clock())
    await store.commit([definition.put(limit.to_json()), account.put(after.to_json())])
    return before


@retried
async def remove_limit(store: Store, name: str) -> Limit:
    """Remove a limit, and return it. What waits for it waits until it is set again. Raises LimitNotSet."""
    account, definition = await _read(store, name)
    if definition.value is None:
        raise LimitNotSet(name)
    await store.commit([definition.put(None), account.put(account.value)])
    return Limit.from_json(definition.value)


async def _read(store: Store, name: str) -> tuple[Slot, Slot]:
    """The account of a limit, and its definition."""
    account = await read_slot(store, f"{LIMIT_ACCOUNTS}{name}", Account().to_json())
    return account, await read_slot(store, f"{LIMITS}{name}")


# -- the queue of runs that use limits --------------------------------------------------------------------------------


LOOK_INTERVAL = 5.0
"""How often the queue is looked at without a wake, in seconds: a wake may get lost."""

TRIES = 5
"""How often a take is tried again after a conflict. The next look goes on from there."""

PAGE, MOST_PAGES = 50, 20
"""How many runs of one group are read at once, and how often: those that wait for other devices may come first."""

Step = Callable[[Run], Run | None]


class Taken(NamedTuple):
    """What a device has taken. ``look_in`` is in how many seconds a rate has room for a run that waits for nothing
    else, and ``look_when_free`` whether runs may wait that were passed over because no slot was free."""

    runs: list[Run]
    look_in: float | None = None
    look_when_free: bool = False


class LimitedQueue:
    """Takes runs for the devices of one process, those that use limits and all others."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._watch = store.watch(frozenset({LIMITED}))
        self._turn = asyncio.Lock()  # of two takers in one process, one would only meet a conflict
        self._some_wait = True
        self._looked_at = float("-inf")

    def close(self) -> None:
        self._watch.close()

    async def take(self, request: TakeRequest, step: Step, free: int) -> Taken:
        """As ``Store.take``, also runs that use limits: up to ``free`` of them, since one that waited on a device for
        its slot would hold its limits for nothing. Offered runs of a higher priority than theirs go first."""
        may_have = await self._may_have()
        if free <= 0 or not may_have:
            return Taken(await self._store.take(request, step), look_when_free=may_have)
        urgency, look_in = await self._look()
        if urgency is None:
            return Taken(await self._store.take(request, step), look_in)
        above = urgency if request.above is None else max(urgency, request.above)
        taken = await self._store.take(replace(request, above=above), step)
        try:
            async with self._turn:
                taken += await self._take_limited(_rest(request, taken), step, free - len(taken))
            taken += await self._store.take(_rest(request, taken), step)
        except Exception:
            if not taken:
                raise
            log.debug("took fewer runs than there may be", exc_info=True)
        return Taken(taken, look_in)

    async def _may_have(self) -> bool:
        """Whether a run that uses limits may wait. Without a wake, only a look from time to time tells."""
        if self._watch.woken:
            await self._watch.wait(0.0)
            self._some_wait = True
        return self._some_wait or self._clock.time() - self._looked_at > LOOK_INTERVAL

    async def _look(self) -> tuple[int | None, float | None]:
        """The highest priority of the runs for which there is room, None if there are none; and in how many seconds a
        rate has room for others."""
        self._looked_at = self._clock.time()
        self._some_wait = any(group.waiting for group in await self._store.limited())
        if not self._some_wait:
            return None, None
        stored = await read_stored_limits(self._store)
        now = self._store.clock()
        if rewound := stored.rewound(now):
            await try_commit(self._store, rewound)
        book = stored.book(now)
        waiting = [group for group in stored.runs if group.waiting]
        room_at = book.room_at(waiting)
        look_in = None if room_at is None else max(0.0, room_at - now)
        first = next(book.in_turn(waiting), None)
        return None if first is None else first.priority, look_in

    async def _take_limited(self, request: TakeRequest, step: Step, free: int) -> list[Run]:
        limit = min(request.limit, free)
        if limit <= 0:
            return []

        async def attempt() -> list[Run]:
            stored = await read_stored_limits(self._store)
            holds = frozenset(hold.group for hold in stored.holds)
            choice = _Choice(self._store, request, step, stored.book(self._store.clock()))
            taken = await choice.choose([group for group in stored.groups if group.waiting], limit, holds)
            if taken:
                await self._store.commit([*taken, *stored.account_writes(choice.book)])
            return [write.run for write in taken]

        try:
            return await retry_on_conflict(attempt, tries=TRIES, clock=self._clock)
        except Conflict:
            return []


def _rest(request: TakeRequest, taken: Sequence[Run]) -> TakeRequest:
    return replace(request, limit=request.limit - len(taken))


class _Choice:
    """What one device takes of the runs that wait for limits."""

    def __init__(self, store: Store, request: TakeRequest, step: Step, book: LimitBook) -> None:
        self._store, self._request, self._step, self.book = store, request, step, book
        self._candidates: dict[LimitedRuns, _Candidates] = {}

    async def choose(self, waiting: Sequence[LimitedRuns], limit: int, holds: Container[LimitedRuns]) -> list[PutRun]:
        """Up to ``limit`` grants, in fair turns. ``holds`` are granted by others: they keep their room."""
        above = self._request.above
        left = [group for group in waiting if above is None or group.priority > above]
        taken: list[PutRun] = []
        while len(taken) < limit and (group := next(self.book.in_turn(left), None)) is not None:
            if group in holds:
                self.book.keep(uses_of(group.uses))
                left.remove(group)
                continue
            write = await self._next(group)
            if write is None:
                left.remove(group)
            else:
                self.book.grant(uses_of(group.uses), group.turn)
                taken.append(write)
        return taken

    async def _next(self, group: LimitedRuns) -> PutRun | None:
        """The next run of a group that the device takes, as it is granted."""
        candidates = self._candidates.get(group)
        if candidates is None:
            candidates = self._candidates[group] = _Candidates(self._store, self._request, group)
        while (run := await candidates.next()) is not None:
            after = self._step(transitions.admit(run))
            if after is not None:
                return PutRun(after, run.revision)
        return None


class _Candidates:
    """The runs of a group that suit a device, read page by page."""

    def __init__(self, store: Store, request: TakeRequest, group: LimitedRuns) -> None:
        self._store, self._request, self._group = store, request, group
        self._page: list[Run] = []  # the first of it last
        self._after, self._pages_left, self._length = "", MOST_PAGES, PAGE
        if any(name.startswith(SERIES) for name in uses_of(group.uses)):  # nobody overtakes the first
            self._pages_left, self._length = 1, 1

    async def next(self) -> Run | None:
        while True:
            while self._page:
                run = self._page.pop()
                if self._request.suits(run):
                    return run
            if not self._pages_left:
                return None
            page = await self._store.limited_runs(self._group, self._length, after=self._after)
            self._pages_left = self._pages_left - 1 if len(page) == self._length else 0
            self._after = page[-1].id if page else ""
            self._page = page[::-1]
