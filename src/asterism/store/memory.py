"""The store in memory: for tests, simulations and throw-away fleets. It lasts as long as its process.

It is the reference: where the protocol leaves room, the other engines do as this one does. Documents (inputs, outputs,
registers, profiles) are copied on the way in, as JSON, so that no caller changes stored data by accident and nothing is
stored that another engine could not store.

The change feed of the store in memory: numbers changes for peers, and adds up what each peer contributed.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import re
import secrets
import shutil
import tempfile
import time
import uuid
import weakref
from bisect import bisect_left, bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from asterism.core.json_values import NOTHING
from asterism.core.limits import LimitedRuns
from asterism.core.record import replace
from asterism.core.run.run import OWNED, RETRY_KEYS, Run, RunStatus
from asterism.core.run.run_label import PLAN_PREFIX
from asterism.core.run.session import ABROAD, ENDED, OPEN, Session
from asterism.core.run.work import work_of
from asterism.store import dump_format, row_codec
from asterism.store.protocol import (
    BLOB_USES,
    FEED,
    PLANS,
    BatchPart,
    Change,
    Contribution,
    ExpectRegister,
    ExpectSession,
    HeartbeatReply,
    Notice,
    OwnedRun,
    PlanQuery,
    PlanRow,
    ProgressReport,
    PutCopy,
    PutLog,
    PutPlan,
    PutPriority,
    PutRegister,
    PutRun,
    PutSession,
    Query,
    Register,
    StoredChunk,
    TakeRequest,
    Usage,
    WaitingRuns,
    Watch,
    Write,
)
from asterism.store.row_codec import from_text, to_text
from asterism.store.store_errors import Conflict
from asterism.store.watches import Watches, check_distinct_records, topics_of

Mark = tuple[str | None, bool]
NO_MARK: Mark = (None, False)


class Feed:
    """``left`` maps each copy to the store it is left to, and whether that has the same record. ``newest`` is the last
    number that was given."""

    def __init__(self) -> None:
        self.started = False
        self.newest = 0
        self.left: dict[str, tuple[str, bool]] = {}
        self.contributions: dict[str, dict[str, Usage]] = {}  # by run, then by the id of the peer's store
        self._numbers: dict[str, int] = {}  # of the last change of each run, in their order

    def start(self, run_ids: Iterable[str]) -> None:
        """Number all runs. Does nothing the second time."""
        if not self.started:
            self.started = True
            for run_id in run_ids:
                self.move(run_id, None)

    def move(self, run_id: str, mark: tuple[str, bool] | None) -> None:
        """Give a run that was just written the next number."""
        if self.started:
            self.newest += 1
            self._numbers.pop(run_id, None)
            self._numbers[run_id] = self.newest
            self.left.pop(run_id, None)
            if mark is not None:
                self.left[run_id] = mark

    def forget(self, run_id: str) -> None:
        self._numbers.pop(run_id, None)
        self.left.pop(run_id, None)
        self.contributions.pop(run_id, None)

    def after(self, number: int) -> list[tuple[str, int, Mark]]:
        changes: list[tuple[str, int, Mark]] = []
        for run_id, changed in reversed(self._numbers.items()):
            if changed <= number:
                break
            changes.append((run_id, changed, self.left.get(run_id, NO_MARK)))
        return changes[::-1]

    def add(self, contribution: Contribution) -> None:
        by = self.contributions.setdefault(contribution.run, {})
        before = by.get(contribution.store, Usage())
        by[contribution.store] = Usage(
            max(before.runs, contribution.runs), before.bytes + contribution.bytes, before.blobs + contribution.blobs
        )

    def usages(self, store: str) -> dict[str, Usage]:
        """What a peer contributed, by run."""
        return {run_id: by[store] for run_id, by in self.contributions.items() if store in by}


class MemoryChangeFeed:
    """The part of MemoryStore that implements ChangeFeed."""

    def __init__(self) -> None:
        self._runs: dict[str, Run] = {}
        self._ids: list[str] = []  # sorted
        self._sessions: dict[str, Session] = {}
        self._owned: dict[str, set[str]] = {}  # ids of runs, by session
        self._registers: dict[str, tuple[str, int]] = {}  # the value as text, and the revision
        self._feed = Feed()

    async def start_feed(self) -> str:
        self._feed.start(sorted(self._runs))
        text, _ = self._registers.setdefault(FEED, (to_text({"id": uuid.uuid4().hex}), 1))
        return str(from_text(text)["id"])

    async def changes(self, after: int, limit: int) -> list[Change]:
        return [Change(number, self._runs[run_id], *mark) for run_id, number, mark in self._feed.after(after)][:limit]

    async def newest(self) -> int:
        return self._feed.newest

    async def left_to(self, run_ids: Sequence[str]) -> dict[str, str]:
        return {run_id: self._feed.left[run_id][0] for run_id in run_ids if run_id in self._feed.left}

    async def copies(self, left_to: str, limit: int, after: str = "") -> list[Run]:
        copies = [self._runs[run_id] for run_id, (peer, _) in sorted(self._feed.left.items()) if peer == left_to]
        return [run for run in copies if not run.ended and run.id > after][:limit]

    async def judges(self) -> set[str]:
        return {peer for run_id, (peer, _) in self._feed.left.items() if not self._runs[run_id].ended}

    async def forget_sessions(self, ids: Sequence[str]) -> None:
        for name in ids:
            known = self._sessions.get(name)
            if known is not None and known.state == ENDED and not self._owned.get(name):
                del self._sessions[name]
                self._owned.pop(name, None)

    async def usage(self, store: str) -> Usage:
        usages = self._feed.usages(store).values()
        return Usage(*map(sum, zip(*usages, strict=True))) if usages else Usage()

    async def came_from_peers(self, run_ids: Sequence[str]) -> set[str]:
        return self._feed.contributions.keys() & set(run_ids)

    async def came_from(self, store: str) -> list[Run]:
        first = sorted(run_id for run_id, usage in self._feed.usages(store).items() if usage.runs)
        return [run for run_id in first if not (run := self._runs[run_id]).ended]


_WRITTEN_ONCE = tuple(name for name in row_codec.FIXED if name not in ("id", "input", "digest"))
_Place = tuple[int, float, str]
"""The place of a run in the queue: the most urgent first, then the oldest. It never changes."""


class _ListedPlan:
    """What a list is filtered by, from the head of a plan, and its summary."""

    def __init__(self, head: Any) -> None:
        self.created_at, self.state, self.owner, self.cancelling, self.file, tags = row_codec.plan_columns(head)
        self.tags: list[str] = row_codec.from_text(tags)
        self.summary: Mapping[str, Any] | None = None

    def matches(self, name: str, query: PlanQuery) -> bool:
        return (
            (self.created_at, name) < query.before
            and self.created_at >= query.since
            and (query.between is None or query.between[0] <= name <= query.between[1])
            and (query.name is None or re.fullmatch(_regex(query.name), row_codec.lower(name), re.DOTALL) is not None)
            and (query.file is None or self.file == query.file)
            and (query.tag is None or query.tag in self.tags)
            and (query.states is None or self._shown_state(query.live) in query.states)
        )

    def _shown_state(self, live: frozenset[str]) -> str | None:
        if self.state in ("completed", "failed", "partially_failed", "cancelled"):
            return self.state
        if self.cancelling:
            return "cancelling"
        return "at_rest" if self.state == "executing" and self.owner not in live else self.state


def _regex(glob: str) -> str:
    parts = {"*": ".*", "?": "."}
    return "".join(parts.get(letter) or re.escape(letter) for letter in row_codec.lower(glob))


class MemoryStore(MemoryChangeFeed):
    """A store in this process. ``clock`` returns the time in seconds."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self.url = "memory:"
        super().__init__()
        self._keys: dict[str, str] = {}
        self._batches: dict[str, set[str]] = defaultdict(set)  # ids of runs
        self._plans: dict[str, _ListedPlan] = {}
        self._queue: list[_Place] = []  # a heap with every offered run, and some that no longer are
        self._queued: set[str] = set()
        self._sweep_at = 1000
        self._reports: dict[str, ProgressReport] = {}
        self._logs: dict[str, dict[tuple[int, int], StoredChunk]] = {}
        self._notices: dict[int, Notice] = {}
        self._noticed = 0
        self._blobs: dict[str, tuple[bytes, float]] = {}  # and the time of the last put_blob
        self._ends: dict[str, tuple[float | None, float]] = {}  # of copies: ended_at, and when it was first seen here
        self._watches = Watches()

    @cached_property
    def files_folder(self) -> Path:
        """A temporary folder, made with the first file, which lasts as long as the store."""
        folder = Path(tempfile.gettempdir(), f"asterism-files-{secrets.token_hex(16)}")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return folder

    # -- writing ---------------------------------------------------------------------------------------------------

    async def commit(self, writes: Sequence[Write]) -> None:
        check_distinct_records(writes)
        prioritised = frozenset(write.run for write in writes if type(write) is PutPriority)
        checked = [self._checked(write, prioritised) for write in writes]
        new = {write.run.id for write in checked if type(write) is PutRun}
        for write in checked:
            if type(write) is PutLog and write.run not in self._runs and write.run not in new:
                raise Conflict(f"run {write.run}")
            if type(write) is PutPlan and write.name not in self._plans:
                heads = {other.key for other in checked if type(other) is PutRegister and other.value is not None}
                if f"{PLANS}{write.name}" not in heads:
                    raise Conflict(f"plan {write.name}")
        for write in checked:
            self._perform(write)
        self._watches.wake(topics_of(checked))

    def _checked(self, write: Write, prioritised: frozenset[str] = frozenset()) -> Write:
        """Return the write as it is stored. ``prioritised`` are the runs whose priority changes. Raises Conflict."""
        match write:
            case PutRun(run, expected):
                stored = self._runs.get(run.id)
                if (stored.revision if stored else None) != expected:
                    raise Conflict(f"run {run.id}")
                if stored is None and run.key is not None and run.key in self._keys:
                    raise Conflict(f"key {run.key}")
                return PutRun(_stored(run, stored, run.id in prioritised), expected)
            case PutCopy(run, expected):
                if not self._feed.started:
                    raise ValueError("a copy of a peer's record needs a change feed, and it was not started")
                self._checked(PutRun(run, expected), prioritised)
                return replace(write, run=_stored(run, self._runs.get(run.id), run.id in prioritised))
            case PutSession(session, expected):
                known = self._sessions.get(session.id)
                if (known.revision if known else None) != expected:
                    raise Conflict(f"session {session.id}")
                heard = known is None or session.state == ABROAD
                beat_at = self.clock() if known is None or heard else min(known.beat_at, self.clock())
                profile = _copied(dict(session.profile))
                return PutSession(replace(session, beat_at=beat_at, used=0, profile=profile), expected)
            case ExpectSession(session_id, revision):
                known = self._sessions.get(session_id)
                if known is None or known.revision != revision:
                    raise Conflict(f"session {session_id}")
            case ExpectRegister(key, revision):
                if (held := self._registers.get(key)) is None or held[1] != revision:
                    raise Conflict(f"register {key}")
            case PutRegister(key, value, expected):
                register = self._registers.get(key)
                if (register[1] if register else None) != expected:
                    raise Conflict(f"register {key}")
                return PutRegister(key, None if value is None else row_codec.to_text(value), expected)
            case PutLog():
                chunks = [chunk._replace(value=_copied(chunk.value)) for chunk in write.chunks]
                return replace(write, chunks=chunks)
            case PutPlan():
                return replace(write, summary=_copied(dict(write.summary)))
            case PutPriority() | Contribution() | Notice():
                pass
            case _:
                raise TypeError(f"a store cannot write a {type(write).__name__}")
        return write

    def _perform(self, write: Write) -> None:
        match write:
            case PutRun(run, _):
                self._feed.move(run.id, None)
                self._put(run)
            case PutCopy(run, _, left_to, same):
                self._feed.move(run.id, (left_to, same))
                self._put(run)
                if run.ended and self._ends.get(run.id, (None,))[0] != run.ended_at:
                    self._ends[run.id] = (run.ended_at, self.clock())
            case PutSession(session, _):
                self._sessions[session.id] = session
            case PutRegister(key, None, _):
                self._registers.pop(key, None)
                self._plans.pop(key.removeprefix(PLANS), None)
            case PutRegister(key, text, expected):
                self._registers[key] = (text, (expected or 0) + 1)
                if key.startswith(PLANS):
                    self._plans[key.removeprefix(PLANS)] = _ListedPlan(json.loads(text))
            case PutPlan(name, state, summary):
                self._plans[name].state, self._plans[name].summary = state, summary
            case PutPriority(run_id, priority):
                self._put(self._runs[run_id].changed(priority=priority))
                self._sweep()  # its place in the queue is another one now
            case PutLog():
                self._put_log(write)
            case Contribution():
                self._feed.add(write)
            case Notice():
                self._noticed += 1
                self._notices[self._noticed] = write

    def _put_log(self, write: PutLog) -> None:
        stored = self._logs.setdefault(write.run, {})
        if write.drop is not None:
            low, high = write.drop
            for place in [place for place in stored if place[0] == write.epoch and low <= place[1] < high]:
                del stored[place]
        stored.update({(write.epoch, chunk.first): chunk for chunk in write.chunks})

    def _put(self, run: Run) -> None:
        before = self._runs.get(run.id)
        if before is not None and before.session is not None:
            self._owned[before.session].discard(run.id)
        if before is None:
            insort(self._ids, run.id)
            if run.batch is not None:
                self._batches[run.batch].add(run.id)
        self._runs[run.id] = run
        if run.key is not None:
            self._keys[run.key] = run.id
        if run.session is not None:
            self._owned.setdefault(run.session, set()).add(run.id)
        if self._is_queued(run):
            self._enqueue(run)
        if run.session is None or (before is not None and before.epoch != run.epoch):
            self._reports.pop(run.id, None)

    def _is_offered(self, run: Run) -> bool:
        return run.offered and run.id not in self._feed.left

    def _is_queued(self, run: Run) -> bool:
        """Whether it is in the queue of devices. What waits for limits is offered, and is not in it."""
        return run.uses is None and self._is_offered(run)

    def _enqueue(self, run: Run) -> None:
        if run.id in self._queued:
            return
        if len(self._queue) >= self._sweep_at:  # runs that were assigned, not taken, would pile up
            self._sweep()
        self._queued.add(run.id)
        heapq.heappush(self._queue, _place(run))

    def _sweep(self) -> None:
        self._queue = [_place(run) for run in self._runs.values() if self._is_queued(run) and run.id in self._queued]
        heapq.heapify(self._queue)
        self._queued = {place[2] for place in self._queue}
        self._sweep_at = max(1000, 2 * len(self._queue))

    async def take(self, request: TakeRequest, step: Callable[[Run], Run | None]) -> list[Run]:
        taken: list[PutRun] = []
        seen: list[_Place] = []
        try:
            while self._queue and len(taken) < request.limit:
                place = heapq.heappop(self._queue)
                seen.append(place)
                run = self._runs[place[2]]
                if not self._is_queued(run) or not request.suits(run):
                    continue
                if request.above is not None and run.priority <= request.above:
                    break
                after = step(run)
                if after is not None:
                    taken.append(PutRun(after, run.revision))
            await self.commit(taken)
        finally:  # also if a step raises: then nothing has changed
            for place in seen:
                if self._is_queued(self._runs[place[2]]):
                    heapq.heappush(self._queue, place)
                else:
                    self._queued.discard(place[2])
        return [self._runs[write.run.id] for write in taken]

    async def heartbeat(
        self, session: str, profile: Mapping[str, Any], reports: Sequence[ProgressReport]
    ) -> HeartbeatReply:
        now = self.clock()
        known = self._sessions.get(session)
        if known is None or known.state != OPEN:
            return HeartbeatReply(now, False, False, ())
        self._sessions[session] = known.changed(beat_at=now, profile=_copied(dict(profile)))
        held = self._held(session)
        epochs = {run.id: run.epoch for run in held}
        for report in reports:
            if epochs.get(report.run) == report.epoch:
                self._reports[report.run] = report._replace(log=None)
                if report.log is not None:
                    self._perform(self._checked(report.log))
        return HeartbeatReply(
            now, True, known.draining, [OwnedRun(run.id, run.epoch, run.status, run.stop_request) for run in held]
        )

    def _held(self, session: str) -> list[Run]:
        return [self._runs[run_id] for run_id in sorted(self._owned.get(session, ()))]

    # -- reading ---------------------------------------------------------------------------------------------------

    async def run(self, run_id: str) -> Run | None:
        return self._runs.get(run_id)

    async def find(self, query: Query) -> list[Run]:
        ids: Sequence[str] = self._ids
        if query.session is not None:
            ids = sorted(self._owned.get(query.session, ()))
        elif query.key is not None or query.keys is not None:
            keys = (query.keys or frozenset()) if query.key is None else {query.key}
            ids = sorted(self._keys[key] for key in keys if key in self._keys)
        elif query.batch is not None:
            ids = sorted(self._batches.get(query.batch, ()))
        runs = (self._runs[run_id] for run_id in _between(ids, query))
        return list(islice((run for run in runs if self._matches(run, query)), query.limit))

    async def scan_end(self, query: Query, number: int) -> str | None:
        ids = _between(self._ids, query)
        return ids[number - 1] if len(ids) > number else None

    def _matches(self, run: Run, query: Query) -> bool:
        return (
            _satisfies(run, query)
            and (query.offered is None or self._is_offered(run) == query.offered)
            and (query.judged is None or (run.id not in self._feed.left) == query.judged)
            and (query.batch is None or not self._is_retried(run))
        )

    def _is_retried(self, run: Run) -> bool:
        return f"{RETRY_KEYS}{run.id}" in self._keys

    async def orphans(self, now: float, limit: int) -> list[tuple[Run, Session]]:
        return [
            (run, self._with_used(session))
            for session in self._sessions.values()
            for run in self._held(session.id)
            if run.id not in self._feed.left and _is_orphan(run, session, now)
        ][:limit]

    async def waiting(self) -> list[WaitingRuns]:
        kinds: dict[tuple[str, str, str | None], list[float]] = defaultdict(list)
        for run in self._runs.values():
            if self._is_offered(run):
                kinds[run.workflow, run.work.text, run.pinned].append(run.waiting_since or 0.0)
        return [
            WaitingRuns(workflow, work_of(work), pinned, len(since), min(since))
            for (workflow, work, pinned), since in kinds.items()
        ]

    async def limited(self) -> list[LimitedRuns]:
        groups: dict[tuple[str, str, str | None, int, bool], list[str]] = defaultdict(list)
        for run in self._runs.values():
            if run.uses is not None and (run.session is not None or self._is_offered(run)):
                groups[run.uses, run.workflow, run.batch, run.priority, run.session is None].append(run.id)
        return [LimitedRuns(*group, len(ids), min(ids)) for group, ids in groups.items()]

    async def limited_runs(self, group: LimitedRuns, limit: int, *, after: str = "") -> list[Run]:
        return [run for run_id in self._ids if run_id > after and _is_of(run := self._runs[run_id], group)][:limit]

    async def counts(self) -> Mapping[RunStatus, int]:
        return Counter(run.status for run in self._runs.values())

    async def batches(self, name: str | None = None) -> list[BatchPart]:
        parts: dict[tuple[str, RunStatus, bool], list[Run]] = defaultdict(list)
        for batch in sorted(self._batches) if name is None else [name]:
            for run in map(self._runs.__getitem__, self._batches.get(batch, ())):
                if not self._is_retried(run):
                    parts[batch, run.status, run.cancelled].append(run)
        return [
            BatchPart(
                *kind,
                len(runs),
                min(run.created_at for run in runs),
                max((run.ended_at for run in runs if run.ended_at is not None), default=None),
            )
            for kind, runs in sorted(parts.items())
        ]

    async def last_ends(self, batch: str, limit: int) -> list[float]:
        runs = [self._runs[run_id] for run_id in self._batches.get(batch, ())]
        return heapq.nlargest(limit, (run.ended_at for run in runs if run.ended_at is not None))

    async def sessions(self, *, ended: bool = False, device: str | None = None) -> list[Session]:
        return [
            self._with_used(session)
            for session in self._sessions.values()
            if (ended or session.state != ENDED) and device in (None, session.device)
        ]

    def _with_used(self, session: Session) -> Session:
        used = len(self._owned.get(session.id, ()))
        return replace(session, used=used) if used else session  # stored as 0, which it is for most

    async def register(self, key: str) -> Register | None:
        stored = self._registers.get(key)
        return None if stored is None else Register(key, json.loads(stored[0]), stored[1])

    async def registers(self, prefix: str, most: int | None = None) -> list[Register]:
        keys = sorted(key for key in self._registers if key.startswith(prefix))[:most]
        return [Register(key, json.loads(self._registers[key][0]), self._registers[key][1]) for key in keys]

    async def plans(self, query: PlanQuery) -> list[PlanRow]:
        rows = []
        for created_at, name in sorted(((plan.created_at, name) for name, plan in self._plans.items()), reverse=True):
            if self._plans[name].matches(name, query):
                budget = await self.register(f"budget/{name}")
                value = None if budget is None else budget.value
                rows.append(PlanRow(name, created_at, self._plans[name].summary, value))
        if query.between is not None:
            rows.sort(key=lambda row: row.name)
        return rows[: query.limit]

    async def reports(self, run_ids: Sequence[str]) -> dict[str, ProgressReport]:
        return {run_id: self._reports[run_id] for run_id in run_ids if run_id in self._reports}

    async def log(self, run_id: str, *, after: tuple[int, int] = (0, 0)) -> list[StoredChunk]:
        stored = sorted(self._logs.get(run_id, {}).items())
        return [chunk for (epoch, first), chunk in stored if (epoch, first + chunk.lines - 1) > after]

    async def notices(self, *, run: str | None = None, after: int = 0, limit: int = 100) -> list[tuple[int, Notice]]:
        return [
            (number, notice)
            for number, notice in self._notices.items()
            if number > after and (run is None or notice.run == run)
        ][:limit]

    # -- maintenance -------------------------------------------------------------------------------------------------

    async def put_blob(self, data: bytes) -> str:
        name = hashlib.sha256(data).hexdigest()
        self._blobs[name] = (bytes(data), self.clock())
        return name

    async def blob(self, name: str) -> bytes | None:
        stored = self._blobs.get(name)
        return None if stored is None else stored[0]

    async def prune(
        self,
        ended_before: float,
        limit: int,
        *,
        blobs_before: float | None = None,
        only: str = "",
    ) -> int:
        old = [
            run
            for run in self._runs.values()
            if run.ended_at is not None
            and self._end_seen(run.id, run.ended_at) < ended_before
            and (run.key or "").startswith(only)
            and not self._is_of_open_plan(run)
        ][:limit]
        for run in old:
            del self._runs[run.id]
            if run.key is not None:
                del self._keys[run.key]
            if run.batch is not None:
                self._batches[run.batch].discard(run.id)
            self._logs.pop(run.id, None)
            self._feed.forget(run.id)
            self._ends.pop(run.id, None)
        if old:
            self._ids = sorted(self._runs)
            self._sweep()
        elif not only:
            self._prune_unreferenced(ended_before, ended_before if blobs_before is None else blobs_before)
        return len(old)

    def _is_of_open_plan(self, run: Run) -> bool:
        """Whether the head of the run's plan does not say when the plan ended."""
        if run.key is None or not run.key.startswith(PLAN_PREFIX):
            return False
        text, _ = self._registers.get(PLANS + run.key.removeprefix(PLAN_PREFIX).partition("/")[0], (None, 0))
        head = None if text is None else from_text(text)
        return text is not None and not (isinstance(head, Mapping) and isinstance(head.get("ended_at"), int | float))

    def _end_seen(self, run_id: str, ended_at: float) -> float:
        ended, seen_at = self._ends.get(run_id, (None, 0.0))
        return seen_at if ended == ended_at else ended_at

    def _prune_unreferenced(self, before: float, kept_before: float) -> None:
        for session in list(self._sessions.values()):
            if session.state == ENDED and session.beat_at < before and not self._owned.get(session.id):
                del self._sessions[session.id]
                self._owned.pop(session.id, None)
        self._notices = {number: notice for number, notice in self._notices.items() if notice.at >= before}
        used = {name for run in self._runs.values() for name in dump_format.blobs_of(run)}
        used |= set(dump_format.blobs_of_values(chunk.value for log in self._logs.values() for chunk in log.values()))
        used |= set(dump_format.blobs_of_values(self._blob_uses().values()))
        self._blobs = {
            name: (data, kept_at)
            for name, (data, kept_at) in self._blobs.items()
            if name in used or kept_at >= kept_before
        }

    def _blob_uses(self) -> dict[str, Any]:
        """The values of the registers that keep a blob, by key."""
        return {
            key: row_codec.from_text(text) for key, (text, _) in self._registers.items() if key.startswith(BLOB_USES)
        }

    async def check(self) -> list[str]:
        return list(self._contradictions())

    def _contradictions(self) -> Iterator[str]:
        for run in self._runs.values():
            if (run.session is not None) != (run.status in OWNED) or (run.ended_at is not None) != run.ended:
                yield f"run {run.id} is {run.status}, owned by {run.session} and ended at {run.ended_at}"
            if run.session is not None and run.session not in self._sessions and run.id not in self._feed.left:
                yield f"run {run.id} is owned by session {run.session}, which does not exist"
            if self._is_queued(run) and run.id not in self._queued:
                yield f"run {run.id} is offered, but not in the queue"
            for name in dump_format.blobs_of(run):
                if name not in self._blobs:
                    yield f"run {run.id} refers to blob {name}, which does not exist"
        for run_id, log in self._logs.items():
            if run_id not in self._runs:
                yield f"the log of run {run_id} is there, but the run does not exist"
            for name in dump_format.blobs_of_values(chunk.value for chunk in log.values()):
                if name not in self._blobs:
                    yield f"the log of run {run_id} refers to blob {name}, which does not exist"
        for key, value in self._blob_uses().items():
            for name in dump_format.blobs_of_values([value]):
                if name not in self._blobs:
                    yield f"register {key} refers to blob {name}, which does not exist"
        if set().union(*self._owned.values()) != {run.id for run in self._runs.values() if run.session is not None}:
            yield "the index of owned runs does not match the runs"
        if self._keys != {run.key: run.id for run in self._runs.values() if run.key is not None}:
            yield "the index of keys does not match the runs"
        if len(self._queue) != len(self._queued) or {place[2] for place in self._queue} != self._queued:
            yield "the queue does not match the set of queued runs"

    async def dump(self) -> AsyncIterator[Mapping[str, Any]]:
        everything = [
            dump_format.HEADER,
            *(dump_format.line(run, self._feed.left.get(run.id, (None,))[0]) for run in self._runs.values()),
            *(dump_format.line(session) for session in self._sessions.values()),
            *filter(dump_format.is_dumped, [dump_format.line(register) for register in await self.registers("")]),
            *(dump_format.line(notice, number=number) for number, notice in self._notices.items()),
            *(dump_format.log_line(run, chunk) for run, log in self._logs.items() for _, chunk in sorted(log.items())),
            *(dump_format.blob_line(data) for data, _ in self._blobs.values()),
        ]
        for line in everything:
            yield line

    async def load(self, lines: AsyncIterator[Mapping[str, Any]], *, keep_devices: bool = False) -> int:
        return await dump_format.load(self, lines, keep_devices=keep_devices)

    def watch(self, topics: frozenset[str]) -> Watch:
        return self._watches.add(topics)

    async def close(self) -> None:
        self._watches.wake_all()


