"""Compaction of a journal: replaces a long journal by a snapshot while the plan runs.

When a record is cut, the plan is exactly what the journal says up to that record. At that instant the plan is frozen
(``core/plan/plan_codec.py``); then the snapshot is taken and written in small pieces, and other tasks of the event loop
run between them. Its text goes into the store in parts under keys of their own. Each part is committed with the next
record of the journal, so only the owner can write one, and a later owner sees all of them. The journal continues
meanwhile.

The snapshot counts from the commit that names it in the head, together with the first record after it. If the owner
dies before that commit, the journal is unchanged; if it dies after, the older records are garbage. The next owner
removes garbage once it knows that it is the owner. Records are not deleted but archived.

The archive has the records that compaction has replaced, packed, for as long as the plan is stored. To continue a plan,
its snapshot and the records since are enough. Its history needs all of them:
which versions there were, how the plan looked then, what happened. So compaction does not delete old records but packs
them, about a hundred in one register (``archive/NAME/000000000042``, with the number of the first), in the same commit
that removes them from the journal. So each record is in exactly one of the two places at every instant, whatever
crashes, and a reader that reads the journal first and then the archive misses none.

Packed records take about a tenth of the space. Nothing but the history reads them, and retention removes them with the
plan.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Protocol

from asterism.core.errors import AsterismError
from asterism.core.plan.journal import SCHEMA, UnreadableJournal, check_schema, lock_to_json
from asterism.core.plan.plan_codec import PlanSnapshot
from asterism.durable import journal_store
from asterism.durable.journal_store import Head, OwnershipLost, StoredConstellation, part_key, record_key, record_number
from asterism.store.protocol import PutRegister, Register, Store, Write
from asterism.store.store_errors import Conflict, StoreError

log = logging.getLogger("asterism.journal")

LONG_JOURNAL = 10_000
"""A journal is compacted when it has this many steps, and ``STEPS_PER_TASK`` for each task."""

STEPS_PER_TASK = 8

TASKS_PER_PIECE = 500
"""How many tasks one piece of work takes into the snapshot."""

STEPS_PER_PIECE = 50
"""For this many steps that the plan takes between two turns of the loop there is one more piece, so that the journal
never grows faster than it is compacted."""

MAX_PIECES_PER_TURN = 20

REMOVED_PER_COMMIT = 20
"""How many old records one commit removes. They may be parts of a snapshot, and large."""

CLEANUP_TIMEOUT = 2.0
"""Seconds that an interrupted compaction waits for the store to remove its parts."""


async def yield_to_loop() -> None:
    await asyncio.sleep(0)


class JournalPort(Protocol):
    """The journal writer, as far as compaction uses it."""

    async def commit(self, *writes: Write) -> None: ...

    async def change_head(self, **changes: object) -> None: ...


class Compaction:
    """Compacts one journal, at most once at a time."""

    def __init__(self, store: Store, stored: StoredConstellation, journal: JournalPort) -> None:
        self._store, self._stored, self._journal = store, stored, journal
        self._cut: tuple[PlanSnapshot, str, int] | None = None
        self._task: asyncio.Task[None] | None = None
        self._garbage = list(stored.garbage)
        self._parts: list[str] = []  # keys that may have been written, of a snapshot that does not count yet
        self._number: int | None = None  # of that snapshot, once the head may name it
        self._failed = False
        self._pieces = 0  # how many pieces may follow before the next turn of the loop
        self._seen = 0  # the number of steps when that was computed

    def cut(self, steps: int) -> None:
        """A record with so many steps is about to be written. The plan is now exactly what it says."""
        stored = self._stored
        known = stored.steps + steps
        if known < LONG_JOURNAL or self._task is not None or self._failed:
            return
        if known >= STEPS_PER_TASK * len(stored.plan):
            self._cut = (
                stored.plan.take_snapshot(),
                json.dumps({"lock": lock_to_json(stored.lock)}, separators=(",", ":")),
                known,
            )

    def written(self) -> None:
        """That record is in the store, so this process is the owner: start what is due."""
        cut, self._cut = self._cut, None
        garbage, self._garbage = self._garbage, []
        if cut is not None or garbage:
            self._task = asyncio.get_running_loop().create_task(self._run(cut, garbage, self._stored.number))

    @property
    def running(self) -> bool:
        return self._task is not None

    async def wait(self) -> None:
        """Wait until none is running."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def close(self, lost: bool) -> None:
        """Interrupt it, and remove its parts, unless ownership is ``lost``: another process may then use them."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if not lost:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLEANUP_TIMEOUT):
                    await self._remove(await self._unnamed_parts())

    async def _unnamed_parts(self) -> list[str]:
        """The parts that the head does not name: of a plan that has ended, no later owner would remove them."""
        if self._number is not None:
            try:
                head, _ = await journal_store.read_head(self._store, self._stored.plan.id)
            except AsterismError:
                return []
            if head.snapshot == self._number:
                return []
        return self._parts

    async def _run(self, cut: tuple[PlanSnapshot, str, int] | None, garbage: Sequence[str], number: int) -> None:
        try:
            await self._remove(garbage)
            if cut is not None:
                await self._compact(*cut, number)
        except OwnershipLost as error:
            log.info("the journal of plan %s is not compacted: %s", self._stored.plan.id, error)
        except Exception:  # the journal is unharmed; compaction is not tried again
            self._failed = True
            log.exception("the journal of plan %s cannot be compacted", self._stored.plan.id)
        finally:
            self._stored.plan.snapshot = None
            self._task = None

    async def _compact(self, frozen: PlanSnapshot, lock: str, known: int, number: int) -> None:
        stored, before = self._stored, self._stored.head
        self._pieces, self._seen = 0, stored.steps
        while not frozen.complete:
            frozen.copy_nodes(TASKS_PER_PIECE)
            await self._piece_done()
        stored.plan.snapshot = None
        part = ""
        for piece in _text(frozen, lock):
            part += piece
            if len(part) < journal_store.PART_LENGTH:
                await self._piece_done()
                continue
            rest = len(part) % journal_store.PART_LENGTH
            for start in range(0, len(part) - rest, journal_store.PART_LENGTH):
                await self._put(number, part[start : start + journal_store.PART_LENGTH])
            part = part[len(part) - rest :]
        if part:
            await self._put(number, part)
        self._number = number
        await self._journal.change_head(first=number + 1, snapshot=number, parts=len(self._parts))
        self._parts, self._number = [], None
        stored.steps -= known
        await self._remove(list(_replaced_keys(before, number)))

    async def _piece_done(self) -> None:
        self._pieces -= 1
        if self._pieces <= 0:
            await yield_to_loop()
            steps = self._stored.steps
            self._pieces, self._seen = min((steps - self._seen) // STEPS_PER_PIECE, MAX_PIECES_PER_TURN), steps

    async def _put(self, number: int, text: str) -> None:
        key = part_key(self._stored.plan.id, number, len(self._parts))
        self._parts.append(key)
        await self._journal.commit(PutRegister(key, {"schema": SCHEMA, "text": text}, None))

    async def _remove(self, keys: Sequence[str]) -> None:
        """Remove parts of snapshots, and move records into the archive, as far as the store allows: what is left does
        no harm."""
        name = self._stored.plan.id
        records = [int(key.rpartition("/")[2]) for key in keys if key.startswith("journal/")]
        keys = [key for key in keys if not key.startswith("journal/")]
        try:
            await archive_records(self._store, name, records, yield_to_loop)
        except StoreError as error:
            log.info("old records of plan %s could not be archived: %s", name, error)
            return
        for start in range(0, len(keys), REMOVED_PER_COMMIT):
            some = keys[start : start + REMOVED_PER_COMMIT]
            try:
                try:
                    await self._store.commit([PutRegister(key, None, 1) for key in some])
                except Conflict:  # some of them do not exist
                    for key in some:
                        with contextlib.suppress(Conflict):
                            await self._store.commit([PutRegister(key, None, 1)])
            except StoreError as error:
                log.info("old records of plan %s could not be removed: %s", self._stored.plan.id, error)
                return


def _text(frozen: PlanSnapshot, rest: str) -> Iterator[str]:
    yield '{"plan":'
    yield from frozen.chunks()
    yield f",{rest[1:]}"


def _replaced_keys(before: Head, number: int) -> Iterator[str]:
    """The keys that a snapshot of all records up to a number replaces."""
    if before.snapshot is not None:
        yield from (part_key(before.name, before.snapshot, index) for index in range(before.parts))
    yield from (record_key(before.name, old) for old in range(before.first, number + 1))


# -- journal archive ---------------------------------------------------------------------------------------------------


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
                records = [record for record in await store.registers(block) if record_number(record) in chosen]
                for pack in _packs(records):
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
    numbers = [record_number(record) for record in pack]
    numbered = [[number, record.value] for number, record in zip(numbers, pack, strict=True)]
    text = json.dumps(numbered, separators=(",", ":"))
    packed = base64.b64encode(zlib.compress(text.encode())).decode("ascii")
    value = {"schema": SCHEMA, "first": numbers[0], "last": numbers[-1], "packed": packed}
    return [
        PutRegister(archive_key(name, numbers[0]), value, None),
        *(PutRegister(record.key, None, record.revision) for record in pack),
    ]


# -- reading -----------------------------------------------------------------------------------------------------------


async def read_archive(store: Store, name: str, first: int) -> dict[int, Any]:
    """The archived records of a plan from number ``first`` on. Read the journal before: a record may be moved into the
    archive in between. Raises UnreadableJournal."""
    records: dict[int, Any] = {}
    for register in await store.registers(archive_prefix(name)):
        if isinstance(register.value, Mapping) and register.value.get("last", first) >= first:
            records |= _unpack(register)
    return {number: value for number, value in records.items() if number >= first}


def _unpack(register: Register) -> dict[int, Any]:
    try:
        check_schema(register.value, register.key)
        pairs = json.loads(zlib.decompress(base64.b64decode(register.value["packed"])))
        return {int(number): value for number, value in pairs}
    except (LookupError, TypeError, ValueError, zlib.error) as error:
        raise UnreadableJournal(f"{register.key} cannot be read: {error!r}") from None
