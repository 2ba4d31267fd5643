"""Lists of a large store: a part of ``runs list`` at a million runs, and a page of ``plan list`` at 10,000 plans.

Nearly all runs have ended, of one workflow, on fifty devices; a few have what the filters ask for. The tables are
filled with the rows that the store itself would have written. A part of a list looks at a bounded number of runs
(``MOST_SCANNED``), so the time of the longest part is what others wait for at most; the whole list is what a command
reads. Plans are measured on both engines, and over HTTP at a server in a process of its own.
"""

import asyncio
import os
import sqlite3
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg

from asterism import Constellation, Task
from asterism.api.documents import Page
from asterism.api.system import LocalSystem, System
from asterism.core.run import transitions
from asterism.core.run.run import Owner, Run
from asterism.core.run.work import Workflow
from asterism.durable.journal_store import insert_plan
from asterism.fleet.fleet import Fleet
from asterism.store import row_codec
from asterism.store.postgres import PostgresStore
from asterism.store.protocol import PlanQuery, Store
from asterism.store.sqlite import SqliteStore
from bench.http_api import serving
from bench.page import table, time_text
from bench.runs.server import database, server
from bench.runs.work import NOTHING

RUNS = 1_000_000
PLANS = 10_000
PAGE = 100
DEVICES = 50
RARE = 100_000
"""One run in so many is the one that a filter hits."""

BAR = 0.1
"""The longest part of a list, in seconds."""

INSERTED_AT_ONCE = 50


@dataclass(frozen=True)
class ListTime:
    """A list: the seconds of its longest part (the best of the rounds), the seconds of the whole list, how many parts
    it has and how many items."""

    where: str
    what: str
    longest: float
    whole: float
    parts: int
    items: int


# -- runs --------------------------------------------------------------------------------------------------------------


def run_records(number: int) -> Iterator[Run]:
    """Runs that have ended; one in RARE failed on another device and has a label of its own."""
    flow, now = Workflow("nothing", call=NOTHING), time.time()
    created = transitions.create("", flow, {"file": "/data/in/film.mp4"}, by="bench", now=now)
    ends = {}
    for device in ("rare", *(f"device-{place}" for place in range(DEVICES))):
        taken = transitions.take(created, Owner(device, f"session of {device}"), now)
        assert taken.grant is not None
        begun = transitions.start(taken, taken.grant, now)
        ends[device] = transitions.complete(begun, taken.grant, {"frames": 1}, now)
        if device == "rare":
            ends[device] = transitions.fail(begun, taken.grant, "no luck", now, final=True)
    for place in range(number):
        rare = place % RARE == RARE // 2
        device = "rare" if rare else f"device-{place % DEVICES}"
        yield ends[device].changed(
            id=f"{place:024x}",
            key=f"key {place}",
            input={"file": f"/data/in/{place}.mp4"},
            label="rare" if rare else None,
        )


