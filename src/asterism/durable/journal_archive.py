"""Journal archive: the records that compaction has replaced, packed, for as long as the plan is stored.

To continue a plan, its snapshot and the records since are enough (``compaction.py``). Its history needs all of them:
which versions there were, how the plan looked then, what happened. So compaction does not delete old records but packs
them, about a hundred in one register (``archive/NAME/000000000042``, with the number of the first), in the same commit
that removes them from the journal. So each record is in exactly one of the two places at every instant, whatever
crashes, and a reader that reads the journal first and then the archive misses none.

Packed records take about a tenth of the space. Nothing but the history reads them, and retention removes them with the
plan.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

from asterism.core.plan.journal import SCHEMA, UnreadableJournal
from asterism.durable.journal_store import record_key, record_number
from asterism.store.protocol import PutRegister, Register, Store, Write
from asterism.store.store_errors import Conflict

RECORDS_PER_READ = 100
"""How many records one query reads: those whose numbers differ in the last two digits."""

PACK_LENGTH = 100_000
"""Records are packed together until they are this long, in characters: to pack more takes too long at a time."""

PACK_ATTEMPTS = 5
"""How often to try again if another process packs the same records."""


def archive_prefix(name: str) -> str:
    return f"archive/{name}/"


def archive_key(name: str, first: int) -> str:
    return f"{archive_prefix(name)}{first:012d}"


# -- packing -----------------------------------------------------------------------------------------------------------


async def archive_records(store: Store, name: str, numbers: Sequence[int], pause: Callable[[], Awaitable[None]]) -> int:
    """Move these records of a journal, which a snapshot has replaced, into the archive. ``pause`` is awaited between
    two packs. Returns how many were moved. Those that another process moves meanwhile are left to it."""
    moved = 0
    for _, some in groupby(sorted(numbers), lambda number: number // RECORDS_PER_READ):
        chosen = frozenset(some)
        block = record_key(name, min(chosen))[:-2]
        for _ in range(PACK_ATTEMPTS):
            try:
                for pack in _packs([one for one in await store.registers(block) if record_number(one) in chosen]):
                    await store.commit(_move(name, pack))
                    moved += len(pack)
                    await pause()
                break
            except Conflict:
                continue
    return moved


def _packs(records: Sequence[Register]) -> list[list[Register]]:
    packs: list[list[Register]] = []
    length = PACK_LENGTH
    for record in records:
        if length >= PACK_LENGTH:
            packs.append([])
            length = 0
        packs[-1].append(record)
        length += len(str(record.value))
    return packs


def _move(name: str, pack: Sequence[Register]) -> list[Write]:
    numbers = [record_number(one) for one in pack]
    text = json.dumps([[number, one.value] for number, one in zip(numbers, pack, strict=True)], separators=(",", ":"))
    packed = base64.b64encode(zlib.compress(text.encode())).decode("ascii")
    value = {"schema": SCHEMA, "first": numbers[0], "last": numbers[-1], "packed": packed}
    return [
        PutRegister(archive_key(name, numbers[0]), value, None),
        *(PutRegister(one.key, None, one.revision) for one in pack),
    ]


# -- reading -----------------------------------------------------------------------------------------------------------


async def read_archive(store: Store, name: str, first: int) -> dict[int, Any]:
    """The archived records of a plan from number ``first`` on. Read the journal before: a record may be moved into the
    archive in between. Raises UnreadableJournal."""
    found: dict[int, Any] = {}
    for register in await store.registers(archive_prefix(name)):
        if isinstance(register.value, Mapping) and register.value.get("last", first) >= first:
            found |= _unpack(register)
    return {number: value for number, value in found.items() if number >= first}


def _unpack(register: Register) -> dict[int, Any]:
    try:
        if register.value["schema"] > SCHEMA:
            raise UnreadableJournal(f"{register.key} was written by a later version of Asterism")
        pairs = json.loads(zlib.decompress(base64.b64decode(register.value["packed"])))
        return {int(number): value for number, value in pairs}
    except (LookupError, TypeError, ValueError, zlib.error) as error:
        raise UnreadableJournal(f"{register.key} cannot be read: {error!r}") from None
