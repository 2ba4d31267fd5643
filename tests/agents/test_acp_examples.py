"""The example agents of the official ACP SDKs as devices: answered, killed, hanging, and asking for forbidden things.

They know nothing of Asterism: what they say and ask for is what their authors think an agent does.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asterism import Constellation, DurableOrchestrator, Fleet, Task
from asterism.agents.acp_executor import AcpAgent, _Client
from asterism.agents.agent_prompt import AgentFailed
from asterism.core.run.work import Workflow
from asterism.fleet.device.executor import DeviceExecutor
from asterism.fleet.policy.device_policy import DevicePolicy, Rules
from asterism.models.judged_actions import JudgedActions
from tests.agents.acp_examples import MISSING, PYTHON_AGENT, TYPESCRIPT_AGENT
from tests.agents.test_agent_devices import joined
from tests.fleet.device.device_scenes import Reports
from tests.process_scenes import PATIENCE, alive

pytestmark = [
    pytest.mark.skipif(not PYTHON_AGENT.exists() or not TYPESCRIPT_AGENT.exists(), reason=MISSING),
    pytest.mark.skipif(shutil.which("node") is None, reason="node is missing, which runs the agent of TypeScript"),
]

PYTHON = [sys.executable, "-P", str(PYTHON_AGENT)]
TYPESCRIPT = ["node", str(TYPESCRIPT_AGENT)]
BOTH = pytest.mark.parametrize("argv", [PYTHON, TYPESCRIPT], ids=["python", "typescript"])


def edits(folder: Path) -> DevicePolicy:
    """Allows what the agent of TypeScript asks for; its own directory is another."""
    return DevicePolicy(Rules(permissions=("edit",), directories=(str(folder), "/home/user/project")))


class Scene:
    """A device with an example agent, whose process a test can send a signal to."""

    def __init__(self, argv: list[str], folder: Path, policy: DevicePolicy | None = None, **options: Any) -> None:
        self.reports, self._pid = Reports(), folder / "pid"
        self.argv = ["sh", "-c", 'echo $$ > "$0"; exec "$@"', str(self._pid), *argv]
        agent = AcpAgent(self.argv, **{"start_timeout": PATIENCE, **options})
        policy = policy or DevicePolicy.open()
        self.device = DeviceExecutor(policy, device="coder", session="s1", grace=0.2, agent=agent)

    @property
    def pid(self) -> int:
        return int(self._pid.read_text())

    async def ask(self, **fields: Any) -> Any:
        flow = Workflow("w", agent={"description": "Tidy the project"}, **fields)
        try:
            async with asyncio.timeout(PATIENCE):
                return await self.device.execute(self.reports.work(flow))
        finally:
            self.device.close()

    @property
    def output(self) -> str:
        return self.reports.output[-1]


@pytest.fixture
def when_it_has_the_prompt(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Do something when the session is open and the prompt is about to be sent: the agent cannot have answered."""

    def arrange(action: Callable[[], None]) -> None:
        begin = _Client.begin_turn
        monkeypatch.setattr(_Client, "begin_turn", lambda client: (begin(client), action()))

    return arrange


@pytest.fixture
def when_it_asks(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Do something when the agent waits for the answer to its request."""

    def arrange(action: Callable[[], None]) -> None:
        permit = JudgedActions.permit
        monkeypatch.setattr(JudgedActions, "permit", lambda *arguments: (action(), permit(*arguments))[1])

    return arrange


@pytest.mark.long
async def test_the_prompt_is_answered(tmp_path: Path) -> None:
    scene = Scene(PYTHON, tmp_path)
    answer = await scene.ask()
    assert answer.startswith("Client sent:")
    assert "Tidy the project" in answer
    assert not alive(scene.pid)


async def test_a_request_is_refused_without_a_device_policy(tmp_path: Path) -> None:
    scene = Scene(TYPESCRIPT, tmp_path)
    assert "I'll skip the configuration update" in await scene.ask()
    assert "refused: edit Modifying critical configuration file" in scene.output
    assert "allowed: " not in scene.output


@pytest.mark.long
async def test_a_request_is_allowed_by_the_device_policy(tmp_path: Path) -> None:
    scene = Scene(TYPESCRIPT, tmp_path, edits(tmp_path))
    assert "I've successfully updated the configuration" in await scene.ask()
    assert "allowed: edit Modifying critical configuration file" in scene.output


@pytest.mark.long
async def test_an_agent_killed_before_it_answers_fails_the_run(tmp_path: Path, when_it_has_the_prompt: Any) -> None:
    scene = Scene(PYTHON, tmp_path)
    when_it_has_the_prompt(lambda: os.kill(scene.pid, signal.SIGKILL))
    with pytest.raises(AgentFailed, match="ended before its work was done: the command was ended by SIGKILL"):
        await scene.ask()


@pytest.mark.long
async def test_an_agent_killed_while_it_asks_fails_the_run(tmp_path: Path, when_it_asks: Any) -> None:
    scene = Scene(TYPESCRIPT, tmp_path, edits(tmp_path))
    when_it_asks(lambda: os.kill(scene.pid, signal.SIGKILL))
    with pytest.raises(AgentFailed, match="ended before its work was done: the command was ended by SIGKILL"):
        await scene.ask()


@pytest.mark.long
@BOTH
async def test_an_agent_that_hangs_is_stopped(tmp_path: Path, argv: list[str], when_it_has_the_prompt: Any) -> None:
    scene = Scene(argv, tmp_path, silence=0.3)
    when_it_has_the_prompt(lambda: os.kill(scene.pid, signal.SIGSTOP))
    with pytest.raises(AgentFailed, match=r"the agent said nothing for 0\.3 s"):
        await scene.ask()
    assert not alive(scene.pid)


@pytest.mark.long
@BOTH
async def test_a_plan_whose_agent_is_killed_and_hangs_ends_explained(
    tmp_path: Path, argv: list[str], when_it_has_the_prompt: Any
) -> None:
    """The first attempt is killed, the second hangs, the third answers; what it asks for is refused."""
    scene, signals = Scene(argv, tmp_path), iter([signal.SIGKILL, signal.SIGSTOP])
    agent = AcpAgent(scene.argv)

    def disturb() -> None:
        number = next(signals, None)
        agent._silence = 0.3 if number == signal.SIGSTOP else PATIENCE
        if number is not None:
            os.kill(scene.pid, number)

    when_it_has_the_prompt(disturb)
    async with (
        asyncio.timeout(PATIENCE),
        await Fleet.open(f"sqlite:///{tmp_path}/fleet.db") as fleet,
        joined(fleet, "coder", agent, grace=0.2),
    ):
        plan = Constellation("story")
        plan.add(Task("ask", agent={"description": "Tidy the project"}, retries=2, backoff=0))
        plan.add(Task("after", shell="echo done"), after="ask")
        result = await DurableOrchestrator(fleet).run(plan)
        assert result.exit_code == 0
        assert result["ask"].attempts == 3
        assert ("Client sent:" if argv is PYTHON else "I'll skip") in result.values["ask"]
        [run] = [run for run in await fleet.runs() if run.previous]
        killed, hung = (ended.detail for ended in run.previous)
        assert "ended by SIGKILL" in killed
        assert "said nothing for 0.3 s" in hung
