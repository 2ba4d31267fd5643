"""Errors of SQLite and of the file system as StoreErrors that name the file and say what to do."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from asterism.store.store_errors import (
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
    StoreUnwritable,
)

BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
TIGHT = 256 * 1024
"""With less free space than this on the disk, in bytes, an error while writing means that the disk is full."""


def code_of(error: BaseException) -> int | None:
    """Return the primary code of an error; None if Python's module raised it itself."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def is_busy(error: BaseException) -> bool:
    return code_of(error) in BUSY


def store_error(error: Exception, path: Path, busy_timeout: float) -> StoreError:
    """Return the StoreError for an error of SQLite or of the operating system."""
    if isinstance(error, StoreError):
        return error
    if isinstance(error, OSError):
        return StoreUnavailable(f"{path} is out of reach: {error}; every call tries again")
    code = code_of(error)
    if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_READONLY_DBMOVED:
        return moved(path)
    if code in BUSY:
        return StoreBusy(
            f"another process locked {path} for more than {busy_timeout:g} s, and nothing was written; "
            f"it may have been suspended while it wrote (`fuser {path}` lists the processes that have it open)"
        )
    if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and not _room(path)):
        return StoreFull(f"no space left for {path}, and nothing was written; free space on its disk")
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        return read_only(path)
    if code == sqlite3.SQLITE_CANTOPEN and not may_write(path.parent):
        return read_only(path)
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR) or code is None:
        return corrupt(path, error)
    return StoreUnavailable(f"{path} is out of reach: {error}; it is unknown whether the last commit happened")


def corrupt(path: Path, error: object, revision: int | None = None) -> StoreCorrupt:
    return StoreCorrupt(
        f"{path} is damaged, or not a store: {error}",
        "`asterism store check` says more, and `asterism store restore` creates a new store from a backup",
        revision,
    )


def read_only(path: Path) -> StoreReadOnly:
    if not path.exists():
        return StoreReadOnly(
            f"there is no file {path}, and it cannot be created: no permission to write the directory {path.parent}; "
            "change its permissions, or name another store"
        )
    return StoreReadOnly(f"no permission to write {path}; change the permissions of the file and its directory")


def passing(fault: StoreError) -> StoreError:
    """Return the same error for a store that is open: permissions may come back, so it is temporary."""
    return StoreUnwritable(*fault.args) if isinstance(fault, StoreReadOnly) else fault


def moved(path: Path) -> StoreUnavailable:
    return StoreUnavailable(
        f"{path} was removed or replaced while it was in use; restore the file, or a backup in its place: every call "
        "looks for it"
    )


def may_write(path: Path) -> bool:
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def _room(path: Path) -> bool:
    import shutil

    try:
        return shutil.disk_usage(path.parent).free >= TIGHT
    except OSError:
        return True
