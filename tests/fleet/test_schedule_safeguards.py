"""Each safeguard of schedules, and what goes wrong without it: two coordinators, lost answers, clocks set back."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from typing import Any

import pytest

from asterism.core.schedule import ticks
from asterism.fleet import scheduled_work
from asterism.fleet.scheduled_work import ScheduledWork, SchedulePass, schedule_key
from asterism.store.memory import MemoryStore
from asterism.store.protocol import PutRegister, Query
from asterism.store.store_errors import StoreUnavailable
from tests.fleet.fleet_scenes import WORK, Line, Stage

pytestmark = pytest.mark.virtual_time

Patch = pytest.MonkeyPatch


async def added(stage: Stage, **options: Any) -> None:
    await stage.person.workflows.add(WORK)
    await stage.person.schedules.add("nightly", workflow="work", every=60, **{"overlap": "allow", **options})


def coordinator(stage: Stage) -> tuple[SchedulePass, Line]:
    line = Line(stage.store)
    return SchedulePass(stage.fleet("hub", line)), line


async def created(stage: Stage) -> Counter[str]:
    """How often each tick was created."""
    return Counter((run.key or "").partition("#")[0] for run in await stage.store.find(Query()))


def without_keys(patch: Patch) -> None:
    number = itertools.count()
    patch.setattr(scheduled_work, "tick_key", lambda name, tick: f"{ticks.tick_key(name, tick)}#{next(number)}")


def without_revision(patch: Patch) -> None:
    """The schedule is written whatever its revision is by then."""
    writes = ScheduledWork._writes

    async def whatever(self: ScheduledWork, stored: Any, after: Any, entries: Any) -> Any:
        return [_Whatever(put.key, put.value, None) for put in await writes(self, stored, after, entries)]

    commit = MemoryStore.commit

    async def with_current(self: Any, batch: Any) -> None:
        current = []
        for write in batch:
            if isinstance(write, _Whatever):
                register = await self.register(write.key)
                current.append(PutRegister(write.key, write.value, register and register.revision))
            else:
                current.append(write)
        await commit(self, current)

    patch.setattr(ScheduledWork, "_writes", whatever)
    patch.setattr(MemoryStore, "commit", with_current)


class _Whatever(PutRegister):
    """A write that expects nothing."""


# -- two coordinators --------------------------------------------------------------------------------------------------


async def together(stage: Stage) -> Counter[str]:
    """Two coordinators decide about the same ticks at the same time, one of them over a slow line."""
    await added(stage)
    (first, _), (other, line) = coordinator(stage), coordinator(stage)
    for _ in range(10):
        await asyncio.sleep(60.0)
        line.late = {"commit": 0.5}
        await asyncio.gather(first.run_pass(), other.run_pass())
    return await created(stage)


async def test_two_coordinators_create_each_tick_once(stage: Stage) -> None:
    counts = await together(stage)
    assert len(counts) == 10
    assert set(counts.values()) == {1}


async def test_the_revision_alone_keeps_two_coordinators_apart(stage: Stage, monkeypatch: Patch) -> None:
    without_keys(monkeypatch)
    assert set((await together(stage)).values()) == {1}


async def test_the_key_alone_keeps_two_coordinators_apart(stage: Stage, monkeypatch: Patch) -> None:
    without_revision(monkeypatch)
    assert set((await together(stage)).values()) == {1}


async def test_without_both_two_coordinators_create_a_tick_twice(stage: Stage, monkeypatch: Patch) -> None:
    without_keys(monkeypatch)
    without_revision(monkeypatch)
    assert 2 in (await together(stage)).values()


async def paused_meanwhile(stage: Stage) -> int:
    """A person pauses the schedule while a coordinator is about to commit. Returns the number of runs."""
    await added(stage)
    decide, line = coordinator(stage)
    await asyncio.sleep(60.0)
    line.late = {"commit": 5.0}
    deciding = asyncio.create_task(decide.run_pass())
    await asyncio.sleep(1.0)
    await stage.person.schedules.pause("nightly")
    await deciding
    return len(await stage.store.find(Query()))


async def test_nothing_is_created_after_a_pause_has_returned(stage: Stage) -> None:
    assert await paused_meanwhile(stage) == 0
    assert (await stage.person.schedules.get("nightly")).paused is not None


async def test_without_the_revision_a_tick_comes_after_a_pause(stage: Stage, monkeypatch: Patch) -> None:
    without_revision(monkeypatch)
    assert await paused_meanwhile(stage) == 1


# -- lost answers and crashes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["drops", "loses"])
async def test_a_commit_that_gets_lost_creates_a_tick_once(stage: Stage, fault: str) -> None:
    """The question or the answer gets lost; with a lost answer, the commit has happened."""
    await added(stage)
    decide, line = coordinator(stage)
    for _ in range(3):
        await asyncio.sleep(60.0)
        getattr(line, fault)["commit"] = 1
        await decide.run_pass()
    counts = await created(stage)
    assert len(counts) == 3
    assert set(counts.values()) == {1}
    outcomes = [entry.outcome for entry in await stage.person.schedules.history("nightly")]
    assert outcomes == ["created"] * 3


class Dead(BaseException):
    """The coordinator was killed."""


async def killed_between_commits(stage: Stage, patch: Patch) -> Counter[str]:
    """A coordinator is killed after its first commit of each pass; another one goes on."""
    await added(stage)
    commit = stage.store.commit
    for _ in range(3):
        await asyncio.sleep(60.0)
        number = 0

        async def dies(writes: Any) -> None:
            nonlocal number
            number += 1
            if number > 1:
                raise Dead
            await commit(writes)

        patch.setattr(stage.store, "commit", dies)
        with contextlib.suppress(Dead):
            await SchedulePass(stage.fleet("dies")).run_pass()
        patch.setattr(stage.store, "commit", commit)
        await SchedulePass(stage.fleet("next")).run_pass()
    return await created(stage)


async def test_a_coordinator_that_is_killed_loses_no_tick(stage: Stage, monkeypatch: Patch) -> None:
    counts = await killed_between_commits(stage, monkeypatch)
    assert len(counts) == 3
    assert set(counts.values()) == {1}


async def test_with_two_commits_a_tick_is_lost(stage: Stage, monkeypatch: Patch) -> None:
    """The cursor is written first, and the run in a commit of its own."""

    async def apart(self: ScheduledWork, stored: Any, after: Any, entries: Any) -> Any:
        now = await self._store.register(schedule_key(stored.schedule.name))
        assert now is not None
        await self._store.commit([PutRegister(now.key, after.to_json(), now.revision)])
        return []

    monkeypatch.setattr(ScheduledWork, "_writes", apart)
    assert len(await killed_between_commits(stage, monkeypatch)) == 0


# -- clocks ----------------------------------------------------------------------------------------------------------


async def set_back(stage: Stage) -> Counter[str]:
    """The store's clock is set back by some ticks, and right again a little later."""
    await added(stage, catch_up="all")
    decide, _ = coordinator(stage)
    for pause, jump in ((300.0, 0.0), (5.0, -200.0), (5.0, 0.0)):
        await asyncio.sleep(pause)
        stage.jump = jump
        await decide.run_pass()
    return await created(stage)


