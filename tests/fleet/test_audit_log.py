"""The audit log of each store engine: appended, searched in pages, kept for a time, and masked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from asterism.core.record import replace
from asterism.fleet import audit_log
from asterism.fleet.audit_log import AuditEntry, AuditFilter, AuditLog, remove_entries, write_of
from asterism.store.memory import MemoryStore
from asterism.store.store_errors import StoreUnavailable
from asterism.store.url import open_store

DAY = 86_400.0
KEEP = 90 * DAY


@asynccontextmanager
async def opened(engine: str, folder: Path, request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    if engine == "memory":
        store: Any = MemoryStore()
    else:
        url = f"sqlite:///{folder}/a.db" if engine == "sqlite" else request.getfixturevalue("postgres_url")
        store = await open_store(url)
    try:
        yield store
    finally:
        await store.close()


async def found(trail: AuditLog, keep: float = KEEP, after: str | None = None, **wanted: Any) -> list[AuditEntry]:
    return [kept.entry async for kept in trail.entries(AuditFilter(**wanted), keep, after)]


@pytest.mark.parametrize("engine", ["memory", "sqlite", "postgres"])
async def test_entries_are_found_newest_first_by_what_they_say(
    engine: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with opened(engine, tmp_path, request) as store:
        trail, now = AuditLog(store), store.clock()
        first = AuditEntry(now - 3 * DAY, "ann", "edit_plan", "done", "release", credential="c1", kind="token")
        entries = [
            first,
            replace(first, at=now - 2 * DAY, by="bob", target="release/17", operation="approve_edit"),
            replace(first, at=now - 10.0, target="released", outcome="refused", detail="this needs the scope operate"),
        ]
        await asyncio.gather(*(trail.append(entry) for entry in entries))
        newest = entries[::-1]
        assert await found(trail) == newest
        assert await found(trail, by="bob") == [entries[1]]
        assert await found(trail, by="c1", operation="edit_plan") == [entries[2], first]
        assert await found(trail, target="release") == [entries[1], first], "not that of a longer name"
        assert await found(trail, outcome="refused") == [entries[2]]
        assert await found(trail, since=now - 2.5 * DAY, until=now - 60) == [entries[1]]
        assert await found(trail, keep=DAY) == [entries[2]]
        [place, *_] = [kept.id async for kept in trail.entries(AuditFilter(), KEEP)]
        assert await found(trail, after=place) == newest[1:]
        assert await remove_entries(store, now - DAY) == 2
        assert await found(trail) == [entries[2]]
        assert await remove_entries(store, now - DAY) == 0


async def test_days_before_the_first_entry_are_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    trail = AuditLog(MemoryStore())
    entry = AuditEntry(trail.store.clock() - 5 * DAY, "ann", "edit_plan", "done")
    await trail.append(entry)
    read, asked = trail.store.registers, []

    async def counted(prefix: str, most: int | None = None) -> Any:
        asked.append(prefix)
        return await read(prefix, most)

    monkeypatch.setattr(trail.store, "registers", counted)
    assert await found(trail, keep=100 * 365 * DAY) == [entry]
    assert len(asked) == 7  # the oldest entry, and six days


@pytest.mark.parametrize("far", [-6.8e16, 6.8e16, float("inf"), float("-inf"), float("nan")])
async def test_times_that_are_no_dates_are_before_or_after_all_entries(far: float) -> None:
    trail = AuditLog(MemoryStore())
    entry = AuditEntry(trail.store.clock() - 1.0, "ann", "edit_plan", "done")
    await trail.append(entry)
    assert await found(trail, since=far) == ([entry] if far < 0 else [])
    assert await found(trail, until=far) == ([entry] if far > 0 else [])
    assert await found(trail, keep=abs(far)) == [entry]


async def test_entries_of_one_moment_share_a_commit() -> None:
    store, commits = MemoryStore(), []
    commit = store.commit

    async def counted(writes: Any) -> None:
        commits.append(len(writes))
        await asyncio.sleep(0)
        await commit(writes)

    store.commit = counted  # type: ignore[method-assign]
    trail = AuditLog(store)
    await asyncio.gather(*(trail.append(AuditEntry(store.clock(), "ann", "x", "done")) for _ in range(50)))
    assert sum(commits) == 50
    assert len(commits) <= 3
    await store.close()


async def test_an_entry_that_cannot_be_stored_is_in_the_log_of_the_process(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()

    async def away(writes: Any) -> None:
        raise StoreUnavailable("gone")

    store.commit = away  # type: ignore[method-assign]
    with caplog.at_level(logging.ERROR):
        await AuditLog(store).append(AuditEntry(1.0, "ann", "cancel_plan", "done", "release"))
    assert "cancel_plan" in caplog.text
    assert "ann" in caplog.text
    await store.close()


def test_texts_are_masked_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPLOY_TOKEN", "tiger-on-the-roof")
    entry = AuditEntry(1.0, "ann", "edit_plan", "done", "tiger-on-the-roof", "x" * 10_000, "use tiger-on-the-roof now")
    written = write_of(entry).value
    assert (written["target"], written["reason"]) == ("[secret]", "use [secret] now")
    assert len(written["detail"]) == audit_log.LONGEST_TEXT
    monkeypatch.setattr(audit_log, "environment_mask", lambda names: _NoMask())
    assert "tiger" in write_of(entry).value["reason"], "without the mask the secret is shown"


class _NoMask:
    def text(self, text: str) -> str:
        return text


async def test_old_months_and_days_are_removed_whole() -> None:
    store = MemoryStore()
    trail, now = AuditLog(store), 1_790_000_000.0
    ages = (0, 1, 20, 40, 100, 400, 900)
    for age in ages:
        await trail.append(AuditEntry(now - age * DAY, "ann", f"age_{age}", "done"))
    assert await remove_entries(store, now - 30 * DAY) == 4
    left = [audit_log.AuditEntry.from_json(register.value).operation for register in await store.registers("audit/")]
    assert sorted(left) == ["age_0", "age_1", "age_20"]
    await store.close()


async def test_an_entry_is_written_although_who_writes_it_is_cancelled() -> None:
    """Entries of one moment share a commit: one caller makes it, and the others wait for it."""

    class Slow(MemoryStore):
        async def commit(self, writes: Any) -> None:
            begun.put_nowait(None)
            await goes_on.get()
            await super().commit(writes)

    begun, goes_on = asyncio.Queue[None](), asyncio.Queue[None]()
    store = Slow()
    trail, entry = AuditLog(store), AuditEntry(store.clock(), "ann", "edit_plan", "done", "release")
    first = asyncio.create_task(trail.append(entry))
    await begun.get()
    makes_it = asyncio.create_task(trail.append(replace(entry, by="bob")))
    waits = asyncio.create_task(trail.append(replace(entry, by="eve")))
    await asyncio.sleep(0)  # both are in line
    goes_on.put_nowait(None)
    await begun.get()
    makes_it.cancel()
    goes_on.put_nowait(None)
    await asyncio.gather(first, waits)
    assert [kept.by for kept in await found(trail)] == ["eve", "bob", "ann"]
    await asyncio.wait([makes_it])
    assert makes_it.cancelled()
    await store.close()
