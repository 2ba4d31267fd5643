"""Tests of records: registers, notices, any text, exact numbers, runs with any history."""

from __future__ import annotations

import asyncio
import itertools
import struct
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, given, settings

from asterism.core.run import transitions
from asterism.core.run.run import Grant, Progress, Run
from asterism.core.run.session import Session
from asterism.store.protocol import (
    Notice,
    ProgressReport,
    PutRegister,
    PutRun,
    PutSession,
    Query,
    Register,
    Store,
    Write,
)
from asterism.testing.conformance import StoreTests
from asterism.testing.store_conformance.sample_records import (
    DEVICES,
    FAR,
    FLOW,
    a_run,
    a_session,
    added,
    after,
    completed,
    conflict,
    hard_to_compress,
    held_by,
    histories,
    joined,
    offer,
    raising,
    series_of,
    session_in,
    started,
    taking,
)

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

    async def test_any_text_survives_in_every_free_field(self, store: Store) -> None:
        session = a_session()
        await joined(store, session)
        for number, text in enumerate(TEXTS):
            given: dict[str, Any] = {"text": text, text: [text]}
            run = transitions.create(f"a{number:03d}", FLOW, given, by=text, now=1.0)
            await _keeps(store, _wordy(run, session, text))
            failed = transitions.give_up(a_run(f"b{number:03d}"), 9.0, text)
            await added(store, failed)
            assert await store.run(failed.id) == failed
            notice = Notice(1.0, "info", text, run.id, "kitchen")
            await store.commit([PutRegister(f"a{number}", given, None), notice])
            register = await store.register(f"a{number}")
            assert register is not None
            assert register.value == given
            assert [one for _, one in await store.notices(run=run.id)] == [notice]

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
            await store.commit([series_of(name, queue=[waiting.id])])
            assert await store.run(run.id) == run
            assert await store.find(Query(key=name)) == [run]
            assert await store.find(Query(workflow=name)) == [run, waiting]
            assert await store.find(Query(series=name)) == [waiting]
            [taken] = await store.take(offer(name), taking(session, flow))
            assert taken.id == run.id
            assert await store.find(Query(session=session.id)) == await store.find(Query(device=name)) == [taken]
            assert [held.run for held in (await store.heartbeat(session.id, {}, [])).held] == [run.id]
            await store.commit([PutRegister(f"of {name}", 1, None)])
            assert [register.key for register in await store.registers(f"of {name}")] == [f"of {name}"]
            free = transitions.release_hold(waiting, 3.0)
            await store.commit([after(waiting, free), series_of(name, active=waiting.id, revision=1)])
            assert await store.take(offer(name), taking(session, flow)) == []
            assert await store.take(offer("z", not_kinds=frozenset({f"{name}@1"})), taking(session, flow)) == []
            over = transitions.cancel(free, 4.0, name)
            await store.commit([after(free, over), PutRegister(f"series/{name}", None, 2)])

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
                series_of(name, queue=[held.id]),
            ]
        )
        assert await store.run(name) == run
        assert await store.find(Query(key=name, id_like=name[10:990])) == [run]
        assert await store.find(Query(series=name, after=name)) == [held]
        [taken] = await store.take(offer(name, not_kinds=frozenset({f"{name}x@1"})), taking(session))
        assert taken.device == name
        answer = await store.heartbeat(name, {}, [])
        assert [one.run for one in answer.held] == [name]

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
                fine = [[PutRun(a_run(f"{number}{place}{one}"), None)] for one in range(6)]
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
                assert all(isinstance(one, ValueError) for one in refused), refused
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

    async def test_texts_may_be_very_long(self, store: Store) -> None:
        large = hard_to_compress(1_000_000) + "😀\0"
        session = a_session()
        await joined(store, session)
        run = started(held_by(a_run(1, given={"x": large}), session))
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
                given={"x": value, "y": -value},
            )
            run = run.changed(not_before=value, waiting_since=value, due_at=value)
            await added(store, run)
            found = await store.run(run.id)
            assert found == run
            for one in (found.created_at, found.not_before, found.waiting_since, found.due_at, found.input["x"]):
                assert _bits(one) == _bits(value)
            assert _bits(found.input["y"]) == _bits(-value)
            ended = transitions.cancel(run, value, "ann").changed(due_at=None)
            await store.commit([after(run, ended), PutRegister(f"a{number}", value, None), Notice(value, "info", "x")])
            found = await store.run(run.id)
            assert found == ended
            assert _bits(found.ended_at) == _bits(value)
            register = await store.register(f"a{number}")
            assert register is not None
            assert _bits(register.value) == _bits(value)
        assert [_bits(notice.at) for _, notice in await store.notices()] == [_bits(value) for value in FLOATS]

    async def test_whole_numbers_are_exact(self, store: Store) -> None:
        numbers = [0, -1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**64), 10**100]
        await store.commit([PutRegister("a", numbers, None), PutRun(a_run(1, given={"x": numbers}), None)])
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
                runner.run(joined(store, *(Session(f"{name}-{one}", name, 1.0) for name in DEVICES for one in (1, 2))))
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
        found = await store.registers("e")
        assert [register.value for register in found] == empty
        assert [type(register.value) for register in found] == [type(value) for value in empty]
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
            "thing/b",
            "thing/B",
            "thing/a",
            "Thing/a",
            "thing",
            "thing/é",
            "thing/😀",
            "x/y",
            "a",
            "thing/%",
            "some thing/a",
        ]
        await store.commit([PutRegister(key, key, None) for key in keys])
        # in the order of code points, whatever the locale
        assert [register.key for register in await store.registers("")] == sorted(keys)
        listed = await store.registers("thing/")
        assert [register.key for register in listed] == sorted(key for key in keys if key.startswith("thing/"))
        assert listed == [Register(register.key, register.key, 1) for register in listed]
        assert [register.key for register in await store.registers("Thing")] == ["Thing/a"]
        assert await store.registers("none") == []

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
        found = await store.notices()
        assert [notice for _, notice in found] == notices
        numbers = [number for number, _ in found]
        assert numbers == sorted(set(numbers))
        assert numbers[0] > 0
        assert await store.notices(after=numbers[3]) == found[4:]
        assert await store.notices(after=numbers[3], limit=2) == found[4:6]
        assert await store.notices(limit=1) == found[:1]
        assert await store.notices(after=numbers[-1]) == []

    async def test_notices_can_be_read_for_one_run(self, store: Store) -> None:
        await added(store, a_run(1), a_run(2))
        notices = [Notice(float(number), "late", "x", f"r000{number % 2 + 1}", "kitchen") for number in range(6)]
        await store.commit([*notices, Notice(9.0, "info", "about no run")])
        found = await store.notices(run="r0002")
        assert [notice for _, notice in found] == notices[1::2]
        assert await store.notices(run="r0002", after=found[0][0], limit=1) == found[1:2]
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
