"""Pairing of machines: a one-time code is exchanged for a lasting secret, once.

A device is enrolled at a gateway (gateway/enrolment.py), a store becomes a peer (peers/invitations.py), and a person
logs in to a server (api/credentials.py) in the same way. One side makes a *code*, random and short-lived, and keeps
only its SHA-256. The other side shows the code once, with the *proof* of a secret that it made itself: the public half
of a key, or the hash of the secret. From then on the secret counts, and only its owner has ever seen it.

A repeated request with the same proof gets the same answer, since the first answer may have been lost; one with another
proof is refused. So a code that was used is worthless, wherever a copy of it was left.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from typing import Any, NamedTuple

from asterism.core.errors import AsterismError
from asterism.store.protocol import PutRegister, Store, Write

SECRET_BYTES = 32
"""How many random bytes a secret has, and a code that nobody has to type."""

TYPED_BYTES = 24
"""How many random bytes a code has that is copied by hand."""

KEPT_FOR = 86_400.0
"""How many seconds an expired code is remembered, so that its refusal can say that it has expired."""


def new_secret(size: int = SECRET_BYTES) -> str:
    return secrets.token_urlsafe(size)


def secret_hash(text: str) -> str:
    """What is kept in place of a code or a secret."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


class Refusal(NamedTuple):
    """How a code is refused: the error, what the code is called, and how to get another one."""

    error: type[AsterismError]
    what: str
    advice: str


def is_first_use(proof: str | None, used_by: str | None, expired: bool, refusal: Refusal) -> bool:
    """Whether a code is shown for the first time; False if the same ``proof`` repeats its request. ``used_by`` is the
    proof that was shown before. Raises the error of ``refusal``."""
    if used_by is not None and used_by != proof:
        raise refusal.error(f"{refusal.what} was already used: if not by you, {refusal.advice}")
    if used_by is None and expired:
        raise refusal.error(f"{refusal.what} has expired: {refusal.advice}")
    return used_by is None


async def code_writes(store: Store, prefix: str, code: str, value: Mapping[str, Any]) -> list[Write]:
    """The writes that keep a code in the register ``prefix`` and its hash, and drop those that are long over. ``value``
    has the end of its time, ``until``."""
    now = store.clock()
    writes: list[Write] = [PutRegister(f"{prefix}{secret_hash(code)}", dict(value), None)]
    for old in await store.registers(prefix):
        if abs(old.value["until"] - now) > KEPT_FOR:
            writes.append(PutRegister(old.key, None, old.revision))
    return writes
