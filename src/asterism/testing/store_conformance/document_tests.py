"""Registers, which are small documents under a key, and notices, which are told once and only read."""

from __future__ import annotations

from typing import Any

from asterism.store.protocol import Notice, PutRegister, Register, Store
from asterism.testing.store_conformance.engine_tests import EngineTests, with_store
from asterism.testing.store_conformance.sample_records import FAR, a_run, added, conflict


class Documents(EngineTests):
    """Of ``register``, ``registers`` and ``notices``."""

    @with_store
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

    @with_store
    async def test_only_none_removes_a_register(self, store: Store) -> None:
        empty: list[Any] = [0, False, "", [], {}, 0.0]
        await store.commit([PutRegister(f"e{number}", value, None) for number, value in enumerate(empty)])
        found = await store.registers("e")
        assert [register.value for register in found] == empty
        assert [type(register.value) for register in found] == [type(value) for value in empty]
        await store.commit([PutRegister("e0", None, 1)])
        assert await store.register("e0") is None
        assert len(await store.registers("e")) == len(empty) - 1

    @with_store
    async def test_a_register_that_was_removed_can_be_made_again(self, store: Store) -> None:
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

    @with_store
    async def test_to_remove_what_is_not_there_and_not_expected_is_nothing(self, store: Store) -> None:
        await store.commit([PutRegister("a", None, None), PutRegister("b", 1, None)])
        assert await store.register("a") is None
        assert await store.register("b") == Register("b", 1, 1)

    @with_store
    async def test_registers_are_listed_by_their_beginning_in_order(self, store: Store) -> None:
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
        # in the order of code points, whatever the language of the machine
        assert [register.key for register in await store.registers("")] == sorted(keys)
        listed = await store.registers("thing/")
        assert [register.key for register in listed] == sorted(key for key in keys if key.startswith("thing/"))
        assert listed == [Register(register.key, register.key, 1) for register in listed]
        assert [register.key for register in await store.registers("Thing")] == ["Thing/a"]
        assert await store.registers("none") == []

    @with_store
    async def test_a_beginning_is_no_pattern(self, store: Store) -> None:
        keys = ["a%b", "axb", "a_b", "a\\b", "a*b", "a?b", "a[b]", "a'b", 'a"b']
        await store.commit([PutRegister(key, 1, None) for key in keys])
        for key in keys:
            assert [register.key for register in await store.registers(key[:2])] == [key] or key == "axb"
            assert [register.key for register in await store.registers(key)] == [key]

    @with_store
    async def test_notices_are_numbered_in_the_order_they_came(self, store: Store) -> None:
        assert await store.notices() == []
        told = [Notice(100.0 - number, "told", f"the {number}th") for number in range(7)]
        for notice in told[:3]:
            await store.commit([notice])
        await store.commit(told[3:])
        found = await store.notices()
        assert [notice for _, notice in found] == told
        numbers = [number for number, _ in found]
        assert numbers == sorted(set(numbers))
        assert numbers[0] > 0
        assert await store.notices(after=numbers[3]) == found[4:]
        assert await store.notices(after=numbers[3], limit=2) == found[4:6]
        assert await store.notices(limit=1) == found[:1]
        assert await store.notices(after=numbers[-1]) == []

    @with_store
    async def test_notices_can_be_read_for_one_run(self, store: Store) -> None:
        await added(store, a_run(1), a_run(2))
        told = [Notice(float(number), "late", "x", f"r000{number % 2 + 1}", "kitchen") for number in range(6)]
        await store.commit([*told, Notice(9.0, "told", "about no run")])
        found = await store.notices(run="r0002")
        assert [notice for _, notice in found] == told[1::2]
        assert await store.notices(run="r0002", after=found[0][0], limit=1) == found[1:2]
        assert await store.notices(run="r0009") == []
        assert len(await store.notices()) == 7

    @with_store
    async def test_a_refused_commit_tells_nothing(self, store: Store) -> None:
        await store.commit([Notice(1.0, "told", "first")])
        with conflict("register a"):
            await store.commit([Notice(2.0, "told", "never"), PutRegister("a", 1, 1)])
        await store.commit([Notice(3.0, "told", "second")])
        assert [notice.message for _, notice in await store.notices()] == ["first", "second"]

    @with_store
    async def test_a_notice_keeps_its_number_when_others_are_forgotten(self, store: Store) -> None:
        await store.commit([Notice(at, "told", f"at {at}") for at in (100.0, 5.0, 100.0, 6.0, 100.0)])
        before = await store.notices()
        assert await store.prune(50.0, 10) == 0
        kept = await store.notices()
        assert kept == before[::2]
        assert await store.prune(FAR, 10) == 0
        assert await store.notices() == []
        await store.commit([Notice(7.0, "told", "after all that")])
        [(number, _)] = await store.notices()
        # a number is never used twice, or who reads on after a number would miss what came
        assert number > before[-1][0]
