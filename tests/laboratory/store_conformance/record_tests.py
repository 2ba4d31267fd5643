"""Tests of records: batches, registers, notices, logs, any text, exact numbers, runs with any history."""

from __future__ import annotations

import asyncio
import itertools
import json
import struct
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings

from asterism.core.json_values import JsonObject
from asterism.core.record import replace
from asterism.core.run import transitions
from asterism.core.run.run import Grant, Progress, Run
from asterism.core.run.session import REPLACED, Session
from asterism.store.memory import MemoryStore
from asterism.store.protocol import (
    ExpectRegister,
    ExpectSession,
    HeartbeatReply,
    Notice,
    ProgressReport,
    PutLog,
    PutRegister,
    PutRun,
    PutSession,
    Query,
    Register,
    Store,
    StoredChunk,
    Write,
)
from asterism.store.store_errors import StoreCorrupt
from tests.laboratory.store_conformance.sample_records import (
    DEVICES,
    FAR,
    FLOW,
    StoreTests,
    a_run,
    a_session,
    added,
    after,
    completed,
    conflict,
    contents,
    hard_to_compress,
    held_by,
    histories,
    joined,
    lines_of,
    offer,
    raising,
    session_in,
    started,
    taking,
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

    async def test_a_run_is_read_as_it_was_written(self, store: Store, session: Session) -> None:
        run = a_run(1, input={"file": "a.mp4"}, key="once", priority=3, device="kitchen")
        await added(store, run)
        assert await store.run(run.id) == run
        for new in (held := held_by(run, session), begun := started(held), completed(begun, [1, None, {"x": True}])):
            await store.commit([PutRun(new, new.revision - 1)])
            assert await store.run(run.id) == new
        assert await store.run("another") is None

    async def test_every_kind_of_write_happens_in_one_batch(self, store: Store) -> None:
        await _filled(store)
        await store.commit(_good_batch())
        stored = await contents(store)
        present = a_run("present")
        assert stored.runs["new"] == a_run("new", key="new key")
        assert stored.runs["present"] == transitions.pause(present, 2.0, "ann")
        assert stored.sessions["present"].state == REPLACED
        assert stored.sessions["new"].device == "roof"
        registers = {register.key: register[1:] for register in stored.registers}
        assert registers["new"] == ({"a": 1}, 1)
        assert registers["present"] == ("after", 2)
        assert "removed" not in registers
        assert stored.unnumbered_notices() == [Notice(3.0, "info", "something worth telling", "present", "kitchen")]

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
        assert [run.id for run in await store.find(Query(key="once"))] == ["r0004"]

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
            lambda value: PutRun(a_run(2, input={"x": value}), None),
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
        document: JsonObject = {"list": [1]}
        run = a_run(1, input=document)
        await store.commit(
            [PutRun(run, None), PutRegister("a", document, None), PutSession(a_session(profile=document), None)]
        )
        document["list"].append(2)
        stored = await contents(store)
        assert stored.runs[run.id].input == {"list": [1]}
        assert stored.registers[0].value == {"list": [1]}
        assert stored.sessions["kitchen-1"].profile == {"list": [1]}
        register = await store.register("a")
        assert register is not None
        register.value["list"].append(3)
        assert (await store.registers("a"))[0].value == {"list": [1]}
        profile: JsonObject = {"labels": ["a"]}
        await store.heartbeat("kitchen-1", profile, [])
        profile["labels"].append("b")
        assert (await session_in(store, "kitchen-1")).profile == {"labels": ["a"]}

    async def test_a_batch_may_be_large(self, store: Store) -> None:
        number = 3000  # with all columns, more values than one statement may have parameters
        runs = [a_run(index, input={"number": index}) for index in range(number)]
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
            a_run(number, at=1.0, input={"n": f"\\{number}\t\n"}, label=f"\\N {number} é") for number in range(130)
        ]
        other = [
            a_run(130, at=1.0),
            a_run(131, at=1.0, series="s", key="k1"),
            a_run(132, at=2.0, key="k2", priority=7),
            a_run(133, at=2.0, device="kitchen", keep="original"),
            held_by(a_run(134, at=2.0), a_session()),
        ]
        more = [a_run(number, at=1.0, input={"n": number}, key=f"n{number}") for number in range(135, 240)]
        batch: list[Write] = [PutRun(run, None) for run in (*alike, *other, *more)]
        await store.commit(batch)
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


