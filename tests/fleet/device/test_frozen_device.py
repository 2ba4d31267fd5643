"""A device that is stopped with SIGSTOP cannot end the runs it has lost. Its guard ends them."""

from __future__ import annotations

import asyncio
import os
import select
import signal
from pathlib import Path

import pytest

from asterism.core.run.run import PROCESSING
from asterism.core.run.work import Workflow
from asterism.fleet.fleet import Fleet
from tests.forked_commands import ForkedProgram
from tests.process_scenes import soon

DEVICE = """
import asyncio, sys
from asterism.fleet.device.agent import DeviceAgent
from asterism.fleet.fleet import Fleet

async def main():
    async with await Fleet.open(sys.argv[1]) as fleet:
        await DeviceAgent(fleet, "kitchen", heartbeat=0.2, heartbeat_timeout=1.0, grace=0.2, monitor_every=None).run()

asyncio.run(main())
"""


LEASE = 4.0
"""Longer than a machine that is busy holds the device up before it is frozen."""


async def hold_a_run(url: str, fifo: Path) -> None:
    async with await Fleet.open(url) as fleet:
        # only the command has the pipe open
        flow = Workflow("hold", shell=f"exec sleep 600 > {fifo}", heartbeat=0.5, heartbeat_timeout=LEASE)
        run = await fleet.create(flow)
        watch = fleet.store.watch(frozenset())
        async with asyncio.timeout(300):
            while (await fleet.run(run.id)).status is not PROCESSING:
                await watch.wait(0.05)


def command_ends(tmp_path: Path, device_program: str, patience: float) -> bool:
    """Whether the command of a device ends within so many seconds after the device was frozen."""
    fifo = tmp_path / "alive"
    os.mkfifo(fifo)
    url = f"sqlite:///{tmp_path}/fleet.db"
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
    device = ForkedProgram(device_program, url, env=environment)
    reading = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        asyncio.run(hold_a_run(url, fifo))
        wait_for_writer(reading)
        device.send_signal(signal.SIGSTOP)
        ready, _, _ = select.select([reading], [], [], patience)
        assert device.poll() is None, "the device itself is still there, frozen"
        return bool(ready)
    finally:
        device.kill()
        device.wait()
        os.close(reading)


def wait_for_writer(reading: int) -> None:
    """A pipe without a writer reads as ended."""

    def written_to() -> bool:
        try:
            return os.read(reading, 1) != b""
        except BlockingIOError:
            return True

    soon(written_to)


@pytest.mark.slow
def test_the_command_of_a_frozen_device_ends_when_its_lease_does(tmp_path: Path) -> None:
    assert command_ends(tmp_path, DEVICE, 60.0), "the command went on, long after its device had lost the run"


@pytest.mark.long
def test_without_its_guard_it_would_go_on(tmp_path: Path) -> None:
    forgetful = "from asterism.execution.process_guard import Guard\nGuard.allow = lambda *_: None\n" + DEVICE
    assert not command_ends(tmp_path, forgetful, 1.5 * LEASE)
