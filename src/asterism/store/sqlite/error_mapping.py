"""What SQLite says when something is wrong, as the errors of a store, with the file and with what to do about it."""

from __future__ import annotations

import os
import shutil
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
"""With less room than this on the disk, an error while writing is for want of room, whatever it is called."""


def code_of(error: BaseException) -> int | None:
    """The primary code of an error; None for one that Python's module made up itself."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def is_busy(error: BaseException) -> bool:
    return code_of(error) in BUSY


def store_error(error: Exception, path: Path, busy_timeout: float) -> StoreError:
    """What to raise for ``error``, which came from SQLite or from the operating system."""
    if isinstance(error, StoreError):
        return error
    if isinstance(error, OSError):
        return StoreUnavailable(f"{path} is out of reach: {error}; it is tried again with every call")
    code = code_of(error)
    if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_READONLY_DBMOVED:
        return moved(path)
    if code in BUSY:
        return StoreBusy(
            f"{path} was locked by another process for more than {busy_timeout:g} s, and nothing was written; "
            f"a process that was frozen while it wrote may be the reason (`fuser {path}` names who has it open)"
        )
    if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and not _room(path)):
        return StoreFull(f"there is no room left for {path}, and nothing was written; make room on its disk")
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        return read_only(path)
    if code == sqlite3.SQLITE_CANTOPEN and not may_write(path.parent):
        return read_only(path)
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR) or code is None:
        return corrupt(path, error)
    return StoreUnavailable(f"{path} is out of reach: {error}; whether the last commit happened is not known")


def corrupt(path: Path, error: object) -> StoreCorrupt:
    return StoreCorrupt(
        f"{path} is damaged, or no store at all: {error}",
        "`asterism store check` says more, and `asterism store restore` makes a new one from a backup",
    )


def read_only(path: Path) -> StoreReadOnly:
    if not path.exists():
        return StoreReadOnly(
            f"there is no file {path}, and none can be made: the directory {path.parent} cannot be written; give "
            "yourself the right to write it, or name another store"
        )
    return StoreReadOnly(f"{path} can be read and not written; give yourself the right to write it and its directory")


def passing(fault: StoreError) -> StoreError:
    """The same, of a store that is open: somebody may give it back the right to write, as a full disk gets room."""
    return StoreUnwritable(*fault.args) if isinstance(fault, StoreReadOnly) else fault


def moved(path: Path) -> StoreUnavailable:
    return StoreUnavailable(
        f"{path} was removed or replaced while it was in use; put it back, or a backup in its place: it is looked for "
        "with every call"
    )


def may_write(path: Path) -> bool:
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def _room(path: Path) -> bool:
    try:
        return shutil.disk_usage(path.parent).free >= TIGHT
    except OSError:
        return True