TEXTS = [
    "", " ", "\0", "a\0b", "\x01\x1f\x7f", "\r\n\t\v", "ä ß é", "e\u0301",
    "日本語", "😀👩‍👩‍👧", "\ud83d", "\udc00x", "\uffff",
    "\u202e", "\\u0000", "\\", "'", '"', "';--", "%s %(x)s $1 ? :a {0}", "null", "1", "\ufeff", "|", "a|b", "story",
    '"story":[', "]}",
]  # fmt: skip
"""Texts for every field that may hold any text."""

NAMES = ["ä ß é", "日本語", "😀", "o'brien", 'the "loft"', "a/b", "50% off", "$1", "a b", "{x}", "-", "\\"]
"""Names of things."""

FLOATS = [
    0.1, 1 / 3, 1e-9, 5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, 1.7e9 + 1 / 3, 123456789.123456789,
    2.0**53 + 2, 4503599627370497.5, 1700000000.000001,
]  # fmt: skip

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]  # a run has many parts, which hypothesis generates slowly


def _bits(value: Any) -> bytes:
    assert type(value) is float
    return struct.pack("d", value)


class ValueTests(StoreTests):
    """Tests of values."""

    async def test_any_text_survives_in_every_free_field(self, store: Store, session: Session) -> None:
        for number, text in enumerate(TEXTS):
            document: JsonObject = {"text": text, text: [text]}
            run = transitions.create(f"a{number:03d}", FLOW, document, by=text, now=1.0)
            await _keeps(store, _wordy(run, session, text))
            failed = transitions.give_up(a_run(f"b{number:03d}"), 9.0, text)
            await added(store, failed)
            assert await store.run(failed.id) == failed
            notice = Notice(1.0, "info", text, run.id, "kitchen")
            await store.commit([PutRegister(f"a{number}", document, None), notice])
            register = await store.register(f"a{number}")
            assert register is not None
            assert register.value == document
            assert [stored_notice for _, stored_notice in await store.notices(run=run.id)] == [notice]

    async def test_any_text_survives_in_heartbeats(self, store: Store) -> None:
        session = a_session(host="h", profile={text: text for text in TEXTS}, accepts="\0\ud800")
        run = held_by(a_run(1), session)
        await joined(store, session)
        await added(store, run)
        assert (await session_in(store, session.id)).profile == session.profile
        assert (await session_in(store, session.id)).accepts == "\0\ud800"
        for text in TEXTS:
            report = ProgressReport(run.id, run.epoch, Progress(1), text)
            assert (await store.heartbeat(session.id, {"x": {text: text}}, [report])).alive
            assert (await session_in(store, session.id)).profile == {"x": {text: text}}
            assert await store.reports([run.id]) == {run.id: report}

    async def test_anything_may_have_any_name(self, store: Store) -> None:
        for name in NAMES:
            session = Session(f"{name}-1", name, 1.0)
            flow = replace(FLOW, name=name)
            await joined(store, session)
            run = a_run(f"run {name}", flow, key=name, device=name).changed(avoid=("x", "y"))
            waiting = a_run(f"wait {name}", flow, series=name, priority=-1).changed(avoid=(name,))
            await added(store, run, waiting)
            assert await store.run(run.id) == run
            assert await store.find(Query(key=name)) == [run]
            assert await store.find(Query(workflow=name)) == [run, waiting]
            assert await store.find(Query(series=name)) == [waiting]
            [taken] = await store.take(offer(name), taking(session))
            assert taken.id == run.id
            assert await store.find(Query(session=session.id)) == await store.find(Query(device=name)) == [taken]
            assert [held.run for held in (await store.heartbeat(session.id, {}, [])).held] == [run.id]
            await store.commit([PutRegister(f"of {name}", 1, None)])
            assert [register.key for register in await store.registers(f"of {name}")] == [f"of {name}"]
            assert await store.take(offer(name), taking(session)) == []
            assert await store.take(offer("z", not_kinds=frozenset({waiting.kind})), taking(session)) == []
            await store.commit([after(waiting, transitions.cancel(waiting, 4.0, name))])

    async def test_names_may_be_very_long(self, store: Store) -> None:
        name = hard_to_compress(1000)
        session = Session(name, name, 1.0)
        run = a_run(name, replace(FLOW, name=name[:500]), key=name, device=name)
        held = a_run(f"{name}2", series=name)
        await store.commit(
            [
                PutSession(session, None),
                PutRun(run, None),
                PutRun(held, None),
                PutRegister(name, 1, None),
            ]
        )
        assert await store.run(name) == run
        assert await store.find(Query(key=name, id_like=name[10:990])) == [run]
        assert await store.find(Query(series=name, after=name)) == [held]
        [taken] = await store.take(offer(name, not_kinds=frozenset({f"{name}x@1"})), taking(session))
        assert taken.device == name
        answer = await store.heartbeat(name, {}, [])
        assert [owned.run for owned in answer.held] == [name]

    async def test_a_name_that_cannot_be_stored_is_refused_and_fails_no_other_commit(self, store: Store) -> None:
        for number, name in enumerate(("a\0b", "\ud800", "x\udfffy")):
            odd: list[Write] = [
                PutRun(a_run(name), None),
                PutRun(a_run(f"n{number}", key=name), None),
                PutRun(a_run(f"m{number}", device=name), None),
                PutSession(Session(name, "kitchen", 1.0), None),
                PutRegister(name, 1, None),
            ]
            for place, write in enumerate(odd):
                fine = [[PutRun(a_run(f"{number}{place}{index}"), None)] for index in range(6)]
                before = len(await store.find(Query())), len(await store.registers(""))
                whole: list[Write] = [PutRegister(f"{number}/{place}", 1, None), write]
                outcomes = await asyncio.gather(
                    *(store.commit(writes) for writes in fine[:3]),
                    store.commit(whole),
                    *(store.commit(writes) for writes in fine[3:]),
                    return_exceptions=True,
                )
                refused = [outcome for outcome in outcomes if outcome is not None]
                assert len(refused) <= 1
                assert all(isinstance(error, ValueError) for error in refused), refused
                runs, registers = len(await store.find(Query())), len(await store.registers(""))
                added_runs = isinstance(write, PutRun) and not refused
                added_registers = 0 if refused else 1 + isinstance(write, PutRegister)
                assert (runs, registers) == (before[0] + 6 + added_runs, before[1] + added_registers)

    async def test_the_name_of_a_device_must_not_contain_a_bar(self, store: Store) -> None:
        for avoid in (("a|b",), ("|",), ("a", "b|")):
            with raising(ValueError):
                await store.commit([PutRegister("a", 1, None), PutRun(a_run(1).changed(avoid=avoid), None)])
        assert await store.registers("") == []
        assert await store.find(Query()) == []

    async def test_texts_may_be_very_long(self, store: Store, session: Session) -> None:
        large = hard_to_compress(1_000_000) + "😀\0"
        run = started(held_by(a_run(1, input={"x": large}), session))
        await added(store, run, transitions.give_up(a_run(2), 3.0, "").changed(error=large))
        assert (await store.heartbeat(session.id, {"x": large}, [ProgressReport(run.id, 1, None, large)])).alive
        assert (await store.reports([run.id]))[run.id].tail == large
        done = completed(run, [large])
        await store.commit([after(run, done), PutRegister("a", large, None), Notice(1.0, "info", large)])
        assert await store.run(run.id) == done
        failed = await store.run("r0002")
        assert failed is not None
        assert failed.error == large
        assert (await store.registers(""))[0].value == large
        assert (await store.notices())[0][1].message == large
        assert (await session_in(store, session.id)).profile == {"x": large}

    async def test_times_are_exact(self, store: Store) -> None:
        for number, value in enumerate(FLOATS):
            run = a_run(
                number,
                replace(FLOW, heartbeat_timeout=min(max(value, 60.0), 1e9)),
                at=value,
                input={"x": value, "y": -value},
            )
            run = run.changed(not_before=value, waiting_since=value, due_at=value)
            await added(store, run)
            stored = await store.run(run.id)
            assert stored == run
            for time in (stored.created_at, stored.not_before, stored.waiting_since, stored.due_at, stored.input["x"]):
                assert _bits(time) == _bits(value)
            assert _bits(stored.input["y"]) == _bits(-value)
            ended = transitions.cancel(run, value, "ann").changed(due_at=None)
            await store.commit([after(run, ended), PutRegister(f"a{number}", value, None), Notice(value, "info", "x")])
            stored = await store.run(run.id)
            assert stored == ended
            assert _bits(stored.ended_at) == _bits(value)
            register = await store.register(f"a{number}")
            assert register is not None
            assert _bits(register.value) == _bits(value)
        assert [_bits(notice.at) for _, notice in await store.notices()] == [_bits(value) for value in FLOATS]

    async def test_whole_numbers_are_exact(self, store: Store) -> None:
        numbers = [0, -1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**64), 10**100]
        await store.commit([PutRegister("a", numbers, None), PutRun(a_run(1, input={"x": numbers}), None)])
        runs = [a_run(2, priority=-1_000_000), a_run(3, priority=1_000_000)]
        await added(store, *runs)
        assert (await store.registers("a"))[0].value == numbers
        assert (await store.find(Query()))[0].input == {"x": numbers}
        assert await store.find(Query(after="r0001")) == runs

    def test_runs_with_any_history_are_read_as_they_were_written(self) -> None:
        with asyncio.Runner() as runner:
            store = runner.run(self.open_store())
            numbers = itertools.count()

            @settings(max_examples=40, deadline=None, derandomize=True, database=None, suppress_health_check=SLOW)
            @given(history=histories())
            def check(history: list[Run]) -> None:
                # all examples share a store, so ids and keys are made unique
                unlike = f"{next(numbers)}."
                key = None if history[0].key is None else f"{unlike}{history[0].key}"
                history = [run.changed(id=f"{unlike}{run.id}", key=key, series=None) for run in history]
                runner.run(_keeps(store, history))

            try:
                runner.run(joined(store, *(Session(f"{name}-{n}", name, 1.0) for name in DEVICES for n in (1, 2))))
                check()
                assert runner.run(store.check()) == []
            finally:
                runner.run(store.close())


