"""Write jobs of the SQLite engine: a commit, the heartbeat of a session, a pruning, each as SQL statements.

A write is encoded where it is submitted, so that a value that cannot be stored is refused there. A job shares its
transaction with others. It does everything or nothing, and in the latter case leaves the reason in ``error``. It lets
errors of SQLite through: these end the transaction for all jobs.
"""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from asterism.core.run.run import Run, RunStatus
from asterism.core.run.session import ABROAD, Session
from asterism.store import row_codec
from asterism.store.protocol import (
    FEED,
    PLANS,
    Contribution,
    ExpectRegister,
    ExpectSession,
    HeartbeatReply,
    Notice,
    OwnedRun,
    ProgressReport,
    PutCopy,
    PutLog,
    PutPlan,
    PutPriority,
    PutRegister,
    PutRun,
    PutSession,
    Write,
)
from asterism.store.sqlite.schema import FEED_TRIGGERS, STATEMENTS
from asterism.store.store_errors import Conflict

FEWEST_TOGETHER = 20
"""From how many writes on new runs are inserted in groups."""

ROWS_TOGETHER = 50
"""How many runs of a group one statement inserts: what they share is bound once, which takes a third of the time."""

Statement = tuple[str, tuple[Any, ...], str]
"""SQL, its values, and the name of the record that was not as expected if the statement changes no row."""

_HEARTBEAT = STATEMENTS["heartbeat"]
_DRAINING = STATEMENTS["draining"]
_HELD = STATEMENTS["held"]
_PUT_REPORT = STATEMENTS["put_report"]
_PUT_LOG = STATEMENTS["put_log"]
_DROP_LOG = STATEMENTS["drop_log"]
_INSERT_RUN = STATEMENTS["insert_run"]
_UPDATE_RUN = STATEMENTS["update_run"]
_INSERT_REGISTER = STATEMENTS["insert_register"]
_UPDATE_REGISTER = STATEMENTS["update_register"]
_PUT_PLAN = STATEMENTS["put_plan"]
_EXPECT_SESSION = STATEMENTS["expect_session"]
_EXPECT_REGISTER = STATEMENTS["expect_register"]
_EXPECT_NO_REGISTER = STATEMENTS["expect_no_register"]
_EXPECTATIONS = frozenset({_EXPECT_SESSION, _EXPECT_REGISTER, _EXPECT_NO_REGISTER})
_REFUSALS = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError, sqlite3.ProgrammingError)
_TAKEN = (sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, sqlite3.SQLITE_CONSTRAINT_UNIQUE)
_OFFERED = row_codec.MOVING.index("offered")
_PRIORITY = row_codec.SHARED.index("priority")
_NO_FEED = "the feed"


def _insertion(number: int) -> str:
    """The statement that inserts so many runs of a group: first the values that they share, then those of each."""
    columns = (*row_codec.SHARED, "urgency", *row_codec.VARYING)
    shared = len(columns) - len(row_codec.VARYING)
    together = [f"?{place + 1}" for place in range(shared)]
    rows = []
    for row in range(number):
        first = shared + row * len(row_codec.VARYING)
        rows.append(
            f"({', '.join([*together, *(f'?{first + place + 1}' for place in range(len(row_codec.VARYING)))])})"
        )
    return f"INSERT INTO runs ({', '.join(columns)}) VALUES {', '.join(rows)}"


_INSERT_TOGETHER, _INSERT_ONE_OF_GROUP = _insertion(ROWS_TOGETHER), _insertion(1)
_KEYS = {
    _INSERT_RUN: (row_codec.COLUMNS.index("id"), row_codec.COLUMNS.index("key")),
    _INSERT_ONE_OF_GROUP: (len(row_codec.SHARED) + 1, len(row_codec.SHARED) + 2),
}
"""Where the values of a statement that inserts one run have its id and key."""


class Job:
    """``future`` receives the result once it is durable, or the error; the writer makes it. ``writes`` are the writes
    whose topics are woken then."""

    __slots__ = ("error", "future", "result", "writes")

    future: asyncio.Future[Any]

    def __init__(self) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self.writes: Sequence[Write] = ()

    @property
    def one_statement(self) -> bool:
        """Whether the job is a single statement, which needs no transaction around it."""
        return False

    @property
    def undoes_itself(self) -> bool:
        """Whether ``perform`` undoes what it did before it leaves an ``error``. Else it needs a savepoint."""
        return False

    def perform(self, cursor: sqlite3.Cursor, alone: bool) -> None:
        """Do the job. If it is ``alone`` in its transaction and leaves an ``error``, the caller rolls back."""
        raise NotImplementedError

    def perform_apart(self, cursor: sqlite3.Cursor) -> None:
        """Do the job in a savepoint of its own: a value that SQLite cannot hold, or a bug, fails no other job. Errors
        of the whole transaction pass."""
        cursor.execute("SAVEPOINT job")
        try:
            self.perform(cursor, True)
        except _REFUSALS as error:
            self.error = ValueError(f"cannot be stored: {error}")
        except (sqlite3.Error, OSError):
            raise
        except Exception as error:
            self.error = error
        if self.error is not None:
            cursor.execute("ROLLBACK TO job")
        cursor.execute("RELEASE job")


