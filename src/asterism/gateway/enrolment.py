"""Enrolment of devices: one-time codes, the keys that devices made, and the credentials that a gateway gives them.

A person with access to the store makes a code for one device, valid for ten minutes. The device shows it once, together
with the public half of a key that it made itself; from then on it is that key (fleet/one_time_code.py).

An enrolled device signs a challenge and gets an *access token* for one session, valid for fifteen minutes. A run that
is granted to the session comes with the *token of the grant*, for this run and this epoch alone. Both are codes of the
gateway over what they say (HMAC-SHA256), so nothing about them is stored, and every server on the store accepts them.

A revoked device gets no more tokens, and those that it has are refused. Its session is closed: its heartbeats are
refused, and its runs are reassigned after their timeout.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable

from asterism.core.errors import AsterismError
from asterism.core.json_values import JsonObject
from asterism.core.record import Record, encode
from asterism.core.run.run import Grant, Owner
from asterism.core.run.session import ABROAD, OPEN, REVOKED, RULE, device_name_problem, is_reserved, skeleton
from asterism.fleet.device.membership import JOINED
from asterism.fleet.joinable_devices import CODES, DEVICES
from asterism.fleet.one_time_code import TYPED_BYTES, Refusal, code_writes, is_first_use, new_secret, secret_hash
from asterism.fleet.policy.rule_patterns import compile_pattern, is_pattern
from asterism.gateway.device_key import is_signed
from asterism.gateway.gateway_messages import GatewayRefusal, InvalidMessage, grant_text, parse_grant
from asterism.store.optimistic_update import retried, retry_on_conflict
from asterism.store.protocol import Notice, PutRegister, PutSession, Register, Store, Write, read_slot

CODE_TIME = 600.0
"""How long a code is valid, in seconds."""

ACCESS_TIME = 900.0
"""How long an access token is valid, in seconds."""

CHALLENGE_TIME = 60.0
"""How long a device has to sign a challenge, in seconds."""

KNOWN_FOR = 1.0
"""How long the server relies on what it read of an enrolment, in seconds: a revocation counts after that."""

SECRET = "gateway/secret"
"""Key of the register with the secret of all gateways of a store."""

ALIKE = "gateway/alike/"
"""Prefix of the registers that names which look alike share: the last one that was enrolled."""

ACCESS_PREFIX = "astd_"
_SHOWN = 100_000
"""How many challenges are remembered after they were shown, until their time is over."""


class CredentialRefused(GatewayRefusal):
    """A credential that does not count. ``kind`` is ``invalid``, ``expired`` or ``revoked``."""

    def __init__(self, message: str, kind: str = "invalid") -> None:
        super().__init__(403 if kind == "revoked" else 401, kind, message)


_CODE_REFUSED = Refusal(CredentialRefused, "this code", "make another with: asterism device invite")


class UnknownEnrolment(AsterismError):
    """No device of this name is enrolled."""


class ReservedName(AsterismError, ValueError):
    """A name that no device may have: it is not plain, or reserved for processes of the server's side, which a device
    of this name would keep from joining."""


def check_name(name: str, *, pattern: bool = False) -> None:
    """Raises ReservedName for a name, or with ``pattern`` for a pattern of names, that no device may have."""
    if is_reserved(name):
        raise ReservedName(
            f"the name {name!r} is reserved: names with '@' are those of processes that run plans, names that begin "
            "with 'server-' those of servers; choose another name"
        )
    plain = name.replace("*", "x").replace("?", "x") if pattern else name
    if device_name_problem(plain) is not None:
        raise ReservedName(f"the name of a device {RULE}, not {name!r}")


class EnrolledDevice(Record):
    """``can`` are the capabilities that it may declare; None for any."""

    name: str
    key: str
    can: frozenset[str] | None
    enrolled_at: float
    revoked_at: float | None = None

    def to_json(self) -> JsonObject:
        return {**encode(self), "can": None if self.can is None else sorted(self.can)}


class Identity(Record):
    """Who sends a message, by its credential."""

    owner: Owner
    can: frozenset[str] | None


async def invite(store: Store, *, name: str, can: Iterable[str] | None = None) -> str:
    """Make a code for one device whose name matches the pattern ``name``: ``*`` stands for any text, ``?`` for one
    character. Raises ReservedName, and CredentialRefused if it is the name of a device that is known."""
    check_name(name, pattern=True)
    if not is_pattern(name):
        await _check_unknown(store, name)
    code, until = f"astc_{new_secret(TYPED_BYTES)}", store.clock() + CODE_TIME
    value = {"until": until, "name": name, "can": None if can is None else sorted(can), "key": None}
    await store.commit(await code_writes(store, CODES, code, value))
    return code


@retried
async def enrol(store: Store, code: str, name: str, key: str) -> EnrolledDevice:
    """Exchange a code for the enrolment of a key. A device that was revoked may be enrolled again; the name of any
    other device that was ever here is refused, also while it is away: runs may be pinned to it. Raises
    CredentialRefused and ReservedName."""
    check_name(name)
    invitation = await store.register(f"{CODES}{secret_hash(code)}")
    known = await find_device(store, name)
    now = store.clock()
    if invitation is None:
        raise CredentialRefused("this code is unknown: make one with: asterism device invite")
    device = known if known is not None and known.revoked_at is None else None
    until, pattern, can = (invitation.value[field] for field in ("until", "name", "can"))
    proof = key if device is not None and device.key == key else None
    expired = not until - CODE_TIME <= now <= until
    if not is_first_use(proof, invitation.value["key"], expired, _CODE_REFUSED) and device is not None:
        return device  # the first answer was lost
    if not compile_pattern(pattern).fullmatch(name):
        raise CredentialRefused(f"this code is for a device with a name like {pattern!r}")
    if device is not None and device.key != key:
        raise CredentialRefused(
            f"a device {name!r} is enrolled already: choose another name, or revoke it with: "
            f"asterism device revoke {name}"
        )
    # read before the names are: of two names that look alike, enrolled at the same time, one commit conflicts
    alike = await read_slot(store, _alike_key(name))
    await _check_unknown(store, name)
    slot = await read_slot(store, f"{DEVICES}{name}")
    new = EnrolledDevice(name, key, None if can is None else frozenset(can), now)
    await store.commit(
        [
            PutRegister(invitation.key, {**invitation.value, "key": key}, invitation.revision),
            slot.put(new.to_json()),
            alike.put({"name": name}),
            Notice(now, "enrolled", f"device {name} was enrolled with a code", None, name),
        ]
    )
    return new


def _alike_key(name: str) -> str:
    return f"{ALIKE}{secret_hash(skeleton(name))}"


async def _check_unknown(store: Store, name: str) -> None:
    """Raises CredentialRefused for the name of a device that has joined with access to the store, or through a peer,
    and for a name that looks like that of another device."""
    enrolled = {register.key.removeprefix(DEVICES) for register in await store.registers(DEVICES)}
    others = {register.key.removeprefix(JOINED) for register in await store.registers(JOINED)}
    others |= {session.device for session in await store.sessions() if session.state == ABROAD}
    alike = [device for device in (others | enrolled) if skeleton(device) == skeleton(name)]
    for known in sorted(alike):
        if known != name:
            raise CredentialRefused(f"the name {name!r} looks like that of device {known!r}: choose another name")
        if known not in enrolled:
            raise CredentialRefused(f"a device {name!r} is known to this fleet already: choose another name")


async def find_device(store: Store, name: str) -> EnrolledDevice | None:
    """The enrolment of a device; None if it was never enrolled."""
    register = await store.register(f"{DEVICES}{name}")
    return None if register is None else _device(register)


@retried
async def revoke(store: Store, name: str) -> EnrolledDevice:
    """Revoke the key of a device. Raises UnknownEnrolment."""
    register = await store.register(f"{DEVICES}{name}")
    if register is None:
        raise UnknownEnrolment(f"no device {name!r} is enrolled")
    now = store.clock()
    device = _device(register)
    if device.revoked_at is not None:
        return device
    revoked = register._replace(value={**register.value, "revoked_at": now})
    writes: list[Write] = [
        PutRegister(revoked.key, revoked.value, revoked.revision),
        Notice(now, "revoked", f"device {name} was revoked", None, name),
    ]
    for session in await store.sessions(device=name):
        if session.state == OPEN:
            writes.append(PutSession(session.changed(state=REVOKED), session.revision))
    await store.commit(writes)
    return _device(revoked)


def _device(register: Register) -> EnrolledDevice:
    name = register.key.removeprefix(DEVICES)
    return register.read(lambda value: EnrolledDevice.from_json({**value, "name": name}))


# -- credentials -------------------------------------------------------------------------------------------------------


class DeviceCredentials:
    """Makes and checks the credentials of devices, with the secret of the store."""

    def __init__(self, store: Store, secret: bytes) -> None:
        self._store, self._secret = store, secret
        self._challenge_key, self._shown = secrets.token_bytes(32), dict[str, float]()
        self._known: dict[str, tuple[float, EnrolledDevice]] = {}

    @classmethod
    async def open(cls, store: Store) -> DeviceCredentials:
        """The credentials of a store. Its secret is made by the first server."""

        async def attempt() -> bytes:
            register = await store.register(SECRET)
            if register is not None:
                return register.read(lambda value: bytes.fromhex(value["secret"]))
            new = secrets.token_bytes(32)
            await store.commit([PutRegister(SECRET, {"secret": new.hex()}, None)])
            return new

        return cls(store, await retry_on_conflict(attempt))

    def _code(self, *words: str) -> str:
        return hmac.new(self._secret, json.dumps(words).encode(), hashlib.sha256).hexdigest()[:32]

    # -- access ------------------------------------------------------------------------------------------------------

    def challenge(self) -> str:
        """A text to be signed, once and soon. Nothing is remembered of it before it is shown: anybody may ask for
        one."""
        text = f"{secrets.token_urlsafe(24)}.{self._store.clock() + CHALLENGE_TIME!r}"
        return f"{text}.{self._challenge_code(text)}"

    def _challenge_code(self, text: str) -> str:
        return hmac.new(self._challenge_key, text.encode(errors="replace"), hashlib.sha256).hexdigest()[:32]

    def _counts(self, challenge: str) -> bool:
        """Whether a challenge is of this process, in time, and shown for the first time."""
        text, _, code = challenge.rpartition(".")
        if not hmac.compare_digest(code.encode(errors="replace"), self._challenge_code(text).encode()):
            return False
        until, now = float(text.partition(".")[2]), self._store.clock()
        if challenge in self._shown or not 0.0 <= until - now <= CHALLENGE_TIME + 1.0:
            return False
        while self._shown and (
            len(self._shown) >= _SHOWN or abs(next(iter(self._shown.values())) - now) > CHALLENGE_TIME
        ):
            del self._shown[next(iter(self._shown))]
        self._shown[challenge] = until
        return True

    async def log_in(self, name: str, session: str, challenge: str, signature: str) -> str:
        """An access token for one session of a device that has signed a challenge. Raises CredentialRefused."""
        if not self._counts(challenge):
            raise CredentialRefused("this challenge is unknown or has expired", "expired")
        device = await self._device(name, fresh=True)
        if not is_signed(device.key, signature, "token", challenge, session):
            raise CredentialRefused(f"the challenge was not signed by the key of device {name!r}")
        claims = [name, session, self._store.clock() + ACCESS_TIME, device.enrolled_at]
        text = urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
        return f"{ACCESS_PREFIX}{text}.{self._code('access', text)}"

    async def identify(self, token: str, *, fresh: bool = False) -> Identity:
        """Who has an access token. With ``fresh`` the store is asked whether the device was revoked; else what is known
        of it may be ``KNOWN_FOR`` seconds old. Raises CredentialRefused."""
        text, _, code = token.removeprefix(ACCESS_PREFIX).rpartition(".")
        right = hmac.compare_digest(code.encode(errors="replace"), self._code("access", text).encode())
        if not right or not token.startswith(ACCESS_PREFIX):
            raise CredentialRefused("this is not an access token of this server", "expired")
        name, session, until, enrolled_at = json.loads(urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        now = self._store.clock()
        if not until - ACCESS_TIME <= now <= until:
            raise CredentialRefused("this access token has expired", "expired")
        device = await self._device(name, fresh=fresh)
        if device.enrolled_at != enrolled_at:
            raise CredentialRefused("the device was enrolled again since", "expired")
        return Identity(Owner(name, session), device.can)

    async def _device(self, name: str, *, fresh: bool) -> EnrolledDevice:
        now = self._store.clock()
        at, device = self._known.get(name, (float("-inf"), None))
        if fresh or device is None or not 0.0 <= now - at < KNOWN_FOR:
            device = await find_device(self._store, name)
            if device is None:
                raise CredentialRefused(f"no device {name!r} is enrolled: enrol it with a code")
            self._known[name] = (now, device)
        if device.revoked_at is not None:
            raise CredentialRefused(f"device {name!r} was revoked", "revoked")
        return device

    # -- grants and values -------------------------------------------------------------------------------------------

    def grant_token(self, device: str, grant: Grant) -> str:
        """The token of a grant, for one device."""
        return grant_text(grant, self._code("grant", device, *map(str, grant)))

    def grant_of(self, device: str, token: object) -> Grant:
        """The grant of a token that was made for this device. Raises CredentialRefused."""
        try:
            grant, code = parse_grant(token)
        except InvalidMessage as error:
            raise CredentialRefused(str(error)) from None
        if not hmac.compare_digest(code, self._code("grant", device, *map(str, grant))):
            raise CredentialRefused("this grant was not given to this device")
        return grant

    def blob_token(self, device: str, name: str, size: int) -> str:
        """The token of a value that a device has stored."""
        return f"{name}.{size}.{self._code('blob', device, name, str(size))}"

    def blob_of(self, device: str, token: object) -> JsonObject:
        """The reference to a stored value. Raises CredentialRefused."""
        words = token.split(".") if isinstance(token, str) else []
        if len(words) != 3 or not hmac.compare_digest(
            words[2].encode(errors="replace"), self._code("blob", device, *words[:2]).encode()
        ):
            raise CredentialRefused("this value was not stored by this device")
        return {"$blob": words[0], "size": int(words[1])}
