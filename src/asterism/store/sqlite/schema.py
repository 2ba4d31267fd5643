"""Schema of the SQLite file: its migrations, forward only, and the SQL statements that use it.

The file records the version of its schema in ``user_version``, and that it is ours in ``application_id``. If two
processes open a new file at once, one gets the lock and creates the tables, and the other waits, looks again and finds
them. The statements are read from ``statements.sql``, by name.

A file that somebody else has made may look like a store and do something else: a trigger changes what is written, a
view never ends. ``foreign_object`` compares everything in the file with what the migrations create.
"""

from __future__ import annotations

import contextlib
import functools
import re
import sqlite3
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from asterism.store import row_codec
from asterism.store.sqlite.error_mapping import is_busy
from asterism.store.store_errors import StoreError, StoreForeign, StoreMissing, check_schema

APPLICATION = 0x41535452  # "ASTR"
OLDEST_SQLITE = (3, 24)  # INSERT … ON CONFLICT


FOLDER = Path(__file__).parent  # importlib.resources takes long to import


def _read_migrations() -> list[tuple[int, str]]:
    scripts = FOLDER.joinpath("migrations").glob("*.sql")
    return sorted((int(script.name.partition("_")[0]), script.read_text("utf-8")) for script in scripts)


MIGRATIONS = _read_migrations()
LATEST = MIGRATIONS[-1][0]
FEED_TRIGGERS = ("feed_of_new", "feed_of_changed", "feed_of_forgotten")
"""The triggers that the first peer creates (see store/protocol.py: Feeding)."""


def version_of(connection: sqlite3.Connection, path: Path) -> int:
    """Return the version of the schema; 0 for a new file. Raises StoreError for a file of another program, and
    UnknownSchema for another version."""
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise StoreMissing(f"Asterism needs SQLite 3.24 or later, and this Python comes with {sqlite3.sqlite_version}")
    with _transaction(connection, "BEGIN"):  # at one instant: another process may be creating the tables
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application == APPLICATION:
        check_schema(str(path), version, MIGRATIONS[0][0], LATEST)
        return int(version)
    if application or version or tables:
        raise StoreError(f"{path} is a SQLite database of another program; choose another file")
    return 0


