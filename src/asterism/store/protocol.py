"""The store: one way to write, a few ways to read, and a way to be woken.

**Writing.** ``commit`` takes a batch of writes, each with the revision it expects to replace. Either all of them match
and all is durable when it returns, or nothing happened and Conflict says which did not match. StoreUnavailable is the
third answer: it may or may not have happened, and the caller has to look. Every change of a run goes through it,
whoever makes it; ``take`` and ``beat`` are the two reads that write on the way, because fleets live in them.

**Time.** ``clock()`` is the store's clock, which judges all expiry. Where the store is another machine it is an
estimate of that machine's clock that does not follow ours when ours jumps.

**Peers.** A store that exchanges records with others (core/run/merge.py) numbers its changes: see ``Feeding``. A store
that does not pays nothing for it.

**Waking.** A ``Watch`` is woken after a commit that concerns one of its topics, also by another process, sooner or
later: who waits looks again from time to time in any case.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast

from asterism.core.run.run import Progress, Run, RunStatus
from asterism.core.run.session import Session
from asterism.store.store_errors import StoreError

# -- writes ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PutRun:
    """``expected`` is the revision it replaces; None for a run that must not be there yet."""

    run: Run
    expected: int | None


@dataclass(frozen=True, slots=True)
class PutCopy:
    """A record as a peer made it, of which that peer is the judge: it is offered to nobody here, its times are not
    judged here, and its owner is nobody's orphan. ``left_to`` is the id of the peer's store. The mark belongs to the
    row and not to the record, and the next PutRun of it removes it: then the run is this store's own to judge.
    ``same`` is whether that peer has exactly this record, so that it need not be told. The feed has to be started.
    If it has ended, the store remembers when it first saw that end: ``ended_at`` is by another clock."""

    run: Run
    expected: int | None
    left_to: str
    same: bool = True


@dataclass(frozen=True, slots=True)
class PutSession:
    """Writes everything but ``used``, which the store counts, and ``beat_at``, which is the store's own clock: the
    moment at which a new session is written, and then of each heartbeat. One that lies in the future, because the clock
    was set back, becomes now. A session that is abroad has no heartbeats here: it is heard of with each write."""

    session: Session
    expected: int | None


@dataclass(frozen=True, slots=True)
class PutRegister:
    """A small document under a key; a value of None removes it. One that is removed and written again begins at
    revision 1, so keys that several may change at once are never removed."""

    key: str
    value: Any
    expected: int | None


@dataclass(frozen=True, slots=True)
class ExpectSession:
    """Writes nothing: the commit happens only if no heartbeat of this session came in since ``revision``."""

    session: str
    revision: int


@dataclass(frozen=True, slots=True)
class ExpectRegister:
    """Writes nothing: the commit happens only if the register is at ``revision``."""

    key: str
    revision: int


@dataclass(frozen=True, slots=True)
class Notice:
    """Something worth telling that is no change of a record, such as a result that came too late."""

    at: float
    kind: str
    message: str
    run: str | None = None
    device: str | None = None


class Contribution(NamedTuple):
    """What a peer has brought here with a run: ``runs`` is 1 if it was first heard of from that peer, ``bytes`` and
    ``blobs`` are by how many bytes the record and what is large in it have grown by that. It is added to what is known
    of that run and peer, and forgotten with the run. ``store`` is the id of the peer's store."""

    run: str
    store: str
    runs: int
    bytes: int
    blobs: int


class Usage(NamedTuple):
    """The sum of what a peer has brought here: the number of runs, and bytes of records and of large things."""

    runs: int = 0
    bytes: int = 0
    blobs: int = 0


Write = PutRun | PutCopy | PutSession | PutRegister | ExpectSession | ExpectRegister | Contribution | Notice


# -- reads -------------------------------------------------------------------------------------------------------------


class Register(NamedTuple):
    key: str
    value: Any
    revision: int


@dataclass(frozen=True, slots=True)
class Query:
    """Runs that satisfy everything that is given, oldest first unless ``newest``. ``after`` is the id to go on
    after. A copy that is left to a peer is not ``offered``, and not ``judged`` here."""

    statuses: frozenset[RunStatus] | None = None
    workflow: str | None = None
    device: str | None = None
    session: str | None = None
    series: str | None = None
    key: str | None = None
    offered: bool | None = None
    judged: bool | None = None
    avoiding: bool | None = None
    due_before: float | None = None
    ended_before: float | None = None
    waiting_before: float | None = None
    id_like: str | None = None
    after: str | None = None
    newest: bool = False
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class TakeRequest:
    """What a device with room asks for: runs of any kind but ``not_kinds``, the most urgent first."""

    device: str
    not_kinds: frozenset[str]
    now: float
    limit: int
    above: int | None = None
    """Only runs more urgent than this priority."""


