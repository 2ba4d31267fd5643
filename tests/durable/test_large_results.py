"""Results of a plan are whole or refused, on every path: in this process, on a device, behind a gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from asterism import Constellation, LocalDevice, Orchestrator, Task
from asterism.base.http_limits import Bodies
from asterism.durable.durable_orchestrator import DurableOrchestrator
from asterism.fleet.device.agent import DeviceAgent
from asterism.fleet.device.device_key import DeviceKey
from asterism.fleet.device.gateway_connection import GatewayAccess
from asterism.fleet.device.gateway_transport import HttpTransport, enrol
from asterism.fleet.device.outbox import MemoryOutbox
from asterism.fleet.fleet import Fleet
from asterism.orchestrator.result import Result
from asterism.server.enrolment import invite
from asterism.server.gateway_routes import GatewayRoutes
from asterism.server.request_guard import SERVER_LIMITS

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


everywhere = pytest.mark.parametrize("run", [in_memory, in_this_process, on_a_device, behind_a_gateway])


@everywhere
async def test_a_large_result_is_whole_and_stays_json(run: Any, tmp_path: Path) -> None:
    result = await run(plan(), 64 << 20, tmp_path)
    assert result["count"].value == "20000"
    assert result["big"].value == {"rows": ["x" * 100] * 20_000}


@everywhere
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
