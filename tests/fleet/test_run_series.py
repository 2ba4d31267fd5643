"""Series of runs: one works at a time, in the order in which they were created, whatever happens to it."""

from __future__ import annotations

import asyncio

import pytest

from asterism.core.limits import LONGEST_NAME, InvalidLimit, Limit, LimitBook, series_limit, uses_of
from asterism.core.run.run import Run
from asterism.fleet.run_explanation import explain_run
from asterism.fleet.stored_limits import read_stored_limits, set_limit
from tests.fleet.fleet_scenes import WORK, Stage
from tests.fleet.test_limited_queue import using, working

pytestmark = pytest.mark.virtual_time


async def series_of(stage: Stage, number: int, name: str = "films", **more: object) -> list[Run]:
    return [await stage.person.create(WORK, series=name, **more) for _ in range(number)]  # type: ignore[arg-type]


async def settled(stage: Stage) -> set[str]:
    await asyncio.sleep(20.0)  # virtual time: whatever may begin has begun
    return working(stage)


async def test_they_work_one_at_a_time_in_the_order_of_their_creation(stage: Stage) -> None:
    devices = [await stage.device(name, slots=3) for name in ("kitchen", "garage")]
    runs = await series_of(stage, 4)
    for run in runs:
        assert await settled(stage) == {run.id}
        next(device for device in devices if run.id in device.hands.busy).hands.finish(run)
        await stage.end_of(run)


async def test_neither_a_priority_nor_another_workflow_or_batch_overtakes(stage: Stage) -> None:
    first, second = await series_of(stage, 2)
    urgent = await stage.person.create(using("urgent", {}), series="films", priority=9, batch="b")
    other = await stage.person.create(WORK, series="songs")
    kitchen = await stage.device("kitchen", slots=5)
    assert await settled(stage) == {first.id, other.id}
    kitchen.hands.finish(first)
    assert await settled(stage) == {second.id, other.id}
    kitchen.hands.finish(second)
    assert await settled(stage) == {urgent.id, other.id}


async def test_what_no_device_takes_for_now_keeps_its_turn(stage: Stage) -> None:
    await stage.device("kitchen", slots=5)
    pinned = await stage.person.create(WORK, series="films", device="garage")
    [second] = await series_of(stage, 1)
    assert await settled(stage) == set()
    garage = await stage.device("garage")
    assert await settled(stage) == {pinned.id}
    garage.hands.finish(pinned)
    assert await settled(stage) == {second.id}


async def test_what_is_tried_again_keeps_its_turn(stage: Stage) -> None:
    kitchen = await stage.device("kitchen", slots=5, monitor_every=5.0)
    first = await stage.person.create(using("again", {}, retries=1, backoff=30.0, backoff_most=30.0), series="films")
    [second] = await series_of(stage, 1)
    assert await settled(stage) == {first.id}
    kitchen.hands.fail(stage.store._runs[first.id], RuntimeError("no space left"))
    assert await settled(stage) == set()
    await stage.until(lambda: bool(working(stage)))
    assert working(stage) == {first.id}
    kitchen.hands.finish(first)
    assert await settled(stage) == {second.id}


async def test_what_is_paused_or_cancelled_lets_the_others_go_on(stage: Stage) -> None:
    first, second, third = await series_of(stage, 3)
    await stage.person.pause(first.id)
    await stage.person.cancel(second.id)
    kitchen = await stage.device("kitchen", slots=5)
    assert await settled(stage) == {third.id}
    await stage.person.resume(first.id)
    assert await settled(stage) == {third.id}
    kitchen.hands.finish(third)
    assert await settled(stage) == {first.id}


async def test_why_names_the_active_run_and_the_place_in_the_queue(stage: Stage) -> None:
    first, second, third = await series_of(stage, 3)
    assert "series films" not in str(await explain_run(stage.person, first.id))
    text = f"run {first.id} (work, created) is the active one of series films, and"
    assert f"{text} it is next" in str(await explain_run(stage.person, second.id))
    assert f"{text} 1 more come before it" in str(await explain_run(stage.person, third.id))
    await stage.device("kitchen", slots=5)
    assert await settled(stage) == {first.id}
    assert "(work, processing) is the active one of series films, and it is next" in str(
        await explain_run(stage.person, second.id)
    )


async def test_it_may_use_limits_too(stage: Stage) -> None:
    await set_limit(stage.store, Limit("warehouse", 1))
    kitchen = await stage.device("kitchen", slots=5)
    alone = await stage.person.create(using())
    assert await settled(stage) == {alone.id}
    first = await stage.person.create(using(), series="films")
    [second] = await series_of(stage, 1)
    assert await settled(stage) == {alone.id}
    kitchen.hands.finish(alone)
    assert await settled(stage) == {first.id}
    kitchen.hands.finish(first)
    assert await settled(stage) == {second.id}


async def test_the_limit_of_a_series_cannot_be_changed(stage: Stage) -> None:
    for name in ("series/*", "series/films"):
        with pytest.raises(InvalidLimit, match="is that of a series of runs, which is always 1"):
            await set_limit(stage.store, Limit(name, 2))


@pytest.mark.parametrize("name", ["a b", "*", "/", "{x}", "é" * 300, "x" * 500, "'\"", "a/b/"])
async def test_a_series_may_have_any_name(stage: Stage, name: str) -> None:
    assert len(series_limit(name)) <= LONGEST_NAME
    first, second = await series_of(stage, 2, name)
    assert list(uses_of(first.uses)) == [series_limit(name)]
    await stage.device("kitchen", slots=5)
    assert await settled(stage) == {first.id}
    assert (await stage.read(second)).series == name


async def test_without_the_order_of_series_an_urgent_run_overtakes(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ablation."""
    make = LimitBook.__init__

    def unordered(book: LimitBook, *arguments: object) -> None:
        make(book, *arguments[:4])  # type: ignore[arg-type]

    monkeypatch.setattr(LimitBook, "__init__", unordered)
    await series_of(stage, 1)
    urgent = (await series_of(stage, 1, priority=9))[0]
    stored = await read_stored_limits(stage.store)
    first = next(stored.book(1.0).in_turn(group for group in stored.groups if group.waiting))
    assert first.first == urgent.id
