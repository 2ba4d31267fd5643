"""Rejected edits are recorded, a bounded number of them, and cost nothing if there are none."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asterism.core.errors import EditRejected
from asterism.core.plan.edits import AddTask, EditBatch, RemoveTask
from asterism.core.plan.task import Task
from asterism.durable import rejected_edits as module
from asterism.durable.journal_store import UnknownConstellation, insert_plan
from asterism.durable.plan_actor import edit_plan
from asterism.durable.rejected_edits import record_rejection, rejected_edits
from asterism.fleet import retention
from asterism.store.store_errors import StoreReadOnly
from tests.durable import durable_work
from tests.durable.durable_scenes import Stage, chain, task

pytestmark = pytest.mark.virtual_time

BAD = EditBatch((RemoveTask("x"),), "bob", "tidy up")


async def rejected(stage: Stage, batch: EditBatch = BAD, **options: Any) -> None:
    with pytest.raises(EditRejected):
        await edit_plan(stage.fleet(), "nightly", batch, **options)


async def test_one_of_a_plan_at_rest(stage: Stage) -> None:
    await insert_plan(stage.store, chain("a"))
    await rejected(stage, dry_run=True)
    assert await rejected_edits(stage.store, "nightly") == []
    await rejected(stage)
    (edit,) = await rejected_edits(stage.store, "nightly")
    assert (edit.version, edit.author, edit.reason, edit.edits) == (
        *(0, "bob", "tidy up"),
        [{"op": "remove_task", "task_id": "x"}],
    )
    assert [violation["rule"] for violation in edit.violations] == ["unknown_task"]


async def test_those_of_requests_and_editors_of_a_running_plan(stage: Stage) -> None:
    tried = 0

    def editor(view: Any, events: Any) -> Any:
        nonlocal tried
        tried += 1
        return EditBatch((RemoveTask("y"),), "robot") if tried == 1 else None

    job = stage.spawn(stage.orchestrator(editor=editor).run(chain("a", "b", call="wait")))
    await durable_work.gate("a begun").wait()
    await rejected(stage)
    for name in "ab":
        durable_work.gate(name).set()
    await job
    by_request, by_editor = await rejected_edits(stage.store, "nightly")
    assert (by_request.author, by_editor.author, by_editor.triggers) == ("bob", "robot", ["a"])


async def test_only_the_newest_are_kept(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_KEPT", 3)
    await insert_plan(stage.store, chain("a"))
    for number in range(7):
        await rejected(stage, EditBatch((RemoveTask(f"x{number}"),), "bob"))
    assert [edit.edits[0]["task_id"] for edit in await rejected_edits(stage.store, "nightly") if edit.edits] == [
        *("x4", "x5", "x6")
    ]


async def test_those_that_come_at_once_are_all_recorded(stage: Stage) -> None:
    await insert_plan(stage.store, chain("a"))
    why = EditRejected([])
    await asyncio.gather(*(record_rejection(stage.store, "nightly", 0, BAD, why) for _ in range(5)))
    assert [edit.number for edit in await rejected_edits(stage.store, "nightly")] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "batch",
    [
        EditBatch((AddTask(task("a", call="x" * module.LONGEST_EDITS)),)),
        EditBatch(("nonsense",)),  # type: ignore[arg-type]
        EditBatch((AddTask(Task("b", call=lambda: None)),)),
    ],
    ids=["long", "malformed", "not JSON"],
)
async def test_edits_that_cannot_be_kept_are_left_out(stage: Stage, batch: EditBatch) -> None:
    await insert_plan(stage.store, chain("a"))
    await record_rejection(stage.store, "nightly", 0, batch, EditRejected([]))
    (edit,) = await rejected_edits(stage.store, "nightly")
    assert edit.edits is None


async def test_a_store_that_cannot_be_written_changes_nothing_for_the_author(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await insert_plan(stage.store, chain("a"))

    async def refuse(writes: Any) -> None:
        raise StoreReadOnly("the file is read-only now")

    with monkeypatch.context() as patch:
        patch.setattr(stage.store, "commit", refuse)
        await rejected(stage)
    assert await rejected_edits(stage.store, "nightly") == []


async def test_those_of_an_earlier_plan_of_that_name_are_not_shown(stage: Stage) -> None:
    await insert_plan(stage.store, chain("a"))
    await asyncio.sleep(5.0)
    await rejected(stage)
    head = await stage.store.register("plan/nightly")
    assert head is not None
    await retention._remove_plan(stage.store, head)
    assert await stage.store.registers("rejected/") == []
    await record_rejection(stage.store, "nightly", 0, BAD, EditRejected([]))  # by a process that is late
    await asyncio.sleep(5.0)
    with pytest.raises(UnknownConstellation):
        await rejected_edits(stage.store, "nightly")
    await insert_plan(stage.store, chain("a"))
    assert await rejected_edits(stage.store, "nightly") == []


async def test_a_plan_without_rejected_edits_writes_and_reads_nothing_for_them(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    registers = stage.store.registers

    async def watched(prefix: str) -> Any:
        assert not prefix.startswith("rejected/")
        return await registers(prefix)

    monkeypatch.setattr(stage.store, "registers", watched)
    await stage.orchestrator(editor=lambda view, events: None).run(chain("a", "b"))
