"""Simulated plans that are retried while machines crash; and that the simulator notices a missing safeguard."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from asterism.core.errors import AsterismError, PlanError
from asterism.durable import compaction, journal_store
from asterism.durable.commands import OpenPlan
from tests.laboratory.simulator import plan_world, simulate
from tests.laboratory.simulator.plan_world import RetryWorld

pytestmark = pytest.mark.slow


@pytest.mark.hunt(few=1, many=8)
def test_no_world_breaks_a_promise(seeds: range) -> None:
    for seed in seeds:
        simulate(seed, world=RetryWorld)


def test_retries_are_accepted() -> None:
    """Not in every world: no task may have failed, or all who retry may die."""
    assert any("accepted" in simulate(seed, world=RetryWorld).retries.values() for seed in range(10))


def test_a_task_that_is_cancelled_after_a_retry_keeps_its_earlier_runs() -> None:
    """Seed 43: all tasks run again, the first one fails, and the others, which have runs, are given up."""
    simulate(43, world=RetryWorld)


@pytest.mark.parametrize("stride", [pytest.param(31, marks=pytest.mark.long), pytest.param(17, marks=pytest.mark.long)])
def test_the_orchestrator_of_a_retry_may_die_at_every_commit(stride: int) -> None:
    for number in range(1, 60, stride):
        for after in (False, True):
            simulate(1, world=RetryWorld, dies_at=number, after=after)


@pytest.mark.hunt(few=1, many=10)
def test_journals_that_are_compacted_all_the_time_know_of_retries(
    monkeypatch: pytest.MonkeyPatch, seeds: range
) -> None:
    monkeypatch.setattr(compaction, "LONG_JOURNAL", 8)
    monkeypatch.setattr(compaction, "STEPS_PER_TASK", 0)
    monkeypatch.setattr(journal_store, "PART_LENGTH", 1000)
    for seed in seeds:
        simulate(seed, world=RetryWorld)


def noticed() -> None:
    def look() -> None:
        for seed in range(10):
            simulate(seed, world=RetryWorld)

    with pytest.raises((AssertionError, AsterismError)):
        look()


@pytest.mark.long
def test_without_the_head_in_the_same_commit_a_retry_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The record alone: the head still says that the plan has ended, and nobody continues it."""
    monkeypatch.setattr(OpenPlan, "reopen", lambda self, *, submit: None)
    noticed()


@pytest.mark.long
def test_a_retry_that_is_refused_although_a_task_failed_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(*_: Any, **__: Any) -> Any:
        raise PlanError("no task failed")

    monkeypatch.setattr(plan_world, "retry_plan", refused)
    noticed()


@pytest.mark.long
def test_one_seed_is_one_world() -> None:
    logs: Iterable[tuple[str, ...]] = {simulate(0, world=RetryWorld).log for _ in range(2)}
    assert len(list(logs)) == 1
