"""The live view of a plan in a store: what devices execute, what waits for one, and the newest output."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
from rich.console import Console

from asterism import Constellation, Task
from asterism.cli.plan.plan_execution import ASKED_TASKS, LOOK_INTERVAL, FleetProgress
from asterism.cli.plan.plan_live_view import Progress, frame, watched
from asterism.cli.screen import Screen
from asterism.durable.durable_orchestrator import DurableOrchestrator
from asterism.durable.journal_store import StoredConstellation
from asterism.orchestrator.plan_mask import PlanMask
from asterism.store.protocol import Query
from asterism.store.store_errors import StoreUnavailable
from asterism.testing.virtual_time import run as in_virtual_time
from tests.durable.durable_scenes import Stage, agent

SECONDS = 10.0


async def talk(name: str) -> None:
    """Print a line each second."""
    for number in range(int(SECONDS)):
        print(f"{name} says {number}")
        await asyncio.sleep(1.0)


class PicturedOrchestrator(DurableOrchestrator):
    """Takes a picture when it is asked to."""

    progress: Progress

    @asynccontextmanager
    async def watch(self, stored: StoredConstellation) -> AsyncIterator[None]:
        self.progress = Progress(self, stored.plan, PlanMask(stored.plan))
        self.progress.newest_output = FleetProgress(self.fleet, self.progress)
        subscription = self.events.subscribe(self.progress.observe)
        try:
            yield
        finally:
            subscription.close()
            await self.progress.newest_output.close()

    def picture(self) -> list[str]:
        console = Console(width=100, height=30, file=io.StringIO(), color_system=None)
        with console.capture() as capture:
            console.print(frame(self.progress, self.now(), 100, 29))
        return [" ".join(line.split()) for line in capture.get().splitlines()]


async def pictures(stage: Stage, tasks: int, *times: float) -> list[list[str]]:
    """A plan of equal tasks, two at once; pictures of it at these times, each after the looks before it."""
    plan = Constellation("nightly")
    for number in range(tasks):
        plan.add(Task(f"t{number}", call="tests.cli.test_fleet_progress:talk", inputs={"name": f"t{number}"}))
    orchestrator = PicturedOrchestrator(
        stage.fleet(), local=2, host="here", make_agent=lambda *a, **t: agent(*a, host="here", **t)
    )
    stage.spawn(orchestrator.run(plan))
    await stage.until(lambda: hasattr(orchestrator, "progress"))
    drawn = []
    for time in times:
        while stage.now() < time:
            orchestrator.picture()
            await asyncio.sleep(0.25)
        drawn.append(orchestrator.picture())
    return drawn


def test_what_is_executed_and_what_waits_for_a_device_and_the_newest_output() -> None:
    async def body() -> None:
        stage = Stage()
        [early, late] = await pictures(stage, 5, 5.0, 25.5)
        assert early[1].endswith("2 running, 3 pending")
        assert [line.rsplit(maxsplit=2)[0] for line in early[3:5]] == [f"◐ t{n} running nightly@here" for n in (0, 1)]
        assert early[5:8] == [f"○ t{n} ready busy: nightly@here (2)" for n in (2, 3, 4)]
        assert early[9] == "fleet 2 running"
        newest = {line[:11] for line in early[10:]}
        assert (len(early), newest <= {"t0 │ t0 say", "t1 │ t1 say"}, len(newest)) == (13, True, 1)
        assert late[1].endswith("4 completed, 1 running")
        running = next(line for line in late if line.startswith("◐"))
        name = running.split()[1]
        assert running.startswith(f"◐ {name} running nightly@here")
        assert float(running.split()[4]) < SECONDS  # since a device began it, not since it was queued
        assert late[-1].startswith(f"{name} │ {name} says ")
        await stage.close()

    in_virtual_time(body())


def test_a_large_plan_counts_what_waits_for_its_process() -> None:
    async def body() -> None:
        stage = Stage()
        [lines] = await pictures(stage, 3 * ASKED_TASKS, 15.0)
        assert lines[1].endswith(f"2 completed, 2 running, {3 * ASKED_TASKS - 4} pending")
        assert any(line.startswith(f"○ {3 * ASKED_TASKS - 4} tasks ready busy: nightly@here (2): t") for line in lines)
        await stage.close()

    in_virtual_time(body())


def test_it_looks_at_most_once_a_second_and_survives_an_unavailable_store(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        stage = Stage()
        find, looks = stage.store.find, list[float]()

        async def counted(query: Query) -> Any:
            if query.keys is None:
                return await find(query)
            looks.append(stage.now())
            raise StoreUnavailable("away")

        monkeypatch.setattr(stage.store, "find", counted)
        [without] = await pictures(stage, 1, 4.0)
        assert without[1].endswith("1 running")
        assert not any("│" in line for line in without)
        assert 2 <= len(looks) <= 5
        assert all(after - before > LOOK_INTERVAL - 0.001 for before, after in pairwise(looks))
        await stage.close()

    in_virtual_time(body())


def test_a_view_does_not_wait_for_a_look_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        stage = Stage()
        find = stage.store.find

        async def hanging(query: Query) -> Any:
            return await (find(query) if query.keys is None else asyncio.get_running_loop().create_future())

        monkeypatch.setattr(stage.store, "find", hanging)

        class Watched(DurableOrchestrator):
            def watch(self, stored: StoredConstellation) -> Any:
                screen = Screen(file=io.StringIO(), force_terminal=True, width=100, height=30)
                return watched(self, stored.plan, screen, output=lambda progress: FleetProgress(self.fleet, progress))

        plan = Constellation("nightly")
        plan.add(Task("only", call="tests.cli.test_fleet_progress:talk", inputs={"name": "only"}))
        orchestrator = Watched(
            stage.fleet(), local=1, host="here", make_agent=lambda *a, **t: agent(*a, host="here", **t)
        )
        assert (await orchestrator.run(plan)).state == "completed"
        await stage.close()

    in_virtual_time(body())
