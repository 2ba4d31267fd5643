"""Actions of ``asterism peer``: invite, accept, sync, serve and list, with the tables and JSON of their outcome."""

from __future__ import annotations

import logging
import os
import platform
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from rich.text import Text

from asterism.base.durations import format_age
from asterism.base.operating_system import stop_signals
from asterism.base.status_colours import DIM, tone
from asterism.base.text import clean, plural
from asterism.cli.cli_context import Answer, format_size, note, print_json
from asterism.cli.tables import Cell, Column, table_of, wrapped
from asterism.core.json_values import JsonObject
from asterism.fleet.fleet import Fleet
from asterism.peers import peer_client
from asterism.peers.exchange import Exchange, SyncResult
from asterism.peers.invitations import DEFAULT_PORT, Invitation, expires_at, invite, peer_url
from asterism.peers.registry import Peer, PeerRegistry
from asterism.store.protocol import Notice, Store, Usage, feed_of

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
    fleet: Fleet, name: str, url: str, own_name: str, valid: float, store_option: str | None, as_json: bool
) -> Answer:
    """Write an invitation. The answer has the next steps; ``store_option`` is the value of ``--store``, if given."""
    invitation = await invite(fleet.store, name, url=url, own_name=own_name, valid_for=valid)
    line = invitation.line()
    document = {"name": name, "url": invitation.url, "invitation": line, "expires_at": fleet.store.clock() + valid}
    parts = urlsplit(invitation.url)
    options = f"--listen {'127.0.0.1' if parts.hostname in LOOPBACK else '0.0.0.0'}:{parts.port}"
    if store_option is not None and store_option != os.environ.get("ASTERISM_STORE"):
        options += f" --store {shlex.quote(fleet.store.url)}"
    if not as_json:
        note(f"On the other machine, run `asterism peer accept -` within {format_age(valid)} and paste this line.")
    notes = [
        f"Keep it secret. It works once: the first store that uses it becomes peer {name}.",
        f"This store has to listen then, unless it does already: asterism peer serve {options}",
        f"To run work on this machine as well: asterism device join NAME {options}",
    ]
    return Answer(document, line, notes)


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
    async with peer_client.client_for(fleet.store, peer, most=(await fleet.settings()).largest_blob) as client:
        result = await exchange.sync(peer.name, client)
    await _print_result(peer.name, result, refusals, as_json)


async def _print_result(name: str, result: SyncResult, refusals: RefusalLog, as_json: bool) -> None:
    notices = await refusals.new()
    Answer(sync_json(name, result, notices), lambda width: sync_lines(name, result, notices, width)).print(as_json)


async def serve_until_signal(fleet: Fleet, address: str, *, as_json: bool) -> int:
    """Answer peers until SIGINT or SIGTERM. Returns the exit code."""
    from asterism.peers.peer_service import serve_peers

    async with serve_peers(Exchange(fleet), address) as url:
        with stop_signals() as stop:
            await stop.wait()
        log.info("stopping")
    if as_json:
        print_json({"store": fleet.store.url, "url": url})
    return 0


REPORTED_SKEW = 60.0
"""The smallest difference of two clocks that is reported, in seconds."""

REFUSAL_KINDS = frozenset({"refused", "impostor"})
"""The kinds of notices about data of a peer that was refused."""

NOTICES_PER_READ = 1000


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """A peer and its state. ``expires_at`` is when its invitation expires, None if it was used; ``usage`` is what the
    peer stores here."""

    peer: Peer
    state: str
    expires_at: float | None
    usage: Usage = field(default_factory=Usage)

    def to_json(self) -> JsonObject:
        """Without the hashes of secrets."""
        public = {name: value for name, value in self.peer.to_json().items() if not name.endswith("_sha256")}
        stored = {"stored": self.usage._asdict()}
        state = {"name": self.peer.name, "state": self.state}
        return {**state, **public, "invitation_expires_at": self.expires_at, **stored}


async def peer_statuses(fleet: Fleet) -> list[PeerStatus]:
    statuses, peer_timeout = [], (await fleet.settings()).peer_timeout
    for peer in await PeerRegistry(fleet.store).all():
        expiry = await expires_at(fleet.store, peer)
        usage = await feed_of(fleet.store).usage(peer.store) if peer.store is not None else Usage()
        state = _state(peer, expiry, fleet.store.clock(), peer_timeout)
        statuses.append(PeerStatus(peer, state, expiry, usage))
    return statuses


