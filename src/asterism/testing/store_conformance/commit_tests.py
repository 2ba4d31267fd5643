"""Tests of commits: all of a batch or nothing, and a conflict names its record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from asterism.core.run import transitions
from asterism.core.run.session import REPLACED
from asterism.store.protocol import (
    ExpectRegister,
    ExpectSession,
    Notice,
    PutRegister,
    PutRun,
    PutSession,
    Query,
    Store,
    Write,
)
from asterism.testing.conformance import StoreTests
from asterism.testing.store_conformance.sample_records import (
    FAR,
    a_run,
    a_session,
    added,
    after,
    completed,
    conflict,
    contents,
    held_by,
    joined,
    raising,
    series_of,
    session_in,
    started,
)

Make = Callable[[Any], Write]
"""Functions that make a write of a value that may not be storable."""


async def _filled(store: Store) -> None:
    """Prepare one record of each kind for a batch to change, and one of each for it to conflict with."""
    await joined(store, a_session("present"), a_session("there", "garage"), a_session("stale", "attic"))
    await added(store, a_run("present"), a_run("there", key="taken"), a_run("stale"))
    await store.commit([PutRegister(key, "before", None) for key in ("present", "removed", "there", "stale")])
    stale = await store.run("stale")
    session = await session_in(store, "stale")
    assert stale is not None
    await store.commit(
        [
            after(stale, transitions.pause(stale, 2.0, "ann")),
            PutSession(session.changed(draining=True), session.revision),
            PutRegister("stale", "later", 1),
        ]
    )


def _good_batch() -> list[Write]:
    """Return every kind of write, without a conflict."""
    present, session = a_run("present"), a_session("present")
    return [
        PutRun(a_run("new", key="new key"), None),
        after(present, transitions.pause(present, 2.0, "ann")),
        PutSession(a_session("new", "roof"), None),
        PutSession(session.changed(state=REPLACED), session.revision),
        PutRegister("new", {"a": 1}, None),
        PutRegister("present", "after", 1),
        PutRegister("removed", None, 1),
        Notice(3.0, "info", "something worth telling", "present", "kitchen"),
        ExpectSession("there", 1),
        ExpectRegister("there", 1),
    ]


def _bad_writes() -> list[tuple[str, Write]]:
    """Return writes with a conflict, each with the record that the Conflict has to name."""
    stale = a_run("stale")
    gone = a_run("gone")
    return [
        ("run there", PutRun(a_run("there"), None)),
        ("run stale", after(stale, transitions.pause(stale, 2.0, "ann"))),
        ("run gone", after(gone, transitions.pause(gone, 2.0, "ann"))),
        ("key taken", PutRun(a_run("with a key", key="taken"), None)),
        ("session there", PutSession(a_session("there"), None)),
        ("session stale", PutSession(a_session("stale").changed(), 1)),
        ("session gone", PutSession(a_session("gone").changed(), 1)),
        ("session stale", ExpectSession("stale", 1)),
        ("session gone", ExpectSession("gone", 1)),
        ("register stale", ExpectRegister("stale", 1)),
        ("register gone", ExpectRegister("gone", 1)),
        ("register there", PutRegister("there", "mine", None)),
        ("register stale", PutRegister("stale", "mine", 1)),
        ("register stale", PutRegister("stale", None, 1)),
        ("register gone", PutRegister("gone", "mine", 1)),
        ("register gone", PutRegister("gone", None, 1)),
    ]


class CommitTests(StoreTests):
    """Tests of ``commit``."""

    async def test_an_empty_batch_changes_nothing(self, store: Store) -> None:
        await store.commit([])
        assert await contents(store) == ({}, {}, [], [])
        assert isinstance(store.url, str)
        assert store.url

    async def test_a_run_is_read_as_it_was_written(self, store: Store) -> None:
        session = a_session()
        run = a_run(1, given={"file": "a.mp4"}, key="once", priority=3, device="kitchen")
        await joined(store, session)
        await added(store, run)
        assert await store.run(run.id) == run
        for new in (held := held_by(run, session), begun := started(held), completed(begun, [1, None, {"x": True}])):
            await store.commit([PutRun(new, new.revision - 1)])
            assert await store.run(run.id) == new
        assert await store.run("another") is None

    async def test_every_kind_of_write_happens_in_one_batch(self, store: Store) -> None:
        await _filled(store)
        await store.commit(_good_batch())
        found = await contents(store)
        present = a_run("present")
        assert found.runs["new"] == a_run("new", key="new key")
        assert found.runs["present"] == transitions.pause(present, 2.0, "ann")
        assert found.sessions["present"].state == REPLACED
        assert found.sessions["new"].device == "roof"
        registers = {register.key: register[1:] for register in found.registers}
        assert registers["new"] == ({"a": 1}, 1)
        assert registers["present"] == ("after", 2)
        assert "removed" not in registers
        assert found.unnumbered_notices() == [Notice(3.0, "info", "something worth telling", "present", "kitchen")]

    async def test_one_conflict_anywhere_in_a_batch_undoes_all_of_it(self, store: Store) -> None:
        await _filled(store)
        before = await contents(store)
        good = _good_batch()
        for what, bad in _bad_writes():
            # an expectation of the same record would name it twice
            same = {"session there": ExpectSession, "register there": ExpectRegister}.get(what, ())
            rest = [write for write in good if not isinstance(write, same)]
            for place in range(len(rest) + 1):
                with conflict(what):
                    await store.commit([*rest[:place], bad, *rest[place:]])
            assert await contents(store) == before, f"the conflict about {what} left something behind"
        await store.commit(good)

    async def test_one_of_several_conflicts_is_named(self, store: Store) -> None:
        await _filled(store)
        before = await contents(store)
        bad = [
            (what, write)
            for what, write in _bad_writes()
            if not isinstance(write, ExpectSession | ExpectRegister) and getattr(write, "value", "") is not None
        ]
        with conflict(*(what for what, _ in bad)):
            await store.commit([write for _, write in bad])
        assert await contents(store) == before

    async def test_writing_a_run_twice_is_a_conflict_about_the_run_or_its_key(self, store: Store) -> None:
        run = a_run(1, key="once")
        await added(store, run)
        with conflict("run r0001", "key once"):
            await added(store, run)

    async def test_a_key_is_taken_as_long_as_its_run_exists(self, store: Store) -> None:
        run = a_run(1, key="once")
        await added(store, run, a_run(2, key="twice"), a_run(3))
        with conflict("key once"):
            await added(store, a_run(4, key="once"))
        await store.commit([after(run, transitions.cancel(run, 5.0, "ann"))])
        with conflict("key once"):
            await added(store, a_run(4, key="once"))
        assert await store.prune(FAR, 10) == 1
        await added(store, a_run(4, key="once"))
        assert [found.id for found in await store.find(Query(key="once"))] == ["r0004"]

    async def test_an_expected_session_has_sent_no_heartbeat_since(self, store: Store) -> None:
        await joined(store, a_session())
        await store.commit([ExpectSession("kitchen-1", 1), PutRegister("a", 1, None)])
        assert (await store.heartbeat("kitchen-1", {}, [])).alive
        with conflict("session kitchen-1"):
            await store.commit([PutRegister("b", 1, None), ExpectSession("kitchen-1", 1)])
        assert [register.key for register in await store.registers("")] == ["a"]
        revision = (await session_in(store, "kitchen-1")).revision
        await store.commit([PutRegister("b", 1, None), ExpectSession("kitchen-1", revision)])
        assert (await session_in(store, "kitchen-1")).revision == revision
        with conflict("session kitchen-1"):
            await store.commit([ExpectSession("kitchen-1", revision + 1)])

    async def test_an_expected_register_was_not_changed_since(self, store: Store) -> None:
        await store.commit([PutRegister("a", 1, None)])
        await store.commit([ExpectRegister("a", 1), PutRegister("b", 1, None)])
        await store.commit([PutRegister("a", 1, 1)])  # the same value is still a change
        with conflict("register a"):
            await store.commit([PutRegister("c", 1, None), ExpectRegister("a", 1)])
        await store.commit([PutRegister("c", 1, None), ExpectRegister("a", 2)])
        with conflict("register a"):
            await store.commit([ExpectRegister("a", 3)])
        assert [register[::2] for register in await store.registers("")] == [("a", 2), ("b", 1), ("c", 1)]

    async def test_the_time_of_a_heartbeat_is_by_the_stores_clock(self, store: Store) -> None:
        early = store.clock()
        await joined(store, a_session(beat_at=5.0, used=7, profile={"os": "linux"}, can=frozenset({"gpu", "cpu"})))
        late = store.clock()
        first = await session_in(store, "kitchen-1")
        # the store may be on another machine, whose clock is known here only approximately
        assert early - 5.0 <= first.beat_at <= late + 5.0
        assert replace(first, beat_at=5.0, used=7) == a_session(
            beat_at=5.0, used=7, profile={"os": "linux"}, can=frozenset({"gpu", "cpu"})
        )
        assert first.used == 0
        new = replace(first.changed(draining=True, slots=4, accepts="true"), beat_at=6.0, used=9)
        await store.commit([PutSession(new, first.revision)])
        assert await session_in(store, "kitchen-1") == replace(new, beat_at=first.beat_at, used=0)

    async def test_a_batch_that_names_a_record_twice_is_refused(self, store: Store) -> None:
        await _filled(store)
        before = await contents(store)
        present, session = a_run("present"), a_session("present")
        paused = after(present, transitions.pause(present, 2.0, "ann"))
        twice: list[tuple[Write, Write]] = [
            (PutRun(a_run("new"), None), PutRun(a_run("new"), None)),
            (paused, paused),
            (PutRun(a_run("new"), None), after(a_run("new"), transitions.pause(a_run("new"), 2.0, "ann"))),
            (PutRun(a_run("new", key="one"), None), PutRun(a_run("newer", key="one"), None)),
            (PutSession(a_session("new"), None), PutSession(a_session("new"), None)),
            (PutSession(session.changed(), 1), PutSession(session.changed(), 1)),
            (PutSession(session.changed(), 1), ExpectSession("present", 1)),
            (ExpectSession("present", 1), ExpectSession("present", 1)),
            (PutRegister("new", 1, None), PutRegister("new", 2, 1)),
            (PutRegister("present", 1, 1), PutRegister("present", None, 1)),
            (PutRegister("present", 1, 1), ExpectRegister("present", 1)),
            (ExpectRegister("present", 1), ExpectRegister("present", 1)),
        ]
        for first, second in twice:
            with raising(ValueError):
                await store.commit([first, second])
            with raising(ValueError):
                await store.commit([first, Notice(1.0, "info", "between them"), PutRegister("other", 1, None), second])
        assert await contents(store) == before
        same_name: list[Write] = [PutRun(a_run("x"), None), PutSession(a_session("x"), None), PutRegister("x", 1, None)]
        await store.commit([*same_name, Notice(1.0, "info", "x"), Notice(1.0, "info", "x")])

    async def test_a_value_that_is_not_json_is_refused_and_nothing_happens(self, store: Store) -> None:
        run = started(held_by(a_run(1), a_session()))
        await joined(store, a_session())
        await added(store, run)
        before = await contents(store)
        makers: list[Make] = [
            lambda value: PutRun(a_run(2, given={"x": value}), None),
            lambda value: after(run, completed(run, value)),
            lambda value: after(run, completed(run, {"deep": [value]})),
            lambda value: PutRegister("b", {"x": value}, None),
            lambda value: PutSession(a_session("kitchen-2", profile={"x": value}), None),
        ]
        for make in makers:
            for value in (object(), float("nan"), float("inf"), {1, 2}, b"bytes"):
                with raising(TypeError, ValueError):
                    await store.commit([PutRegister("a", 1, None), make(value), Notice(1.0, "info", "after it")])
        assert await contents(store) == before

    async def test_changing_a_document_after_a_commit_changes_nothing_in_the_store(self, store: Store) -> None:
        document: dict[str, Any] = {"list": [1]}
        run = a_run(1, given=document)
        await store.commit(
            [
                PutRun(run, None),
                PutRegister("a", document, None),
                PutSession(a_session(profile=document), None),
            ]
        )
        document["list"].append(2)
        found = await contents(store)
        assert found.runs[run.id].input == {"list": [1]}
        assert found.registers[0].value == {"list": [1]}
        assert found.sessions["kitchen-1"].profile == {"list": [1]}
        register = await store.register("a")
        assert register is not None
        register.value["list"].append(3)
        assert (await store.registers("a"))[0].value == {"list": [1]}
        profile: dict[str, Any] = {"labels": ["a"]}
        await store.heartbeat("kitchen-1", profile, [])
        profile["labels"].append("b")
        assert (await session_in(store, "kitchen-1")).profile == {"labels": ["a"]}

    async def test_a_batch_may_be_large(self, store: Store) -> None:
        number = 3000  # with all columns, more values than one statement may have parameters
        runs = [a_run(one, given={"number": one}) for one in range(number)]
        await store.commit([*(PutRun(run, None) for run in runs), PutRegister("a", 1, None)])
        assert await store.find(Query()) == runs
        with conflict("run r2999"):
            changes = [after(run, transitions.pause(run, 2.0, "ann")) for run in runs[:2000]]
            await store.commit([*changes, PutRun(runs[-1], None)])
        assert await store.find(Query()) == runs

    async def test_new_runs_that_differ_in_anything_are_read_as_they_were_written(self, store: Store) -> None:
        """An engine may write many new runs in another way than a few, and what they share only once."""
        await joined(store, a_session())
        alike = [
            a_run(number, at=1.0, given={"n": f"\\{number}\t\n"}, label=f"\\N {number} é") for number in range(130)
        ]
        other = [
            a_run(130, at=1.0),
            a_run(131, at=1.0, series="s", key="k1"),
            a_run(132, at=2.0, key="k2", priority=7),
            a_run(133, at=2.0, device="kitchen", keep="original"),
            held_by(a_run(134, at=2.0), a_session()),
        ]
        more = [a_run(number, at=1.0, given={"n": number}, key=f"n{number}") for number in range(135, 240)]
        batch: list[Write] = [PutRun(run, None) for run in (*alike, *other, *more)]
        await store.commit([*batch, series_of("s", queue=["r0131"])])
        assert await store.find(Query()) == [*alike, *other, *more]

    async def test_one_conflict_among_many_new_runs_undoes_all_of_them_and_is_named(self, store: Store) -> None:
        await added(store, a_run("there", key="taken"))
        before = await contents(store)
        new = [a_run(number, at=1.0, key=f"n{number}") for number in range(240)]
        with conflict("key taken"):
            await added(store, *new[:120], new[120].changed(key="taken"), *new[121:])
        with conflict("run there"):
            await added(store, *new[:120], new[120].changed(id="there"), *new[121:])
        writes = [PutRun(run, None) for run in new]
        with conflict("register missing"):
            await store.commit([*writes, PutRegister("missing", "x", 5)])
        assert await contents(store) == before
        await store.commit([*writes, PutRegister("made", "x", None)])
        assert len(await store.find(Query())) == 241
