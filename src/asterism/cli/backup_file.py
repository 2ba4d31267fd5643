"""Backup files of a store: JSON lines, compressed if the name ends in ``.gz``.

A backup file is complete or absent: it is written under another name and renamed at the end. Its last line counts the
lines before it, so that a truncated file is recognised before anything is restored from it.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import tempfile
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TextIO, cast

from asterism.store.protocol import Store
from asterism.store.store_errors import StoreCorrupt

END = "end"


async def write_backup(store: Store, path: Path) -> int:
    """Write a consistent snapshot of the store. Returns the number of runs. Raises OSError."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # readable by this user only
    os.close(handle)
    try:
        lines = runs = 0
        with _open(Path(name), "wt", gzip_it=path.suffix == ".gz") as file:
            async for line in store.dump():
                file.write(json.dumps(line, separators=(",", ":")) + "\n")
                lines += 1
                runs += "run" in line
            file.write(json.dumps({END: lines}) + "\n")
        _publish(Path(name), path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
    return runs


def check_backup(path: Path) -> None:
    """Raise StoreCorrupt if a file is not a complete backup. To be called before a store is created for it. Raises
    OSError."""
    for _ in read_backup(path):
        pass


async def restore_backup(store: Store, path: Path) -> int:
    """Fill an empty store from a checked file. Returns the number of runs. Raises StoreError if the store is not
    empty."""
    return await store.load(_lines(path))


def read_backup(path: Path) -> Iterator[Mapping[str, Any]]:
    """The lines of a backup, without the last. Raises StoreCorrupt at the first damage."""
    count = 0
    ended = False
    try:
        with _open(path, "rt", gzip_it=_is_gzip(path)) as file:
            for text in file:
                line = json.loads(text)
                if ended or not isinstance(line, dict):
                    raise ValueError("it is not a backup")
                if set(line) == {END}:
                    ended = True
                    if line[END] != count:
                        raise ValueError(f"it should have {line[END]} lines")
                    continue
                count += 1
                yield line
    except (ValueError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        if not count:
            raise StoreCorrupt(f"{path} is not a backup, or is damaged from the start: {error}") from None
        raise StoreCorrupt(f"{path} is damaged after line {count}: {error}") from None
    if not ended:
        raise StoreCorrupt(f"{path} is not a complete backup: it is truncated after line {count}")


async def _lines(path: Path) -> AsyncIterator[Mapping[str, Any]]:
    for line in read_backup(path):
        yield line


def _open(path: Path, mode: Literal["rt", "wt"], *, gzip_it: bool) -> TextIO:
    if gzip_it:
        return cast(TextIO, gzip.open(path, mode, compresslevel=6, encoding="utf-8"))
    return open(path, mode, encoding="utf-8")


def _is_gzip(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(2) == b"\x1f\x8b"


def _publish(written: Path, place: Path) -> None:
    """Flush a file to the disk and rename it to its place."""
    with open(written, "rb") as file:
        os.fsync(file.fileno())
    os.replace(written, place)
    folder = os.open(place.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
