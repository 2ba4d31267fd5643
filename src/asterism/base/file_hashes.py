"""Hashes of the content of files, to find out whether any of them has changed.

The names of the files come from plans and their editors. So only regular files are read: a device, a pipe or a socket
never ends, or acts when it is opened. Number, size and time are bounded, and the caller may stop the work at any time:
it runs in a thread, which cannot be stopped from outside.
"""

from __future__ import annotations

import glob
import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

MAX_FILES = 100_000
"""How many files the patterns of one task may match."""

MAX_BYTES = 16 * 1024**3
"""How many bytes the files of one task may have in all."""

MAX_SECONDS = 600.0
"""How long the files of one task may take."""

CHUNK = 1024 * 1024
"""How many bytes are read between two looks whether to stop."""


class UnsuitableFiles(ValueError):
    """The files cannot be compared: there are too many, they are too large, or one of them is not a regular file."""


class HashingStopped(Exception):
    """The caller has stopped the work."""


def hash_files(
    patterns: Iterable[str], folder: str, stopped: Callable[[], bool] = lambda: False
) -> dict[str, str | None]:
    """The SHA-256 of each file that the patterns name, relative to ``folder``; None for a file that does not exist or
    cannot be read. ``stopped`` says whether to stop.

    ``*``, ``?`` and ``[…]`` match as in a shell, ``**`` any folders; a folder stands for all files in it. Links to
    folders are followed only where a pattern names them. Raises UnsuitableFiles and HashingStopped."""
    return _Hashing(folder, stopped).hashes(patterns)


class _Hashing:
    def __init__(self, folder: str, stopped: Callable[[], bool]) -> None:
        self._folder, self._stopped = folder, stopped
        self._until, self._bytes = time.monotonic() + MAX_SECONDS, 0

    def hashes(self, patterns: Iterable[str]) -> dict[str, str | None]:
        found: dict[str, str | None] = {}
        for pattern in patterns:
            for path in self._files(pattern):
                found[path] = self._hash(path)
                if len(found) > MAX_FILES:
                    raise UnsuitableFiles(f"{pattern!r} matches more than {MAX_FILES:,} files; name fewer of them")
        return found

    def _check(self) -> None:
        if self._stopped():
            raise HashingStopped
        if time.monotonic() > self._until:
            raise UnsuitableFiles(f"to read them takes more than {MAX_SECONDS:,.0f} s; name fewer of them")

    def _files(self, pattern: str) -> Iterator[str]:
        names = self._matches("", pattern.split("/")) if glob.has_magic(pattern) else [pattern]
        for name in names:
            path = os.path.join(self._folder, name)
            if not os.path.isdir(path):
                yield name
                continue
            for inner, folders, files in os.walk(path):
                folders.sort()
                for file in sorted(files):
                    self._check()
                    yield os.path.join(name, os.path.relpath(os.path.join(inner, file), path))

    def _matches(self, place: str, parts: Sequence[str]) -> Iterator[str]:
        """The paths below ``place`` that match the parts of a pattern, in order."""
        self._check()
        if not parts:
            yield place
            return
        first, rest = parts[0], parts[1:]
        if not glob.has_magic(first):
            named = f"{place}{first}" if not place or place.endswith("/") else f"{place}/{first}"
            path = named or "/"  # an absolute pattern begins with an empty part
            if os.path.lexists(os.path.join(self._folder, path)):
                yield from self._matches(path, rest)
            return
        if first == "**":
            yield from self._matches(place, rest)
        for entry in self._entries(place):
            self._check()
            if first == "**" and entry.is_dir(follow_symlinks=False):
                yield from self._matches(os.path.join(place, entry.name), parts)
            elif first == "**" and not rest and not entry.is_dir():
                yield os.path.join(place, entry.name)
            elif first != "**" and fnmatchcase(entry.name, first):
                yield from self._matches(os.path.join(place, entry.name), rest)

    def _entries(self, place: str) -> list[os.DirEntry[str]]:
        """The entries of a folder by name, without hidden ones; nothing for what is no folder or cannot be read."""
        try:
            with os.scandir(os.path.join(self._folder, place)) as entries:
                return sorted((one for one in entries if not one.name.startswith(".")), key=lambda one: one.name)
        except OSError:
            return []

    def _hash(self, path: str) -> str | None:
        full = os.path.join(self._folder, path)
        try:
            if not stat.S_ISREG(os.stat(full).st_mode):  # before it is opened: that alone may do something
                raise UnsuitableFiles(f"{path!r} is not a regular file")
            descriptor = os.open(full, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        except OSError:
            return None
        with open(descriptor, "rb", buffering=0) as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # it was replaced meanwhile
                raise UnsuitableFiles(f"{path!r} is not a regular file")
            digest = hashlib.sha256()
            try:
                while chunk := file.read(CHUNK):
                    self._check()
                    self._bytes += len(chunk)
                    if self._bytes > MAX_BYTES:
                        raise UnsuitableFiles(f"they have more than {MAX_BYTES:,} bytes; name fewer of them")
                    digest.update(chunk)
            except OSError:
                return None
            return digest.hexdigest()
