"""A folder of files that are named by the SHA-256 of their content: ``ab/abcdef…``.

A file appears under its name complete and durable, or not at all. The same content is stored once. The modification
time of a file is that of the last put: what was put a moment ago may belong to a record that is not written yet, and
stays. Several threads and processes may use the folder at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from asterism.base import operating_system
from asterism.base.content_store import NAME, Content
from asterism.base.private_file import open_plain

_UNFINISHED = ".new-"


class ContentFolder:
    """A content store in a folder. ``clock`` gives the times of files, ``mode`` is that of the folders."""

    def __init__(self, folder: Path, clock: Callable[[], float], mode: Callable[[], int] = lambda: 0o700) -> None:
        self.folder, self._clock, self._mode = folder, clock, mode

    @property
    def location(self) -> str:
        return str(self.folder)

    def check(self) -> None:
        """Raise what keeps the folder from being used."""

    def put(self, chunks: Iterable[bytes]) -> Content:
        unfinished, hashed, size = self.unfinished(secrets.token_hex(8)), hashlib.sha256(), 0
        try:
            with unfinished.open("xb") as file:
                for chunk in chunks:
                    hashed.update(chunk)
                    size += len(chunk)
                    file.write(chunk)
            self.adopt(unfinished, hashed.hexdigest())
        finally:
            unfinished.unlink(missing_ok=True)
        return Content(hashed.hexdigest(), size)

    def unfinished(self, key: str) -> Path:
        """A file in which content is gathered before it is adopted; if nobody writes to it, ``sweep`` removes it."""
        self.check()
        self._make(self.folder)
        return self.folder / f"{_UNFINISHED}{key}"

    def adopt(self, unfinished: Path, name: str) -> None:
        """Put a file that has the content of this name; durable when it returns."""
        path, now = self.path(name), self._clock()
        self._make(path.parent)
        with unfinished.open("rb+") as file:
            os.fsync(file.fileno())
        os.utime(unfinished, (now, now))
        unfinished.replace(path)  # also what is there: it may be damaged, or belong to another user
        sync_folder(path.parent)

    def open(self, name: str, offset: int = 0) -> BinaryIO | None:
        if NAME.fullmatch(name) is None:
            return None
        self.check()
        for place in self._places(self.path(name)):
            with contextlib.suppress(FileNotFoundError):
                handle = open_plain(place)
                os.lseek(handle, offset, os.SEEK_SET)
                return open(handle, "rb")
        return None

    def is_new(self) -> bool:
        return not self.folder.is_dir()

    def names(self, kept_before: float = float("inf")) -> Iterator[str]:
        for path in self._files():
            name = path.name.partition(".")[0]
            if NAME.fullmatch(name) is not None and _kept_at(path) < kept_before:
                yield name

    def touch(self, name: str) -> bool:
        path, now = self.path(name), self._clock()
        try:
            os.utime(path, (now, now))
        except FileNotFoundError:
            return False
        return path.exists()

    def remove(self, name: str, kept_before: float) -> None:
        self.check()
        path = self.path(name)
        with contextlib.suppress(FileNotFoundError):
            path.rename(path.with_name(f"{name}.{secrets.token_hex(8)}"))  # nobody else's: two may collect at once
        for going in path.parent.glob(f"{name}.*"):
            with contextlib.suppress(FileNotFoundError):
                if _kept_at(going) < kept_before or path.exists():
                    going.unlink()
                else:
                    going.replace(path)

    def sweep(self, kept_before: float) -> None:
        self.check()
        for path in (*self.folder.glob(".*"), *self.folder.glob("??/.*")):
            if path.is_file() and _kept_at(path) < kept_before:
                path.unlink(missing_ok=True)

    def path(self, name: str) -> Path:
        return self.folder / name[:2] / name

    def _files(self) -> Iterator[Path]:
        self.check()  # files that are found may be removed
        return self.folder.glob("??/*")

    def _places(self, path: Path) -> Iterator[Path]:
        """Where content may be: what is being removed still exists, and stays if its remover was killed."""
        yield path
        yield from path.parent.glob(f"{path.name}.*")
        yield path

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