class CommitJob(Job):
    """A commit."""

    __slots__ = ("groups", "statements")

    def __init__(self, writes: Sequence[Write], clock: Callable[[], float]) -> None:
        self.result = self.error = None
        self.writes = writes
        self.groups: list[row_codec.RunGroup] = []
        if len(writes) >= FEWEST_TOGETHER:
            new = [write.run for write in writes if type(write) is PutRun and write.expected is None]
            self.groups = row_codec.grouped(new)
            writes = [write for write in writes if type(write) is not PutRun or write.expected is not None]
        self.statements: list[Statement] = []
        then: list[Statement] = []  # what belongs to other writes
        last: list[Statement] = []  # the summaries of plans, which need the rows of these
        for write in writes:
            if type(write) is PutLog:
                then += log_statements(write)
            elif type(write) is PutPlan:
                last.append(statement_of(write, clock))
            else:
                self.statements.append(statement_of(write, clock))
                if type(write) is PutRegister and write.key.startswith(PLANS) and _changes(write):
                    then.append(_list_plan(write.key.removeprefix(PLANS), write.value))
                elif type(write) is PutCopy:
                    then.append(mark_statement(write))
                    if write.run.ended:
                        then.append(end_statement(write, clock))
        self.statements += then
        self.statements += last

    @property
    def one_statement(self) -> bool:
        return len(self.statements) == 1 and not self.groups

    @property
    def undoes_itself(self) -> bool:
        return True

    def perform(self, cursor: sqlite3.Cursor, alone: bool) -> None:
        try:
            execute_all(cursor, self.statements, alone, self.groups)
        except (Conflict, ValueError, OverflowError) as error:
            self.error = error


class HeartbeatJob(Job):
    """A heartbeat. The result is a HeartbeatReply."""

    __slots__ = ("clock", "logs", "profile", "reports", "session")

    def __init__(
        self,
        session: str,
        profile: Mapping[str, Any],
        reports: Sequence[ProgressReport],
        clock: Callable[[], float],
    ) -> None:
        super().__init__()
        session.encode()
        self.session = session
        self.profile = row_codec.to_text(dict(profile))
        self.reports = [(report.run, report.epoch, encode_report(report)) for report in reports]
        self.logs = [
            (report.run, report.epoch, log_statements(report.log)) for report in reports if report.log is not None
        ]
        self.clock = clock

    @property
    def undoes_itself(self) -> bool:
        return not self.reports  # then it has a single write, of values that were encoded before

    def perform(self, cursor: sqlite3.Cursor, alone: bool) -> None:
        now = self.clock()
        if cursor.execute(_HEARTBEAT, (now, self.profile, self.session)).rowcount != 1:
            self.result = HeartbeatReply(now, False, False, ())
            return
        (draining,) = cursor.execute(_DRAINING, (self.session,)).fetchone()
        held = [
            OwnedRun(run_id, epoch, RunStatus(status), stop_request)
            for run_id, epoch, status, stop_request in cursor.execute(_HELD, (self.session,)).fetchall()
        ]
        if self.reports:
            epochs = {owned.run: owned.epoch for owned in held}
            cursor.executemany(_PUT_REPORT, [report for report in self.reports if epochs.get(report[0]) == report[1]])
            for run, epoch, statements in self.logs:
                if epochs.get(run) == epoch:
                    for sql, values, _ in statements:
                        cursor.execute(sql, values)
        self.result = HeartbeatReply(now, True, bool(draining), held)


