"""The peers of a store: whom it talks to, and what it knows of them.

A peer is a register, ``peer/NAME``. Its store's id is bound at the first contact and never changes: who comes with
the same token and another id is somebody else. No token is kept here, only what it is recognised by, so that dumps
and backups give none away. A peer that is removed leaves an empty register behind, since a register that is removed
and written again would begin at its first revision.
"""

from __future__ import annotations

import contextlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from asterism.core.errors import AsterismError
from asterism.core.run.session import ABROAD, ENDED, VIA, Session
from asterism.store.protocol import PutRegister, PutSession, Register, Store, Write
from asterism.store.store_errors import Conflict

PEER_PREFIX = "peer/"
MAX_NAME_LENGTH = 100
CLOCK_TOLERANCE = 60.0
"""By how many seconds a time may be in the future, since clocks are corrected now and then."""

ROLLBACK_KEY = "store/put-back"
"""The key of the register that says when it was noticed that this store was put back from a copy."""


class UnknownPeer(AsterismError):
    """No peer of this name is known."""


class PeerExists(AsterismError):
    """A peer of this name is there already."""


class PeerRefused(AsterismError):
    """A peer said something that cannot be true, or that it may not say. Nothing of the message was taken."""


@dataclass(frozen=True, slots=True)
class Peer:
    """``store`` is the id of its store, None until the first meeting. ``url`` is where it can be called, ``pin`` the
    fingerprint of its certificate. ``invitation_sha256`` and ``token_sha256`` are kept by the side that invited: what
    the invitation is recognised by, and the secret for which it was exchanged, None until then. ``heard_at`` is when it
    was last heard of, ``skew`` by how many seconds its clock was ahead of ours then."""

    name: str
    store: str | None = None
    url: str | None = None
    pin: str | None = None
    token_sha256: str | None = None
    invited_at: float | None = None
    invitation_sha256: str | None = None
    heard_at: float | None = None
    skew: float | None = None

    def to_json(self) -> dict[str, Any]:
        """As it is kept, without its name."""
        data = asdict(self)
        del data["name"]
        return data


_FIELDS = frozenset(field.name for field in fields(Peer)) - {"name"}


