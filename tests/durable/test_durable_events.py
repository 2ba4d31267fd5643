"""Events and editors of durable plans: they learn of a change only when it is durable."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edits import AddTask, EditBatch
from asterism.store.protocol import Write
from tests.durable import durable_work
from tests.durable.durable_scenes import (
    Stage,
    chain,
    heard_by,
    refuse_next_end,
    slowly_completed,
    task,
)

pytestmark = pytest.mark.virtual_time


async def test_edit_events_are_published_when_durable_and_in_order(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    orchestrator = stage.orchestrator(external=True)
    heard = heard_by(orchestrator)
    running = asyncio.ensure_future(orchestrator.run(chain("a", call="wait")))
    await durable_work.gate("a begun").wait()
    reached, go = slowly_completed(stage, monkeypatch)
    durable_work.gate("a").set()
    await reached.wait()
    await asyncio.sleep(1.0)
    early = [event.kind for event in heard]
    go.set()
    await running
    kinds = [event.kind for event in heard]
    assert kinds.index("task_completed") < kinds.index("cycle_opened"), kinds
    assert "cycle_opened" not in early


async def test_an_announced_edit_is_in_the_store(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    orchestrator = stage.orchestrator()
    heard = heard_by(orchestrator)
    running = asyncio.ensure_future(orchestrator.run(chain("a", "b", call="wait")))
    await durable_work.gate("a begun").wait()
    commit, go = stage.store.commit, asyncio.Event()

    async def slow(writes: Sequence[Write]) -> None:
        await go.wait()
        await commit(writes)

    monkeypatch.setattr(stage.store, "commit", slow)
    amending = asyncio.ensure_future(orchestrator.edit("nightly", EditBatch((AddTask(task("c")),), "ann")))
    await asyncio.sleep(1.0)
    told = [event.kind for event in heard]
    there = "c" in (await stage.load()).plan
    go.set()
    await amending
    running.cancel()
    await asyncio.wait([running])
    assert there or "edit_applied" not in told, told


async def test_no_editor_is_called_about_an_end_that_is_not_durable(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    async def editor(view: Any, events: Any) -> None:
        asked.append((await stage.load()).plan.node(events[0].task_id).status)

    orchestrator = stage.orchestrator(editor=editor)
    running = asyncio.ensure_future(orchestrator.run(chain("a", call="wait")))
    await durable_work.gate("a begun").wait()
    reached, go = slowly_completed(stage, monkeypatch)
    durable_work.gate("a").set()
    await reached.wait()
    await asyncio.sleep(1.0)
    early = list(asked)
    go.set()
    await running
    assert early == []
    assert [str(status) for status in asked] == ["completed"]


async def test_cancelling_is_announced_when_it_is_durable(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    orchestrator = stage.orchestrator()
    heard = heard_by(orchestrator)
    running = asyncio.ensure_future(orchestrator.run(chain("a", "b", call="wait")))
    await durable_work.gate("a begun").wait()
    await asyncio.sleep(1.0)
    commit, go = stage.store.commit, asyncio.Event()

    async def slow(writes: Sequence[Write]) -> None:
        await go.wait()
        await commit(writes)

    monkeypatch.setattr(stage.store, "commit", slow)
    cancelling = asyncio.ensure_future(orchestrator.cancel("nightly"))
    await asyncio.sleep(1.0)
    early = [event.kind for event in heard]
    go.set()
    await cancelling
    await running
    assert "constellation_cancelling" not in early


async def test_a_stopping_orchestrator_publishes_nothing_false_and_calls_no_editor(stage: Stage) -> None:
    asked: list[Any] = []

    async def editor(view: Any, events: Any) -> None:
        asked.append([event.task_id for event in events])
        await asyncio.sleep(1e6)

    plan = Constellation("nightly")
    plan.add(task("a", "wait"))
    plan.add(task("b", "wait"))
    plan.add(task("c", "wait"))
    orchestrator = stage.orchestrator(editor=editor, max_cycles=1)
    heard = heard_by(orchestrator)
    running = asyncio.ensure_future(orchestrator.run(plan))
    for name in "abc":
        await durable_work.gate(f"{name} begun").wait()
    for name in "ab":  # the second end waits for the review of the first
        durable_work.gate(name).set()
        await asyncio.sleep(1.0)
    assert asked == [["a"]]
    heard.clear()
    running.cancel()
    await asyncio.wait([running])
    await asyncio.sleep(100.0)
    assert asked == [["a"]]
    assert [event.kind for event in heard] == []
    assert len((await stage.load()).lock.cycles) == 1  # the next owner calls the editor again
    assert not [status for status in asyncio.all_tasks() if "_converse" in repr(status)]


async def test_a_reloaded_execution_publishes_nothing_false(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    async def editor(view: Any, events: Any) -> None:
        asked.append([event.task_id for event in events])
        await durable_work.gate("editor").wait()

    plan = Constellation("nightly")
    plan.add(task("a", "wait"))
    plan.add(task("b", "wait"))
    plan.add(task("c", "wait"))
    orchestrator = stage.orchestrator(editor=editor, max_cycles=1)
    heard = heard_by(orchestrator)
    running = asyncio.ensure_future(orchestrator.run(plan))
    for name in "abc":
        await durable_work.gate(f"{name} begun").wait()
    for name in "ab":
        durable_work.gate(name).set()
        await asyncio.sleep(1.0)
    refuse_next_end(stage)
    durable_work.gate("c").set()
    await stage.until(lambda: len(asked) > 1)
    await asyncio.sleep(1.0)
    print(asked, [event.kind for event in heard])
    durable_work.gate("editor").set()
    await running
    assert asked[:2] == [["a"], ["a"]]
    assert not [event for event in heard if event.kind == "editor_failed"]
