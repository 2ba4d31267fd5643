"""Content stores: bytes that are named by their SHA-256, wherever they are kept.

A device only reads and adds (``ContentAccess``). Who owns the place also collects what nobody needs any more
(``ContentStore``). All methods block, and may be called in several threads and processes at once. They raise OSError
when the place is out of reach or refuses; its text says what to do.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

from asterism.base import operating_system
from asterism.base.private_file import open_plain

NAME = re.compile(r"[0-9a-f]{64}")


class Content(NamedTuple):
    """What was put: its name, and its size in bytes."""

    name: str
    size: int


class ContentAccess(Protocol):
    """Content that can be read and added."""

    @property
    def location(self) -> str:
        """Where the content is, for messages: a folder or an address, without secrets. Raises nothing."""

    def put(self, chunks: Iterable[bytes]) -> Content:
        """Store content, piece by piece.

        Content appears under its name complete and durable, or not at all; what is there already counts as put now.
        Returns its name and size. Raises OSError, and whatever ``chunks`` raises: then nothing is stored."""

    def open(self, name: str, offset: int = 0) -> BinaryIO | None:
        """Open content for reading, from byte ``offset`` on.

        The reader verifies it against the name. Returns None if there is none of this name. Raises OSError."""


class ContentStore(ContentAccess, Protocol):
    """All content of one store, with what its collection needs. Times are those of the clock of the place, in seconds
    since 1970."""

    def is_new(self) -> bool:
        """Whether nothing was put here yet, so that there is nothing to collect. Answers at once: False where that
        would take a request. Raises nothing."""

    def names(self, kept_before: float = float("inf")) -> Iterator[str]:
        """Yield the names of all content; with ``kept_before``, only of what was last put before then. Raises
        OSError."""

    def remove(self, name: str, kept_before: float) -> None:
        """Remove content that was last put before ``kept_before``.

        What another process puts at this moment stays. Nothing happens if there is none of this name. Raises
        OSError."""

    def sweep(self, kept_before: float) -> None:
        """Remove what puts that were interrupted before ``kept_before`` have left. Raises OSError."""


# -- a folder of files that are named by the sha-256 of their content --------------------------------------------------


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


# -- a cache of content on this machine, in front of a place elsewhere -------------------------------------------------


class ContentCache:
    """``content`` through a cache in ``folder``, which has ``limit`` bytes at most."""

    def __init__(self, content: ContentAccess, folder: ContentFolder, limit: int) -> None:
        self._content, self._folder, self._limit = content, folder, limit

    @property
    def location(self) -> str:
        return self._content.location

    def put(self, chunks: Iterable[bytes]) -> Content:
        return self._content.put(chunks)

    def open(self, name: str, offset: int = 0) -> BinaryIO | None:
        """What is in the cache counts only while it is also where it came from, and undamaged."""
        size = self._whole_size(name)
        end = None if size is None else self._content.open(name, size)
        if end is not None:
            end.close()
            cached = self._folder.open(name, offset)
            if cached is not None:
                return cached
        source = self._content.open(name, offset)
        if source is None or offset:
            return source
        return io.BufferedReader(_CachedFile(source, name, self))

    def _whole_size(self, name: str) -> int | None:
        """The size of content in the cache; None if it is not there. It is used now; if it is damaged, it is
        removed."""
        file = self._folder.open(name) if self._folder.touch(name) else None
        if file is None:
            return None
        with file:
            hashed = hashlib.sha256()
            for chunk in iter(lambda: file.read(1 << 20), b""):
                hashed.update(chunk)
            size = file.tell()
        if hashed.hexdigest() == name:
            return size
        self._folder.remove(name, float("inf"))
        return None

    def keep(self, unfinished: _Unfinished, name: str) -> None:
        """Take content over into the cache, if it fits there."""
        files = sorted((path.stat().st_mtime, path) for path in self._folder.folder.glob("??/*"))
        total = unfinished.size + sum(path.stat().st_size for _, path in files)
        for _, path in files:
            if total > self._limit:
                total -= path.stat().st_size
                path.unlink(missing_ok=True)
        self._folder.adopt(unfinished.path, name)

    def unfinished(self) -> _Unfinished:
        return _Unfinished(self._folder, self._limit)


class _Unfinished:
    """Content that is on its way into the cache."""

    def __init__(self, folder: ContentFolder, limit: int) -> None:
        self.path, self.size, self._limit = folder.unfinished(secrets.token_hex(8)), 0, limit
        self._file, self._hash = self.path.open("xb", buffering=0), hashlib.sha256()

    def write(self, data: memoryview) -> bool:
        """Returns whether it may still become content of the cache."""
        self.size += len(data)
        if self.size > self._limit:
            return False
        self._hash.update(data)
        return self._file.write(data) == len(data)

    def name(self) -> str:
        return self._hash.hexdigest()

    def close(self) -> None:
        self._file.close()
        self.path.unlink(missing_ok=True)


class _CachedFile(io.RawIOBase):
    """Content that is read, and written to the cache. Trouble with the cache is no trouble of the reader."""

    def __init__(self, source: BinaryIO, name: str, cache: ContentCache) -> None:
        self._source, self._name, self._cache = source, name, cache
        self._copy: _Unfinished | None = None
        with contextlib.suppress(OSError):
            self._copy = cache.unfinished()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = memoryview(self._source.read(len(buffer)))
        buffer[: len(data)] = data
        if self._copy is not None and len(buffer):
            try:
                if not data:
                    if self._copy.name() == self._name:
                        self._cache.keep(self._copy, self._name)
                    self._drop_copy()
                elif not self._copy.write(data):
                    self._drop_copy()
            except OSError:  # such as a full disk
                self._drop_copy()
        return len(data)

    def _drop_copy(self) -> None:
        if self._copy is not None:
            self._copy.close()
            self._copy = None

    def close(self) -> None:
        if not self.closed:
            self._drop_copy()
            self._source.close()
        super().close()
