"""The audit log: who changed what, and who was refused it. A record that is only appended to.

Entries are registers by time, in a folder for each day of UTC: ``audit/2026-11-19/TIME…``. No entry is ever
written again, so processes that append at once do not meet. Days older than ``Settings.keep_audit`` are removed.

The entry of new runs, and of an edit by the process that applies it, is in the commit of the change. Any other is a
commit of its own, after the change and before its answer: every change that was answered is in the log. A process that
is killed between the two leaves a change without an entry and without an answer. The story of the plan or run is
written with the change itself and names the caller all the same. If the store cannot be written to, the entry goes to
the log of the process. Entries of one moment share a commit.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
from collections.abc import AsyncGenerator
from datetime import UTC, date, datetime, timedelta
from itertools import count
from typing import Any, NamedTuple

from asterism.base.secret_mask import environment_mask
from asterism.core.record import Record, Struct, field, replace
from asterism.store.optimistic_update import try_commit
from asterism.store.protocol import PutRegister, Register, Store
from asterism.store.row_codec import readable
from asterism.store.store_errors import StoreError

log = logging.getLogger("asterism.audit")

PREFIX = "audit/"

LONGEST_TEXT = 500
"""How many characters a text of an entry has at most; a longer one ends with ``…``."""

OUTCOMES = DONE, REFUSED, FAILED = "done", "refused", "failed"
"""``failed``: it broke off, and may have been done in part."""

PAGE = 200
"""How many entries one commit removes."""


class AuditEntry(Record, omit_defaults=True, forbid_unknown_fields=True):
    """``by`` is the name of the caller, ``credential`` the id of its token or session, and ``kind`` the kind of that:
    ``token``, ``session``, ``proxy`` (a person whom a proxy logged in) or ``local`` (a command that opened the store).
    ``target`` is what was changed, ``detail`` what else tells: the fields of the request, or why it was refused.
    ``address`` is that of the client, ``key`` the idempotency key of the request."""

    at: float
    by: str
    operation: str
    outcome: str
    target: str = ""
    detail: str = ""
    reason: str = ""
    kind: str = "local"
    credential: str = ""
    address: str = ""
    key: str = ""


class KeptEntry(NamedTuple):
    """An entry with its place in the log."""

    id: str
    entry: AuditEntry


class AuditFilter(Record):
    """Entries that satisfy every condition that is given. ``by`` is a name or the id of a credential; ``target`` is the
    whole target, or its beginning up to a ``/``."""

    by: str | None = None
    operation: str | None = None
    target: str | None = None
    outcome: str | None = None
    since: float | None = None
    until: float | None = None

    def matches(self, entry: AuditEntry) -> bool:
        return (
            self.by in (None, entry.by, entry.credential)
            and self.operation in (None, entry.operation)
            and self.outcome in (None, entry.outcome)
            and (self.target is None or f"{entry.target}/".startswith(f"{self.target}/"))
            and (self.since is None or entry.at >= self.since)
            and (self.until is None or entry.at < self.until)
        )


def write_of(entry: AuditEntry, key: str | None = None) -> PutRegister:
    """The write of an entry. Its texts are without the values of secrets of this process, and not too long."""
    mask = environment_mask(())
    shown = {name: getattr(entry, name) for name in ("target", "detail", "reason")}
    texts: dict[str, Any] = {name: mask.text(text) for name, text in shown.items() if text}
    for name, text in texts.items():
        if len(text) > LONGEST_TEXT:
            texts[name] = f"{text[: LONGEST_TEXT - 1]}…"
    return PutRegister(key or new_key(entry.at), replace(entry, **texts).to_json(), None)


class PendingEntry(Struct):
    """The entry of a change under way. Who commits the change may write it in the same commit (``write``), and then
    sets ``written``; otherwise it is appended afterwards."""

    entry: AuditEntry
    written: bool = False
    _key: str | None = None

    def write(self, target: str = "") -> PutRegister:
        """The write beside the change. ``target`` is what was changed, if the entry does not name it yet."""
        self._key = self._key or new_key(self.entry.at)
        return write_of(replace(self.entry, target=self.entry.target or target), self._key)

    async def is_written(self, store: Store) -> bool:
        """Whether the change was made with the entry, also if who made it did not hear of it."""
        if self._key is not None and not self.written:
            with contextlib.suppress(StoreError):
                self.written = await store.register(self._key) is not None
        return self.written


class AuditLog(Struct):
    """The audit log of a store."""

    store: Store
    _unwritten: list[PutRegister] = field(default_factory=list)
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def append(self, entry: AuditEntry) -> None:
        """Write an entry; durable when it returns. If the store cannot be written to, it is logged instead. A caller
        that is cancelled waits all the same: its change is made, and others may wait for this commit."""
        self._unwritten.append(write_of(entry))
        writing = asyncio.ensure_future(self._write())
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.wait([writing])
            raise

    async def _write(self) -> None:
        async with self._writing:  # who waited finds its entry written with those of the others
            writes, self._unwritten = self._unwritten, []
            if not writes:
                return
            try:
                await self.store.commit(writes)
            except StoreError as error:
                for write in writes:
                    log.error("not in the audit log (%s): %s", error, json.dumps(write.value))

    async def entries(
        self, wanted: AuditFilter, keep: float, after: str | None = None
    ) -> AsyncGenerator[KeptEntry, None]:
        """The entries that match, the newest first, from the one after ``after`` on."""
        now = self.store.clock()
        # within what there is, since a time that is no date has no day
        since = min(now, max(0.0, now - keep, 0.0 if wanted.since is None else wanted.since))
        until = max(0.0, min(now, now if wanted.until is None else wanted.until))
        first, last = day_of(since), day_of(until)
        for oldest in await self.store.registers(PREFIX, 1):
            if is_place(place := oldest.key.removeprefix(PREFIX)):
                first = max(first, _day_of_place(place))
        if after is not None:
            last = min(last, _day_of_place(after))
        while last >= first:
            for kept in reversed(readable(_decode, await self.store.registers(f"{PREFIX}{last}/"))):
                if (after is None or kept.id < after) and wanted.matches(kept.entry):
                    yield kept
            last -= timedelta(days=1)


_numbers = count()


def new_key(at: float) -> str:
    """A key for an entry. Those of one process and one microsecond are in the order of their calls."""
    return f"{PREFIX}{day_of(at)}/{round(at * 1e6):017d}-{next(_numbers) % 10**6:06d}-{secrets.token_hex(4)}"


def day_of(at: float) -> date:
    return datetime.fromtimestamp(at, UTC).date()


def _day_of_place(place: str) -> date:
    return date.fromisoformat(place[:10])


def is_place(text: str) -> bool:
    """Whether a text can be the place of an entry."""
    try:
        _day_of_place(text)
    except ValueError:
        return False
    return text[10:11] == "/"


def _decode(register: Register) -> KeptEntry:
    return KeptEntry(register.key.removeprefix(PREFIX), register.read(AuditEntry.from_json))


async def remove_entries(store: Store, before: float) -> int:
    """Remove the days before that of ``before``. Returns how many entries they had."""
    end, removed = f"{PREFIX}{day_of(before)}/", 0
    while old := [entry for entry in await store.registers(PREFIX, PAGE) if entry.key < end]:
        if not await try_commit(store, [PutRegister(entry.key, None, entry.revision) for entry in old]):
            break  # another process removes them
        removed += len(old)
    return removed
