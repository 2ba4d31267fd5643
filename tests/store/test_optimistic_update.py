"""Optimistic updates: racing writers, exhaustion, outages, and attempts that have nothing to do."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest

from asterism.store.memory import MemoryStore
from asterism.store.optimistic_update import CONFLICT_PAUSE, retry_on_conflict, try_commit, update_register
from asterism.store.protocol import Notice, PutRegister, Register, Write
from asterism.store.store_errors import Conflict, StoreUnavailable
from asterism.testing.virtual_time import run


class SlowStore(MemoryStore):
    """Others run between a read and the commit that follows it. The first ``outages`` commits fail."""

    def __init__(self, outages: int = 0) -> None:
        super().__init__()
        self.outages, self.commits = outages, 0

    async def register(self, key: str) -> Register | None:
        register = await super().register(key)
        await asyncio.sleep(0)
        return register

    async def commit(self, writes: Sequence[Write]) -> None:
        self.commits += 1
        if self.commits <= self.outages:
            raise StoreUnavailable("the store is out of reach")
        await super().commit(writes)


def one_more(count: Any) -> int:
    return (count or 0) + 1


def now() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.virtual_time(seeds=5)
async def test_two_racing_writers_lose_no_update() -> None:
    store = SlowStore()

    async def writer() -> None:
        for _ in range(20):
            await update_register(store, "count", one_more)

    await asyncio.gather(writer(), writer())
    register = await store.register("count")
    assert register == ("count", 40, 40)
    assert store.commits > 40, "the writers never met"


@pytest.mark.virtual_time
async def test_an_update_returns_the_new_value() -> None:
    store = MemoryStore()
    assert await update_register(store, "count", one_more) == 1
    assert await update_register(store, "count", one_more) == 2


@pytest.mark.virtual_time
async def test_a_change_that_returns_none_writes_nothing() -> None:
    store = SlowStore()
    assert await update_register(store, "a", lambda value: None) is None
    await store.commit([PutRegister("a", {"n": 1}, None)])
    assert await update_register(store, "a", lambda value: None) == {"n": 1}
    assert store.commits == 1
    assert await store.register("a") == ("a", {"n": 1}, 1)


@pytest.mark.virtual_time
async def test_an_attempt_writes_several_records_in_one_commit() -> None:
    store = SlowStore()

    async def attempt() -> int:
        register = await store.register("count")
        count = one_more(register and register.value)
        writes: list[Write] = [PutRegister("count", count, register and register.revision)]
        if count == 3:
            writes.append(Notice(store.clock(), "visits", "the third visit"))
        await store.commit(writes)
        return count

    counts = await asyncio.gather(*(retry_on_conflict(attempt) for _ in range(4)))
    assert sorted(counts) == [1, 2, 3, 4]
    assert [notice.message for _, notice in await store.notices()] == ["the third visit"]


@pytest.mark.virtual_time
async def test_the_last_conflict_is_raised_when_the_tries_are_used_up() -> None:
    attempts = 0

    async def attempt() -> None:
        nonlocal attempts
        attempts += 1
        raise Conflict(f"register {attempts}")

    with pytest.raises(Conflict, match="register 4"):
        await retry_on_conflict(attempt, tries=4)
    assert attempts == 4


@pytest.mark.virtual_time
async def test_conflicts_are_retried_at_once_and_then_with_growing_pauses() -> None:
    times: list[float] = []

    async def attempt() -> None:
        times.append(now())
        if len(times) < 14:
            raise Conflict("register a")

    await retry_on_conflict(attempt, chance=random.Random(1))
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert pauses[:2] == [0.0, 0.0]
    assert CONFLICT_PAUSE[0] * 0.5 <= pauses[2] <= CONFLICT_PAUSE[0] * 1.5
    assert pauses[4] > pauses[2]
    assert all(CONFLICT_PAUSE[1] * 0.5 <= pause <= CONFLICT_PAUSE[1] * 1.5 for pause in pauses[-4:])


def test_the_pauses_of_one_chance_are_repeatable() -> None:
    async def scene(chance: random.Random | None) -> float:
        left = iter(range(10))

        async def attempt() -> None:
            if next(left, None) is not None:
                raise Conflict("register a")

        await retry_on_conflict(attempt, chance=chance)
        return now()

    assert run(scene(random.Random(1))) == run(scene(random.Random(1)))
    assert run(scene(random.Random(1))) != run(scene(random.Random(2)))
    assert run(scene(None)) == run(scene(None))


@pytest.mark.virtual_time
async def test_writers_without_a_chance_of_their_own_do_not_pause_in_step() -> None:
    async def ended() -> float:
        began, left = now(), iter(range(10))

        async def attempt() -> None:
            if next(left, None) is not None:
                raise Conflict("register a")

        await retry_on_conflict(attempt)
        return now() - began

    first = await ended()
    assert await ended() != first


@pytest.mark.virtual_time
async def test_an_outage_is_raised_at_once_without_patience() -> None:
    store = SlowStore(outages=1)
    with pytest.raises(StoreUnavailable):
        await update_register(store, "count", one_more)
    assert store.commits == 1


@pytest.mark.virtual_time
async def test_an_outage_is_waited_for_within_the_patience() -> None:
    store = SlowStore(outages=5)

    async def attempt() -> None:
        await store.commit([PutRegister("a", 1, None)])

    await retry_on_conflict(attempt, patience=60.0)
    assert await store.register("a") == ("a", 1, 1)
    assert 0.5 < now() < 3.0


@pytest.mark.virtual_time
async def test_an_outage_that_outlasts_the_patience_is_raised() -> None:
    async def attempt() -> None:
        raise StoreUnavailable("the store is out of reach")

    with pytest.raises(StoreUnavailable):
        await retry_on_conflict(attempt, patience=60.0)
    assert 60.0 <= now() < 63.0


@pytest.mark.virtual_time
async def test_other_errors_of_an_attempt_pass_through() -> None:
    async def attempt() -> None:
        raise ValueError("not a valid name")

    with pytest.raises(ValueError, match="not a valid name"):
        await retry_on_conflict(attempt, patience=60.0)


@pytest.mark.virtual_time
async def test_a_single_try_says_whether_it_was_first() -> None:
    store = MemoryStore()
    assert await try_commit(store, [PutRegister("a", 1, None)])
    assert not await try_commit(store, [PutRegister("a", 2, None)])
    assert await store.register("a") == ("a", 1, 1)
