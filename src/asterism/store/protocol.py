"""The interfaces of a store: Store, ChangeFeed, Watch, and the values they exchange.

**Writing.** ``commit`` takes a batch of writes, each with the revision it expects to replace. Either all revisions
match and everything is durable when it returns, or nothing happened and Conflict names a record that did not match.
After StoreUnavailable it is unknown whether the commit happened, and the caller has to look. Every change of a run goes
through ``commit``, except that ``take`` and ``heartbeat`` read and write in one step.

**Time.** ``clock()`` is the store's clock, which decides all expiry. If the store is on another machine, it is an
estimate of that machine's clock, and does not follow ours when ours jumps.

**Peers.** A store that exchanges records with others (``core/run/merge.py``) numbers its changes: see ``ChangeFeed``.
A store that does not pays nothing for it.

**Waking.** A ``Watch`` is woken after a commit that concerns one of its topics, also by another process. A wake may
come late or get lost, so a waiter looks again from time to time in any case.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from asterism.core.errors import AsterismError
from asterism.core.limits import LimitedRuns
from asterism.core.record import Record
from asterism.core.run import transitions
from asterism.core.run.run import TERMINAL, Progress, Run, RunStatus
from asterism.core.run.session import Session
from asterism.core.run.work import Work
from asterism.store.store_errors import CorruptRecord, StoreError

Value = TypeVar("Value")

FEED = "feed/id"
"""The register with the id of the change feed."""

LIMITS = "limit/"
LIMIT_ACCOUNTS = "limit-account/"
LIMIT_HOLDS = "limit-hold/"
"""Prefixes of the keys of registers: what defines limits, and their accounts, with the name of the limit; and what
holds them without being a run, with a plan and an id. An account is never removed: one that began again at revision 1
could be mistaken."""

PLANS = "plan/"
"""Prefix of the keys of registers that are heads of plans; the name of the plan follows."""

FAR = 1e300
"""A time that no plan reaches."""

NOTIFIED = "notified"
"""The register with the number of the last notice that people were notified of."""

# -- writes ------------------------------------------------------------------------------------------------------------


class PutRun(Record):
    """Write a run. ``expected`` is the revision it replaces; None for a run that must not exist yet."""

    run: Run
    expected: int | None


class PutCopy(Record):
    """Write a run as a peer recorded it, and leave it to that peer: no device here is offered it, it does not expire
    here, and its owner is never an orphan's. The next PutRun of the run makes it this store's own again. Needs a feed
    that is started. If the run has ended, the store remembers when it first saw that: ``ended_at`` is by another clock.

    :param left_to: the id of the peer's store, which decides about the run. It belongs to the row, not to the record.
    :param same: whether the peer has exactly this record, so that it need not be sent back.
    """

    run: Run
    expected: int | None
    left_to: str
    same: bool = True


class PutSession(Record):
    """Write a session, except for ``used``, which the store counts, and ``beat_at``, which is the store's own clock
    when a session is first written and at each heartbeat; a time in the future becomes now, since the clock was set
    back. A session abroad has no heartbeats here: each write counts as one."""

    session: Session
    expected: int | None


class PutRegister(Record):
    """Write a small document under a key; the value None removes it. A register that was removed and is written again
    begins at revision 1, so never remove one that several processes may change at once."""

    key: str
    value: Any
    expected: int | None


BLOB_USES = "uses-blob/"
"""Prefix of the keys of registers that keep a blob for as long as they exist. The value is the reference to it."""

FILE_USES = "uses-files/"
"""Prefix of the keys of registers that keep files of tasks for as long as they exist. The value is their manifest."""


class ExpectSession(Record):
    """Write nothing: the commit happens only if no heartbeat of this session arrived since ``revision``."""

    session: str
    revision: int


class ExpectRegister(Record):
    """Write nothing: the commit happens only if the register is at ``revision``."""

    key: str
    revision: int


class Notice(Record, forbid_unknown_fields=True):
    """A message for people that is not a change of a record, such as a result that came too late."""

    at: float
    kind: str
    message: str
    run: str | None = None
    device: str | None = None


class StoredChunk(NamedTuple):
    """Consecutive lines of the log of one attempt, as they are stored. ``first`` is the number of the first line,
    ``lines`` how many there are, ``value`` the JSON of a LogChunk, or a reference to the blob that holds it."""

    epoch: int
    first: int
    lines: int
    value: Any


class PutLog(Record):
    """Write a part of the log of a run: chunks, in place of those with the same number. Writing it twice changes
    nothing. The run must exist; its log is deleted with it.

    :param drop: delete the chunks of ``epoch`` whose first line is at least the first and less than the second number.
    """

    run: str
    epoch: int
    chunks: Sequence[StoredChunk]
    drop: tuple[int, int] | None = None


class PutPriority(Record):
    """Change the priority of a run that the same batch writes with ``PutRun`` or ``PutCopy``, and so its place in the
    queue. Those alone leave it as it was, since it hardly ever changes."""

    run: str
    priority: int


class PutPlan(Record):
    """Write the summary of a plan, in place of the one before. A plan is a register whose key begins with ``PLANS``: it
    is listed from the first write of that register on. Each write of the register forgets the summary, so a batch that
    writes both writes the summary last.

    :param state: the state of the plan, by which lists are filtered.
    :param summary: what lists show of it, as JSON.
    """

    name: str
    state: str
    summary: Mapping[str, Any]


class Contribution(NamedTuple):
    """What a peer brought here with one commit, added to what is known of this run and peer, and forgotten with the
    run.

    :param store: the id of the peer's store.
    :param runs: 1 if this store first received the run from that peer, else 0.
    :param bytes: by how many bytes the record grew.
    :param blobs: by how many bytes its blobs grew.
    """

    run: str
    store: str
    runs: int
    bytes: int
    blobs: int


Write = (
    PutRun
    | PutCopy
    | PutPriority
    | PutSession
    | PutRegister
    | PutLog
    | PutPlan
    | ExpectSession
    | ExpectRegister
    | Contribution
    | Notice
)

# -- requests ----------------------------------------------------------------------------------------------------------


INDEXED = ("batch", "series", "device", "workflow")
"""Fields of a query that have an index in the order of ids."""


class Query(Record):
    """Runs that satisfy every condition that is given, oldest first unless ``newest``.

    :param offered: whether a device may take it now, as soon as its limits have room. A copy that is left to a peer is
        not offered.
    :param judged: whether this store decides about it, that is, whether it is not a copy left to a peer.
    :param avoiding: whether some device is to be avoided.
    :param batch: it belongs to this batch, and no retry has replaced it.
    :param keys: the key is one of these.
    :param with_files: it has made files.
    :param id_like: a part of the id.
    :param search: a part of the label, the key, or, if there is no label, of the input as JSON. Capital and small
        letters of ASCII count as the same.
    :param after: only runs that come after this id in the order of the result.
    :param until: only runs that do not come after this id in the order of the result.
    """

    statuses: frozenset[RunStatus] | None = None
    workflow: str | None = None
    device: str | None = None
    session: str | None = None
    series: str | None = None
    batch: str | None = None
    key: str | None = None
    offered: bool | None = None
    judged: bool | None = None
    avoiding: bool | None = None
    due_before: float | None = None
    ended_before: float | None = None
    waiting_before: float | None = None
    id_like: str | None = None
    keys: frozenset[str] | None = None
    with_files: bool = False
    search: str | None = None
    after: str | None = None
    until: str | None = None
    newest: bool = False
    limit: int | None = None

    @property
    def only_open(self) -> bool:
        """Whether it can only match runs that have not ended."""
        open_states = self.statuses is not None and not self.statuses & TERMINAL
        return open_states or self.due_before is not None or self.session is not None or self.offered is True

    @property
    def index(self) -> str | None:
        """The field whose index leads to the runs in the order of ids; ``open`` for the index of runs that have not
        ended, ``few`` for one that leads to so few runs that they are sorted. None if all runs are looked at."""
        few = (self.session, self.key, self.keys, self.due_before, self.offered or None)
        if any(condition is not None for condition in few):
            return "few"
        names = (name for name in INDEXED if getattr(self, name) is not None)
        return next(names, "open" if self.only_open else None)


class PlanQuery(Record):
    """Plans that satisfy every condition that is given, the newest first.

    :param states: the state is one of these. A plan that has not ended is ``cancelling`` if that is asked for or begun,
        and ``at_rest`` instead of ``executing`` if its owner is not among ``live``.
    :param live: the sessions that are alive.
    :param name: a glob for the whole name, in which ``*`` stands for any characters and ``?`` for one. Capital and
        small letters of ASCII count as the same.
    :param since: created at this time or later.
    :param until: created before this time.
    :param after: only plans that come after this one in the order of the result: its ``created_at`` and its name.
    :param between: the name is not before the first and not after the second of these, by the order of code points.
        The result is in the order of names then, and costs only what lies between them.
    """

    states: frozenset[str] | None = None
    live: frozenset[str] = frozenset()
    name: str | None = None
    file: str | None = None
    tag: str | None = None
    since: float = -FAR
    until: float = FAR
    after: tuple[float, str] | None = None
    between: tuple[str, str] | None = None
    limit: int = 100

    @property
    def before(self) -> tuple[float, str]:
        """The place that all plans of the result come before, if they are sorted by time and name."""
        until = (self.until, "")
        return until if self.after is None else min(until, self.after)


class TakeRequest(Record):
    """What a device with a free slot asks for: up to ``limit`` offered runs, the most urgent first, of any kind except
    ``not_kinds``. With ``above``, only runs of a higher priority than that."""

    device: str
    not_kinds: frozenset[str]
    now: float
    limit: int
    above: int | None = None

    def suits(self, run: Run) -> bool:
        """Whether an offered run may go to the device, apart from its priority."""
        return (
            run.not_before <= self.now
            and run.kind not in self.not_kinds
            and run.pinned in (None, self.device)
            and self.device not in run.avoid
        )


class ProgressReport(NamedTuple):
    """How far an execution has come. ``tail`` is the end of its output. ``log`` is a part of its log to be written
    with the report; a store does not return it."""

    run: str
    epoch: int
    progress: Progress | None
    tail: str
    log: PutLog | None = None


# -- replies -----------------------------------------------------------------------------------------------------------


class Register(NamedTuple):
    """A small JSON document under a key."""

    key: str
    value: Any
    revision: int

    def read(self, decode: Callable[[Any], Value]) -> Value:
        """What ``decode`` makes of the value. Raises CorruptRecord if the value has another shape than it expects, and
        the AsterismErrors of ``decode``."""
        try:
            return decode(self.value)
        except AsterismError:
            raise
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise CorruptRecord(f"register {self.key} cannot be read: {error!r}", revision=self.revision) from error


class Slot(NamedTuple):
    """The place of a register: its value and revision, or a default and None while there is none."""

    key: str
    value: Any
    revision: int | None

    def put(self, value: Any) -> PutRegister:
        """The write that puts a value here, if no other writer is faster."""
        return PutRegister(self.key, value, self.revision)


class OwnedRun(NamedTuple):
    """A run that the store records as owned by a session. ``stop_request`` is ``pause`` or
    ``cancel``."""

    run: str
    epoch: int
    status: RunStatus
    stop_request: str | None


class HeartbeatReply(NamedTuple):
    """The reply to a heartbeat. ``alive`` is False for a session that has ended or was replaced."""

    now: float
    alive: bool
    draining: bool
    held: Sequence[OwnedRun]


class PlanRow(NamedTuple):
    """A plan in a list: its summary, None if the head was written without one; and the value of the register of its
    budget."""

    name: str
    created_at: float
    summary: Mapping[str, Any] | None
    budget: Any = None


class WaitingRuns(NamedTuple):
    """The offered runs of one kind, for one pinned device or for any: how many, also of those that wait for limits, and
    since when the oldest waits."""

    workflow: str
    work: Work
    pinned: str | None
    number: int
    since: float

    @property
    def sample(self) -> Run:
        """A run of this kind."""
        return transitions.create("", self.work, {}, by="", now=0.0, device=self.pinned, origin=(self.workflow, 0))


class BatchPart(NamedTuple):
    """The runs of a batch with one status: how many, when the first was created, and when the last one ended. Runs that
    were cancelled are a part of their own. A run that a retry has replaced is in none."""

    batch: str
    status: RunStatus
    cancelled: bool
    number: int
    created_at: float
    ended_at: float | None


class Change(NamedTuple):
    """A run as it is now, and the number of its last change. ``left_to`` and ``same`` are those of its PutCopy."""

    number: int
    run: Run
    left_to: str | None
    same: bool


class Usage(NamedTuple):
    """The sum of a peer's contributions: the number of runs, bytes of records, and bytes of blobs."""

    runs: int = 0
    bytes: int = 0
    blobs: int = 0


