"""Processes that are killed with -9 while they work on a batch and retry it. At every moment each element is counted
once, as its newest run."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from asterism.api.system import LocalSystem
from asterism.core.run import transitions
from asterism.core.run.run import Owner, Run
from asterism.core.run.work import Workflow
from asterism.fleet.fleet import Fleet
from asterism.store.protocol import PutRun, Query
from tests.watched_commits import commits, watched_process

WORK = Workflow("work", argv=("true",))
ELEMENTS = 6
TRIES = 3
"""Each element fails until this try of it."""


async def prepare(url: str) -> None:
    async with await Fleet.open(url) as fleet:
        await fleet.workflows.add(WORK)
        await fleet.create_many("work", [{"element": element} for element in range(ELEMENTS)], batch="films")


async def tries_of(fleet: Fleet, run: Run) -> int:
    tries = 1
    while run.retry_of is not None:
        run, tries = await fleet.run(run.retry_of), tries + 1
    return tries


async def carry_on(url: str, tell: int) -> None:
    """Work on the batch and retry what failed, until all has succeeded. Writes a byte before each commit."""
    async with await Fleet.open(url) as fleet:
        commit = fleet.store.commit

        async def telling(writes: object) -> None:
            os.write(tell, b".")
            await commit(writes)  # type: ignore[arg-type]

        fleet.store.commit = telling  # type: ignore[method-assign]
        system, owner = LocalSystem(fleet), Owner("laptop", "session-laptop")
        while True:
            for run in await fleet.store.find(Query(batch="films")):
                tries = await tries_of(fleet, run)
                while not run.ended:
                    await fleet.store.commit([PutRun(stepped(run, owner, tries), run.revision)])
                    run = await fleet.run(run.id)
            if (await system.show_batch("films")).completed == ELEMENTS:
                return
            await system.retry_batch("films", True)


def stepped(run: Run, owner: Owner, tries: int) -> Run:
    """The next step of a run that has not ended."""
    if run.grant is None:
        return transitions.take(run, owner, run.created_at)
    if run.started_at is None:
        return transitions.start(run, run.grant, run.created_at)
    if tries < TRIES:
        return transitions.fail(run, run.grant, "no luck", run.created_at, final=True)
    return transitions.complete(run, run.grant, tries, run.created_at)


async def wrong_counts(url: str) -> list[str]:
    async with await Fleet.open(url) as fleet:
        system = LocalSystem(fleet)
        elements = [run.input["element"] for run in await fleet.store.find(Query(batch="films"))]
        batch = await system.show_batch("films")
    counted = batch.waiting + batch.running + batch.completed + batch.failed + batch.cancelled
    if sorted(elements) != list(range(ELEMENTS)) or (batch.runs, counted) != (ELEMENTS, ELEMENTS):
        return [f"elements {sorted(elements)}, counted {counted} of {batch.runs}"]
    return []


def kill_repeatedly(folder: Path, kills: int, seed: int) -> list[str]:
    """Returns what was wrong after any of the kills, and in the end."""
    url, chance, wrong = f"sqlite:///{folder}/fleet.db", random.Random(seed), list[str]()
    asyncio.run(prepare(url))
    for kill in range(kills + 1):
        with watched_process(partial(carry_on, url)) as (child, told):
            if kill < kills and commits(told, chance.randint(1, 12)):
                os.kill(child, signal.SIGKILL)
        wrong += asyncio.run(wrong_counts(url))
    return wrong


@pytest.mark.hunt(few=1, many=20)
def test_no_element_is_lost_or_counted_twice(tmp_path: Path, seeds: range) -> None:
    for seed in seeds:
        folder = tmp_path / str(seed)
        folder.mkdir()
        assert kill_repeatedly(folder, 5, seed) == []


def test_ablation_without_the_key_of_a_retry_an_element_is_counted_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repeat = Fleet._repeat

    async def keyless(
        self: Fleet, old: Run, device: Any, progress: Any, key: str, reason: str, batch: str | None
    ) -> Run:
        return await repeat(self, old, device, progress, None, reason, batch)

    monkeypatch.setattr(Fleet, "_repeat", keyless)
    assert kill_repeatedly(tmp_path, 2, 0)[0].startswith("elements [0, 0, ")
