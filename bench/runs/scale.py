"""A large fleet in PostgreSQL: what one pass of the monitor and one round of heartbeats cost, and how that grows.

Each device has eight runs under way in eight slots; one run in five waits, since nobody is free. The tables are filled
with the rows that the store itself would have written.
"""

import asyncio
import gc
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import astuple, dataclass
from typing import Any

import asyncpg

from asterism.core.run import transitions
from asterism.core.run.session import Session
from asterism.core.run.work import Workflow
from asterism.fleet.fleet import Fleet
from asterism.fleet.monitor import Monitor
from asterism.store import row_codec
from asterism.store.postgres import PostgresStore
from bench.runs.server import database, server
from bench.runs.work import NOTHING

SIZES = (1_000, 10_000)
RUNS_PER_DEVICE = 10
UNDER_WAY = 8
TOLERANCE = 1.25
"""Cost may grow by this much more than the fleet: the caches of the machine stay as small as they are."""

GONE = 60
"""So many devices are gone at once: what they have is nearly what one pass takes away."""

WAITING = 100
"""So many runs wait while everybody has room: fewer than one pass looks at."""

CREATED = 20
"""So many runs are created one after the other, to see what one costs."""

AT_ONCE = 64
"""So many heartbeats are under way at any time; the store has fewer connections than that."""

PROFILE = {"os": "linux", "arch": "x86_64", "cores": 8, "memory": 16 << 30, "cpu": 0.4, "labels": {"room": "kitchen"}}
SELDOM = 3600.0
"""The monitor's interval in seconds: so long that a late pass does not delay reassignment."""


@dataclass(frozen=True)
class Cost:
    """In seconds, at one size: a round of heartbeats, a pass that finds nothing to do, one that takes ``lost`` runs
    from devices that are gone, one that hands out ``given`` among devices with room, and the creation of a run."""

    devices: int
    runs: int
    beats: float
    idle: float
    losing: float
    lost: int
    giving: float
    given: int
    creating: float


WHAT: dict[str, Callable[[Cost], float]] = {
    "a round of heartbeats": lambda cost: cost.beats,
    "a pass that finds nothing to do": lambda cost: cost.idle,
    "a pass that reassigns the runs of dead devices": lambda cost: cost.losing,
    "a pass that assigns work": lambda cost: cost.giving,
    "the creation of one run": lambda cost: cost.creating,
}


def growth(costs: Sequence[Cost], what: Callable[[Cost], float]) -> float:
    """By how much more the cost grew than the fleet, from the smallest to the largest."""
    return what(costs[-1]) / what(costs[0]) / (costs[-1].devices / costs[0].devices)


def measure(sizes: Sequence[int] = SIZES, repeats: int = 3, rounds: int = 2) -> list[Cost]:
    """Turn by turn, so that a slow moment of the machine hits all; the least of each counts."""
    costs_of: dict[int, list[Cost]] = {devices: [] for devices in sizes}
    with server() as running:
        for _ in range(rounds):
            for devices in sizes:
                with database(running) as url:
                    costs_of[devices].append(asyncio.run(at_size(url, devices, repeats)))
    return [Cost(*map(min, zip(*map(astuple, costs), strict=True))) for costs in costs_of.values()]