# -- ports -------------------------------------------------------------------------------------------------------------

OFFERED = "offered"
"""The topic of runs that any device may take."""

LIMITED = "limited"
"""The topic of runs that use limits, and of limits: of all after which such a run may begin."""

ENDED = "ended"
"""The topic of runs that ended."""


def for_device(name: str) -> str:
    """The topic of commits that concern one device."""
    return f"device {name}"


def for_plan(name: str) -> str:
    """The topic of messages to a plan, and of their answers."""
    return f"plan {name}"


CREDENTIALS_CHANGED = "credentials"
"""The topic of changes of credentials of the server: registers whose keys begin with ``CREDENTIAL_KEYS``."""

CREDENTIAL_KEYS = "credential/"

EVENTS_SENT = "events"
"""The topic of events that were sent, and the register with the number of the last one (``fleet/sent_events.py``)."""

MAILBOX = "mailbox/"
"""Prefix of the keys of registers that are messages to plans; the name of the plan follows, and an id."""

PLAN_TOPICS = (MAILBOX, "budget/")
"""Prefixes of registers that concern the topic of a plan; its name follows, up to the next ``/``."""


class Watch(Protocol):
    """Waits for commits that concern its topics."""

    async def wait(self, timeout: float) -> bool:
        """Wait until a commit concerns one of the topics. A wake before the call counts.

        :param timeout: how long to wait at most, in seconds.
        :returns: True once woken, or False after the timeout.
        """

    @property
    def woken(self) -> bool:
        """Whether the next ``wait`` returns at once."""

    def close(self) -> None:
        """Watch no longer. The second time it does nothing."""