def migrate(connection: sqlite3.Connection, path: Path, patience: float) -> None:
    """Apply the missing migrations. A file of another program is left alone. Raises StoreForeign."""
    with _transaction(connection, "BEGIN"):  # at one instant: another process may be migrating it
        version = version_of(connection, path)
        if version:
            refuse_foreign_objects(connection, path, version)
    if version < LATEST:
        with _transaction(connection, "BEGIN EXCLUSIVE"):
            version = version_of(connection, path)
            for number, script in MIGRATIONS:
                if number > version:
                    for statement in statements(script):
                        connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
            connection.execute(f"PRAGMA user_version = {LATEST}")
    (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    if mode != "wal":
        _enable_wal(connection, path, patience)


def refuse_foreign_objects(connection: sqlite3.Connection, path: Path, version: int) -> None:
    """Raises StoreForeign if the file has anything that the migrations up to this version do not create."""
    if (problem := foreign_object(connection, version)) is not None:
        raise StoreForeign(f"{path}: {problem}; somebody else has prepared the file: restore a backup of the store")


def foreign_object(connection: sqlite3.Connection, version: int = LATEST) -> str | None:
    """The first difference between the file and what the migrations create, as a sentence. Nothing of the file is read
    but the list of its objects."""
    expected, optional = _objects(version)
    present = set(connection.execute("SELECT type, name, sql FROM sqlite_master"))
    present = {(str(kind), str(name), _plain(sql)) for kind, name, sql in present}
    for kind, name, _ in sorted(present - expected - optional):
        known = any((kind, name) == definition[:2] for definition in expected | optional)
        what = "which is not as the store creates it" if known else "which is not one of the store"
        return f"the file has the {kind} {name!r}, {what}"
    for kind, name, _ in sorted(expected - present):
        return f"the file lacks the {kind} {name!r}"
    return None


Object = tuple[str, str, str]


@functools.cache
def _objects(version: int) -> tuple[set[Object], set[Object]]:
    """What a store of this version has (type, name and SQL of each object), and what it may have."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        for number, script in MIGRATIONS:
            for statement in statements(script) if number <= version else ():
                connection.execute(statement)
        expected = _listed(connection)
        for name in FEED_TRIGGERS:
            connection.execute(STATEMENTS[name])
        return expected, (_listed(connection) - expected) | _STATISTICS


_STATISTICS = {
    ("table", "sqlite_stat1", "create table sqlite_stat1(tbl,idx,stat)"),
    ("table", "sqlite_stat4", "create table sqlite_stat4(tbl,idx,neq,nlt,ndlt,sample)"),
}
"""What ANALYZE creates."""


def _listed(connection: sqlite3.Connection) -> set[Object]:
    return {
        (kind, name, _plain(sql)) for kind, name, sql in connection.execute("SELECT type, name, sql FROM sqlite_master")
    }


@functools.lru_cache(maxsize=256)  # those of the file are those that the migrations create
def _plain(sql: str | None) -> str:
    """A statement without comments, case and the width of its blanks, which mean nothing in ours."""
    text = re.sub(r"--[^\n]*", " ", str(sql or ""))
    return re.sub(r"\s*([(),;])\s*", r"\1", " ".join(text.lower().split()))


def statements(script: str) -> Iterator[str]:
    """Yield the statements of a script: ``executescript`` would commit the transaction."""
    gathered = ""
    for line in script.splitlines(keepends=True):
        gathered += line
        if sqlite3.complete_statement(gathered):
            yield gathered
            gathered = ""
    if gathered.strip():
        raise ValueError(f"a migration ends in the middle of a statement: {gathered.strip()[:80]}")


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection, begin: str) -> Iterator[None]:
    if connection.in_transaction:  # part of the transaction in progress
        yield
        return
    connection.execute(begin)
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _enable_wal(connection: sqlite3.Connection, path: Path, patience: float) -> None:
    """Switch to write-ahead logging. SQLite does not wait for the lock that this needs, so we do."""
    until = time.monotonic() + patience
    while True:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            break
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() >= until:
                raise
            time.sleep(0.005)
    if mode != "wal":
        raise StoreError(f"SQLite cannot use a write-ahead log for {path} (mode {mode}); choose a local disk")


# -- statements --------------------------------------------------------------------------------------------------------

_COLUMNS = {
    "run_columns": ", ".join(row_codec.COLUMNS),
    "run_places": ", ".join("?" * len(row_codec.COLUMNS)),
    "run_changes": ", ".join(f"{name} = ?" for name in row_codec.MOVING),
    "owned_columns": ", ".join(f"runs.{name}" for name in row_codec.COLUMNS),
    "session_columns": ", ".join(f"sessions.{name}" for name in row_codec.SESSION_COLUMNS),
}

_PLANS = {"plan_names": "", "plan_order": "created_at DESC, name DESC"}
"""How plans are listed, unless by their names."""


def _read_statements() -> dict[str, str]:
    text = FOLDER.joinpath("statements.sql").read_text("utf-8")
    sections = re.findall(r"^-- name: (\w+)\n(.*?)(?=^-- name: |\Z)", text, re.DOTALL | re.MULTILINE)
    statements = {name: _statement(body) for name, body in sections}
    between = {"plan_names": "name BETWEEN :first_name AND :last_name AND ", "plan_order": "name"}
    return statements | {"plans_between": _statement(dict(sections)["plans"], between)}


def _statement(body: str, plans: Mapping[str, str] = _PLANS) -> str:
    lines = [line for line in body.splitlines() if not line.startswith("--")]
    return "\n".join(lines).strip().removesuffix(";").format_map({**_COLUMNS, **plans})


STATEMENTS = _read_statements()
"""The statements of ``statements.sql``, by name."""
