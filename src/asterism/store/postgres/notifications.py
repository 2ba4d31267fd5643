"""Notifications between processes with LISTEN and NOTIFY: wake the watches of others, and be woken.

After a commit its topics go out with NOTIFY, in a transaction of their own: a transaction with a NOTIFY holds a lock of
the whole database while it commits, and commits of runs must not queue up for that. Topics that arrive while one
notification is on its way, and for a moment after, go out together: each NOTIFY wakes every listening process. If a
process dies between its commit and its NOTIFY, no watch is woken, and waiters find the change when they look next.

One connection listens, from the first watch on. When it is lost it is opened again, and all watches are woken, since
notifications may have been missed. It also asks for the server's time regularly, which shows whether it is alive.
Through a pooler that lends sessions for a transaction nothing can listen: all watches are woken every second.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Iterable, Iterator

from asterism.store.postgres.connection import BROAD, Connection, ConnectionFactory, ConnectionPool
from asterism.store.postgres.error_mapping import spoils
from asterism.store.postgres.schema import careless_settings, missing_standby, statements
from asterism.store.row_codec import to_text
from asterism.store.store_errors import StoreError
from asterism.store.watches import Watches

log = logging.getLogger(__name__)

LONGEST_PAYLOAD = 7500  # the server takes up to 7,999 bytes
NOTIFY_INTERVAL = 0.01
"""The least time between two notifications of one process, in seconds."""

KEEPALIVE = 10.0
"""How often to test the listening connection, in seconds."""

POLL = 1.0
"""How often watches are woken where nothing can listen, in seconds."""

SETTINGS = BROAD | {"application_name": "asterism listening"}
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0


class NotificationSender:
    """Sends topics to other processes. Each message names its ``sender``, so that a process ignores its own."""

    def __init__(self, connections: ConnectionPool, channel: str, sender: str) -> None:
        self._connections = connections
        self._channel = channel
        self._sender = sender
        self._topics: set[str] = set()
        self._sending = False
        self._closing = False
        self._task: asyncio.Task[None] | None = None

    def send(self, topics: Iterable[str]) -> None:
        self._topics.update(topics)
        if not self._sending:
            self._sending = True
            self._task = asyncio.create_task(self._send())

    async def _send(self) -> None:
        try:
            while self._topics:
                topics, self._topics = self._topics, set()
                try:
                    for payload in payloads(self._sender, topics):
                        await self._connections.fetchrow(statements()["tell"], self._channel, payload)
                except (StoreError, ValueError) as error:
                    log.warning("other processes were not notified, and find the change when they poll: %s", error)
                if not self._closing:
                    await asyncio.sleep(NOTIFY_INTERVAL)
        finally:
            self._sending = False  # in the step that found no more topics

    async def close(self) -> None:
        """Send pending topics, and stop."""
        self._closing = True
        if self._task is not None:
            await asyncio.wait([self._task])


def payloads(sender: str, topics: set[str]) -> Iterator[str]:
    """Yield the messages that name these topics. If a topic is too long, one message without topics wakes all
    watches."""
    part: list[str] = []
    size = 0
    for topic in sorted(topics):
        length = len(to_text(topic)) + 1
        if length > LONGEST_PAYLOAD:
            yield to_text([sender])
            return
        if size + length > LONGEST_PAYLOAD:
            yield to_text([sender, *part])
            part, size = [], 0
        part.append(topic)
        size += length
    if part:
        yield to_text([sender, *part])


class Listener:
    """Wakes the watches of this process when another one sends their topics."""

    def __init__(self, factory: ConnectionFactory, channel: str, sender: str, watches: Watches) -> None:
        self._factory = factory
        self._channel = channel
        self._sender = sender
        self._watches = watches
        self._task: asyncio.Task[None] | None = None
        self._warned = False

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        pause = FIRST_PAUSE
        while True:
            try:
                connection = await self._factory.connect(SETTINGS)
            except StoreError as error:
                log.info("cannot listen for changes: %s", error)
            else:
                opened_at = time.monotonic()
                try:
                    await self._listen_on(connection)
                except Exception as error:
                    log.info("lost the connection that listens for changes: %s", error)
                finally:
                    connection.terminate()
                self._watches.wake_all()
                if time.monotonic() - opened_at > LONGEST_PAUSE:
                    pause = FIRST_PAUSE
                    continue
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _listen_on(self, connection: Connection) -> None:
        """Listen until the connection is lost."""
        lost = asyncio.Event()
        connection.add_termination_listener(lambda _: lost.set())
        if not self._factory.pooled:
            await connection.add_listener(self._channel, self._received)
        self._watches.wake_all()
        await self._warn(connection)
        clock = self._factory.clock
        while not connection.is_closed():
            asked = clock.own()
            clock.learn(await connection.fetchval(statements()["clock"]), asked)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL if self._factory.pooled else KEEPALIVE):
                    await lost.wait()
            if self._factory.pooled:
                self._watches.wake_all()

    async def _warn(self, connection: Connection) -> None:
        """Say once where the configuration makes loss possible: what listens is no short command, but a process that
        stays."""
        if not self._warned:
            address = self._factory.address
            try:
                risks = [*await careless_settings(connection), *await missing_standby(connection, len(address.hosts))]
            except Exception as error:
                if spoils(error):
                    raise
                risks = [f"whether its configuration may lose acknowledged commits cannot be told: {error}"]
            self._warned = True
            for risk in risks:
                log.warning("%s: %s", address.shown, risk)

    def _received(self, connection: object, pid: int, channel: str, payload: str) -> None:
        try:
            sender, *topics = json.loads(payload)
            if not all(isinstance(topic, str) for topic in topics):
                raise ValueError("a topic is a text")
        except (TypeError, ValueError, RecursionError):  # anybody may notify a channel
            log.warning("ignored an unknown message on channel %s: %.80r", channel, payload)
            return
        if not topics:
            self._watches.wake_all()
        elif sender != self._sender:
            self._watches.wake(topics)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