class ProgressReport(NamedTuple):
    """How far an execution has come; ``tail`` is the end of its output."""

    run: str
    epoch: int
    progress: Progress | None
    tail: str


class OwnedRun(NamedTuple):
    """A run as a heartbeat's answer names it: what the store thinks the session owns, and what is wished of it."""

    run: str
    epoch: int
    status: RunStatus
    wish: str | None


class HeartbeatReply(NamedTuple):
    """What a heartbeat brings back. ``alive`` is False for a session that is not the device any more."""

    now: float
    alive: bool
    draining: bool
    held: Sequence[OwnedRun]


class WaitingRuns(NamedTuple):
    """The offered runs of one kind, for one pinned device or for any."""

    workflow: str
    version: int
    pinned: str | None
    number: int
    since: float


class Change(NamedTuple):
    """A run as it is now, and the number of its last change. ``left_to`` and ``same`` are those of its PutCopy."""

    number: int
    run: Run
    left_to: str | None
    same: bool


class Watch(Protocol):
    async def wait(self, timeout: float) -> bool:
        """True if woken, False after ``timeout`` seconds. A wake before the call counts."""
        ...

    def close(self) -> None: ...


OFFERED = "offered"
"""The topic of runs that any device may take."""

ENDED = "ended"
"""The topic of runs that ended."""


def for_device(name: str) -> str:
    """The topic of what concerns one device."""
    return f"device {name}"


class Store(Protocol):
    """See the module's docstring. Every method that is awaited may raise StoreUnavailable."""

    @property
    def url(self) -> str:
        """How it is named in messages, without a password."""
        ...

    def clock(self) -> float: ...

    async def commit(self, writes: Sequence[Write]) -> None: ...

    async def take(self, offer: TakeRequest, step: Callable[[Run], Run | None]) -> list[Run]:
        """Offer runs to ``step``, and commit those for which it returns a successor. What others are taking at the
        same moment is passed over. ``step`` does nothing else: it may be called in another thread, and again."""
        ...

    async def heartbeat(
        self, session: str, profile: Mapping[str, Any], reports: Sequence[ProgressReport]
    ) -> HeartbeatReply:
        """One heartbeat for everything the session owns. Reports that do not name the current epoch are dropped."""
        ...

    async def run(self, run_id: str) -> Run | None: ...

    async def find(self, query: Query) -> list[Run]: ...

    async def orphans(self, now: float, limit: int) -> list[tuple[Run, Session]]:
        """Runs whose owner has ended or was not heard of for longer than they allow, with that owner. One that is only
        assigned has its own time to be answered in, however rarely its device is heard of while it has no work."""
        ...

    async def waiting(self) -> list[WaitingRuns]: ...

    async def counts(self) -> Mapping[RunStatus, int]: ...

    async def sessions(self, *, ended: bool = False) -> list[Session]:
        """Those that are open or replaced; with ``ended`` all that are still remembered."""
        ...

    async def register(self, key: str) -> Register | None: ...

    async def registers(self, prefix: str) -> list[Register]: ...

    async def reports(self, run_ids: Sequence[str]) -> dict[str, ProgressReport]: ...

    async def notices(self, *, run: str | None = None, after: int = 0, limit: int = 100) -> list[tuple[int, Notice]]:
        """Oldest first, numbered, those after number ``after``."""
        ...

    async def put_blob(self, data: bytes) -> str:
        """Keep something large; durable when it returns. The same bytes have the same name."""
        ...

    async def blob(self, name: str) -> bytes | None: ...

    async def prune(self, ended_before: float, limit: int, *, spare: float = 0.0, keep: Sequence[str] = ()) -> int:
        """Forget runs that ended before then, ``limit`` at most; and, when none is left to forget, ended sessions,
        notices and blobs that nothing refers to any more. Returns how many runs it were. What ended elsewhere
        (``PutCopy``) counts from when this store first saw that it had, whatever its ``ended_at`` says. Blobs that
        were kept less than ``spare`` seconds ago are left alone: the run they belong to may be on its way. So are runs
        whose key begins with one of ``keep``: somebody has yet to look at them."""
        ...

    async def check(self) -> list[str]:
        """Everything that is wrong with what is stored; nothing, if all is well."""
        ...

    def dump(self) -> AsyncIterator[Mapping[str, Any]]:
        """Everything, at one instant, as JSON objects; the first says what it is."""
        ...

    async def load(self, lines: AsyncIterator[Mapping[str, Any]]) -> int:
        """Fill an empty store from a dump. Returns the number of runs."""
        ...

    def watch(self, topics: frozenset[str]) -> Watch: ...

    async def close(self) -> None: ...


