"""Runs per second of eight devices through a gateway, beside eight devices on the same kind of store, in turn.

Each device is a process with as many slots as are given. With a gateway the server is a process, too: it is the only
one that opens the file. Runs do nothing and are created when all devices have joined; the time is from then to the last
end.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from asterism.core.run.work import Workflow
from asterism.fleet.fleet import Fleet
from asterism.gateway.enrolment import invite
from bench import loop
from bench.child_process import child_process, first_line
from bench.proof import check_runs
from bench.runs.work import NOTHING

DEVICES = 8
BAR = 0.6
"""The share of the runs per second of devices on the store, at least."""


@dataclass(frozen=True)
class Sizes:
    runs: int = 8000
    slots: int = 50
    rounds: int = 3


@dataclass(frozen=True)
class Measured:
    """Runs per second, the best of the rounds."""

    store: float
    gateway: float

    @property
    def share(self) -> float:
        return self.gateway / self.store


FULL = Sizes()


def measure(sizes: Sizes = FULL) -> Measured:
    stores, gateways = [], []
    for _ in range(sizes.rounds):
        with tempfile.TemporaryDirectory() as folder:
            stores.append(asyncio.run(_round(Path(folder), sizes, through_gateway=False)))
        with tempfile.TemporaryDirectory() as folder:
            gateways.append(asyncio.run(_round(Path(folder), sizes, through_gateway=True)))
    return Measured(max(stores), max(gateways))


async def _round(folder: Path, sizes: Sizes, *, through_gateway: bool) -> float:
    url = f"sqlite:///{folder}/fleet.db"
    async with await Fleet.open(url) as fleet:
        flow = await fleet.workflows.add(Workflow("nothing", call=NOTHING))
        codes = {f"device-{number}": await invite(fleet.store, name="*") for number in range(DEVICES)}
        with contextlib.ExitStack() as stack:
            place = stack.enter_context(gateway_server(folder, url)) if through_gateway else url
            devices = [
                stack.enter_context(
                    process_in(folder, name, "bench.runs.gateway_device", place, name, str(sizes.slots), code)
                )
                for name, code in codes.items()
            ]
            for device in devices:
                assert await asyncio.to_thread(first_line, device) == "joined"
            began = time.perf_counter()
            runs = await fleet.create_many(flow, ({"number": number} for number in range(sizes.runs)))
            for run in reversed(runs):  # one look finds most of them ended
                await fleet.wait(run.id)
            rate = sizes.runs / (time.perf_counter() - began)
            await check_runs(fleet.store, sizes.runs)
            return rate


@contextlib.contextmanager
def gateway_server(folder: Path, store: str) -> Iterator[str]:
    with process_in(folder, "server", "bench.runs.gateway_server", store) as process:
        yield first_line(process)


def process_in(folder: Path, name: str, *words: str) -> AbstractContextManager["subprocess.Popen[bytes]"]:
    """A process with a folder of its own for what it keeps."""
    return child_process([sys.executable, "-m", *words], env={**os.environ, "XDG_STATE_HOME": str(folder / name)})


def page(measured: Measured) -> str:
    verdict = "reached" if measured.share >= BAR else "missed"
    return "\n".join(
        [
            "## Devices without a store",
            "",
            f"{DEVICES} device processes execute runs that do nothing, {loop.WORDS}: on a SQLite file that they share,",
            "and through one server that has the file (HTTP on this machine, without TLS).",
            "",
            "| devices | runs per second |",
            "| --- | ---: |",
            f"| on the store | {measured.store:,.0f} |",
            f"| through the gateway | {measured.gateway:,.0f} |",
            "",
            f"That is {measured.share:.0%}; the bar of {BAR:.0%} is {verdict}.",
            "",
        ]
    )


if __name__ == "__main__":
    print(page(measure(Sizes(*map(int, sys.argv[1:])))))
