"""Real devices that cannot do their own part: one without file descriptors, one that cannot write a file. Beside a
healthy one, whatever they take is completed all the same."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from asterism.core.run.run import Run
from asterism.core.run.work import Workflow
from asterism.fleet.fleet import Fleet
from tests.forked_commands import ForkedProgram
from tests.process_scenes import PATIENCE

RUNS = 40

DEVICE = """
import asyncio, os, resource, sys
from asterism.fleet.device.agent import DeviceAgent
from asterism.fleet.fleet import Fleet

def well():
    pass

def without_descriptors():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/dev/fd"))) + 20, hard))
    try:
        while True:
            os.dup(0)
    except OSError:
        pass

def without_room():
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

async def main(url, name, happens):
    async with await Fleet.open(url) as fleet:
        agent = DeviceAgent(
            fleet, name, slots=2, heartbeat=1.0, heartbeat_timeout=30.0, monitor_every=1.0 if name == "well" else None
        )
        living = asyncio.create_task(agent.run())
        await agent.joined.wait()
        globals()[happens]()
        print(name, flush=True)
        await living

asyncio.run(main(*sys.argv[1:]))
"""

FAILS_THE_WORK = """
import contextlib, sys
import asterism.fleet.device.agent
from asterism.core.run import circuit_breaker
for module in list(sys.modules.values()):
    if hasattr(module, "own_part"):
        module.own_part = lambda *_: contextlib.nullcontext()
circuit_breaker.MAX_QUICK_FAILURES = 10**9
"""
"""The ablation: what goes wrong in the device's own part is taken for a failure of the work, and it goes on."""


@contextlib.contextmanager
def device(url: str, name: str, happens: str, before: str = "") -> Iterator[None]:
    streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    process = ForkedProgram(before + DEVICE, url, name, happens, **streams)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{name}\n"
        yield
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


async def forty_runs(url: str) -> list[Run]:
    async with await Fleet.open(url) as fleet:
        flow = Workflow(
            "hello",
            shell="sleep 0.1; echo hello",
            heartbeat_timeout=30.0,
            heartbeat=1.0,
            backoff=0.05,
            backoff_most=0.2,
        )
        runs = [await fleet.create(flow) for _ in range(RUNS)]
        async with asyncio.timeout(PATIENCE):
            return [await fleet.wait(run.id) for run in runs]


async def notices(url: str, kind: str) -> list[str]:
    async with await Fleet.open(url) as fleet:
        return [notice.message for _, notice in await fleet.store.notices() if notice.kind == kind]


def ends(url: str, happens: str, before: str = "") -> list[Run]:
    """How forty runs end with a sick device and a healthy one."""
    with device(url, "sick", happens, before), device(url, "well", "well"):
        return asyncio.run(forty_runs(url))


def check_that_nothing_failed(url: str, runs: list[Run], words: str) -> None:
    assert {(run.status, run.device, run.failures) for run in runs} == {("completed", "well", 0)}
    lost = [assignment for run in runs for assignment in run.previous if assignment.reason == "timeout"]
    assert lost, "the sick one had its chance"
    assert {assignment.device for assignment in lost} == {"sick"}
    assert all(words in assignment.detail for assignment in lost)
    assert len(lost) <= 6, "it stops taking after a few"
    (reports,) = asyncio.run(notices(url, "suspended"))
    assert words in reports


def test_a_device_without_descriptors_fails_nothing(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/fleet.db"
    check_that_nothing_failed(url, ends(url, "without_descriptors"), "Too many open files")


@pytest.mark.long
def test_a_device_that_can_write_no_file_fails_nothing(postgres_url: str) -> None:
    check_that_nothing_failed(postgres_url, ends(postgres_url, "without_room"), "File too large")


@pytest.mark.long
def test_if_that_counted_as_a_failure_of_the_work_many_runs_would_fail(tmp_path: Path) -> None:
    runs = ends(f"sqlite:///{tmp_path}/fleet.db", "without_descriptors", FAILS_THE_WORK)
    assert sum(run.status == "failed" for run in runs) > RUNS / 4
