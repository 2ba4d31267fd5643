"""The store in memory: for tests, simulations and throw-away fleets. It lasts as long as its process."""

from __future__ import annotations

import hashlib
import heapq
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from asterism.core.run import OWNED, Run, RunStatus
from asterism.core.session import ENDED, OPEN, Session
from asterism.store import dumps
from asterism.store.errors import Conflict
from asterism.store.protocol import (
    Answer,
    ExpectSession,
    Held,
    Notice,
    Offer,
    PutRegister,
    PutRun,
    PutSession,
    Query,
    Register,
    Report,
    Waiting,
    Watch,
    Write,
    topics_of,
)
from asterism.store.waking import Watches


class MemoryStore:
    """``clock`` is the store's clock, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self.url = "memory:"
        self._runs: dict[str, Run] = {}
        self._keys: dict[str, str] = {}
        self._owned: dict[str, set[str]] = defaultdict(set)
        self._offers: list[tuple[int, float, str]] = []  # a heap; entries that are not true any more are passed over
        self._sessions: dict[str, Session] = {}
        self._registers: dict[str, Register] = {}
        self._reports: dict[str, Report] = {}
        self._notices: list[Notice] = []
        self._pruned_notices = 0
        self._blobs: dict[str, bytes] = {}
        self._watches = Watches()

    # -- writing ---------------------------------------------------------------------------------------------------

    async def commit(self, writes: Sequence[Write]) -> None:
        for write in writes:
            self._expect(write)
        for write in writes:
            self._perform(write)
        self._watches.wake(topics_of(writes))

    def _expect(self, write: Write) -> None:
        match write:
            case PutRun(run, expected):
                found = self._runs.get(run.id)
                if (found.revision if found else None) != expected:
                    raise Conflict(f"run {run.id}")
                if expected is None and run.key is not None and run.key in self._keys:
                    raise Conflict(f"key {run.key}")
            case PutSession(session, expected):
                known = self._sessions.get(session.id)
                if (known.revision if known else None) != expected:
                    raise Conflict(f"session {session.id}")
            case ExpectSession(session_id, revision):
                known = self._sessions.get(session_id)
                if (known.revision if known else None) != revision:
                    raise Conflict(f"session {session_id}")
            case PutRegister(key, _, expected):
                register = self._registers.get(key)
                if (register.revision if register else None) != expected:
                    raise Conflict(f"register {key}")

    def _perform(self, write: Write) -> None:
        match write:
            case PutRun(run, _):
                self._put(run)
            case PutSession(session, expected):
                beat_at = self.clock() if expected is None else self._sessions[session.id].beat_at
                self._sessions[session.id] = replace(session, beat_at=beat_at, used=0)
            case PutRegister(key, None, _):
                self._registers.pop(key, None)
            case PutRegister(key, value, expected):
                self._registers[key] = Register(key, value, (expected or 0) + 1)
            case Notice():
                self._notices.append(write)

    def _put(self, run: Run) -> None:
        before = self._runs.get(run.id)
        if before is not None and before.session is not None:
            self._owned[before.session].discard(run.id)
        self._runs[run.id] = run
        if run.key is not None:
            self._keys[run.key] = run.id
        if run.session is not None:
            self._owned[run.session].add(run.id)
        if run.offered:
            heapq.heappush(self._offers, (-run.priority, run.created_at, run.id))
        if run.session is None or (before is not None and before.epoch != run.epoch):
            self._reports.pop(run.id, None)

    async def take(self, offer: Offer, step: Callable[[Run], Run | None]) -> list[Run]:
        taken: list[Run] = []
        passed: list[tuple[int, float, str]] = []
        while self._offers and len(taken) < offer.limit:
            entry = heapq.heappop(self._offers)
            run = self._runs.get(entry[2])
            if run is None or not run.offered:
                continue
            if offer.above is not None and run.priority <= offer.above:
                passed.append(entry)
                break
            after = step(run) if _suits(run, offer) else None
            if after is None:
                passed.append(entry)
            else:
                taken.append(after)
        for entry in set(passed):
            heapq.heappush(self._offers, entry)
        await self.commit([PutRun(run, self._runs[run.id].revision) for run in taken])
        return taken

    async def beat(self, session: str, profile: Mapping[str, Any], reports: Sequence[Report]) -> Answer:
        now = self.clock()
        known = self._sessions.get(session)
        if known is None or known.state != OPEN:
            return Answer(now, False, False, ())
        self._sessions[session] = known.changed(beat_at=now, profile=dict(profile))
        held = [self._runs[run_id] for run_id in sorted(self._owned[session])]
        epochs = {run.id: run.epoch for run in held}
        self._reports.update({report.run: report for report in reports if epochs.get(report.run) == report.epoch})
        return Answer(now, True, known.draining, [Held(run.id, run.epoch, run.status, run.wish) for run in held])

    # -- reading ---------------------------------------------------------------------------------------------------

    async def run(self, run_id: str) -> Run | None:
        return self._runs.get(run_id)

    async def find(self, query: Query) -> list[Run]:
        pool = self._runs.values()
        if query.session is not None:
            pool = [self._runs[run_id] for run_id in self._owned[query.session]]  # type: ignore[assignment]
        elif query.key is not None:
            pool = [self._runs[self._keys[query.key]]] if query.key in self._keys else []  # type: ignore[assignment]
        found = sorted((run for run in pool if _matches(run, query)), key=lambda run: run.id, reverse=query.newest)
        return found[: query.limit]

    async def orphans(self, now: float, limit: int) -> list[tuple[Run, Session]]:
        found = []
        for session in self._sessions.values():
            for run_id in sorted(self._owned[session.id]):
                run = self._runs[run_id]
                if session.state == ENDED or session.beat_at + run.timeout < now:
                    found.append((run, session))
        return found[:limit]

    async def waiting(self) -> list[Waiting]:
        kinds: dict[tuple[str, int, str | None], list[float]] = defaultdict(list)
        for run in self._runs.values():
            if run.offered:
                kinds[run.workflow, run.version, run.pinned].append(run.waiting_since or 0.0)
        return [Waiting(*kind, len(since), min(since)) for kind, since in kinds.items()]

    async def counts(self) -> Mapping[RunStatus, int]:
        return Counter(run.status for run in self._runs.values())

    async def sessions(self, *, ended: bool = False) -> list[Session]:
        return [
            replace(session, used=len(self._owned[session.id]))
            for session in self._sessions.values()
            if ended or session.state != ENDED
        ]

    async def register(self, key: str) -> Register | None:
        return self._registers.get(key)

    async def registers(self, prefix: str) -> list[Register]:
        return [self._registers[key] for key in sorted(self._registers) if key.startswith(prefix)]

    async def reports(self, run_ids: Sequence[str]) -> dict[str, Report]:
        return {run_id: self._reports[run_id] for run_id in run_ids if run_id in self._reports}

    async def notices(self, *, run: str | None = None, after: int = 0, limit: int = 100) -> list[tuple[int, Notice]]:
        numbered = enumerate(self._notices, self._pruned_notices + 1)
        found = [(number, one) for number, one in numbered if number > after and (run is None or one.run == run)]
        return found[:limit]

    # -- large things, and old ones ----------------------------------------------------------------------------------

    async def keep_blob(self, data: bytes) -> str:
        name = hashlib.sha256(data).hexdigest()
        self._blobs[name] = data
        return name

    async def blob(self, name: str) -> bytes | None:
        return self._blobs.get(name)

    async def prune(self, ended_before: float, limit: int) -> int:
        old = [run for run in self._runs.values() if run.ended_at is not None and run.ended_at < ended_before][:limit]
        for run in old:
            del self._runs[run.id]
            if run.key is not None:
                del self._keys[run.key]
        if not old:
            self._forget_what_nothing_refers_to(ended_before)
        return len(old)

    def _forget_what_nothing_refers_to(self, before: float) -> None:
        for session in list(self._sessions.values()):
            if session.state == ENDED and session.beat_at < before and not self._owned[session.id]:
                del self._sessions[session.id], self._owned[session.id]
        recent = [notice for notice in self._notices if notice.at >= before]
        self._pruned_notices += len(self._notices) - len(recent)
        self._notices = recent
        used = {name for run in self._runs.values() for name in dumps.blobs_of(run)}
        self._blobs = {name: data for name, data in self._blobs.items() if name in used}

    async def check(self) -> list[str]:
        return []

    async def dump(self) -> AsyncIterator[Mapping[str, Any]]:
        everything = [
            dumps.HEADER,
            *(dumps.line(one) for one in self._runs.values()),
            *(dumps.line(one) for one in self._sessions.values()),
            *(dumps.line(one) for one in self._registers.values()),
            *(dumps.line(one) for one in self._notices),
            *(dumps.blob_line(data) for data in self._blobs.values()),
        ]
        for line in everything:
            yield line

    async def load(self, lines: AsyncIterator[Mapping[str, Any]]) -> int:
        return await dumps.load(self, lines)

    def watch(self, topics: frozenset[str]) -> Watch:
        return self._watches.add(topics)

    async def close(self) -> None:
        self._watches.wake_all()


def _suits(run: Run, offer: Offer) -> bool:
    return (
        run.not_before <= offer.now
        and run.kind not in offer.not_kinds
        and run.pinned in (None, offer.device)
        and offer.device not in run.avoid
    )


def _matches(run: Run, query: Query) -> bool:
    return (
        (query.statuses is None or run.status in query.statuses)
        and (query.workflow is None or run.workflow == query.workflow)
        and (query.device is None or run.device == query.device)
        and (query.session is None or run.session == query.session)
        and (query.series is None or run.series == query.series)
        and (query.offered is None or run.offered == query.offered)
        and (query.avoiding is None or bool(run.avoid) == query.avoiding)
        and (query.due_before is None or (run.due_at is not None and run.due_at < query.due_before))
        and (query.ended_before is None or (run.ended_at is not None and run.ended_at < query.ended_before))
        and (query.waiting_before is None or (run.waiting_since or query.waiting_before) < query.waiting_before)
        and (query.id_like is None or query.id_like in run.id)
        and (query.after is None or (run.id < query.after if query.newest else run.id > query.after))
        and (query.session is None or run.status in OWNED)
    )
