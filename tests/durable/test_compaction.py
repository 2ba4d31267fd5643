"""Compaction of a journal while the plan runs.

Other tasks run between two pieces, the snapshot is of one instant, and a crash in the middle leaves a journal that can
be read, and garbage that the next owner removes."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from asterism.base import expressions
from asterism.core.plan import plan_codec
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edits import AddDependency, AddTask, EditBatch
from asterism.core.plan.journal import UnreadableJournal, lock_to_json
from asterism.core.plan.plan_codec import PlanSnapshot
from asterism.core.plan.status import COMPLETED
from asterism.durable import compaction, journal_store
from asterism.durable.compaction import Compaction
from asterism.durable.journal_store import OwnershipLost, StoredConstellation, insert_plan, step_record
from asterism.durable.journal_writer import JournalWriter
from asterism.fleet import retention
from asterism.store.memory import MemoryStore
from asterism.store.protocol import PutRegister, Register, Write
from asterism.store.store_errors import StoreReadOnly
from tests.durable import durable_work
from tests.durable.durable_scenes import DONE, Stage, chain, staged, task

pytestmark = pytest.mark.virtual_time


@pytest.fixture(autouse=True)
def in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "LONG_JOURNAL", 12)
    monkeypatch.setattr(compaction, "STEPS_PER_TASK", 0)
    monkeypatch.setattr(compaction, "TASKS_PER_PIECE", 1)
    monkeypatch.setattr(plan_codec, "TASKS_PER_CHUNK", 1)
    monkeypatch.setattr(plan_codec, "ENTRIES_PER_CHUNK", 2)
    monkeypatch.setattr(journal_store, "PART_LENGTH", 400)


def picture(kept: StoredConstellation) -> str:
    return json.dumps([kept.plan.to_json(), lock_to_json(kept.lock)])


async def journal_of(stage: Stage, *names: str) -> tuple[JournalWriter, StoredConstellation, list[OwnershipLost]]:
    await insert_plan(stage.store, chain(*names))
    kept, fleet, told = await stage.load(), stage.fleet(), list[OwnershipLost]()
    return JournalWriter(fleet.store, fleet.clock, fleet.chance, kept, told.append), kept, told


def say(kept: StoredConstellation, times: int = 12) -> None:
    for number in range(times):
        kept.plan.note(float(number), "said", None, "something")


async def parts(stage: Stage) -> list[str]:
    return [part.key for part in await stage.store.registers("snapshot/nightly/")]


async def some_parts(stage: Stage, number: int) -> None:
    """Wait until there are that many."""
    for _ in range(1000):
        if len(await parts(stage)) >= number:
            return
        await asyncio.sleep(0)
    raise AssertionError("there are not as many")


async def named(stage: Stage) -> list[str]:
    """The keys of the parts that the head names."""
    head = (await stage.load()).head
    return (
        []
        if head.snapshot is None
        else [journal_store.part_key(head.name, head.snapshot, n) for n in range(head.parts)]
    )


# -- everybody has a turn ----------------------------------------------------------------------------------------------


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record each piece of work, in order."""
    done: list[str] = []
    take, pieces, removed = PlanSnapshot.copy_nodes, PlanSnapshot.chunks, MemoryStore.commit

    def taken(self: PlanSnapshot, most: int | None = None) -> None:
        done.append("taken")
        take(self, most)

    def written(self: PlanSnapshot) -> Iterator[str]:
        for piece in pieces(self):
            done.append("written")
            yield piece

    async def commit(self: MemoryStore, writes: Sequence[Write]) -> None:
        done.append("committed")
        await removed(self, writes)

    monkeypatch.setattr(PlanSnapshot, "copy_nodes", taken)
    monkeypatch.setattr(PlanSnapshot, "chunks", written)
    monkeypatch.setattr(MemoryStore, "commit", commit)
    return done


