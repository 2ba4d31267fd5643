"""Content stores: bytes that are named by their SHA-256, wherever they are kept.

A device only reads and adds (``ContentAccess``). Who owns the place also collects what nobody needs any more
(``ContentStore``). All methods block, and may be called in several threads and processes at once. They raise OSError
when the place is out of reach or refuses; its text says what to do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import BinaryIO, NamedTuple, Protocol

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

    def touch(self, name: str) -> bool:
        """Treat content as put now, so that no collection removes it for a while.

        Returns whether it is there. Raises OSError."""

    def names(self, kept_before: float = float("inf")) -> Iterator[str]:
        """Yield the names of all content; with ``kept_before``, only of what was last put before then. Raises
        OSError."""

    def remove(self, name: str, kept_before: float) -> None:
        """Remove content that was last put before ``kept_before``.

        What another process puts at this moment stays. Nothing happens if there is none of this name. Raises
        OSError."""

    def sweep(self, kept_before: float) -> None:
        """Remove what puts that were interrupted before ``kept_before`` have left. Raises OSError."""
