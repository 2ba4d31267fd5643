"""Metrics of a fleet from its records: what they say, and how much is read."""

from __future__ import annotations

import asyncio

import pytest

from asterism.base.openmetrics import render
from asterism.core.run import transitions
from asterism.core.run.run import Owner, Run
from asterism.core.run.session import Session
from asterism.fleet.fleet import Fleet
from asterism.fleet.selection_metrics import PAGE, fleet_families, read_window
from asterism.store.protocol import PutRun
from tests.base.openmetrics_grammar import ReadFamily, read
from tests.fleet.fleet_scenes import WORK, Line, Stage

pytestmark = pytest.mark.virtual_time


async def metrics(fleet: Fleet, **bounds: float) -> dict[str, ReadFamily]:
    return read(render(await fleet_families(fleet, **bounds)))  # type: ignore[arg-type]


def sample(families: dict[str, ReadFamily], name: str, suffix: str = "", **labels: str) -> float:
    return families[name].samples[suffix, tuple(labels.items())]


async def test_waiting_declines_losses_and_scores_by_device_and_workflow(stage: Stage) -> None:
    kitchen = await stage.device("kitchen")
    run = await stage.person.create(WORK)
    await stage.at_work(kitchen, run)
    score = (await stage.read(run)).scores["kitchen"]
    await asyncio.sleep(20.0)
    kitchen.hands.finish(run)
    await stage.end_of(run)
    kitchen.hands.will_not = "there is no oven here"
    await stage.reaches(await stage.person.create(WORK), "reassigning")
    await kitchen.crash()
    families = await metrics(stage.person)
    labels = {"workflow": "work", "device": "kitchen"}
    assert sample(families, "asterism_runs", status="completed") == 1
    assert sample(families, "asterism_runs_waiting", workflow="work", device="") == 1
    assert sample(families, "asterism_device_slots", device="kitchen") == 1
    assert sample(families, "asterism_window_runs") == 2
    assert sample(families, "asterism_window_run_ends", **labels, outcome="completed") == 1
    assert sample(families, "asterism_window_declines", **labels) == 1
    assert sample(families, "asterism_window_assignment_ends", **labels, reason="declined") == 1
    assert sample(families, "asterism_window_waiting_seconds", "_gcount", **labels) == 1
    assert sample(families, "asterism_window_work_seconds", "_gsum", **labels) == pytest.approx(20.0, abs=0.5)
    assert sample(families, "asterism_window_score", "_gsum", **labels, reason="completed") == score
    assert sample(families, "asterism_window_score", "_gcount", **labels, reason="declined") == 1


async def test_a_lost_device_shows_with_its_score(stage: Stage) -> None:
    run = lost(await stage.person.create(WORK), stage.store.clock())
    await stage.store.commit([PutRun(run, run.revision - 2)])
    families = await metrics(stage.person)
    labels = {"workflow": "work", "device": "attic", "reason": "timeout"}
    assert sample(families, "asterism_window_assignment_ends", **labels) == 1
    assert sample(families, "asterism_window_score", "_gsum", **labels) == 33.0


def lost(run: Run, now: float) -> Run:
    session = Session("s", "attic", now)
    taken = transitions.take(run, Owner("attic", session.id), now, scores={"attic": 33.0})
    return transitions.lose(taken, now, "silence")


async def test_runs_before_the_window_and_beyond_the_limit_are_not_read(stage: Stage) -> None:
    for _ in range(3):
        await stage.person.create(WORK)
        await asyncio.sleep(100.0)
    families = await metrics(stage.person, window=250.0)
    assert sample(families, "asterism_window_runs") == 2
    assert sample(families, "asterism_window_covered_seconds") == 250.0
    families = await metrics(stage.person, limit=1)
    assert sample(families, "asterism_window_runs") == 1
    assert sample(families, "asterism_window_covered_seconds") == pytest.approx(100.0, abs=1.0)


async def test_a_large_store_is_read_in_pages_and_only_up_to_the_limit(stage: Stage) -> None:
    now = stage.store.clock()
    runs = [transitions.create(f"r{n:06d}", WORK, {}, by="ann", now=now) for n in range(3 * PAGE)]
    await stage.person.workflows.add(WORK)
    await stage.store.commit([PutRun(run, None) for run in runs])
    line = Line(stage.store)
    window, _ = await read_window(line, 3600.0, 2 * PAGE)  # type: ignore[arg-type]
    assert (window.runs, line.asked["find"]) == (2 * PAGE, 2)
    window, _ = await read_window(line, 3600.0, 100 * PAGE)  # type: ignore[arg-type]
    assert (window.runs, line.asked["find"]) == (3 * PAGE, 6)


async def test_an_empty_fleet_has_metrics(stage: Stage) -> None:
    families = await metrics(stage.person)
    assert sample(families, "asterism_window_runs") == 0
    assert "asterism_window_score" not in families