async def most_between_two_turns(monkeypatch: pytest.MonkeyPatch, busy: int = 0) -> int:
    """How many pieces of a compaction are done between two turns of the loop, for a plan of fifty tasks that takes
    ``busy`` steps in each turn."""
    done = counted(monkeypatch)
    stops: list[int] = []
    async with staged() as stage:
        journal, kept, _ = await journal_of(stage, *(f"t{number}" for number in range(50)))
        say(kept)
        shortened = asyncio.ensure_future(journal.commit())
        while not shortened.done() or journal.compaction.running:
            before = len(done)
            await asyncio.sleep(0)
            stops.append(len(done) - before)
            say(kept, busy if journal.compaction.running else 0)
        assert (await stage.load()).head.snapshot is not None
        await journal.close()
    assert done.count("taken") >= 50
    assert done.count("written") >= 50
    return max(stops)


async def test_other_tasks_run_between_two_pieces_of_a_compaction(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await most_between_two_turns(monkeypatch) <= 2  # a piece, and the commit of the part that it completes


@pytest.mark.long
async def test_a_busy_loop_gets_more_pieces_per_turn_up_to_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compaction, "STEPS_PER_PIECE", 1)
    monkeypatch.setattr(journal_store, "PART_LENGTH", 4000)
    with monkeypatch.context() as patch:
        usual = await most_between_two_turns(patch, 2)
    with monkeypatch.context() as patch:
        patch.setattr(compaction, "MAX_PIECES_PER_TURN", 3)
        most = await most_between_two_turns(patch, 20)
    assert 2 < most <= 4  # with the commit of a part
    assert most < usual


async def test_a_large_result_does_not_make_a_part_too_long(stage: Stage) -> None:
    journal, kept, _ = await journal_of(stage, "a", "b")
    kept.plan.begin(1.0)
    kept.plan.start(kept.plan.node("a"), "kitchen", 2.0)
    kept.plan.finish(kept.plan.node("a"), COMPLETED, 3.0, "x" * 5000)
    say(kept)
    await journal.commit()
    await journal.compaction.wait()
    await journal.close()
    lengths = [len(part.value["text"]) for part in await stage.store.registers("snapshot/nightly/")]
    assert max(lengths) <= journal_store.PART_LENGTH
    assert len(lengths) > 5000 // journal_store.PART_LENGTH
    assert picture(await stage.load()) == picture(kept)


async def test_without_a_yield_between_pieces_other_tasks_starve(monkeypatch: pytest.MonkeyPatch) -> None:
    async def at_once() -> None:
        """No other task gets a turn."""

    monkeypatch.setattr(compaction, "yield_to_loop", at_once)
    assert await most_between_two_turns(monkeypatch) > 50


# -- of one instant ----------------------------------------------------------------------------------------------------


