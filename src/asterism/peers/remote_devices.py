"""The devices of a peer, as it announces them: each store says which are its own, never what it heard of others'.

They are kept as sessions that are abroad, heard of now by our own clock: an announcement has ages and no times. One
that bears the id or the name of another's device is refused, or work and words could be stolen under that name. A name
that one of our own devices had stays ours for as long as we remember it: it may be off for the night. Of a peer that is
none any more nothing is remembered here, since it may have been invited anew under another name.

Of devices that are not announced any more only so many are remembered: a peer may announce others with every message.

What a device says about itself counts only so far: for how long it may be silent is capped by ``peer_timeout``, and its
own rule about the runs it will have is not kept. It is an expression, which would be evaluated here for every run; the
device applies it itself, and declines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from asterism.core.run.run import ASSIGNED
from asterism.core.run.session import ABROAD, ENDED, OPEN, Session
from asterism.fleet import settings
from asterism.peers import peer_notices
from asterism.peers.registry import PeerRegistry, session_host
from asterism.store import row_codec
from asterism.store.protocol import Notice, PutSession, Query, Store, Write, feed_of
from asterism.store.store_errors import Conflict

MAX_DEVICES = 1000
MAX_PROFILE_CHARS = 20_000
MAX_ENDED_SESSIONS = 1000
"""How many devices that a peer does not announce any more are remembered, of each peer."""

NAME_RESERVED_FOR = 3600.0
"""How long a device of a peer that is away keeps its name for itself, in seconds."""

_MAX_SECONDS = 1_000_000_000


async def own_devices(store: Store) -> list[dict[str, Any]]:
    """Our own devices, as we tell a peer."""
    now = store.clock()
    return [
        {
            "id": session.id,
            "device": session.device,
            "joined": max(0.0, now - session.joined_at),
            "can": sorted(session.can),
            "slots": session.slots,
            "backlog": session.backlog,
            "accepts": session.accepts,
            "timeout": session.timeout,
            "profile": dict(session.profile),
            "draining": session.draining,
        }
        for session in await store.sessions()
        if session.state == OPEN and session.reachable(now)
    ][:MAX_DEVICES]


async def store_announcement(store: Store, peer: str, devices: object) -> int:
    """Keep what a peer announced. Returns how much of it was refused."""
    longest = (await settings.read(store)).peer_timeout
    while True:
        known = {session.id: session for session in await store.sessions(ended=True)}
        announced, refused = await _accepted(store, peer, devices, known.values(), longest)
        writes: list[Write] = []
        for session in announced.values():
            revision = known[session.id].revision if session.id in known else None
            writes.append(PutSession(replace(session, revision=(revision or 0) + 1), revision))
        gone = [one for one in known.values() if one.host == session_host(peer) and one.id not in announced]
        for session in gone:
            if session.state == ABROAD and not await _has_own_work(store, session):
                writes.append(PutSession(session.changed(state=ENDED, profile={}), session.revision))
        try:
            await store.commit(writes)
        except Conflict:
            continue
        if forgotten := _surplus(gone):
            await feed_of(store).forget_sessions(forgotten)
        return refused


async def _accepted(
    store: Store, peer: str, devices: object, known: Iterable[Session], longest: float
) -> tuple[dict[str, Session], int]:
    """The devices that are kept, by id, and how many are refused; why they are is told. ``known`` are the sessions of
    the store."""
    hosts = {session_host(one.name) for one in await PeerRegistry(store).all()} - {session_host(peer)}
    others = [one for one in known if _is_own(one) or one.host in hosts]
    found: dict[str, Session] = {}
    refused = 0
    for one in devices[:MAX_DEVICES] if isinstance(devices, list) else ():
        now = store.clock()
        session = _parse_session(one, peer, now, longest)
        if session is None or session.id in found:
            notice = Notice(now, "refused", f"peer {peer} announced what is no device: {str(one)[:80]}")
        elif (whose := _impersonation(session, peer, others, now)) is not None:
            notice = Notice(now, "impostor", whose)
        else:
            found[session.id] = session
            continue
        refused += 1
        await peer_notices.notify_once(store, peer, notice)
    return found, refused


def _surplus(gone: Iterable[Session]) -> list[str]:
    """Those of a peer that are forgotten, if they have ended: each message may announce new ones. The last are kept as
    long as our own, since a run may come back that one of them had, and has to be known as lost."""
    by_age = sorted(gone, key=lambda one: (one.beat_at, one.id), reverse=True)
    return [one.id for one in by_age[MAX_ENDED_SESSIONS:]]


def _parse_session(one: object, peer: str, now: float, longest: float) -> Session | None:
    """As it is kept; None for what cannot be a device."""
    match one:
        case {
            "id": str(name), "device": str(device), "joined": int() | float() as joined, "can": list(can),
            "slots": int(slots), "backlog": int(backlog), "accepts": str() | None as accepts,
            "timeout": int() | float() as timeout, "profile": dict(profile), "draining": bool(draining),
        }:  # fmt: skip
            pass
        case _:
            return None
    good = (
        _is_name(name, 200)
        and _is_name(device, 500)
        and "|" not in device
        and all(_is_name(word, 500) for word in can)
        and 0 <= joined <= 100 * _MAX_SECONDS
        and 0 < timeout <= _MAX_SECONDS
        and 0 <= slots <= 100_000
        and 0 <= backlog <= 100_000
        and (accepts is None or len(accepts) <= 2000)
        and len(can) <= 1000
        and _fits_limit(profile)
    )
    if not good:
        return None
    return Session(
        name,
        device,
        now - joined,
        session_host(peer),
        frozenset(can),
        slots,
        backlog,
        None,
        min(float(timeout), longest),
        profile,
        state=ABROAD,
        draining=draining,
    )


def _is_name(text: object, longest: int) -> bool:
    return isinstance(text, str) and 0 < len(text) <= longest and text.isprintable()


def _fits_limit(profile: Mapping[str, Any]) -> bool:
    try:
        return len(row_codec.to_text(profile)) <= MAX_PROFILE_CHARS
    except (TypeError, ValueError, RecursionError):
        return False


def _is_own(session: Session) -> bool:
    return session.peer is None


def _impersonation(new: Session, peer: str, others: Iterable[Session], now: float) -> str | None:
    """Whom it pretends to be, in words. A device of a peer that is away for long may have moved to another store."""
    for session in others:
        away = now - session.beat_at > session.timeout + NAME_RESERVED_FOR
        has_the_name = _is_own(session) or (session.state == ABROAD and not away)
        if session.id == new.id or (has_the_name and session.device == new.device):
            whose = "a device of this store" if _is_own(session) else f"a device {session.host}"
            return f"peer {peer} announced a device {new.device}, which is {whose}: it gets no work and is not believed"
    return None


async def _has_own_work(store: Store, session: Session) -> bool:
    """Whether it works on something that is ours to judge: that is for its own store, or nobody could say that it goes
    on."""
    owned = await store.find(Query(session=session.id, judged=True)) if session.used else []
    return any(run.status is not ASSIGNED for run in owned)
