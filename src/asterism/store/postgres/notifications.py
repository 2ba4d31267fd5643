"""Waking others, and being woken.

After a commit that concerns somebody its topics go out with NOTIFY, in a transaction of their own: a transaction with
a NOTIFY holds a lock of the whole database while it commits, and the commits of runs shall not queue up for that. What
comes up while one is on its way, and for a moment after, goes out together: each NOTIFY wakes every process that
listens. If a process dies between its commit and its NOTIFY nobody is woken, and whoever waits finds the change when
they look the next time.

One connection listens, from the first watch on. When it is lost it is opened again, and everybody is woken, since
nobody knows what was missed. It also asks the server for the time now and then, which shows whether it is alive.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import uuid
from collections.abc import Iterable, Iterator

from asterism.store.postgres.connection_pool import BROAD, Connection, ConnectionFactory, ConnectionPool
from asterism.store.postgres.statements import statements
from asterism.store.row_codec import to_text
from asterism.store.store_errors import StoreError
from asterism.store.watches import Watches

log = logging.getLogger(__name__)

LONGEST_PAYLOAD = 7500  # the server takes up to 7,999 bytes
GAP = 0.01
"""So many seconds are between two NOTIFY of one process."""

PULSE = 10.0
"""So often the listening connection is tried."""

SETTINGS = BROAD | {"application_name": "asterism listening"}
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0


class NotificationSender:
    """Sends topics out. ``sender`` is in every message, so that a process can tell its own."""

    def __init__(self, connections: ConnectionPool, channel: str, sender: str) -> None:
        self._connections = connections
        self._channel = channel
        self._sender = sender
        self._topics: set[str] = set()
        self._sending = False
        self._closing = False
        self._task: asyncio.Task[None] | None = None

    def tell(self, topics: Iterable[str]) -> None:
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
                    log.warning("others were not told of a change, and will find it when they look: %s", error)
                if not self._closing:
                    await asyncio.sleep(GAP)
        finally:
            self._sending = False  # in the same step that found nothing more to tell

    async def close(self) -> None:
        """What is due goes out first."""
        self._closing = True
        if self._task is not None:
            await asyncio.wait([self._task])


def payloads(sender: str, topics: set[str]) -> Iterator[str]:
    """The messages that name these topics. If one is too long for a message everybody is woken: no topics at all."""
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
    """Wakes the watches of this process when another one told of something."""

    def __init__(self, factory: ConnectionFactory, channel: str, sender: str, watches: Watches) -> None:
        self._factory = factory
        self._channel = channel
        self._sender = sender
        self._watches = watches
        self._task: asyncio.Task[None] | None = None

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
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            try:
                pause = FIRST_PAUSE
                await self._attend(connection)
            except Exception as error:
                log.info("the connection that listens for changes was lost: %s", error)
            finally:
                connection.terminate()
            self._watches.wake_all()

    async def _attend(self, connection: Connection) -> None:
        """Until the connection is lost."""
        lost = asyncio.Event()
        connection.add_termination_listener(lambda _: lost.set())
        await connection.add_listener(self._channel, self._heard)
        self._watches.wake_all()
        clock = self._factory.clock
        while not connection.is_closed():
            asked = clock.own()
            clock.learn(await connection.fetchval(statements()["clock"]), asked)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PULSE):
                    await lost.wait()

    def _heard(self, connection: object, pid: int, channel: str, payload: str) -> None:
        try:
            sender, *topics = json.loads(payload)
        except ValueError:
            log.warning("a message on channel %s is not ours: %.80r", channel, payload)
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


def new_sender() -> str:
    return uuid.uuid4().hex[:12]
