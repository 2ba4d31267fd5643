"""WAL check: whether the log still holds every acknowledged commit, before SQLite opens it.

A process that dies leaves two files beside the store: the log (``-wal``) and its index (``-shm``). The next process
that opens the store makes SQLite read the log from its beginning up to the first frame with a wrong checksum. SQLite
silently ignores the frames after that, and the next commit overwrites them. That is right for a write that was cut off:
it was never acknowledged. It is wrong for a log that was damaged, truncated or removed later.

The index tells the two apart. SQLite writes the number of the last committed frame there after the frame itself is on
the disk, and next to it how many frames have been copied into the store. If they have not all been copied and one of
the committed frames cannot be read, a commit that was acknowledged is missing.

This cannot detect a log and an index that were removed together. The formats are described in SQLite's documentation
("WAL-mode File Format").
"""

from __future__ import annotations

import os
import struct
import sys
from array import array
from pathlib import Path
from typing import NamedTuple

try:
    import fcntl
except ImportError:  # Windows: the frames are not read, see ``_in_use``
    fcntl = None  # type: ignore[assignment]

LOG_HEADER = struct.Struct(">8I")  # magic, format, page size, checkpoint number, two salts, two checksums
SALTS_OF_LOG = slice(16, 24)
FRAME_HEADER = struct.Struct(">6I")  # page number, size of the store after a commit, two salts, two checksums
SALTS_OF_FRAME = slice(8, 16)
INDEX_HEADER = struct.Struct("=12x B x H I 12x 8s 2I")  # begun, page size, last commit, salts, two checksums
BACKFILLED = struct.Struct("=I")
MAGIC = {b"\x37\x7f\x06\x82": "little", b"\x37\x7f\x06\x83": "big"}
"""The first bytes of a log, and the byte order of its checksums."""

OPEN_MARK = 128
"""Every open connection holds a lock on this byte of the index."""

Checksum = tuple[int, int]


class Index(NamedTuple):
    """What the index records about the log."""

    page_size: int
    committed: int  # the number of the last frame that was committed
    copied: int  # how many frames have been copied into the store
    salts: bytes


def missing_commits(store: Path) -> str | None:
    """Return the damage if acknowledged commits cannot be read from the log; None if they can.

    Must not be called while this process has the store open: closing a file releases all locks of the process on it."""
    index_path, log_path = (store.with_name(f"{store.name}{suffix}") for suffix in ("-shm", "-wal"))
    try:
        descriptor = os.open(index_path, os.O_RDWR)
    except OSError:
        return None  # no index, or no permission: SQLite decides
    try:
        index = _read_index(descriptor)
        if index is None or index.committed <= index.copied:
            return None
        if _in_use(descriptor):
            return None  # not the leftover of a dead process: another one uses the log
        problem = _damage(log_path, index)
        if problem is not None and (_in_use(descriptor) or _read_index(descriptor) != index):
            return None  # another process opened it meanwhile, and writes into the log
        return problem
    finally:
        os.close(descriptor)


def _in_use(descriptor: int) -> bool:
    """Whether another process has the store open. Where that cannot be found out, it is assumed."""
    if fcntl is None:
        return True
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, OPEN_MARK)
    except OSError:
        return True
    fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, OPEN_MARK)
    return False


def _read_index(descriptor: int) -> Index | None:
    """Return the index; None if its two copies of the header differ or their checksum is wrong."""
    size = INDEX_HEADER.size
    data = os.pread(descriptor, 2 * size + BACKFILLED.size, 0)
    if len(data) < 2 * size + BACKFILLED.size or data[:size] != data[size : 2 * size]:
        return None
    begun, page_size, committed, salts, *checksum = INDEX_HEADER.unpack_from(data)
    if not begun or tuple(checksum) != _checksum(data[: size - 8], (0, 0), swap=False):
        return None
    (copied,) = BACKFILLED.unpack_from(data, 2 * size)
    return Index((page_size & 0xFE00) + ((page_size & 1) << 16), committed, copied, salts)


def _damage(path: Path, index: Index) -> str | None:
    """Read all committed frames: SQLite stops at the first bad one, even if it has been copied."""
    try:
        log = path.open("rb")
    except FileNotFoundError:
        return f"{path.name} is missing"
    except OSError:
        return None
    with log:
        header = log.read(LOG_HEADER.size)
        if len(header) < LOG_HEADER.size or header[:4] not in MAGIC:
            return f"{path.name} is damaged at its beginning"
        swap = MAGIC[header[:4]] != sys.byteorder
        checksum = _checksum(header[:24], (0, 0), swap=swap)
        if checksum != _stored(header, 24):
            return f"{path.name} is damaged at its beginning"
        if header[SALTS_OF_LOG] != index.salts:
            newer = _begun_since(header[SALTS_OF_LOG], index.salts)
            return None if newer else f"{path.name} is not the log of the last commits"
        frame_size = FRAME_HEADER.size + index.page_size
        for number in range(1, index.committed + 1):
            frame = log.read(frame_size)
            if len(frame) < frame_size:
                return f"{path.name} ends before frame {number} of {index.committed}"
            checksum = _checksum(frame[:8] + frame[FRAME_HEADER.size :], checksum, swap=swap)
            if frame[SALTS_OF_FRAME] != index.salts or checksum != _stored(frame, 16):
                return f"{path.name} is damaged at frame {number} of {index.committed}"
    return None


def _begun_since(log: bytes, index: bytes) -> bool:
    """Whether the log was restarted after the index was written: then the first salt has grown. The index is never
    synced, so after a power failure it may be an old one, which proves nothing."""
    grown = int.from_bytes(log[:4], "big") - int.from_bytes(index[:4], "big")
    return 0 < grown % 2**32 < 2**31


def _stored(data: bytes, offset: int) -> Checksum:
    first, second = struct.unpack_from(">2I", data, offset)
    return first, second


def _checksum(data: bytes, begin: Checksum, *, swap: bool) -> Checksum:
    words = array("I", data)
    if swap:
        words.byteswap()
    first, second = begin
    pairs = iter(words)
    for one, other in zip(pairs, pairs, strict=True):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + other + first) & 0xFFFFFFFF
    return first, second
