"""What functions and commands print on a real device is kept, with secrets masked."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asterism.core.run.run import Run
from asterism.core.run.work import Workflow
from asterism.fleet.device.agent import DeviceAgent
from asterism.fleet.device.functions import RunStopped
from asterism.fleet.fleet import Fleet
from asterism.store.memory import MemoryStore


def noisy(logger: Any, run: Any) -> str:
    print("printed in a thread")
    logger.info("attempt %d of %s", run.attempt, "it")
    run.logger.warning("careful")
    return "done"


async def silent_coroutine() -> None:
    print("with", "correct-horse-battery")


async def execute(*flows: Workflow, run_input: Any = None) -> tuple[Fleet, list[Run]]:
    fleet = Fleet(MemoryStore())
    agent = DeviceAgent(fleet, "here", slots=len(flows), monitor_every=None)
    device = asyncio.create_task(agent.run())
    await agent.joined.wait()
    runs = [await fleet.create(flow, run_input or {}) for flow in flows]
    ended = [await fleet.wait(run.id) for run in runs]
    agent.drain()
    await device
    return fleet, ended


async def test_functions_and_commands_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPLOY_TOKEN", "correct-horse-battery")
    fleet, runs = await execute(
        Workflow("thread", call=f"{__name__}:noisy"),
        Workflow("coroutine", call=f"{__name__}:silent_coroutine"),
        Workflow("command", shell='echo out "$DEPLOY_TOKEN"; echo err >&2; exit 3'),
        Workflow("quiet", shell="true"),
    )
    shown = [[(line.stream, line.text) for log in await fleet.logs(run.id) for line in log.lines] for run in runs]
    assert shown[0] == [("stdout", "printed in a thread"), ("log", "INFO attempt 1 of it"), ("log", "WARNING careful")]
    assert shown[1] == [("stdout", "with [secret]")]
    assert sorted(shown[2]) == [("stderr", "err"), ("stdout", "out [secret]")]
    assert shown[3] == []
    assert "correct-horse" not in repr(fleet.store.__dict__)
    await fleet.close()


def leaving() -> None:
    raise SystemExit("correct-horse-battery")


async def failing_coroutine(token: str) -> None:
    raise ValueError(f"token {token}")


async def needing(ticket: str) -> None: ...


async def stopped(run: Any) -> None:
    raise RunStopped("it was taken away")


@pytest.mark.parametrize("limit", [None, 60.0])
async def test_a_function_that_fails_leaves_its_traceback(monkeypatch: pytest.MonkeyPatch, limit: float | None) -> None:
    monkeypatch.setenv("DEPLOY_TOKEN", "correct-horse-battery")
    fleet, runs = await execute(
        Workflow("thread", call=f"{__name__}:leaving", timeout=limit),
        Workflow("coroutine", call=f"{__name__}:failing_coroutine", timeout=limit),
        Workflow("missing", call=f"{__name__}:needing", timeout=limit),
        Workflow("stopped", call=f"{__name__}:stopped", timeout=limit),
        run_input={"token": {"secret": "DEPLOY_TOKEN"}},
    )
    shown = ["".join(log.text for log in await fleet.logs(run.id)) for run in runs]
    assert "in leaving\n" in shown[0]
    assert "SystemExit" in shown[0].splitlines()[-1]
    assert "in failing_coroutine\n" in shown[1]
    assert shown[1].endswith("ValueError: token [secret]\n")
    assert "asterism/fleet" not in "".join(shown)
    assert shown[2:] == ["", ""]
    assert [run.error for run in runs][1] == "ValueError: token [secret]"
    assert "correct-horse" not in repr(fleet.store.__dict__)
    await fleet.close()
