"""Series in the project's own store, for those that have no forge.

A series is one register of the store, whose revision tells whether it moved. Each change is kept beside it, in the same
commit, under a key of its own; of those the last ones stay. Series of issues and series of runs never mix: their keys
begin differently.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from typing import Any

from asterism.series.register import (
    Change,
    Moved,
    RegisterBusy,
    RegisterUnavailable,
    Snapshot,
    Unsure,
    decoded,
    encoded,
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

STATES = "issue-series/"
CHANGES = "issue-series-history/"
KEPT = 200
"""How many changes of a series are remembered, at least."""

TIDY_EVERY = 50
"""After so many changes those beyond that are forgotten."""


class StoreRegister:
    """Over a store that is open; ``close`` closes it, if it is ``owned``."""

    def __init__(self, store: Store, *, owned: bool = True) -> None:
        self._store, self._owned = store, owned

    @property
    def url(self) -> str:
        return self._store.url

    def clock(self) -> float:
        return self._store.clock()

    async def read(self, name: str) -> Snapshot:
        key = STATES + encoded(name)
        with _reading():
            found = await self._store.register(key)
        return Snapshot(None, None) if found is None else Snapshot(_text_of(found), _token(found))

    async def swap(self, name: str, expected: str | None, text: str, message: str) -> str:
        written = encoded(name)
        revision, number = (0, 0) if expected is None else map(int, expected.split("."))
        token = f"{revision + 1}.{number + 1}"
        # the key is in the order of the changes, and nobody else's: so it is never in the way
        change_key = f"{CHANGES}{written}/{number + 1:012}-{uuid.uuid4().hex[:12]}"
        state = {"text": text, "change": number + 1}
        said = {"at": self._store.clock(), "message": message, "text": text, "token": token}
        try:
            await self._store.commit(
                [PutRegister(STATES + written, state, revision or None), PutRegister(change_key, said, None)]
            )
        except Conflict as error:
            raise Moved(name) from error
        except StoreBusy as error:
            raise RegisterBusy(str(error)) from error
        except (StoreFull, StoreReadOnly, StoreUnwritable) as error:
            raise RegisterUnavailable(str(error)) from error
        except StoreUnavailable as error:
            raise Unsure(f"whether series {name} was changed is not known: {error}") from error
        if (number + 1) % TIDY_EVERY == 0:
            await self._tidy(written)
        return token

    async def names(self) -> list[str]:
        return sorted(await self.read_all())

    async def read_all(self) -> dict[str, Snapshot]:
        """Of every series, in one question."""
        with _reading():
            found = await self._store.registers(STATES)
        named = [(decoded(one.key.removeprefix(STATES)), one) for one in found]
        return {name: Snapshot(_text_of(one), _token(one)) for name, one in named if name is not None}

    async def history(self, name: str, limit: int) -> list[Change]:
        with _reading():
            found = await self._store.registers(f"{CHANGES}{encoded(name)}/")
        return [_change_of(one) for one in reversed(found)][:limit]

    async def close(self) -> None:
        if self._owned:
            await self._store.close()

    async def _tidy(self, written: str) -> None:
        """Forget the oldest changes. If another does so at the same moment, or it cannot be done now, it is done
        later."""
        with contextlib.suppress(StoreError):
            old = (await self._store.registers(f"{CHANGES}{written}/"))[:-KEPT]
            if old:
                await self._store.commit([PutRegister(one.key, None, one.revision) for one in old])


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    """What goes wrong with a store, in the words of a register."""
    try:
        yield
    except StoreBusy as error:
        raise RegisterBusy(str(error)) from error
    except StoreUnavailable as error:
        raise RegisterUnavailable(str(error)) from error


def _token(found: Register) -> str:
    """The revision, and the number of the change: a store that was restored counts revisions anew."""
    number = found.value.get("change") if isinstance(found.value, dict) else None
    return f"{found.revision}.{number if type(number) is int else found.revision}"


def _change_of(found: Register) -> Change:
    """A value that this module did not write is shown as it is, and said to be none of ours."""
    value: Any = found.value
    if isinstance(value, dict) and set(value) == set(Change._fields):
        change = Change(**value)
        texts = (change.message, change.text, change.token)
        if type(change.at) in (int, float) and all(isinstance(text, str) for text in texts):
            return change
    return Change(0.0, "written by something else", repr(value), str(found.revision))


def _text_of(found: Register) -> str:
    """A value that this module did not write is shown as it is: it will not be readable as a series."""
    value: Any = found.value
    return value["text"] if isinstance(value, dict) and isinstance(value.get("text"), str) else repr(value)
