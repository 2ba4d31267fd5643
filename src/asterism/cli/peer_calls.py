"""One meeting, as a command makes it: with a peer that was accepted, or with one that is being accepted."""

from __future__ import annotations

import asyncio
import logging
import signal

from asterism.cli.cli_context import tell_json
from asterism.cli.peer_views import Refusals, met_json, met_lines
from asterism.cli.text_output import say_lines
from asterism.fleet.fleet import Fleet
from asterism.peers.exchange import Exchange, Met
from asterism.peers.invitations import Invitation
from asterism.peers.peer_client import accept, find_peer, way_to
from asterism.peers.service import answering

log = logging.getLogger("asterism.peers")


async def sync(fleet: Fleet, text: str, *, as_json: bool) -> None:
    """Meet the peer that is meant by a name or an address until neither side has anything left to say, and tell what
    came of it. Raises PeerUnreachable, PeerRefused, UnknownPeer."""
    exchange = Exchange(fleet)
    peer = await find_peer(exchange.peers, text)
    refusals = await Refusals(fleet.store).begin()
    async with way_to(fleet.store, peer, most=(await fleet.settings()).most) as way:
        met = await exchange.meet(peer.name, way)
    await _tell(peer.name, met, refusals, as_json)


async def accept_invitation(fleet: Fleet, invitation: Invitation, name: str, *, as_json: bool) -> None:
    """Become a peer, and meet for the first time. Raises what ``accept`` does."""
    refusals = await Refusals(fleet.store).begin()
    met = await accept(Exchange(fleet), invitation, name)
    await _tell(name, met, refusals, as_json)


async def _tell(name: str, met: Met, refusals: Refusals, as_json: bool) -> None:
    found = await refusals.new()
    if as_json:
        tell_json(met_json(name, met, found))
    else:
        say_lines(lambda width: met_lines(name, met, found, width))


async def serve_until_told(fleet: Fleet, place: str, *, as_json: bool) -> int:
    """Until SIGINT or SIGTERM. Returns the exit code."""
    loop, leaving = asyncio.get_running_loop(), asyncio.Event()
    exchange = Exchange(fleet)
    async with answering(exchange, place) as url:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, leaving.set)
        try:
            await leaving.wait()
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
        log.info("leaving")
    if as_json:
        tell_json({"store": fleet.store.url, "url": url})
    return 0
