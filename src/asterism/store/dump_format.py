"""Dump format: a whole store as lines of JSON, the same for every engine.

A backup of one engine can be restored into another. A restored store holds the same records, with one exception: no run
has an owner. The devices of the old store may have continued after the backup, so their sessions are ended, and the
runs they held are assigned again; a pause or cancel that a person had asked for takes effect. Revisions of registers
and numbers of notices begin anew. People are not notified again of notices that they have seen.

A copy that is left to a peer and has not ended is part of a backup, marked as such, and is not restored: the peer has
the run and continues it, while the restored store has no peers and would offer it to its devices. It comes back from
the peer once that is invited again. A notice says how many copies there were.

Credentials are neither part of a backup nor restored (``CREDENTIALS``): a person who finds a backup could act as the
server, and a token that was revoked after the backup would be valid again. Schedules are paused: the old store may
still create their work. The keys of enrolled devices are public and
part of a backup. A restore revokes them for the same reason, unless ``keep_devices`` says that none was revoked since.

A store that is not empty is refused, since two histories do not mix. A backup that turns out to be damaged halfway
leaves the store partly filled; discard that store.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import Any

from asterism.core.record import replace
from asterism.core.run.run import OWNED, Run
from asterism.core.run.session import ENDED, Session
from asterism.core.run.transitions import release
from asterism.store import row_codec
from asterism.store.protocol import (
    NOTIFIED,
    Notice,
    PutCopy,
    PutLog,
    PutRegister,
    PutRun,
    PutSession,
    Register,
    Store,
    StoredChunk,
    Write,
    last_notice,
)
from asterism.store.store_errors import Conflict, StoreCorrupt, StoreError, check_schema

VERSION = 3
HEADER: Mapping[str, Any] = {"asterism": "store", "version": VERSION}
LARGEST_BATCH = 500
"""How many records are written or read at once."""

CREDENTIALS = ("answer/", "credential/", "login/", "gateway/secret", "gateway/code/", "peer/")
"""Prefixes of registers with secrets, or with hashes of them: answers that are kept for a credential, tokens and
sessions, logins, the secret of gateways, codes of invitations, and peers."""

ENROLMENTS = "gateway/device/"
"""Prefix of registers with the keys of devices that joined through a server, and whether they are revoked."""

SCHEDULES = "schedule/"
"""Prefix of registers with schedules. The machine of the backup may still run its own: a restored one starts paused."""

NOT_RESTORED = ("store/id", NOTIFIED, "coordinator", "feed/", *CREDENTIALS)
"""Prefixes of registers that belong to one store and are not restored: notices, for instance, are numbered anew, and
the peers of the old store know it by its id."""


def line(
    record: Run | Session | Register | Notice, left_to: str | None = None, number: int | None = None
) -> dict[str, Any]:
    """Return a record as a line. ``left_to`` is the store to which a copy is left, ``number`` that of a notice."""
    match record:
        case Run():
            row = {"run": row_codec.row_of(record)}
            return row if left_to is None or record.ended else {**row, "left_to": left_to}
        case Session():
            return {"session": row_codec.session_row(record)}
        case Register():
            return {"register": record._asdict()}
        case Notice():
            notice = {"notice": record.to_json()}
            return notice if number is None else {**notice, "number": number}


def is_dumped(record: Mapping[str, Any]) -> bool:
    """Whether a line is part of a dump: it holds no credential."""
    register = record.get("register")
    return register is None or not str(register["key"]).startswith(CREDENTIALS)


def log_line(run: str, chunk: StoredChunk) -> dict[str, Any]:
    """Return a chunk of the log of a run as a line."""
    return {"log": [run, *chunk]}


def blob_line(data: bytes) -> dict[str, Any]:
    return {"blob": base64.b64encode(data).decode()}


def blobs_of(run: Run) -> Iterator[str]:
    """The names of the blobs that a run refers to."""
    yield from blob_sizes(run)


def blob_sizes(run: Run) -> dict[str, Any]:
    """Return the blobs that a run refers to, and the size of each in bytes, as the record says."""
    values = (run.input, run.output, *(superseded.output for superseded in run.superseded))
    return {
        value["$blob"]: value["size"]
        for value in values
        if isinstance(value, Mapping) and set(value) == {"$blob", "size"} and isinstance(value["$blob"], str)
    }


def blobs_of_values(values: Iterable[Any]) -> Iterator[str]:
    """The names of the blobs that values refer to: chunks of logs, or registers that keep a blob."""
    for value in values:
        if isinstance(value, Mapping) and isinstance(value.get("$blob"), str):
            yield value["$blob"]


async def load(store: Store, lines: AsyncIterator[Mapping[str, Any]], *, keep_devices: bool = False) -> int:
    """Put every record into an empty store, and return the number of runs. Enrolled devices are revoked, unless
    ``keep_devices``.

    :raises StoreCorrupt: the lines are not a dump, or a damaged one.
    :raises UnknownSchema: the dump is of another version.
    :raises StoreError: the store is not empty.
    """
    _check(await anext(lines, None))
    await _must_be_empty(store)
    writes: list[Write] = []
    seen = _SeenNotices(await last_notice(store))
    runs = 0
    left_out: set[str] = set()
    logs: list[PutLog] = []
    async for record in lines:
        write = await _write(store, record, keep_devices)
        seen.read(record)
        if isinstance(write, PutCopy):
            left_out.add(write.run.id)
        elif isinstance(write, PutLog):
            logs.append(write)
            if len(logs) >= LARGEST_BATCH:
                await _commit(store, writes)
                writes = []
                await _load_logs(store, logs, left_out)
        elif write is not None:
            writes.append(write)
            runs += isinstance(write, PutRun)
        if len(writes) >= LARGEST_BATCH:
            await _commit(store, writes)
            writes = []
    await _commit(store, writes)
    await _load_logs(store, logs, left_out)
    await seen.restore(store)
    if left_out:
        words = f"open runs that were left to peers are not restored: {len(left_out)}"
        await store.commit([Notice(store.clock(), "refused", f"{words}. They come back from those peers")])
    return runs


async def _load_logs(store: Store, logs: list[PutLog], left_out: set[str]) -> None:
    """Write chunks of logs. Their runs come before them in a dump. A run that is not restored has no log either."""
    by_attempt: dict[tuple[str, int], list[StoredChunk]] = {}
    for log in logs:
        if log.run not in left_out:
            by_attempt.setdefault((log.run, log.epoch), []).extend(log.chunks)
    logs.clear()
    try:
        await _commit(store, [PutLog(run, epoch, chunks) for (run, epoch), chunks in by_attempt.items()])
    except Conflict as conflict:
        raise StoreCorrupt(f"the backup has a log of {conflict.what}, but not the run itself") from conflict


class _SeenNotices:
    """How many notices of a backup people have seen. They are the first ones, and get the numbers after ``before``, the
    last one that the store has given."""

    def __init__(self, before: int) -> None:
        self._before = before
        self._numbers: list[int] = []
        self._up_to = 0

    def read(self, record: Mapping[str, Any]) -> None:
        match record:
            case {"notice": _, "number": int(number)}:
                self._numbers.append(number)
            case {"register": {"key": key, "value": {"after": int(after)}}} if key == NOTIFIED:
                self._up_to = after

    async def restore(self, store: Store) -> None:
        left = sum(number <= self._up_to for number in self._numbers)
        after = self._before
        while left and (notices := await store.notices(after=after, limit=min(left, LARGEST_BATCH))):
            after, left = notices[-1][0], left - len(notices)
        if after != self._before:
            await store.commit([PutRegister(NOTIFIED, {"after": after}, None)])


def _check(header: Mapping[str, Any] | None) -> None:
    if header == HEADER:
        return
    match header:
        case {"asterism": "store", "version": int(version)}:
            return check_schema("the backup", version, VERSION, VERSION)
    raise StoreCorrupt(f"this is not a backup that this version can read: it begins with {str(header)[:80]}")


async def _must_be_empty(store: Store) -> None:
    counts = {
        "runs": sum((await store.counts()).values()),
        "sessions": len(await store.sessions(ended=True)),
        "registers": len(await store.registers("")),
    }
    if any(counts.values()):
        there = ", ".join(f"{number} {what[:-1] if number == 1 else what}" for what, number in counts.items() if number)
        raise StoreError(f"a backup can only be restored into an empty store, and {store.url} has {there}")


async def _commit(store: Store, writes: Sequence[Write]) -> None:
    try:
        await store.commit(writes)
    except ValueError as error:
        raise StoreCorrupt(f"the backup contradicts itself: {error}") from error


async def _write(store: Store, record: Mapping[str, Any], keep_devices: bool) -> Write | None:
    try:
        match record:
            case {"run": row, "left_to": str(left_to)} if not (copy := row_codec.run_of(row)).ended:
                return PutCopy(copy, None, left_to)
            case {"run": row}:
                return PutRun(_without_owner(row_codec.run_of(row), store.clock()), None)
            case {"session": row}:
                return PutSession(replace(row_codec.session_of(row), state=ENDED), None)
            case {"register": {"key": str(key)}} if key.startswith(NOT_RESTORED):
                return None
            case {"register": {"key": str(key), "value": value}} if key.startswith(ENROLMENTS) and not keep_devices:
                return PutRegister(key, {**value, "revoked_at": value.get("revoked_at") or store.clock()}, None)
            case {"register": {"key": str(key), "value": {"name": _} as value}} if key.startswith(SCHEDULES):
                return PutRegister(key, {"paused": "by the restore of a backup", **value}, None)
            case {"register": {"key": str(key), "value": value}}:
                return PutRegister(key, value, None)
            case {"notice": notice}:
                return Notice.from_json(notice)
            case {"log": [str(run), int(epoch), int(first), int(lines), value]}:
                return PutLog(run, epoch, [StoredChunk(epoch, first, lines, value)])
            case {"blob": str(text)}:
                await store.put_blob(base64.b64decode(text, validate=True))
                return None
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise StoreCorrupt(f"a line of the backup cannot be read: {str(record)[:80]}: {error!r}") from error
    raise StoreCorrupt(f"unknown line in the backup: {str(record)[:80]}")


def _without_owner(run: Run, now: float) -> Run:
    grant = run.grant
    if (grant is None) != (run.status not in OWNED) or (grant is not None and None in (run.device, run.assigned_at)):
        raise ValueError(f"run {run.id} is {run.status} and owned by {run.session} of {run.device}")
    if grant is None:
        return run
    return release(run, grant, "released", "the store was restored from a backup", now)
