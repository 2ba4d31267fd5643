"""The parts of the benchmarks that are exact are tests too; of the others only that they run."""

from __future__ import annotations

from typing import Any

import pytest

from bench import cost, editing, latency, makespan, memory, page, priorities
from bench.graphs import chain, independent
from bench.measure import Sample
from bench.peers import asterism_peer


@pytest.mark.long
@pytest.mark.parametrize("changes", ["nothing", "one in ten"])
@pytest.mark.parametrize("devices", sorted(makespan.DEVICES))
def test_the_makespan_keeps_its_bars_where_editors_are_slowest(changes: str, devices: int) -> None:
    """In virtual time, so exact: the same figures on every machine."""
    slowest = max(makespan.LATENCIES)
    cell = makespan.cell(changes, slowest, devices)
    assert cell.policies["speculative"] <= makespan.BARS[changes]
    assert cell.policies["scoped"] <= cell.policies["global"]


@pytest.mark.long
def test_a_pending_task_weighs_no_more_than_it_may() -> None:
    assert memory.bytes_per_task(20_000) <= 0.7 * 1024, "the bar of the page is lower still"


def test_ours_is_measured_beside_the_bare_executor() -> None:
    found = [cost.versus("chain", chain(20), 1), cost.versus("independent", independent(20), 1)]
    text = page.per_task(found, found, Sample(10, 0.1, 0.1))
    assert "| chain | " in text
    assert all(versus.ratio > 0 for versus in found)


async def _fails() -> None:
    raise ValueError("it fails")


def test_tasks_that_ran_but_failed_give_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(trace: list[int]) -> Any:
        def make(task: int) -> Any:
            async def body() -> None:
                trace.extend((~task, task))
                raise ValueError("it fails")

            return body

        return make

    monkeypatch.setattr(asterism_peer, "bodies", failing)
    with pytest.raises(AssertionError, match=r"the plan is failed: .*0 is failed ValueError: it fails"):
        asterism_peer.run(independent(3))
    with pytest.raises(AssertionError, match="the plan is"):
        editing.with_empty_answers(20)


def test_ends_that_nobody_reviewed_and_tasks_that_nobody_added_give_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    async def asked_once(self: editing.Reviewer, view: Any, events: Any) -> None:
        self.reviewed = [events[0].task_id]

    monkeypatch.setattr(editing.Reviewer, "edit", asked_once)
    with pytest.raises(AssertionError, match="1 of 20 ends were reviewed"):
        editing.with_empty_answers(20)
    monkeypatch.setattr(editing, "_noop", _fails)
    with pytest.raises(AssertionError, match="more-20 is failed"):
        editing.with_growth(40)

    async def no_edit(self: editing.Grower, view: Any, events: Any) -> None:
        return None

    monkeypatch.setattr(editing.Grower, "edit", no_edit)
    with pytest.raises(AssertionError, match="the plan has 20 tasks, and should have grown to 40"):
        editing.with_growth(40)


def test_a_run_that_fails_or_is_not_edited_has_no_latency(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_edit(*_: Any) -> None:
        return None

    monkeypatch.setattr(latency._Editor, "edit", no_edit)
    with pytest.raises(AssertionError, match="0 edits were applied"):
        latency.measure(10)

    def failing(self: latency.Stopwatch) -> None:
        raise ValueError("it fails")

    monkeypatch.setattr(latency.Stopwatch, "note_end", failing)
    with pytest.raises(AssertionError, match="the plan is failed"):
        latency.measure(10)


def test_a_plan_that_fails_has_no_makespan(monkeypatch: pytest.MonkeyPatch) -> None:
    assert makespan.over_bound("scoped", 1, 0.5, 5, 0.1) >= 1.0

    async def failing(self: makespan.Scene, work: Any) -> None:
        raise ValueError("it fails")

    monkeypatch.setattr(makespan.Scene, "work", failing)
    with pytest.raises(AssertionError, match="failed"):
        makespan.over_bound("scoped", 1, 0.5, 5, 0.0)


@pytest.mark.long
def test_editing_is_measured_and_the_plan_grows_as_it_should() -> None:
    assert editing.with_empty_answers(100).tasks == 100
    assert editing.with_growth(200).cpu > 0
    assert editing.ten_operations(4_000) > 0
    assert "| growth | " in page.growth([editing.Growth("growth", 1e-5, 2e-5)])


def test_the_steps_of_a_run_are_timed() -> None:
    found = latency.measure(40)
    assert set(found.steps) == set(latency.CLAIMS)
    assert "tasks/s" in page.latencies([found])


def test_a_peer_that_is_not_installed_is_named_as_such() -> None:
    sample = Sample(10, 0.1, 0.1)
    ours = cost.PeerCost("asterism", "1", dict.fromkeys(cost.SMALL, sample))
    missing = cost.PeerCost("ray", "not installed", {})
    assert "| ray | not installed | – | – | – |" in page.against_peers([ours, missing])


def test_critical_work_below_low_tasks_ends_early_and_the_whole_plan_too() -> None:
    found = priorities.inversion(plans=3)
    assert found.critical < found.critical_alone / 2
    assert found.makespan < found.makespan_alone
    assert "with inherited priority" in priorities.page(found)
