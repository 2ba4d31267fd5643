"""Summaries of plans: what lists show is what the journal says, at most ``LIST_INTERVAL`` later."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from asterism.core.errors import AsterismError
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edits import AddTask, CancelTask, EditBatch
from asterism.durable import plan_actor, plan_summaries
from asterism.durable.journal_store import StoredConstellation, head_key, insert_plan, load
from asterism.durable.journal_writer import JournalWriter
from asterism.durable.plan_summaries import ListedPlan, UnreadablePlan, list_plans
from asterism.durable.stored_plans import read_plan
from asterism.store.protocol import PlanQuery, PutPlan, PutRegister, Write
from tests.durable.durable_scenes import Stage, chain, task

pytestmark = pytest.mark.virtual_time


def compared(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """After each commit of a summary, compare it with the journal. Returns what was stored, state by state."""
    states: list[str] = []
    commit = stage.store.commit

    async def commit_and_compare(writes: Sequence[Write]) -> None:
        await commit(writes)
        for row in await stage.store.plans(PlanQuery()) if any(isinstance(write, PutPlan) for write in writes) else ():
            stored = await load(stage.store, row.name)
            assert row.summary == stored.summary(stored.head).summary, row.name
            states.append(str(row.summary["state"]) if row.summary is not None else "none")

    monkeypatch.setattr(stage.store, "commit", commit_and_compare)
    return states


async def random_life(stage: Stage, seed: int) -> None:
    """Run a plan with an editor at random, edit it at rest, retry it or cancel it."""
    chance = random.Random(seed)
    names = [f"t{number}" for number in range(chance.randint(1, 6))]

    async def editor(view: Any, events: Any) -> EditBatch | None:
        if chance.random() < 0.5:
            return None
        pending = [name for name in names if name in view and view.task(name).status == "pending"]
        if pending and chance.random() < 0.5:
            return EditBatch((CancelTask(chance.choice(pending), "at random"),), "editor")
        names.append(f"t{len(names)}")
        return EditBatch((AddTask(task(names[-1])),), "editor")

    plan = chain(*names, call=chance.choice(["work", "fail"]))
    await stage.orchestrator(editor=editor).run(plan)
    for _ in range(3):
        try:
            if chance.random() < 0.5:
                await plan_actor.edit_plan(
                    stage.fleet(), "nightly", EditBatch((AddTask(task(f"more{chance.random()}")),), "ann")
                )
            else:
                await stage.orchestrator().retry("nightly")
            await stage.orchestrator().run_stored("nightly")
        except AsterismError:
            continue  # nothing to retry
    listed = (await list_plans(stage.store, PlanQuery()))[0]
    assert isinstance(listed, ListedPlan)
    assert listed == (await read_plan(stage.fleet(), "nightly")).listed


@pytest.mark.parametrize("seed", range(6))
async def test_the_summary_is_what_the_journal_says(stage: Stage, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    states = compared(stage, monkeypatch)
    await random_life(stage, seed)
    assert "executing" in states


async def test_ablation_without_the_summary_in_the_commit_of_a_step_a_list_is_wrong(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = JournalWriter._append

    async def without(self: JournalWriter, *arguments: Any) -> None:
        commit = self._store.commit

        async def leave_out(writes: Sequence[Write]) -> None:
            await commit([write for write in writes if not isinstance(write, PutPlan)])

        with monkeypatch.context() as patched:
            patched.setattr(self._store, "commit", leave_out)
            await append(self, *arguments)

    monkeypatch.setattr(JournalWriter, "_append", without)
    await stage.orchestrator().run(chain("a", "b"))
    [row] = await stage.store.plans(PlanQuery())
    assert row.summary is None  # the last write was that of the head, which forgets it


async def test_a_plan_without_a_summary_gets_it_when_it_is_listed(stage: Stage) -> None:
    await insert_plan(stage.store, chain("a", "b"))
    head = await stage.store.register(head_key("nightly"))
    assert head is not None
    await stage.store.commit([PutRegister(head.key, head.value, head.revision)])
    [row] = await stage.store.plans(PlanQuery())
    assert row.summary is None
    [listed] = await list_plans(stage.store, PlanQuery(states=frozenset({"created", "ready"})))
    assert isinstance(listed, ListedPlan)
    assert listed.counts == {"pending": 2}
    [row] = await stage.store.plans(PlanQuery())
    assert row.summary is not None


async def test_a_summary_does_not_name_more_running_tasks_than_a_list_can_use(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_summaries, "MOST_RUNNING", 0)
    await insert_plan(stage.store, Constellation("empty"))
    await stage.orchestrator().run(chain("a"))
    assert all(isinstance(plan, ListedPlan) for plan in await list_plans(stage.store, PlanQuery()))


async def test_a_head_that_cannot_be_read_does_not_hide_the_others(stage: Stage) -> None:
    await insert_plan(stage.store, chain("a"))
    await stage.store.commit([PutRegister(head_key("later"), {"schema": 99, "created_at": 1.0}, None)])
    [first, last] = await list_plans(stage.store, PlanQuery())
    assert isinstance(first, ListedPlan)
    assert isinstance(last, UnreadablePlan)


async def test_a_page_reads_no_journal(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    await insert_plan(stage.store, chain("a"))

    async def refused(*arguments: Any) -> StoredConstellation:
        raise AssertionError("a list reads no plan in full")

    monkeypatch.setattr("asterism.durable.journal_store.load", refused)
    [listed] = await list_plans(stage.store, PlanQuery())
    assert isinstance(listed, ListedPlan)
