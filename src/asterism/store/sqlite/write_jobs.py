"""Write jobs: a commit, a heartbeat or a pruning, as group commit performs it.

A job shares its transaction with others. It does everything or nothing, and in the latter case leaves the reason in
``error``. It lets errors of SQLite through: these end the transaction for all jobs.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from asterism.core.run.run import RunStatus
from asterism.store import row_codec
from asterism.store.protocol import HeartbeatReply, OwnedRun, ProgressReport, PutCopy, PutRun, Write
from asterism.store.sqlite.statements import (
    STATEMENTS,
    Statement,
    end_statement,
    mark_statement,
    perform,
    run_statement,
    statement_of,
)
from asterism.store.store_errors import Conflict
from asterism.store.write_batch import topics_of

_HEARTBEAT = STATEMENTS["heartbeat"]
_DRAINING = STATEMENTS["draining"]
_HELD = STATEMENTS["held"]
_PUT_REPORT = STATEMENTS["put_report"]


class Job:
    """``future`` receives the result once it is durable, or the error."""

    __slots__ = ("error", "future", "result")

    def __init__(self, future: asyncio.Future[Any]) -> None:
        self.future = future
        self.result: Any = None
        self.error: BaseException | None = None

    @property
    def one_statement(self) -> bool:
        """Whether the job is a single statement, which needs no transaction around it."""
        return False

    def perform(self, cursor: sqlite3.Cursor, alone: bool) -> None:
        """Do the job. If it is ``alone`` in its transaction and leaves an ``error``, the caller rolls back."""
        raise NotImplementedError

    def perform_alone(self, cursor: sqlite3.Cursor) -> None:
        self.perform(cursor, True)

    def topics(self) -> set[str]:
        """The topics to wake once the job is done."""
        return set()


class CommitJob(Job):
    """A commit."""

    __slots__ = ("statements", "writes")

    def __init__(self, future: asyncio.Future[Any], writes: Sequence[Write], clock: Callable[[], float]) -> None:
        self.future = future
        self.result = self.error = None
        self.writes = writes
        self.statements: list[Statement] = [
            run_statement(write.run, write.expected) if type(write) is PutRun else statement_of(write, clock)
            for write in writes
        ]
        if len(writes) > 1 or type(writes[0]) is PutCopy:
            copies = [write for write in writes if type(write) is PutCopy]
            self.statements += [mark_statement(write) for write in copies]
            self.statements += [end_statement(write, clock) for write in copies if write.run.ended]

    @property
    def one_statement(self) -> bool:
        return len(self.statements) == 1

    def perform(self, cursor: sqlite3.Cursor, alone: bool) -> None:
        try:
            perform(cursor, self.statements, alone)
        except (Conflict, ValueError, OverflowError) as error:
            self.error = error

    def topics(self) -> set[str]:
        return topics_of(self.writes)


class HeartbeatJob(Job):
    """A heartbeat. The result is a HeartbeatReply."""

    __slots__ = ("clock", "profile", "said", "session")

    def __init__(
        self,
        future: asyncio.Future[Any],
        session: str,
        profile: Mapping[str, Any],
        reports: Sequence[ProgressReport],
        clock: Callable[[], float],
    ) -> None:
        super().__init__(future)
        self.session = session
        self.profile = row_codec.to_text(dict(profile))
        self.said = [(report.run, report.epoch, encode_report(report)) for report in reports]
        self.clock = clock

    def perform(self, cursor: sqlite3.Cursor, alone: bool) -> None:
        now = self.clock()
        if cursor.execute(_HEARTBEAT, (now, self.profile, self.session)).rowcount != 1:
            self.result = HeartbeatReply(now, False, False, ())
            return
        (draining,) = cursor.execute(_DRAINING, (self.session,)).fetchone()
        held = [
            OwnedRun(run_id, epoch, RunStatus(status), wish)
            for run_id, epoch, status, wish in cursor.execute(_HELD, (self.session,)).fetchall()
        ]
        if self.said:
            epochs = {one.run: one.epoch for one in held}
            cursor.executemany(_PUT_REPORT, [said for said in self.said if epochs.get(said[0]) == said[1]])
        self.result = HeartbeatReply(now, True, bool(draining), held)


class PruneJob(Job):
    """Deletion of old runs, or, if there is none, of records to which none refers. The result is the number of runs."""

    __slots__ = ("ended_before", "keep", "limit")

    def __init__(self, future: asyncio.Future[Any], ended_before: float, limit: int, keep: Sequence[str]) -> None:
        super().__init__(future)
        self.ended_before = ended_before
        self.limit = limit
        self.keep = row_codec.to_text(list(keep))

    def perform(self, cursor: sqlite3.Cursor, alone: bool) -> None:
        self.result = cursor.execute(STATEMENTS["forget_runs"], (self.ended_before, self.limit, self.keep)).rowcount
        if self.result < self.limit:
            terms = (self.ended_before, self.limit - self.result, self.keep)
            self.result += cursor.execute(STATEMENTS["forget_seen_runs"], terms).rowcount
        if self.result == 0:
            cursor.execute(STATEMENTS["forget_ends"])
            cursor.execute(STATEMENTS["forget_sessions"], (self.ended_before,))
            cursor.execute(STATEMENTS["forget_notices"], (self.ended_before,))
            cursor.execute(STATEMENTS["forget_reports"])


def encode_report(report: ProgressReport) -> str:
    """A report as JSON, which can hold any text that a program may have printed."""
    return row_codec.to_text([report.progress, report.tail])