class PeerRegistry:
    """Those of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def add(
        self,
        name: str,
        *,
        url: str | None = None,
        pin: str | None = None,
        token_sha256: str | None = None,
        invited_at: float | None = None,
        invitation_sha256: str | None = None,
        store: str | None = None,
    ) -> Peer:
        """Raises PeerKnown if the name is in use, AsterismError if it is none."""
        check_peer_name(name)
        new = Peer(name, store, url, pin, token_sha256, invited_at, invitation_sha256)
        while True:
            found = await self._store.register(peer_key(name))
            if found is not None and found.value:
                raise PeerExists(f"a peer {name!r} is there already; choose another name, or remove that one first")
            if store is not None:
                await self._check_store_unused(name, store)
            try:
                await self._store.commit([PutRegister(peer_key(name), new.to_json(), found and found.revision)])
            except Conflict:
                continue
            return new

    async def get(self, name: str) -> Peer:
        """Raises UnknownPeer."""
        return (await self._read(name))[0]

    async def all(self) -> list[Peer]:
        """By name."""
        found = await self._store.registers(PEER_PREFIX)
        return [_peer(one) for one in found if one.value and one.key.count("/") == 1]

    async def remove(self, name: str) -> None:
        """Talk to it no more, and nothing else: what becomes of its runs is said in removal.py. Raises UnknownPeer."""
        while True:
            try:
                await self._store.commit(await self.removal_writes(name))
            except Conflict:
                continue
            return

    async def removal_writes(self, name: str) -> list[Write]:
        """What it takes to transport to it no more; the others tell everything again. Raises UnknownPeer."""
        peer, revision = await self._read(name)
        writes: list[Write] = [PutRegister(peer_key(name), {}, revision), *await self._mark_reset(peer)]
        for kept in await self._store.registers(f"{peer_key(name)}/"):
            writes.append(PutRegister(kept.key, {}, kept.revision))
        for session in await self._store.sessions():
            if is_announced_by(session, name):
                writes.append(PutSession(session.changed(state=ENDED), session.revision))
        return writes + await self.replay_writes(name)

    async def _mark_reset(self, peer: Peer) -> list[Write]:
        """What it was told is told anew if it comes back. Turns go on, so that nothing of before seems to be to come
        (marking.py)."""
        found = await self._store.register(marks_key(peer.store)) if peer.store is not None else None
        return [PutRegister(found.key, {"turn": found.value.get("turn", 0)}, found.revision)] if found else []

    async def replay_writes(self, gone: str) -> list[Write]:
        """What makes all others tell everything again. They may have said what was passed over, because it was for the
        peer to say that is gone (trusting.py); from now on they are believed."""
        writes: list[Write] = []
        for peer in await self.all():
            cursor = await self._store.register(cursor_key(peer.name))
            if peer.name != gone and cursor is not None and cursor.value:
                writes.append(PutRegister(cursor.key, {**cursor.value, "number": 0}, cursor.revision))
        return writes

    async def bind(self, name: str, store: str) -> Peer:
        """It says that its store is this one. Raises PeerRefused if it is bound to another, or another peer to this
        one."""
        while True:
            peer, revision = await self._read(name)
            if peer.store == store:
                return peer
            if peer.store is not None:
                raise PeerRefused(
                    f"peer {name} is store {peer.store[:8]}…, and now says it is {store[:8]}…: if it was made anew, "
                    "remove the peer and invite it again"
                )
            await self._check_store_unused(name, store)
            if await self._write(peer, revision, {"store": store}):
                await self._clear_removal(store)

    async def _clear_removal(self, store: str) -> None:
        """It judges its own runs again, if it was removed before."""
        found = await self._store.register(removed_peer_key(store))
        if found is not None and found.value:
            with contextlib.suppress(Conflict):  # it was removed again
                await self._store.commit([PutRegister(found.key, {}, found.revision)])

    async def record_contact(self, name: str, skew: float) -> Peer:
        """It was heard of, now."""
        return await self.update(name, heard_at=self._store.clock(), skew=round(skew, 3))

    async def update(self, name: str, **changes: Any) -> Peer:
        """Change what is known of a peer: url, pin, token_sha256 and so on. Raises UnknownPeer."""
        while True:
            peer, revision = await self._read(name)
            if after := await self._write(peer, revision, changes):
                return after

    async def redeem(self, peer: Peer, token_sha256: str) -> Peer | None:
        """Exchange its invitation for a secret, as long as it has none and was not invited anew; None if it was."""
        known, revision = await self._read(peer.name)
        if known.token_sha256 is not None or known.invitation_sha256 != peer.invitation_sha256:
            return None
        return await self._write(known, revision, {"token_sha256": token_sha256})

    async def find_by_token_hash(self, sha256: str) -> Peer | None:
        """Whose secret it is."""
        return _peer_with_hash(((peer, peer.token_sha256) for peer in await self.all()), sha256)

    async def find_by_invitation_hash(self, sha256: str) -> Peer | None:
        """Whose invitation it is, or was."""
        return _peer_with_hash(((peer, peer.invitation_sha256) for peer in await self.all()), sha256)

    async def _read(self, name: str) -> tuple[Peer, int]:
        found = await self._store.register(peer_key(name))
        if found is None or not found.value:
            known = ", ".join(one.name for one in await self.all()) or "none"
            raise UnknownPeer(f"there is no peer {name!r}; known are: {known}")
        return _peer(found), found.revision

    async def _write(self, peer: Peer, revision: int, changes: Mapping[str, Any]) -> Peer | None:
        after = Peer(peer.name, **{**peer.to_json(), **changes})
        try:
            await self._store.commit([PutRegister(peer_key(peer.name), after.to_json(), revision)])
        except Conflict:
            return None
        return after

    async def _check_store_unused(self, name: str, store: str) -> None:
        for other in await self.all():
            if other.store == store and other.name != name:
                raise PeerRefused(f"store {store[:8]}… is known as peer {other.name} already, not as {name}")


def _peer_with_hash(known: Iterable[tuple[Peer, str | None]], sha256: str) -> Peer | None:
    """Every one is compared, in a time that does not tell how much of it was right."""
    given, found = sha256.encode(), None
    for peer, one in known:
        if one and hmac.compare_digest(one.encode(), given):
            found = peer
    return found


def check_peer_name(name: str) -> None:
    """Names stand in keys of registers and on command lines."""
    good = isinstance(name, str) and 0 < len(name) <= MAX_NAME_LENGTH and name.isprintable()
    if not good or "/" in name or "." in name or name != name.strip():
        raise AsterismError(
            f"the name of a peer is 1 to {MAX_NAME_LENGTH} printable characters, without / or a full stop, not {name!r}"
        )


def session_host(name: str) -> str:
    """What stands as the host of a session that a peer announced."""
    return f"{VIA}{name}"


def is_announced_by(session: Session, name: str) -> bool:
    """Whether it is a session that this peer announced, and still does."""
    return session.state == ABROAD and session.peer == name


def largest_clock_lag(peers: Iterable[Peer]) -> float:
    """By how many seconds the slowest clock of these is behind ours: what ended there just now seems to have ended so
    long ago."""
    return max([0.0, *(-(peer.skew or 0.0) for peer in peers)])


def is_in_future(at: float, now: float) -> bool:
    """Whether it was written while the store's clock was ahead. It does not say when somebody was heard of, and would
    not for as long as the clock was ahead."""
    return at > now + CLOCK_TOLERANCE


def peer_key(name: str, what: str = "") -> str:
    """The key of the register of a peer, or of the one beside it that keeps ``what`` of it."""
    return f"{PEER_PREFIX}{name}/{what}" if what else f"{PEER_PREFIX}{name}"


def cursor_key(name: str) -> str:
    """The key of the register that says how far we have come in the feed of a peer."""
    return peer_key(name, "cursor")


def unknown_runs_key(name: str) -> str:
    """The key of the register that says of which runs a peer has said that it does not know them, and when first."""
    return peer_key(name, "unknown")


def marks_key(store: str | None) -> str:
    """The key of the register with the marks that a peer was given (marking.py). It has the id of the peer's store: its
    name may change."""
    return f"feed/marks/{store}"


def removed_peer_key(store: str) -> str:
    """The key of the register that says what becomes of the runs of a peer that was removed (removal.py). It has the id
    of the peer's store."""
    return f"feed/removed/{store}"


def _peer(found: Register) -> Peer:
    known = {name: value for name, value in found.value.items() if name in _FIELDS}
    return Peer(found.key.removeprefix(PEER_PREFIX), **known)
