"""What holds for a whole fleet. It lives in the store, so that every device goes by the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from asterism.base.url_text import masked_url
from asterism.core.errors import AsterismError
from asterism.core.run.placement import Weights
from asterism.fleet.election import LEASE
from asterism.store.protocol import NOTIFIED, PutRegister, Store, Write, last_notice
from asterism.store.store_errors import Conflict

KEY = "settings"
DAY = 86_400.0


class InvalidSettings(AsterismError, ValueError):
    """A setting that is not known or makes no sense."""


@dataclass(frozen=True)
class Settings:
    """``keep`` is how long ended runs are kept, in seconds. Inputs and outputs over ``large`` bytes are kept apart,
    over ``most`` refused. ``hold`` is how long the brake lasts, ``lease`` how long the coordinator stays in office
    without being heard of, or three passes of its monitor if that is longer. After ``peer_timeout`` seconds without a
    word of a peer, what is left to it is adopted. ``peer_runs``, ``peer_bytes`` and ``peer_blobs`` are how many runs
    each peer may store here, and how many bytes of records and of what is large. ``notify_command`` (a list of words)
    and ``notify_url`` are told of every run that failed and everything else a person should know."""

    keep: float = 30 * DAY
    large: int = 64 * 1024
    most: int = 64 * 1024 * 1024
    hold: float = 90.0
    lease: float = LEASE
    peer_timeout: float = 3600.0
    peer_runs: int = 100_000
    peer_bytes: int = 1024 * 1024 * 1024
    peer_blobs: int = 10 * 1024 * 1024 * 1024
    notify_command: tuple[str, ...] | None = None
    notify_url: str | None = None
    weights: Weights = field(default_factory=Weights)

    def __post_init__(self) -> None:
        counts = ("peer_runs", "peer_bytes", "peer_blobs")
        for name in ("keep", "large", "most", "hold", "lease", "peer_timeout", *counts):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
                raise InvalidSettings(f"{name} is a number, 0 or more, not {value!r}")
        if isinstance(self.notify_command, list):
            object.__setattr__(self, "notify_command", tuple(self.notify_command))
        words = self.notify_command
        if words is not None and not (isinstance(words, tuple) and words and all(isinstance(w, str) for w in words)):
            raise InvalidSettings(f"notify_command is a list of words, not {words!r}")
        if self.notify_url is not None and not str(self.notify_url).startswith(("http://", "https://")):
            raise InvalidSettings(f"notify_url is an http(s) address, not {masked_url(str(self.notify_url))!r}")
        if isinstance(self.weights, Mapping):
            object.__setattr__(self, "weights", _weights(self.weights))

    @property
    def tells(self) -> bool:
        """Whether anybody is told of notices."""
        return self.notify_command is not None or self.notify_url is not None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def _weights(given: Mapping[str, Any]) -> Weights:
    known = {f.name for f in fields(Weights)}
    for name, value in given.items():
        if name not in known:
            raise InvalidSettings(f"there is no weight {name!r}; the weights are {', '.join(sorted(known))}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise InvalidSettings(f"weight {name} is a number, 0 or more, not {value!r}")
    return Weights(**given)


def of_json(data: Mapping[str, Any]) -> Settings:
    """Raises InvalidSettings."""
    unknown = sorted(set(data) - {f.name for f in fields(Settings)})
    if unknown:
        known = ", ".join(f.name for f in fields(Settings))
        raise InvalidSettings(f"no such setting: {', '.join(unknown)}; the settings are {known}")
    return Settings(**data)


async def read(store: Store) -> Settings:
    """What a later version of Asterism may have written beside is no concern of ours."""
    found = await store.register(KEY)
    return _known({} if found is None else found.value)


def _known(value: Mapping[str, Any]) -> Settings:
    known = {f.name for f in fields(Settings)}
    return of_json({name: value[name] for name in value if name in known})


async def write(store: Store, changes: Mapping[str, Any]) -> Settings:
    """Change some settings; the others stay, also those that only a later version knows."""
    while True:
        found = await store.register(KEY)
        kept = {} if found is None else found.value
        old = _known(kept)
        before = old.to_json()
        if isinstance(changes.get("weights"), Mapping):
            changes = {**changes, "weights": {**before["weights"], **changes["weights"]}}
        new = of_json({**before, **changes})
        writes: list[Write] = [PutRegister(KEY, {**kept, **new.to_json()}, found and found.revision)]
        if new.tells and not old.tells:
            writes += await _from_now_on(store)
        try:
            await store.commit(writes)
        except Conflict:
            continue
        return new


async def _from_now_on(store: Store) -> list[Write]:
    """People who begin to be told are not told of all that happened before."""
    cursor = await store.register(NOTIFIED)
    before = 0 if cursor is None else cursor.value["after"]
    after = await last_notice(store, before)
    return [] if after == before else [PutRegister(NOTIFIED, {"after": after}, cursor and cursor.revision)]
