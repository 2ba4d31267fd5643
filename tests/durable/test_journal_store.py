"""Journal store: a stored plan is loaded whole, or refused with the reason; edits of stopped plans."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asterism.core.errors import EditRejected, PlanError
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edits import AddTask, EditBatch, RemoveTask
from asterism.core.plan.journal import SCHEMA, UnreadableJournal
from asterism.durable import journal_store, plan_actor
from asterism.durable.journal_store import insert_plan, read_head, read_heads, record_key
from asterism.store.protocol import PutRegister
from tests.durable.durable_scenes import DONE, Stage, chain, task

pytestmark = pytest.mark.virtual_time

JOURNALS = Path(__file__).parent / "journals"


async def kept(stage: Stage, *names: str) -> None:
    """Store a plan that no process has run."""
    await insert_plan(stage.store, chain(*names))


async def put(stage: Stage, key: str, value: Any) -> None:
    before = await stage.store.register(key)
    await stage.store.commit([PutRegister(key, value, before.revision if before is not None else None)])


async def test_a_loaded_plan_is_freed_as_soon_as_it_is_not_used(stage: Stage) -> None:
    """Not at the next search for cycles: a server loads plans for its views, and would keep them for hours."""
    await kept(stage, "a", "b", "c")
    gc.disable()
    try:
        stored = await journal_store.load(stage.store, "nightly")
        plan = weakref.ref(stored.plan)
        del stored
        assert plan() is None
    finally:
        gc.enable()


# -- what cannot be read -----------------------------------------------------------------------------------------------

RECORD, SECOND, THIRD = 0, 1, 2  # relative to the first record of the journal
OTHER = "is damaged, or was written by another version of Asterism: its schema is"


@pytest.mark.parametrize(
    ("key", "change", "words"),
    [
        ("plan/nightly", lambda value: {**value, "schema": SCHEMA + 1}, f"{OTHER} {SCHEMA + 1}"),
        ("plan/nightly", lambda value: {**value, "mood": "good"}, "is not the head of a plan"),
        ("plan/nightly", lambda value: "gone", f"{OTHER} None"),
        (
            "plan/nightly",
            lambda value: {**value, "first": 7},
            "record 7, the first of the journal of plan 'nightly', is missing",
        ),
        (RECORD, lambda value: {**value, "schema": SCHEMA + 1}, f"{OTHER} {SCHEMA + 1}"),
        (RECORD, lambda value: {**value, "text": value["text"][:40]}, "the snapshot of plan 'nightly' cannot be read"),
        (RECORD, lambda value: {**value, "of": 2}, "does not begin with a whole snapshot"),
        (RECORD, lambda value: {"schema": SCHEMA, "steps": []}, "does not begin with a whole snapshot"),
        (RECORD, lambda value: [], f"{OTHER} None"),
        (SECOND, lambda value: {"schema": SCHEMA, "steps": 7}, "has steps that cannot be read: must be a list"),
        (
            SECOND,
            lambda value: {"schema": SCHEMA, "steps": [{"step": "start", "task": "z", "device": "kitchen", "at": 1.0}]},
            "cannot be replayed",
        ),
        (THIRD, lambda value: {"schema": SCHEMA, "steps": []}, r"record \d+ .* is missing"),
        ("journal/nightly/last", lambda value: {"schema": SCHEMA, "steps": []}, "is not a record of a journal"),
    ],
)
async def test_an_unreadable_journal_is_refused_with_the_reason(
    stage: Stage, key: str | int, change: Callable[[Any], Any], words: str
) -> None:
    await kept(stage, "a")
    [head] = await read_heads(stage.store)
    name = record_key("nightly", head.first + key) if isinstance(key, int) else key
    before = await stage.store.register(name)
    await put(stage, name, change(before.value if before is not None else None))
    with pytest.raises(UnreadableJournal, match=words):
        await stage.load()
    assert DONE == {}


@pytest.mark.parametrize("name", ["a/b", "a@b", "a|b", "two\nlines", "x" * 201])
async def test_an_invalid_plan_name_is_refused(stage: Stage, name: str) -> None:
    with pytest.raises(PlanError, match="the name of a stored plan"):
        await insert_plan(stage.store, Constellation(name))


async def test_a_large_plan_is_stored_in_parts(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_store, "PART_LENGTH", 100)
    await kept(stage, *(f"t{number}" for number in range(50)))
    assert len(await stage.store.registers("journal/nightly/")) > 20
    assert len((await stage.load()).plan) == 50


async def test_stored_plans_can_be_listed(stage: Stage) -> None:
    await kept(stage, "a")
    [head] = await read_heads(stage.store)
    assert (head.name, head.state, head.ended, head.epoch) == ("nightly", "created", False, 0)


async def test_an_end_missing_in_the_head_is_written_by_the_next_reader(stage: Stage) -> None:
    await stage.orchestrator().run(chain("a"))
    register = await stage.store.register("plan/nightly")
    assert register is not None
    await put(stage, "plan/nightly", {**register.value, "state": "executing", "ended_at": None, "owner": "gone"})
    result = await stage.orchestrator().run_stored("nightly")
    assert result.state == "completed"
    [head] = await read_heads(stage.store)
    assert (head.state, head.owner, head.ended_at) == ("completed", None, result.plan.ended_at)


# -- the format --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(JOURNALS.glob("*.json")), ids=lambda path: path.stem)
async def test_a_journal_that_was_stored_before_can_be_read(stage: Stage, path: Path) -> None:
    """The files are not rewritten, unless the schema changes."""
    stored = json.loads(path.read_text("utf-8"))
    await stage.store.commit([PutRegister(key, value, None) for key, value in stored["registers"].items()])
    for text in stored.get("blobs", ()):
        await stage.store.put_blob(text.encode())
    loaded = await stage.load(stored["name"])
    assert {node.id: str(node.status) for node in loaded.plan.nodes.values()} == stored["tasks"]
    assert (loaded.plan.version, str(loaded.plan.state)) == (stored["version"], stored["state"])
    assert len(loaded.lock.cycles) == stored["open_cycles"]


# -- editing at rest ---------------------------------------------------------------------------------------------------


async def test_an_edit_of_a_stopped_plan_applies_when_it_runs(stage: Stage) -> None:
    await kept(stage, "a", "b")
    fleet = stage.fleet()
    batch = EditBatch((RemoveTask("b"), AddTask(task("c"))), "ann", base_version=0)
    assert (await plan_actor.edit_plan(fleet, "nightly", batch, dry_run=True)).applied.version == 1
    assert (await stage.load()).plan.version == 0
    assert (await plan_actor.edit_plan(fleet, "nightly", batch)).applied.version == 1
    result = await stage.orchestrator().run_stored("nightly")
    assert DONE == {"a": 1, "c": 1}
    assert result.plan.version == 1


async def test_each_concurrent_edit_is_applied_or_rejected_as_stale(stage: Stage) -> None:
    await kept(stage, "a")
    apart = [
        plan_actor.edit_plan(stage.fleet(), "nightly", EditBatch((AddTask(task(f"t{n}")),), base_version=0))
        for n in range(5)
    ]
    same = [
        plan_actor.edit_plan(stage.fleet(), "nightly", EditBatch((RemoveTask("a"),), base_version=0)) for _ in range(3)
    ]
    outcomes = await asyncio.gather(*apart, *same, return_exceptions=True)
    assert [type(outcome).__name__ for outcome in outcomes[:5]] == ["EditAnswer"] * 5
    assert sorted(type(outcome).__name__ for outcome in outcomes[5:]) == ["EditAnswer", "EditRejected", "EditRejected"]
    loaded = await stage.load()
    assert loaded.plan.version == 6
    assert set(loaded.plan.nodes) == {f"t{number}" for number in range(5)}


async def test_what_cannot_be_done_to_a_plan_that_has_ended(stage: Stage) -> None:
    await stage.orchestrator().run(chain("a"))
    with pytest.raises(EditRejected, match="has ended"):  # an edit that adds a task reopens it: test_plan_retry.py
        await plan_actor.edit_plan(stage.fleet(), "nightly", EditBatch((RemoveTask("a"),)))
    with pytest.raises(PlanError, match="it cannot be paused"):
        await plan_actor.pause_plan(stage.fleet(), "nightly")


async def test_the_first_pause_request_counts(stage: Stage) -> None:
    await kept(stage, "a")
    await plan_actor.pause_plan(stage.fleet(), "nightly")
    await plan_actor.pause_plan(stage.fleet(), "nightly", "again")
    assert (await read_head(stage.store, "nightly"))[0].paused == "by ann"
