"""Simulated plans whose orchestrators crash; and that the simulator notices a missing safeguard."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from asterism.core.errors import AsterismError
from asterism.core.plan import plan_codec
from asterism.core.plan.journal import Edit, RecordedConstellation, Step, UnreadableJournal
from asterism.durable import compaction, durable_orchestrator, journal_store, plan_actor
from asterism.durable.fleet_device import FleetDevice, PlanRuns
from asterism.durable.journal_writer import JournalWriter
from asterism.store.protocol import Notice, PutRegister, PutRun, Write
from tests.laboratory.simulator import Violation, plan_world, simulate

pytestmark = pytest.mark.slow

LARGE = 200
"""The largest number of tasks of a large plan."""

WITH_LARGE_PLANS = (8, 11)
"""The seeds of worlds with a large plan."""

ABLATED = 60
"""The number of worlds in which a missing safeguard has to show."""


def small(dies_at: int, after: bool = False) -> plan_world.PlanWorld:
    return simulate(1, world=plan_world.PlanWorld, dies_at=dies_at, after=after)


def boundaries() -> list[tuple[int, bool]]:
    """Before and after every commit of an orchestrator without faults."""
    commits = small(10**9).commits
    assert commits > 20
    return [(number, after) for number in range(1, commits + 1) for after in (False, True)]


@pytest.mark.parametrize("stride", [41, pytest.param(5, marks=pytest.mark.long)])
def test_an_orchestrator_may_die_at_every_commit(stride: int) -> None:
    for number, after in boundaries()[::stride]:
        small(number, after)


@pytest.mark.hunt(few=1, many=10)
def test_no_world_breaks_a_promise(seeds: range) -> None:
    for seed in seeds:
        simulate(seed, world=plan_world.PlanWorld)


@pytest.mark.long
def test_no_world_with_a_large_plan_breaks_a_promise() -> None:
    worlds = [simulate(seed, world=plan_world.PlanWorld, steps=LARGE) for seed in WITH_LARGE_PLANS]
    assert min(len(world.plan.nodes) for world in worlds) > LARGE // 3
    assert sum(len(world.bosses) for world in worlds) > 3 * len(worlds), "hardly any orchestrator has died"


@pytest.mark.hunt(few=1, many=5)
def test_journals_that_are_compacted_all_the_time_lose_nothing(monkeypatch: pytest.MonkeyPatch, seeds: range) -> None:
    monkeypatch.setattr(compaction, "LONG_JOURNAL", 8)
    monkeypatch.setattr(compaction, "STEPS_PER_TASK", 0)
    monkeypatch.setattr(compaction, "TASKS_PER_PIECE", 1)
    monkeypatch.setattr(plan_codec, "TASKS_PER_CHUNK", 1)
    monkeypatch.setattr(journal_store, "PART_LENGTH", 1000)
    for number, after in boundaries()[:: 75 // len(seeds)]:
        small(number, after)
    for seed in seeds:
        simulate(seed, world=plan_world.PlanWorld)


def test_a_world_whose_plan_no_orchestrator_can_continue_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would start one each second until the plan is overdue."""

    async def unreadable(*_: Any) -> Any:
        raise UnreadableJournal("it is damaged")

    monkeypatch.setattr(durable_orchestrator, "load", unreadable)
    worlds: list[plan_world.PlanWorld] = []
    with pytest.raises(Violation, match="no orchestrator can continue the plan: it is damaged"):
        simulate(0, worlds, world=plan_world.PlanWorld)
    assert len(worlds[0].bosses) < 10


# -- missing safeguards ------------------------------------------------------------------------------------------------


def noticed(*, when_small: bool = True, first: int = 0) -> None:
    """Some crash of the small plan, or some world, breaks a promise. ``first`` is the first seed, for what shows
    rarely."""

    def look() -> None:
        for number, after in boundaries() if when_small else ():
            small(number, after)
        for seed in range(first, first + ABLATED):
            simulate(seed, world=plan_world.PlanWorld)

    with pytest.raises((AssertionError, AsterismError)):
        look()


@pytest.mark.long
def test_without_the_search_for_an_existing_run_a_task_is_done_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    async def anew(self: FleetDevice, work: Any, plan: PlanRuns) -> Any:
        work = copy.copy(work)
        work.epoch += 1000
        return await self._place(await self._new_run(work, plan), work, plan)

    monkeypatch.setattr(FleetDevice, "_resumed_run", anew)
    noticed()


@pytest.mark.long
def test_without_the_run_in_the_same_commit_a_start_may_be_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run first and the step later: the next orchestrator does not know the run, and starts another."""
    commit = JournalWriter.commit

    async def apart(self: JournalWriter, *writes: Write) -> None:
        runs = [write for write in writes if isinstance(write, PutRun)]
        others = [write for write in writes if not isinstance(write, PutRun)]
        if runs:
            await self._store.commit([*runs, *others])
            others = []
        await commit(self, *others)

    monkeypatch.setattr(JournalWriter, "commit", apart)
    noticed(when_small=False, first=106)  # no crash of the small plan shows it


@pytest.mark.long
def test_without_the_number_two_orchestrators_write_one_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a conflict counted as success, steps would be missing from the store."""

    async def there(self: JournalWriter, number: int) -> bool:
        return True

    monkeypatch.setattr(JournalWriter, "_is_written", there)
    noticed(when_small=False)  # the small plan has only one orchestrator at a time


def test_without_the_record_of_an_edit_it_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    record: Callable[..., Any] = JournalWriter.record

    def forgetful(self: JournalWriter, step: Step) -> None:
        if not isinstance(step, Edit):
            record(self, step)

    monkeypatch.setattr(JournalWriter, "record", forgetful)
    noticed()


@pytest.mark.long
def test_without_the_answer_in_the_same_commit_an_edit_is_answered_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    """The edit first and the answer later: its author withdraws it in between, or the next orchestrator answers again
    and says that the task exists."""
    stage, commit = JournalWriter.stage, JournalWriter.commit
    late: dict[JournalWriter, list[Write]] = {}

    def kept_back(self: JournalWriter, write: PutRegister | Notice) -> bool:
        if not (isinstance(write, PutRegister) and write.key.startswith("mailbox/")):
            return stage(self, write)
        late.setdefault(self, []).append(write)
        return False

    async def apart(self: JournalWriter, *writes: Write) -> None:
        answers = late.pop(self, [])
        if answers:
            await commit(self)
            await self._clock.sleep(2.0)
        await commit(self, *writes, *answers)

    monkeypatch.setattr(JournalWriter, "stage", kept_back)
    monkeypatch.setattr(JournalWriter, "commit", apart)
    noticed(when_small=False)


@pytest.mark.long
def test_without_the_withdrawal_an_edit_is_applied_after_it_was_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def kept(self: Any) -> None: ...

    monkeypatch.setattr(plan_actor._Message, "withdraw", kept)
    noticed(when_small=False, first=22)


def test_without_the_record_of_an_end_an_ended_task_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded late instead of before its effects: dependents start from an end that the store does not know."""
    finish: Callable[..., Any] = RecordedConstellation.finish

    def secretly(self: RecordedConstellation, *arguments: Any, **options: Any) -> None:
        record, self.record = self.record, lambda step: None
        try:
            finish(self, *arguments, **options)
        finally:
            self.record = record

    monkeypatch.setattr(RecordedConstellation, "finish", secretly)
    noticed()


@pytest.mark.long
def test_one_seed_is_one_world() -> None:
    assert simulate(3, world=plan_world.PlanWorld).log == simulate(3, world=plan_world.PlanWorld).log
