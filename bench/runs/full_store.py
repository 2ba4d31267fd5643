"""A store at size: what runs and lists cost with a million ended runs and 10,000 plans, beside a store with few; and
retention and vacuum while somebody writes.

Both stores are measured turn by turn, so that a slow moment of the machine hits both. The large one is filled with the
rows that the store itself would have written.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg

from asterism.api.system import LocalSystem
from asterism.core.run import transitions
from asterism.core.run.run import Owner, Run
from asterism.core.run.work import Workflow
from asterism.fleet import retention
from asterism.fleet.fleet import Fleet
from asterism.fleet.monitor import PRUNED_PER_PASS
from asterism.store.protocol import PutRun, Query, Store, TakeRequest
from bench.page import met, table, time_text
from bench.runs.lists import PAGE, insert_plans, postgres_runs, sqlite_runs
from bench.runs.server import database, server
from bench.runs.work import NOTHING

RUNS, PLANS = 1_000_000, 10_000
FEW_RUNS, FEW_PLANS = 1_000, 150
"""The other store has a page of each, and no more than that matters."""

ROUNDS = 60
GROWTH = 2.0
"""The bar of each cost, as a multiple of that in the small store."""

PAUSE = 0.1
"""The bar of the longest time that a writer waits while runs are removed and the table is vacuumed, in seconds."""

PRUNED = 20_000
"""How many runs are removed."""

OWNER = Owner("bench", "session of bench")

Opened = Callable[[int], AbstractAsyncContextManager[Store]]


@dataclass
class Costs:
    """Seconds of each operation, in each round."""

    times: dict[str, list[float]] = field(default_factory=dict)

    async def timed(self, what: str, action: Awaitable[object]) -> object:
        began = time.perf_counter()
        answer = await action
        self.times.setdefault(what, []).append(time.perf_counter() - began)
        return answer

    def median(self, what: str) -> float:
        return statistics.median(self.times[what])


@dataclass(frozen=True)
class Retention:
    """Runs removed per second, and created per second meanwhile by one writer; its longest and its usual wait."""

    removed: float
    created: float
    longest: float
    usual: float


@dataclass(frozen=True)
class Engine:
    name: str
    runs: int
    plans: int
    small: Costs
    large: Costs
    retention: Retention
    vacuum: float | None
    """The longest wait of the writer during a vacuum; None if the engine has none."""


async def round_of(system: LocalSystem, flow: Workflow, costs: Costs) -> None:
    """One run from its creation to its end, and the first pages of each list. Raises AssertionError unless each has
    what it should have."""
    fleet, store = system.fleet, system.fleet.store
    created = await costs.timed("create a run", fleet.create(flow, {"file": "/data/in/new.mp4"}))
    assert isinstance(created, Run)
    request = TakeRequest(OWNER.device, frozenset(), store.clock(), 1, None)
    step = lambda run: transitions.take(run, OWNER, store.clock(), starts=True)  # noqa: E731
    taken = await costs.timed("claim it", store.take(request, step))
    assert isinstance(taken, list)
    assert [run.id for run in taken] == [created.id], "another run was claimed"
    [run] = taken
    assert run.grant is not None
    ended = transitions.complete(run, run.grant, None, store.clock())
    await costs.timed("write its end", store.commit([PutRun(ended, run.revision)]))
    page = await costs.timed("list the newest runs", system.list_runs(limit=PAGE))
    assert page.items[0].id == created.id  # type: ignore[attr-defined]
    after = page.next  # type: ignore[attr-defined]
    second = await costs.timed("the next page", system.list_runs(limit=PAGE, after=after))
    found = await costs.timed("search for text that many have", system.list_runs(limit=PAGE, search=".MP4"))
    plans = await costs.timed("list the newest plans", system.list_plans(limit=PAGE))
    for listed in (page, second, found, plans):
        assert len(listed.items) == PAGE, f"a page has {len(listed.items)} items"  # type: ignore[attr-defined]


async def fill(store: Store, plans: int) -> Workflow:
    await insert_plans(store, plans)
    return await Fleet(store).workflows.add(Workflow("nothing", call=NOTHING))


class Writer:
    """Creates runs one by one while something else happens."""

    def __init__(self, fleet: Fleet, flow: Workflow) -> None:
        self._fleet, self._flow, self._over = fleet, flow, False
        self.waits: list[float] = []

    async def run(self) -> None:
        while not self._over:
            began = time.perf_counter()
            await self._fleet.create(self._flow)
            self.waits.append(time.perf_counter() - began)

    async def during(self, action: Awaitable[object]) -> float:
        """Seconds that the action took."""
        writing = asyncio.create_task(self.run())
        began = time.perf_counter()
        await action
        took = time.perf_counter() - began
        self._over = True
        await writing
        assert self.waits, "nothing was written meanwhile"
        return took


async def prune(store: Store, number: int) -> None:
    """As the monitor of a fleet does it."""
    for _ in range(number // PRUNED_PER_PASS):
        await retention.prune(store, store.clock(), PRUNED_PER_PASS, runs_alone=True)


async def retain(store: Store, flow: Workflow, number: int) -> Retention:
    before = sum((await store.counts()).values())
    writer = Writer(Fleet(store), flow)
    took = await writer.during(prune(store, number))
    left = sum((await store.counts()).values())
    assert left == before - number + len(writer.waits), f"{before} runs before, {left} after"
    return Retention(number / took, len(writer.waits) / took, max(writer.waits), statistics.median(writer.waits))


async def engine(
    name: str, opened: Opened, runs: int, plans: int, pruned: int, vacuum: Callable[[], Awaitable[object]] | None
) -> Engine:
    small, large = Costs(), Costs()
    async with opened(FEW_RUNS) as few_store, opened(runs) as store:
        few_flow, flow = await fill(few_store, FEW_PLANS), await fill(store, plans)
        few, many = LocalSystem(Fleet(few_store)), LocalSystem(Fleet(store))
        for _ in range(ROUNDS):
            await round_of(few, few_flow, small)
            await round_of(many, flow, large)
        removal = await retain(store, flow, pruned)
        longest = None
        if vacuum is not None:
            writer = Writer(Fleet(store), flow)
            await writer.during(vacuum())
            longest = max(writer.waits)
        assert await store.find(Query(limit=1))
        return Engine(name, runs, plans, small, large, removal, longest)


def measure(runs: int = RUNS, plans: int = PLANS, pruned: int = PRUNED) -> list[Engine]:
    with tempfile.TemporaryDirectory() as folder:

        @asynccontextmanager
        async def in_sqlite(number: int) -> AsyncIterator[Store]:
            place = Path(folder) / str(number)
            place.mkdir()
            async with sqlite_runs(place, number) as store:
                yield store
                await store.close()

        measured = [asyncio.run(engine("SQLite", in_sqlite, runs, plans, pruned, None))]
    with server() as running, database(running) as few_url, database(running) as url:

        @asynccontextmanager
        async def in_postgres(number: int) -> AsyncIterator[Store]:
            async with postgres_runs(few_url if number == FEW_RUNS else url, number) as store:
                yield store
                await store.close()

        async def vacuum() -> None:
            connection = await asyncpg.connect(url, server_settings={"search_path": "asterism"})
            await connection.execute("VACUUM runs")
            await connection.close()

        measured.append(asyncio.run(engine("PostgreSQL", in_postgres, runs, plans, pruned, vacuum)))
    return measured


def page(engines: list[Engine]) -> str:
    first = engines[0]
    text = f"""## A store at size

