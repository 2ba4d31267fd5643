"""The peer service of a process: answers peers and syncs with them periodically, beside the work of a device.

The sync loop has a task for each peer that can be called. It syncs after local changes and at a regular interval. A
peer that is unreachable, or with which a sync fails, is called less and less often, down to once a minute, and the log
says so once. Peers that are added or removed meanwhile are noticed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence

from asterism.base.clock import beside, first_of, stopped
from asterism.base.error_log import RecurringError
from asterism.core.backoff import retry_delay
from asterism.core.errors import AsterismError
from asterism.core.run.session import ABROAD
from asterism.fleet.fleet import Fleet
from asterism.peers.exchange import Exchange, SyncResult, Transport
from asterism.peers.peer_client import ClientPool, client_for, find_peer
from asterism.peers.peer_server import Authenticator, open_socket, peer_app, serving, socket_url
from asterism.peers.private_files import tls_identity
from asterism.peers.registry import Peer, UnknownPeer
from asterism.store.protocol import ENDED, OFFERED, for_device

log = logging.getLogger("asterism.peers")

SYNC_INTERVAL = 5.0
"""The seconds between two syncs if nothing changes."""

MIN_PAUSE = 0.2
"""The least seconds between two syncs."""

MAX_BACKOFF = 60.0
"""The most seconds between two calls of an unreachable peer."""

FINAL_SYNC_TIMEOUT = 5.0
"""The time limit of the last sync of a device that leaves, in seconds."""


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
            await stopped(*tasks.values())

    def _has_ended(self, task: asyncio.Task[None] | None) -> bool:
        if task is not None and task.done() and not task.cancelled() and task.exception() is not None:
            log.error("the sync loop of a peer failed and is started again", exc_info=task.exception())
        return task is None or task.done()

    async def _sync_forever(self, name: str) -> None:
        errors = RecurringError(
            log, f"cannot sync with peer {name}", f"syncing with peer {name} again", self._clock.time
        )
        failures = 0
        while True:
            watch = self._fleet.store.watch(await self._topics())  # changes during the sync count
            try:
                self._on_sync(name, await self.sync(name))
                errors.recovered()
                failures = 0
                await self._clock.sleep(min(MIN_PAUSE, self._interval))
                await first_of(watch.wait(self._interval), self._clock.sleep(self._interval))
            except UnknownPeer:
                return  # it was removed
            except AsterismError as error:
                errors.occurred(error)
                failures = await self._back_off(failures)
            except Exception:  # a bug that an answer triggers must not make us ask for it again at once, forever
                log.exception("internal error in the sync with peer %s", name)
                failures = await self._back_off(failures)
            finally:
                watch.close()

    async def _back_off(self, failures: int) -> int:
        """Sleep after another failure, and return how many there were in a row."""
        failures += 1
        chance = self._fleet.chance
        await self._clock.sleep(retry_delay(failures, self._interval, self._max_backoff, chance, spread=0.2))
        return failures

    async def sync(self, name: str) -> SyncResult:
        """Sync once, now. Raises UnknownPeer, and what the transport raises."""
        return await self._exchange.sync(name, self._connect(await self._exchange.peers.get(name)))

    async def _topics(self) -> frozenset[str]:
        """Topics of the changes that start a sync: a run waits or has ended, or was assigned to a device of a peer."""
        remote: frozenset[str] = frozenset()
        with contextlib.suppress(AsterismError):
            sessions = await self._fleet.store.sessions()
            remote = frozenset(for_device(session.device) for session in sessions if session.state == ABROAD)
        return frozenset({OFFERED, ENDED}) | remote


# -- beside a device ---------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def serve_peers(exchange: Exchange, address: str) -> AsyncIterator[str]:
    """Answer peers at ``HOST:PORT`` while the block runs; yields the URL. Raises CannotServe, UnusableSecret, and
    AsterismError if a package is not installed."""
    fleet = exchange.fleet
    identity = tls_identity(fleet.store)
    app = peer_app(exchange, authenticator(exchange))
    sock = open_socket(address)
    url = socket_url(sock)
    async with serving(app, sock, identity):
        log.info("listening for peers on %s", url)
        yield url


def authenticator(exchange: Exchange) -> Authenticator:
    fleet = exchange.fleet
    return Authenticator(fleet.store, exchange.peers, fleet.clock.time)


@contextlib.asynccontextmanager
async def peer_connections(fleet: Fleet, peers: Sequence[str], address: str | None) -> AsyncIterator[None]:
    """Sync with these peers, given by name or URL, while the block runs and once more at its end; and answer all peers
    at ``address``, if given. Raises UnknownPeer and what ``serve_peers`` raises before the block begins."""
    exchange = Exchange(fleet)
    names = [await _callable_peer(exchange, text) for text in peers]
    async with contextlib.AsyncExitStack() as stack:
        if address is not None:
            await stack.enter_async_context(serve_peers(exchange, address))
        if names:
            await stack.enter_async_context(_run_sync_loop(exchange, names))
        yield


async def _callable_peer(exchange: Exchange, text: str) -> str:
    """The name of a peer. Raises AsterismError if it cannot be called from here."""
    peer = await find_peer(exchange.peers, text)
    client_for(exchange.fleet.store, peer)
    return peer.name


@contextlib.asynccontextmanager
async def _run_sync_loop(exchange: Exchange, names: Sequence[str]) -> AsyncIterator[None]:
    async with ClientPool(exchange.fleet.store, most=(await exchange.fleet.settings()).largest_blob) as clients:
        sync_loop = SyncLoop(exchange, clients.client, names=frozenset(names), on_sync=_SyncLog().synced)
        async with beside(sync_loop.run()):
            yield
        await asyncio.gather(*(_final_sync(sync_loop, name) for name in names))


async def _final_sync(sync_loop: SyncLoop, name: str) -> None:
    """Send the last changes, if the peer listens; otherwise the next sync does."""
    with contextlib.suppress(AsterismError, TimeoutError):
        async with asyncio.timeout(FINAL_SYNC_TIMEOUT):
            await sync_loop.sync(name)


class _SyncLog:
    """Logs the first sync with each peer, refusals, and runs that were lost or closed. The rest is in notices."""

    def __init__(self) -> None:
        self._synced: set[str] = set()

    def synced(self, peer: str, result: SyncResult) -> None:
        if peer not in self._synced:
            self._synced.add(peer)
            log.info("synced with %s: %d sent, %d received", peer, result.sent, result.taken)
        for reason in result.refused_there:
            log.warning("refused by %s: %s", peer, reason)
        for lost in result.lost:
            log.warning("lost to %s: %s", peer, lost)
        for closed in result.closed:
            log.warning("%s", closed)
