"""History of a stored plan: versions, time travel, events with positions, also while it is written and compacted."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest

from asterism.core.plan import plan_codec
from asterism.core.plan.apply import Applied
from asterism.core.plan.edits import AddDependency, AddTask, EditBatch, RemoveTask
from asterism.core.plan.journal import RecordedConstellation
from asterism.core.plan.step_changes import Change
from asterism.durable import compaction, journal_store, plan_history
from asterism.durable.compaction import Compaction
from asterism.durable.journal_store import UnknownConstellation, insert_plan, record_key
from asterism.durable.plan_actor import edit_plan
from asterism.durable.plan_history import (
    PlanEvent,
    PlanFollower,
    Position,
    VersionUnknown,
    plan_at,
    plan_events,
    versions,
)
from asterism.fleet import retention
from asterism.store.protocol import PutRegister
from tests.core.plan.test_step_changes import View, assert_same
from tests.durable.durable_scenes import Stage, chain, task
from tests.durable.test_compaction import live, living_plan

pytestmark = pytest.mark.virtual_time


@pytest.fixture
def compacted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Journals are compacted all the time, in small pieces."""
    monkeypatch.setattr(compaction, "LONG_JOURNAL", 40)
    monkeypatch.setattr(compaction, "STEPS_PER_TASK", 0)
    monkeypatch.setattr(compaction, "TASKS_PER_PIECE", 10)
    monkeypatch.setattr(plan_codec, "TASKS_PER_CHUNK", 20)
    monkeypatch.setattr(journal_store, "PART_LENGTH", 4000)
    monkeypatch.setattr(compaction, "PACK_LENGTH", 1500)


def as_json(events: list[PlanEvent]) -> list[Any]:
    return [event.to_json() for event in events]


def watch_versions(monkeypatch: pytest.MonkeyPatch) -> dict[int, str]:
    """The plan at the moment of each edit, by version, as its owner had it."""
    seen: dict[int, str] = {}
    apply = RecordedConstellation.apply

    def noted(self: RecordedConstellation, batch: EditBatch, now: float) -> Applied:
        applied = apply(self, batch, now)
        if self.owner is not None and batch.edits:
            seen[applied.version] = json.dumps(self.to_json())
        return applied

    monkeypatch.setattr(RecordedConstellation, "apply", noted)
    return seen


async def lived(stage: Stage) -> None:
    await live(stage)
    assert await stage.store.registers("archive/nightly/")
    assert (await stage.load()).head.snapshot is not None


# -- versions and time travel ------------------------------------------------------------------------------------------


async def test_versions_tell_who_why_and_what_of_every_edit(stage: Stage) -> None:
    await insert_plan(stage.store, chain("a", "b"))
    await edit_plan(stage.fleet(), "nightly", EditBatch((AddTask(task("c")), AddDependency("b", "c")), "bob", "more"))
    await edit_plan(stage.fleet(), "nightly", EditBatch((RemoveTask("c"),), "ann", "less"))
    first, added, removed = await versions(stage.store, "nightly")
    assert (first.version, first.author, first.edits, first.diff) == (0, "", (), None)
    assert (added.version, added.author, added.reason) == (1, "bob", "more")
    assert [edit["op"] for edit in added.edits] == ["add_task", "add_dependency"]
    assert added.diff is not None
    assert added.diff["added"] == ["c"]
    assert (removed.version, removed.diff and removed.diff["removed"]) == (2, ["c"])
    assert first.position < added.position < removed.position
    json.dumps([version.to_json() for version in (first, added, removed)])


async def test_the_plan_at_a_version_is_as_its_owner_had_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, compacted: None
) -> None:
    seen = watch_versions(monkeypatch)
    await lived(stage)
    monkeypatch.undo()
    assert len(seen) > 3
    assert [version.version for version in await versions(stage.store, "nightly")] == [0, *seen]
    for version, picture in seen.items():
        past = await plan_at(stage.store, "nightly", version)
        assert (past.version.version, json.dumps(past.plan.to_json())) == (version, picture)
    initial = (await plan_at(stage.store, "nightly", 0)).plan
    assert {view.id for view in initial} == {view.id for view in living_plan()}
    with pytest.raises(VersionUnknown, match=f"no version 99 in its history: versions 0 to {max(seen)} are known"):
        await plan_at(stage.store, "nightly", 99)


async def test_the_history_of_an_unknown_plan(stage: Stage) -> None:
    for question in (versions(stage.store, "x"), plan_at(stage.store, "x", 1), plan_events(stage.store, "x")):
        with pytest.raises(UnknownConstellation):
            await question


# -- events ------------------------------------------------------------------------------------------------------------