What a run and a page of {PAGE} items cost in a store with {first.runs:,} ended runs and {first.plans:,} plans, as a
multiple of the cost in a store with {FEW_RUNS:,} and {FEW_PLANS}. Medians of {ROUNDS} rounds that took turns. The bar
is {GROWTH:g} times.

"""
    rows = [
        (
            item.name,
            what,
            time_text(item.small.median(what)),
            time_text(item.large.median(what)),
            f"{item.large.median(what) / item.small.median(what):.2f}",
            met(item.large.median(what) / item.small.median(what), GROWTH),
        )
        for item in engines
        for what in item.small.times
    ]
    text += table(("store", "operation", "small store", "large store", "times", "bar"), rows)
    text += f"""
Retention removes old runs of the large store as the coordinator does, in commits of about
{time_text(retention.STEP_SECONDS)} with as long a pause after each, while one writer creates runs one after the other;
it keeps up if it removes more than are created. A vacuum of the table of runs follows, with the same writer. The bar of
the longest wait of the writer is {time_text(PAUSE)}. SQLite needs no vacuum: what is written next uses the space of
what was removed.

"""
    head = ("store", "removed", "created meanwhile", "keeps up", "usual wait", "longest wait", "bar")
    pauses = []
    for item in engines:
        kept = item.retention
        vacuum = ("", "") if item.vacuum is None else (time_text(item.vacuum), met(item.vacuum, PAUSE))
        pauses.append(
            (
                item.name,
                f"{kept.removed:,.0f}/s",
                f"{kept.created:,.0f}/s",
                met(kept.created, kept.removed),
                time_text(kept.usual),
                time_text(kept.longest),
                met(kept.longest, PAUSE),
                *vacuum,
            )
        )
    return text + table((*head, "in a vacuum", "bar"), pauses)
