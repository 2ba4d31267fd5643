"""Credentials of the server: tokens and browser sessions, hashed at rest, and one-time codes to log in with.

A token is ``ast_ID_SECRET``. The store has, under the id, the SHA-256 of the whole token, who it is for, its scopes and
when it expires. The secret has 256 random bits, so a plain hash is enough. A browser session is a token of its own in a
cookie, made when a one-time code is redeemed. A code is removed by the commit that makes the session, so of two
requests with one code only one succeeds.

Browsers send a cookie to every port of its host, so that another server on this machine may get it, and with every
request, so that a page on another origin may use it. A session therefore has a second secret, the *page key*. The page
keeps it in the storage of its origin, which has a port, and sends it with every request. Neither counts without the
other, and a session is no token.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from asterism.core.errors import AsterismError
from asterism.core.record import Record, repr_without
from asterism.fleet.one_time_code import TYPED_BYTES, code_writes, new_secret, secret_hash
from asterism.fleet.policy.rule_patterns import compile_pattern
from asterism.store.optimistic_update import retry_on_conflict
from asterism.store.protocol import CREDENTIAL_KEYS, PutRegister, Register, Store, Write
from asterism.store.row_codec import readable

PREFIX = "ast_"
CREDENTIALS = CREDENTIAL_KEYS
LOGINS = "login/"

TOKEN, SESSION = "token", "session"
"""The kinds of credentials: for programs, and for browsers."""

TOKEN_LIFETIME = 90 * 86_400.0
SESSION_LIFETIME = 7 * 86_400.0
LOGIN_LIFETIME = 30 * 86_400.0
CODE_LIFETIME = 600.0
"""How long a token, a browser session, the token of ``asterism login`` and an unused one-time code are valid, in
seconds."""

KEPT_AFTER_END = 30 * 86_400.0
"""How long an expired or revoked credential stays in the list, in seconds."""

MAX_NAME = 100
_TOKEN = re.compile(r"ast_([a-z2-7]{10})_([A-Za-z0-9_-]{43})")
_LETTERS = "abcdefghijklmnopqrstuvwxyz234567"


class UnknownCredential(AsterismError):
    """No credential has this id."""


class LoginRefused(AsterismError):
    """A one-time code was used, has expired, or never existed."""


class Credential(Record, omit_defaults=True, forbid_unknown_fields=True):
    """Who may do what. ``name`` is who acts, in stories and edits. ``kind`` is ``token`` or ``session``. ``groups`` are
    those that a proxy names."""

    id: str
    name: str
    sha256: str
    kind: str
    created_at: float
    created_by: str
    expires_at: float
    scopes: frozenset[str]
    revoked_at: float | None = None
    page_sha256: str | None = None
    groups: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        return repr_without(self, "sha256", "page_sha256")

    def state(self, now: float) -> str:
        """``active``, ``expired`` or ``revoked``."""
        if self.revoked_at is not None:
            return "revoked"
        return "active" if now < self.expires_at else "expired"

    @property
    def shown(self) -> str:
        """The name with the id: several credentials may have one name, and each has limits of its own."""
        return f"{self.name} ({self.id})"

    def allows(self, need: str) -> bool:
        return allows(self.scopes, need)

    def check(self, needs: str, names: Mapping[str, Any]) -> None:
        """Raise ScopeMissing if it does not allow what needs this; ``names`` of the request stand there in braces."""
        need = needs.format(**names)
        if not self.allows(need):
            has = ", ".join(sorted(self.scopes))
            raise ScopeMissing(f"this needs the scope {shown_need(need)}; {self.name} has {has}")

    def has_page_key(self, key: str) -> bool:
        """Whether this is the session of a page that has this key."""
        known = self.page_sha256 if self.kind == SESSION else None
        return known is not None and hmac.compare_digest(known, secret_hash(key))


class NewToken(Record):
    """A credential with its token, and for a session with the key of its page, which exist only here."""

    credential: Credential
    token: str
    page_key: str | None = None

    def __repr__(self) -> str:
        return repr_without(self, "token", "page_key")


class Credentials:
    """The credentials in a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def create(
        self,
        name: str,
        scopes: Iterable[str],
        *,
        by: str,
        valid_for: float = TOKEN_LIFETIME,
        kind: str = TOKEN,
        also: Iterable[Write] = (),
    ) -> NewToken:
        """Make a token or a session, in one commit with other writes. Raises InvalidScope and Conflict."""
        _check_name(name)
        now = self._store.clock()
        identity = "".join(secrets.choice(_LETTERS) for _ in range(10))
        token = f"{PREFIX}{identity}_{secrets.token_urlsafe(32)}"
        page_key = secrets.token_urlsafe(32) if kind == SESSION else None
        credential = Credential(
            identity,
            name,
            secret_hash(token),
            kind,
            now,
            by,
            now + valid_for,
            scopes=check_scopes(scopes),
            page_sha256=None if page_key is None else secret_hash(page_key),
        )
        old = [
            PutRegister(register.key, None, register.revision)
            for register, ended_at in readable(
                lambda register: (register, _ended_at(_decode(register))), await self._store.registers(CREDENTIALS)
            )
            if ended_at < now - KEPT_AFTER_END
        ]
        await self._store.commit([PutRegister(f"{CREDENTIALS}{identity}", credential.to_json(), None), *old, *also])
        return NewToken(credential, token, page_key)

    async def find(self, token: str) -> Credential | None:
        """The credential of a token; None if there is none, or it is not active."""
        parts = _TOKEN.fullmatch(token)
        register = await self._store.register(f"{CREDENTIALS}{parts[1]}") if parts is not None else None
        if register is None:
            return None
        credential = _decode(register)
        right = hmac.compare_digest(credential.sha256, secret_hash(token))
        return credential if right and credential.state(self._store.clock()) == "active" else None

    async def is_active(self, identity: str) -> bool:
        """Whether a credential that was found before is still valid."""
        register = await self._store.register(f"{CREDENTIALS}{identity}")
        return register is not None and _decode(register).state(self._store.clock()) == "active"

    async def all(self) -> list[Credential]:
        """All credentials, those that ended lately included, oldest first."""
        credentials = readable(_decode, await self._store.registers(CREDENTIALS))
        return sorted(credentials, key=lambda credential: (credential.created_at, credential.id))

    async def revoke(self, identity: str) -> Credential:
        """Revoke a credential: the next request with it is refused. Raises UnknownCredential."""

        async def attempt() -> Credential:
            register = await self._store.register(f"{CREDENTIALS}{identity}")
            if register is None:
                raise UnknownCredential(f"no token has the id {identity!r}; list them with: asterism token list")
            credential = _decode(register)
            if credential.revoked_at is None:
                value = {**register.value, "revoked_at": self._store.clock()}
                await self._store.commit([PutRegister(register.key, value, register.revision)])
                return _decode(Register(register.key, value, register.revision + 1))
            return credential

        return await retry_on_conflict(attempt)

    # -- one-time login ----------------------------------------------------------------------------------------------

    async def create_login(self, name: str, scopes: Iterable[str], *, by: str, valid_for: float = CODE_LIFETIME) -> str:
        """Make a one-time code, with which a browser or a command logs in as ``name``."""
        _check_name(name)
        code, until = new_secret(TYPED_BYTES), self._store.clock() + valid_for
        value = {"name": name, "scopes": sorted(check_scopes(scopes)), "by": by, "until": until}
        await self._store.commit(await code_writes(self._store, LOGINS, code, value))
        return code

    async def redeem_login(self, code: str, kind: str = SESSION) -> NewToken:
        """Exchange a one-time code for a session, or for a token. Raises LoginRefused."""

        async def attempt() -> NewToken:
            login = await self._store.register(f"{LOGINS}{secret_hash(code)}")
            if login is None or login.value["until"] < self._store.clock():
                raise LoginRefused("this code was used or has expired; get a new one with: asterism token login")
            return await self.create(
                login.value["name"],
                login.value["scopes"],
                by=login.value["by"],
                valid_for=SESSION_LIFETIME if kind == SESSION else LOGIN_LIFETIME,
                kind=kind,
                also=[PutRegister(login.key, None, login.revision)],
            )

        return await retry_on_conflict(attempt)


