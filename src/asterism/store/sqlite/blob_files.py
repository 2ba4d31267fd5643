"""Blobs as files beside the SQLite file: ``fleet.db.blobs/ab/abcdef…``, named by their SHA-256.

``base/content_store.py`` says how they are written and removed. The times are those of the store's clock.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import stat
from collections.abc import Callable, Iterable
from pathlib import Path

from asterism.base.content_store import ContentFolder
from asterism.base.private_file import planted
from asterism.store.store_errors import StoreCorrupt, StoreError, StoreFull, StoreUnavailable, StoreUnwritable


class Blobs(ContentFolder):
    """The folder of blobs. Users who may read the store may read it, and no others."""

    def __init__(self, folder: Path, clock: Callable[[], float]) -> None:
        super().__init__(folder, clock, self._mode_beside)

    def keep(self, data: bytes) -> str:
        """Store a blob, and return its name; durable when it returns."""
        try:
            return self.put([data]).name
        except OSError as error:
            raise _store_error(error, self.folder) from error

    def read(self, name: str) -> bytes | None:
        try:
            file = self.open(name)
            if file is None:
                return None
            with file:
                data = file.read()
        except OSError as error:
            raise StoreUnavailable(f"{self.path(name)} is out of reach: {error}") from error
        if hashlib.sha256(data).hexdigest() != name:
            path = self.path(name)
            raise StoreCorrupt(f"{path} is damaged: its content does not match its name; restore it from a backup")
        return data

    def spare(self, names: Iterable[str]) -> None:
        """Treat blobs as put now, as far as they exist and are ours, so that none is removed for a while."""
        for name in names:
            with contextlib.suppress(PermissionError):
                self.touch(name)

    def check(self) -> None:
        """Raises StoreUnwritable for a folder, or a link to one, that another user has planted beside the store."""
        try:
            why = planted(self.folder, self.folder.lstat()) or planted(self.folder, self.folder.stat())
        except FileNotFoundError:
            return
        if why is not None and not self._store_is_shared():
            raise StoreUnwritable(f"{why}: it is not used; inspect it, and remove it")

    def _store_is_shared(self) -> bool:
        """Whether a group may write the store, and thus the folder beside it: then any member may have created it."""
        try:
            store, folder = self.folder.with_suffix("").stat(), self.folder.stat()
        except FileNotFoundError:
            return False
        return bool(store.st_mode & stat.S_IWGRP) and store.st_gid == folder.st_gid

    def _mode_beside(self) -> int:
        beside = self.folder.with_suffix("")
        allowed = beside.stat().st_mode if beside.exists() else 0o600
        return 0o700 | (allowed & 0o066) | (allowed & 0o044) >> 2


def _store_error(error: OSError, path: Path) -> StoreError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return StoreFull(f"no space left for {path}, and nothing was written; free space on its disk")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return StoreUnwritable(f"cannot write {path}: {error}; change the permissions of the directory")
    return StoreUnavailable(f"{path} is out of reach: {error}")