def _copied(value: Any) -> Any:
    return json.loads(row_codec.to_text(value))


def _stored(run: Run, before: Run | None, prioritised: bool) -> Run:
    """Return the run with documents of its own. ``prioritised``: its priority may change. Raises ValueError if a field
    changes that is written once: the other engines would silently keep the old value."""
    changes: dict[str, Any] = {}
    if before is None:
        changes["input"] = _copied(dict(run.input)) if run.input else NOTHING
    else:
        changed = [name for name in _WRITTEN_ONCE if getattr(run, name) != getattr(before, name)]
        changed = [name for name in changed if name != "priority" or not prioritised]
        if changed:
            raise ValueError(f"run {run.id}: {', '.join(changed)} cannot change after its creation")
        if run.input is not before.input:
            changes["input"] = before.input
    if any("|" in name for name in run.avoid):
        raise ValueError(f"the name of a device must not contain '|': {', '.join(run.avoid)}")
    if run.output is not None and (before is None or run.output is not before.output):
        changes["output"] = _copied(run.output)
    return run.changed(**changes) if changes else run


def _place(run: Run) -> _Place:
    return (-run.priority, run.created_at, run.id)


def _is_orphan(run: Run, session: Session, now: float) -> bool:
    """Whether the owner of a run has ended, or was silent for longer than the run's timeout or its own."""
    if session.state in (ENDED, ABROAD):
        return session.state == ENDED
    return run.status is not RunStatus.ASSIGNED and session.beat_at + session.loses_after(run.timeout) < now