def _wordy(run: Run, session: Session, text: str) -> list[Run]:
    """Return a run with ``text`` in every free field."""
    paused = transitions.pause(run, 2.0, text)
    resumed = transitions.resume(paused, 3.0, text)
    held = held_by(resumed, session)
    back = transitions.release(held, Grant(run.id, session.id, held.epoch), "released", text, 60.0)
    again = held_by(back, session)
    begun = started(again)
    return [run, paused, resumed, held, back, again, begun, completed(begun, {text: text})]


async def _keeps(store: Store, history: list[Run]) -> None:
    expected: int | None = None
    for run in history:
        await store.commit([PutRun(run, expected)])
        expected = run.revision
        assert await store.run(run.id) == run
    assert await store.find(Query(id_like=history[-1].id)) == [history[-1]]


class RegisterTests(StoreTests):
    """Tests of ``register``, ``registers`` and ``notices``."""

    async def test_a_register_counts_its_changes(self, store: Store) -> None:
        assert await store.register("a") is None
        await store.commit([PutRegister("a", {"x": [1, 2.5, None, True, "y"]}, None)])
        assert await store.register("a") == Register("a", {"x": [1, 2.5, None, True, "y"]}, 1)
        for revision in (1, 2, 3):
            await store.commit([PutRegister("a", revision, revision)])
            assert await store.register("a") == Register("a", revision, revision + 1)
        with conflict("register a"):
            await store.commit([PutRegister("a", "late", 3)])
        with conflict("register a"):
            await store.commit([PutRegister("a", "new", None)])
        assert await store.register("a") == Register("a", 3, 4)

    async def test_only_none_removes_a_register(self, store: Store) -> None:
        empty: list[Any] = [0, False, "", [], {}, 0.0]
        await store.commit([PutRegister(f"e{number}", value, None) for number, value in enumerate(empty)])
        registers = await store.registers("e")
        assert [register.value for register in registers] == empty
        assert [type(register.value) for register in registers] == [type(value) for value in empty]
        await store.commit([PutRegister("e0", None, 1)])
        assert await store.register("e0") is None
        assert len(await store.registers("e")) == len(empty) - 1

    async def test_a_removed_register_can_be_created_again(self, store: Store) -> None:
        await store.commit([PutRegister("a", "first", None)])
        await store.commit([PutRegister("a", "second", 1)])
        await store.commit([PutRegister("a", None, 2)])
        for expected in (1, 2):
            with conflict("register a"):
                await store.commit([PutRegister("a", "late", expected)])
        await store.commit([PutRegister("a", "again", None)])
        again = await store.register("a")
        assert again is not None
        assert again.value == "again"
        with conflict("register a"):
            await store.commit([PutRegister("a", None, None)])

    async def test_removing_a_missing_register_is_allowed_if_it_is_expected_to_be_missing(self, store: Store) -> None:
        await store.commit([PutRegister("a", None, None), PutRegister("b", 1, None)])
        assert await store.register("a") is None
        assert await store.register("b") == Register("b", 1, 1)

    async def test_registers_are_listed_by_prefix_in_order(self, store: Store) -> None:
        keys = [
            "thing/b", "thing/B", "thing/a", "Thing/a", "thing", "thing/é", "thing/😀", "x/y", "a", "thing/%",
            "some thing/a",
        ]  # fmt: skip
        await store.commit([PutRegister(key, key, None) for key in keys])
        # in the order of code points, whatever the locale
        assert [register.key for register in await store.registers("")] == sorted(keys)
        listed = await store.registers("thing/")
        assert [register.key for register in listed] == sorted(key for key in keys if key.startswith("thing/"))
        assert listed == [Register(register.key, register.key, 1) for register in listed]
        assert [register.key for register in await store.registers("Thing")] == ["Thing/a"]
        assert await store.registers("none") == []

    async def test_the_first_registers_of_a_prefix(self, store: Store) -> None:
        await store.commit([PutRegister(key, 1, None) for key in ("b/2", "a", "b/3", "b/1", "c")])
        for most, keys in ((0, []), (2, ["b/1", "b/2"]), (9, ["b/1", "b/2", "b/3"])):
            assert [register.key for register in await store.registers("b/", most)] == keys

    async def test_a_prefix_is_not_a_pattern(self, store: Store) -> None:
        keys = ["a%b", "axb", "a_b", "a\\b", "a*b", "a?b", "a[b]", "a'b", 'a"b']
        await store.commit([PutRegister(key, 1, None) for key in keys])
        for key in keys:
            assert [register.key for register in await store.registers(key[:2])] == [key] or key == "axb"
            assert [register.key for register in await store.registers(key)] == [key]

    async def test_notices_are_numbered_in_the_order_they_came(self, store: Store) -> None:
        assert await store.notices() == []
        notices = [Notice(100.0 - number, "info", f"the {number}th") for number in range(7)]
        for notice in notices[:3]:
            await store.commit([notice])
        await store.commit(notices[3:])
        numbered = await store.notices()
        assert [notice for _, notice in numbered] == notices
        numbers = [number for number, _ in numbered]
        assert numbers == sorted(set(numbers))
        assert numbers[0] > 0
        assert await store.notices(after=numbers[3]) == numbered[4:]
        assert await store.notices(after=numbers[3], limit=2) == numbered[4:6]
        assert await store.notices(limit=1) == numbered[:1]
        assert await store.notices(after=numbers[-1]) == []

    async def test_notices_can_be_read_for_one_run(self, store: Store) -> None:
        await added(store, a_run(1), a_run(2))
        notices = [Notice(float(number), "late", "x", f"r000{number % 2 + 1}", "kitchen") for number in range(6)]
        await store.commit([*notices, Notice(9.0, "info", "about no run")])
        numbered = await store.notices(run="r0002")
        assert [notice for _, notice in numbered] == notices[1::2]
        assert await store.notices(run="r0002", after=numbered[0][0], limit=1) == numbered[1:2]
        assert await store.notices(run="r0009") == []
        assert len(await store.notices()) == 7

    async def test_a_refused_commit_writes_no_notice(self, store: Store) -> None:
        await store.commit([Notice(1.0, "info", "first")])
        with conflict("register a"):
            await store.commit([Notice(2.0, "info", "never"), PutRegister("a", 1, 1)])
        await store.commit([Notice(3.0, "info", "second")])
        assert [notice.message for _, notice in await store.notices()] == ["first", "second"]

    async def test_a_notice_keeps_its_number_when_others_are_pruned(self, store: Store) -> None:
        await store.commit([Notice(at, "info", f"at {at}") for at in (100.0, 5.0, 100.0, 6.0, 100.0)])
        before = await store.notices()
        assert await store.prune(50.0, 10) == 0
        remaining = await store.notices()
        assert remaining == before[::2]
        assert await store.prune(FAR, 10) == 0
        assert await store.notices() == []
        await store.commit([Notice(7.0, "info", "after all that")])
        [(number, _)] = await store.notices()
        # a number is never reused, or a reader that continues after it would miss a notice
        assert number > before[-1][0]


