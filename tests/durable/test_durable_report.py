"""The report of a stored plan."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asterism.cli.plan_context import OutputOptions
from asterism.cli.plan_execution import LocalWork, WatchedOrchestrator
from asterism.core.plan.edits import AddTask, EditBatch
from asterism.core.plan.status import ConstellationState
from asterism.store.protocol import Query
from tests.durable import durable_work
from tests.durable.durable_scenes import Stage, agent, chain, changed_by_somebody, task

pytestmark = pytest.mark.virtual_time


async def test_the_report_has_all_edits_and_the_first_plan_after_a_reload(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    async def here(function: Any, *a: Any, **k: Any) -> Any:
        return function(*a, **k)

    monkeypatch.setattr(asyncio, "to_thread", here)
    monkeypatch.chdir(tmp_path)
    orchestrator = WatchedOrchestrator(
        stage.fleet(),
        LocalWork(2, frozenset()),
        OutputOptions(None, True, True),
        takeover_after=15.0,
        host="here",
        make_agent=lambda *a, **t: agent(*a, host="here", **t),
    )
    running = asyncio.ensure_future(orchestrator.run(chain("a", "b", call="wait")))
    await durable_work.gate("a begun").wait()
    await orchestrator.edit("nightly", EditBatch((AddTask(task("c", "wait")),), "ann"))
    await durable_work.gate("c begun").wait()
    run = next(run for run in await stage.store.find(Query()) if "/a/" in (run.key or ""))
    await changed_by_somebody(stage, run)
    for name in "abc":
        durable_work.gate(name).set()
    assert (await running).state is ConstellationState.COMPLETED
    assert orchestrator.recording is not None
    assert sorted(orchestrator.recording.first) == ["a", "b"]
    assert [one.kind for one in orchestrator.recording.edits] == ["edit_applied"]
