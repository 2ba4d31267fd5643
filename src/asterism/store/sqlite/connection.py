"""Connections to the SQLite file: they check its WAL, and notice when the file was removed or replaced.

SQLite itself would continue to write into a removed file, and the data would be lost. So the file is checked before and
after every commit. If it comes back, the next call works again.

A replaced file is worse: the log of the old file lies beside it, and SQLite would take it for the log of the new one.
The writer's connection therefore checkpoints the old file and removes its log before it opens the new file, and the
readers' connections follow only then.

Before SQLite opens the file, ``missing_commits`` checks whether the log still holds every acknowledged commit. A
process that dies leaves two files beside the store: the log (``-wal``) and its index (``-shm``). The next process that
opens the store makes SQLite read the log from its beginning up to the first frame with a wrong checksum. SQLite
silently ignores the frames after that, and the next commit overwrites them. That is right for a write that was cut off:
it was never acknowledged. It is wrong for a log that was damaged, truncated or removed later.

The index tells the two apart. SQLite writes the number of the last committed frame there after the frame itself is on
the disk, and next to it how many frames have been copied into the store. If they have not all been copied and one of
the committed frames cannot be read, a commit that was acknowledged is missing. This cannot detect a log and an index
that were removed together. The formats are described in SQLite's documentation ("WAL-mode File Format").
"""

from __future__ import annotations

import os
import sqlite3
import struct
import sys
import threading
import time
from array import array
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from asterism.base.content_store import sync_folder
from asterism.base.operating_system import read_at
from asterism.store.sqlite import schema
from asterism.store.sqlite.error_mapping import may_write, moved, passing, read_only, store_error
from asterism.store.store_errors import StoreCorrupt, StoreError, StoreMissing, StoreNotFound, StoreUnavailable

try:
    import fcntl
except ImportError:  # Windows: the frames are not read, see ``_in_use``
    fcntl = None  # type: ignore[assignment]

Identity = tuple[int, int]

_open_here: Counter[Identity] = Counter()
"""How many connections this process has to each file. This is state of the process because file locks are: opening and
closing such a file in any other way would release SQLite's locks on it."""

_opening = threading.Lock()
"""Guards ``_open_here``, and the check of a log while no connection of this process has it open."""

LOG_LIMIT = 64 * 1024 * 1024
"""The size to which the log is truncated after a checkpoint, in bytes."""


