"""Which tables there are. Migrations go forward only; the file says how far it has come (``user_version``) and whose it
is (``application_id``).

Two processes that open a new file at once both want to make the tables. One gets the lock, the other waits for it,
looks again and finds the work done.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

from asterism.store.sqlite.error_mapping import is_busy
from asterism.store.store_errors import StoreError, StoreMissing, UnknownSchema

APPLICATION = 0x41535452  # "ASTR"
OLDEST_SQLITE = (3, 24)  # INSERT … ON CONFLICT


def _read() -> list[tuple[int, str]]:
    folder = files(__package__).joinpath("migrations")
    scripts = (one for one in folder.iterdir() if one.name.endswith(".sql"))
    return sorted((int(one.name.partition("_")[0]), one.read_text("utf-8")) for one in scripts)


MIGRATIONS = _read()
LATEST = MIGRATIONS[-1][0]


def version_of(connection: sqlite3.Connection, path: Path) -> int:
    """How far the file has come; 0 for a new one. Raises StoreError if it is not ours, UnknownSchema if it is ahead."""
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise StoreMissing(f"SQLite 3.24 or later is needed, and this Python comes with {sqlite3.sqlite_version}")
    with _transaction(connection, "BEGIN"):  # at one instant: somebody else may be making the tables
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application == APPLICATION:
        if version > LATEST:
            raise UnknownSchema(
                f"{path} has schema version {version}, and this Asterism knows versions up to {LATEST}: use a later one"
            )
        return int(version)
    if application or version or tables:
        raise StoreError(f"{path} is a SQLite database of another program; choose another file")
    return 0


def bring_up_to_date(connection: sqlite3.Connection, path: Path, patience: float) -> None:
    """Make what is missing. A file that is not ours is left as it is."""
    if version_of(connection, path) < LATEST:
        with _transaction(connection, "BEGIN EXCLUSIVE"):
            version = version_of(connection, path)
            for number, script in MIGRATIONS:
                if number > version:
                    for statement in statements(script):
                        connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
            connection.execute(f"PRAGMA user_version = {LATEST}")
    _keep_a_log(connection, path, patience)


def statements(script: str) -> Iterator[str]:
    """One by one: ``executescript`` would commit what is under way."""
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
    if connection.in_transaction:  # it is part of that one
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


def _keep_a_log(connection: sqlite3.Connection, path: Path, patience: float) -> None:
    """Write-ahead logging. SQLite does not wait for the lock that this needs, so we do."""
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
        raise StoreError(f"{path} is where SQLite cannot keep a write-ahead log ({mode}); choose a local disk")
