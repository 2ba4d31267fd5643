"""Tests of maintenance: blobs and retention, backups and what is restored of them.

Tests of the change feed: copies that are left to peers, numbered changes, contributions.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
from collections.abc import Mapping
from typing import Any

from asterism.core.json_values import JsonObject
from asterism.core.run import transitions
from asterism.core.run.run import ASSIGNED, CLAIMED, OWNED, REASSIGNING, Progress, Run
from asterism.core.run.session import ABROAD, ENDED, REPLACED, Session
from asterism.store import dump_format
from asterism.store.memory import MemoryStore
from asterism.store.protocol import (
    BLOB_USES,
    FEED,
    NOTIFIED,
    PLANS,
    ChangeFeed,
    Contribution,
    Notice,
    ProgressReport,
    PutCopy,
    PutRegister,
    PutRun,
    PutSession,
    Query,
    Store,
    Usage,
    feed_of,
    for_device,
)
from asterism.store.protocol import ENDED as ENDED_TOPIC
from asterism.store.row_codec import COLUMNS
from asterism.store.store_errors import StoreCorrupt, StoreError, UnknownSchema
from tests.laboratory.store_conformance.sample_records import (
    FAR,
    FLOW,
    WAKE_TIMEOUT,
    Contents,
    StoreTests,
    a_run,
    a_session,
    added,
    after,
    assigned_to,
    completed,
    conflict,
    contents,
    held_by,
    ids,
    joined,
    lines_of,
    offer,
    raising,
    released,
    session_in,
    started,
    taking,
)

# -- blobs and retention -----------------------------------------------------------------------------------------------


LARGE = 10 * 1024 * 1024


def _reference(name: str, data: bytes) -> JsonObject:
    return {"$blob": name, "size": len(data)}


def _ended(number: int, at: float, **more: Any) -> Run:
    return transitions.cancel(a_run(number, **more), at, "ann")


async def _pruned(store: Store, before: float, limit: int = 100) -> int:
    """Prune until no run is left to prune."""
    total = 0
    while number := await store.prune(before, limit):
        total += number
    return total


async def _a_moment(store: Store) -> float:
    """Return a time by the store's clock with no event near it: that clock is real, and may have coarse steps. It is
    the time of a heartbeat as the store recorded it, since ``store.clock`` is only an estimate for a server."""
    await joined(store, a_session("moment-1", "moment"))
    await asyncio.sleep(0.03)  # time has to pass; there is no event to wait for
    await store.heartbeat("moment-1", {}, [])
    await asyncio.sleep(0.03)
    return (await session_in(store, "moment-1")).beat_at


class RetentionTests(StoreTests):
    """Tests of ``put_blob``, ``blob`` and ``prune``."""

    async def test_a_blob_comes_back_byte_for_byte(self, store: Store, other: Store) -> None:
        large = os.urandom(LARGE)
        name = await store.put_blob(large)
        assert await store.blob(name) == large
        assert await other.blob(name) == large

    async def test_blobs_may_be_empty_and_hold_anything(self, store: Store) -> None:
        for data in (b"", b"\0", bytes(range(256)), b"\r\n", "häuser 😀".encode()):
            assert await store.blob(await store.put_blob(data)) == data

    async def test_the_same_bytes_have_the_same_name(self, store: Store, other: Store) -> None:
        names = {await connection.put_blob(b"the same") for connection in (store, other, store)}
        assert len(names) == 1
        assert await store.put_blob(b"another") not in names
        many = await asyncio.gather(
            *(connection.put_blob(b"at once") for connection in (store, other) for _ in range(10))
        )
        assert len(set(many)) == 1
        assert await store.blob(many[0]) == b"at once"

    async def test_an_unknown_name_has_no_blob(self, store: Store) -> None:
        # names come from inputs, which any user writes: an engine with files must not read other files
        name = await store.put_blob(b"something")
        for wrong in (
            "", ".", "..", "/", "unknown", name[:-1], name + "0", name.upper() + "x", "../" + name, f"./{name}",
            "../../../../etc/hostname", "/etc/hostname", __file__, "a\0b", "\ud800", "x" * 5000, "%",
            name[:2] + "/" + name,
        ):  # fmt: skip
            assert await store.blob(wrong) is None, wrong
        assert await store.blob(name) == b"something"

    async def test_only_runs_that_ended_long_ago_are_pruned(self, store: Store, session: Session) -> None:
        remaining = [
            a_run(1),
            a_run(2, series="x"),
            held_by(a_run(3), session),
            started(held_by(a_run(4), session)),
            transitions.pause(a_run(5), 5.0, "ann"),
            _ended(6, 100.0),
            completed(held_by(a_run(7), session), now=150.0),
        ]
        await added(store, *remaining, _ended(8, 99.0), completed(held_by(a_run(9), session), now=99.5))
        assert await store.prune(100.0, 100) == 2
        assert await store.find(Query()) == remaining
        assert await store.run("r0008") is None
        assert await store.prune(100.0, 100) == 0
        assert await _pruned(store, FAR) == 2
        assert await store.find(Query()) == remaining[:5]

    async def test_only_runs_of_a_prefix_are_pruned_and_nothing_else(self, store: Store) -> None:
        runs = [_ended(number, 50.0).changed(key=key) for number, key in enumerate(("a/1", "a/2", "ab/1", None))]
        await added(store, *runs)
        await store.commit([Notice(1.0, "late", "old")])
        assert await store.prune(math.inf, 1, only="a/") == 1
        assert await store.prune(math.inf, 10, only="a/") == 1
        assert await store.prune(math.inf, 10, only="a/") == 0
        assert await store.find(Query()) == runs[2:]
        assert [notice.message for _, notice in await store.notices()] == ["old"]

    async def test_a_limit_bounds_how_many_runs_are_pruned(self, store: Store) -> None:
        await added(store, *(_ended(number, 50.0) for number in range(10)), a_run(11))
        assert await store.prune(FAR, 4) == 4
        assert sum((await store.counts()).values()) == 7
        assert await store.prune(FAR, 4) == 4
        assert await store.prune(FAR, 4) == 2
        assert await store.prune(FAR, 4) == 0
        assert ids(await store.find(Query())) == ["r0011"]

    async def test_runs_of_a_plan_stay_until_it_has_ended(self, store: Store) -> None:
        keys = {1: "plan:a/x/1", 2: "plan:ab/x/1", 3: "plan:%/x/1", 4: None, 5: "pl", 6: "plan:odd/x/1", 7: "plan:a"}
        await added(store, *(_ended(number, 50.0, key=key) for number, key in keys.items()))
        heads = {"a": {"state": "running"}, "%": {"ended_at": None}, "odd": "not a head", "ab": {"ended_at": 50}}
        await store.commit([PutRegister(f"{PLANS}{name}", head, None) for name, head in heads.items()])
        assert await store.prune(FAR, 10) == 3
        assert ids(await store.find(Query())) == ["r0001", "r0003", "r0006", "r0007"]
        assert await store.prune(FAR, 10, only="plan:a") == 0
        await store.commit([PutRegister(f"{PLANS}a", {"ended_at": 50.5}, 1), PutRegister(f"{PLANS}%", None, 1)])
        assert await store.prune(FAR, 10, only="plan:a") == 2
        assert await store.prune(FAR, 10) == 1
        assert ids(await store.find(Query())) == ["r0006"]

    async def test_blobs_are_kept_as_long_as_a_run_refers_to_them(self, store: Store, session: Session) -> None:
        names = {data: await store.put_blob(data) for data in (b"input", b"output", b"both", b"nobody's", b"old")}
        reference = _reference(names[b"input"], b"input")
        run = a_run(1, input=reference)
        done = completed(held_by(a_run(2), session), _reference(names[b"output"], b"output"), now=200.0)
        both = a_run(3, input=_reference(names[b"both"], b"both"))
        old = _ended(4, 50.0, input=_reference(names[b"both"], b"both"))
        older = _ended(5, 40.0, input=_reference(names[b"old"], b"old"))
        odd = a_run(6, input={"$blob": ["no name"], "size": 1})
        await added(store, run, done, both, old, older, odd)
        assert await store.prune(100.0, 1) == 1
        assert await store.blob(names[b"both"]) == b"both"
        assert await _pruned(store, 100.0) == 1
        for data in (b"input", b"output", b"both"):
            assert await store.blob(names[data]) == data
        assert await _pruned(store, FAR) == 1
        left = {data for data, name in names.items() if await store.blob(name) is not None}
        assert left == {b"input", b"both"}
        await store.commit([after(run, transitions.cancel(run, 300.0, "ann"))])
        await store.commit([after(both, transitions.cancel(both, 300.0, "ann"))])
        assert await _pruned(store, FAR) == 2
        assert [await store.blob(name) for name in names.values()] == [None] * 5

    async def test_a_register_keeps_a_blob(self, store: Store) -> None:
        names = [await store.put_blob(data) for data in (b"kept", b"missing", b"nobody's")]
        kept, missing = (PutRegister(f"{BLOB_USES}plan/{name}", _reference(name, b"kept"), None) for name in names[:2])
        named = PutRegister("other", _reference(names[2], b"nobody's"), None)
        await store.commit([kept, named])
        assert await _pruned(store, FAR) == 0
        assert [await store.blob(name) for name in names] == [b"kept", None, None]
        assert await store.check() == []
        await store.commit([missing])
        (problem,) = await store.check()
        assert problem == f"register {missing.key} refers to blob {names[1]}, which does not exist"
        await store.commit([PutRegister(register.key, None, 1) for register in (kept, missing)])
        assert await _pruned(store, FAR) == 0
        assert await store.blob(names[0]) is None

    async def test_a_blob_of_a_run_that_is_not_written_yet_is_not_pruned(self, store: Store) -> None:
        """A blob is put before the run that refers to it is written."""
        fresh = await store.put_blob(b"fresh")
        assert await _pruned(store, store.clock() - 3600.0) == 0
        assert await store.blob(fresh) == b"fresh"

    async def test_a_blob_that_was_put_again_counts_as_new(self, store: Store) -> None:
        """The bytes may exist from an old run: putting them again makes them durable anew."""
        name = await store.put_blob(b"again")
        await added(store, _ended(1, 10.0, input=_reference(name, b"again")))
        stranger = await store.put_blob(b"not again")
        then = await _a_moment(store)
        assert await store.put_blob(b"again") == name
        assert await _pruned(store, then) == 1
        assert await store.blob(name) == b"again"
        assert await store.blob(stranger) is None

    async def test_a_blob_without_a_run_is_pruned_however_long_runs_are_kept(self, store: Store) -> None:
        """Anybody may store blobs to which no run will ever refer."""
        kept, stranger = [await store.put_blob(data) for data in (b"of a run", b"of nobody")]
        run = _ended(1, 10.0, input=_reference(kept, b"of a run"))
        await added(store, run)
        then = await _a_moment(store)
        later = await store.put_blob(b"of a run to come")
        assert await store.prune(0.0, 100, blobs_before=then) == 0
        assert [await store.blob(name) is not None for name in (kept, stranger, later)] == [True, False, True]

    async def test_a_blob_that_was_pruned_can_be_put_again(self, store: Store) -> None:
        name = await store.put_blob(b"something")
        assert await _pruned(store, FAR) == 0
        assert await store.blob(name) is None
        assert await store.put_blob(b"something") == name
        assert await store.blob(name) == b"something"

    async def test_ended_sessions_are_pruned_when_they_own_nothing(self, store: Store) -> None:
        sessions = [
            a_session("open"),
            a_session("replaced", state=REPLACED),
            a_session("ended", state=ENDED),
            a_session("owner", state=ENDED),
        ]
        await joined(store, *sessions)
        orphan = held_by(a_run(1), sessions[3])
        await added(store, orphan, completed(held_by(a_run(2), sessions[2]), now=60.0))
        assert await _pruned(store, 100.0) == 1
        assert len(await store.sessions(ended=True)) == 4  # their heartbeats are of this moment
        assert await _pruned(store, FAR) == 0
        assert {session.id for session in await store.sessions(ended=True)} == {"open", "replaced", "owner"}
        await store.commit([after(orphan, transitions.cancel(orphan, 70.0, "ann"))])
        assert {run.id for run, _ in await store.orphans(FAR, 10)} == {
            "r0001"
        }  # it was claimed: pausing it is a request, not an end

    async def test_old_notices_are_pruned_and_recent_ones_are_not(self, store: Store) -> None:
        notices = [Notice(10.0, "info", "old"), Notice(500.0, "info", "new"), Notice(20.0, "info", "gone", "r0001")]
        await added(store, _ended(1, 30.0))
        await store.commit(notices)
        assert await store.prune(100.0, 10) == 1
        assert await _pruned(store, 100.0) == 0
        assert [notice for _, notice in await store.notices()] == [notices[1]]

    async def test_registers_are_never_pruned(self, store: Store) -> None:
        await store.commit([PutRegister("a", 1, None)])
        assert await _pruned(store, FAR) == 0
        assert await store.register("a") is not None

    async def test_pruning_twice_at_once_counts_each_run_once(self, store: Store, other: Store) -> None:
        await added(store, *(_ended(number, 50.0, key=f"k{number}") for number in range(30)), a_run(40))
        counted = await asyncio.gather(*(_pruned(connection, FAR, limit=7) for connection in (store, other)))
        assert sum(counted) == 30
        assert ids(await store.find(Query())) == ["r0040"]


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
    working = started(held_by(a_run(4, input={"$blob": blob, "size": 7}), kitchen))
    await added(
        store,
        a_run(1, key="once", priority=5, device="kitchen"),
        a_run(2, series="x"),
        assigned_to(a_run(3), garage),
        working,
        transitions.cancel(held_by(a_run(5), kitchen), 60.0, "ann"),
        transitions.pause(held_by(a_run(6), kitchen), 60.0, "ann: for the night"),
        completed(held_by(a_run(7), garage), {"ü": [1.5, None]}),
        transitions.lose(held_by(a_run(8), kitchen), 80.0, "no heartbeat arrived"),
        transitions.cancel(held_by(a_run(9, series="x").changed(admitted=True), kitchen), 60.0, "ann"),
    )
    await store.commit([PutRegister("a", {"x": 1}, None)])
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
    if before.stop_request == "cancel":
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
        for engine in (store, reference):
            await _filled(engine)
        mine, theirs = await _dumped(store), await _dumped(reference)
        assert mine[0] == theirs[0] == dump_format.HEADER
        for kind in ("run", "register", "notice", "blob"):
            ours, others = ([_said(line) for line in lines if kind in line] for lines in (mine, theirs))
            assert sorted(ours) == sorted(others), kind
        assert len(mine) == len(theirs)
        assert [line["notice"]["message"] for line in mine if "notice" in line] == ["the 0th", "the 1th", "the 2th"]

    async def test_a_restored_store_holds_the_same_records_and_no_run_has_an_owner(
        self, store: Store, fresh: Store
    ) -> None:
        await _filled(store)
        before = await contents(store)
        lines = await _dumped(store)
        assert await contents(store) == before
        for restored in (fresh, MemoryStore()):
            assert await restored.load(lines_of(lines)) == 9
            after = await contents(restored)
            _restored(before, after)
            assert await restored.orphans(FAR, 10) == []
            assert await restored.reports(list(after.runs)) == {}
            assert not (await restored.heartbeat("kitchen-1", {}, [])).alive
            assert await restored.blob(after.runs["r0004"].input["$blob"]) == b"\0large\xff"
            assert len([line for line in await _dumped(restored) if "blob" in line]) == 2
            assert await restored.check() == []
        session = a_session("garage-2", "garage")
        await joined(fresh, session)
        taken = await fresh.take(offer("garage", now=FAR), taking(session))
        assert [run.id for run in taken] == ["r0003", "r0004", "r0008"]
        assert [run.epoch for run in taken] == [2, 2, 2]

    async def test_a_backup_of_another_engine_can_be_restored(self, store: Store) -> None:
        reference = MemoryStore()
        await _filled(reference)
        assert await store.load(lines_of(await _dumped(reference))) == 9
        _restored(await contents(reference), await contents(store))
        again = MemoryStore()
        assert await again.load(lines_of(await _dumped(store))) == 9
        assert (await contents(again)).comparable() == (await contents(store)).comparable()

    async def test_seen_notices_count_as_seen_after_a_restore(self, store: Store, fresh: Store) -> None:
        for number in range(7):
            await store.commit([Notice(float(number), "failed", f"the {number}th")])
        numbers = [number for number, _ in await store.notices()]
        await store.commit([PutRegister(NOTIFIED, {"after": numbers[4]}, None)])
        await store.prune(3.0, 10)  # two of the seen notices are left
        lines = await _dumped(store)
        await fresh.commit([Notice(0.0, "failed", "of its own")])  # so that its numbers differ
        for restored in (fresh, MemoryStore()):
            await restored.load(lines_of(lines))
            cursor = await restored.register(NOTIFIED)
            assert cursor is not None
            left = await restored.notices(after=cursor.value["after"])
            assert [notice.message for _, notice in left] == ["the 5th", "the 6th"]

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
        await added(reference, *(a_run(number, input={"number": number}) for number in range(1203)))
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
        status, session = COLUMNS.index("status"), COLUMNS.index("session")
        broken: list[Any] = [
            {"unknown": 1},
            {},
            [],
            None,
            {"run": None},
            {"run": 5},
            {"run": []},
            {"run": run[:-1]},
            {"run": [*run[:status], "no status", *run[status + 1 :]]},
            {"run": [*run[:-1], "no json"]},
            {"run": [*run[:session], "ann", *run[session + 1 :]]},
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


# -- the change feed ---------------------------------------------------------------------------------------------------


PEER = "peer-store-1"
OTHER = "peer-store-2"
_ABROAD = a_session("garage-1", "garage", state=ABROAD, host="via garage")


def copy(number: int, left_to: str = PEER, *, same: bool = True, **more: Any) -> PutCopy:
    return PutCopy(a_run(number, **more), None, left_to, same)


class FeedTests(StoreTests):
    """Tests of ``PutCopy`` and ``ChangeFeed``."""

    async def test_a_store_without_a_feed_has_no_copies_and_no_changes(self, store: Store) -> None:
        await added(store, a_run(1))
        with raising(ValueError, StoreError):
            await store.commit([copy(2)])
        assert ids(await store.find(Query())) == ["r0001"]
        assert ids(await store.find(Query(judged=True))) == ["r0001"]
        assert await store.find(Query(judged=False)) == []
        assert await store.register(FEED) is None

    async def test_a_feed_is_started_once_and_numbers_all_runs(self, store: Store, feed: ChangeFeed) -> None:
        register = await store.register(FEED)
        assert register is not None
        assert await feed.start_feed() == register.value["id"]
        assert (await feed.newest(), await feed.changes(0, 10)) == (0, [])
        await added(store, a_run(1), a_run(2))
        newest = await feed.newest()
        assert await feed.start_feed() == register.value["id"]
        assert await feed.newest() == newest
        assert [change.run.id for change in await feed.changes(0, 10)] == ["r0001", "r0002"]

    async def test_runs_from_before_the_feed_are_in_it(self, store: Store) -> None:
        await added(store, *(a_run(number) for number in range(5)))
        if not self.has_feed:
            return
        feed = feed_of(store)
        await feed.start_feed()
        assert [change.run for change in await feed.changes(0, 10)] == await store.find(Query())
        assert all(change.left_to is None and not change.same for change in await feed.changes(0, 10))

    async def test_each_change_moves_a_run_to_the_end(self, store: Store, feed: ChangeFeed) -> None:
        await added(store, a_run(1), a_run(2), a_run(3))
        seen = (await feed.changes(0, 10))[-1].number
        await store.commit([PutRun(transitions.cancel(a_run(2), 5.0, "tester"), 1)])
        [change] = await feed.changes(seen, 10)
        assert (change.run.id, change.run.ended) == ("r0002", True)
        assert [change.run.id for change in await feed.changes(0, 10)] == ["r0001", "r0003", "r0002"]
        numbers = [change.number for change in await feed.changes(0, 10)]
        assert numbers == sorted(numbers)
        assert numbers[-1] == await feed.newest() == change.number
        assert [change.run.id for change in await feed.changes(numbers[0], 1)] == ["r0003"]

    async def test_a_take_is_a_change(self, store: Store, feed: ChangeFeed, session: Session) -> None:
        await added(store, a_run(1))
        seen = await feed.newest()
        await store.take(offer(), taking(session))
        [change] = await feed.changes(seen, 10)
        assert (change.run.device, change.left_to) == ("kitchen", None)

    async def test_a_number_is_never_reused(self, store: Store, feed: ChangeFeed) -> None:
        await added(store, a_run(1), transitions.cancel(a_run(2), 5.0, "tester"))
        newest = await feed.newest()
        assert await store.prune(FAR, 10) == 1
        assert [change.run.id for change in await feed.changes(0, 10)] == ["r0001"]
        await added(store, a_run(3))
        [change] = await feed.changes(newest, 10)
        assert change.run.id == "r0003"
        assert change.number > newest

    async def test_a_failed_commit_is_not_a_change(self, store: Store, feed: ChangeFeed) -> None:
        await added(store, a_run(1))
        newest = await feed.newest()
        with conflict("run r0001"):
            await store.commit([copy(2), PutCopy(a_run(1).changed(revision=9), 8, PEER), Notice(1.0, "x", "y")])
        assert [change.number for change in await feed.changes(0, 10)] == [newest]
        assert await feed.judges() == set()

    async def test_a_copy_is_compared_and_swapped_like_any_run(self, store: Store, feed: ChangeFeed) -> None:
        await store.commit([copy(1, key="once")])
        with conflict("run r0001"):
            await store.commit([copy(1)])
        with conflict("run r0001"):
            await store.commit([PutCopy(a_run(1).changed(revision=5), 4, PEER)])
        with conflict("key once"):
            await store.commit([copy(2, key="once")])
        with raising(ValueError):
            await store.commit([copy(3), PutRun(a_run(3), None)])
        assert await store.run("r0001") == a_run(1, key="once")

    async def test_a_copy_is_not_offered(self, store: Store, feed: ChangeFeed, session: Session) -> None:
        await added(store, a_run(1))
        await store.commit([copy(2)])
        assert ids(await store.find(Query(offered=True))) == ["r0001"]
        assert ids(await store.find(Query(offered=False))) == ["r0002"]
        assert [group.number for group in await store.waiting()] == [1]
        assert ids(await store.take(offer(), taking(session))) == ["r0001"]
        assert await store.take(offer(), taking(session)) == []

    async def test_a_run_that_is_left_to_a_peer_is_no_longer_offered(self, store: Store, feed: ChangeFeed) -> None:
        await joined(store, a_session())
        await added(store, a_run(1))
        await store.commit([PutCopy(a_run(1).changed(revision=2), 1, PEER)])
        assert await store.take(offer(), taking(a_session())) == []
        assert await store.waiting() == []
        await store.commit([PutRun(a_run(1).changed(revision=3), 2)])
        assert ids(await store.take(offer(), taking(a_session()))) == ["r0001"]

    async def test_any_other_write_makes_a_copy_the_stores_own(self, store: Store, feed: ChangeFeed) -> None:
        await store.commit([copy(1), copy(2, OTHER, same=False)])
        assert await feed.left_to(["r0001", "r0002", "r0003"]) == {"r0001": PEER, "r0002": OTHER}
        assert [(change.left_to, change.same) for change in await feed.changes(0, 10)] == [(PEER, True), (OTHER, False)]
        assert ids(await store.find(Query(judged=False))) == ["r0001", "r0002"]
        await store.commit([PutRun(transitions.pause(a_run(1), 5.0, "tester"), 1)])
        assert await feed.left_to(["r0001", "r0002"]) == {"r0002": OTHER}
        assert ids(await store.find(Query(judged=True))) == ["r0001"]
        assert await feed.judges() == {OTHER}
        await store.commit([PutCopy(a_run(1).changed(revision=3), 2, OTHER)])
        assert [change.left_to for change in await feed.changes(0, 10)] == [OTHER, OTHER]

    async def test_the_times_of_a_copy_can_be_left_out(self, store: Store, feed: ChangeFeed) -> None:
        await joined(store, a_session(), _ABROAD)
        mine, theirs = assigned_to(a_run(1), a_session()), assigned_to(a_run(2), _ABROAD)
        await added(store, mine)
        await store.commit([PutCopy(theirs, None, PEER)])
        overdue = Query(statuses=frozenset({ASSIGNED, CLAIMED}), due_before=FAR, judged=True)
        assert ids(await store.find(overdue)) == ["r0001"]

    async def test_a_copy_is_never_an_orphan(self, store: Store, feed: ChangeFeed) -> None:
        gone = a_session("gone-1", "gone", state=ENDED)
        await joined(store, gone, _ABROAD)
        theirs = started(held_by(a_run(1), gone))
        abroad = started(held_by(a_run(2), _ABROAD))
        await store.commit([PutCopy(theirs, None, PEER), PutCopy(abroad, None, PEER)])
        unknown = started(held_by(a_run(3), a_session("unknown-1", "unknown")))
        await store.commit([PutCopy(unknown, None, PEER)])
        assert await store.orphans(FAR, 10) == []
        assert (await session_in(store, "garage-1")).used == 1
        await store.commit([after(theirs, theirs), after(abroad, abroad)])
        assert [(run.id, owner.id) for run, owner in await store.orphans(FAR, 10)] == [("r0001", "gone-1")]
        await store.commit([after(unknown, released(unknown))])

    async def test_open_copies_of_a_peer_are_found(self, store: Store, feed: ChangeFeed) -> None:
        ended = completed(held_by(a_run(3), _ABROAD))
        await store.commit([copy(1), copy(2, OTHER), PutCopy(ended, None, "third")])
        assert ids(await feed.copies(PEER, 10)) == ["r0001"]
        assert ids(await feed.copies(OTHER, 10)) == ["r0002"]
        assert await feed.copies("third", 10) == []
        assert await feed.judges() == {PEER, OTHER}
        assert await feed.copies(PEER, 0) == []
        assert ids(await feed.copies(PEER, 10, "r0000")) == ["r0001"]
        assert await feed.copies(PEER, 10, "r0001") == []

    async def test_each_write_of_a_session_abroad_counts_as_its_heartbeat(self, store: Store, feed: ChangeFeed) -> None:
        await joined(store, _ABROAD)
        first = await session_in(store, "garage-1")
        assert not (await store.heartbeat("garage-1", {}, [])).alive
        await store.commit([PutSession(first.changed(), first.revision)])
        second = await session_in(store, "garage-1")
        assert second.beat_at >= first.beat_at
        assert second.state == ABROAD
        assert [session.id for session in await store.sessions()] == ["garage-1"]

    async def test_a_copy_wakes_its_device_and_waiters_for_ends(self, store: Store, feed: ChangeFeed) -> None:
        device = store.watch(frozenset({for_device("garage")}))
        ends = store.watch(frozenset({ENDED_TOPIC}))
        try:
            await store.commit([PutCopy(assigned_to(a_run(1), _ABROAD), None, PEER)])
            assert await device.wait(WAKE_TIMEOUT)
            await store.commit([PutCopy(completed(held_by(a_run(2), _ABROAD)), None, PEER)])
            assert await ends.wait(WAKE_TIMEOUT)
        finally:
            device.close()
            ends.close()

    async def test_the_end_of_a_copy_counts_from_when_this_store_first_saw_it(
        self, store: Store, feed: ChangeFeed
    ) -> None:
        began = store.clock()
        ends = {number: completed(held_by(a_run(number), _ABROAD), now=now) for number, now in ((1, 5.0), (2, FAR / 2))}
        for number, run in ends.items():
            await store.commit([PutCopy(run.changed(key=f"plan:{number}/x"), None, PEER)])
        await added(store, completed(held_by(a_run(3), a_session()), now=5.0))
        assert await store.prune(began, 10) == 1
        assert ids(await store.find(Query())) == ["r0001", "r0002"]
        seen = store.clock() + 1.0
        again = ends[1].changed(revision=ends[1].revision + 1, key="plan:1/x")
        await store.commit([PutCopy(again, ends[1].revision, PEER)])
        await store.commit([PutRegister(f"{PLANS}{number}", {}, None) for number in ends])
        assert await store.prune(seen, 10) == 0
        await store.commit([PutRegister(f"{PLANS}{number}", None, 1) for number in ends])
        assert await store.prune(seen, 1) == 1
        assert await store.prune(seen, 1) == 1
        assert await store.prune(seen, 1) == 0

    async def test_ended_sessions_that_own_nothing_can_be_deleted(self, store: Store, feed: ChangeFeed) -> None:
        open_one, owning, over = (a_session(f"{name}-1", name) for name in ("open", "owning", "over"))
        await joined(store, open_one, owning, over)
        await added(store, held_by(a_run(1), owning))
        for session in (owning, over):
            known = await session_in(store, session.id)
            await store.commit([PutSession(known.changed(state=ENDED), known.revision)])
        await feed.forget_sessions([open_one.id, owning.id, over.id, "nobody's"])
        assert {session.id for session in await store.sessions(ended=True)} == {open_one.id, owning.id}
        await joined(store, over)
        assert (await session_in(store, over.id)).state != ENDED

    async def test_a_restored_store_has_another_feed_and_no_open_copies(
        self, store: Store, feed: ChangeFeed, fresh: Store
    ) -> None:
        ended = completed(held_by(a_run(3), _ABROAD))
        await store.commit([copy(1), PutRun(a_run(2), None), PutCopy(ended, None, PEER)])
        first = await feed.start_feed()
        dumped = [line async for line in store.dump()]
        assert await fresh.load(lines_of(dumped)) == 2
        assert await fresh.register(FEED) is None
        assert ids(await fresh.find(Query(offered=True))) == ["r0002"]
        assert await feed_of(fresh).start_feed() != first
        assert (await contents(fresh)).runs == {"r0002": a_run(2), "r0003": ended}
        assert ["are not restored: 1." in notice.message for _, notice in await fresh.notices()] == [True]

    async def test_a_large_feed_is_read_in_parts(self, store: Store, feed: ChangeFeed) -> None:
        await store.commit([PutRun(a_run(number, FLOW), None) for number in range(250)])
        seen: list[str] = []
        after = 0
        while page := await feed.changes(after, 40):
            assert len(page) <= 40
            seen += [change.run.id for change in page]
            after = page[-1].number
        assert seen == ids(await store.find(Query()))

    async def test_contributions_of_a_peer_are_added_up_and_deleted_with_their_runs(
        self, store: Store, feed: ChangeFeed
    ) -> None:
        assert await feed.usage(PEER) == Usage(0, 0, 0)
        await store.commit([PutCopy(a_run(1), None, PEER), Contribution("r0001", PEER, 1, 100, 0)])
        ended = completed(held_by(a_run(2), _ABROAD), now=5.0)
        await store.commit([PutCopy(ended, None, PEER), Contribution("r0002", PEER, 1, 50, 7)])
        await store.commit([Contribution("r0001", PEER, 0, 10, 1), Contribution("r0001", "another", 0, 1000, 0)])
        await added(store, a_run(3))
        assert await feed.usage(PEER) == Usage(2, 160, 8)
        assert await feed.usage("another") == Usage(0, 1000, 0)
        assert await feed.came_from_peers(["r0001", "r0003", "unknown"]) == {"r0001"}
        assert ids(await feed.came_from(PEER)) == ["r0001"]
        assert ids(await feed.came_from("another")) == []
        assert await store.prune(FAR, 10) == 1
        assert await feed.usage(PEER) == Usage(1, 110, 1)

    async def test_a_contribution_is_not_stored_if_its_commit_is_refused(self, store: Store, feed: ChangeFeed) -> None:
        await store.commit([PutCopy(a_run(1), None, PEER)])
        with conflict("run r0001"):
            await store.commit([Contribution("r0001", PEER, 1, 100, 0), PutCopy(a_run(1), None, PEER)])
        assert await feed.usage(PEER) == Usage(0, 0, 0)
