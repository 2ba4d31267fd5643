"""The peer service of a process: answer peers and sync with them, beside the work of a device."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence

from asterism.core.errors import AsterismError
from asterism.fleet.fleet import Fleet
from asterism.peers.authentication import Authenticator
from asterism.peers.exchange import Exchange
from asterism.peers.peer_client import ClientPool, client_for, find_peer
from asterism.peers.peer_server import open_socket, peer_app, serving, socket_url
from asterism.peers.sync_loop import SyncLoop
from asterism.peers.sync_progress import SyncResult
from asterism.peers.tls_identity import tls_identity

log = logging.getLogger("asterism.peers")

FINAL_SYNC_TIMEOUT = 5.0
"""The time limit of the last sync of a device that leaves, in seconds."""


@contextlib.asynccontextmanager
async def serve_peers(exchange: Exchange, address: str) -> AsyncIterator[str]:
    """Answer peers at ``HOST:PORT`` while the block runs; yields the URL. Raises CannotListen, UnusableSecret, and
    AsterismError if a package is not installed."""
    fleet = exchange.fleet
    identity = tls_identity(fleet.store)
    app = peer_app(exchange, Authenticator(fleet.store, exchange.peers, fleet.clock.time))
    sock = open_socket(address)
    url = socket_url(sock)
    async with serving(app, sock, identity):
        log.info("listening for peers on %s", url)
        yield url


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
    async with ClientPool(exchange.fleet.store, most=(await exchange.fleet.settings()).most) as clients:
        sync_loop = SyncLoop(exchange, clients.client, names=frozenset(names), on_sync=_SyncLog().synced)
        task = asyncio.create_task(sync_loop.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
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
