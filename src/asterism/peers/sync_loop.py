"""The sync loop: sync with peers again and again, after local changes and at a regular interval.

Each peer that can be called has a task of its own. A peer that is unreachable, or with which a sync fails, is called
less and less often, down to once a minute, and the log says so once. Peers that are added or removed meanwhile are
noticed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from asterism.base.error_log import RecurringError
from asterism.core.errors import AsterismError
from asterism.core.run.session import ABROAD
from asterism.peers.exchange import Exchange, Transport
from asterism.peers.registry import Peer, UnknownPeer
from asterism.peers.sync_progress import SyncResult
from asterism.store.protocol import ENDED, OFFERED, Watch, for_device

log = logging.getLogger("asterism.peers")

SYNC_INTERVAL = 5.0
"""The seconds between two syncs if nothing changes."""

MIN_PAUSE = 0.2
"""The least seconds between two syncs."""

MAX_BACKOFF = 60.0
"""The most seconds between two calls of an unreachable peer."""


class SyncLoop:
    """``connect`` makes the transport to a peer that has an address. ``on_sync`` is called with each result. ``names``
    are the peers to call, by default all that have an address. ``interval`` and ``max_backoff`` are the seconds between
    two syncs, if nothing changes and if the peer is unreachable."""

    def __init__(
        self,
        exchange: Exchange,
        connect: Callable[[Peer], Transport],
        *,
        interval: float = SYNC_INTERVAL,
        max_backoff: float = MAX_BACKOFF,
        names: frozenset[str] | None = None,
        on_sync: Callable[[str, SyncResult], None] = lambda peer, result: None,
    ) -> None:
        self._exchange, self._connect, self._on_sync = exchange, connect, on_sync
        self._interval, self._max_backoff, self._names = interval, max(max_backoff, interval), names
        self._fleet, self._clock = exchange.fleet, exchange.fleet.clock

    async def run(self) -> None:
        """Run until cancelled."""
        tasks: dict[str, asyncio.Task[None]] = {}
        try:
            while True:
                with contextlib.suppress(AsterismError):  # the store is unavailable: known peers are still called
                    for peer in await self._exchange.peers.all():
                        called = peer.url is not None and (self._names is None or peer.name in self._names)
                        if called and self._has_ended(tasks.get(peer.name)):
                            tasks[peer.name] = asyncio.create_task(self._sync_forever(peer.name))
                await self._clock.sleep(self._interval)
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)

    def _has_ended(self, task: asyncio.Task[None] | None) -> bool:
        if task is not None and task.done() and not task.cancelled() and task.exception() is not None:
            log.error("the sync loop of a peer failed and is started again", exc_info=task.exception())
        return task is None or task.done()

    async def _sync_forever(self, name: str) -> None:
        errors = RecurringError(
            log, f"cannot sync with peer {name}", f"syncing with peer {name} again", self._clock.time
        )
        pause = self._interval
        while True:
            watch = self._fleet.store.watch(await self._topics())  # changes during the sync count
            try:
                self._on_sync(name, await self.sync(name))
                errors.recovered()
                pause = self._interval
                await self._clock.sleep(min(MIN_PAUSE, self._interval))
                await self._wait_for_change(watch)
            except UnknownPeer:
                return  # it was removed
            except AsterismError as error:
                errors.occurred(error)
                pause = await self._back_off(pause)
            except Exception:  # a bug that an answer triggers must not make us ask for it again at once, forever
                log.exception("internal error in the sync with peer %s", name)
                pause = await self._back_off(pause)
            finally:
                watch.close()

    async def _back_off(self, pause: float) -> float:
        """Sleep, and return the next pause."""
        await self._clock.sleep(pause * self._fleet.chance.uniform(0.8, 1.2))
        return min(2 * pause, self._max_backoff)

    async def sync(self, name: str) -> SyncResult:
        """Sync once, now. Raises UnknownPeer, and what the transport raises."""
        return await self._exchange.sync(name, self._connect(await self._exchange.peers.get(name)))

    async def _topics(self) -> frozenset[str]:
        """Topics of the changes that start a sync: a run waits or has ended, or was assigned to a device of a peer."""
        remote: frozenset[str] = frozenset()
        with contextlib.suppress(AsterismError):
            found = await self._fleet.store.sessions()
            remote = frozenset(for_device(one.device) for one in found if one.state == ABROAD)
        return frozenset({OFFERED, ENDED}) | remote

    async def _wait_for_change(self, watch: Watch) -> None:
        """Return after a change, or after the interval."""
        change = asyncio.ensure_future(watch.wait(self._interval))
        timer = asyncio.ensure_future(self._clock.sleep(self._interval))
        try:
            await asyncio.wait([change, timer], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (change, timer):
                task.cancel()
            await asyncio.gather(change, timer, return_exceptions=True)