async def test_events_change_a_view_into_the_plan(stage: Stage, compacted: None) -> None:
    await lived(stage)
    past = await plan_at(stage.store, "nightly", 0)
    view = View(past.plan, past.lock)
    read = await plan_events(stage.store, "nightly")
    for event in read.events:
        view.apply(Change(event.kind, event.at, event.data))
    now = await stage.load()
    assert_same(view, now.plan, now.lock)
    assert (read.position, read.reset) == (Position(now.number), False)
    assert {event.kind for event in read.events} == {"plan", "task", "edit", "cycle"}


@pytest.mark.long
async def test_any_split_of_the_reading_misses_nothing_and_tells_nothing_twice(stage: Stage, compacted: None) -> None:
    await lived(stage)
    whole = (await plan_events(stage.store, "nightly")).events
    positions = [event.position for event in whole]
    assert positions == sorted(set(positions))
    chance = random.Random(1)
    for index in chance.sample(range(len(whole)), 12):
        after = Position.parse(str(positions[index]))
        read = await plan_events(stage.store, "nightly", after)
        assert not read.reset
        assert as_json(read.events) == as_json(whole[index + 1 :])
        follower = await PlanFollower.open(stage.store, "nightly", after)
        assert as_json(await follower.read()) == as_json(whole[index + 1 :])
    records = sorted({position.number for position in positions})
    for number in chance.sample(records, 5):  # after a whole record, as a view has it
        read = await plan_events(stage.store, "nightly", Position(number))
        assert as_json(read.events) == [event.to_json() for event in whole if event.position.number > number]


@pytest.mark.parametrize("late", [False, True])
async def test_readers_beside_a_writer_and_a_compaction_see_every_event_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, compacted: None, late: bool
) -> None:
    """A reader that is late finds the records in the archive."""

    async def slow_turn() -> None:
        await asyncio.sleep(0.002)

    monkeypatch.setattr(compaction, "yield_to_loop", slow_turn)
    commit = stage.store.commit

    async def slowly(writes: Any) -> None:
        await asyncio.sleep(0.01)
        await commit(writes)

    monkeypatch.setattr(stage.store, "commit", slowly)
    await insert_plan(stage.store, chain("z"))
    follower = await PlanFollower.open(stage.store, "nightly")
    await stage.store.commit([PutRegister(key.key, None, key.revision) for key in await stage.store.registers("")])
    running = asyncio.ensure_future(live(stage))
    for _ in range(1000):
        if await stage.store.registers("plan/nightly"):
            break
        await asyncio.sleep(0.01)
    assert [event.kind for event in await follower.read()] == ["reset"]  # another plan of that name
    start, heard, chance = follower.position, list[PlanEvent](), random.Random(2)
    one_by_one, last = list[PlanEvent](), start
    while not running.done():
        await asyncio.sleep(chance.uniform(0.0, 0.5) * (20 if late else 1))
        heard += await follower.read()
        answer = await plan_events(stage.store, "nightly", last)
        assert not answer.reset
        taken = answer.events[: chance.randint(0, len(answer.events))]
        one_by_one += taken
        last = taken[-1].position if taken else last
    await running
    heard += await follower.read()
    one_by_one += (await plan_events(stage.store, "nightly", last)).events
    expected = (await plan_events(stage.store, "nightly", start)).events
    assert await stage.store.registers("archive/nightly/")
    assert as_json(heard) == as_json(one_by_one) == as_json(expected)
    now = await stage.load()
    assert json.dumps(follower.plan.to_json()) == json.dumps(now.plan.to_json())


async def test_a_read_is_bounded_and_the_next_one_continues(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_history, "EVENTS_PER_READ", 5)
    await insert_plan(stage.store, chain(*"abcdefghijkl"))
    follower = await PlanFollower.open(stage.store, "nightly")
    await stage.orchestrator().run_stored("nightly")
    read = [await follower.read() for _ in range(40)]
    assert as_json([event for some in read for event in some]) == as_json(
        (await plan_events(stage.store, "nightly")).events
    )
    assert len(read[0]) < len((await plan_events(stage.store, "nightly")).events)


# -- what is not there any more ----------------------------------------------------------------------------------------


async def drop_archive(stage: Stage) -> None:
    """As if an earlier version of Asterism had compacted the journal."""
    registers = await stage.store.registers("archive/")
    await stage.store.commit([PutRegister(register.key, None, register.revision) for register in registers])


