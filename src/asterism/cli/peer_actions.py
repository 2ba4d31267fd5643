"""Actions of ``asterism peer``: invite, accept, sync and serve, and print what came of them."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import shlex
import signal
from urllib.parse import urlsplit

import click

from asterism.base.durations import format_age
from asterism.cli.cli_context import note, print_json
from asterism.cli.peer_tables import RefusalLog, sync_json, sync_lines
from asterism.cli.screen import print_lines
from asterism.fleet.fleet import Fleet
from asterism.peers import peer_client
from asterism.peers.exchange import Exchange, SyncResult
from asterism.peers.invitations import DEFAULT_PORT, Invitation, invite, peer_url
from asterism.peers.peer_service import serve_peers

log = logging.getLogger("asterism.peers")

LOOPBACK = ("127.0.0.1", "localhost")
"""The hosts of an address that only this machine can reach."""


def local_url(url: str | None) -> str:
    """The address at which other machines reach this one, by default made from its host name. Raises
    InvalidInvitation."""
    return peer_url(url or f"https://{platform.node() or 'localhost'}:{DEFAULT_PORT}")


def name_from_url(url: str) -> str:
    """The name of a store, made from the host in its address: ``kitchen-pc`` for kitchen-pc.local. An IP address is
    not a name; then it is the host name of this machine."""
    host = urlsplit(url).hostname or ""
    if host.replace(".", "").isdigit() or ":" in host or host == "localhost":
        host = platform.node()
    return host.partition(".")[0] or "peer"


async def invite_peer(
    fleet: Fleet, name: str, url: str, own_name: str, valid: float, *, as_json: bool, store_option: str | None
) -> None:
    """Write an invitation, and print it with the next steps. ``store_option`` is the value of ``--store``, if given."""
    invitation = await invite(fleet.store, name, url=url, own_name=own_name, valid_for=valid)
    line = invitation.line()
    if as_json:
        expires_at = fleet.store.clock() + valid
        print_json({"name": name, "url": invitation.url, "invitation": line, "expires_at": expires_at})
        return
    note(f"On the other machine, run `asterism peer accept -` within {format_age(valid)} and paste this line.")
    click.echo(line)
    note(f"Keep it secret. It works once: the first store that uses it becomes peer {name}.")
    parts = urlsplit(invitation.url)
    options = f"--listen {'127.0.0.1' if parts.hostname in LOOPBACK else '0.0.0.0'}:{parts.port}"
    if store_option is not None and store_option != os.environ.get("ASTERISM_STORE"):
        options += f" --store {shlex.quote(fleet.store.url)}"
    note(f"This store has to listen then: asterism peer serve {options}")
    note(f"To run work on this machine as well: asterism device join NAME {options}")


async def accept_invitation(fleet: Fleet, invitation: Invitation, name: str, *, as_json: bool) -> None:
    """Add the inviting store as a peer, and sync for the first time. Raises what the function of the same name in
    peers/peer_client.py raises."""
    refusals = await RefusalLog(fleet.store).begin()
    result = await peer_client.accept_invitation(Exchange(fleet), invitation, name)
    await _print_result(name, result, refusals, as_json)


async def sync_with(fleet: Fleet, name_or_url: str, *, as_json: bool) -> None:
    """Sync with a peer once. Raises PeerUnreachable, PeerRefused, UnknownPeer."""
    exchange = Exchange(fleet)
    peer = await peer_client.find_peer(exchange.peers, name_or_url)
    refusals = await RefusalLog(fleet.store).begin()
    async with peer_client.client_for(fleet.store, peer, most=(await fleet.settings()).most) as client:
        result = await exchange.sync(peer.name, client)
    await _print_result(peer.name, result, refusals, as_json)


async def _print_result(name: str, result: SyncResult, refusals: RefusalLog, as_json: bool) -> None:
    found = await refusals.new()
    if as_json:
        print_json(sync_json(name, result, found))
    else:
        print_lines(lambda width: sync_lines(name, result, found, width))


async def serve_until_signal(fleet: Fleet, address: str, *, as_json: bool) -> int:
    """Answer peers until SIGINT or SIGTERM. Returns the exit code."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    async with serve_peers(Exchange(fleet), address) as url:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        try:
            await stop.wait()
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
        log.info("stopping")
    if as_json:
        print_json({"store": fleet.store.url, "url": url})
    return 0
