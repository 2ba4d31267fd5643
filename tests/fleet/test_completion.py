"""Ends that come up together are written in one commit; if it fails, each is still written once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from asterism.core.run.run import Run
from asterism.fleet.device import completion
from asterism.fleet.device.store_connection import StoreConnection
from asterism.store.protocol import PutRun, Write
from tests.fleet.fleet_scenes import WORK, Device, Stage

pytestmark = pytest.mark.virtual_time


async def at_work(stage: Stage, number: int, **options: object) -> tuple[Device, list[Run]]:
    """A device that works on so many runs."""
    device = await stage.device("kitchen", slots=number, **options)
    runs = [await stage.person.create(WORK) for _ in range(number)]
    for run in runs:
        await stage.at_work(device, run)
    await device.fleet.settings()  # read before, so that no end waits for them
    return device, runs


def noted(stage: Stage) -> list[list[str]]:
    """The runs that end in each commit from now on."""
    commits: list[list[str]] = []
    commit = stage.store.commit

    async def noting(writes: Sequence[Write]) -> None:
        await commit(writes)
        ended = [write.run.id for write in writes if isinstance(write, PutRun) and write.run.ended]
        if ended:
            commits.append(ended)

    stage.store.commit = noting  # type: ignore[method-assign]
    return commits


def finish_all(device: Device, runs: Sequence[Run]) -> None:
    for number, run in enumerate(runs):
        device.hands.finish(run, number)


async def all_completed_once(stage: Stage, runs: Sequence[Run]) -> None:
    for number, run in enumerate(runs):
        ended = await stage.end_of(run)
        assert (str(ended.status), ended.output) == ("completed", number)
        assert [entry.what for entry in ended.story].count("completed") == 1


@pytest.mark.store_only("the server decides the time of a result")
async def test_results_within_a_millisecond_share_one_timestamp(stage: Stage) -> None:
    connection = (await stage.device("kitchen")).agent.connection
    assert isinstance(connection, StoreConnection)
    clock, readings = connection.store_time, [1000.0, 1000.0005, 1000.00099, 1000.0015, 1000.002, 999.0]
    connection.store_time = iter(readings).__next__  # the last one: the clock was set back
    times = [connection.end_time() for _ in readings]
    connection.store_time = clock
    assert times == [1000.0, 1000.0, 1000.0, 1000.0015, 1000.0015, 999.0]


@pytest.mark.store_only("it counts the commits of the device")
async def test_ends_that_come_up_together_leave_in_one_commit(stage: Stage) -> None:
    device, runs = await at_work(stage, 5)
    commits = noted(stage)
    finish_all(device, runs)
    await all_completed_once(stage, runs)
    assert [sorted(commit) for commit in commits] == [sorted(run.id for run in runs)]
    assert len(device.agent.worker) == 0


@pytest.mark.store_only("it counts the commits of the device")
async def test_only_so_many_ends_leave_together(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion, "LARGEST_BATCH", 2)
    device, runs = await at_work(stage, 5)
    commits = noted(stage)
    finish_all(device, runs)
    await all_completed_once(stage, runs)
    assert sorted(map(len, commits)) == [1, 2, 2]


@pytest.mark.store_only("through a gateway the end goes with the next order")
async def test_the_next_run_begins_while_the_end_of_the_last_is_written(stage: Stage) -> None:
    """As many as there are slots: a store that takes no ends gets no more executions."""
    device = await stage.device("kitchen", slots=1)
    runs = [await stage.person.create(WORK, priority=-number) for number in range(3)]
    await device.fleet.settings()
    may_end, commit = asyncio.Event(), stage.store.commit

    async def holding(writes: Sequence[Write]) -> None:
        if any(isinstance(write, PutRun) and write.run.ended for write in writes):
            await may_end.wait()
        await commit(writes)

    stage.store.commit = holding  # type: ignore[method-assign]
    for number, run in enumerate(runs[:2]):
        await stage.at_work(device, run)
        device.hands.finish(run, number)
    await asyncio.sleep(20.0)
    assert [str((await stage.read(run)).status) for run in runs] == ["processing", "processing", "created"]
    may_end.set()
    await stage.at_work(device, runs[2])
    device.hands.finish(runs[2], 2)
    await all_completed_once(stage, runs)


async def test_a_conflict_of_one_end_does_not_keep_the_others_from_being_written(stage: Stage) -> None:
    device, runs = await at_work(stage, 4)
    device.line.late["commit"] = 1.0
    finish_all(device, runs)
    await stage.person.cancel(runs[2].id)  # only a request: a completed run stays completed
    await all_completed_once(stage, runs)
    await stage.until(lambda: not len(device.agent.worker))


async def test_a_run_that_was_taken_away_is_fenced_and_the_other_ends_are_written(stage: Stage) -> None:
    device, runs = await at_work(stage, 3)
    device.line.down = True
    finish_all(device, runs)
    taken = stage.store._runs[runs[1].id]
    await stage.store.commit([PutRun(taken.changed(revision=taken.revision + 1, epoch=9), taken.revision)])
    device.line.down = False
    for run in (runs[0], runs[2]):
        assert str((await stage.end_of(run)).status) == "completed"
    await stage.until(lambda: not len(device.agent.worker))
    assert [notice.run for notice in await stage.notices("late")] == [runs[1].id]
    assert str((await stage.read(runs[1])).status) == "processing"
    await stage.store.commit([PutRun(taken.changed(revision=taken.revision + 2), taken.revision + 1)])


async def test_ends_whose_answer_was_lost_are_written_once(stage: Stage) -> None:
    device, runs = await at_work(stage, 4)
    commits = noted(stage)
    device.line.loses["commit"] = 1
    finish_all(device, runs)
    await all_completed_once(stage, runs)
    await stage.until(lambda: not len(device.agent.worker))
    assert sorted(map(len, commits)) == [4]


async def test_ends_of_a_lost_commit_are_written_again(stage: Stage) -> None:
    device, runs = await at_work(stage, 4)
    device.line.drops["commit"] = 1
    finish_all(device, runs)
    await all_completed_once(stage, runs)
    await stage.until(lambda: not len(device.agent.worker))


async def test_a_device_that_leaves_while_ends_are_on_their_way_leaves_nothing_on_its_desk(stage: Stage) -> None:
    device, runs = await at_work(stage, 3)
    device.line.down = True
    finish_all(device, runs)
    await stage.until(lambda: not device.hands.busy)
    await device.leave()
    await stage.until(lambda: not len(device.agent.worker))


async def test_an_ending_device_still_writes_failed_batches_one_by_one(
    stage: Stage,
) -> None:
    device, runs = await at_work(stage, 3)
    device.line.late["commit"] = 0.5
    finish_all(device, runs)
    await stage.until(lambda: not device.hands.busy)
    await stage.person.cancel(runs[1].id)  # only a request, but their one commit is refused
    await device.leave()
    for run in runs:
        assert str((await stage.read(run)).status) == "completed"


async def test_a_device_that_is_ended_while_results_are_being_kept_still_has_its_time_to_tell_them(
    stage: Stage,
) -> None:
    device, runs = await at_work(stage, 2)
    await stage.until(lambda: stage.now() > 100.0)
    device.line.late.update(register=0.3, put_blob=0.3, commit=0.3)  # the settings are not fresh any more
    device.hands.finish(runs[0], "words")
    device.hands.finish(runs[1], "many words" * 10_000)
    await stage.until(lambda: not device.hands.busy)
    await device.leave()
    for run in runs:
        assert str((await stage.read(run)).status) == "completed"


@pytest.mark.store_only("it counts the commits of the device")
async def test_stale_settings_are_read_once_for_all_callers(stage: Stage) -> None:
    device, runs = await at_work(stage, 10)
    await stage.until(lambda: stage.now() > 100.0)
    asked = device.line.asked["register"]
    for run in runs:
        device.hands.finish(run, "words")
    for run in runs:
        await stage.end_of(run)
    assert device.line.asked["register"] - asked == 1
