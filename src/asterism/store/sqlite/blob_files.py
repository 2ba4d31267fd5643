"""Large things, as files beside the store: ``fleet.db.blobs/ab/abcdef…``, named by the SHA-256 of what is in them.

A file appears under its name whole and durable, or not at all. Its time of change is when somebody last kept it, by
the store's clock: what was kept a moment ago may belong to a run that is about to be written, and stays.
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

from asterism.store.file_ownership import open_plain, planted
from asterism.store.sqlite.connection import sync_directory
from asterism.store.store_errors import StoreCorrupt, StoreError, StoreFull, StoreUnavailable, StoreUnwritable

_NAME = re.compile(r"[0-9a-f]{64}")
_GOING = ".going"
"""The end of the name of a file that is being removed."""


class Blobs:
    """May be used from several threads and processes at once."""

    def __init__(self, folder: Path, clock: Callable[[], float]) -> None:
        self._folder = folder
        self._clock = clock

    def keep(self, data: bytes) -> str:
        """Durable when it returns."""
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
        # one that is being removed is still there, and if its remover was killed it stays so
        for place in (path, path.with_suffix(_GOING), path):
            try:
                with open(open_plain(place), "rb") as file:
                    data = file.read()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise StoreUnavailable(f"{place} is out of reach: {error}") from error
            if hashlib.sha256(data).hexdigest() != name:
                raise StoreCorrupt(f"{place} is damaged: it is not what was kept; take it from a backup")
            return data
        return None

    def names(self, kept_before: float = float("inf")) -> Iterator[str]:
        """Of everything that is there; or of what nobody has kept since then."""
        for path in self._files():
            name = path.name.removesuffix(_GOING)
            if _NAME.fullmatch(name) is not None and _kept_at(path) < kept_before:
                yield name

    def spare(self, names: Iterable[str]) -> None:
        """They count as kept now, as far as they are there and ours: nobody removes them for a while."""
        for name in names:
            with contextlib.suppress(PermissionError):
                self._touched(self._path(name))

    def remove(self, name: str, kept_before: float) -> None:
        """Unless somebody keeps it again at this very moment."""
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
        """Remove what those left behind who were killed while they wrote."""
        for path in self._files():
            if path.name.startswith(".") and _kept_at(path) < kept_before:
                path.unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self._folder / name[:2] / name

    def _files(self) -> Iterator[Path]:
        self._check_folder()  # what is found may be removed
        return self._folder.glob("??/*")

    def _touched(self, path: Path) -> bool:
        """Whether it is there already. It counts as kept now, and nobody removes it."""
        now = self._clock()
        try:
            os.utime(path, (now, now))
        except FileNotFoundError:
            return False
        return path.exists()

    def _check_folder(self) -> None:
        """Raises StoreUnwritable for a folder, or a link to one, that a stranger has put beside the store."""
        try:
            why = planted(self._folder, self._folder.lstat()) or planted(self._folder, self._folder.stat())
        except FileNotFoundError:
            return
        if why is not None and not self._store_is_shared():
            raise StoreUnwritable(f"{why}: nothing is kept or read there; look at it, and remove it")

    def _store_is_shared(self) -> bool:
        """Whether a group has been given the store itself to write, and so the folder beside it: then any of them may
        have made it."""
        try:
            store, folder = self._folder.with_suffix("").stat(), self._folder.stat()
        except FileNotFoundError:
            return False
        return bool(store.st_mode & stat.S_IWGRP) and store.st_gid == folder.st_gid

    def _mode(self) -> int:
        """Whoever may read the store may read what is kept beside it, and nobody else."""
        beside = self._folder.with_suffix("")
        allowed = beside.stat().st_mode if beside.exists() else 0o600
        return 0o700 | (allowed & 0o066) | (allowed & 0o044) >> 2

    def _write(self, path: Path, data: bytes) -> None:
        for folder in (self._folder, path.parent):
            if not folder.is_dir():
                folder.mkdir(mode=self._mode(), exist_ok=True)
                self._check_folder()  # somebody may have been first
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
        return StoreFull(f"there is no room left for {path}, and nothing was written; make room on its disk")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return StoreUnwritable(f"{path} cannot be written: {error}; give yourself the right to write there")
    return StoreUnavailable(f"{path} is out of reach: {error}")
