"""Peers and meetings, for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.text import Text

from asterism.base.durations import format_age
from asterism.base.text import clean, plural
from asterism.cli.short_spans import size
from asterism.cli.text_output import wrapped
from asterism.cli.text_table import Cell, Column, table
from asterism.fleet.fleet import Fleet
from asterism.peers.exchange import Met
from asterism.peers.invitations import valid_until
from asterism.peers.registry import Peer, Peers
from asterism.report.status_style import DIM, tone
from asterism.store.protocol import Notice, Store, Usage, feed_of

NOTICEABLE = 60.0
"""Clocks that differ by more than that are told, in seconds."""

REFUSALS = frozenset({"refused", "impostor"})
"""The kinds of notices that say what of a peer's words was not believed."""

AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Known:
    """A peer and what becomes of it. ``until`` is when its invitation runs out, None if it was used; ``used`` is what
    it stores here."""

    peer: Peer
    state: str
    until: float | None
    used: Usage = field(default_factory=Usage)

    def to_json(self) -> dict[str, Any]:
        """Without what is for the server alone."""
        told = {name: value for name, value in self.peer.to_json().items() if not name.endswith("_sha256")}
        stored = {"stored": self.used._asdict()}
        return {"name": self.peer.name, "state": self.state, **told, "invitation_expires_at": self.until, **stored}


async def known_peers(fleet: Fleet) -> list[Known]:
    found, patience = [], (await fleet.settings()).peer_timeout
    for peer in await Peers(fleet.store).all():
        until = await valid_until(fleet.store, peer)
        used = await feed_of(fleet.store).usage(peer.store) if peer.store is not None else Usage()
        found.append(Known(peer, _state(peer, until, fleet.store.clock(), patience), until, used))
    return found


def _state(peer: Peer, until: float | None, now: float, patience: float) -> str:
    """In one word."""
    if until is not None:
        return "invited" if until >= now else "expired"
    if peer.heard_at is None:
        return "accepted"
    return "silent" if now - peer.heard_at > patience else "met"


_LOOKS = {"met": "completed", "invited": "waiting", "accepted": "waiting", "silent": "failed", "expired": "failed"}
_COLUMNS = (
    Column("PEER", least=8),
    Column("STATE"),
    Column("HEARD", right=True),
    Column("STORE"),
    Column("STORED", needed=False),
    Column("ADDRESS", least=16, needed=False),
    Column("NOTE", least=12, needed=False),
)


def peers_table(found: Sequence[Known], now: float, width: int | None) -> list[Text]:
    rows: list[list[Cell]] = [
        [
            clean(one.peer.name),
            Text(one.state, tone(_LOOKS[one.state])),
            format_age(now - one.peer.heard_at) if one.peer.heard_at is not None else Text("never", DIM),
            (one.peer.store or "")[:8],
            _stored(one.used),
            clean(one.peer.url or ""),
            Text(_note(one, now), DIM),
        ]
        for one in found
    ]
    return table(_COLUMNS, rows, width)


def _stored(used: Usage) -> str:
    if not any(used):
        return ""
    return f"{plural(used.runs, 'run')}, {size(used.bytes + used.blobs)}"


def _note(one: Known, now: float) -> str:
    if one.until is not None:
        left = one.until - now
        return f"the invitation holds for {format_age(left)}" if left >= 0 else "invite it anew"
    return clock_note(one.peer.name, one.peer.skew or 0.0)


def clock_note(name: str, skew: float) -> str:
    """That two clocks differ; nothing, if they do not by much."""
    if abs(skew) <= NOTICEABLE:
        return ""
    return f"the clock of {clean(name)} is {format_age(abs(skew))} {'ahead' if skew > 0 else 'behind'}"


# -- meetings ----------------------------------------------------------------------------------------------------------


def met_json(peer: str, met: Met, refusals: Sequence[Notice]) -> dict[str, Any]:
    return {
        "peer": peer,
        "sent": met.sent,
        "taken": met.taken,
        "refused": met.refused,
        "refusals": [notice.message for notice in refusals],
        "refused_there": list(met.refused_there),
        "lost": list(met.lost),
        "closed": list(met.closed),
        "put_back": met.put_back,
        "skew": met.skew,
    }


def met_lines(peer: str, met: Met, refusals: Sequence[Notice], width: int | None) -> Iterator[Text]:
    counts = [f"{plural(met.sent, 'record')} sent", f"{plural(met.taken, 'record')} taken"]
    if met.refused:
        counts.append(f"{plural(met.refused, 'record')} refused")
    yield Text(f"Met {clean(peer)}: {', '.join(counts)}.")
    for notice in refusals:
        yield from wrapped(f"Refused: {notice.message}", width)
    if met.refused and not refusals:
        yield Text("What was refused was told before: `asterism runs show RUN` has the reason.")
    for reason in met.refused_there:
        yield from wrapped(f"Refused by {clean(peer)}: {clean(reason)}", width)
    for lost in met.lost:
        yield from wrapped(f"Lost: {lost}", width)
    for closed in met.closed:
        yield from wrapped(f"Closed: {closed}", width)
    if met.put_back is not None:
        whose = "This store" if met.put_back == "here" else f"The store of {clean(peer)}"
        yield from wrapped(f"{whose} was put back from an older copy of itself: everything was exchanged anew.", width)
    if told := clock_note(peer, met.skew):
        yield Text(f"{told[0].upper()}{told[1:]}.")


class Refusals:
    """What is refused from now on, in the words of the notices."""

    def __init__(self, store: Store) -> None:
        self._store, self._after = store, 0

    async def begin(self) -> Refusals:
        await self.new()
        return self

    async def new(self) -> list[Notice]:
        """Since the last time."""
        found = []
        while some := await self._store.notices(after=self._after, limit=AT_ONCE):
            found += [notice for _, notice in some if notice.kind in REFUSALS]
            self._after = some[-1][0]
        return found
