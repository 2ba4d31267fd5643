"""Meeting peers again and again: when something has happened here that concerns them, or after a while in any case.

Each peer that can be called has its own rhythm. One that is out of reach is tried less and less often, up to once a
minute, and that is told as other troubles are. One with which a meeting ends in a mistake of ours is, too. Peers that
are added or removed meanwhile are noticed.
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
"""How long a meeting is put off if nothing happens, in seconds."""

MIN_PAUSE = 0.2
"""How much time lies between two meetings at least."""

MAX_BACKOFF = 60.0
"""How long a peer that is out of reach is left alone at most."""


class SyncLoop:
    """``connect`` makes a way to a peer that has a url. ``on_sync`` is told of each meeting. ``names`` are the peers
    that are called; all that can be, unless it is given. ``interval`` and ``longest`` are how long a meeting is put
    off, if nothing happens and if the peer is out of reach."""

    def __init__(
        self,
        exchange: Exchange,
        connect: Callable[[Peer], Transport],
        *,
        interval: float = SYNC_INTERVAL,
        longest: float = MAX_BACKOFF,
        names: frozenset[str] | None = None,
        on_sync: Callable[[str, SyncResult], None] = lambda peer, met: None,
    ) -> None:
        self._exchange, self._connect, self._on_sync = exchange, connect, on_sync
        self._interval, self._longest, self._names = interval, max(longest, interval), names
        self._fleet, self._clock = exchange.fleet, exchange.fleet.clock

    async def run(self) -> None:
        """Until it is cancelled."""
        going: dict[str, asyncio.Task[None]] = {}
        try:
            while True:
                with contextlib.suppress(AsterismError):  # the store is out of reach: those that are known go on
                    for peer in await self._exchange.peers.all():
                        called = peer.url is not None and (self._names is None or peer.name in self._names)
                        if called and self._has_ended(going.get(peer.name)):
                            going[peer.name] = asyncio.create_task(self._sync_forever(peer.name))
                await self._clock.sleep(self._interval)
        finally:
            for task in going.values():
                task.cancel()
            await asyncio.gather(*going.values(), return_exceptions=True)

    def _has_ended(self, task: asyncio.Task[None] | None) -> bool:
        if task is not None and task.done() and not task.cancelled() and task.exception() is not None:
            log.error("a meeting broke off, and is begun anew", exc_info=task.exception())
        return task is None or task.done()

    async def _sync_forever(self, name: str) -> None:
        trouble = RecurringError(log, f"cannot meet peer {name}", f"meeting peer {name} again", self._clock.time)
        pause = self._interval
        while True:
            watch = self._fleet.store.watch(await self._topics())  # what happens during the meeting counts
            try:
                self._on_sync(name, await self.sync(name))
                trouble.recovered()
                pause = self._interval
                await self._clock.sleep(min(MIN_PAUSE, self._interval))
                await self._something_happens(watch)
            except UnknownPeer:
                return  # it was removed
            except AsterismError as error:
                trouble.occurred(error)
                pause = await self._leave_alone(pause)
            except Exception:  # whatever it said must not make us ask for it again at once, for ever
                log.exception("a mistake in meeting peer %s", name)
                pause = await self._leave_alone(pause)
            finally:
                watch.close()

    async def _leave_alone(self, pause: float) -> float:
        """Returns for how long the next time."""
        await self._clock.sleep(pause * self._fleet.chance.uniform(0.8, 1.2))
        return min(2 * pause, self._longest)

    async def sync(self, name: str) -> SyncResult:
        """One meeting, now. Raises UnknownPeer, and what the way to it raises."""
        return await self._exchange.sync(name, self._connect(await self._exchange.peers.get(name)))

    async def _topics(self) -> frozenset[str]:
        """A run waits or has ended, or one was given to a device of a peer."""
        abroad: frozenset[str] = frozenset()
        with contextlib.suppress(AsterismError):
            found = await self._fleet.store.sessions()
            abroad = frozenset(for_device(one.device) for one in found if one.state == ABROAD)
        return frozenset({OFFERED, ENDED}) | abroad

    async def _something_happens(self, watch: Watch) -> None:
        """Or time has passed."""
        waking = asyncio.ensure_future(watch.wait(self._interval))
        resting = asyncio.ensure_future(self._clock.sleep(self._interval))
        try:
            await asyncio.wait([waking, resting], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (waking, resting):
                task.cancel()
            await asyncio.gather(waking, resting, return_exceptions=True)
