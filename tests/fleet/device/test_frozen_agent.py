"""Only the agent of a device is frozen, for longer than its guard lets the command live and for less than the store
waits. The run is still the device's own when it wakes, and its command has been killed: that is a loss."""

from __future__ import annotations

import asyncio
import os
import select
import signal
from pathlib import Path

import pytest

from asterism.core.run.run import PROCESSING, REASSIGNING, TERMINAL, Run
from asterism.core.run.work import Workflow
from asterism.fleet.fleet import Fleet
from tests.forked_commands import ForkedProgram
from tests.process_scenes import PATIENCE, soon

HEARTBEAT, LEASE = 4.0, 10.0
"""The guard ends the command half a margin before the lease of the heartbeat before last. The one that the agent was
frozen in renewed it, so it is sure of the run for almost a heartbeat longer."""

DEVICE = """
import asyncio, os, signal, sys
from pathlib import Path
from asterism.fleet.device.agent import DeviceAgent
from asterism.fleet.fleet import Fleet

class Freezing:
    '''A store that freezes its own process once, between the answer to a heartbeat and whoever waits for it.'''

    def __init__(self, store, flag):
        self._store, self._flag = store, flag

    def __getattr__(self, name):
        return getattr(self._store, name)

    async def heartbeat(self, *terms):
        answer = await self._store.heartbeat(*terms)
        if self._flag.exists():
            self._flag.unlink()
            os.kill(os.getpid(), signal.SIGSTOP)
        return answer

async def main(url, flag, heartbeat):
    async with await Fleet.open(url) as opened:
        fleet = Fleet(Freezing(opened.store, Path(flag)))
        terms = {"heartbeat": float(heartbeat), "heartbeat_timeout": 30.0, "grace": 0.2, "monitor_every": None}
        await DeviceAgent(fleet, "kitchen", **terms).run()

asyncio.run(main(*sys.argv[1:]))
"""

WITHOUT_MARK = "from asterism.execution.process_guard import Guard\nGuard.overdue = lambda *_: False\n"


async def begun(url: str, fifo: Path) -> str:
    """A run whose command is under way."""
    async with await Fleet.open(url) as fleet:
        flow = Workflow(
            "hold", shell=f"echo > {fifo}; exec sleep 600 > {fifo}", heartbeat=HEARTBEAT, heartbeat_timeout=LEASE
        )
        run = await fleet.create(flow)
        return (await reaches(fleet, run.id, frozenset({PROCESSING}))).id


async def reaches(fleet: Fleet, run_id: str, statuses: frozenset[str]) -> Run:
    watch = fleet.store.watch(frozenset())
    async with asyncio.timeout(PATIENCE):
        while (run := await fleet.run(run_id)).status not in statuses:
            await watch.wait(0.05)
    return run


async def outcome(url: str, run_id: str) -> Run:
    async with await Fleet.open(url) as fleet:
        return await reaches(fleet, run_id, TERMINAL | {REASSIGNING})


def run_of_a_frozen_agent(tmp_path: Path, before: str = "") -> Run:
    """What became of the run."""
    fifo, flag = tmp_path / "alive", tmp_path / "freeze"
    os.mkfifo(fifo)
    url = f"sqlite:///{tmp_path}/fleet.db"
    device = ForkedProgram(before + DEVICE, url, str(flag), str(HEARTBEAT))
    reading = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        run_id = asyncio.run(begun(url, fifo))
        soon(lambda: select.select([reading], [], [], 0)[0] and read(reading))  # the command has opened it
        flag.touch()
        soon(lambda: not flag.exists())  # the agent is frozen
        soon(lambda: select.select([reading], [], [], 1.0)[0] and not read(reading))  # its guard has ended the command
        device.send_signal(signal.SIGCONT)
        return asyncio.run(outcome(url, run_id))
    finally:
        device.kill()
        device.wait()
        os.close(reading)


def read(reading: int) -> bytes:
    try:
        return os.read(reading, 100)
    except BlockingIOError:
        return b""


@pytest.mark.slow
@pytest.mark.long
def test_a_command_that_the_guard_ended_is_a_loss_of_its_device(tmp_path: Path) -> None:
    run = run_of_a_frozen_agent(tmp_path)
    assert (run.status, run.failures, run.losses) == ("reassigning", 0, 1)
    assert run.previous[0].reason == "timeout"
    assert "the command was killed because the device did not renew the lease" in run.previous[0].detail


@pytest.mark.long
def test_without_the_mark_of_the_guard_it_would_be_a_failure_of_the_work(tmp_path: Path) -> None:
    run = run_of_a_frozen_agent(tmp_path, WITHOUT_MARK)
    assert (run.status, run.failures, run.losses) == ("failed", 1, 0)
    assert "ended by SIGKILL" in str(run.error)
