"""SQL statements of the SQLite engine, and writes as statements.

A write is encoded where it is submitted, so that a value that cannot be stored is refused there, and executed by group
commit.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any

from asterism.core.run.run import Run
from asterism.core.run.session import ABROAD, Session
from asterism.store import row_codec
from asterism.store.protocol import (
    Contribution,
    ExpectRegister,
    ExpectSession,
    Notice,
    PutCopy,
    PutRegister,
    PutRun,
    PutSession,
    Write,
)
from asterism.store.store_errors import Conflict

_COLUMNS = {
    "run_columns": ", ".join(row_codec.COLUMNS),
    "run_places": ", ".join("?" * len(row_codec.COLUMNS)),
    "run_changes": ", ".join(f"{name} = ?" for name in row_codec.MOVING),
    "owned_columns": ", ".join(f"runs.{name}" for name in row_codec.COLUMNS),
    "session_columns": ", ".join(f"sessions.{name}" for name in row_codec.SESSION_COLUMNS),
}


def _read() -> dict[str, str]:
    text = files(__package__).joinpath("statements.sql").read_text("utf-8")
    found = re.findall(r"^-- name: (\w+)\n(.*?)(?=^-- name: |\Z)", text, re.DOTALL | re.MULTILINE)
    return {name: _statement(body) for name, body in found}


def _statement(body: str) -> str:
    lines = [line for line in body.splitlines() if not line.startswith("--")]
    return "\n".join(lines).strip().removesuffix(";").format_map(_COLUMNS)


STATEMENTS = _read()
"""The statements of ``statements.sql``, by name."""

Statement = tuple[str, tuple[Any, ...], str]
"""SQL, its values, and the name of the record that was not as expected if the statement changes no row."""

_INSERT_RUN = STATEMENTS["insert_run"]
_UPDATE_RUN = STATEMENTS["update_run"]
_INSERT_REGISTER = STATEMENTS["insert_register"]
_UPDATE_REGISTER = STATEMENTS["update_register"]
_EXPECT_SESSION = STATEMENTS["expect_session"]
_EXPECT_REGISTER = STATEMENTS["expect_register"]
_EXPECT_NO_REGISTER = STATEMENTS["expect_no_register"]
_EXPECTATIONS = frozenset({_EXPECT_SESSION, _EXPECT_REGISTER, _EXPECT_NO_REGISTER})
_TAKEN = (sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, sqlite3.SQLITE_CONSTRAINT_UNIQUE)
_OFFERED = row_codec.MOVING.index("offered")
_KEY = row_codec.FIXED.index("key")
_NO_FEED = "the feed"


def statement_of(write: Write, clock: Callable[[], float]) -> Statement:
    """Return the statement of a write. Raises TypeError or ValueError for a value that is not JSON."""
    if isinstance(write, PutRegister) and write.value is not None:  # first, since every step of a plan passes here
        key, text = write.key, row_codec.to_text(write.value)
        if write.expected is None:
            return _INSERT_REGISTER, (key, text), f"register {key}"
        return _UPDATE_REGISTER, (text, key, write.expected), f"register {key}"
    if isinstance(write, ExpectRegister):
        return _EXPECT_REGISTER, (write.key, write.revision), f"register {write.key}"
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
        case Contribution():
            return STATEMENTS["contribute"], tuple(write), f"contribution of {write.store}"
        case Notice():
            text = row_codec.to_text(row_codec.notice_to_json(write))
            return STATEMENTS["insert_notice"], (write.at, write.run, text), "notice"
    raise TypeError(f"a store cannot write a {type(write).__name__}")


def run_statement(run: Run, expected: int | None) -> Statement:
    if expected is None:
        return _INSERT_RUN, (*row_codec.fixed(run), *row_codec.moving(run), -run.priority), f"run {run.id}"
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


def _put_session(session: Session, expected: int | None, clock: Callable[[], float]) -> Statement:
    session_id, device, revision, state, draining, _, profile, terms = row_codec.session_row(session)
    what = f"session {session_id}"
    if expected is None:
        values: tuple[Any, ...] = (session_id, device, revision, state, draining, clock(), profile, terms)
        return STATEMENTS["insert_session"], values, what
    values = (device, revision, state, draining, clock(), profile, terms, session_id, expected)
    return STATEMENTS["update_session_abroad" if state == ABROAD else "update_session"], values, what


def perform(cursor: sqlite3.Cursor, statements: Sequence[Statement], alone: bool) -> None:
    """Execute all statements or none; if they are ``alone`` in their transaction, the caller rolls back. Raises
    Conflict, and ValueError or OverflowError for a value that SQLite cannot hold. Any other error of SQLite concerns
    the whole transaction."""
    if alone or len(statements) == 1:
        for statement in statements:
            perform_one(cursor, statement)
        return
    cursor.execute("SAVEPOINT batch")
    try:
        for statement in statements:
            perform_one(cursor, statement)
    except (Conflict, ValueError, OverflowError):
        cursor.execute("ROLLBACK TO batch")
        raise
    finally:
        if cursor.connection.in_transaction:
            cursor.execute("RELEASE batch")


def perform_one(cursor: sqlite3.Cursor, statement: Statement) -> None:
    sql, values, what = statement
    try:
        cursor.execute(sql, values)
    except sqlite3.IntegrityError as error:
        raise _refusal(cursor, statement, error) from None
    except (sqlite3.DataError, sqlite3.InterfaceError, sqlite3.ProgrammingError) as error:
        raise ValueError(f"{what} cannot be stored: {error}") from error
    if cursor.rowcount == 1:
        return
    if sql not in _EXPECTATIONS or cursor.fetchone() is None:
        if what is _NO_FEED:
            raise ValueError("a copy of a peer's record needs a change feed, and it was not started")
        raise Conflict(what)


def _refusal(cursor: sqlite3.Cursor, statement: Statement, error: sqlite3.IntegrityError) -> Exception:
    sql, values, what = statement
    if error.sqlite_errorcode not in _TAKEN:
        return ValueError(f"{what} cannot be stored: {error}")
    if sql is _INSERT_RUN and cursor.execute(STATEMENTS["run_exists"], values[:1]).fetchone() is None:
        return Conflict(f"key {values[_KEY]}")
    return Conflict(what)
