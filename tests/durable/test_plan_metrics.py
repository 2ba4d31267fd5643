"""Metrics of stored plans: edits, edit cycles and holds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asterism.api.local import plan_documents
from asterism.api.local.plan_list_handlers import plan_summary
from asterism.base.openmetrics import render
from asterism.core.plan.edits import AddTask, EditBatch
from asterism.durable import plan_actor, plan_metrics
from asterism.durable.journal_writer import LIST_INTERVAL
from asterism.durable.plan_metrics import plan_families
from asterism.durable.plan_summaries import ListedPlan, list_plans
from asterism.durable.stored_plans import read_plan
from asterism.store.protocol import PlanQuery, PutRegister
from tests.base.openmetrics_grammar import ReadFamily, read
from tests.durable.durable_scenes import Stage, chain, task
from tests.durable.durable_work import gate

pytestmark = pytest.mark.virtual_time


async def metrics(stage: Stage, window: float = 3600.0) -> dict[str, ReadFamily]:
    return read(render(await plan_families(stage.store, window)))


def of_plan(families: dict[str, ReadFamily], name: str, **labels: str) -> float:
    return families[f"asterism_plan_{name}"].samples["", (("plan", "nightly"), *labels.items())]


async def test_edits_cycles_and_holds_of_a_plan(stage: Stage) -> None:
    async def editor(view: Any, events: Any) -> EditBatch | None:
        await asyncio.sleep(10.0)
        return EditBatch((AddTask(task("x")),), "editor") if "x" not in view else None

    result = await stage.orchestrator(editor=editor).run(chain("a", "b"))
    families = await metrics(stage)
    assert families["asterism_plans"].samples["", (("state", "completed"),)] == 1
    assert of_plan(families, "edits", answer="accepted") == result.summary.edits_accepted == 1
    assert of_plan(families, "edits", answer="rejected") == 0
    assert of_plan(families, "edit_cycles") == result.summary.cycles
    assert (of_plan(families, "holds"), of_plan(families, "held_tasks")) == (len(result.holds), 0)
    assert of_plan(families, "hold_seconds") == pytest.approx(result.summary.held) == pytest.approx(10.0)


async def test_old_plans_are_counted_and_not_read(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    await stage.orchestrator().run(chain("a"))
    await asyncio.sleep(100.0)
    assert list(await metrics(stage, window=50.0)) == ["asterism_plans"]
    assert "asterism_plan_edits" in await metrics(stage)
    monkeypatch.setattr(plan_metrics, "MAX_PLANS", 0)
    assert list(await metrics(stage)) == ["asterism_plans"]


async def test_a_damaged_plan_does_not_hide_the_others(stage: Stage) -> None:
    await stage.orchestrator().run(chain("a"))
    head = await stage.store.register("plan/nightly")
    assert head is not None
    await stage.store.commit([PutRegister("plan/broken", {**head.value, "name": "broken"}, None)])
    families = await metrics(stage)
    assert families["asterism_plans"].samples["", (("state", "completed"),)] == 2
    assert of_plan(families, "edit_cycles") == 0


async def test_metrics_lists_and_documents_agree_about_a_plan(stage: Stage) -> None:
    """Also about one whose owner is dead, from its last heartbeat on, and about a cancellation, from the request on."""

    async def agreed() -> tuple[str, dict[str, int]]:
        families = {family.name: family.samples for family in await plan_families(stage.store, 3600.0)}
        [(state, _)] = families["asterism_plans"].items()
        tasks = {status: count for (_, status), count in families["asterism_plan_tasks"].items()}
        [listed] = await list_plans(stage.store, PlanQuery())
        [filtered] = await list_plans(stage.store, PlanQuery(states=frozenset(state)))
        stored = await read_plan(stage.fleet(), "nightly")
        assert isinstance(listed, ListedPlan)
        assert listed == filtered == stored.listed
        document = plan_summary(listed)
        assert ((listed.state_name,), listed.counts) == ((document.state,), document.counts) == (state, tasks)
        shown = plan_documents.structure(stored.record.plan, stored)["tasks"]
        assert [tasks[task.phase] for task in shown if task.phase] == [1]
        return state[0], tasks

    running = stage.spawn(stage.orchestrator(host="there").run(chain("a", "b", call="wait")))
    await gate("a begun").wait()
    await asyncio.sleep(1.5 * LIST_INTERVAL)
    assert await agreed() == ("executing", {"pending": 1, "running": 1})
    clock, stage.store.clock = stage.store.clock, lambda: clock() + 3600.0  # type: ignore[method-assign]
    assert await agreed() == ("at_rest", {"pending": 1, "queued": 1})
    await plan_actor.cancel_plan(stage.fleet(), "nightly")
    assert await agreed() == ("cancelling", {"pending": 1, "queued": 1})
    running.cancel()