def a_chunk(epoch: int, first: int, *lines: str) -> StoredChunk:
    return StoredChunk(epoch, first, len(lines), [[1.5, "stdout", "\n".join(lines)]])


def put(run: str, *chunks: StoredChunk, drop: tuple[int, int] | None = None) -> PutLog:
    return PutLog(run, chunks[0].epoch, chunks, drop)


ODD = "nul \0, escape \x1b[2J, half a pair \udc80, grün 😀, \u2028 and \\u0000"


class LogTests(StoreTests):
    """Tests of ``PutLog`` and ``log``."""

    async def test_chunks_come_back_in_order_and_from_a_line_on(self, store: Store, other: Store) -> None:
        await added(store, a_run(1), a_run(2))
        run = a_run(1).id
        first, second, third = a_chunk(1, 1, "a", "b"), a_chunk(1, 3, ODD), a_chunk(2, 1, "again", "")
        await store.commit([put(run, second)])
        await store.commit([put(run, third), Notice(1.0, "failed", "noted")])
        await store.commit([put(run, first)])
        assert await other.log(run) == [first, second, third]
        assert await other.log(run, after=(1, 1)) == [first, second, third]
        assert await other.log(run, after=(1, 2)) == [second, third]
        assert await other.log(run, after=(1, 3)) == [third]
        assert await other.log(run, after=(2, 2)) == []
        assert await other.log(a_run(2).id) == []
        assert await other.log("nobody\0") == []
        assert await store.check() == []

    async def test_writing_twice_changes_nothing_and_a_chunk_may_grow(self, store: Store) -> None:
        await added(store, a_run(1))
        run = a_run(1).id
        for write in (put(run, a_chunk(1, 1, "a")), put(run, a_chunk(1, 1, "a")), put(run, a_chunk(1, 1, "a", "b"))):
            await store.commit([write])
        assert await store.log(run) == [a_chunk(1, 1, "a", "b")]

    async def test_dropped_chunks_are_gone_and_no_others(self, store: Store) -> None:
        await added(store, a_run(1), a_run(2))
        run, neighbour = a_run(1).id, a_run(2).id
        chunks = [a_chunk(1, first, str(first)) for first in range(1, 7)]
        await store.commit([put(run, *chunks), put(run, a_chunk(2, 3, "x")), put(neighbour, a_chunk(1, 3, "y"))])
        await store.commit([put(run, a_chunk(1, 7, "new"), drop=(2, 5))])
        assert [(chunk.epoch, chunk.first) for chunk in await store.log(run)] == [
            (1, 1),
            (1, 5),
            (1, 6),
            (1, 7),
            (2, 3),
        ]
        assert len(await store.log(neighbour)) == 1

    async def test_a_log_is_part_of_its_commit(self, store: Store, session: Session) -> None:
        working = started(held_by(a_run(1), session))
        await added(store, working)
        done = completed(working, "done")
        with conflict(f"run {working.id}"):
            await store.commit([PutRun(done, working.revision + 5), put(working.id, a_chunk(1, 1, "lost"))])
        assert await store.log(working.id) == []
        await store.commit([after(working, done), put(working.id, a_chunk(1, 1, "kept"))])
        assert await store.log(working.id) == [a_chunk(1, 1, "kept")]
        assert await store.run(working.id) == done

    async def test_the_log_of_a_run_that_does_not_exist_is_refused(self, store: Store) -> None:
        await added(store, a_run(1))
        with conflict(f"run {a_run(2).id}"):
            await store.commit([put(a_run(1).id, a_chunk(1, 1, "a")), put(a_run(2).id, a_chunk(1, 1, "b"))])
        assert await store.log(a_run(1).id) == []
        await store.commit([PutRun(a_run(3), None), put(a_run(3).id, a_chunk(1, 1, "new"))])
        assert await store.log(a_run(3).id) == [a_chunk(1, 1, "new")]
        with raising(ValueError):
            await store.commit([put(a_run(1).id, a_chunk(1, 1, "a")), put(a_run(1).id, a_chunk(1, 2, "b"))])

    async def test_a_heartbeat_writes_the_logs_of_what_its_session_owns(
        self, store: Store, session: Session, garage: Session
    ) -> None:
        mine, theirs = started(held_by(a_run(1), session)), started(held_by(a_run(2), garage))
        await added(store, mine, theirs)

        def report(run: str, epoch: int, *chunks: StoredChunk, **more: Any) -> ProgressReport:
            return ProgressReport(run, epoch, None, "", put(run, *chunks, **more))

        await store.heartbeat(
            session.id,
            {},
            [
                report(mine.id, 1, a_chunk(1, 1, ODD), a_chunk(1, 2, "b")),
                report(theirs.id, 1, a_chunk(1, 1, "not mine")),
            ],
        )
        await store.heartbeat(session.id, {}, [report(mine.id, 1, a_chunk(1, 3, "c"), drop=(2, 3))])
        await store.heartbeat(session.id, {}, [report(mine.id, 9, a_chunk(9, 1, "an old grant"))])
        assert not (await store.heartbeat("gone", {}, [report(mine.id, 1, a_chunk(1, 9, "a dead session"))])).alive
        assert await store.log(mine.id) == [a_chunk(1, 1, ODD), a_chunk(1, 3, "c")]
        assert await store.log(theirs.id) == []
        assert (await store.reports([mine.id]))[mine.id] == ProgressReport(mine.id, 1, None, "")

    async def test_a_log_that_cannot_be_stored_fails_its_heartbeat_and_no_other_write(
        self, store: Store, session: Session
    ) -> None:
        mine = started(held_by(a_run(1), session))
        await added(store, mine)
        for number in range(3):  # also while commits are in groups
            report = ProgressReport(mine.id, 1, None, "", put(mine.id, a_chunk(1, 1, "a"), a_chunk(1, 10**30, "b")))
            refused, *outcomes = await asyncio.gather(
                store.heartbeat(session.id, {}, [report]),
                *(store.commit([PutRegister(f"{number}/{place}", 1, None)]) for place in range(4)),
                store.heartbeat(session.id, {"load": number}, []),
                return_exceptions=True,
            )
            assert isinstance(refused, ValueError | OverflowError | HeartbeatReply), refused
            assert outcomes[:4] == [None] * 4
            assert isinstance(outcomes[4], HeartbeatReply), outcomes[4]
            assert len(await store.registers(f"{number}/")) == 4
            chunks = [chunk.first for chunk in await store.log(mine.id)]
            assert chunks == ([1, 10**30] if isinstance(refused, HeartbeatReply) else [])

    async def test_a_log_is_pruned_with_its_run_and_its_blobs_after_it(self, store: Store, session: Session) -> None:
        old = completed(started(held_by(a_run(1), session)))
        await added(store, old, a_run(2))
        blobs = {run: await store.put_blob(f"large {run}".encode()) for run in (old.id, a_run(2).id)}
        for run, name in blobs.items():
            await store.commit([put(run, StoredChunk(1, 1, 9, {"$blob": name, "size": 7}))])
        assert await store.check() == []
        while await store.prune(FAR, 100):
            pass
        assert await store.log(old.id) == []
        assert len(await store.log(a_run(2).id)) == 1
        assert await store.blob(blobs[old.id]) is None
        assert await store.blob(blobs[a_run(2).id]) is not None
        assert await store.check() == []

    async def test_logs_are_part_of_a_backup(self, store: Store, fresh: Store) -> None:
        await added(store, a_run(1))
        run = a_run(1).id
        blob = await store.put_blob(b'[[1.0, "stdout", "large"]]')
        chunks = [a_chunk(1, 1, "a", ODD), StoredChunk(2, 1, 1, {"$blob": blob, "size": 26})]
        for chunk in chunks:
            await store.commit([put(run, chunk)])
        dumped = [json.loads(json.dumps(line)) async for line in store.dump()]
        copy = MemoryStore()
        await copy.load(lines_of(dumped))
        assert await copy.log(run) == chunks
        assert await copy.blob(blob) is not None
        assert await copy.check() == []
        await fresh.load(copy.dump())
        assert await fresh.log(run) == chunks
        assert await fresh.check() == []
        with raising(StoreCorrupt):
            await MemoryStore().load(lines_of([line for line in dumped if "run" not in line]))