class Watched:
    """A store that records each of its states, and the plan at the moment each record was cut. Commits and the turns
    between two pieces are slow, so that much happens meanwhile."""

    def __init__(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        self.as_cut: dict[int, str] = {}
        self.states: list[list[Register]] = []
        commit, cut = stage.store.commit, Compaction.cut

        async def a_turn() -> None:
            await asyncio.sleep(0.003)

        async def kept(writes: Sequence[Write]) -> None:
            await asyncio.sleep(0.01)
            await commit(writes)
            self.states.append(await stage.store.registers(""))

        def noted(shorten: Compaction, steps: int) -> None:
            self.as_cut[shorten._stored.number + 1] = picture(shorten._stored)
            cut(shorten, steps)

        monkeypatch.setattr(stage.store, "commit", kept)
        monkeypatch.setattr(Compaction, "cut", noted)
        monkeypatch.setattr(compaction, "yield_to_loop", a_turn)
        monkeypatch.setattr(journal_store, "PART_LENGTH", 4000)
        monkeypatch.setattr(compaction, "TASKS_PER_PIECE", 4)
        monkeypatch.setattr(plan_codec, "TASKS_PER_CHUNK", 10)
        monkeypatch.setattr(plan_codec, "ENTRIES_PER_CHUNK", 50)

    async def check(self) -> list[StoredConstellation]:
        """Each of these states loads as the plan was when its last record was cut."""
        readable = []
        for registers in self.states:
            store = MemoryStore(lambda: 0.0)
            await store.commit([PutRegister(register.key, register.value, None) for register in registers])
            kept = await journal_store.load(store, "nightly", expressions)
            if readable or kept.number in self.as_cut:  # before that, the plan is being inserted
                assert picture(kept) == self.as_cut[kept.number]
                readable.append(kept)
        return readable


def living_plan(call: str = "work") -> Constellation:
    plan = Constellation("nightly")
    for number in range(30):
        plan.add(task(f"a{number}", call, revocable=True), f"a{number - 1}" if number else None)
        plan.add(task(f"b{number}", call), {f"a{number}": {"when": "result != 'never'"}})
    return plan


async def live(stage: Stage) -> None:
    """Ends, edits and provisional tasks, while the journal is compacted all the time."""
    added = 0

    async def editor(view: Any, events: Any) -> EditBatch | None:
        nonlocal added
        added += 1
        ended = [event.task_id for event in events if event.task_id is not None]
        if added % 8 or not ended:
            return None
        return EditBatch((AddTask(task(f"x{added}")), AddDependency(ended[0], f"x{added}", "completion")), "editor")

    result = await stage.orchestrator(editor=editor, policy="speculative").run(living_plan("brief"))
    assert result.state == "completed"


@pytest.mark.long
async def test_a_crash_at_any_commit_leaves_a_correct_journal(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(stage, monkeypatch)
    await live(stage)
    readable = await watched.check()
    assert len({kept.head.snapshot for kept in readable}) > 3
    assert sum(bool(kept.garbage) for kept in readable) > 20  # many crashes were in the middle
    assert await parts(stage) == await named(stage)


@pytest.mark.parametrize("what", ["before", "number"])
@pytest.mark.long
async def test_a_snapshot_of_another_instant_is_detected(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    if what == "before":
        monkeypatch.setattr(PlanSnapshot, "preserve", lambda self, *nodes: None)
    else:  # of the plan as it is after the record was written
        written: Callable[..., None] = Compaction.written

        def late(self: Compaction) -> None:
            if self._cut is not None:
                self._cut = (self._stored.plan.take_snapshot(), *self._cut[1:])
            written(self)

        monkeypatch.setattr(Compaction, "written", late)

    watched = Watched(stage, monkeypatch)
    with pytest.raises((AssertionError, UnreadableJournal)):  # noqa: PT012 - either of them notices
        await live(stage)
        await watched.check()


# -- who dies in the middle --------------------------------------------------------------------------------------------


async def test_the_next_owner_removes_the_rest_of_a_snapshot(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    asleep, _ = await begun(stage)
    assert len(await parts(stage)) >= 3
    assert await named(stage) == []
    result = await stage.orchestrator().run_stored("nightly")
    assert result.state == "completed"
    assert await parts(stage) == await named(stage)
    with pytest.raises(OwnershipLost):
        await asleep.commit()
    await asleep.close()
    assert await parts(stage) == await named(stage)
    assert DONE.total() == 10


async def begun(stage: Stage) -> tuple[JournalWriter, StoredConstellation]:
    """A compaction that stops after some parts were written."""
    journal, kept, _ = await journal_of(stage, *(f"t{number}" for number in range(10)))
    say(kept)
    await journal.commit()
    await some_parts(stage, 3)
    going = journal.compaction._task
    assert going is not None
    going.cancel()  # without any write to the store
    await asyncio.wait([going])
    return journal, kept


async def test_the_next_owner_removes_old_records(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(self: Compaction, keys: Sequence[str]) -> None:
        """It dies before that."""

    with monkeypatch.context() as patch:
        patch.setattr(Compaction, "_remove", nothing)
        journal, kept, _ = await journal_of(stage, "a")
        for _ in range(2):
            say(kept)
            await journal.commit()
            await journal.compaction.wait()
        assert (await stage.load()).garbage
        await journal.close()
    await stage.orchestrator().run_stored("nightly")
    stored = await stage.load()
    assert stored.garbage == []
    assert min(record.key for record in await stage.store.registers("journal/")) == journal_store.record_key(
        "nightly", stored.head.first
    )


async def test_an_interrupted_compaction_removes_its_parts(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, kept = await begun(stage)
    await journal.close()
    assert await parts(stage) == []
    assert picture(await stage.load()) == picture(kept)


async def test_an_interrupted_compaction_closes_without_the_store(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(writes: Sequence[Write]) -> None:
        raise StoreReadOnly("the file is read-only now")

    journal, kept = await begun(stage)
    there = await parts(stage)
    with monkeypatch.context() as patch:
        patch.setattr(stage.store, "commit", refuse)
        await journal.close()
    stored = await stage.load()
    assert (picture(stored), stored.garbage) == (picture(kept), there)


async def test_a_snapshot_that_the_head_may_name_is_not_removed(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit of the head that names it is under way when the journal is closed."""
    journal, kept, _ = await journal_of(stage, "a", "b")
    commit, reached, go = stage.store.commit, asyncio.Event(), asyncio.Event()

    async def slow(writes: Sequence[Write]) -> None:
        if any(isinstance(write, PutRegister) and write.key.startswith("plan/") for write in writes):
            reached.set()
            await go.wait()
        await commit(writes)

    monkeypatch.setattr(stage.store, "commit", slow)
    say(kept)
    await reached.wait()
    closing = asyncio.ensure_future(journal.close())
    await asyncio.sleep(1.0)
    go.set()
    await closing
    assert await parts(stage) == await named(stage) != []
    assert picture(await stage.load()) == picture(kept)


async def test_a_former_owner_writes_and_removes_no_part(stage: Stage) -> None:
    journal, kept, told = await journal_of(stage, "a", "b")
    say(kept)
    await journal.commit()
    await some_parts(stage, 1)
    await stage.store.commit([step_record("nightly", kept.number + 1, 9, [], "somebody else's")])
    there = await parts(stage)
    await journal.compaction.wait()
    assert len(told) == 1
    await journal.close()
    assert await parts(stage) == there
    assert (await stage.load()).garbage == there  # they are left for the owner


async def test_a_plan_continues_if_compaction_fails(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried = 0

    def broken(self: PlanSnapshot) -> Iterator[str]:
        nonlocal tried
        tried += 1
        raise RuntimeError("a mistake")
        yield ""

    monkeypatch.setattr(PlanSnapshot, "chunks", broken)
    with caplog.at_level(logging.CRITICAL, "asterism"):
        assert (await stage.orchestrator().run(chain(*(f"t{number}" for number in range(20))))).state == "completed"
    stored = await stage.load()
    assert (stored.head.first, tried) == (stored.head.began, 1)


async def test_a_missing_part_is_named(stage: Stage) -> None:
    journal, kept, _ = await journal_of(stage, "a", "b")
    say(kept)
    await journal.commit()
    await journal.compaction.wait()
    await journal.close()
    _, second, *_ = await parts(stage)
    await stage.store.commit([PutRegister(second, None, 1)])
    with pytest.raises(UnreadableJournal, match=f"{second}, a part of the snapshot of plan 'nightly', is missing"):
        await stage.load()


async def test_retention_removes_the_snapshot_of_a_plan(stage: Stage) -> None:
    plan = chain(*(f"t{number}" for number in range(20)))
    plan.add(task("last", "wait"), "t19")
    running = stage.spawn(stage.orchestrator().run(plan))
    await durable_work.gate("last begun").wait()
    await asyncio.sleep(1.0)
    durable_work.gate("last").set()
    await running
    assert await parts(stage)
    head = await stage.store.register("plan/nightly")
    assert head is not None
    await retention._remove_plan(stage.store, head)
    assert await parts(stage) == []


async def test_an_error_in_compaction_fails_the_waiting_commits(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def mistaken(self: Compaction, steps: int) -> None:
        raise RuntimeError("a mistake")

    monkeypatch.setattr(Compaction, "cut", mistaken)
    journal, kept, told = await journal_of(stage, "a", "b")
    say(kept)
    async with asyncio.timeout(60):
        with pytest.raises(OwnershipLost):
            await journal.commit()
    assert len(told) == 1
