"""The one reader of HTTP answers: bodies with a limit on their size after decompression.

An HTTP client decodes whatever ``Content-Encoding`` names before anybody counts: 2 KB that are compressed twice become
gigabytes. ``bound_answer`` replaces the stream of a response by one that decompresses in small steps and counts each of
them, and accepts one encoding at most. ``read_answer`` reads a response so; a client that a library reads gets
``bound_hook`` as the event hook of its responses.

It works with httpx and with the fork that some libraries use, and imports neither: a response knows its library.
"""

from __future__ import annotations

import asyncio
import sys
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import cache
from typing import Any

from asterism.base.text import masked_url
from asterism.core.errors import AsterismError

LARGEST_ANSWER = 64 << 20
"""The default limit of a body, in bytes."""

LARGEST_SERVER_ANSWER = 256 << 20
"""The limit for the answers of a server of Asterism, in bytes: the largest value, as JSON."""

ACCEPTED = "gzip, deflate"
"""The value of ``Accept-Encoding`` that this reader understands."""

_STEP = 64 << 10
"""How many bytes one step of decompression yields at most."""

_WINDOWS = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


class AnswerRefused(AsterismError):
    """The body of an answer is too large, or encoded in a way that is not accepted."""


class AnswerTooLarge(AnswerRefused):
    """The body of an answer has more bytes than its limit; ``read`` are those that were read of it."""

    def __init__(self, place: str, most: int, read: int) -> None:
        self.read = read
        super().__init__(f"{place} answered with more than {most:,} bytes")


def bound_answer(response: Any, most: int | None, inspect: Callable[[bytes], object] = lambda part: None) -> None:
    """Let the body of a response be at most ``most`` bytes long, before and after decompression; None for a stream
    whose parts the caller counts. ``inspect`` is called with each part and may raise. Raises AnswerRefused for its
    encoding; reading it raises AnswerRefused, too."""
    encodings = [word.strip().lower() for word in response.headers.get("content-encoding", "").split(",")]
    encodings = [word for word in encodings if word not in ("", "identity")]
    place = masked_url(str(response.request.url))
    if len(encodings) > 1:
        raise AnswerRefused(f"{place} answered with a body that is compressed {len(encodings)} times; once is accepted")
    if encodings and encodings[0] not in _WINDOWS:
        raise AnswerRefused(f"{place} answered with the encoding {encodings[0][:40]!r}; accepted are {ACCEPTED}")
    response.headers.pop("content-encoding", None)  # the library must not decode the body again
    decoder = _Decoder(encodings[0], place) if encodings else None
    response.stream = _stream_class(type(response).__module__.partition(".")[0])(
        response.stream, decoder, most, place, inspect
    )


async def read_answer(response: Any, most: int = LARGEST_ANSWER) -> bytes:
    """The body of a response that was asked for as a stream. Raises AnswerRefused."""
    bound_answer(response, most)
    body: bytes = await response.aread()
    return body


def bound_hook(most: int) -> Callable[[Any], Awaitable[None]]:
    """The event hook ``response`` of an asynchronous client whose answers a library reads."""

    async def bound(response: Any) -> None:
        bound_answer(response, most)

    return bound


class _Decoder:
    """Decompresses one body in steps. A gzip body may have several members."""

    def __init__(self, encoding: str, place: str) -> None:
        self._window, self._place = _WINDOWS[encoding], place
        self._begun = False
        self._inflater = zlib.decompressobj(self._window)

    def steps(self, data: bytes) -> Iterator[bytes]:
        try:
            more = bool(data)
            while more:
                if self._inflater.eof and not (data := self._next_member(data)):
                    return
                part, data = self._step(data)
                self._begun = True
                if part:
                    yield part
                more = bool(data) or (len(part) == _STEP and not self._inflater.eof)  # it may hold back the rest
        except zlib.error as error:
            raise AnswerRefused(f"{self._place} answered with a body that cannot be decompressed: {error}") from None

    def _step(self, data: bytes) -> tuple[bytes, bytes]:
        try:
            part = self._inflater.decompress(data, _STEP)
        except zlib.error:
            if self._begun or self._window != zlib.MAX_WBITS:
                raise
            self._window = -zlib.MAX_WBITS  # deflate without the header of zlib, which many servers send
            self._inflater = zlib.decompressobj(self._window)
            part = self._inflater.decompress(data, _STEP)
        return part, self._inflater.unused_data if self._inflater.eof else self._inflater.unconsumed_tail

    def _next_member(self, data: bytes) -> bytes:
        data = data.lstrip(b"\0")  # padding
        if data and self._window != 16 + zlib.MAX_WBITS:
            raise zlib.error("more data follows its end")
        self._inflater = zlib.decompressobj(self._window) if data else self._inflater
        return data

    def finish(self) -> None:
        """Raises AnswerRefused if the body ended early."""
        if self._begun and not self._inflater.eof:
            raise AnswerRefused(f"{self._place} answered with a compressed body that is cut off")


class _Count:
    """Raises AnswerTooLarge once more than ``most`` bytes have passed."""

    def __init__(self, most: int | None, place: str) -> None:
        self._most, self._place, self._size = most, place, 0

    def add(self, part: bytes) -> None:
        self._size += len(part)
        if self._most is not None and self._size > self._most:
            raise AnswerTooLarge(self._place, self._most, self._size)


@cache
def _stream_class(name: str) -> Any:
    """The class of bounded streams for the library of a response, which accepts only streams of its own classes."""
    library: Any = sys.modules[name]

    class BoundedStream(library.AsyncByteStream, library.SyncByteStream):  # type: ignore[misc]
        def __init__(
            self,
            inner: Any,
            decoder: _Decoder | None,
            most: int | None,
            place: str,
            inspect: Callable[[bytes], object],
        ) -> None:
            self._inner, self._decoder, self._inspect = inner, decoder, inspect
            self._received, self._decoded = _Count(most, place), _Count(most, place)

        def __iter__(self) -> Iterator[bytes]:
            for raw in self._inner:
                yield from self._parts(raw)
            self._finish()

        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for raw in self._inner:
                for part in self._parts(raw):
                    yield part
                    if self._decoder is not None:
                        await asyncio.sleep(0)  # a few bytes may become very many, with nothing to wait for
            self._finish()

        def _parts(self, raw: bytes) -> Iterator[bytes]:
            self._received.add(raw)
            for part in [raw] if self._decoder is None else self._decoder.steps(raw):
                self._decoded.add(part)
                self._inspect(part)
                yield part

        def _finish(self) -> None:
            if self._decoder is not None:
                self._decoder.finish()

        def close(self) -> None:
            inner, self._inner = self._inner, ()
            if inner:
                inner.close()

        async def aclose(self) -> None:
            inner, self._inner = self._inner, ()  # it refers to the response: the two would wait for the collector
            if inner:
                await inner.aclose()

    return BoundedStream