class FileConnection:
    """A connection that one thread at a time uses. With a ``leader`` it only reads, in the file that the leader has
    open. Without one it writes, creates missing tables, and does not wait for locks: its user does."""

    def __init__(self, path: Path, busy_timeout: float, leader: FileConnection | None = None) -> None:
        self.path = path
        self._name = os.fspath(path)
        self.busy_timeout = busy_timeout
        self.identity: Identity | None = None
        self._log, self._index = (path.with_name(f"{path.name}{suffix}") for suffix in ("-wal", "-shm"))
        self._leader = leader
        self._connection: sqlite3.Connection | None = None
        self.cursor: sqlite3.Cursor | None = None
        self._beside: dict[Path, Identity | None] = {}
        self._replaced = False

    def first_open(self, create: bool) -> None:
        """Open the file. If it does not exist, create it, or raise StoreMissing."""
        try:
            self._find_or_create(create)
        except OSError as error:  # such as a name that is too long, or a read-only disk
            why = error.strerror or error
            raise StoreMissing(f"there is no file {self.path}, and it cannot be created: {why}") from error
        self._open(new=True)

    def _find_or_create(self, create: bool) -> None:
        folder = self.path.parent
        if not folder.is_dir():
            raise StoreMissing(f"there is no directory {folder} for the store {self.path.name}; create it first")
        if self.path.is_dir():
            raise StoreMissing(f"{self.path} is a directory; a store is a file")
        if not self.path.exists():
            if not create:
                raise StoreNotFound(f"there is no store {self.path}")
            if not may_write(folder):
                raise read_only(self.path)
            # readable by its owner only: inputs and results may contain secrets. SQLite gives its log the same mode
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
            sync_folder(folder)
        elif not may_write(self.path):
            raise read_only(self.path)
        else:
            self._check_before_opening(create)

    def _check_before_opening(self, create: bool) -> None:
        """Raises StoreCorrupt if SQLite would silently drop acknowledged commits."""
        if (_size(self._log) or not create) and not _size(self.path):
            self._wait_for_content()
        with _opening:
            problem = None if _open_here[self._current_identity()] else missing_commits(self.path)
        if problem is not None:
            raise StoreCorrupt(
                f"commits to {self.path} are missing: {problem}. Restore a complete copy of {self._log.name}. "
                f"To continue without these commits, remove {self._index.name}"
            )

    def _wait_for_content(self) -> None:
        """Wait while another process creates the store: until then the file is empty. Raises StoreCorrupt if it stays
        so."""
        until = time.monotonic() + self.busy_timeout
        while not _size(self.path):
            if time.monotonic() >= until:
                raise StoreCorrupt(f"{self.path} is empty; restore the file, or a backup with `asterism store restore`")
            time.sleep(0.01)

    def ready(self) -> sqlite3.Cursor:
        """Return the cursor. Raises StoreUnavailable if the file is missing, and once after it was replaced: the
        pending writes were meant for the old file."""
        if (current := self._current_identity()) != self.identity:
            self._switch(current)
        if self.cursor is None:
            self._open()
        if self._replaced:
            self._replaced = False
            raise moved(self.path)
        assert self.cursor is not None
        return self.cursor

    def follow(self) -> None:
        """Switch to the file that is there now, if it is another one. Raises StoreUnavailable."""
        if (current := self._current_identity()) != self.identity:
            self._switch(current)

    def cursor_if_current(self) -> sqlite3.Cursor | None:
        """Return the cursor if the file is open and was not replaced."""
        try:
            return self.cursor if self._current_identity() == self.identity else None
        except StoreError:
            return None

    def check_current(self) -> None:
        """Raises StoreUnavailable if the file was removed or replaced."""
        if self._current_identity() != self.identity:
            raise moved(self.path)

    def fault(self, error: Exception) -> StoreError:
        """Return the StoreError for ``error``. A file that cannot be written prevents opening a store, but is a
        temporary condition of an open one."""
        fault = store_error(error, self.path, self.busy_timeout)
        return fault if self._leader is None and self.identity is None else passing(fault)

    def rollback(self) -> None:
        """Roll back the transaction. If that fails, close the connection; the next call opens another."""
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

    def _current_identity(self) -> Identity:
        try:
            status = os.stat(self._name)
        except FileNotFoundError:
            raise moved(self.path) from None
        except OSError as error:
            raise self.fault(error) from error
        return status.st_dev, status.st_ino

    def _open(self, *, new: bool = False) -> None:
        """Only a ``new`` connection creates tables in an empty file: a file that was in use and is empty now is being
        restored, or is lost, and creating tables would hide that."""
        identity = self._current_identity()
        with _opening:
            try:
                connection = sqlite3.connect(
                    f"{self.path.as_uri()}?mode=rw",
                    timeout=self.busy_timeout,
                    isolation_level=None,
                    uri=True,
                    check_same_thread=self._leader is not None,  # the writer's moves between threads
                )
            except sqlite3.Error as error:
                raise self.fault(error) from error
            _open_here[identity] += 1
        try:
            self._prepare(connection, new)
            if self._current_identity() != identity:
                raise moved(self.path)
        except BaseException as error:
            _close(connection, identity)
            if isinstance(error, sqlite3.Error):
                raise self.fault(error) from error
            raise
        self._connection, self.cursor = connection, connection.cursor()
        self._beside = {path: _identity(path) for path in (self._log, self._index)}
        self.identity = identity

    def _prepare(self, connection: sqlite3.Connection, new: bool) -> None:
        connection.execute("PRAGMA trusted_schema = OFF")  # functions and virtual tables in views do nothing
        if not new and schema.version_of(connection, self.path) == 0:
            raise StoreUnavailable(f"{self.path} is empty; restore the file, or a backup in its place")
        if self._leader is None:
            schema.migrate(connection, self.path, self.busy_timeout)
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(f"PRAGMA journal_size_limit = {LOG_LIMIT}")
        else:
            connection.execute("PRAGMA query_only = 1")
        connection.execute("PRAGMA data_version").fetchone()  # any read opens the log; another process may recover it
        if self._leader is None:
            connection.execute("PRAGMA busy_timeout = 0")

    # -- leaving a replaced file ---------------------------------------------------------------------------------------

    def _switch(self, current: Identity) -> None:
        if self._leader is None:
            self._finish()
            self._open()
            self._replaced = True
        elif current == self._leader.identity:
            self.close()
            self._open()
        else:
            raise moved(self.path)

    def _finish(self) -> None:
        """Checkpoint the old file, wherever it is now, and remove its log, which SQLite would take for the new
        file's."""
        ours = [path for path, identity in self._beside.items() if identity and identity == _identity(path)]
        if ours and not self._checkpointed():
            raise StoreUnavailable(
                f"{self.path} was replaced while it was in use, and {ours[0].name} beside it belongs to the old file; "
                "if this persists, stop all processes that use the store and remove that file"
            )
        self.close()
        for path in ours:
            if _identity(path) == self._beside[path]:  # else it is that of another process in the new file by now
                path.unlink(missing_ok=True)

    def _checkpointed(self) -> bool:
        if self._connection is None:
            return False
        try:
            busy, frames, done = self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except sqlite3.Error:
            return False
        return not busy and bool(frames == done)  # while somebody else copies, both are -1


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
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


# -- check of the log --------------------------------------------------------------------------------------------------

