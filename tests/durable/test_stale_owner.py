"""Stale owners: a process that was suspended, or whose store lost records, writes and executes nothing wrong."""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
from pathlib import Path

import pytest

from asterism.base import expressions
from asterism.base.clock import BootClock
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.task import Task
from asterism.durable.journal_store import OwnershipLost, StoredConstellation, insert_plan, load
from asterism.durable.journal_writer import JournalWriter
from asterism.fleet import retention
from asterism.store.protocol import Store
from asterism.store.sqlite import SqliteStore
from tests.durable import durable_work
from tests.durable.durable_scenes import DONE, Stage, chain, refuse_next_end, task, written


async def owned(store: Store, kept: StoredConstellation, who: str) -> JournalWriter:
    journal = JournalWriter(store, BootClock(), random.Random(who), kept, lambda error: None)
    await journal.change_head(owner=who, epoch=kept.head.epoch + 1, state="executing")
    return journal


async def said(journal: JournalWriter, *words: str) -> None:
    for word in words:
        journal.plan.note(1.0, "said", None, word)
        await journal.commit()


async def test_an_owner_whose_last_records_are_lost_is_refused(tmp_path: Path) -> None:
    path, copy = tmp_path / "fleet.db", tmp_path / "copy.db"
    store = await SqliteStore.open(path)
    journal = await owned(store, await insert_plan(store, chain("a", "b")), "me")
    source, target = sqlite3.connect(path), sqlite3.connect(copy)
    source.backup(target)
    source.close()
    target.close()
    await said(journal, "one", "two", "three")
    os.replace(copy, path)  # an old copy is restored
    with pytest.raises(OwnershipLost):
        await said(journal, "four")
    again = await SqliteStore.open(path)
    assert (await load(again, "nightly", expressions)).head.owner == "me"
    await journal.close()
    await again.close()
    await store.close()


@pytest.mark.virtual_time
async def test_a_stale_owner_writes_nothing_into_a_later_plan_of_the_same_name(stage: Stage) -> None:
    stale = await owned(stage.store, await insert_plan(stage.store, chain("a", "b")), "me")
    await said(stale, "one", "two")
    other = await owned(stage.store, await stage.load(), "other")
    await other.change_head(state="completed", owner=None, ended_at=2.0)
    await other.close()
    await asyncio.sleep(10.0)
    while await retention.prune(stage.store, stage.store.clock(), 100):
        pass
    assert await stage.store.registers("journal/nightly/") == []
    new = await owned(stage.store, await insert_plan(stage.store, chain("a", "b")), "new")
    for word in ("one", "two", "three", "four"):  # also when the new journal is as long as the old one was
        with pytest.raises(OwnershipLost):
            await said(awake(stage, stale), "by the stale one")
        await said(new, word)
    assert "by the stale one" not in [entry.why for entry in (await stage.load()).plan.story()]
    await stale.close()
    await new.close()


def awake(stage: Stage, stale: JournalWriter) -> JournalWriter:
    """The stale owner, in the state in which it was suspended."""
    return JournalWriter(stage.store, BootClock(), random.Random(1), stale._stored, lambda error: None)


@pytest.mark.virtual_time
async def test_changing_an_input_list_after_the_start_has_no_effect(stage: Stage) -> None:
    names = ["b"]
    plan = Constellation("nightly")
    plan.add(task("a", "wait"))
    plan.add(Task("b", call="tests.durable.durable_work:join", inputs={"first": names, "second": "x"}), "a")
    running = stage.spawn(stage.orchestrator().run(plan))
    await durable_work.gate("a begun").wait()
    names.append("smuggled in")
    durable_work.gate("a").set()
    await running
    assert (await stage.load()).plan.node("b").value == [["b"], "x"]


@pytest.mark.virtual_time
async def test_a_local_pause_survives_a_reload(stage: Stage) -> None:
    orchestrator = stage.orchestrator()
    stage.spawn(orchestrator.run(chain("a", "b", call="wait")))
    await written("a")
    orchestrator.pause("nightly")
    refuse_next_end(stage)
    durable_work.gate("b").set()
    durable_work.gate("a").set()
    await asyncio.sleep(30.0)
    assert DONE == {"a": 1}
    orchestrator.resume("nightly")
    await asyncio.sleep(30.0)
    assert DONE == {"a": 1, "b": 1}
