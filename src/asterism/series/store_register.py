"""A register in a store of Asterism, for series without a forge.

A series is one register record of the store, and the revision of the record detects conflicts. The same commit keeps
each change under a key of its own; old changes are removed. The keys of series of issues and of series of runs have
different prefixes, so the two never mix.

``swap`` commits once: the loop is that of ``compare_and_swap``, which all registers share.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from typing import Any

from asterism.series.register import (
    Change,
    OutcomeUnknown,
    RegisterBusy,
    RegisterUnavailable,
    RevisionConflict,
    Snapshot,
    decode_name,
    encode_name,
)
from asterism.store.protocol import PutRegister, Register, Store
from asterism.store.store_errors import (
    Conflict,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
    StoreUnwritable,
)

STATE_PREFIX = "issue-series/"
HISTORY_PREFIX = "issue-series-history/"
KEPT_CHANGES = 200
"""The number of changes of a series that are kept, at least."""

TRIM_INTERVAL = 50
"""The number of changes between two removals of old ones."""


class StoreRegister:
    """A register over an open store. ``close`` closes the store if it is ``owned``."""

    def __init__(self, store: Store, *, owned: bool = True) -> None:
        self._store, self._owned = store, owned

    @property
    def url(self) -> str:
        return self._store.url

    def clock(self) -> float:
        return self._store.clock()

    async def read(self, name: str) -> Snapshot:
        key = STATE_PREFIX + encode_name(name)
        with _register_errors():
            record = await self._store.register(key)
        return Snapshot(None, None) if record is None else Snapshot(_text(record), _token(record))

    async def swap(self, name: str, expected: str | None, text: str, message: str) -> str:
        encoded = encode_name(name)
        revision, number = (0, 0) if expected is None else map(int, expected.split("."))
        token = f"{revision + 1}.{number + 1}"
        # keys are in the order of the changes, and the random part keeps writers from colliding
        change_key = f"{HISTORY_PREFIX}{encoded}/{number + 1:012}-{uuid.uuid4().hex[:12]}"
        state = {"text": text, "change": number + 1}
        change = {"at": self._store.clock(), "message": message, "text": text, "token": token}
        try:
            await self._store.commit(
                [PutRegister(STATE_PREFIX + encoded, state, revision or None), PutRegister(change_key, change, None)]
            )
        except Conflict as error:
            raise RevisionConflict(name) from error
        except StoreBusy as error:
            raise RegisterBusy(str(error)) from error
        except (StoreFull, StoreReadOnly, StoreUnwritable) as error:
            raise RegisterUnavailable(str(error)) from error
        except StoreUnavailable as error:
            raise OutcomeUnknown(f"it is unknown whether series {name} was changed: {error}") from error
        if (number + 1) % TRIM_INTERVAL == 0:
            await self._trim_history(encoded)
        return token

    async def names(self) -> list[str]:
        return sorted(await self.read_all())

    async def read_all(self) -> dict[str, Snapshot]:
        """Every series, with one query."""
        with _register_errors():
            records = await self._store.registers(STATE_PREFIX)
        named = [(decode_name(record.key.removeprefix(STATE_PREFIX)), record) for record in records]
        return {name: Snapshot(_text(record), _token(record)) for name, record in named if name is not None}

    async def history(self, name: str, limit: int) -> list[Change]:
        with _register_errors():
            records = await self._store.registers(f"{HISTORY_PREFIX}{encode_name(name)}/")
        return [_change(record) for record in reversed(records)][:limit]

    async def close(self) -> None:
        if self._owned:
            await self._store.close()

    async def _trim_history(self, encoded: str) -> None:
        """Remove the oldest changes. If that fails, a later change does it."""
        with contextlib.suppress(StoreError):
            old = (await self._store.registers(f"{HISTORY_PREFIX}{encoded}/"))[:-KEPT_CHANGES]
            if old:
                await self._store.commit([PutRegister(record.key, None, record.revision) for record in old])


@contextlib.contextmanager
def _register_errors() -> Iterator[None]:
    """Raise the errors of a read from the store as those of a register."""
    try:
        yield
    except StoreBusy as error:
        raise RegisterBusy(str(error)) from error
    except StoreUnavailable as error:
        raise RegisterUnavailable(str(error)) from error


def _token(record: Register) -> str:
    """The revision and the number of the change: a restored store counts revisions again from the start."""
    number = record.value.get("change") if isinstance(record.value, dict) else None
    return f"{record.revision}.{number if type(number) is int else record.revision}"


def _change(record: Register) -> Change:
    """A value that this module did not write is shown as it is, with a message that says so."""
    value: Any = record.value
    if isinstance(value, dict) and set(value) == set(Change._fields):
        change = Change(**value)
        texts = (change.message, change.text, change.token)
        if type(change.at) in (int, float) and all(isinstance(text, str) for text in texts):
            return change
    return Change(0.0, "not written by Asterism", repr(value), str(record.revision))


def _text(record: Register) -> str:
    """A value that this module did not write is shown as it is: it is not readable as a series."""
    value: Any = record.value
    return value["text"] if isinstance(value, dict) and isinstance(value.get("text"), str) else repr(value)
