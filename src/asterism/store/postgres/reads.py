"""Reads of the PostgreSQL engine, and the heartbeat of a session, which reads and writes in one statement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

from asterism.base.clock import ServerClock
from asterism.core.limits import LimitedRuns
from asterism.core.run.run import Progress, Run, RunStatus
from asterism.core.run.session import Session
from asterism.store.postgres.connection import ConnectionPool
from asterism.store.postgres.error_mapping import storable
from asterism.store.postgres.group_commit import logs_text
from asterism.store.postgres.schema import statements
from asterism.store.protocol import (
    INDEXED,
    BatchPart,
    HeartbeatReply,
    Notice,
    OwnedRun,
    PlanQuery,
    PlanRow,
    ProgressReport,
    Query,
    Register,
    StoredChunk,
    WaitingRuns,
)
from asterism.store.row_codec import (
    COLUMNS,
    batch_parts,
    batch_range,
    chunk_of,
    from_text,
    like_pattern,
    limited_of,
    plan_of,
    readable,
    register_of,
    registers_of,
    run_of,
    searched,
    session_of,
    stored_notice,
    to_text,
    waiting_of,
)

_STATUSES = {str(status): status for status in RunStatus}
_TEXTS = ("workflow", "device", "session", "series", "key", "id_like", "after", "until", "search", "batch")
"""The fields of a query that are texts."""


class Reads:
    """The part of PostgresStore that reads, and the heartbeat, which reads and writes in one statement."""

    def __init__(self, quick: ConnectionPool, broad: ConnectionPool, clock: ServerClock) -> None:
        self._quick, self._broad = quick, broad
        self.clock = clock

    async def heartbeat(
        self, session: str, profile: Mapping[str, Any], reports: Sequence[ProgressReport]
    ) -> HeartbeatReply:
        if not storable(session):
            return HeartbeatReply(self.clock(), False, False, ())
        last = {report.run: report for report in reports if storable(report.run)}.values()
        logs = [report.log for report in last if report.log is not None]
        asked = self.clock.own()
        now, draining, runs, epochs, statuses, stop_requests, *_ = await self._quick.fetchrow(
            statements()["heartbeat_with_logs" if logs else "heartbeat"],
            session,
            to_text(dict(profile)),
            [report.run for report in last],
            [report.epoch for report in last],
            [None if report.progress is None else to_text(report.progress) for report in last],
            [to_text(report.tail) for report in last],
            *([logs_text(logs)] if logs else []),
        )
        self.clock.learn(now, asked)
        if draining is None:
            return HeartbeatReply(now, False, False, ())
        held = sorted(zip(runs, epochs, statuses, stop_requests, strict=True))
        return HeartbeatReply(
            now, True, bool(draining), [OwnedRun(run, e, _STATUSES[status], w) for run, e, status, w in held]
        )

    async def _named(self, query: str, name: str) -> Any:
        return await self._quick.fetchrow(statements()[query], name) if storable(name) else None

    async def run(self, run_id: str) -> Run | None:
        row = await self._named("run", run_id)
        return run_of(row) if row is not None else None

    async def find(self, query: Query) -> list[Run]:
        if query.judged is False:  # this engine has no copies
            return []
        if not all(text is None or storable(text) for text in (getattr(query, name) for name in _TEXTS)):
            return []
        plain, quoted = (None, None) if query.search is None else searched(query.search)
        rows = await self._broad.fetch(
            statements()["find_newest" if query.newest else "find_oldest"],
            None if query.statuses is None else [str(status) for status in query.statuses],
            query.workflow,
            query.device,
            query.session,
            query.series,
            query.key,
            None if query.offered is None else int(query.offered),
            query.avoiding,
            query.due_before,
            query.ended_before,
            query.waiting_before,
            query.id_like,
            query.after,
            query.limit,
            True if query.only_open else None,
            None if query.keys is None else [key for key in query.keys if storable(key)],
            plain,
            quoted,
            query.until,
            query.batch,
            query.with_files,
        )
        return readable(run_of, rows)

    async def scan_end(self, query: Query, number: int) -> str | None:
        names = [getattr(query, name) if name == query.index else None for name in INDEXED]
        if not all(text is None or storable(text) for text in (*names, query.after)):
            return None
        statement = statements()["scan_end_newest" if query.newest else "scan_end_oldest"]
        only_open = True if query.index == "open" else None
        rows = await self._broad.fetch(statement, *names, query.after, only_open, number - 1)
        return rows[0][0] if len(rows) == 2 else None

    async def orphans(self, now: float, limit: int) -> list[tuple[Run, Session]]:
        rows = await self._broad.fetch(statements()["orphans"], now, limit)
        width = len(COLUMNS)
        return readable(lambda row: (run_of(row[:width]), session_of(row[width:])), [tuple(row) for row in rows])

    async def waiting(self) -> list[WaitingRuns]:
        return [waiting_of(row) for row in await self._broad.fetch(statements()["waiting"])]

    async def limited(self) -> list[LimitedRuns]:
        return readable(limited_of, await self._broad.fetch(statements()["limited"]))

    async def limited_runs(self, group: LimitedRuns, limit: int, *, after: str = "") -> list[Run]:
        if not all(storable(text) for text in (group.uses, group.workflow, group.batch or "", after)):
            return []
        conditions = (group.uses, group.workflow, group.batch, group.priority, group.waiting)
        rows = await self._broad.fetch(statements()["limited_runs"], *conditions, after, limit)
        return readable(run_of, rows)

    async def counts(self) -> Mapping[RunStatus, int]:
        return {_STATUSES[status]: number for status, number in await self._broad.fetch(statements()["counts"])}

    async def batches(self, name: str | None = None) -> list[BatchPart]:
        if name is not None and not storable(name):
            return []
        return batch_parts(await self._broad.fetch(statements()["batches"], *batch_range(name)))

    async def last_ends(self, batch: str, limit: int) -> list[float]:
        rows = await self._broad.fetch(statements()["last_ends"], batch, limit) if storable(batch) else []
        return [row[0] for row in rows]

    async def sessions(self, *, ended: bool = False, device: str | None = None) -> list[Session]:
        if device is not None and not storable(device):
            return []
        rows = await self._quick.fetch(statements()["sessions"], ended, device)
        used = {row[0]: row[-1] for row in rows if row[1] is None}
        sessions = readable(
            lambda row: session_of(row, used.get(row[0], 0)), [row for row in rows if row[1] is not None]
        )
        return sorted(sessions, key=attrgetter("id"))

    async def register(self, key: str) -> Register | None:
        row = await self._named("register", key)
        return register_of(row) if row is not None else None

    async def registers(self, prefix: str, most: int | None = None) -> list[Register]:
        rows = await self._quick.fetch(statements()["registers"], prefix, most) if storable(prefix) else []
        return registers_of(rows)

    async def plans(self, query: PlanQuery) -> list[PlanRow]:
        before, before_name = query.before
        between = query.between or ()
        texts = (query.name, query.file, query.tag, before_name, *between)
        if not all(text is None or storable(text) for text in texts):
            return []
        rows = await self._broad.fetch(
            statements()["plans_between" if between else "plans"],
            None if query.states is None else sorted(query.states),
            sorted(query.live),
            None if query.name is None else like_pattern(query.name),
            query.file,
            query.tag,
            query.since,
            before,
            before_name,
            query.limit,
            *between,
        )
        return readable(plan_of, rows)

    async def reports(self, run_ids: Sequence[str]) -> dict[str, ProgressReport]:
        rows = await self._quick.fetch(statements()["reports"], [run_id for run_id in run_ids if storable(run_id)])
        return {run: _report(run, epoch, progress, tail) for run, epoch, progress, tail in rows}

    async def log(self, run_id: str, *, after: tuple[int, int] = (0, 0)) -> list[StoredChunk]:
        rows = await self._quick.fetch(statements()["log"], run_id, *after) if storable(run_id) else []
        return [chunk_of(run_id, row) for row in rows]

    async def notices(self, *, run: str | None = None, after: int = 0, limit: int = 100) -> list[tuple[int, Notice]]:
        rows = []
        if run is None:
            rows = await self._quick.fetch(statements()["notices"], after, limit)
        elif storable(run):
            rows = await self._quick.fetch(statements()["notices_of_run"], after, limit, run)
        return [(number, stored_notice(text)) for number, text in rows]

    async def blob(self, name: str) -> bytes | None:
        row = await self._named("blob", name)
        return row[0] if row is not None else None


def _report(run: str, epoch: int, progress: str | None, tail: str) -> ProgressReport:
    return ProgressReport(run, epoch, None if progress is None else Progress(*from_text(progress)), from_text(tail))
