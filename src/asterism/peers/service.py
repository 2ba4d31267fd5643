"""Staying in touch: answering whoever calls, and calling peers again and again, beside the work of a device."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence

from asterism.core.errors import AsterismError
from asterism.fleet.fleet import Fleet
from asterism.peers.authentication import Guard
from asterism.peers.exchange import Exchange, Met
from asterism.peers.identity import identity_of
from asterism.peers.listener import listen, place_of, served
from asterism.peers.meetings import Meetings
from asterism.peers.peer_client import Ways, find_peer, way_to
from asterism.peers.peer_server import peer_app

log = logging.getLogger("asterism.peers")

PARTING = 5.0
"""How long the last meeting of a device that leaves may take, in seconds."""


@contextlib.asynccontextmanager
async def answering(exchange: Exchange, place: str) -> AsyncIterator[str]:
    """Peers are answered at ``HOST:PORT`` while the block runs. Raises CannotListen, UnusableSecret, and AsterismError
    if something is not installed."""
    fleet = exchange.fleet
    identity = identity_of(fleet.store)
    app = peer_app(exchange, Guard(fleet.store, exchange.peers, fleet.clock.time))
    sock = listen(place)
    url = place_of(sock)
    async with served(app, sock, identity):
        log.info("listening for peers on %s", url)
        yield url


@contextlib.asynccontextmanager
async def in_touch(fleet: Fleet, peers: Sequence[str], place: str | None) -> AsyncIterator[None]:
    """These peers, by name or address, are met again and again while the block runs, and once more when it has ended;
    and all are answered at ``place``, if there is one. Raises UnknownPeer and what ``answering`` does before anything
    has begun."""
    exchange = Exchange(fleet)
    names = [await _callable(exchange, text) for text in peers]
    async with contextlib.AsyncExitStack() as stack:
        if place is not None:
            await stack.enter_async_context(answering(exchange, place))
        if names:
            await stack.enter_async_context(_meeting(exchange, names))
        yield


async def _callable(exchange: Exchange, text: str) -> str:
    """The name of a peer that can be called from here."""
    peer = await find_peer(exchange.peers, text)
    way_to(exchange.fleet.store, peer)
    return peer.name


@contextlib.asynccontextmanager
async def _meeting(exchange: Exchange, names: Sequence[str]) -> AsyncIterator[None]:
    async with Ways(exchange.fleet.store, most=(await exchange.fleet.settings()).most) as ways:
        meetings = Meetings(exchange, ways.to, names=frozenset(names), on_met=_Told().met)
        task = asyncio.create_task(meetings.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await asyncio.gather(*(_part(meetings, name) for name in names))


async def _part(meetings: Meetings, name: str) -> None:
    """What happened last is told, too, if the peer listens; if not, it will be with the next meeting."""
    with contextlib.suppress(AsterismError, TimeoutError):
        async with asyncio.timeout(PARTING):
            await meetings.meet(name)


class _Told:
    """What is said of meetings: the first one, what the peer refused, and what became of runs that were lost or are not
    known any more. What else is worth telling is a notice."""

    def __init__(self) -> None:
        self._met: set[str] = set()

    def met(self, peer: str, met: Met) -> None:
        if peer not in self._met:
            self._met.add(peer)
            log.info("met %s: %d sent, %d taken", peer, met.sent, met.taken)
        for reason in met.refused_there:
            log.warning("refused by %s: %s", peer, reason)
        for lost in met.lost:
            log.warning("lost to %s: %s", peer, lost)
        for closed in met.closed:
            log.warning("%s", closed)
