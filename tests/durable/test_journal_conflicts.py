"""Conflicts on a journal: compaction, stale owners, and edits during a commit."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from asterism.core.plan.edits import CancelTask, EditBatch
from asterism.durable import compaction, journal_writer
from asterism.durable.journal_store import OwnershipLost, insert_plan
from asterism.store.protocol import Query
from asterism.store.store_errors import StoreUnavailable
from tests.durable import durable_work
from tests.durable.durable_scenes import DONE, Stage, chain, left, task

pytestmark = pytest.mark.virtual_time


async def test_a_stale_owner_writes_nothing_after_a_takeover_and_a_compaction(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records that would refuse it have been removed; only the head refuses it."""
    monkeypatch.setattr(compaction, "LONG_JOURNAL", 10)
    monkeypatch.setattr(compaction, "STEPS_PER_TASK", 0)
    await insert_plan(stage.store, chain(*(f"t{number}" for number in range(30))))
    asleep = await stage.load()
    told: list[OwnershipLost] = []
    fleet = stage.fleet()
    sleeper = journal_writer.JournalWriter(fleet.store, fleet.clock, fleet.chance, asleep, told.append)
    await stage.orchestrator(host="there").run_stored("nightly")
    assert await stage.store.register(f"journal/nightly/{asleep.number + 1:012d}") is None
    asleep.plan.note(1.0, "said", None, "too late")
    with pytest.raises(OwnershipLost):
        await sleeper.commit()
    assert len(told) == 1
    assert await stage.store.register(f"journal/nightly/{asleep.number + 1:012d}") is None


async def test_a_head_change_during_compaction_keeps_the_new_first_record(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "LONG_JOURNAL", 5)
    monkeypatch.setattr(compaction, "STEPS_PER_TASK", 0)
    await insert_plan(stage.store, chain("a"))
    kept = await stage.load()
    fleet = stage.fleet()
    journal = journal_writer.JournalWriter(fleet.store, fleet.clock, fleet.chance, kept, lambda error: None)
    commit = stage.store.commit

    async def slow(writes: Any) -> None:
        await asyncio.sleep(1.0)
        await commit(writes)

    monkeypatch.setattr(stage.store, "commit", slow)
    for number in range(8):
        kept.plan.note(float(number), "said", None, "something")
    await asyncio.sleep(1.5)  # it is being compacted now
    await journal.change_head(device="kitchen")
    await journal.compaction.wait()
    stored = await stage.load()
    assert (stored.head.device, stored.head.first) == ("kitchen", stored.head.began + 2)
    await journal.close()