FILTERS: dict[str, tuple[dict[str, Any], int]] = {
    "all runs": ({}, RUNS),
    "a device that had few": ({"device": "rare"}, RUNS // RARE),
    "a device that had none": ({"device": "unknown"}, 0),
    "a status that few have": ({"status": "failed"}, RUNS // RARE),
    "a status that none has": ({"status": "processing"}, 0),
    "a workflow and a device": ({"workflow": "nothing", "device": "rare"}, RUNS // RARE),
    "a workflow and a status": ({"workflow": "nothing", "status": "failed"}, RUNS // RARE),
    "a series that none has": ({"series": "unknown"}, 0),
    "a search that hits few": ({"search": "RARE"}, RUNS // RARE),
    "a search that hits none": ({"search": "no run has this"}, 0),
}
"""What is asked for, and how many of RUNS runs there are."""


async def time_list(
    where: str, what: str, read: Callable[..., Awaitable[Page[Any]]], expected: int, rounds: int, **conditions: Any
) -> ListTime:
    """Read a list to its end, or one page of it if it has more than that. Raises AssertionError if it lacks items."""
    parts: list[list[float]] = []
    whole: list[float] = []
    items = 0
    for _ in range(rounds):
        times, items, after = [], 0, None
        while True:
            began = time.perf_counter()
            page = await read(**conditions, limit=PAGE, after=after)
            times.append(time.perf_counter() - began)
            items, after = items + len(page.items), page.next
            if after is None or items >= PAGE:
                break
        assert items == min(expected, PAGE), f"{where}, {what}: {items} of {expected}"
        parts.append(times)
        whole.append(sum(times))
    return ListTime(where, what, max(map(min, zip(*parts, strict=True))), min(whole), len(parts[0]), items)


@asynccontextmanager
async def sqlite_runs(folder: Path, number: int) -> AsyncIterator[Store]:
    store = await SqliteStore.open(folder / "runs.db")
    with closing(sqlite3.connect(folder / "runs.db")) as connection, connection:
        columns = (*row_codec.COLUMNS, "urgency")
        places = ", ".join("?" * len(columns))
        rows = ((*row_codec.row_of(run), 0) for run in run_records(number))
        connection.executemany(f"INSERT INTO runs ({', '.join(columns)}) VALUES ({places})", rows)
    os.sync()  # as old as a real one: else the first checkpoint writes the whole file to the disk
    assert sum((await store.counts()).values()) == number
    yield store


@asynccontextmanager
async def postgres_runs(url: str, number: int) -> AsyncIterator[Store]:
    store = await PostgresStore.open(url)
    connection = await asyncpg.connect(url, server_settings={"search_path": "asterism"})
    try:
        rows = map(row_codec.row_of, run_records(number))
        await connection.copy_records_to_table("runs", records=rows, columns=row_codec.COLUMNS)
        await connection.execute("VACUUM ANALYZE")
    finally:
        await connection.close()
    assert sum((await store.counts()).values()) == number
    yield store


async def time_runs(where: str, store: Store, number: int, rounds: int) -> list[ListTime]:
    async with LocalSystem(Fleet(store)) as system:
        await system.fleet.workflows.add(Workflow("nothing", call=NOTHING))
        return [
            await time_list(where, what, system.list_runs, expected * number // RUNS, rounds, **conditions)
            for what, (conditions, expected) in FILTERS.items()
        ]


# -- plans -------------------------------------------------------------------------------------------------------------


async def insert_plans(store: Store, number: int) -> None:
    async def insert(first: int) -> None:
        for place in range(first, number, INSERTED_AT_ONCE):
            plan = Constellation(f"plan-{place}")
            for task in ("fetch", "convert", "store"):
                plan.add(Task(task, call=NOTHING))
            await insert_plan(store, plan, {"tags": ["rare"] if place % 1000 == 500 else []})

    await asyncio.gather(*(insert(first) for first in range(INSERTED_AT_ONCE)))
    plans = len(await store.plans(PlanQuery(limit=number + 1)))
    assert plans == number, f"the store has {plans} plans, not {number}"


async def time_plans(where: str, system: System, number: int, rounds: int) -> list[ListTime]:
    return [
        await time_list(where, "all plans", system.list_plans, number, rounds),
        await time_list(where, "plans of a name", system.list_plans, min(number, 1), rounds, name=f"plan-{number - 1}"),
        await time_list(where, "plans of a state that none has", system.list_plans, 0, rounds, state="failed"),
    ]


# -- all ---------------------------------------------------------------------------------------------------------------


async def _sqlite(runs: int, plans: int, rounds: int) -> list[ListTime]:
    with tempfile.TemporaryDirectory() as folder:
        async with sqlite_runs(Path(folder), runs) as store:
            times = await time_runs("SQLite", store, runs, rounds)
        async with LocalSystem(Fleet(await SqliteStore.open(Path(folder) / "plans.db"))) as system:
            await insert_plans(system.fleet.store, plans)
            times += await time_plans("SQLite", system, plans, rounds)
    async with serving() as running, running.clients(1) as [client]:
        await insert_plans(running.fleet.store, plans)
        return times + await time_plans("HTTP, SQLite", client, plans, rounds)


async def _postgres(url: str, runs: int, plans: int, rounds: int) -> list[ListTime]:
    async with postgres_runs(url, runs) as store:
        times = await time_runs("PostgreSQL", store, runs, rounds)
    async with LocalSystem(Fleet(await PostgresStore.open(url))) as system:
        await insert_plans(system.fleet.store, plans)
        return times + await time_plans("PostgreSQL", system, plans, rounds)


def measure(runs: int = RUNS, plans: int = PLANS, rounds: int = 3) -> list[ListTime]:
    times = asyncio.run(_sqlite(runs, plans, rounds))
    with server() as running, database(running) as url:
        return times + asyncio.run(_postgres(url, runs, plans, rounds))


def page(times: list[ListTime]) -> str:
    text = f"""## Lists of a large store

A part of `runs list` at {RUNS:,} runs, and a page of `plan list` at {PLANS:,} plans, of {PAGE} items each. A part of a
list of runs looks at a bounded number of runs; a command reads part after part until it has its page. The bar is
{time_text(BAR)} for the longest part.

"""
    rows = [
        (
            item.where,
            item.what,
            str(item.items),
            time_text(item.longest),
            str(item.parts),
            time_text(item.whole),
            "met" if item.longest <= BAR else "**missed**",
        )
        for item in times
    ]
    return text + table(("store", "list", "items", "longest part", "parts", "together", "bar"), rows)
