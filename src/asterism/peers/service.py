"""Staying in touch: answering whoever calls, and calling peers again and again, beside the work of a device."""

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
"""How long the last meeting of a device that leaves may take, in seconds."""


@contextlib.asynccontextmanager
async def serve_peers(exchange: Exchange, place: str) -> AsyncIterator[str]:
    """Peers are answered at ``HOST:PORT`` while the block runs. Raises CannotListen, UnusableSecret, and AsterismError
    if something is not installed."""
    fleet = exchange.fleet
    identity = tls_identity(fleet.store)
    app = peer_app(exchange, Authenticator(fleet.store, exchange.peers, fleet.clock.time))
    sock = open_socket(place)
    url = socket_url(sock)
    async with serving(app, sock, identity):
        log.info("listening for peers on %s", url)
        yield url


@contextlib.asynccontextmanager
async def peer_connections(fleet: Fleet, peers: Sequence[str], place: str | None) -> AsyncIterator[None]:
    """These peers, by name or address, are met again and again while the block runs, and once more when it has ended;
    and all are answered at ``place``, if there is one. Raises UnknownPeer and what ``answering`` does before anything
    has begun."""
    exchange = Exchange(fleet)
    names = [await _callable_peer(exchange, text) for text in peers]
    async with contextlib.AsyncExitStack() as stack:
        if place is not None:
            await stack.enter_async_context(serve_peers(exchange, place))
        if names:
            await stack.enter_async_context(_run_sync_loop(exchange, names))
        yield


async def _callable_peer(exchange: Exchange, text: str) -> str:
    """The name of a peer that can be called from here."""
    peer = await find_peer(exchange.peers, text)
    client_for(exchange.fleet.store, peer)
    return peer.name


@contextlib.asynccontextmanager
async def _run_sync_loop(exchange: Exchange, names: Sequence[str]) -> AsyncIterator[None]:
    async with ClientPool(exchange.fleet.store, most=(await exchange.fleet.settings()).most) as clients:
        sync_loop = SyncLoop(exchange, clients.client, names=frozenset(names), on_sync=_SyncLog().met)
        task = asyncio.create_task(sync_loop.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await asyncio.gather(*(_final_sync(sync_loop, name) for name in names))


async def _final_sync(sync_loop: SyncLoop, name: str) -> None:
    """What happened last is told, too, if the peer listens; if not, it will be with the next meeting."""
    with contextlib.suppress(AsterismError, TimeoutError):
        async with asyncio.timeout(FINAL_SYNC_TIMEOUT):
            await sync_loop.sync(name)


class _SyncLog:
    """What is said of sync_loop: the first one, what the peer refused, and what became of runs that were lost or are not
    known any more. What else is worth telling is a notice."""

    def __init__(self) -> None:
        self._met: set[str] = set()

    def met(self, peer: str, met: SyncResult) -> None:
        if peer not in self._met:
            self._met.add(peer)
            log.info("met %s: %d sent, %d taken", peer, met.sent, met.taken)
        for reason in met.refused_there:
            log.warning("refused by %s: %s", peer, reason)
        for lost in met.lost:
            log.warning("lost to %s: %s", peer, lost)
        for closed in met.closed:
            log.warning("%s", closed)
