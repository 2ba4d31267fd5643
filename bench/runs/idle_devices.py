"""Many devices without work on one server: its processor time and memory for each of them.

The server is a process, and so are the devices, many in each of a few processes: real agents, each with its own key,
session and two connections. They join, and then they wait for work and send heartbeats for a minute, which is measured.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from asterism.fleet.fleet import Fleet
from asterism.fleet.joinable_devices import DEVICES as ENROLLED
from asterism.gateway.device_key import DeviceKey
from asterism.store.protocol import PutRegister
from bench.child_process import first_line
from bench.runs.gateway import process_in

PER_PROCESS = 2500
COMMIT = 500
HEARTBEAT = 30
"""Seconds between two heartbeats of a device."""


@dataclass(frozen=True)
class Sizes:
    devices: int = 5000
    seconds: int = 60


@dataclass(frozen=True)
class Measured:
    """``processor`` and ``memory`` are those of the server for all devices: the share of one processor, and bytes that
    it has more than before the first of them. So many devices sent ``heartbeats`` meanwhile."""

    devices: int
    seconds: float
    processor: float
    memory: float
    heartbeats: int


FULL = Sizes()


def measure(sizes: Sizes = FULL) -> Measured:
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_measure(Path(folder), sizes))


async def _measure(folder: Path, sizes: Sizes) -> Measured:
    url = f"sqlite:///{folder}/fleet.db"
    async with await Fleet.open(url) as fleet:
        names = [f"device-{number}" for number in range(sizes.devices)]
        keys = await _enrolled(fleet, names)
        (folder / "keys").write_text("".join(f"{name} {key.to_text()}\n" for name, key in keys.items()))
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(_server_process(folder, url))
            empty = _memory(server.pid)
            place = (folder / "url").read_text()
            crowds = [
                stack.enter_context(
                    process_in(
                        folder, f"crowd-{first}", "bench.runs.idle_crowd", place, str(folder / "keys"), str(first)
                    )
                )
                for first in range(0, sizes.devices, PER_PROCESS)
            ]
            for crowd in crowds:
                assert await asyncio.to_thread(first_line, crowd) == "joined"
            return await _watch(fleet, server.pid, empty, sizes)


async def _watch(fleet: Fleet, server: int, empty: float, sizes: Sizes) -> Measured:
    began, used = time.perf_counter(), _processor(server)
    before = await _reachable(fleet)
    assert len(before) == sizes.devices, f"{len(before)} of {sizes.devices} devices have joined"
    await asyncio.sleep(sizes.seconds)
    took, used, memory = time.perf_counter() - began, _processor(server) - used, _memory(server) - empty
    after = await _reachable(fleet)
    beats = sum(beat_at != before.get(session) for session, beat_at in after.items())
    check(len(after), beats, sizes)
    return Measured(sizes.devices, took, used / took, memory, beats)


async def _reachable(fleet: Fleet) -> dict[str, float]:
    """The last heartbeat of each device that is there, by its session."""
    now = fleet.store.clock()
    return {
        session.id: session.beat_at
        for session in await fleet.store.sessions()
        if session.slots and session.reachable(now)
    }


def check(left: int, beats: int, sizes: Sizes) -> None:
    """Raise AssertionError unless all devices are still there, and as many heartbeats came as should."""
    assert left == sizes.devices, f"{sizes.devices - left} of {sizes.devices} devices were lost"
    if sizes.seconds >= 2 * HEARTBEAT:
        assert beats == sizes.devices, f"{beats} of {sizes.devices} devices sent a heartbeat"


async def _enrolled(fleet: Fleet, names: list[str]) -> dict[str, DeviceKey]:
    """Devices as their enrolment leaves them, many in one commit."""
    keys = {name: DeviceKey.new() for name in names}
    now = fleet.store.clock()
    for first in range(0, len(names), COMMIT):
        await fleet.store.commit(
            [
                PutRegister(
                    f"{ENROLLED}{name}",
                    {"key": keys[name].public, "can": None, "enrolled_at": now, "revoked_at": None},
                    None,
                )
                for name in names[first : first + COMMIT]
            ]
        )
    return keys


@contextlib.contextmanager
def _server_process(folder: Path, store: str) -> Iterator["subprocess.Popen[bytes]"]:
    with process_in(folder, "server", "bench.runs.gateway_server", store) as process:
        (folder / "url").write_text(first_line(process))
        yield process


def _processor(pid: int) -> float:
    """The processor time of a process so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory(pid: int) -> float:
    """The memory of a process, in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def page(measured: Measured) -> str:
    each = measured.devices
    return "\n".join(
        [
            f"{each:,} devices without work on one server process, for {measured.seconds:.0f} s: real agents, which",
            f"wait for work in one connection each and send a heartbeat every {HEARTBEAT} s in another (HTTP on this",
            "machine, without TLS). Processor and memory are those of the server. No device was lost: otherwise there",
            "would be no figure.",
            "",
            "| what | all | each device |",
            "| --- | ---: | ---: |",
            f"| processor | {measured.processor:.0%} of one | {measured.processor / each * 1e6:,.0f} µs per second |",
            f"| memory | {measured.memory / 1e6:,.0f} MB | {measured.memory / each / 1e3:,.0f} kB |",
            f"| devices that sent a heartbeat meanwhile | {measured.heartbeats:,} | |",
            "",
        ]
    )


if __name__ == "__main__":
    print(page(measure(Sizes(*map(int, sys.argv[1:])))))
