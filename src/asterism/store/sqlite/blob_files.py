"""Blobs as files beside the SQLite file: ``fleet.db.blobs/ab/abcdef…``, named by their SHA-256.

A file appears under its name complete and durable, or not at all. Its modification time is that of the last put, by the
store's clock: a blob that was put a moment ago may belong to a run that is not written yet, and stays.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from asterism.base.private_file import open_plain, planted
from asterism.store.sqlite.connection import sync_directory
from asterism.store.store_errors import StoreCorrupt, StoreError, StoreFull, StoreUnavailable, StoreUnwritable

_NAME = re.compile(r"[0-9a-f]{64}")
_GOING = ".going"
"""The suffix of a file that is being removed."""


class Blobs:
    """The folder of blobs. Several threads and processes may use it at once."""

    def __init__(self, folder: Path, clock: Callable[[], float]) -> None:
        self._folder = folder
        self._clock = clock

    def keep(self, data: bytes) -> str:
        """Store a blob, and return its name; durable when it returns."""
        name = hashlib.sha256(data).hexdigest()
        path = self._path(name)
        try:
            self._check_folder()
            if not self._touched(path):
                self._write(path, data)
            sync_directory(path.parent)
        except OSError as error:
            raise _store_error(error, path) from error
        return name

    def read(self, name: str) -> bytes | None:
        if _NAME.fullmatch(name) is None:
            return None
        path = self._path(name)
        self._check_folder()
        # a file that is being removed still exists, and stays if its remover was killed
        for place in (path, path.with_suffix(_GOING), path):
            try:
                with open(open_plain(place), "rb") as file:
                    data = file.read()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise StoreUnavailable(f"{place} is out of reach: {error}") from error
            if hashlib.sha256(data).hexdigest() != name:
                raise StoreCorrupt(f"{place} is damaged: its content does not match its name; restore it from a backup")
            return data
        return None

    def names(self, kept_before: float = float("inf")) -> Iterator[str]:
        """Yield the names of all blobs; with ``kept_before``, only of those that were last put before then."""
        for path in self._files():
            name = path.name.removesuffix(_GOING)
            if _NAME.fullmatch(name) is not None and _kept_at(path) < kept_before:
                yield name

    def spare(self, names: Iterable[str]) -> None:
        """Treat blobs as put now, as far as they exist and are ours, so that none is removed for a while."""
        for name in names:
            with contextlib.suppress(PermissionError):
                self._touched(self._path(name))

    def remove(self, name: str, kept_before: float) -> None:
        """Remove a blob, unless another process puts it again at this moment."""
        self._check_folder()
        path = self._path(name)
        going = path.with_suffix(_GOING)
        with contextlib.suppress(FileNotFoundError):
            path.rename(going)
        with contextlib.suppress(FileNotFoundError):
            if _kept_at(going) < kept_before:
                going.unlink()
            else:
                going.replace(path)

    def sweep(self, kept_before: float) -> None:
        """Remove unfinished files of processes that were killed."""
        for path in self._files():
            if path.name.startswith(".") and _kept_at(path) < kept_before:
                path.unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self._folder / name[:2] / name

    def _files(self) -> Iterator[Path]:
        self._check_folder()  # files that are found may be removed
        return self._folder.glob("??/*")

    def _touched(self, path: Path) -> bool:
        """Treat a blob as put now, so that no process removes it. Return whether it exists."""
        now = self._clock()
        try:
            os.utime(path, (now, now))
        except FileNotFoundError:
            return False
        return path.exists()

    def _check_folder(self) -> None:
        """Raises StoreUnwritable for a folder, or a link to one, that another user has planted beside the store."""
        try:
            why = planted(self._folder, self._folder.lstat()) or planted(self._folder, self._folder.stat())
        except FileNotFoundError:
            return
        if why is not None and not self._store_is_shared():
            raise StoreUnwritable(f"{why}: it is not used; inspect it, and remove it")

    def _store_is_shared(self) -> bool:
        """Whether a group may write the store, and thus the folder beside it: then any member may have created it."""
        try:
            store, folder = self._folder.with_suffix("").stat(), self._folder.stat()
        except FileNotFoundError:
            return False
        return bool(store.st_mode & stat.S_IWGRP) and store.st_gid == folder.st_gid

    def _mode(self) -> int:
        """Return the mode of the folder: the users who may read the store may read it, and no others."""
        beside = self._folder.with_suffix("")
        allowed = beside.stat().st_mode if beside.exists() else 0o600
        return 0o700 | (allowed & 0o066) | (allowed & 0o044) >> 2

    def _write(self, path: Path, data: bytes) -> None:
        for folder in (self._folder, path.parent):
            if not folder.is_dir():
                folder.mkdir(mode=self._mode(), exist_ok=True)
                self._check_folder()  # another process may have created it first
                sync_directory(folder.parent)
        unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            with unfinished.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            now = self._clock()
            os.utime(unfinished, (now, now))
            unfinished.replace(path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise


def _kept_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return float("inf")


def _store_error(error: OSError, path: Path) -> StoreError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return StoreFull(f"no space left for {path}, and nothing was written; free space on its disk")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return StoreUnwritable(f"cannot write {path}: {error}; change the permissions of the directory")
    return StoreUnavailable(f"{path} is out of reach: {error}")
