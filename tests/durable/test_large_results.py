"""Results of a plan are whole or refused, on every path: in this process, on a device, behind a gateway."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from asterism import Constellation, LocalDevice, Orchestrator, Task
from asterism.base.http_limits import Bodies
from asterism.core.plan.journal import UnreadableJournal
from asterism.durable import compaction
from asterism.durable.durable_orchestrator import DurableOrchestrator
from asterism.durable.journal_store import load, read_head
from asterism.durable.plan_history import PlanFollower, Position
from asterism.fleet.device.agent import DeviceAgent
from asterism.fleet.fleet import Fleet
from asterism.fleet.retention import prune
from asterism.gateway.device_key import DeviceKey
from asterism.gateway.enrolment import invite
from asterism.gateway.gateway_connection import GatewayAccess
from asterism.gateway.gateway_transport import HttpTransport, enrol
from asterism.orchestrator.result import Result
from asterism.server.gateway_routes import GatewayRoutes
from asterism.server.request_guard import SERVER_LIMITS
from asterism.store.memory import MemoryStore
from asterism.store.protocol import BLOB_USES, Store
from tests.gateway.memory_outbox import MemoryOutbox

PRINT_ROWS = "python3 -c \"import json; print(json.dumps({'rows': ['x'*100]*20000}))\""
"""A command whose output has 2 MB."""


def plan() -> Constellation:
    """The large result is handed on whole, to a command that reads a part of it, and to one that counts it."""
    made = Constellation("large")
    made.add(Task("big", shell=PRINT_ROWS))
    made.add(Task("count", shell="echo $rows", inputs={"rows": {"from": "big", "select": "size(result.rows)"}}), "big")
    return made


async def in_memory(made: Constellation, most: int, folder: Path) -> Result:
    return await Orchestrator([LocalDevice("here", result_limit=most)]).run(made)


async def in_this_process(made: Constellation, most: int, folder: Path) -> Result:
    async with await Fleet.open(f"sqlite:///{folder}/fleet.db") as fleet:
        await fleet.configure(most=most)
        return await DurableOrchestrator(fleet, local=2).run(made)


async def on_a_device(made: Constellation, most: int, folder: Path) -> Result:
    url = f"sqlite:///{folder}/fleet.db"
    async with await Fleet.open(url) as fleet, await Fleet.open(url) as other:
        await fleet.configure(most=most)
        async with working(DeviceAgent(other, "lab-1", slots=2)):
            return await DurableOrchestrator(fleet, local=0).run(made)


async def behind_a_gateway(made: Constellation, most: int, folder: Path) -> Result:
    async with await Fleet.open(f"sqlite:///{folder}/fleet.db") as fleet:
        await fleet.configure(most=most)
        routes = GatewayRoutes(fleet, Bodies(SERVER_LIMITS))
        app = httpx.ASGITransport(Starlette(routes=routes.routes))
        transport, key = HttpTransport("http://server", inner=app), DeviceKey.new()
        await enrol(transport, key, "lab-1", await invite(fleet.store, name="lab-1"))
        async with working(DeviceAgent(GatewayAccess(transport, key, MemoryOutbox()), "lab-1", slots=2)):
            result = await DurableOrchestrator(fleet, local=0).run(made)
        await routes.close()
        return result


@asynccontextmanager
async def working(agent: DeviceAgent) -> AsyncIterator[None]:
    task = asyncio.create_task(agent.run())
    await agent.joined.wait()
    yield
    agent.drain()
    await task


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


everywhere = pytest.mark.parametrize(
    "run", [in_memory, pytest.param(in_this_process, marks=pytest.mark.long), on_a_device, behind_a_gateway]
)


@everywhere
async def test_a_large_result_is_whole_and_stays_json(run: Any, tmp_path: Path) -> None:
    result = await run(plan(), 64 << 20, tmp_path)
    assert result["count"].value == "20000"
    assert result["big"].value == ROWS


@everywhere
@pytest.mark.long
async def test_a_result_above_the_limit_fails_with_size_and_limit(run: Any, tmp_path: Path) -> None:
    result = await run(plan(), 1_000_000, tmp_path)
    assert result["big"].status == "failed"
    words = str(result["big"].error)
    assert "the output of the command has 2,080,011 bytes, and the limit is 1,000,000: write it to a file" in words
    assert ("asterism run --result-limit SIZE" if run is in_memory else "asterism fleet set --most SIZE") in words
    assert result["count"].status == "cancelled"


@everywhere
async def test_output_that_is_not_text_fails_and_is_not_changed(run: Any, tmp_path: Path) -> None:
    made = Constellation("bytes")
    made.add(Task("up", shell=r"printf 'h\303\251llo\n'; printf 'caf\351 42\n'"))
    made.add(Task("down", shell="echo $up", inputs={"up": {"from": "up"}}), "up")
    made.add(Task("encoded", shell=r"printf 'caf\351' | base64"))
    result = await run(made, 64 << 20, tmp_path)
    assert result["up"].status == "failed"
    assert (
        "the output of the command is not valid UTF-8 (byte 0xe9 at offset 10): write it to a file and pass on the "
        "name of the file, or encode it as text, for example with base64"
    ) in str(result["up"].error)
    assert result["down"].status == "cancelled"
    assert result["encoded"].value == "Y2Fm6Q=="


ROWS = {"rows": ["x" * 100] * 20_000}
FAR = 1e12


def large_plan() -> Constellation:
    """``small`` uses a part of the result of ``big`` in a condition, so that a replay needs the result, too."""
    made = Constellation("large")
    made.add(Task("big", shell=PRINT_ROWS))
    made.add(Task("small", shell="echo small"))
    made.connect("big", "small", when="size(result.rows) == 20000")
    return made


async def journal_size(store: Store) -> int:
    """How many bytes of JSON all registers of plans have, with archive and snapshots, without logs."""
    registers = await store.registers("")
    return sum(len(json.dumps(register.value)) for register in registers if not register.key.startswith("log"))


async def test_the_journal_refers_to_a_large_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after a compaction, which writes a snapshot and archives the records. Loading, a retry and the history read
    the result from its blob."""
    async with await Fleet.open(f"sqlite:///{tmp_path}/fleet.db") as fleet:
        result = await DurableOrchestrator(fleet, local=2).run(large_plan())
        assert result["small"].value == "small"
        assert await journal_size(fleet.store) < 50_000
        assert (await load(fleet.store, "large")).plan.node("big").value == ROWS
        monkeypatch.setattr(compaction, "LONG_JOURNAL", 1)
        monkeypatch.setattr(compaction, "STEPS_PER_TASK", 0)
        again = await DurableOrchestrator(fleet, local=2).retry("large", from_tasks=["small"])
        assert again["big"].value == ROWS
        assert (await read_head(fleet.store, "large"))[0].snapshot is not None
        assert await journal_size(fleet.store) < 50_000
        loaded = await load(fleet.store, "large")
        assert loaded.plan.node("big").value == ROWS
        assert [entry.what for entry in loaded.plan.story("small")].count("completed") == 2
        follower = await PlanFollower.open(fleet.store, "large", Position(loaded.head.began))  # reads the archive
        assert [event.kind for event in await follower.read()].count("task") > 2
        assert follower.plan.node("big").value == ROWS
        assert await fleet.store.check() == []


async def test_a_large_result_is_kept_as_long_as_its_plan_and_restored_with_it(tmp_path: Path) -> None:
    store = MemoryStore()
    async with Fleet(store) as fleet:
        await DurableOrchestrator(fleet, local=2).run(large_plan())
        assert await store.prune(FAR, 10, blobs_before=FAR) == 0
        copy = MemoryStore()
        await copy.load(store.dump())
        for engine in (store, copy):
            assert (await load(engine, "large")).plan.node("big").value == ROWS
            assert await prune(engine, FAR, 10) == 0
            assert await engine.registers(BLOB_USES) == []
            await engine.prune(FAR, 10, blobs_before=FAR)
            assert engine._blobs == {}


async def test_a_lost_blob_of_a_result_is_named() -> None:
    async with Fleet(MemoryStore()) as fleet:
        await DurableOrchestrator(fleet, local=2).run(large_plan())
        fleet.store._blobs.clear()  # type: ignore[attr-defined]
        with pytest.raises(UnreadableJournal, match=r"the blob \w{64} with the result of task 'big' is missing"):
            await load(fleet.store, "large")