async def test_without_the_archive_the_history_begins_with_the_snapshot(stage: Stage, compacted: None) -> None:
    await lived(stage)
    whole = (await plan_events(stage.store, "nightly")).events
    await drop_archive(stage)
    now = await stage.load()
    for after in (None, whole[0].position, whole[3].position):
        assert await plan_events(stage.store, "nightly", after) == ([], Position(now.number), True)
    snapshot = now.head.snapshot
    assert snapshot is not None
    since = await plan_events(stage.store, "nightly", Position(snapshot))
    assert as_json(since.events) == [event.to_json() for event in whole if event.position.number > snapshot]
    first, *_ = await versions(stage.store, "nightly")
    with pytest.raises(VersionUnknown, match=rf"no version 0 in its history: versions {first.version} to"):
        await plan_at(stage.store, "nightly", 0)
    follower = await PlanFollower.open(stage.store, "nightly", whole[0].position)
    (reset,) = await follower.read()
    assert (reset.kind, reset.position) == ("reset", Position(now.number))


async def test_a_follower_whose_records_are_lost_is_told_to_start_again(stage: Stage, compacted: None) -> None:
    await insert_plan(stage.store, living_plan())
    follower = await PlanFollower.open(stage.store, "nightly")
    await stage.orchestrator().run_stored("nightly")
    await drop_archive(stage)
    (reset,) = await follower.read()
    assert reset.kind == "reset"
    assert str(follower.plan.state) == "completed"
    assert await follower.read() == []


@pytest.mark.parametrize("after", [Position(3), Position(1 << 62, 4)])
async def test_a_position_of_another_plan_is_reset(stage: Stage, after: Position) -> None:
    await insert_plan(stage.store, chain("a"))
    assert (await plan_events(stage.store, "nightly", after)).reset
    assert [event.kind for event in await (await PlanFollower.open(stage.store, "nightly", after)).read()] == ["reset"]


async def test_the_last_event_of_a_plan_that_was_removed(stage: Stage) -> None:
    await stage.orchestrator().run(chain("a"))
    follower = await PlanFollower.open(stage.store, "nightly")
    head = await stage.store.register("plan/nightly")
    assert head is not None
    await retention._remove_plan(stage.store, head)
    assert [event.kind for event in await follower.read()] == ["gone"]
    assert await follower.read() == []


# -- the archive -------------------------------------------------------------------------------------------------------


async def test_retention_removes_the_archive_with_the_plan(stage: Stage, compacted: None) -> None:
    await lived(stage)
    head = await stage.store.register("plan/nightly")
    assert head is not None
    await retention._remove_plan(stage.store, head)
    assert await stage.store.registers("archive/") == []


async def test_two_processes_that_archive_the_same_records_lose_none(stage: Stage, monkeypatch: Any) -> None:
    async def nothing(self: Compaction, keys: Any) -> None:
        """The owner dies before it archives."""

    async def turn() -> None:
        await asyncio.sleep(0)

    monkeypatch.setattr(Compaction, "_remove", nothing)
    monkeypatch.setattr(compaction, "LONG_JOURNAL", 40)
    monkeypatch.setattr(compaction, "STEPS_PER_TASK", 0)
    monkeypatch.setattr(compaction, "PACK_LENGTH", 700)
    await stage.orchestrator().run(chain(*(f"t{number}" for number in range(30))))
    whole = as_json((await plan_events(stage.store, "nightly")).events)
    head = (await stage.load()).head
    numbers = range(head.began, head.first)
    some = [numbers, numbers[5:], numbers[: len(numbers) // 2]]
    await asyncio.gather(*(compaction.archive_records(stage.store, "nightly", numbers, turn) for numbers in some))
    assert await stage.store.register(record_key("nightly", head.began)) is None
    assert (await stage.load()).garbage == [key for key in (await stage.load()).garbage if key.startswith("snapshot/")]
    assert as_json((await plan_events(stage.store, "nightly")).events) == whole


async def test_a_damaged_archive_is_named(stage: Stage, compacted: None) -> None:
    await lived(stage)
    first, *_ = await stage.store.registers("archive/nightly/")
    await stage.store.commit([PutRegister(first.key, {**first.value, "packed": "x"}, first.revision)])
    with pytest.raises(journal_store.UnreadableJournal, match=f"{first.key} cannot be read"):
        await versions(stage.store, "nightly")
    await stage.load()  # the plan itself is unharmed


@pytest.mark.parametrize("text", ["", "x", "1.", ".1", "1.2.3", "-1", "1.-1", "٣", "1" * 30])
def test_what_is_not_a_position(text: str) -> None:
    with pytest.raises(ValueError, match="is not a position in a journal"):
        Position.parse(text)


def test_positions_as_text() -> None:
    for position in (Position(5), Position(5, 0), Position(1790000000000042, 3)):
        assert Position.parse(str(position)) == position
    assert Position(5, 0) < Position(5, 1) < Position(5) < Position(6, 0)
