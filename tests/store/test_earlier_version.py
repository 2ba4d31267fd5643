"""Stores of the version before the redesign: today's code opens, resumes and restores them.

``before_redesign/README.md`` says which version wrote the files, and how.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

from asterism.cli.store_commands import read_backup
from asterism.core.plan.journal import lock_to_json
from asterism.core.run.run import Run, RunStatus
from asterism.core.run.session import ENDED, OPEN
from asterism.durable.durable_orchestrator import DurableOrchestrator
from asterism.durable.journal_store import load
from asterism.fleet.device.agent import DeviceAgent
from asterism.fleet.fleet import Fleet
from asterism.orchestrator.result import Result
from asterism.store.memory import MemoryStore
from asterism.store.protocol import Query, Store, Usage
from asterism.store.sqlite import SqliteStore
from asterism.testing.simulator.fleet_world import SimHost
from tests.async_tests import async_fixture

WRITTEN = Path(__file__).parent / "before_redesign"
LATER = 1_700_000_060.0
"""A minute after the files were written: the device is silent, but not yet for longer than its timeout."""

PATIENCE = 60.0
LARGE = "a large value\n" * 100


def started_clock() -> Callable[[], float]:
    """A clock that begins at LATER, now."""
    started = time.monotonic()
    return lambda: LATER + time.monotonic() - started


@async_fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    """The SQLite store, as that version left it."""
    path = tmp_path / "fleet.db"
    connection = sqlite3.connect(path)
    connection.executescript((WRITTEN / "fleet.sql").read_text())
    connection.close()
    shutil.copytree(WRITTEN / "fleet.db.blobs", tmp_path / "fleet.db.blobs")
    opened = await SqliteStore.open(path, clock=started_clock(), create=False)
    yield opened
    await opened.close()


async def by_key(store: Store) -> dict[str | None, Run]:
    return {run.key: run for run in await store.find(Query())}


async def test_the_store_has_no_damage_and_is_dumped_as_that_version_dumped_it(store: SqliteStore) -> None:
    assert await store.check() == []
    lines = [json.loads(json.dumps(line)) async for line in store.dump()]
    assert lines == list(read_backup(WRITTEN / "backup.jsonl"))


async def test_runs_have_their_states(store: SqliteStore) -> None:
    runs = await by_key(store)
    assert {key: str(run.status) for key, run in runs.items()} == {
        "greeting": "completed",
        "large": "completed",
        "failed": "failed",
        "offered": "created",
        "cancelled": "failed",
        "paused": "created",
        "running": "processing",
        "held": "created",
        "theirs": "completed",
        "plan:nightly/fetch/1": "completed",
        "plan:nightly/check/2": "completed",
        "plan:nightly/build/3": "reassigning",
    }
    assert (runs["greeting"].output, runs["greeting"].version) == ("> hello", 2)
    assert [(entry.what, entry.why) for entry in runs["greeting"].story][-1] == ("completed", "on kitchen")
    assert runs["failed"].error == "JSONDecodeError: Expecting value: line 1 column 1 (char 0)"
    assert (runs["cancelled"].cancelled, runs["cancelled"].error) == (True, "cancelled by ann")
    assert runs["paused"].paused == "by ann: not today"
    assert (runs["offered"].priority, runs["offered"].offered) == (7, True)
    assert (runs["running"].device, runs["running"].series) == ("kitchen", "beds")
    assert (runs["held"].held, runs["held"].offered) == (True, False)


async def test_workflows_settings_sessions_and_notices_are_read(store: SqliteStore) -> None:
    fleet = Fleet(store)
    first, latest = await fleet.workflows.get("indent", 1), await fleet.workflows.latest("indent")
    assert (first.description, first.retries) == ("first version", 1)
    assert (latest.version, latest.call, latest.priority) == (2, "textwrap:indent", 3)
    assert (await fleet.settings()).large == 500
    kitchen, laptop = sorted(await store.sessions(ended=True), key=lambda session: session.device)
    assert (kitchen.device, kitchen.state, kitchen.can, kitchen.used) == ("kitchen", OPEN, {"oven"}, 1)
    assert kitchen.profile["battery"] == 80
    assert (laptop.device, laptop.state) == ("nightly@laptop", ENDED)
    notices = [(notice.kind, notice.message) for _, notice in await store.notices()]
    assert notices[-1] == ("note", "the oven is hot")
    assert [kind for kind, _ in notices] == ["failed", "note"]


async def test_large_values_are_read(store: SqliteStore) -> None:
    fleet, run = Fleet(store), (await by_key(store))["large"]
    assert await fleet.blobs.fetch(run.input) == {"text": LARGE, "prefix": "# "}
    assert await fleet.output(run) == LARGE.replace("a large", "# a large")


async def test_records_of_a_peer_are_read(store: SqliteStore) -> None:
    theirs = (await by_key(store))["theirs"]
    assert await store.left_to([theirs.id]) == {theirs.id: "peer-store"}
    assert await store.usage("peer-store") == Usage(1, 300, 0)
    assert theirs.id in {change.run.id for change in await store.changes(0, 100)}


async def test_the_run_of_a_silent_device_is_an_orphan_after_its_timeout(store: SqliteStore) -> None:
    run = (await by_key(store))["running"]
    assert await store.orphans(store.clock(), 10) == []
    assert [(orphan.id, owner.device) for orphan, owner in await store.orphans(store.clock() + 90.0, 10)] == [
        (run.id, "kitchen")
    ]


async def test_the_journal_is_replayed_to_the_plan_that_version_had(store: SqliteStore) -> None:
    stored = await load(store, "nightly")
    expected = json.loads((WRITTEN / "plan.json").read_text())
    assert json.loads(json.dumps(stored.plan.to_json())) == {**expected["plan"], "tainted": []}
    assert json.loads(json.dumps(lock_to_json(stored.lock))) == expected["lock"]


async def resumed(store: Store) -> Result:
    """The plan, resumed in this process and run to its end."""

    def agent(*names: Any, **options: Any) -> DeviceAgent:
        return DeviceAgent(*names, **{**options, "host": SimHost("laptop"), "measure": dict})

    fleet = Fleet(store, by="ben", chance=random.Random(4))
    orchestrator = DurableOrchestrator(fleet, local=1, host="laptop", make_agent=agent)
    async with asyncio.timeout(PATIENCE):
        return await orchestrator.run_stored("nightly")


def check_completed(result: Result) -> None:
    nodes = result.plan.nodes
    assert {name: str(node.status) for name, node in nodes.items()} == {
        "fetch": "completed",
        "check": "completed",
        "build": "completed",
        "notify": "cancelled",
        "deploy": "completed",
        "lint": "completed",
    }
    assert [nodes[name].value for name in ("fetch", "build", "lint")] == ["fetch done", "build done", "lint done"]
    assert nodes["fetch"].attempts == nodes["check"].attempts == 1


async def test_the_plan_is_resumed_and_completes(store: SqliteStore) -> None:
    result = await resumed(store)
    check_completed(result)
    assert (await by_key(store))["plan:nightly/build/3"].status is RunStatus.COMPLETED
    assert await store.check() == []


async def backup_lines() -> AsyncIterator[Mapping[str, Any]]:
    for line in read_backup(WRITTEN / "backup.jsonl"):
        yield line


async def test_the_backup_is_restored_and_its_plan_completes() -> None:
    store = MemoryStore(started_clock())
    assert await store.load(backup_lines()) == 12
    runs = await by_key(store)
    assert runs["greeting"].output == "> hello"
    assert runs["running"].session is None, "no device of the old store owns a run of the restored one"
    assert await Fleet(store).output(runs["large"]) == LARGE.replace("a large", "# a large")
    check_completed(await resumed(store))
    assert await store.check() == []