class ChangeFeed(Protocol):
    """What a store offers that exchanges records with others. Each write of a run moves it to the end of the feed, so
    that only its newest state is read from there. The feed has an id, the register ``feed/id``, which is another one
    after a backup was restored."""

    async def start_feed(self) -> str:
        """Number all runs there are, and every change from now on. Done once; returns the id of the feed."""
        ...

    async def changes(self, after: int, limit: int) -> list[Change]:
        """Those after number ``after``, in the order of their numbers."""
        ...

    async def newest(self) -> int:
        """The highest number that was ever given; 0 if there is no feed."""
        ...

    async def left_to(self, run_ids: Sequence[str]) -> dict[str, str]:
        """To whom they are left, of those that are left to somebody."""
        ...

    async def copies(self, left_to: str, limit: int, after: str = "") -> list[Run]:
        """What is left to a peer and has not ended, by id; those after one."""
        ...

    async def judges(self) -> set[str]:
        """Everybody to whom something is left that has not ended."""
        ...

    async def forget_sessions(self, ids: Sequence[str]) -> None:
        """Those among them that have ended and own nothing, however young they are."""
        ...

    async def usage(self, store: str) -> Usage:
        """What a peer has brought here, of what is kept."""
        ...

    async def came_from_peers(self, run_ids: Sequence[str]) -> set[str]:
        """Those among them to which a peer has contributed: the others were created here."""
        ...

    async def came_from(self, store: str) -> list[Run]:
        """The runs that were first heard of from a peer and have not ended, by id."""
        ...

    async def kinds(self) -> set[str]:
        """The kinds of all runs that are kept: ``workflow@version``."""
        ...


FEED = "feed/id"
"""The register with the id of the feed."""

NOTIFIED = "notified"
"""The register that says up to which notice people have been told."""


async def last_notice(store: Store, after: int = 0) -> int:
    """The number of the latest notice; or ``after``, if none came after that."""
    while found := await store.notices(after=after, limit=1000):
        after = found[-1][0]
    return after


def has_feed(store: Store) -> bool:
    return hasattr(store, "start_feed")


def feed_of(store: Store) -> ChangeFeed:
    """Raises StoreError for an engine that has none."""
    if not has_feed(store):
        raise StoreError(f"{store.url} cannot exchange records with peers")
    return cast(ChangeFeed, store)


def topic_of(run: Run) -> str | None:
    """Whom a run concerns that was just written."""
    if run.session is None:
        return OFFERED if run.offered else ENDED if run.ended else None
    return for_device(run.device or "") if run.status is RunStatus.ASSIGNED or run.wish is not None else None


def topics_of(writes: Iterable[Write]) -> set[str]:
    """Whom a commit concerns."""
    topics: set[str] = set()
    for write in writes:
        if type(write) is PutRun:
            topic = topic_of(write.run)
            if topic is not None:
                topics.add(topic)
        elif type(write) is PutCopy:
            run = write.run
            if run.ended:
                topics.add(ENDED)
            elif run.device is not None:
                topics.add(for_device(run.device))
        elif type(write) is PutSession and write.session.draining:
            topics.add(for_device(write.session.device))
    return topics


def check_distinct_records(writes: Sequence[Write]) -> None:
    """Raises ValueError for a batch that names a record twice, or gives two runs one key: whatever came of it would
    depend on the order in which an engine goes about it, and no retry could make it right."""
    if len(writes) < 2:
        return
    if type(writes[0]) is PutRun:
        changed = {write.run.id for write in writes if type(write) is PutRun and write.expected is not None}
        if len(changed) == len(writes):
            return  # so it is of many that end together
    seen = set()
    for write in writes:
        for name in _names(write):
            if name in seen:
                raise ValueError(f"one batch names {' '.join(name)} twice")
            seen.add(name)


def _names(write: Write) -> tuple[tuple[str, str], ...]:
    """What a write is about. Not by a pattern: this is on the way of every commit."""
    if type(write) is PutRun and write.expected is not None:
        return (("run", write.run.id),)
    if isinstance(write, PutRegister | ExpectRegister):
        return (("register", write.key),)
    if isinstance(write, PutRun | PutCopy):
        if write.expected is None and write.run.key is not None:
            return ("run", write.run.id), ("key", write.run.key)
        return (("run", write.run.id),)
    if isinstance(write, PutSession):
        return (("session", write.session.id),)
    return (("session", write.session),) if isinstance(write, ExpectSession) else ()
