"""Settings of a fleet: stored with it, so that every device uses the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asterism.base.text import masked_url
from asterism.core.attempt_log import DEFAULT_LIMIT
from asterism.core.errors import AsterismError
from asterism.core.json_values import RESULT_LIMIT, JsonObject, SizeLimit
from asterism.core.record import Record, defaults_of, encode, field, set_field
from asterism.core.run.placement import Weights
from asterism.fleet import artifact_place
from asterism.store.optimistic_update import retried
from asterism.store.protocol import NOTIFIED, PutRegister, Store, Write, last_notice, read_slot

KEY = "settings"
DAY = 86_400.0

ELECTION_LEASE = 15.0
"""How long an election lasts by default without being renewed, in seconds."""

COORDINATOR = "coordinator"
DEPUTY = "deputy"
ELECTED_ROLES = (COORDINATOR, DEPUTY)
"""The registers with the leases of the coordinator and its deputy (coordinator.py)."""


class InvalidSettings(AsterismError, ValueError):
    """A setting that does not exist, or a value that it cannot have."""


RESULTS_PER_INPUT = 8
"""How many results of the largest size a peer accepts in one input."""


class Settings(Record):
    """Times are in seconds, sizes in bytes.

    ``keep``            how long ended runs are kept
    ``keep_events``     how long events are kept that plans wait for (sent_events.py)
    ``keep_audit``      how long entries of the audit log are kept (audit_log.py)
    ``large``           inputs and outputs above this size are stored as blobs
    ``most``            inputs and outputs above this size are refused
    ``log_limit``       how much of what each attempt prints is kept; 0 for nothing
    ``device_bytes``    how many bytes of large results, and of files whose run has not ended, each device of a gateway
                        may store within an hour
    ``credential_bytes``  how many bytes each credential of a server may store with its requests within an hour
    ``artifacts``       where the files of tasks are kept: ``file:///folder``, ``s3://bucket/prefix``; None: beside the
                        file of a SQLite store
    ``hold``            how long nothing is taken from silent devices after a mass loss or a jump of the clock
    ``lease``           how long the coordinator stays elected without renewing, at least three of its passes
    ``peer_timeout``    after how long without contact the runs that are left to a peer are taken over
    ``peer_runs``       how many runs each peer may store here
    ``peer_bytes``      how many bytes of records each peer may store here
    ``peer_blobs``      how many bytes of blobs each peer may store here
    ``notify_command``  a command (a list of words) that gets every notice for people on its standard input
    ``notify_url``      an address that gets every notice for people as a POST request
    ``weights``         how much the parts of a device's score count
    """

    keep: float = 30 * DAY
    keep_events: float = 7 * DAY
    keep_audit: float = 90 * DAY
    large: int = 64 * 1024
    most: int = RESULT_LIMIT
    log_limit: int = DEFAULT_LIMIT
    device_bytes: int = 1024 * 1024 * 1024
    credential_bytes: int = 256 * 1024 * 1024
    artifacts: str | None = None
    hold: float = 90.0
    lease: float = ELECTION_LEASE
    peer_timeout: float = 3600.0
    peer_runs: int = 100_000
    peer_bytes: int = 1024 * 1024 * 1024
    peer_blobs: int = 10 * 1024 * 1024 * 1024
    notify_command: tuple[str, ...] | None = None
    notify_url: str | None = None
    weights: Weights = field(default_factory=Weights)

    def __post_init__(self) -> None:
        for name in _NUMBERS:
            _check_number(name, getattr(self, name))
        if isinstance(self.notify_command, list):
            set_field(self, "notify_command", tuple(self.notify_command))
        words = self.notify_command
        if words is not None and not (isinstance(words, tuple) and words and all(isinstance(w, str) for w in words)):
            raise InvalidSettings(f"notify_command must be a list of words, not {words!r}")
        if self.notify_url is not None and not str(self.notify_url).startswith(("http://", "https://")):
            raise InvalidSettings(f"notify_url must be an http(s) address, not {masked_url(str(self.notify_url))!r}")
        problem = None if self.artifacts is None else artifact_place.place_problem(str(self.artifacts))
        if problem is not None:
            raise InvalidSettings(problem)
        if isinstance(self.weights, Mapping):
            set_field(self, "weights", _weights(self.weights))
        elif not isinstance(self.weights, Weights):
            raise InvalidSettings(f"weights must be numbers by name, not {self.weights!r}")

    @property
    def notifies(self) -> bool:
        """Whether notices are delivered to a command, an address or a plug-in."""
        return any(to is not None for to in (self.notify_command, self.notify_url))

    @property
    def value_limit(self) -> SizeLimit:
        """How large inputs and outputs may be."""
        return value_limit(self.most)

    @property
    def largest_blob(self) -> int:
        """How many bytes a blob of another store may have. An input may have several results, each up to ``most``."""
        return int(self.most) * RESULTS_PER_INPUT

    def to_json(self) -> JsonObject:
        data: JsonObject = encode(self)
        return data


def value_limit(most: int) -> SizeLimit:
    """How large inputs and outputs may be in a fleet with this setting ``most``."""
    return SizeLimit(int(most), "asterism fleet set --most SIZE")


def _weights(weights: Mapping[str, Any]) -> Weights:
    known = {*Weights.__struct_fields__}
    for name, value in weights.items():
        if name not in known:
            raise InvalidSettings(f"there is no weight {name!r}; the weights are {', '.join(sorted(known))}")
        _check_number(f"weight {name}", value)
    return Weights(**weights)


def _check_number(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise InvalidSettings(f"{name} must be a number, 0 or more, not {value!r}")


_NAMES = Settings.__struct_fields__
_NUMBERS = tuple(name for name, default in defaults_of(Settings).items() if isinstance(default, int | float))


async def read(store: Store) -> Settings:
    """Read the settings of a store."""
    register = await store.register(KEY)
    return Settings() if register is None else register.read(from_stored)


def from_stored(value: Mapping[str, Any]) -> Settings:
    """Settings that only a later version of Asterism knows are left out."""
    return Settings(**{name: value[name] for name in value if name in _NAMES})


@retried
async def write(store: Store, changes: Mapping[str, Any]) -> Settings:
    """Change some settings; the others stay, also those that only a later version knows. Raises InvalidSettings."""
    unknown = sorted(set(changes) - set(_NAMES))
    if unknown:
        raise InvalidSettings(f"no such setting: {', '.join(unknown)}; the settings are {', '.join(_NAMES)}")
    register = await store.register(KEY)
    stored, old = ({}, Settings()) if register is None else (register.value, register.read(from_stored))
    before = old.to_json()
    merged = {**before, **changes}
    if isinstance(changes.get("weights"), Mapping):
        merged["weights"] = {**before["weights"], **changes["weights"]}
    new = Settings(**merged)
    writes: list[Write] = [PutRegister(KEY, {**stored, **new.to_json()}, register and register.revision)]
    if new.notifies and not old.notifies:
        writes += await _skip_old_notices(store)
    await store.commit(writes)
    return new


async def _skip_old_notices(store: Store) -> list[Write]:
    """The write after which only notices that are left from now on are delivered."""
    cursor = await read_slot(store, NOTIFIED, {"after": 0})
    after = await last_notice(store, cursor.value["after"])
    return [] if after == cursor.value["after"] else [cursor.put({"after": after})]