LOG_HEADER = struct.Struct(">8I")  # magic, format, page size, checkpoint number, two salts, two checksums
SALTS_OF_LOG = slice(16, 24)
FRAME_HEADER = struct.Struct(">6I")  # page number, size of the store after a commit, two salts, two checksums
SALTS_OF_FRAME = slice(8, 16)
INDEX_HEADER = struct.Struct("=12x B x H I 12x 8s 2I")  # begun, page size, last commit, salts, two checksums
BACKFILLED = struct.Struct("=I")
MAGIC = {b"\x37\x7f\x06\x82": "little", b"\x37\x7f\x06\x83": "big"}
"""The first bytes of a log, and the byte order of its checksums."""

OPEN_MARK = 128
"""Every open connection holds a lock on this byte of the index."""

Checksum = tuple[int, int]


class Index(NamedTuple):
    """What the index records about the log."""

    page_size: int
    committed: int  # the number of the last frame that was committed
    copied: int  # how many frames have been copied into the store
    salts: bytes


def missing_commits(store: Path) -> str | None:
    """Return the damage if acknowledged commits cannot be read from the log; None if they can.

    Must not be called while this process has the store open: closing a file releases all locks of the process on it."""
    index_path, log_path = (store.with_name(f"{store.name}{suffix}") for suffix in ("-shm", "-wal"))
    try:
        descriptor = os.open(index_path, os.O_RDWR)
    except OSError:
        return None  # no index, or no permission: SQLite decides
    try:
        index = _read_index(descriptor)
        if index is None or index.committed <= index.copied:
            return None
        if _in_use(descriptor):
            return None  # not the leftover of a dead process: another one uses the log
        problem = _damage(log_path, index)
        if problem is not None and (_in_use(descriptor) or _read_index(descriptor) != index):
            return None  # another process opened it meanwhile, and writes into the log
        return problem
    finally:
        os.close(descriptor)


def _in_use(descriptor: int) -> bool:
    """Whether another process has the store open. Where that cannot be found out, it is assumed."""
    if fcntl is None:
        return True
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, OPEN_MARK)
    except OSError:
        return True
    fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, OPEN_MARK)
    return False


def _read_index(descriptor: int) -> Index | None:
    """Return the index; None if its two copies of the header differ or their checksum is wrong."""
    size = INDEX_HEADER.size
    data = read_at(descriptor, 2 * size + BACKFILLED.size, 0)
    if len(data) < 2 * size + BACKFILLED.size or data[:size] != data[size : 2 * size]:
        return None
    begun, page_size, committed, salts, *checksum = INDEX_HEADER.unpack_from(data)
    if not begun or tuple(checksum) != _checksum(data[: size - 8], (0, 0), swap=False):
        return None
    (copied,) = BACKFILLED.unpack_from(data, 2 * size)
    return Index((page_size & 0xFE00) + ((page_size & 1) << 16), committed, copied, salts)


def _damage(path: Path, index: Index) -> str | None:
    """Read all committed frames: SQLite stops at the first bad one, even if it has been copied."""
    try:
        log = path.open("rb")
    except FileNotFoundError:
        return f"{path.name} is missing"
    except OSError:
        return None
    with log:
        header = log.read(LOG_HEADER.size)
        if len(header) < LOG_HEADER.size or header[:4] not in MAGIC:
            return f"{path.name} is damaged at its beginning"
        swap = MAGIC[header[:4]] != sys.byteorder
        checksum = _checksum(header[:24], (0, 0), swap=swap)
        if checksum != _stored(header, 24):
            return f"{path.name} is damaged at its beginning"
        if header[SALTS_OF_LOG] != index.salts:
            newer = _begun_since(header[SALTS_OF_LOG], index.salts)
            return None if newer else f"{path.name} is not the log of the last commits"
        frame_size = FRAME_HEADER.size + index.page_size
        for number in range(1, index.committed + 1):
            frame = log.read(frame_size)
            if len(frame) < frame_size:
                return f"{path.name} ends before frame {number} of {index.committed}"
            checksum = _checksum(frame[:8] + frame[FRAME_HEADER.size :], checksum, swap=swap)
            if frame[SALTS_OF_FRAME] != index.salts or checksum != _stored(frame, 16):
                return f"{path.name} is damaged at frame {number} of {index.committed}"
    return None


def _begun_since(log: bytes, index: bytes) -> bool:
    """Whether the log was restarted after the index was written: then the first salt has grown. The index is never
    synced, so after a power failure it may be an old one, which proves nothing."""
    grown = int.from_bytes(log[:4], "big") - int.from_bytes(index[:4], "big")
    return 0 < grown % 2**32 < 2**31


def _stored(data: bytes, offset: int) -> Checksum:
    first, second = struct.unpack_from(">2I", data, offset)
    return first, second


def _checksum(data: bytes, begin: Checksum, *, swap: bool) -> Checksum:
    words = array("I", data)
    if swap:
        words.byteswap()
    first, second = begin
    pairs = iter(words)
    for even, odd in zip(pairs, pairs, strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return first, second