async def test_no_task_fails_while_the_store_is_unavailable(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    await stage.device("kitchen")
    sessions = stage.store.sessions
    until = stage.now() + 5.0

    async def away(**options: Any) -> Any:
        if stage.now() < until:
            raise StoreUnavailable("a hiccup")
        return await sessions(**options)

    orchestrator = stage.orchestrator(local=0)
    monkeypatch.setattr(orchestrator.fleet.store, "sessions", away)
    assert (await orchestrator.run(chain("a", "b"))).state == "completed"


async def test_stopping_does_not_wait_for_an_unavailable_store(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    running = stage.spawn(stage.orchestrator().run(chain("a", "b", call="wait")))
    await asyncio.sleep(3.0)
    commit = stage.store.commit

    async def gone(writes: Any) -> None:
        raise StoreUnavailable("gone")

    monkeypatch.setattr(stage.store, "commit", gone)
    durable_work.gate("a").set()
    await asyncio.sleep(1.0)
    running.cancel()
    async with asyncio.timeout(120.0):
        await asyncio.wait([running])
    assert running.cancelled()
    monkeypatch.setattr(stage.store, "commit", commit)


def slow_commits(stage: Stage, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Slow down commits of the journal, and no others."""
    commit = stage.store.commit

    async def slow(writes: Any) -> None:
        if any(getattr(write, "key", "").startswith("journal/") for write in writes):
            await asyncio.sleep(seconds)
        await commit(writes)

    monkeypatch.setattr(stage.store, "commit", slow)


async def test_a_run_is_cancelled_only_after_the_edit_is_durable(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    await stage.device("kitchen")
    orchestrator = stage.orchestrator(local=0)
    running = stage.spawn(orchestrator.run(chain("a", "b", call="wait")))
    await durable_work.gate("a begun").wait()
    slow_commits(stage, monkeypatch, 5.0)
    amending = stage.spawn(orchestrator.edit("nightly", EditBatch((CancelTask("a", "enough"),))))
    await asyncio.sleep(3.0)
    [run] = await stage.store.find(Query(key="plan:nightly/a/1"))
    assert (amending.done(), run.stop_request, run.status) == (False, None, "processing")
    await amending
    await asyncio.sleep(10.0)
    [run] = await stage.store.find(Query(key="plan:nightly/a/1"))
    assert run.cancelled
    assert (await running)["a"].status == "cancelled"


async def test_a_run_written_while_its_task_is_cancelled_is_cancelled_too(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stage.device("kitchen")
    orchestrator = stage.orchestrator(local=0)
    running = stage.spawn(orchestrator.run(chain("a", "b", call="wait")))
    await durable_work.gate("a begun").wait()
    slow_commits(stage, monkeypatch, 5.0)
    durable_work.gate("a").set()
    kept = orchestrator.stored
    assert kept is not None
    await stage.until(lambda: kept.plan["b"].status == "running")
    await asyncio.sleep(1.0)  # its run is being written
    await orchestrator.edit("nightly", EditBatch((CancelTask("b", "enough"),)))
    assert (await running)["b"].status == "cancelled"
    await asyncio.sleep(60.0)
    runs = await stage.store.find(Query(key="plan:nightly/b/2"))
    assert [run.cancelled for run in runs] == [True]
    assert DONE == {"a": 1}


async def test_a_former_owner_announces_no_failures(stage: Stage) -> None:
    orchestrator = stage.orchestrator()
    told: list[str] = []
    orchestrator.events.subscribe(lambda event: told.append(event.kind))
    running = stage.spawn(orchestrator.run(chain("a", "b", call="wait")))
    await durable_work.gate("a begun").wait()
    kept = await stage.load()
    other = kept.head.changed(epoch=9, owner="somebody else")
    await stage.store.commit(kept.next_record(other, [], "somebody else's"))
    durable_work.gate("a").set()
    with pytest.raises(OwnershipLost):
        await running
    assert "task_failed" not in told


async def test_a_journal_compacted_while_it_is_read_is_read_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "LONG_JOURNAL", 5)
    monkeypatch.setattr(compaction, "STEPS_PER_TASK", 0)
    monkeypatch.setattr(compaction.Compaction, "_remove", _nothing_removed)
    await insert_plan(stage.store, chain("a"))
    kept, fleet = await stage.load(), stage.fleet()
    journal = journal_writer.JournalWriter(fleet.store, fleet.clock, fleet.chance, kept, lambda error: None)
    head, looks = stage.store.register, 0

    async def late(key: str) -> Any:
        nonlocal looks
        head_register = await head(key)
        looks += 1
        if looks == 1:  # after the head was read, and before the records are
            for number in range(6):
                kept.plan.note(float(number), "said", None, "something")
            await journal.commit()
            await journal.commit()
        return head_register

    monkeypatch.setattr(stage.store, "register", late)
    stored = await stage.load()
    assert stored.head.first > 1
    assert stored.plan.to_json() == kept.plan.to_json()
    await journal.close()


async def _nothing_removed(self: compaction.Compaction, keys: Sequence[str]) -> None:
    """Removes nothing."""


async def test_a_plan_can_be_loaded_while_it_is_written(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    await insert_plan(stage.store, chain("a"))
    kept, fleet = await stage.load(), stage.fleet()
    journal = journal_writer.JournalWriter(fleet.store, fleet.clock, fleet.chance, kept, lambda error: None)
    registers = stage.store.registers

    async def busy(prefix: str) -> Any:
        kept.plan.note(1.0, "said", None, "something")
        await journal.commit()
        return await registers(prefix)

    monkeypatch.setattr(stage.store, "registers", busy)
    stored = await stage.load()
    assert stored.number > stored.head.first
    await journal.close()


# -- a journal of bounded length ---------------------------------------------------------------------------------------


async def test_a_long_journal_is_replaced_by_a_snapshot(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "LONG_JOURNAL", 30)
    monkeypatch.setattr(compaction, "STEPS_PER_TASK", 0)
    orchestrator = stage.orchestrator()
    names = [f"t{number}" for number in range(60)]
    await orchestrator.run(chain(*names))
    records = await stage.store.registers("journal/nightly/")
    kept, live = await stage.load(), orchestrator.stored
    assert live is not None
    assert kept.head.first > kept.head.began + 30
    assert len(records) < 25
    assert kept.plan.to_json() == live.plan.to_json()
    assert DONE.total() == 60


async def test_a_stopped_plan_resumes_from_a_snapshot(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "LONG_JOURNAL", 20)
    monkeypatch.setattr(compaction, "STEPS_PER_TASK", 0)
    plan = chain(*(f"t{number}" for number in range(20)))
    plan.add(task("slow", "wait"), "t19")
    plan.add(task("last"), "slow")
    first = stage.orchestrator()
    await left(first.run(plan), lambda: DONE["t19"], stage)
    assert (await stage.load()).head.first > 1
    durable_work.gate("slow").set()
    result = await stage.orchestrator().run_stored("nightly")
    assert result.state == "completed"
    assert set(DONE.values()) == {1}
