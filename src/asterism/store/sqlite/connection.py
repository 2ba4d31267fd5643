"""A connection to the file, for one thread, that notices when the file is not there any more or is another one.

SQLite itself would go on writing into a file that was removed, and nobody would ever read it again. So the file is
looked at before and after every commit. If it comes back, the next call works again.

A file that was replaced is worse: beside it lies the log of the old one, and SQLite would take it for the log of the
new one. The writer's link therefore finishes the old file and clears its log away before it opens the new one, and the
readers' links follow only then.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections import Counter
from pathlib import Path

from asterism.store.sqlite import schema
from asterism.store.sqlite.error_mapping import may_write, moved, passing, read_only, store_error
from asterism.store.sqlite.wal_check import missing_commits
from asterism.store.store_errors import StoreCorrupt, StoreError, StoreMissing, StoreNotFound, StoreUnavailable

Identity = tuple[int, int]

_open_here: Counter[Identity] = Counter()
"""How many connections this process has to each file. A file's locks belong to the process, so this is state of the
process: whoever else opened and closed such a file would give up SQLite's locks on it."""

_opening = threading.Lock()
"""For changes of ``_open_here``, and for looking at a log while it is known that nobody here has it open."""

LOG_LIMIT = 64 * 1024 * 1024
"""How much room the log keeps when it has been worked off, in bytes."""


