"""Devices with an agent in a fleet: who gets the work, and plans whose tasks are done by agents."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from asterism import Constellation, DeviceAgent, DurableOrchestrator, Fleet, Task, Workflow
from asterism.agents.acp_executor import AcpAgent
from asterism.core.errors import AsterismError
from asterism.fleet.device.agent_work import AgentRunner
from tests.agents.a2a_server import A2aServer
from tests.agents.test_acp_executor import PLAIN
from tests.cli.command_scenes import Scene
from tests.process_scenes import PATIENCE, ended


@contextlib.asynccontextmanager
async def joined(
    fleet: Fleet, name: str, agent: AgentRunner | None = None, *, grace: float = 5.0
) -> AsyncIterator[DeviceAgent]:
    device = DeviceAgent(fleet, name, agent=agent, monitor_every=0.05, grace=grace)
    working = asyncio.create_task(device.run())
    try:
        await device.joined.wait()
        yield device
    finally:
        device.drain(hand_back=True)
        await working


async def test_work_for_an_agent_goes_to_a_device_that_has_one(tmp_path: Path) -> None:
    async with (
        asyncio.timeout(PATIENCE),
        await Fleet.open(f"sqlite:///{tmp_path}/fleet.db") as fleet,
        joined(fleet, "plain"),
        joined(fleet, "coder", AcpAgent(PLAIN)) as coder,
    ):
        assert coder.session.can == {"agent"}
        assert coder.session.profile["labels"]["agent-protocol"] == "acp"
        flow = Workflow("ask", agent={"description": json.dumps([{"say": "hello"}])})
        run = await fleet.wait((await fleet.create(flow)).id)
        assert (run.device, run.output) == ("coder", "hello")


async def test_a_device_joins_with_the_url_of_an_agent(tmp_path: Path) -> None:
    """By command, as a process."""
    scene = Scene(tmp_path)
    async with asyncio.timeout(PATIENCE), A2aServer() as server, await Fleet.open(scene.url) as fleet:
        with scene.process("device", "join", "helper", "--agent", server.url) as process:
            steps = json.dumps([{"text": "hello"}, {"end": "COMPLETED"}])
            run = await fleet.wait((await fleet.create(Workflow("ask", agent={"description": steps}))).id)
            assert (run.device, run.output) == ("helper", "hello")
            [device] = await fleet.devices()
            assert device.can == {"agent", "skill:summary"}
            assert device.profile["labels"]["agent-protocol"] == "a2a"
            process.terminate()
            assert (await asyncio.to_thread(ended, process))[0] == 0


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.long)])
async def test_an_agent_that_is_killed_is_tried_again_and_the_plan_ends(tmp_path: Path, kills: int) -> None:
    """Each execution but the last is killed with its first, second or third message."""
    tries = tmp_path / "tries"
    tries.touch()
    line = f"""
    n=$(wc -l < {tries}); echo x >> {tries}
    case $((n % 3)) in 0) k=initialize;; 1) k=session/new;; 2) k=session/prompt;; esac
    [ $n -lt {kills} ] && export AGENT_KILL=$k
    exec "$@"
    """
    async with (
        asyncio.timeout(PATIENCE),
        await Fleet.open(f"sqlite:///{tmp_path}/fleet.db") as fleet,
        joined(fleet, "coder", AcpAgent(["sh", "-c", line, "sh", *PLAIN])),
    ):
        plan = Constellation("story")
        plan.add(Task("log", shell="echo 'error in line 7'"))
        steps = json.dumps([{"repeat_prompt": 1}])
        ask = Task("ask", agent={"description": steps}, inputs={"log": {"from": "log"}}, retries=kills, backoff=0)
        plan.add(ask, after="log")
        result = await DurableOrchestrator(fleet).run(plan)
        assert result.exit_code == 0
        assert "error in line 7" in result.values["ask"]
        assert result["ask"].attempts == kills + 1


async def test_a_place_that_is_no_agent_is_refused() -> None:
    for place, why in (("no-such-command", "there is no command 'no-such-command'"), ("'x", "is not valid")):
        with pytest.raises(AsterismError, match=why):
            await AcpAgent.connect(place)
    agent = await AcpAgent.connect(f"{sys.executable} agent.py")
    assert isinstance(agent, AcpAgent)
    assert agent.argv == [sys.executable, "agent.py"]
