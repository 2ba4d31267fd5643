"""Tests of dump and load: a backup of one engine can be restored into another, without owners."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from asterism.core.run import transitions
from asterism.core.run.run import OWNED, REASSIGNING, Progress, Run
from asterism.core.run.session import ENDED, REPLACED
from asterism.store import dump_format
from asterism.store.memory import MemoryStore
from asterism.store.protocol import NOTIFIED, Notice, ProgressReport, PutRegister, PutRun, Query, Store
from asterism.store.store_errors import StoreCorrupt, StoreError, UnknownSchema
from asterism.testing.conformance import StoreTests
from asterism.testing.store_conformance.sample_records import (
    FAR,
    FLOW,
    Contents,
    a_run,
    a_session,
    added,
    assigned_to,
    completed,
    contents,
    held_by,
    joined,
    lines_of,
    offer,
    raising,
    series_of,
    started,
    taking,
)

Line = Mapping[str, Any]


async def _dumped(store: Store) -> list[Line]:
    """Return the lines as they come out of a file."""
    return [json.loads(json.dumps(line)) async for line in store.dump()]


def _said(line: Line) -> str:
    """Return a line without the number of a notice, which only has to grow."""
    return json.dumps({name: value for name, value in line.items() if name != "number"})


async def _filled(store: Store) -> None:
    kitchen, garage = a_session(profile={"os": "linux"}), a_session("garage-1", "garage", state=REPLACED)
    await joined(store, kitchen, garage, a_session("kitchen-0", state=ENDED, can=frozenset({"gpu"})))
    blob = await store.put_blob(b"\0large\xff")
    await store.put_blob(b"nobody's")
    working = started(held_by(a_run(4, given={"$blob": blob, "size": 7}), kitchen))
    await added(
        store,
        a_run(1, key="once", priority=5, device="kitchen"),
        a_run(2, series="x"),
        assigned_to(a_run(3), garage),
        working,
        transitions.cancel(held_by(a_run(5), kitchen), 60.0, "ann"),
        transitions.pause(held_by(a_run(6), kitchen), 60.0, "ann: for the night"),
        completed(held_by(a_run(7), garage), {"ü": [1.5, None]}),
        transitions.lose(held_by(a_run(8), kitchen), FLOW, 80.0, "no heartbeat arrived"),
        transitions.cancel(held_by(transitions.release_hold(a_run(9, series="x"), 9.0), kitchen), 60.0, "ann"),
    )
    await store.commit([PutRegister("a", {"x": 1}, None), series_of("x", active="r0009", queue=["r0002"])])
    await store.commit([PutRegister("a", {"x": 2}, 1)])
    for number in range(3):
        await store.commit([Notice(float(number), "info", f"the {number}th", "r0001", "kitchen")])
    await store.heartbeat("kitchen-1", {"os": "linux"}, [ProgressReport(working.id, 1, Progress(1, 2), "words")])


def _restored(before: Contents, after: Contents) -> None:
    """Assert that ``after`` is what a restored ``before`` has to be."""
    assert after.unnumbered_notices() == before.unnumbered_notices()
    assert [register[:2] for register in after.registers] == [register[:2] for register in before.registers]
    assert after.sessions.keys() == before.sessions.keys()
    assert {session.state for session in after.sessions.values()} == {ENDED}
    assert {session.used for session in after.sessions.values()} == {0}
    for name, session in after.sessions.items():
        old = before.sessions[name]
        assert (session.device, session.can, session.profile) == (old.device, old.can, old.profile)
    assert after.runs.keys() == before.runs.keys()
    for run_id, run in after.runs.items():
        if before.runs[run_id].status in OWNED:
            _freed(before.runs[run_id], run)
        else:
            assert run == before.runs[run_id]


def _freed(before: Run, run: Run) -> None:
    assert run.session is None
    assert run.revision > before.revision
    assert run.epoch == before.epoch
    assert run.story[: len(before.story)] == before.story
    assert run.due_at is None
    assert run.stop_request is None
    assert run.losses == before.losses  # a restore is not a loss
    assert run.previous[-1][:2] == (before.device, before.epoch)
    if before.stop_request == "cancel" and before.series is None:
        assert run.cancelled
        return
    assert run.status is REASSIGNING
    assert run.device is None
    assert (run.paused is None) == (before.stop_request is None)


class DumpTests(StoreTests):
    """Tests of ``dump`` and ``load``."""

    async def test_a_dump_has_no_credential_and_none_is_restored(self, store: Store) -> None:
        """A revoked token would be valid again, and a person who finds a backup could act as the server."""
        secrets = [f"{prefix}x" for prefix in dump_format.CREDENTIALS]
        await store.commit([PutRegister(key, {"secret": "hush"}, None) for key in (*secrets, "gateway/device/lab-1")])
        lines = await _dumped(store)
        assert [line["register"]["key"] for line in lines if "register" in line] == ["gateway/device/lab-1"]
        older = [{"register": {"key": key, "value": {"secret": "hush"}, "revision": 1}} for key in secrets]
        empty = MemoryStore()
        await empty.load(lines_of([*lines, *older]))
        assert [register.key for register in await empty.registers("")] == ["gateway/device/lab-1"]

    async def test_enrolled_devices_are_revoked_by_a_restore_unless_they_are_kept(self, store: Store) -> None:
        """One may have been revoked after the dump."""
        enrolment = {"key": "k", "can": None, "enrolled_at": 1.0, "revoked_at": None}
        await store.commit([PutRegister(f"{dump_format.ENROLMENTS}lab-1", enrolment, None)])
        lines = await _dumped(store)
        for keep in (False, True):
            empty = MemoryStore()
            await empty.load(lines_of(lines), keep_devices=keep)
            [register] = await empty.registers(dump_format.ENROLMENTS)
            assert (register.value["revoked_at"] is None) is keep

    async def test_an_empty_store_is_dumped_and_loaded(self, store: Store) -> None:
        lines = await _dumped(store)
        assert lines == [dump_format.HEADER]
        assert await store.load(lines_of(lines)) == 0
        assert await contents(store) == ({}, {}, [], [])

    async def test_a_backup_is_the_same_for_every_engine(self, store: Store) -> None:
        reference = MemoryStore()
        for one in (store, reference):
            await _filled(one)
        mine, theirs = await _dumped(store), await _dumped(reference)
        assert mine[0] == theirs[0] == dump_format.HEADER
        for kind in ("run", "register", "notice", "blob"):
            ours, others = ([_said(line) for line in lines if kind in line] for lines in (mine, theirs))
            assert sorted(ours) == sorted(others), kind
        assert len(mine) == len(theirs)
        assert [line["notice"]["message"] for line in mine if "notice" in line] == ["the 0th", "the 1th", "the 2th"]

    async def test_a_restored_store_holds_the_same_records_and_no_run_has_an_owner(self, store: Store) -> None:
        await _filled(store)
        before = await contents(store)
        lines = await _dumped(store)
        assert await contents(store) == before
        fresh, reference = await self.open_store(), MemoryStore()
        try:
            for one in (fresh, reference):
                assert await one.load(lines_of(lines)) == 9
                after = await contents(one)
                _restored(before, after)
                assert await one.orphans(FAR, 10) == []
                assert await one.reports(list(after.runs)) == {}
                assert not (await one.heartbeat("kitchen-1", {}, [])).alive
                assert await one.blob(after.runs["r0004"].input["$blob"]) == b"\0large\xff"
                assert len([line for line in await _dumped(one) if "blob" in line]) == 2
                assert await one.check() == []
            session = a_session("garage-2", "garage")
            await joined(fresh, session)
            taken = await fresh.take(offer("garage", now=FAR), taking(session))
            assert [run.id for run in taken] == ["r0003", "r0004", "r0008"]
            assert [run.epoch for run in taken] == [2, 2, 2]
        finally:
            await fresh.close()

    async def test_a_backup_of_another_engine_can_be_restored(self, store: Store) -> None:
        reference = MemoryStore()
        await _filled(reference)
        assert await store.load(lines_of(await _dumped(reference))) == 9
        _restored(await contents(reference), await contents(store))
        again = MemoryStore()
        assert await again.load(lines_of(await _dumped(store))) == 9
        assert (await contents(again)).comparable() == (await contents(store)).comparable()

    async def test_seen_notices_count_as_seen_after_a_restore(self, store: Store) -> None:
        for number in range(7):
            await store.commit([Notice(float(number), "failed", f"the {number}th")])
        numbers = [number for number, _ in await store.notices()]
        await store.commit([PutRegister(NOTIFIED, {"after": numbers[4]}, None)])
        await store.prune(3.0, 10)  # two of the seen notices are left
        lines = await _dumped(store)
        fresh = await self.open_store()
        await fresh.commit([Notice(0.0, "failed", "of its own")])  # so that its numbers differ
        try:
            for one in (fresh, MemoryStore()):
                await one.load(lines_of(lines))
                cursor = await one.register(NOTIFIED)
                assert cursor is not None
                left = await one.notices(after=cursor.value["after"])
                assert [notice.message for _, notice in left] == ["the 5th", "the 6th"]
        finally:
            await fresh.close()

    async def test_unseen_notices_are_delivered_after_a_restore(self, store: Store) -> None:
        reference = MemoryStore()
        await reference.commit([Notice(0.0, "failed", "the first")])
        header, numbered = await _dumped(reference)
        seen = {"register": {"key": NOTIFIED, "value": {"after": 1}, "revision": 1}}
        unseen = {"register": {"key": NOTIFIED, "value": {"after": 0}, "revision": 1}}
        of_old = {"notice": numbered["notice"]}  # of an old backup, which does not number its notices
        for lines in ([header, numbered], [header, unseen, numbered], [header, seen, of_old]):
            fresh = await self.open_store()
            try:
                await fresh.load(lines_of(lines))
                assert await fresh.register(NOTIFIED) is None
            finally:
                await fresh.close()

    async def test_a_large_backup_is_restored_completely(self, store: Store) -> None:
        reference = MemoryStore()
        await added(reference, *(a_run(number, given={"number": number}) for number in range(1203)))
        assert await store.load(lines_of(await _dumped(reference))) == 1203
        assert (await contents(store)).runs == (await contents(reference)).runs

    async def test_a_backup_is_not_restored_into_a_store_that_is_not_empty(self, store: Store) -> None:
        reference = MemoryStore()
        await _filled(reference)
        lines = await _dumped(reference)
        await added(store, a_run("mine"))
        with raising(StoreError):
            await store.load(lines_of(lines))
        assert await store.find(Query()) == [a_run("mine")]
        assert await store.sessions(ended=True) == []

    async def test_input_that_is_not_a_backup_is_refused(self, store: Store) -> None:
        reference = MemoryStore()
        await _filled(reference)
        header, *lines = await _dumped(reference)
        run = next(line["run"] for line in lines if "run" in line)
        with raising(UnknownSchema):
            await store.load(lines_of([{**header, "version": dump_format.VERSION + 1}]))
        headless: list[list[Line]] = [
            [],
            lines,
            [{"asterism": "plan", "version": 1}],
            [{}],
            [{**header, "version": "1"}],
        ]
        for wrong in headless:
            with raising(StoreCorrupt):
                await store.load(lines_of(wrong))
        broken: list[Any] = [
            {"unknown": 1},
            {},
            [],
            None,
            {"run": None},
            {"run": 5},
            {"run": []},
            {"run": run[:-1]},
            {"run": [*run[:11], "no status", *run[12:]]},
            {"run": [*run[:-1], "no json"]},
            {"run": [*run[:14], "ann", *run[15:]]},
            {"session": []},
            {"session": None},
            {"register": {"key": 5, "value": 1}},
            {"register": {"value": 1}},
            {"notice": {"at": 1.0}},
            {"notice": {"at": 1.0, "kind": "x", "message": "y", "more": 1}},
            {"notice": None},
            {"blob": "no base64!"},
            {"blob": 5},
        ]
        for line in broken:
            with raising(StoreCorrupt):
                await store.load(lines_of([header, line]))
        with raising(StoreCorrupt):
            await store.load(lines_of([header, {"run": run}, {"run": run}]))
        assert await contents(store) == ({}, {}, [], [])
        assert await store.load(lines_of([header, {"run": run}])) == 1

    async def test_a_backup_is_of_one_instant_while_others_write(self, store: Store, other: Store) -> None:
        """Every commit changes the first and the last register, and a run: a backup has all of a commit or nothing."""
        filling = [PutRegister(f"m{number:03d}", "x" * 1000, None) for number in range(200)]
        await store.commit([PutRegister("a", 0, None), *filling, PutRegister("z", 0, None), PutRun(a_run(0), None)])
        for begin in range(0, 12, 4):
            lines: list[Line] = []
            async for line in store.dump():
                lines.append(line)
                if len(lines) in (1, 2, 50):  # a slow reader
                    await _write_pairs(other if len(lines) > 1 else store, begin + (1, 2, 50).index(len(lines)))
            values = {line["register"]["key"]: line["register"]["value"] for line in lines if "register" in line}
            assert values["a"] == values["z"]
            assert len([line for line in lines if "run" in line]) == values["a"] + 1
            assert len(values) == 202
            await _write_pairs(other, begin + 3)
        assert (await store.registers("z"))[0].value == 12

    async def test_an_abandoned_backup_blocks_nothing(self, store: Store) -> None:
        await _filled(store)
        for _ in range(3):
            dump = store.dump()
            assert await anext(dump) == dump_format.HEADER
            await dump.aclose()  # type: ignore[attr-defined]
        async with asyncio.TaskGroup() as tasks:
            for number in range(5):
                tasks.create_task(store.commit([PutRegister(f"b{number}", 1, None)]))
        assert len(await store.registers("b")) == 5


async def _write_pairs(store: Store, number: int) -> None:
    """Return the writes that increment ``number``."""
    more = number + 1
    await store.commit([PutRegister("a", more, more), PutRegister("z", more, more), PutRun(a_run(more), None)])