class FileConnection:
    """Its connection is used by one thread at a time. One with a ``leader`` reads, in the file that the leader has
    open; one without writes, makes the tables if they are missing, and does not wait for locks: its user does."""

    def __init__(self, path: Path, busy_timeout: float, leader: FileConnection | None = None) -> None:
        self.path = path
        self._name = os.fspath(path)
        self.busy_timeout = busy_timeout
        self.identity: Identity | None = None
        self._leader = leader
        self._connection: sqlite3.Connection | None = None
        self.cursor: sqlite3.Cursor | None = None
        self._beside: dict[Path, Identity | None] = {}
        self._replaced = False

    def first_open(self, create: bool) -> None:
        """If there is no file, one is made, or StoreMissing raised."""
        try:
            self._find_or_make(create)
        except OSError as error:  # such as a name that is too long, or a disk that is mounted read-only
            why = error.strerror or error
            raise StoreMissing(f"there is no file {self.path}, and none can be made: {why}") from error
        self._open(new=True)

    def _find_or_make(self, create: bool) -> None:
        folder = self.path.parent
        if not folder.is_dir():
            raise StoreMissing(f"there is no directory {folder} for the store {self.path.name}; make it first")
        if self.path.is_dir():
            raise StoreMissing(f"{self.path} is a directory; a store is a file")
        if not self.path.exists():
            if not create:
                raise StoreNotFound(f"there is no store {self.path}")
            if not may_write(folder):
                raise read_only(self.path)
            # for its owner alone: there may be secrets in inputs and results. SQLite gives its log the same mode
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
            sync_directory(folder)
        elif not may_write(self.path):
            raise read_only(self.path)
        else:
            self._check_before_opening(create)

    def _check_before_opening(self, create: bool) -> None:
        """Raises StoreCorrupt if SQLite would go on without commits that were acknowledged, and not say so."""
        log, index = self._companions()
        if _size(log) or not create:
            self._wait_for_content()
        with _opening:
            problem = None if _open_here[self._found()] else missing_commits(self.path)
        if problem is not None:
            raise StoreCorrupt(
                f"commits to {self.path} are missing: {problem}. Put a whole copy of {log.name} back. "
                f"To go on without these commits, remove {index.name}"
            )

    def _wait_for_content(self) -> None:
        """A file is empty for a moment while somebody makes a store of it. Raises StoreCorrupt if it stays so."""
        until = time.monotonic() + self.busy_timeout
        while not _size(self.path):
            if time.monotonic() >= until:
                raise StoreCorrupt(
                    f"{self.path} is empty; put it back, or restore a backup with `asterism store restore`"
                )
            time.sleep(0.01)

    def ready(self) -> sqlite3.Cursor:
        """The cursor. Raises StoreUnavailable if the file is not there; and once if it was replaced, since what is
        about to be written was meant for the old one."""
        self.follow()
        if self.cursor is None:
            self._open()
        if self._replaced:
            self._replaced = False
            raise moved(self.path)
        assert self.cursor is not None
        return self.cursor

    def follow(self) -> None:
        """Go over to the file that is there now, if it is another one. Raises StoreUnavailable."""
        found = self._found()
        if found == self.identity:
            return
        if self._leader is None:
            self._finish()
            self._open()
            self._replaced = True
        elif found == self._leader.identity:
            self.close()
            self._open()
        else:
            raise moved(self.path)

    def at_hand(self) -> sqlite3.Cursor | None:
        """The cursor, if the file is open and still the one that was opened."""
        try:
            return self.cursor if self._found() == self.identity else None
        except StoreError:
            return None

    def unmoved(self) -> None:
        """Raises StoreUnavailable unless the file is still the one that was opened."""
        if self._found() != self.identity:
            raise moved(self.path)

    def fault(self, error: Exception) -> StoreError:
        """What to raise for ``error``. That it cannot be written is a reason not to open a store, and passes in one
        that is open."""
        fault = store_error(error, self.path, self.busy_timeout)
        return fault if self._leader is None and self.identity is None else passing(fault)

    def rollback(self) -> None:
        """Undo what is under way. If even that fails, the connection is given up and the next call opens another."""
        try:
            if self._connection is not None and self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            self.close()

    def close(self) -> None:
        connection, self._connection, self.cursor = self._connection, None, None
        if connection is not None:
            assert self.identity is not None
            _close(connection, self.identity)

    # -- opening -----------------------------------------------------------------------------------------------------

    def _found(self) -> Identity:
        try:
            found = os.stat(self._name)
        except FileNotFoundError:
            raise moved(self.path) from None
        except OSError as error:
            raise self.fault(error) from error
        return found.st_dev, found.st_ino

    def _open(self, *, new: bool = False) -> None:
        """Only a ``new`` link fills a file that is empty: one that was in use and is empty now is being put back, or it
        is lost, and neither is for us to hide."""
        identity = self._found()
        with _opening:
            try:
                connection = sqlite3.connect(
                    f"{self.path.as_uri()}?mode=rw",
                    timeout=self.busy_timeout,
                    isolation_level=None,
                    uri=True,
                    check_same_thread=self._leader is not None,  # the writer's is used by one thread at a time
                )
            except sqlite3.Error as error:
                raise self.fault(error) from error
            _open_here[identity] += 1
        try:
            self._prepare(connection, new)
            if self._found() != identity:
                raise moved(self.path)
        except BaseException as error:
            _close(connection, identity)
            if isinstance(error, sqlite3.Error):
                raise self.fault(error) from error
            raise
        self._connection, self.cursor = connection, connection.cursor()
        self._beside = {path: _identity(path) for path in self._companions()}
        self.identity = identity

    def _prepare(self, connection: sqlite3.Connection, new: bool) -> None:
        if not new and schema.version_of(connection, self.path) == 0:
            raise StoreUnavailable(f"{self.path} is empty; put it back, or a backup in its place")
        if self._leader is None:
            schema.bring_up_to_date(connection, self.path, self.busy_timeout)
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(f"PRAGMA journal_size_limit = {LOG_LIMIT}")
            connection.execute("PRAGMA busy_timeout = 0")
        else:
            connection.execute("PRAGMA query_only = 1")
        connection.execute("PRAGMA data_version").fetchone()  # to read anything opens the log

    # -- leaving a file that was replaced ------------------------------------------------------------------------------

    def _companions(self) -> list[Path]:
        return [self.path.with_name(f"{self.path.name}{suffix}") for suffix in ("-wal", "-shm")]

    def _finish(self) -> None:
        """Work off the log of the old file, wherever that is now, and remove what would be taken for the new one's."""
        ours = [path for path, identity in self._beside.items() if identity and identity == _identity(path)]
        if ours and not self._worked_off():
            raise StoreUnavailable(
                f"{self.path} was replaced while it was in use, and {ours[0].name} beside it belongs to the old one; "
                "if this does not pass, stop everybody who uses it and move that away"
            )
        self.close()
        for path in ours:
            path.unlink(missing_ok=True)

    def _worked_off(self) -> bool:
        if self._connection is None:
            return False
        try:
            _, frames, done = self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except sqlite3.Error:
            return False
        return bool(frames == done)


def _close(connection: sqlite3.Connection, identity: Identity) -> None:
    with _opening:
        connection.close()
        _open_here[identity] -= 1
        if not _open_here[identity]:
            del _open_here[identity]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _identity(path: Path) -> Identity | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def sync_directory(folder: Path) -> None:
    """A name is durable when its directory is. Where directories cannot be opened, the system takes care of it."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
