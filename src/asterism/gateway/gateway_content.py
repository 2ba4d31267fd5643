"""The content of files as a device of a gateway reaches it: over its own connection, in parts, for one granted run.

A part that was cut off is sent or fetched again, from where the server says that it has come; while the server is away,
the next try waits. The next part is read and hashed while one is under way. Nothing counts before the server has
compared all of it with its hash. What was sent stays until the run of the grant has ended.

The methods block, and are called in threads of their own.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import errno
import hashlib
import io
import secrets
from collections.abc import Coroutine, Iterable, Iterator
from typing import Any, BinaryIO, Protocol, TypeVar

from asterism.base.clock import Clock
from asterism.base.content_store import Content
from asterism.gateway.gateway_messages import FILE_PART, GatewayRefused, part_message
from asterism.store.optimistic_update import retry_on_conflict
from asterism.store.store_errors import StoreError

PATIENCE = 90.0
"""How long a part is tried while the server is away, in seconds: after that the run belongs to another device."""

PAUSE = (0.5, 10.0)
"""The first and the longest pause between two tries, in seconds."""

RESTARTS = 3
"""How often an upload begins again that the server has lost."""

SLOWEST = 100_000
"""The slowest connection on which a part arrives in time, in bytes per second."""

Answer = TypeVar("Answer")


class Ask(Protocol):
    """Sends a message with the credential of the session, as GatewayConnection does."""

    async def __call__(self, operation: str, body: Any, *, timeout: float) -> Any: ...


class _UploadLost(Exception):
    """The server does not have what was sent before."""


class GatewayContent:
    """``grant`` is the token of the run, ``turn`` lets one part of the device be under way at a time. ``timeout`` is
    how long a short answer may take, in seconds."""

    def __init__(
        self, location: str, ask: Ask, grant: str, clock: Clock, turn: asyncio.Lock, *, timeout: float = 10.0
    ) -> None:
        self._location, self._ask, self._grant, self._clock, self._turn = location, ask, grant, clock, turn
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()

    @property
    def location(self) -> str:
        return self._location

    # -- to keep -----------------------------------------------------------------------------------------------------

    def put(self, chunks: Iterable[bytes]) -> Content:
        for restart in range(RESTARTS):
            try:
                return self._put(chunks)
            except _UploadLost as lost:
                if restart + 1 == RESTARTS or iter(chunks) is chunks:  # they cannot be read again
                    raise OSError(errno.EIO, f"{self._location} has lost a part of a file: {lost}") from None
        raise AssertionError

    def _put(self, chunks: Iterable[bytes]) -> Content:
        upload, hashed, size = secrets.token_hex(8), hashlib.sha256(), 0
        under_way: concurrent.futures.Future[None] | None = None
        try:
            for part in _parts(chunks):
                if under_way is not None:
                    self._result(under_way)
                under_way = self._begin(self._append(upload, size, part))
                hashed.update(part)
                size += len(part)
            if under_way is not None:
                self._result(under_way)
        finally:
            if under_way is not None:
                under_way.cancel()
        message = {"grant": self._grant, "upload": upload, "size": size, "name": hashed.hexdigest()}
        while not self._result(self._begin(self._send("upload_end", message)))["done"]:
            pass
        return Content(hashed.hexdigest(), size)

    async def _append(self, upload: str, offset: int, part: bytes) -> None:
        """Send a part, or what the server does not have of it. Raises _UploadLost."""
        view, at = memoryview(part), 0
        while True:
            head = {"grant": self._grant, "upload": upload, "offset": offset + at}
            size = (await self._send("upload", part_message(head, view[at:]), len(part) - at))["size"]
            if not offset + at <= size <= offset + len(part):
                raise _UploadLost(f"it has {size:,} bytes, and {offset + at:,} were sent")
            at = size - offset
            if at == len(part):
                return

    # -- to read -----------------------------------------------------------------------------------------------------

    def open(self, name: str, offset: int = 0) -> BinaryIO | None:
        first = self.part(name, offset)
        return None if first is None else io.BufferedReader(_RemoteFile(self, name, offset, first))

    def part(self, name: str, offset: int) -> bytes | None:
        """A part of content, shorter than others at its end. None if there is none of this name. Raises OSError."""
        message = {"grant": self._grant, "name": name, "offset": offset}
        return self._result(self._begin(self._fetch(message)))

    async def _fetch(self, message: dict[str, Any]) -> bytes | None:
        try:
            data: bytes = await self._send("download", message, FILE_PART)
        except GatewayRefused as refusal:
            if refusal.kind == "missing":
                return None
            raise
        return data

    # -- messages ----------------------------------------------------------------------------------------------------

    async def _send(self, operation: str, body: Any, size: int = 0) -> Any:
        """Send a message until it is answered. ``size`` is how much is sent or comes back, in bytes."""

        async def attempt() -> Any:
            async with self._turn if size else contextlib.nullcontext():
                return await self._ask(operation, body, timeout=self._timeout + 20.0 + size / SLOWEST)

        return await retry_on_conflict(attempt, patience=PATIENCE, outage_pause=PAUSE, clock=self._clock)

    def _begin(self, message: Coroutine[Any, Any, Answer]) -> concurrent.futures.Future[Answer]:
        return asyncio.run_coroutine_threadsafe(message, self._loop)

    def _result(self, answer: concurrent.futures.Future[Answer]) -> Answer:
        """The answer to a message. Raises OSError, and _UploadLost."""
        try:
            return answer.result()
        except GatewayRefused as refusal:
            if refusal.kind == "lost":
                raise _UploadLost(str(refusal)) from None
            if refusal.kind in ("full", "fenced"):  # another device may do it, or does already
                raise OSError(errno.ENOSPC if refusal.kind == "full" else errno.EIO, str(refusal)) from None
            raise OSError(str(refusal)) from None
        except StoreError as error:
            raise OSError(errno.EIO, str(error)) from None


class _RemoteFile(io.RawIOBase):
    """Content that is fetched part by part."""

    def __init__(self, content: GatewayContent, name: str, offset: int, first: bytes) -> None:
        self._content, self._name = content, name
        self._next, self._part, self._last = offset + len(first), memoryview(first), len(first) < FILE_PART

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._part and not self._last:
            data = self._content.part(self._name, self._next)
            if data is None:
                raise OSError(errno.EIO, f"{self._name} was removed from {self._content.location}")
            self._next, self._part, self._last = self._next + len(data), memoryview(data), len(data) < FILE_PART
        count = min(len(buffer), len(self._part))
        buffer[:count], self._part = self._part[:count], self._part[count:]
        return count


def _parts(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Chunks of any size as parts of FILE_PART bytes; only the last may be smaller. There is at least one."""
    pieces, size, is_first = list[memoryview](), 0, True
    for data in chunks:
        chunk = memoryview(data)
        while size + len(chunk) >= FILE_PART:
            rest = FILE_PART - size
            yield b"".join([*pieces, chunk[:rest]])
            pieces, size, chunk, is_first = [], 0, chunk[rest:], False
        pieces.append(chunk)
        size += len(chunk)
    if size or is_first:
        yield b"".join(pieces)
