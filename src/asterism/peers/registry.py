"""The registry of peers: the stores that this store syncs with, and what it knows about each.

A peer is the register ``peer/NAME``; registers ``peer/NAME/…`` beside it hold the rest. The id of the peer's store is
bound at the first contact and never changes: a caller with the same token and another id is a different store. The
registry keeps the SHA-256 of tokens, never a token, so dumps and backups contain no secret. Removing a peer leaves an
empty register, because a register that is deleted and written again would restart at its first revision.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from asterism.core.errors import AsterismError
from asterism.core.record import Record, replace
from asterism.core.run.session import ABROAD, ENDED, VIA, Session
from asterism.store.optimistic_update import retried, try_commit
from asterism.store.protocol import PutRegister, PutSession, Register, Store, Write, read_slot
from asterism.store.row_codec import readable
from asterism.store.store_errors import Conflict

PEER_PREFIX = "peer/"
MAX_NAME_LENGTH = 100
FUTURE_TOLERANCE = 60.0
"""How many seconds a time may lie in the future, since clocks are corrected now and then."""

ROLLBACK_KEY = "store/put-back"
"""The key of the register with the time at which a rollback of this store was detected (outgoing.py)."""


class UnknownPeer(AsterismError):
    """There is no peer of this name."""


class PeerExists(AsterismError):
    """The name of a new peer is in use."""


class PeerRefused(AsterismError):
    """A peer sent something that cannot be true, or that it may not send. Nothing of the message was accepted."""


class Peer(Record):
    """``store`` is the id of its store, None until the first sync. ``url`` is its address, None if it cannot be called
    from here; ``pin`` is the fingerprint of its certificate. The inviting side keeps ``invitation_sha256``, the hash of
    the invitation's token, and ``token_sha256``, the hash of the secret that replaced it, None until then. ``heard_at``
    is the time of the last contact, ``skew`` how many seconds the peer's clock was ahead of ours then."""

    name: str
    store: str | None = None
    url: str | None = None
    pin: str | None = None
    token_sha256: str | None = None
    invited_at: float | None = None
    invitation_sha256: str | None = None
    heard_at: float | None = None
    skew: float | None = None