def _is_of(run: Run, group: LimitedRuns) -> bool:
    same = all(getattr(run, name) == getattr(group, name) for name in ("uses", "workflow", "batch", "priority"))
    return same and not run.ended and (run.offered if group.waiting else run.session is not None)


def _mentions(run: Run, text: str) -> bool:
    """Whether a run satisfies the condition ``search`` of a query."""
    plain, quoted = row_codec.searched(text)
    if any(plain in row_codec.lower(name) for name in (run.label, run.key) if name is not None):
        return True
    return run.label is None and quoted in row_codec.lower(row_codec.to_text(dict(run.input)))


def _between(ids: Sequence[str], query: Query) -> Sequence[str]:
    """Those of sorted ids that are in the range of a query, in its order."""
    if query.newest:
        low = 0 if query.until is None else bisect_left(ids, query.until)
        high = len(ids) if query.after is None else bisect_left(ids, query.after)
        return ids[low:high][::-1]
    low = 0 if query.after is None else bisect_right(ids, query.after)
    high = len(ids) if query.until is None else bisect_right(ids, query.until)
    return ids[low:high]


def _satisfies(run: Run, query: Query) -> bool:
    """Whether a run in its range satisfies a query, apart from ``offered`` and ``judged``."""
    return (
        (query.statuses is None or run.status in query.statuses)
        and (query.workflow is None or run.workflow == query.workflow)
        and (query.device is None or run.device == query.device)
        and (query.session is None or run.session == query.session)
        and (query.key is None or run.key == query.key)
        and (query.series is None or run.series == query.series)
        and (query.batch is None or run.batch == query.batch)
        and (query.avoiding is None or bool(run.avoid) == query.avoiding)
        and (query.due_before is None or (run.due_at is not None and run.due_at < query.due_before))
        and (query.ended_before is None or (run.ended_at is not None and run.ended_at < query.ended_before))
        and (
            query.waiting_before is None or (run.waiting_since is not None and run.waiting_since < query.waiting_before)
        )
        and (query.id_like is None or query.id_like in run.id)
        and (query.keys is None or run.key in query.keys)
        and (not query.with_files or run.files is not None)
        and (query.search is None or _mentions(run, query.search))
    )
