"""A long journal begins anew with a snapshot, while the constellation goes on.

When a record is cut, the plan is exactly what the journal says up to that record. At that instant it is frozen
(``snapshot.py``); from then on it is taken and written in small pieces, between which everybody else has a turn.
The text goes into the store in parts under keys of their own, and each is committed with the next record of the
journal: so only the owner can write one, and whoever takes over has seen all there are. The journal goes on all the
while. The snapshot counts from the commit that names it in the head, together with the first record after it. If the
owner dies before that, the journal is as if nothing had been begun; if after, what was there before is litter. Whoever
takes the constellation up removes litter when it is sure to be the owner.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Iterator, Sequence
from typing import Protocol

from asterism.core.plan.journal import SCHEMA, lock_to_json
from asterism.core.plan.plan_codec import Snapshot
from asterism.durable import journal_store
from asterism.durable.journal_store import Head, Kept, NotOurs, part_key, record_key
from asterism.store.protocol import PutRegister, Store, Write
from asterism.store.store_errors import Conflict, StoreError

log = logging.getLogger("asterism.journal")

LONG = 10_000
"""So many steps, and several for each task, make a journal worth shortening."""

PER_TASK = 8
TAKEN = 500
"""So many tasks are taken at a time."""

STEPS_A_PIECE = 50
"""For so many steps that the constellation has taken since the last turn there is one more piece, so that where turns
are long and full the journal does not grow faster than it is shortened."""

MOST_PIECES = 20
"""But no more than so many between two turns."""

AT_ONCE = 20
"""So many old records are removed in one commit. They may be parts of a snapshot, and large."""

FAREWELL = 2.0
"""How long one that is broken off waits for the store to remove what it had written, in seconds."""


async def a_turn_for_others() -> None:
    await asyncio.sleep(0)


class Writer(Protocol):
    """A journal, as it is used here."""

    async def commit(self, *writes: Write) -> None: ...

    async def change_head(self, **changes: object) -> None: ...


class Shortening:
    """Of one journal. At most one is under way at a time."""

    def __init__(self, store: Store, kept: Kept, journal: Writer) -> None:
        self._store, self._kept, self._journal = store, kept, journal
        self._cut: tuple[Snapshot, str, int] | None = None
        self._going: asyncio.Task[None] | None = None
        self._litter = list(kept.litter)
        self._parts: list[str] = []  # of one that does not count yet, as far as they may have been written
        self._given_up = False
        self._pieces, self._seen = 0, 0  # how many may follow before the next turn; the steps when that was settled

    def cut(self, steps: int) -> None:
        """A record with so many steps is about to be written. The plan is now as it says."""
        kept = self._kept
        known = kept.steps + steps
        if self._going is None and not self._given_up and known >= max(LONG, PER_TASK * len(kept.plan)):
            self._cut = (kept.plan.take_snapshot(), json.dumps(lock_to_json(kept.lock), separators=(",", ":")), known)

    def written(self) -> None:
        """That record is in the store, so this process is the owner."""
        cut, self._cut = self._cut, None
        litter, self._litter = self._litter, []
        if cut is not None or litter:
            self._going = asyncio.get_running_loop().create_task(self._go(cut, litter, self._kept.number))

    @property
    def under_way(self) -> bool:
        return self._going is not None

    async def over(self) -> None:
        """Wait until none is under way."""
        if self._going is not None:
            await asyncio.wait([self._going])

    async def close(self, lost: bool) -> None:
        """Break off, and leave no litter if that can be known. ``lost`` is that somebody else may be the owner."""
        if self._going is not None:
            self._going.cancel()
            await asyncio.wait([self._going])
        if not lost:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FAREWELL):
                    await self._remove(self._parts)

    async def _go(self, cut: tuple[Snapshot, str, int] | None, litter: Sequence[str], number: int) -> None:
        try:
            await self._remove(litter)
            if cut is not None:
                await self._shorten(*cut, number)
        except NotOurs as error:
            log.info("the journal of %s stays long: %s", self._kept.plan.id, error)
        except Exception:  # the journal is as good as before; it is not tried again and again
            self._given_up = True
            log.exception("the journal of %s cannot be shortened", self._kept.plan.id)
        finally:
            self._kept.plan.snapshot = None
            self._going = None

    async def _shorten(self, frozen: Snapshot, lock: str, known: int, number: int) -> None:
        kept, before = self._kept, self._kept.head
        self._pieces, self._seen = 0, kept.steps
        while not frozen.complete:
            frozen.copy_nodes(TAKEN)
            await self._piece_done()
        kept.plan.snapshot = None
        part = ""
        for piece in _text(frozen, lock):
            part += piece
            if len(part) < journal_store.PART:
                await self._piece_done()
                continue
            rest = len(part) % journal_store.PART
            for start in range(0, len(part) - rest, journal_store.PART):
                await self._put(number, part[start : start + journal_store.PART])
            part = part[len(part) - rest :]
        if part:
            await self._put(number, part)
        parts, self._parts = self._parts, []  # if the head names them or not is for the next one to see
        await self._journal.change_head(first=number + 1, snapshot=number, parts=len(parts))
        kept.steps -= known
        await self._remove(list(_superfluous(before, number)))

    async def _piece_done(self) -> None:
        self._pieces -= 1
        if self._pieces <= 0:
            await a_turn_for_others()
            steps = self._kept.steps
            self._pieces, self._seen = min((steps - self._seen) // STEPS_A_PIECE, MOST_PIECES), steps

    async def _put(self, number: int, text: str) -> None:
        key = part_key(self._kept.plan.id, number, len(self._parts))
        self._parts.append(key)
        await self._journal.commit(PutRegister(key, {"schema": SCHEMA, "text": text}, None))

    async def _remove(self, keys: Sequence[str]) -> None:
        """What is left of it does no harm."""
        for start in range(0, len(keys), AT_ONCE):
            some = keys[start : start + AT_ONCE]
            try:
                try:
                    await self._store.commit([PutRegister(key, None, 1) for key in some])
                except Conflict:  # some of them are not there
                    for key in some:
                        with contextlib.suppress(Conflict):
                            await self._store.commit([PutRegister(key, None, 1)])
            except StoreError as error:
                log.info("old records of %s are left: %s", self._kept.plan.id, error)
                return


def _text(frozen: Snapshot, lock: str) -> Iterator[str]:
    yield '{"plan":'
    yield from frozen.chunks()
    yield f',"lock":{lock}}}'


def _superfluous(before: Head, number: int) -> Iterator[str]:
    """What a snapshot of everything up to a number makes superfluous."""
    if before.snapshot is not None:
        yield from (part_key(before.name, before.snapshot, index) for index in range(before.parts))
    yield from (record_key(before.name, old) for old in range(before.first, number + 1))
