"""Ends of tasks that the orchestrator executes itself: one commit with the steps that follow."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from asterism.core.plan.edits import AddTask
from asterism.core.plan.status import ConstellationState
from asterism.core.record import encode
from asterism.core.run.run import COMPLETED
from asterism.durable.durable_orchestrator import DurableOrchestrator
from asterism.durable.journal_store import JournalRecord
from asterism.fleet.device.agent import DeviceAgent
from asterism.orchestrator.events import Event
from asterism.store.protocol import PutRegister, PutRun, Write
from tests.durable import durable_work
from tests.durable.durable_scenes import (
    DONE,
    Stage,
    chain,
    slowly_completed,
    task,
)

pytestmark = pytest.mark.virtual_time


async def test_an_end_and_the_steps_that_follow_are_one_commit(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    commit, batches = stage.store.commit, []

    async def counted(writes: Sequence[Write]) -> None:
        values = [write.value for write in writes if isinstance(write, PutRegister)]
        steps = [step for value in values if isinstance(value, JournalRecord) for step in map(encode, value.steps)]
        batches.append([f"{step['step']} {step.get('task', '')}" for step in steps])
        await commit(writes)

    monkeypatch.setattr(stage.store, "commit", counted)
    await stage.orchestrator(local=1).run(chain("a", "b"))
    [first, *_] = [batch for batch in batches if "finish a" in batch]
    assert first == ["finish a", "start b"]


async def test_nothing_is_announced_that_is_not_durable(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    orchestrator = stage.orchestrator()
    ended = end_of(orchestrator, "a")
    running = asyncio.ensure_future(orchestrator.run(chain("a", call="wait")))
    await durable_work.gate("a begun").wait()
    reached, go = slowly_completed(stage, monkeypatch)
    durable_work.gate("a").set()
    await reached.wait()
    await asyncio.sleep(10.0)
    assert not ended.is_set()
    go.set()
    await running
    assert ended.is_set()


async def test_an_answer_to_a_cycle_is_durable_when_it_returns(stage: Stage) -> None:
    orchestrator = stage.orchestrator(external=True)
    running = asyncio.ensure_future(orchestrator.run(chain("a", "b")))
    await stage.until(lambda: not running.done() and orchestrator.stored and orchestrator.cycles("nightly"))
    (cycle,) = orchestrator.cycles("nightly")
    orchestrator.claim(cycle.id, "ann")
    await orchestrator.answer(cycle.id, "ann", [AddTask(task("c"))])
    assert "c" in (await stage.load()).plan
    running.cancel()
    await asyncio.wait([running])


def end_of(orchestrator: DurableOrchestrator, name: str) -> asyncio.Event:
    ended = asyncio.Event()

    def hear(event: Event) -> Any:
        if event.kind == "task_completed" and event.task_id == name:  # type: ignore[attr-defined]
            ended.set()

    orchestrator.events.subscribe(hear)
    return ended


async def test_a_heartbeat_just_after_an_end_does_not_count_it_as_lost(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The end is written, so the heartbeat no longer names the run, before the device knows that."""
    orchestrator = stage.orchestrator()
    commit, run = stage.store.commit, DeviceAgent.run
    agents: list[DeviceAgent] = []

    async def noted(agent: DeviceAgent) -> None:
        agents.append(agent)
        await run(agent)

    monkeypatch.setattr(DeviceAgent, "run", noted)

    async def with_a_beat(writes: Sequence[Write]) -> None:
        await commit(writes)
        if any(isinstance(write, PutRun) and write.run.status is COMPLETED for write in writes):
            [agent] = agents
            await agent.heartbeat.beat()

    running = asyncio.ensure_future(orchestrator.run(chain("a", "b", call="wait")))
    await durable_work.gate("a begun").wait()
    monkeypatch.setattr(stage.store, "commit", with_a_beat)
    await asyncio.sleep(1.0)
    for name in ("b", "a"):
        durable_work.gate(name).set()
    assert (await running).state is ConstellationState.COMPLETED
    assert DONE == {"a": 1, "b": 1}
    assert "taken the run away" not in caplog.text
