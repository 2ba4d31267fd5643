"""Devices of a peer, as it announces them: stored as sessions that can be given work.

Each store announces its own devices, and relays those that other peers have announced to it, so that a run travels
along a line of peers: the store that decides about it assigns it to the far device, and the stores between them pass on
the records. A relayed device has the path of its announcement, the ids of the stores that it went through. A store
neither announces a device to a store of its path, nor accepts one whose path has the store itself or another peer, from
which it hears without a detour; so no announcement circles, and a path has a longest length.

They are stored as sessions in the state ``abroad`` with the time of our own
clock, since an announcement contains ages and no times. An announcement with the id or the name of another store's
device is refused, or work could be stolen under that name. The name of one of our own devices stays ours for as long as
we remember the device: it may be off for the night. Sessions of a peer that was removed reserve nothing, since that
peer may have been invited again under another name.

Only so many devices that are no longer announced are remembered, since a peer may announce new ones with every message.

A peer's data about a device counts within limits: ``peer_timeout`` caps its timeout, and its rule about the runs it
accepts is dropped. The rule is an expression that would be evaluated here for every run; the device applies it itself,
and declines. What a peer says about a device that it relays counts as if the device were its own: it could do the work
itself and say the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from asterism.core.json_values import JsonObject
from asterism.core.record import replace
from asterism.core.run.run import ASSIGNED
from asterism.core.run.session import ABROAD, ENDED, OPEN, PATH, Session
from asterism.fleet import settings
from asterism.peers import peer_notices
from asterism.peers.messages import MAX_DEVICES
from asterism.peers.registry import Peer, PeerRegistry, session_host
from asterism.store import row_codec
from asterism.store.optimistic_update import retry_on_conflict
from asterism.store.protocol import Notice, PutSession, Query, Store, Write, feed_of

MAX_PROFILE_CHARS = 20_000
MAX_ENDED_SESSIONS = 1000
"""How many devices that a peer no longer announces are remembered, for each peer."""

NAME_RESERVED_FOR = 3600.0
"""For how many seconds an absent device of a peer reserves its name."""

MAX_PATH = 8
"""How many stores a path has at most."""

_MAX_SECONDS = 1_000_000_000
_ANNOUNCED = ("id", "device", "slots", "backlog", "accepts", "timeout", "draining")


async def announced_devices(store: Store, peer: Peer) -> list[JsonObject]:
    """The devices that are announced to a peer: those of this store, and those of other peers that it may reach."""
    now = store.clock()
    stores = {session_host(other.name): other.store for other in await PeerRegistry(store).all()}
    announced: list[JsonObject] = []
    for session in sorted(await store.sessions(), key=lambda session: session.state != OPEN):
        way = stores.get(session.host)
        path = [] if session.state == OPEN else [*session.path, way]
        if not session.reachable(now) or None in path or peer.store in path or len(path) > MAX_PATH:
            continue
        profile = {name: value for name, value in session.profile.items() if name != PATH}
        more = {"joined": max(0.0, now - session.joined_at), "can": sorted(session.can), "profile": profile}
        announced.append(
            {name: getattr(session, name) for name in _ANNOUNCED} | more | ({"path": path} if path else {})
        )
    return announced[:MAX_DEVICES]


async def store_announcement(store: Store, sender: Peer, devices: object) -> int:
    """Store the devices that a peer announced. Returns how many were refused."""
    max_timeout, peer = (await settings.read(store)).peer_timeout, sender.name

    async def attempt() -> tuple[int, list[Session]]:
        known = {session.id: session for session in await store.sessions(ended=True)}
        announced, refused = await _accepted(store, sender, devices, known.values(), max_timeout)
        writes: list[Write] = []
        for session in announced.values():
            revision = known[session.id].revision if session.id in known else None
            writes.append(PutSession(replace(session, revision=(revision or 0) + 1), revision))
        gone = [
            session for session in known.values() if session.host == session_host(peer) and session.id not in announced
        ]
        for session in gone:
            if session.state == ABROAD and not await _has_own_work(store, session):
                profile = {PATH: [*session.path]} if session.path else {}  # its own store may announce it from now on
                writes.append(PutSession(session.changed(state=ENDED, profile=profile), session.revision))
        await store.commit(writes)
        return refused, gone

    refused, gone = await retry_on_conflict(attempt)
    if surplus := _surplus(gone):
        await feed_of(store).forget_sessions(surplus)
    return refused


async def _accepted(
    store: Store, sender: Peer, devices: object, known: Iterable[Session], max_timeout: float
) -> tuple[dict[str, Session], int]:
    """The valid devices by id, and the number of refused ones, about which notices are given. ``known`` are the
    sessions of the store."""
    peer, peers = sender.name, await PeerRegistry(store).all()
    direct = {other.store for other in peers}
    hosts = {session_host(other.name) for other in peers} - {session_host(peer)}
    others = [
        session
        for session in known
        if session.peer is None or (session.host in hosts and not _may_come_from(session, sender))
    ]
    accepted: dict[str, Session] = {}
    refused = 0
    for device in devices[:MAX_DEVICES] if isinstance(devices, list) else ():
        now = store.clock()
        session = _parse_session(device, peer, now, max_timeout)
        if session is None or session.id in accepted:
            notice = Notice(now, "refused", f"peer {peer} announced an invalid device: {str(device)[:80]}")
        elif session.path and (direct & {*session.path} or _impersonation(session, peer, others, now) is not None):
            continue  # its own store is a peer, or another peer relays it, or its name is taken here
        elif (impersonation := _impersonation(session, peer, others, now)) is not None:
            notice = Notice(now, "impostor", impersonation)
        else:
            accepted[session.id] = session
            continue
        refused += 1
        await peer_notices.notify_once(store, peer, notice)
    return accepted, refused


def _may_come_from(session: Session, sender: Peer) -> bool:
    """Whether another peer may announce a device that was relayed: its own store, or anybody once nobody relays it."""
    return bool(session.path) and (session.state == ENDED or session.path[0] == sender.store)


def _surplus(gone: Iterable[Session]) -> list[str]:
    """The ended sessions of a peer to forget. The latest are kept as long as our own, because a run of one of them may
    come back and has to be recognised as lost."""
    newest_first = sorted(gone, key=lambda session: (session.beat_at, session.id), reverse=True)
    return [session.id for session in newest_first[MAX_ENDED_SESSIONS:]]


def _parse_session(announced: Any, peer: str, now: float, max_timeout: float) -> Session | None:
    """None if it is not a valid device."""
    match announced:
        case {
            "id": str(name), "device": str(device), "joined": int() | float() as joined, "can": list(can),
            "slots": int(slots), "backlog": int(backlog), "accepts": str() | None as accepts,
            "timeout": int() | float() as timeout, "profile": dict(profile), "draining": bool(draining),
        }:  # fmt: skip
            pass
        case _:
            return None
    path = announced.get("path", [])
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
        and isinstance(path, list)
        and len(path) <= MAX_PATH
        and all(_is_name(store, 200) for store in path)
        and _fits_limit(profile)
    )
    if not good:
        return None
    return Session(
        name,
        device,
        joined_at=now - joined,
        host=session_host(peer),
        can=frozenset(can),
        slots=slots,
        backlog=backlog,
        timeout=min(float(timeout), max_timeout),
        profile={name: value for name, value in profile.items() if name != PATH} | ({PATH: path} if path else {}),
        state=ABROAD,
        draining=draining,
    )


def _is_name(text: object, max_length: int) -> bool:
    return isinstance(text, str) and 0 < len(text) <= max_length and text.isprintable()


def _fits_limit(profile: Mapping[str, Any]) -> bool:
    try:
        return len(row_codec.to_text(profile)) <= MAX_PROFILE_CHARS
    except (TypeError, ValueError, RecursionError):
        return False


def _impersonation(new: Session, peer: str, others: Iterable[Session], now: float) -> str | None:
    """A sentence about the other store's device whose id or name an announced device has; None otherwise. A
    device of a peer that is absent for long may have moved to another store."""
    for session in others:
        absent = now - session.beat_at > session.timeout + NAME_RESERVED_FOR
        has_name = session.peer is None or (session.state == ABROAD and not absent)
        if session.id == new.id or (has_name and session.device == new.device):
            owner = "this store" if session.peer is None else f"peer {session.peer}"
            return f"peer {peer} announced device {new.device}, which belongs to {owner}: the announcement is ignored"
    return None


async def _has_own_work(store: Store, session: Session) -> bool:
    """Whether it works on a run that is ours to decide. Then only its own store can say that the work continues."""
    owned = await store.find(Query(session=session.id, judged=True)) if session.used else []
    return any(run.status is not ASSIGNED for run in owned)
