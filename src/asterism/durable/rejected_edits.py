"""Rejected edits of a stored plan: the newest ones, with their violations.

A rejected edit changes nothing, so the journal does not have it. It is recorded beside the journal for people who want
to know what an editor has tried, in one of a fixed number of registers (``rejected/NAME/07``): the oldest is replaced.
The record is an aid and no promise: the process that rejects an edit writes it after that, and a crash in between loses
it. A plan without rejected edits costs nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from asterism.core.errors import AsterismError, EditRejected
from asterism.core.json_values import plain_json
from asterism.core.plan.edits import EditBatch
from asterism.core.record import Record
from asterism.durable.journal_store import read_head
from asterism.store.optimistic_update import retry_on_conflict
from asterism.store.protocol import PutRegister, Store
from asterism.store.row_codec import readable
from asterism.store.store_errors import StoreError

log = logging.getLogger("asterism.durable")

MOST_KEPT = 50
"""How many rejected edits of a plan are kept."""

MOST_VIOLATIONS = 50
"""How many violations of one of them are kept."""

LONGEST_EDITS = 20_000
"""The edits of a longer batch are not kept, in characters; its author, reason and violations are."""

CLOSE_TIMEOUT = 2.0
"""Seconds that an owner that leaves waits for the record of the last rejections."""


class RejectedEdit(Record, forbid_unknown_fields=True):
    """``edits`` is the batch as JSON; None if it is too long, or is no JSON. ``version`` is that of the plan then,
    ``violations`` are objects with ``edit``, ``rule`` and ``message``."""

    number: int
    at: float
    version: int
    author: str
    reason: str
    triggers: Sequence[str]
    edits: Sequence[Mapping[str, Any]] | None
    violations: Sequence[Mapping[str, Any]]


def rejected_prefix(name: str) -> str:
    return f"rejected/{name}/"


async def rejected_edits(store: Store, name: str) -> list[RejectedEdit]:
    """The newest rejected edits of a plan, oldest first. Raises UnknownConstellation."""
    head, _ = await read_head(store, name)
    registers = await store.registers(rejected_prefix(name))
    edits = readable(lambda register: register.read(RejectedEdit.from_json), registers)
    # those of an earlier plan of that name are not its own
    return sorted((edit for edit in edits if edit.at >= head.created_at), key=lambda edit: edit.number)


async def record_rejection(store: Store, name: str, version: int, batch: EditBatch, rejected: EditRejected) -> None:
    """Record a rejected batch, in place of the oldest one. Does nothing if the store is unavailable."""
    value = {
        "at": store.clock(),
        "version": version,
        "author": batch.author,
        "reason": batch.reason,
        "triggers": list(batch.triggers),
        "edits": _edits(batch),
        "violations": [
            {"edit": violation.edit, "rule": violation.rule, "message": violation.message}
            for violation in rejected.violations[:MOST_VIOLATIONS]
        ],
    }

    async def attempt() -> None:
        registers = {register.key: register for register in await store.registers(rejected_prefix(name))}
        numbers = [register.read(lambda value: int(value["number"])) for register in registers.values()]
        number = 1 + max(numbers, default=0)
        key = f"{rejected_prefix(name)}{number % MOST_KEPT:02d}"
        revision = registers[key].revision if key in registers else None
        await store.commit([PutRegister(key, {"number": number, **value}, revision)])

    try:
        await retry_on_conflict(attempt)
    except StoreError as error:
        log.info("a rejected edit of plan %s could not be recorded: %s", name, error)


def _edits(batch: EditBatch) -> Any:
    try:
        edits = plain_json([edit.to_json() for edit in batch.edits], "the edit")
    except (AsterismError, AttributeError, TypeError):  # it was rejected because it is malformed
        return None
    return edits if len(str(edits)) <= LONGEST_EDITS else None


class RejectionRecorder:
    """Records the rejected edits of a plan beside the work of its owner."""

    def __init__(self, store: Store, name: str) -> None:
        self._store, self._name = store, name
        self._jobs: set[asyncio.Task[None]] = set()

    def record(self, version: int, batch: EditBatch, rejected: EditRejected) -> None:
        job = asyncio.get_running_loop().create_task(
            record_rejection(self._store, self._name, version, batch, rejected)
        )
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)

    async def close(self) -> None:
        if self._jobs:
            _, late = await asyncio.wait(tuple(self._jobs), timeout=CLOSE_TIMEOUT)
            for job in late:
                job.cancel()
