"""Records of unchanged tasks in a store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asterism.store.optimistic_update import try_commit
from asterism.store.protocol import PutRegister, Store

PREFIX = "unchanged/"
"""Prefix of the registers with records. Retention knows it too."""


class StoreRecords:
    """Where an orchestrator keeps the results of tasks with ``skip_if_unchanged``. Retention removes those that were
    not used for long."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def get(self, key: str) -> Mapping[str, Any] | None:
        register = await self._store.register(PREFIX + key)
        return register.value if register is not None and isinstance(register.value, Mapping) else None

    async def put(self, key: str, record: Mapping[str, Any]) -> None:
        """If another process writes the same record just now, one of them is kept."""
        known = await self._store.register(PREFIX + key)
        value = {**record, "at": self._store.clock()}
        await try_commit(self._store, [PutRegister(PREFIX + key, value, None if known is None else known.revision)])