class CallJob(Job):
    """A function of a cursor; its result is that of the job."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[[sqlite3.Cursor], Any]) -> None:
        super().__init__()
        self.function = function

    def perform(self, cursor: sqlite3.Cursor, alone: bool) -> None:
        self.result = self.function(cursor)


def prune(cursor: sqlite3.Cursor, *, ended_before: float, limit: int, only: str) -> int:
    """Delete old runs, and return how many; if no run is old enough, delete records without a run."""
    if only:
        deleted = cursor.execute(STATEMENTS["forget_runs_of"], (ended_before, limit, only)).rowcount
    else:
        deleted = cursor.execute(STATEMENTS["forget_runs"], (ended_before, limit)).rowcount
    if deleted < limit:
        deleted += cursor.execute(STATEMENTS["forget_seen_runs"], (ended_before, limit - deleted, only)).rowcount
    if deleted == 0 and not only:
        cursor.execute(STATEMENTS["forget_ends"])
        cursor.execute(STATEMENTS["forget_sessions"], (ended_before,))
        cursor.execute(STATEMENTS["forget_notices"], (ended_before,))
        cursor.execute(STATEMENTS["forget_reports"])
    return deleted


def start_feed(cursor: sqlite3.Cursor) -> str:
    """Create the feed: triggers, numbers and id in one commit. Return the id."""
    for name in FEED_TRIGGERS:
        cursor.execute(STATEMENTS[name])
    cursor.execute(STATEMENTS["feed_everything"])
    cursor.execute(STATEMENTS["name_feed"], (FEED, row_codec.to_text({"id": uuid.uuid4().hex})))
    row = cursor.execute(STATEMENTS["register"], (FEED,)).fetchone()
    return str(row_codec.from_text(row[1])["id"])


# -- writes as statements ----------------------------------------------------------------------------------------------


def statement_of(write: Write, clock: Callable[[], float]) -> Statement:
    """Return the statement of a write. Raises TypeError or ValueError for a value that is not JSON."""
    if isinstance(write, PutRegister) and write.value is not None:  # first, since every step of a plan passes here
        key, text = write.key, row_codec.to_text(write.value)
        if write.expected is None:
            return _INSERT_REGISTER, (key, text), f"register {key}"
        return _UPDATE_REGISTER, (text, key, write.expected), f"register {key}"
    if isinstance(write, ExpectRegister):
        return _EXPECT_REGISTER, (write.key, write.revision), f"register {write.key}"
    if isinstance(write, PutPlan):
        return _PUT_PLAN, (write.state, row_codec.to_text(write.summary), write.name), f"plan {write.name}"
    match write:
        case PutRun(run, expected):
            return run_statement(run, expected)
        case PutCopy(run, expected):
            return _copy_statement(run, expected)
        case PutSession(session, expected):
            return _put_session(session, expected, clock)
        case ExpectSession(session_id, revision):
            return _EXPECT_SESSION, (session_id, revision), f"session {session_id}"
        case PutRegister(key, None, None):
            return _EXPECT_NO_REGISTER, (key,), f"register {key}"
        case PutRegister(key, None, expected):
            return STATEMENTS["delete_register"], (key, expected), f"register {key}"
        case PutPriority(run_id, priority):
            return STATEMENTS["set_priority"], (priority, -priority, run_id), f"run {run_id}"
        case Contribution():
            return STATEMENTS["contribute"], tuple(write), f"contribution of {write.store}"
        case Notice():
            text = row_codec.to_text(write.to_json())
            return STATEMENTS["insert_notice"], (write.at, write.run, text), "notice"
    raise TypeError(f"a store cannot write a {type(write).__name__}")


def _changes(write: PutRegister) -> bool:
    """Whether it is more than an expectation that there is no such register."""
    return write.value is not None or write.expected is not None


def _list_plan(name: str, head: Any) -> Statement:
    """Write the row of a plan in the list of plans from its head, which is removed if it is None."""
    if head is None:
        return STATEMENTS["unlist_plan"], (name,), f"plan {name}"
    return STATEMENTS["list_plan"], (name, *row_codec.plan_columns(head)), f"plan {name}"


def run_statement(run: Run, expected: int | None) -> Statement:
    if expected is None:
        return _INSERT_RUN, (*row_codec.row_of(run), -run.priority), f"run {run.id}"
    return _UPDATE_RUN, (*row_codec.moving(run), run.id, expected), f"run {run.id}"


def _copy_statement(run: Run, expected: int | None) -> Statement:
    """Write the run, but do not offer it. ``mark_statement`` follows."""
    sql, values, what = run_statement(run, expected)
    first = _OFFERED + (len(row_codec.FIXED) if expected is None else 0)
    return sql, (*values[:first], 0, *values[first + 1 :]), what


def mark_statement(write: PutCopy) -> Statement:
    """Record to which store a copy is left, in its row of the feed."""
    marks = (write.left_to, int(write.same), int(not write.run.ended), write.run.id)
    return STATEMENTS["mark_copy"], marks, _NO_FEED


def end_statement(write: PutCopy, clock: Callable[[], float]) -> Statement:
    """Record when this store first saw that a copy has ended."""
    return STATEMENTS["see_end"], (write.run.id, write.run.ended_at, clock()), f"run {write.run.id}"


def log_statements(write: PutLog) -> list[Statement]:
    what = f"run {write.run}"
    drops = [] if write.drop is None else [(_DROP_LOG, (write.run, write.epoch, *write.drop), what)]
    return [
        *drops,
        *(
            (_PUT_LOG, (write.run, write.epoch, chunk.first, chunk.lines, row_codec.to_text(chunk.value)), what)
            for chunk in write.chunks
        ),
    ]


def _put_session(session: Session, expected: int | None, clock: Callable[[], float]) -> Statement:
    session_id, device, revision, state, draining, _, profile, session_terms = row_codec.session_row(session)
    what = f"session {session_id}"
    if expected is None:
        values: tuple[Any, ...] = (session_id, device, revision, state, draining, clock(), profile, session_terms)
        return STATEMENTS["insert_session"], values, what
    values = (device, revision, state, draining, clock(), profile, session_terms, session_id, expected)
    return STATEMENTS["update_session_abroad" if state == ABROAD else "update_session"], values, what


def execute_all(
    cursor: sqlite3.Cursor, statements: Sequence[Statement], alone: bool, groups: Sequence[row_codec.RunGroup] = ()
) -> None:
    """Insert groups of new runs and execute all statements, or do nothing; if they are ``alone`` in their transaction,
    the caller rolls back. Raises Conflict, and ValueError or OverflowError for a value that SQLite cannot hold. Any
    other error of SQLite concerns the whole transaction."""
    savepoint = not alone and (len(statements) > 1 or bool(groups))
    if savepoint:
        cursor.execute("SAVEPOINT batch")
    try:
        for group in groups:
            _insert_group(cursor, group)
        for statement in statements:
            _execute(cursor, statement)
    except (Conflict, ValueError, OverflowError):
        if savepoint:
            cursor.execute("ROLLBACK TO batch")
        raise
    finally:
        if savepoint and cursor.connection.in_transaction:
            cursor.execute("RELEASE batch")


def _execute(cursor: sqlite3.Cursor, statement: Statement) -> None:
    sql, values, what = statement
    try:
        cursor.execute(sql, values)
    except sqlite3.IntegrityError as error:
        raise _refusal(cursor, statement, error) from None
    except (sqlite3.DataError, sqlite3.InterfaceError, sqlite3.ProgrammingError) as error:
        raise ValueError(f"{what} cannot be stored: {error}") from error
    if cursor.rowcount == 1 or sql is _DROP_LOG or (sql in _EXPECTATIONS and cursor.fetchone() is not None):
        return
    if what is _NO_FEED:
        raise ValueError("a copy of a peer's record needs a change feed, and it was not started")
    raise Conflict(what)


def _insert_group(cursor: sqlite3.Cursor, group: row_codec.RunGroup) -> None:
    """Insert new runs, ROWS_TOGETHER with each statement, and the rest one by one. A statement that fails does not say
    which run was the reason, so all are inserted one by one, up to that run."""
    shared = (*group.shared, -group.shared[_PRIORITY])
    rest = group.rows[len(group.rows) - len(group.rows) % ROWS_TOGETHER :]
    if len(rest) < len(group.rows):
        cursor.execute("SAVEPOINT together")
        try:
            for first in range(0, len(group.rows) - len(rest), ROWS_TOGETHER):
                rows = group.rows[first : first + ROWS_TOGETHER]
                cursor.execute(_INSERT_TOGETHER, (*shared, *itertools.chain.from_iterable(rows)))
        except (*_REFUSALS, OverflowError, ValueError):
            cursor.execute("ROLLBACK TO together")
            rest = group.rows
        finally:
            if cursor.connection.in_transaction:
                cursor.execute("RELEASE together")
    for row in rest:
        _execute(cursor, (_INSERT_ONE_OF_GROUP, (*shared, *row), f"run {row[0]}"))


def _refusal(cursor: sqlite3.Cursor, statement: Statement, error: sqlite3.IntegrityError) -> Exception:
    sql, values, what = statement
    if error.sqlite_errorcode not in _TAKEN:
        return ValueError(f"{what} cannot be stored: {error}")
    if sql in _KEYS:
        run_id, key = (values[place] for place in _KEYS[sql])
        if cursor.execute(STATEMENTS["run_exists"], (run_id,)).fetchone() is None:
            return Conflict(f"key {key}")
    return Conflict(what)


def encode_report(report: ProgressReport) -> str:
    """A report as JSON, which can hold any text that a program may have printed."""
    return row_codec.to_text([report.progress, report.tail])