def _state(peer: Peer, expiry: float | None, now: float, peer_timeout: float) -> str:
    """The state in one word."""
    if expiry is not None:
        return "invited" if expiry >= now else "expired"
    if peer.heard_at is None:
        return "accepted"
    return "silent" if now - peer.heard_at > peer_timeout else "met"


_STYLES = {"met": "completed", "invited": "waiting", "accepted": "waiting", "silent": "failed", "expired": "failed"}


def peers_table(statuses: Sequence[PeerStatus], now: float, width: int | None) -> list[Text]:
    def heard(status: PeerStatus) -> Cell:
        at = status.peer.heard_at
        return format_age(now - at) if at is not None else Text("never", DIM)

    return table_of(
        statuses,
        {
            Column("PEER", least=8, name=True): lambda status: status.peer.name,
            Column("STATE"): lambda status: Text(status.state, tone(_STYLES[status.state])),
            Column("HEARD", right=True): heard,
            Column("STORE"): lambda status: (status.peer.store or "")[:8],
            Column("STORED", needed=False): lambda status: _stored(status.usage),
            Column("ADDRESS", least=16, needed=False): lambda status: status.peer.url or "",
            Column("NOTE", least=12, needed=False): lambda status: Text(_note(status, now), DIM),
        },
        width,
    )


def _stored(usage: Usage) -> str:
    if not any(usage):
        return ""
    return f"{plural(usage.runs, 'run')}, {format_size(usage.bytes + usage.blobs)}"


def _note(status: PeerStatus, now: float) -> str:
    if status.expires_at is not None:
        left = status.expires_at - now
        return f"the invitation expires in {format_age(left)}" if left >= 0 else "invite it again"
    return clock_note(status.peer.name, status.peer.skew or 0.0)


def clock_note(name: str, skew: float) -> str:
    """A warning that two clocks differ; empty if they differ by little."""
    if abs(skew) <= REPORTED_SKEW:
        return ""
    return f"the clock of {clean(name)} is {format_age(abs(skew))} {'ahead' if skew > 0 else 'behind'}"


# -- syncs -------------------------------------------------------------------------------------------------------------


def sync_json(peer: str, result: SyncResult, refusals: Sequence[Notice]) -> JsonObject:
    return {
        "peer": peer,
        "sent": result.sent,
        "taken": result.taken,
        "refused": result.refused,
        "refusals": [notice.message for notice in refusals],
        "refused_there": list(result.refused_there),
        "lost": list(result.lost),
        "closed": list(result.closed),
        "put_back": result.put_back,
        "skew": result.skew,
    }


def sync_lines(peer: str, result: SyncResult, refusals: Sequence[Notice], width: int | None) -> Iterator[Text]:
    counts = [f"{plural(result.sent, 'record')} sent", f"{plural(result.taken, 'record')} received"]
    if result.refused:
        counts.append(f"{plural(result.refused, 'record')} refused")
    yield Text(f"Synced with {clean(peer)}: {', '.join(counts)}.")
    for notice in refusals:
        yield from wrapped(f"Refused: {notice.message}", width)
    if result.refused and not refusals:
        yield Text("These refusals were reported before: `asterism runs show RUN` shows the reason.")
    for reason in result.refused_there:
        yield from wrapped(f"Refused by {clean(peer)}: {clean(reason)}", width)
    for lost in result.lost:
        yield from wrapped(f"Lost: {lost}", width)
    for closed in result.closed:
        yield from wrapped(f"Closed: {closed}", width)
    if result.put_back is not None:
        which = "This store" if result.put_back == "here" else f"The store of {clean(peer)}"
        yield from wrapped(f"{which} was restored from an older copy: all records were exchanged again.", width)
    if warning := clock_note(peer, result.skew):
        yield Text(f"{warning[0].upper()}{warning[1:]}.")


class RefusalLog:
    """The notices about refused data that are added from now on."""

    def __init__(self, store: Store) -> None:
        self._store, self._after = store, 0

    async def begin(self) -> RefusalLog:
        await self.new()
        return self

    async def new(self) -> list[Notice]:
        """Those since the last call."""
        refusals = []
        while some := await self._store.notices(after=self._after, limit=NOTICES_PER_READ):
            refusals += [notice for _, notice in some if notice.kind in REFUSAL_KINDS]
            self._after = some[-1][0]
        return refusals