async def test_a_tick_that_comes_again_is_not_created_again(stage: Stage) -> None:
    counts = await set_back(stage)
    assert set(counts.values()) == {1}
    outcomes = Counter(entry.outcome for entry in await stage.person.schedules.history("nightly"))
    assert outcomes["exists"] > 0


async def test_without_keys_a_tick_that_comes_again_is_created_again(stage: Stage, monkeypatch: Patch) -> None:
    without_keys(monkeypatch)
    assert 2 in (await set_back(stage)).values()


async def test_a_schedule_goes_on_after_the_clock_was_a_year_ahead(stage: Stage) -> None:
    await added(stage)
    decide, _ = coordinator(stage)
    stage.jump = 366 * 86_400.0
    await decide.run_pass()
    stage.jump = 0.0
    before = await created(stage)
    for _ in range(3):
        await asyncio.sleep(60.0)
        await decide.run_pass()
    assert len(await created(stage)) == len(before) + 2  # the first pass finds that the clock was set back


async def test_without_rewinding_it_stands_still(stage: Stage, monkeypatch: Patch) -> None:
    monkeypatch.setattr(scheduled_work, "rewound", lambda schedule, now, next_tick: schedule)
    await added(stage)
    decide, _ = coordinator(stage)
    stage.jump = 366 * 86_400.0
    await decide.run_pass()
    stage.jump = 0.0
    before = await created(stage)
    for _ in range(3):
        await asyncio.sleep(60.0)
        await decide.run_pass()
    assert await created(stage) == before


async def test_an_outage_is_an_error_of_the_pass(stage: Stage) -> None:
    await added(stage)
    decide, line = coordinator(stage)
    line.down = True
    with pytest.raises(StoreUnavailable):
        await decide.run_pass()
