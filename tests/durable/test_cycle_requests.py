"""Editors in other processes list, claim and answer the edit cycles of a plan through the store."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asterism.cli.editor_options import ModelTerms, editor_terms
from asterism.core.errors import EditRejected, PlanError
from asterism.core.plan.assignment_lock import CycleClaimed, CycleGone
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edits import AddTask, EditBatch, RemoveTask
from asterism.durable import ownership
from asterism.durable.commands import AnswerCycle, CycleList
from asterism.durable.journal_store import insert_plan
from asterism.durable.plan_actor import (
    AnswerLost,
    NotAnswered,
    answer_cycle,
    claim_cycle,
    edit_plan,
    list_cycles,
    release_cycle,
)
from asterism.store.protocol import PutRegister
from tests.durable import durable_work
from tests.durable.durable_scenes import DONE, Stage, chain, left, task
from tests.durable.test_plan_requests import withdrawing_late

pytestmark = pytest.mark.virtual_time

OUTSIDE: dict[str, Any] = {"external": True, "claim_timeout": float("inf")}


async def reviewed(stage: Stage, *names: str, **options: Any) -> asyncio.Task[Any]:
    """A plan whose first task has ended and waits for its review."""
    job = stage.spawn(stage.orchestrator(**{**OUTSIDE, **options}).run(chain(*(names or ("a", "b")))))
    await stage.until(lambda: DONE["a"])
    await asyncio.sleep(1.0)
    return job


async def cycle_of(stage: Stage) -> int:
    (cycle,) = (await list_cycles(stage.fleet(), "nightly")).cycles
    return cycle.id


async def requests(stage: Stage) -> list[Any]:
    return [register.key for register in await stage.store.registers("mailbox/")]


async def test_a_cycle_is_listed_claimed_and_answered(stage: Stage) -> None:
    job = await reviewed(stage)
    listed = await list_cycles(stage.fleet(), "nightly")
    (cycle,) = listed.cycles
    assert (listed.by, cycle.tasks, cycle.claimed_by, cycle.stuck, cycle.version) == (
        "nightly@here",
        ("a",),
        None,
        False,
        0,
    )
    assert cycle.ends == ({"task": "a", "status": "completed", "reason": ""},)
    assert cycle.expires_at == cycle.opened_at + 600.0
    claimed = await claim_cycle(stage.fleet(), "nightly", cycle.id, who="bob", lease=120.0)
    assert claimed.claimed_by == "bob"
    assert claimed.claimed_until is not None
    assert 119.0 < claimed.claimed_until - stage.store.clock() <= 120.0
    assert (await list_cycles(stage.fleet(), "nightly")).cycles == (claimed,)
    with pytest.raises(CycleClaimed, match="claimed by 'bob'"):
        await claim_cycle(stage.fleet(), "nightly", cycle.id, who="eve")
    with pytest.raises(CycleClaimed, match="claimed by 'bob', not by 'eve'"):
        await answer_cycle(stage.fleet(), "nightly", cycle.id, who="eve")
    answer = await answer_cycle(stage.fleet(), "nightly", cycle.id, EditBatch((AddTask(task("c")),)), who="bob")
    assert (answer.by, answer.applied.version) == ("nightly@here", 1)
    assert (await stage.load()).plan.version == 1  # durable on return
    await stage.until(lambda: DONE["b"] and DONE["c"])
    await asyncio.sleep(1.0)
    for open_cycle in (await list_cycles(stage.fleet(), "nightly")).cycles:  # the ends of b and c
        await answer_cycle(stage.fleet(), "nightly", open_cycle.id)
    assert set((await job).values) == {"a", "b", "c"}
    assert await requests(stage) == []
    assert (await list_cycles(stage.fleet(), "nightly")) == CycleList(())


async def test_a_rejected_answer_leaves_the_cycle_open(stage: Stage) -> None:
    job = await reviewed(stage)
    number = await cycle_of(stage)
    with pytest.raises(EditRejected) as rejected:
        await answer_cycle(stage.fleet(), "nightly", number, EditBatch((RemoveTask("x"), RemoveTask("a"))))
    assert [violation.rule for violation in rejected.value.violations] == ["unknown_task", "immutable"]
    (cycle,) = (await list_cycles(stage.fleet(), "nightly")).cycles
    assert (cycle.rejections, cycle.claimed_by) == (1, "ann")
    await answer_cycle(stage.fleet(), "nightly", number, EditBatch((RemoveTask("b"),), reason="enough"))
    assert set((await job).values) == {"a"}


async def test_a_late_answer_is_checked_like_any_edit(stage: Stage) -> None:
    job = await reviewed(stage, "a", "b", "c", edit_timeout=30.0)
    number = await cycle_of(stage)
    await asyncio.sleep(31.0)
    with pytest.raises(CycleGone):
        await claim_cycle(stage.fleet(), "nightly", number)
    late = await answer_cycle(stage.fleet(), "nightly", number, EditBatch((AddTask(task("d")),)))
    assert late.applied.version == 1
    await job


async def test_an_unknown_cycle(stage: Stage) -> None:
    await reviewed(stage)
    for ask in (claim_cycle(stage.fleet(), "nightly", 77), answer_cycle(stage.fleet(), "nightly", 77)):
        with pytest.raises(CycleGone, match="cycle 77 is not open"):
            await ask


async def test_the_editor_of_a_process_is_not_replaced(stage: Stage) -> None:
    async def editor(view: Any, events: Any) -> None:
        await asyncio.sleep(100.0)

    await reviewed(stage, external=False, editor=editor)
    number = await cycle_of(stage)
    for ask in (claim_cycle(stage.fleet(), "nightly", number), answer_cycle(stage.fleet(), "nightly", number)):
        with pytest.raises(CycleClaimed):
            await ask


async def test_an_unclaimed_cycle_is_claimed_by_its_answer_after_a_restart(stage: Stage) -> None:
    """A claim is in the memory of the owner; the editor need not know that the owner has changed."""

    async def work() -> Any:
        return await stage.orchestrator(**OUTSIDE).run(chain("a", "b"))

    await left(work(), lambda: DONE["a"], stage)
    listed = await list_cycles(stage.fleet(), "nightly")
    assert (listed.by, listed.cycles[0].expires_at) == (None, None)
    number = listed.cycles[0].id
    with pytest.raises(PlanError, match="no process runs plan 'nightly', so its edit cycles wait"):
        await answer_cycle(stage.fleet(), "nightly", number)
    job = stage.spawn(stage.orchestrator(**OUTSIDE, edit_on=lambda task: task.id == "a").run_stored("nightly"))
    await asyncio.sleep(2.0)
    await answer_cycle(stage.fleet(), "nightly", number, EditBatch((AddTask(task("c")),)), who="bob")
    assert set((await job).values) == {"a", "b", "c"}


async def test_a_plan_that_has_ended_or_is_unknown(stage: Stage) -> None:
    await stage.orchestrator().run(chain("a"))
    assert (await list_cycles(stage.fleet(), "nightly")).cycles == ()
    with pytest.raises(PlanError, match="has ended"):
        await answer_cycle(stage.fleet(), "nightly", 1)
    await insert_plan(stage.store, Constellation("weekly"))
    with pytest.raises(PlanError, match="no process runs plan 'weekly'"):
        await claim_cycle(stage.fleet(), "weekly", 1)


async def test_an_owner_that_does_not_answer_changes_nothing(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    await reviewed(stage)

    monkeypatch.setattr(ownership, "answer_messages", lambda plan, messages: {})
    await asyncio.sleep(2.0)
    with pytest.raises(NotAnswered):
        await answer_cycle(stage.fleet(), "nightly", 1, EditBatch((RemoveTask("b"),)))
    listed = await list_cycles(stage.fleet(), "nightly")
    assert (listed.by, len(listed.cycles)) == (None, 1)  # what the journal says
    assert await requests(stage) == []
    assert (await stage.load()).plan.version == 0


async def test_an_answer_whose_process_died_is_applied_once(stage: Stage) -> None:
    """Killed without a chance to withdraw it, while no process runs the plan: the next owner applies it, once."""

    async def work() -> Any:
        return await stage.orchestrator(**OUTSIDE).run(chain("a", "b"))

    await left(work(), lambda: DONE["a"], stage)
    batch = EditBatch((AddTask(task("c", call="wait")),), "bob")
    value = {"do": AnswerCycle(1, "bob", batch).to_json(), "at": stage.store.clock()}
    await stage.store.commit([PutRegister("mailbox/nightly/1", value, None)])
    only_first: dict[str, Any] = {**OUTSIDE, "edit_on": lambda task: task.id == "a"}
    await left(stage.orchestrator(**only_first).run_stored("nightly"), durable_work.gate("c begun").is_set, stage)
    durable_work.gate("c").set()
    await stage.orchestrator(**only_first).run_stored("nightly")
    plan = (await stage.load()).plan
    assert (plan.version, DONE["c"], str(plan.state)) == (1, 1, "completed")


async def test_an_answer_that_is_withdrawn_before_the_commit_is_not_applied(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await reviewed(stage)
    withdrawn = withdrawing_late(stage, monkeypatch)
    with pytest.raises(AnswerLost):
        await answer_cycle(stage.fleet(), "nightly", 1, EditBatch((AddTask(task("c")),)), who="bob")
    await asyncio.sleep(5.0)
    assert len(withdrawn) == 1
    stored = await stage.load()
    assert (stored.plan.version, list(stored.lock.cycles)) == (0, [1])  # nothing of it has happened
    assert (await answer_cycle(stage.fleet(), "nightly", 1, EditBatch((AddTask(task("c")),)))).applied.version == 1


async def test_edits_and_answers_of_many_processes_are_each_applied_once(stage: Stage) -> None:
    job = await reviewed(stage, "a", "b", edit_on=lambda task: task.id == "a")
    number = await cycle_of(stage)
    edits = [
        edit_plan(stage.fleet(), "nightly", EditBatch((AddTask(task(f"e{index}")),), f"p{index}")) for index in range(4)
    ]
    answers = [
        answer_cycle(stage.fleet(), "nightly", number, EditBatch((AddTask(task(f"x{index}")),)), who="bob")
        for index in range(3)
    ]
    results = await asyncio.gather(*edits, *answers)
    assert sorted(answer.applied.version for answer in results) == list(range(1, 8))
    assert len((await job).values) == 9


async def test_a_person_closes_a_cycle_that_another_editor_has_claimed(stage: Stage) -> None:
    job = await reviewed(stage)
    await claim_cycle(stage.fleet(), "nightly", 1, who="bob", lease=500.0)
    released = await release_cycle(stage.fleet(), "nightly", 1, "bob hangs", who="eve")
    assert released.id == 1
    with pytest.raises(CycleGone, match="cycle 1 is not open: a person released it"):
        await release_cycle(stage.fleet(), "nightly", 1)
    result = await job
    assert (result.state, sorted(result.values)) == ("completed", ["a", "b"])
    story = [(entry.what, entry.why) for entry in result.plan.story()]
    assert ("cycle released", "cycle 1, by eve: bob hangs") in story


async def test_a_cycle_of_the_command_line_that_nobody_claims_closes_after_30_seconds(stage: Stage) -> None:
    model_values = dict.fromkeys(name for name in ModelTerms.__struct_fields__)
    job = stage.spawn(stage.orchestrator(**editor_terms("outside", None, model_values)).run(chain("a", "b")))
    await stage.until(lambda: DONE["a"])
    await asyncio.sleep(29.0)
    assert not DONE["b"]
    await asyncio.sleep(3.0)
    assert DONE["b"]
    with pytest.raises(CycleGone, match="cycle 1 is not open: no editor claimed it in time, and the plan went on"):
        await claim_cycle(stage.fleet(), "nightly", 1)
    await asyncio.sleep(31.0)
    assert (await job).state == "completed"