class Store(Protocol):
    """Keeps records with revisions.

    Every awaited method raises StoreUnavailable if the store is out of reach, and StoreCorrupt if a record that it
    reads is damaged. What else a method raises is said there. A method that returns records returns those of
    one instant.
    """

    @property
    def url(self) -> str:
        """The address, for messages: without a password."""

    @property
    def files_folder(self) -> Path | None:
        """The folder beside the store in which the files of tasks are kept if the fleet names no other place; it need
        not exist. None if a store has no folder. Raises nothing."""

    def clock(self) -> float:
        """Return the time by the store's clock, in seconds since 1970."""

    async def commit(self, writes: Sequence[Write]) -> None:
        """Write all of a batch, or nothing; durable when it returns.

        :param writes: in any order. No record is named twice. An empty batch does nothing.
        :raises Conflict: a record does not have the revision that its write expects, or the key of a new run is taken.
        :raises ValueError: the batch names a record twice, or holds what cannot be stored.
        :raises StoreUnavailable: it is unknown whether the commit happened; after its subclasses nothing happened.
        """

    async def take(self, request: TakeRequest, step: Callable[[Run], Run | None]) -> list[Run]:
        """Show offered runs to ``step``, commit the successors it returns, and return these. Runs that others are
        taking at the same moment are passed over.

        :param request: the device, and which runs it accepts.
        :param step: returns the run as taken, or None to leave it. It may be called in another thread, and several
            times for one run, so it must have no side effects.
        :returns: the runs that were taken, as ``step`` returned them; none if there is nothing for the device.
        :raises Exception: what ``step`` raises; then nothing is taken.
        """

    async def heartbeat(
        self, session: str, profile: Mapping[str, Any], reports: Sequence[ProgressReport]
    ) -> HeartbeatReply:
        """Record that a session is alive, and return what it owns.

        :param session: the id of the session.
        :param profile: the current values of the device (load, battery, labels), which replace the previous ones.
        :param reports: progress of the runs it owns. A report that does not name the current epoch is dropped.
        :returns: what the session owns, and what is asked of it. ``alive`` is False for a session that is not open.
        :raises ValueError: the profile is not JSON.
        """

    async def run(self, run_id: str) -> Run | None:
        """Return the run with this id; None if there is none."""

    async def find(self, query: Query) -> list[Run]:
        """Return the runs that satisfy a query, in its order. It may look at every run of the store; ``scan_end``
        bounds that.

        :param query: the conditions, the order and the limit.
        """

    async def scan_end(self, query: Query, number: int) -> str | None:
        """Return the id at which a search for a query has looked at ``number`` runs. With it as ``until``, ``find``
        looks at no more than these, and the search goes on with it as ``after``.

        :param query: the search. Runs that its index (``Query.index``) passes over need not be counted.
        :param number: how many runs to look at, at least 1.
        :returns: None if there are not more than so many runs: then the search needs no bound.
        """

    async def orphans(self, now: float, limit: int) -> list[tuple[Run, Session]]:
        """Return runs whose owner has ended, or was silent for longer than the run's timeout, with that owner. A run
        that is only assigned expires by its own ``due_at`` instead, since an idle device sends few heartbeats.

        :param now: the time by the store's clock.
        :param limit: how many runs to return at most.
        """

    async def waiting(self) -> list[WaitingRuns]:
        """Return how many runs are offered, for each kind and each device that they are pinned to."""

    async def limited(self) -> list[LimitedRuns]:
        """Return how many runs wait for limits, and how many hold some, for each use, workflow, batch and priority."""

    async def limited_runs(self, group: LimitedRuns, limit: int, *, after: str = "") -> list[Run]:
        """Return runs of such a group, by id, from the one after ``after`` on.

        :param group: as ``limited`` returned it; its number and first run do not matter.
        :param limit: how many to return at most.
        """

    async def counts(self) -> Mapping[RunStatus, int]:
        """Return the number of runs in each status. A status without runs may be missing."""

    async def batches(self, name: str | None = None) -> list[BatchPart]:
        """Return how many runs each batch has in each status, by the names of the batches.

        :param name: only this batch.
        """

    async def last_ends(self, batch: str, limit: int) -> list[float]:
        """Return when runs of a batch ended, the latest first; also runs that were retried.

        :param limit: how many to return at most.
        """

    async def sessions(self, *, ended: bool = False, device: str | None = None) -> list[Session]:
        """Return the sessions that are open, abroad or replaced.

        :param ended: also those that ended and are kept.
        :param device: only those of this device.
        """

    async def register(self, key: str) -> Register | None:
        """Return the register under a key; None if there is none.

        :raises StoreCorrupt: its value cannot be read; ``revision`` of the error allows to replace it.
        """

    async def registers(self, prefix: str, most: int | None = None) -> list[Register]:
        """Return the registers whose keys begin with ``prefix``, by key; all of them with an empty prefix. One that
        cannot be read is left out, and named in the log.

        :param most: how many, at most, the first by key; None for all.
        :raises StoreCorrupt: a register cannot be read, and its readers rely on all of its kind, as on a journal.
        """

    async def plans(self, query: PlanQuery) -> list[PlanRow]:
        """Return the plans of a query, without reading their journals.

        :param query: the conditions, the order and the limit.
        """

    async def reports(self, run_ids: Sequence[str]) -> dict[str, ProgressReport]:
        """Return what the owners of these runs reported last. A run that no session owns, or whose owner has not
        reported since it took the run, is not in the result.

        :param run_ids: the ids of the runs; ids that do not exist are passed over.
        """

    async def log(self, run_id: str, *, after: tuple[int, int] = (0, 0)) -> list[StoredChunk]:
        """Return chunks of the log of a run, by epoch and number; none if there is no such run.

        :param run_id: the id of the run.
        :param after: an epoch and a line number: only chunks that have lines after it.
        """

    async def notices(self, *, run: str | None = None, after: int = 0, limit: int = 100) -> list[tuple[int, Notice]]:
        """Return notices with their numbers, oldest first.

        :param run: only notices about the run with this id.
        :param after: only notices with a higher number.
        :param limit: how many to return at most.
        """

    async def put_blob(self, data: bytes) -> str:
        """Store a large value, and return its name, the SHA-256 of it; durable when it returns."""

    async def blob(self, name: str) -> bytes | None:
        """Return a large value; None if there is none of this name.

        :raises StoreCorrupt: its content does not match its name.
        """

    async def prune(
        self,
        ended_before: float,
        limit: int,
        *,
        blobs_before: float | None = None,
        only: str = "",
    ) -> int:
        """Delete old runs, and return how many. If there was none, delete ended sessions and notices of that age, and
        blobs to which no run, log or register (BLOB_USES) refers. The runs of a plan stay until its head (PLANS) says
        when it ended, or is gone: it may not have looked at them yet.

        :param ended_before: the time before which a run must have ended. For a copy, the time when this store first saw
            the end counts.
        :param limit: how many runs to delete at most.
        :param blobs_before: the time before which a blob must have been stored last, ``ended_before`` by default: the
            run of a later one may not be written yet.
        :param only: delete only runs whose key begins with this, and nothing else.
        """

    async def check(self) -> list[str]:
        """Return everything that is wrong with the stored data, as sentences. It reads all of it, and may take long."""

    def dump(self) -> AsyncIterator[Mapping[str, Any]]:
        """Yield everything, as of one instant, as JSON objects; the first is a header (``dump_format``)."""

    async def load(self, lines: AsyncIterator[Mapping[str, Any]], *, keep_devices: bool = False) -> int:
        """Fill an empty store from a dump, and return the number of runs. If it raises, the store may be partly filled.

        :param lines: what ``dump`` yielded, of any engine.
        :param keep_devices: do not revoke the devices that joined through a server: one that was revoked after the dump
            would be valid again.
        :raises StoreCorrupt: the lines are not a dump, or a damaged one.
        :raises UnknownSchema: the dump is of a later version.
        :raises StoreError: the store is not empty.
        """

    def watch(self, topics: frozenset[str]) -> Watch:
        """Start to watch topics.

        :param topics: ``OFFERED``, ``LIMITED``, ``ENDED``, ``CREDENTIALS_CHANGED``, or those of devices
            (``for_device``) and plans (``for_plan``).
        """

    async def close(self) -> None:
        """Finish pending calls and wake all watches. The store must not be used after that."""


