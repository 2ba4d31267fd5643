"""Blobs of runs: large inputs and outputs, stored apart so that records stay small."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from asterism.core.errors import AsterismError, NotJson
from asterism.fleet.settings import Settings
from asterism.store.protocol import Store
from asterism.store.store_errors import StoreCorrupt

_SMALL_TYPES = frozenset({bool, float, type(None)})
_compact = json.JSONEncoder(separators=(",", ":")).encode  # made once: json.dumps makes one for every text


class TooLarge(AsterismError):
    """An input or output above the limit of the fleet (``most`` in its settings)."""


def is_small(value: Any) -> bool:
    """Whether a value is stored in the record, whatever the settings say."""
    return type(value) in _SMALL_TYPES or not value


def blob_of(value: Any) -> str | None:
    """The name of the blob that holds a value; None for a value that is stored in the record."""
    if isinstance(value, dict) and len(value) == 2 and "$blob" in value and "size" in value:
        return value["$blob"]  # type: ignore[no-any-return]
    return None


class RunBlobs:
    """``settings`` reads the settings of the fleet, which say what is large."""

    def __init__(self, store: Store, settings: Callable[[], Awaitable[Settings]]) -> None:
        self._store, self._settings = store, settings

    async def keep(self, value: Any, what: str) -> Any:
        """Store a JSON value if it is large. Returns the value, or the reference to its blob. ``what`` names it in
        messages. Raises TooLarge, and NotJson for a value that cannot be written as JSON after all."""
        if is_small(value):
            return value
        settings = await self._settings()
        inside = min(settings.large, settings.most)
        if type(value) is str and len(value) * 6 < inside:
            return value
        try:
            text = _compact(value)
        except ValueError as error:  # a number with more digits than Python prints
            raise NotJson(f"{what} cannot be written as JSON: {error}") from None
        if len(text) <= inside:
            if blob_of(value) is not None:
                raise NotJson(f"{what} looks like a reference to a blob; put it into another object")
            return value
        data = text.encode()
        if len(data) > settings.most:
            raise TooLarge(f"{what} has {len(data):,} bytes; the limit of this fleet is {settings.most:,}")
        return {"$blob": await self._store.put_blob(data), "size": len(data)}

    async def copy(self, value: Any) -> Any:
        """The value for another run: its blob is stored anew, since the first run may be pruned with its own."""
        name = blob_of(value)
        return value if name is None else {**value, "$blob": await self._store.put_blob(await self._read(name))}

    async def fetch(self, value: Any) -> Any:
        """The value that ``keep`` was given."""
        name = blob_of(value)
        return value if name is None else json.loads(await self._read(name))

    async def _read(self, name: str) -> bytes:
        data = await self._store.blob(name)
        if data is None:
            raise StoreCorrupt(f"the blob {name} is missing")
        return data