def _check_name(name: str) -> None:
    if not name.strip() or not name.isprintable() or len(name) > MAX_NAME:
        raise AsterismError(f"the name of a credential must have 1 to {MAX_NAME} printable characters, not {name!r}")


def _decode(register: Register) -> Credential:
    identity = register.key.removeprefix(CREDENTIALS)
    return register.read(lambda value: Credential.from_json({**value, "id": identity}))


def _ended_at(credential: Credential) -> float:
    return credential.expires_at if credential.revoked_at is None else credential.revoked_at


# -- scopes ------------------------------------------------------------------------------------------------------------


PLAIN = ("observe", "operate", "series", "event", "admin")
MAX_LENGTH = 200

_INCLUDES = {
    "observe": ("observe",),
    "operate": ("observe", "edit", "operate", "event"),
    "series": ("series",),
    "event": ("event",),
    "admin": ("observe", "edit", "operate", "series", "event", "admin"),
}
"""The kinds of needs that each plain scope satisfies, whatever name they carry."""


class InvalidScope(AsterismError, ValueError):
    """A text that is not a scope."""


class ScopeMissing(AsterismError):
    """A credential does not allow what its caller asks for."""


def check_scopes(scopes: Iterable[str]) -> frozenset[str]:
    """The scopes as a set. Raises InvalidScope."""
    checked = frozenset(scopes)
    for scope in checked:
        kind, colon, name = scope.partition(":")
        plain = scope in PLAIN
        named = kind == "edit" and colon and name and name.isprintable() and len(name) <= MAX_LENGTH
        if kind == "device":
            raise InvalidScope(
                f"{scope!r} is not a scope of tokens: a device has a key of its own; enrol it with the code of: "
                "asterism device invite"
            )
        if not plain and not named:
            raise InvalidScope(f"{scope!r} is not a valid scope; the scopes are: {', '.join(PLAIN)} and edit:PLAN")
    if not checked:
        raise InvalidScope(f"at least one scope is needed: {', '.join(PLAIN)} or edit:PLAN")
    return checked


def allows(scopes: Collection[str], need: str) -> bool:
    """Whether one of the scopes satisfies the need of a request."""
    kind, _, name = need.partition(" ")
    return kind == "known" or any(_satisfies(scope, kind, name) for scope in scopes)


def _satisfies(scope: str, kind: str, name: str) -> bool:
    if scope in _INCLUDES:
        return kind in _INCLUDES[scope] or (scope == "series" and (kind, name) == ("observe", "series"))
    pattern = scope.removeprefix("edit:")
    what, _, plan = name.partition(" ")
    if kind == "observe":
        return what == "plan" and compile_pattern(pattern).fullmatch(plan) is not None
    return kind == "edit" and compile_pattern(pattern).fullmatch(name) is not None


def shown_need(need: str) -> str:
    """The scope that satisfies a need and no more."""
    kind, _, name = need.partition(" ")
    if kind == "observe" and name.startswith("plan "):
        return f"observe or edit:{name.removeprefix('plan ')}"
    if kind == "observe":
        return "observe or series" if name else "observe"
    return f"{kind}:{name}" if name else kind