class PeerRegistry:
    """The peers of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @retried
    async def add(self, name: str, **known: Any) -> Peer:
        """Add a peer with what is known of it. Raises PeerExists if the name is in use, AsterismError if it is not a
        valid name."""
        check_peer_name(name)
        new = Peer(name, **known)
        slot = await read_slot(self._store, peer_key(name))
        if slot.value:
            raise PeerExists(f"there is already a peer {name!r}: choose another name, or remove that peer first")
        if new.store is not None:
            await self._check_store_unused(name, new.store)
        await self._store.commit([slot.put(new.to_json())])
        return new

    async def get(self, name: str) -> Peer:
        """Raises UnknownPeer."""
        return (await self._read(name))[0]

    async def all(self) -> list[Peer]:
        """All peers, ordered by name."""
        registers = await self._store.registers(PEER_PREFIX)
        return readable(_peer, [register for register in registers if register.value and register.key.count("/") == 1])

    @retried
    async def remove(self, name: str) -> None:
        """Remove a peer and nothing else; takeover.py also decides about its runs. Raises UnknownPeer."""
        await self._store.commit(await self.removal_writes(name))

    async def removal_writes(self, name: str) -> list[Write]:
        """The writes that remove a peer, and make all others send everything again. Raises UnknownPeer."""
        peer, revision = await self._read(name)
        writes: list[Write] = [PutRegister(peer_key(name), {}, revision), *await self._mark_reset(peer)]
        for register in await self._store.registers(f"{peer_key(name)}/"):
            writes.append(PutRegister(register.key, {}, register.revision))
        for session in await self._store.sessions():
            if is_announced_by(session, name):
                writes.append(PutSession(session.changed(state=ENDED), session.revision))
        return writes + await self.replay_writes(name)

    async def _mark_reset(self, peer: Peer) -> list[Write]:
        """Drop the marks of a peer, so that it is sent everything if it comes back. The turn stays, or older turns
        would look like future ones (outgoing.py)."""
        register = await self._store.register(marks_key(peer.store)) if peer.store is not None else None
        return (
            [PutRegister(register.key, {"turn": register.value.get("turn", 0)}, register.revision)] if register else []
        )

    async def replay_writes(self, gone: str) -> list[Write]:
        """The writes that make all other peers send everything again. Records of theirs may have been ignored because
        only the peer that is ``gone`` was believed about them (record_decisions.py); from now on they are accepted."""
        writes: list[Write] = []
        for peer in await self.all():
            cursor = await self._store.register(cursor_key(peer.name))
            if peer.name != gone and cursor is not None and cursor.value:
                writes.append(PutRegister(cursor.key, {**cursor.value, "number": 0}, cursor.revision))
        return writes

    @retried
    async def bind(self, name: str, store: str) -> Peer:
        """Bind a peer to the id of its store. Raises PeerRefused if it is bound to another store, or another peer is
        bound to this one."""
        peer, revision = await self._read(name)
        if peer.store == store:
            return peer
        if peer.store is not None:
            raise PeerRefused(
                f"peer {name} is store {peer.store[:8]}…, but the caller is store {store[:8]}…: if the store was "
                "created again, remove the peer and invite it again"
            )
        await self._check_store_unused(name, store)
        bound = await self._write(peer, revision, {"store": store})
        await self._clear_removal(store)
        return bound

    async def _clear_removal(self, store: str) -> None:
        """Let a peer that was removed before decide about its own runs again. If it is being removed at the same
        moment, that wins."""
        register = await self._store.register(removed_peer_key(store))
        if register is not None and register.value:
            await try_commit(self._store, [PutRegister(register.key, {}, register.revision)])

    async def record_contact(self, name: str, skew: float) -> Peer:
        """Note that the peer was heard from now. Raises UnknownPeer."""
        return await self.update(name, heard_at=self._store.clock(), skew=round(skew, 3))

    @retried
    async def update(self, name: str, **changes: Any) -> Peer:
        """Change fields of a peer. Raises UnknownPeer."""
        return await self._write(*await self._read(name), changes)

    async def redeem(self, peer: Peer, secret_sha256: str) -> Peer:
        """Replace the invitation of a peer by a secret. Raises Conflict if that happened before, or the peer was
        invited again since ``peer`` was read."""
        known, revision = await self._read(peer.name)
        if known.token_sha256 is not None or known.invitation_sha256 != peer.invitation_sha256:
            raise Conflict(f"register {peer_key(peer.name)}")
        return await self._write(known, revision, {"token_sha256": secret_sha256})

    async def find_by_hash(self, kind: Literal["token_sha256", "invitation_sha256"], sha256: str) -> Peer | None:
        """The peer with this secret, or with this invitation, used or not. It compares with every hash in constant
        time, so that the duration reveals nothing."""
        match = None
        for peer in await self.all():
            known = getattr(peer, kind)
            if known and hmac.compare_digest(known.encode(), sha256.encode()):
                match = peer
        return match

    async def _read(self, name: str) -> tuple[Peer, int]:
        register = await self._store.register(peer_key(name))
        if register is None or not register.value:
            known = ", ".join(peer.name for peer in await self.all()) or "none"
            raise UnknownPeer(f"there is no peer {name!r}; known peers: {known}")
        return _peer(register), register.revision

    async def _write(self, peer: Peer, revision: int, changes: Mapping[str, Any]) -> Peer:
        """Raises Conflict."""
        after = replace(peer, **changes)
        await self._store.commit([PutRegister(peer_key(peer.name), after.to_json(), revision)])
        return after

    async def _check_store_unused(self, name: str, store: str) -> None:
        for other in await self.all():
            if other.store == store and other.name != name:
                raise PeerRefused(f"store {store[:8]}… is already peer {other.name}, not {name}")


def check_peer_name(name: str) -> None:
    """Raises AsterismError for a name that cannot be part of a register key or of an invitation."""
    good = isinstance(name, str) and 0 < len(name) <= MAX_NAME_LENGTH and name.isprintable()
    if not good or "/" in name or "." in name or name != name.strip():
        raise AsterismError(
            f"{name!r} is not a valid peer name: use 1 to {MAX_NAME_LENGTH} printable characters without '/' or '.'"
        )


def session_host(name: str) -> str:
    """The host of sessions that this peer announced."""
    return f"{VIA}{name}"


def is_announced_by(session: Session, name: str) -> bool:
    """Whether this peer announced the session, and still does."""
    return session.state == ABROAD and session.peer == name


def largest_clock_lag(peers: Iterable[Peer]) -> float:
    """How many seconds the slowest clock of these peers is behind ours. A run that has just ended there seems to have
    ended that long ago."""
    return max([0.0, *(-(peer.skew or 0.0) for peer in peers)])


def is_in_future(at: float, now: float) -> bool:
    """Whether a time was written while the store's clock was ahead. It does not say when the event really was."""
    return at > now + FUTURE_TOLERANCE


def peer_key(name: str, part: str = "") -> str:
    """The key of the register of a peer, or of a register beside it."""
    return f"{PEER_PREFIX}{name}/{part}" if part else f"{PEER_PREFIX}{name}"


def cursor_key(name: str) -> str:
    """The key of the register with our position in the feed of a peer."""
    return peer_key(name, "cursor")


def unknown_runs_key(name: str) -> str:
    """The key of the register with the runs that a peer said it does not know, and when it said so first."""
    return peer_key(name, "unknown")


def marks_key(store: str | None) -> str:
    """The key of the register with the marks given to a peer (outgoing.py). It contains the id of the peer's
    store, since the name may change."""
    return f"feed/marks/{store}"


def removed_peer_key(store: str) -> str:
    """The key of the register that says whether the runs of a removed peer are adopted (takeover.py). It contains the
    id of the peer's store."""
    return f"feed/removed/{store}"


def _peer(register: Register) -> Peer:
    name = register.key.removeprefix(PEER_PREFIX)
    return register.read(lambda value: Peer.from_json({**value, "name": name}))
