"""A folder of files that are named by the SHA-256 of their content: ``ab/abcdef…``.

A file appears under its name complete and durable, or not at all. The same content is stored once. The modification
time of a file is that of the last put: what was put a moment ago may belong to a record that is not written yet, and
stays. Several threads and processes may use the folder at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from asterism.base import operating_system
from asterism.base.private_file import open_plain

NAME = re.compile(r"[0-9a-f]{64}")

GOING = ".going"
"""The suffix of a file that is being removed."""

_UNFINISHED = ".new-"


class Content(NamedTuple):
    """What was put: its name, and its size in bytes."""

    name: str
    size: int


class ContentFolder:
    """``clock`` gives the times of files, ``mode`` is that of the folders."""

    def __init__(self, folder: Path, clock: Callable[[], float], mode: Callable[[], int] = lambda: 0o700) -> None:
        self.folder, self._clock, self._mode = folder, clock, mode

    def check(self) -> None:
        """Raise what keeps the folder from being used."""

    def put(self, chunks: Iterable[bytes]) -> Content:
        """Store content, piece by piece; durable when it returns. Raises OSError."""
        self.check()
        self._make(self.folder)
        unfinished = self.folder / f"{_UNFINISHED}{secrets.token_hex(8)}"
        hashed, size = hashlib.sha256(), 0
        try:
            with unfinished.open("xb") as file:
                for chunk in chunks:
                    hashed.update(chunk)
                    size += len(chunk)
                    file.write(chunk)
                path = self.path(hashed.hexdigest())
                if not self.touch(path):
                    self._make(path.parent)
                    file.flush()
                    os.fsync(file.fileno())
                    now = self._clock()
                    os.utime(unfinished, (now, now))
                    unfinished.replace(path)
            sync_folder(path.parent)
        finally:
            unfinished.unlink(missing_ok=True)
        return Content(path.name, size)

    def open(self, name: str) -> BinaryIO | None:
        """A file for reading; None if there is none. Raises OSError."""
        if NAME.fullmatch(name) is None:
            return None
        self.check()
        path = self.path(name)
        # a file that is being removed still exists, and stays if its remover was killed
        for place in (path, path.with_suffix(GOING), path):
            with contextlib.suppress(FileNotFoundError):
                return open(open_plain(place), "rb")
        return None

    def names(self, kept_before: float = float("inf")) -> Iterator[str]:
        """Yield the names of all files; with ``kept_before``, only of those that were last put before then."""
        for path in self._files():
            name = path.name.removesuffix(GOING)
            if NAME.fullmatch(name) is not None and _kept_at(path) < kept_before:
                yield name

    def touch(self, path: Path) -> bool:
        """Treat a file as put now, so that no process removes it. Return whether it exists."""
        now = self._clock()
        try:
            os.utime(path, (now, now))
        except FileNotFoundError:
            return False
        return path.exists()

    def remove(self, name: str, kept_before: float) -> None:
        """Remove a file, unless another process puts it again at this moment."""
        self.check()
        path = self.path(name)
        going = path.with_suffix(GOING)
        with contextlib.suppress(FileNotFoundError):
            path.rename(going)
        with contextlib.suppress(FileNotFoundError):
            if _kept_at(going) < kept_before:
                going.unlink()
            else:
                going.replace(path)

    def sweep(self, kept_before: float) -> None:
        """Remove unfinished files of processes that were killed."""
        self.check()
        for path in (*self.folder.glob(".*"), *self.folder.glob("??/.*")):
            if path.is_file() and _kept_at(path) < kept_before:
                path.unlink(missing_ok=True)

    def path(self, name: str) -> Path:
        return self.folder / name[:2] / name

    def _files(self) -> Iterator[Path]:
        self.check()  # files that are found may be removed
        return self.folder.glob("??/*")

    def _make(self, folder: Path) -> None:
        if not folder.is_dir():
            folder.mkdir(mode=self._mode(), exist_ok=True)
            self.check()  # another process may have created it first
            sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make new names in a folder durable. Where folders cannot be opened, the system takes care of that."""
    if os.name == "nt":
        return
    handle = operating_system.open_folder(folder)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _kept_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return float("inf")
