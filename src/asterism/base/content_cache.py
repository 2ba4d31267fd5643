"""A cache of content on this machine, in front of a place elsewhere.

Content is written to the cache while it is read, and is there once all of it was read and matches its hash. What was
used least recently goes for something new. Several processes may share a cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import secrets
from collections.abc import Iterable
from typing import Any, BinaryIO

from asterism.base.content_folder import ContentFolder
from asterism.base.content_store import Content, ContentAccess


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
