"""Metrics of a fleet and its plans: printed by ``asterism fleet metrics``, served by ``asterism monitor``.

The server answers ``GET /metrics`` over HTTP/1.1, one request per connection. It needs no library: it reads a request
line, ignores the headers, and sends one text. The text is computed at most once in ``MAX_AGE`` seconds, however many
clients ask.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

import click

from asterism.api.local.fleet_handlers import metrics_families
from asterism.base.openmetrics import CONTENT_TYPE, render
from asterism.fleet.fleet import Fleet
from asterism.store.store_errors import StoreError

log = logging.getLogger("asterism.device")

MAX_AGE = 5.0
"""How old a served text may be, in seconds."""

MAX_CONNECTIONS = 20
REQUEST_TIMEOUT = 10.0
"""How long a client may take to send a request, and to read the answer, in seconds."""

LONGEST_HEAD = 16 * 1024
"""The longest line of a request, in bytes."""

MAX_HEADERS = 100

Produce = Callable[[], Awaitable[str]]


@contextlib.asynccontextmanager
async def serve_metrics(fleet: Fleet, host: str, port: int) -> AsyncIterator[str]:
    """Serve the metrics of a fleet while the block runs; yields the address. Raises ClickException if the port cannot
    be used."""

    async def produce() -> str:
        return render(await metrics_families(fleet))

    async with serve_text(produce, host, port, fleet.clock.time) as address:
        log.info("metrics at %s", address)
        yield address


@contextlib.asynccontextmanager
async def serve_text(produce: Produce, host: str, port: int, now: Callable[[], float]) -> AsyncIterator[str]:
    """As ``serve_metrics``, for any text. ``now`` counts seconds."""
    answers = MetricsAnswers(produce, now)
    try:
        server = await asyncio.start_server(answers.connected, host, port, limit=LONGEST_HEAD)
    except OSError as error:
        reason = error.strerror or error
        raise click.ClickException(
            f"metrics cannot be served on {host} port {port}: {reason}; choose another --listen"
        ) from None
    try:
        name, number = server.sockets[0].getsockname()[:2]
        yield f"http://{f'[{name}]' if ':' in name else name}:{number}/metrics"
    finally:
        server.close()
        await answers.close()


class MetricsAnswers:
    """Answers requests. ``produce`` makes the text, ``now`` counts seconds."""

    def __init__(self, produce: Produce, now: Callable[[], float]) -> None:
        self._produce, self._now = produce, now
        self._text: tuple[float, str] | None = None
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def text(self) -> str:
        """The metrics, at most ``MAX_AGE`` old. Callers at the same time share one computation."""
        async with self._lock:
            if self._text is None or self._now() - self._text[0] > MAX_AGE:
                began = self._now()
                self._text = (began, await self._produce())
            return self._text[1]

    def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= MAX_CONNECTIONS:
            writer.close()
            return
        task = asyncio.create_task(self._answer(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End all connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            # a client that went away, is too slow or sends no HTTP gets no answer
            with contextlib.suppress(OSError, ValueError, TimeoutError, asyncio.IncompleteReadError):
                async with asyncio.timeout(REQUEST_TIMEOUT):
                    line = await _read_request(reader)
                status, kind, text = await self._reply(line)
                body = text.encode(errors="replace")
                head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
                writer.write(f"{head}Connection: close\r\n\r\n".encode("ascii") + (b"" if line[0] == "HEAD" else body))
                async with asyncio.timeout(REQUEST_TIMEOUT):
                    await writer.drain()
                    writer.close()
                    await writer.wait_closed()
        finally:
            writer.transport.abort()

    async def _reply(self, line: tuple[str, str]) -> tuple[str, str, str]:
        """The status, the content type and the text of the answer."""
        method, target = line
        plain = "text/plain; charset=utf-8"
        if target.partition("?")[0] != "/metrics":
            return "404 Not Found", plain, "The metrics are at /metrics.\n"
        if method not in ("GET", "HEAD"):
            return "405 Method Not Allowed", plain, "Use GET.\n"
        try:
            return "200 OK", CONTENT_TYPE, await self.text()
        except StoreError as error:
            return "503 Service Unavailable", plain, f"{error}\n"


async def _read_request(reader: asyncio.StreamReader) -> tuple[str, str]:
    """Read the head of a request; its method and target. Raises ValueError if it is not HTTP."""
    method, target, version = (await reader.readuntil(b"\n")).decode("latin-1").split()
    if not version.startswith("HTTP/1."):
        raise ValueError(f"not HTTP/1.1: {version}")
    for _ in range(MAX_HEADERS):
        if not (await reader.readuntil(b"\n")).strip():
            return method, target
    raise ValueError(f"more than {MAX_HEADERS} headers")
