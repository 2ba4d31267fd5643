"""Many at once: nothing is lost, nothing happens twice, and nobody stands in another's way for ever."""

from __future__ import annotations

import asyncio
import random

from asterism.core.run.session import REPLACED
from asterism.store.protocol import Notice, PutRegister, PutRun, PutSession, Query, Store, Write
from asterism.store.store_errors import Conflict
from asterism.testing.store_conformance.engine_tests import EngineTests, with_store, with_two
from asterism.testing.store_conformance.sample_records import a_run, a_session, added, ids, joined, offer, taking, wins


async def _increment(store: Store, *keys: str) -> int:
    """One more in each register, all in one batch; returns how often somebody else was first."""
    tries = 0
    while True:
        found = [await store.register(key) for key in keys]
        try:
            await store.commit(
                [
                    PutRegister(key, one.value + 1 if one else 1, one.revision if one else None)
                    for key, one in zip(keys, found, strict=True)
                ]
            )
            return tries
        except Conflict:
            tries += 1


class Racing(EngineTests):
    """Of everything at the same time."""

    @with_store
    async def test_fifty_increments_of_one_register_lose_nothing(self, store: Store) -> None:
        await asyncio.gather(*(_increment(store, "a") for _ in range(50)))
        assert await store.register("a") == ("a", 50, 50)

    @with_two
    async def test_increments_on_two_connections_lose_nothing(self, store: Store, other: Store) -> None:
        async def several(one: Store) -> None:
            for _ in range(3):
                await _increment(one, "a")

        await asyncio.gather(*(several(one) for one in (store, other) for _ in range(5)))
        assert await store.register("a") == await other.register("a") == ("a", 30, 30)

    @with_two
    async def test_batches_in_opposite_orders_do_not_block_each_other(self, store: Store, other: Store) -> None:
        chance = random.Random(7)

        async def several(one: Store) -> None:
            for _ in range(3):
                await _increment(one, *chance.sample("abcd", 4))

        await asyncio.gather(*(several(one) for one in (store, other) for _ in range(4)))
        assert [register.value for register in await store.registers("")] == [24, 24, 24, 24]

    @with_store
    async def test_a_conflict_of_one_is_no_conflict_of_those_beside_it(self, store: Store) -> None:
        """Engines that write for several callers at once have to keep them apart."""
        await store.commit([PutRegister("there", 1, None)])
        tasks = []
        for number in range(60):
            fails = number % 3 == 0
            writes: list[Write] = [
                PutRegister(f"x{number}", number, None),
                PutRun(a_run(number), None),
                PutRegister("there" if fails else f"y{number}", number, None),
                Notice(1.0, "told", str(number)),
            ]
            tasks.append(store.commit(writes))
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [isinstance(outcome, Conflict) for outcome in outcomes] == [number % 3 == 0 for number in range(60)]
        happened = [number for number in range(60) if number % 3]
        assert ids(await store.find(Query())) == [f"r{number:04d}" for number in happened]
        assert sorted(register.value for register in await store.registers("x")) == happened
        assert sorted(int(notice.message) for _, notice in await store.notices()) == happened

    @with_two
    async def test_one_key_makes_one_run(self, store: Store, other: Store) -> None:
        creating = [added((store, other)[number % 2], a_run(number, key="once")) for number in range(20)]
        created = await asyncio.gather(*(wins(one, "key once") for one in creating))
        assert sum(created) == 1
        assert len(await store.find(Query())) == 1

    @with_two
    async def test_of_many_who_replace_a_session_one_wins(self, store: Store, other: Store) -> None:
        await joined(store, a_session())
        known = (await store.sessions())[0]

        replacing = [
            (store, other)[number % 2].commit(
                [
                    PutSession(known.changed(state=REPLACED), known.revision),
                    PutSession(a_session(f"kitchen-{number + 2}"), None),
                ]
            )
            for number in range(10)
        ]
        won = await asyncio.gather(*(wins(one, "session kitchen-1") for one in replacing))
        assert sum(won) == 1
        assert len(await store.sessions()) == 2

    @with_store
    async def test_a_commit_that_is_cancelled_happens_whole_or_not_at_all(self, store: Store) -> None:
        await joined(store, a_session())
        await added(store, *(a_run(number) for number in range(100, 110)))

        async def cancelled_after(steps: int, number: int) -> None:
            writes: list[Write] = [
                PutRegister(f"x{number}", 1, None),
                PutRun(a_run(number), None),
                PutRegister(f"y{number}", 1, None),
            ]
            task = asyncio.create_task(store.commit(writes))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        async def taken_and_cancelled(steps: int) -> None:
            task = asyncio.create_task(store.take(offer(limit=1), taking(a_session())))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        untouched = [store.commit([PutRegister(f"z{number}", 1, None)]) for number in range(20)]
        await asyncio.gather(
            *(cancelled_after(number % 12, number) for number in range(48)),
            *(taken_and_cancelled(steps) for steps in range(6)),
            *untouched,
        )
        await _increment(store, "after all")
        # read at one instant, since a commit that nobody waits for any more may still be under way
        lines = [line async for line in store.dump()]
        keys = [line["register"]["key"] for line in lines if "register" in line]
        runs = {line["run"][0] for line in lines if "run" in line}
        assert {key[1:] for key in keys if key[0] == "x"} == {key[1:] for key in keys if key[0] == "y"}
        assert {key[1:] for key in keys if key[0] == "x"} == {str(int(one[1:])) for one in runs if one < "r0100"}
        assert len([key for key in keys if key[0] == "z"]) == 20

    @with_two
    async def test_who_reads_notices_on_from_the_last_one_misses_none(self, store: Store, other: Store) -> None:
        """A number that is seen means that no lower one is still to come, or readers would pass over it."""
        read: list[str] = []
        last = 0

        async def read_on() -> bool:
            nonlocal last
            page = await store.notices(after=last, limit=7)
            read.extend(notice.message for _, notice in page)
            last = page[-1][0] if page else last
            return bool(page)

        async def tell(one: Store, number: int) -> None:
            more = [PutRegister(f"{number}/{part}", 1, None) for part in range(number % 5)]
            await one.commit([Notice(1.0, "told", str(number)), *more])

        telling = asyncio.gather(*(tell((store, other)[number % 2], number) for number in range(60)))
        while not telling.done():
            await read_on()
            await asyncio.sleep(0)
        await telling
        while await read_on():
            pass
        assert sorted(int(message) for message in read) == list(range(60))
