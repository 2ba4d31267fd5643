"""A whole store as lines of JSON, the same for every engine: a backup of one can be restored into another.

What is restored is what is true again, with one exception: nobody owns anything. The devices of the old store may have
gone on after the backup was made, so their sessions are over, and what they held is assigned anew.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace
from typing import Any

from asterism.core.run import OWNED, REASSIGNING, Run
from asterism.core.session import ENDED, Session
from asterism.core.story import Entry
from asterism.store import codec
from asterism.store.errors import StoreCorrupt
from asterism.store.protocol import Notice, PutRegister, PutRun, PutSession, Register, Store, Write

VERSION = 1
HEADER: Mapping[str, Any] = {"asterism": "store", "version": VERSION}
AT_ONCE = 500


def line(record: Run | Session | Register | Notice) -> dict[str, Any]:
    """One record as a line."""
    match record:
        case Run():
            return {"run": [*codec.fixed(record), *codec.moving(record)]}
        case Session():
            return {"session": codec.session_row(record)}
        case Register():
            return {"register": record._asdict()}
        case Notice():
            return {"notice": codec.notice_to_json(record)}


def blob_line(data: bytes) -> dict[str, Any]:
    return {"blob": base64.b64encode(data).decode()}


def blobs_of(run: Run) -> Iterator[str]:
    """The large things that a run refers to."""
    for value in (run.input, run.output):
        if isinstance(value, Mapping) and set(value) == {"$blob", "size"}:
            yield value["$blob"]


async def load(store: Store, lines: AsyncIterator[Mapping[str, Any]]) -> int:
    """Put every record into an empty store. Raises StoreCorrupt for what is no dump, Conflict for what is there
    already."""
    header = await anext(lines, None)
    if header != HEADER:
        raise StoreCorrupt(f"this is no backup that this version can read: it begins with {str(header)[:80]}")
    writes: list[Write] = []
    runs = 0
    async for one in lines:
        write = await _write(store, one)
        if write is not None:
            writes.append(write)
            runs += isinstance(write, PutRun)
        if len(writes) >= AT_ONCE:
            await store.commit(writes)
            writes = []
    await store.commit(writes)
    return runs


async def _write(store: Store, one: Mapping[str, Any]) -> Write | None:
    match one:
        case {"run": row}:
            return PutRun(_freed(codec.run_of(row), store.clock()), None)
        case {"session": row}:
            return PutSession(replace(codec.session_of(row), state=ENDED), None)
        case {"register": {"key": key, "value": value}}:
            return PutRegister(key, value, None)
        case {"notice": notice}:
            return codec.notice_of(notice)
        case {"blob": text}:
            await store.keep_blob(base64.b64decode(text))
            return None
    raise StoreCorrupt(f"a line of the backup is not known: {str(one)[:80]}")


def _freed(run: Run, now: float) -> Run:
    if run.status not in OWNED:
        return run
    story = (*run.story, Entry(now, "reassigning", None, "the store was restored from a backup"))
    return run.changed(
        status=REASSIGNING,
        revision=run.revision + 1,
        session=None,
        due_at=None,
        waiting_since=now,
        wish=None,
        story=story,
    )