async def at_size(url: str, devices: int, repeats: int) -> Cost:
    async with Fleet(await PostgresStore.open(url)) as fleet:
        monitor = Monitor(fleet, "monitor", every=SELDOM)
        await monitor.run_pass()  # there is nobody who could have been silent
        scene = Scene(url, fleet, devices)
        await scene.fill()
        beats = await best(scene.beat, repeats)
        idle = await best(monitor.run_pass, repeats)
        await scene.end(min(GONE, devices // 10))
        losing = await best(monitor.run_pass, 1)
        lost = await scene.count("losses")
        await scene.make_room()
        giving = await best(monitor.run_pass, 1)
        assigned = await scene.count("given")
        creating = await best(scene.create, repeats) / CREATED
    expected = (min(GONE, devices // 10) * UNDER_WAY, WAITING)
    assert (lost, assigned) == expected, f"{lost} and {assigned} runs were taken away and given out, not {expected}"
    return Cost(devices, devices * RUNS_PER_DEVICE, beats, idle, losing, lost, giving, assigned, creating)


async def best(action: Callable[[], Awaitable[object]], repeats: int) -> float:
    """Seconds, the least of several."""
    took = []
    for _ in range(repeats):
        gc.collect()
        began = time.perf_counter()
        await action()
        took.append(time.perf_counter() - began)
    return min(took)


class Scene:
    """The fleet, and what befalls it."""

    def __init__(self, url: str, fleet: Fleet, devices: int) -> None:
        self.url, self.fleet, self.devices = url, fleet, devices

    async def fill(self) -> None:
        """Devices that were heard of just now, and their runs."""
        self.flow = await self.fleet.workflows.add(Workflow("nothing", call=NOTHING))
        sessions = [
            Session(
                _session(number),
                f"device-{number}",
                self.fleet.store.clock(),
                host="host",
                slots=UNDER_WAY,
                profile=PROFILE,
                beat_at=self.fleet.store.clock(),
            )
            for number in range(self.devices)
        ]
        async with self._connected() as connection:
            rows = [row_codec.session_row(session) for session in sessions]
            await connection.copy_records_to_table("sessions", records=rows, columns=row_codec.SESSION_COLUMNS)
            await connection.copy_records_to_table("runs", records=self._runs(sessions), columns=row_codec.COLUMNS)
            await connection.execute("VACUUM ANALYZE")

    def _runs(self, sessions: Sequence[Session]) -> Iterator[tuple[Any, ...]]:
        now = self.fleet.store.clock()
        created = transitions.create("", self.flow, {"number": 1}, by="bench", now=now)
        for place, session in enumerate(sessions):
            taken = transitions.take(created, session.owner, now)
            assert taken.grant is not None
            begun = transitions.start(taken, taken.grant, now)
            for number in range(RUNS_PER_DEVICE):
                run = (begun if number < UNDER_WAY else created).changed(id=f"{place:012x}{number:012x}")
                yield row_codec.row_of(run)

    async def beat(self) -> None:
        """A heartbeat of every device."""
        left = iter(range(self.devices))

        async def beating() -> None:
            for number in left:
                answer = await self.fleet.store.heartbeat(_session(number), PROFILE, ())
                assert answer.alive
                assert len(answer.held) == UNDER_WAY

        await asyncio.gather(*(beating() for _ in range(AT_ONCE)))

    async def end(self, devices: int) -> None:
        """Some are known to do nothing any more, as when a device is started anew after a crash."""
        async with self._connected() as connection:
            await connection.execute("UPDATE sessions SET state = 'ended' WHERE id < $1", _session(devices))

    async def make_room(self) -> None:
        """Everybody has room for as much again, and little waits."""
        async with self._connected() as connection:
            before, after = (json.dumps({"slots": slots})[1:-1].replace(" ", "") for slots in (8, 16))
            await connection.execute("UPDATE sessions SET terms = replace(terms, $1, $2)", before, after)
            await connection.execute(
                "DELETE FROM runs WHERE offered = 1 AND id NOT IN (SELECT id FROM runs WHERE offered = 1 LIMIT $1)",
                WAITING,
            )

    async def create(self) -> None:
        await self.fleet.placer(fresh=True)  # the last look was before the pass, when runs waited
        for _ in range(CREATED):
            run = await self.fleet.create(self.flow)
            assert run.device is not None

    async def count(self, what: str) -> int:
        """Runs that were taken away (``losses``), or that were given out since (``given``)."""
        conditions = {"losses": "state LIKE '%\"losses\":%'", "given": "status = 'assigned'"}
        async with self._connected() as connection:
            return int(await connection.fetchval(f"SELECT count(*) FROM runs WHERE {conditions[what]}"))

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Any]:
        """A direct connection to the server, not through the store."""
        connection = await asyncpg.connect(self.url, server_settings={"search_path": "asterism"})
        try:
            yield connection
        finally:
            await connection.close()


def _session(number: int) -> str:
    return f"{number:024x}"