class ChangeFeed(Protocol):
    """What a store adds to exchange records with peers. Each write of a run moves it to the end of the feed, which thus
    holds the newest state of each run once. The id of the feed, in the register ``feed/id``, changes when a backup is
    restored."""

    async def start_feed(self) -> str:
        """Number all runs, and every change from now on. Return the id of the feed. Does nothing the second time."""

    async def changes(self, after: int, limit: int) -> list[Change]:
        """Return the changes with numbers above ``after``, in their order."""

    async def newest(self) -> int:
        """Return the highest number that was ever given; 0 if there is no feed."""

    async def left_to(self, run_ids: Sequence[str]) -> dict[str, str]:
        """Return, for those runs that are left to a peer, the id of its store."""

    async def copies(self, left_to: str, limit: int, after: str = "") -> list[Run]:
        """Return the runs that are left to a peer and have not ended, by id, from the one after ``after`` on."""

    async def judges(self) -> set[str]:
        """Return the ids of all stores to which a run is left that has not ended."""

    async def forget_sessions(self, ids: Sequence[str]) -> None:
        """Delete those of these sessions that have ended and own nothing, whatever their age."""

    async def usage(self, store: str) -> Usage:
        """Return the sum of a peer's contributions to the runs that are kept."""

    async def came_from_peers(self, run_ids: Sequence[str]) -> set[str]:
        """Return those runs to which a peer has contributed; the others were created here."""

    async def came_from(self, store: str) -> list[Run]:
        """Return the runs that this store first received from a peer and that have not ended, by id."""


def has_feed(store: Store) -> bool:
    """Whether the engine of a store can have a change feed."""
    return hasattr(store, "start_feed")


def feed_of(store: Store) -> ChangeFeed:
    """Return a store as a change feed. Raises StoreError if its engine has none."""
    if not has_feed(store):
        raise StoreError(f"{store.url} cannot exchange records with peers")
    return cast(ChangeFeed, store)


async def read_slot(store: Store, key: str, default: Any = None) -> Slot:
    """Return the place of a register, to be written after it was read."""
    register = await store.register(key)
    return Slot(key, default, None) if register is None else Slot(*register)


async def last_notice(store: Store, after: int = 0) -> int:
    """Return the number of the newest notice, or ``after`` if none came after that."""
    while notices := await store.notices(after=after, limit=1000):
        after = notices[-1][0]
    return after
