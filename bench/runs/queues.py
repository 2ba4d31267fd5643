"""PostgreSQL, eight workers: jobs per second beside other queues, on the same server in the same run.

Every queue has a process to itself for each measurement, and a new database; they take turns, so that a slow moment of
the machine hits all of them.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from bench.peers.surroundings import scratch
from bench.runs.peers import PEERS, Timing, load
from bench.runs.server import ask, database, server, version
from tests.store.postgres_server import Server

ROOT = Path(__file__).parents[2]
WORKERS = 8
BATCHES = (1, 10, 100)
JOBS = {1: 2_000, 10: 8_000, 100: 16_000}
"""How many jobs are measured, by the size of the batch; only the time for each counts."""

FEWER = {"procrastinate": 1_500}
"""It takes as long for each in batches as without: that many are enough."""

PUSHED = (3_000, 1_000)
"""Jobs that their creator assigns, and the slots of each device: there is always room for all."""

PATIENCE = 120.0


@dataclass
class Result:
    """A queue at one size of batch: its best time of each kind, for so many jobs."""

    name: str
    version: str
    settings: str
    batch: int
    jobs: int
    timings: list[Timing] = field(default_factory=list)

    @property
    def worked(self) -> float:
        """Jobs taken and finished per second."""
        return self.jobs / min(timing.worked for timing in self.timings)

    @property
    def created(self) -> float:
        """Jobs put into the queue per second."""
        return self.jobs / min(timing.created for timing in self.timings)

    @property
    def cpu(self) -> float:
        """Processor seconds of the workers' process for each job."""
        return min(timing.cpu for timing in self.timings) / self.jobs

    @property
    def whole(self) -> float:
        """Jobs per second, one thing after the other."""
        return self.jobs / min(timing.created + timing.worked for timing in self.timings)


@dataclass(frozen=True)
class Comparison:
    server: str
    results: Sequence[Result]
    missing: Sequence[str]
    """Queues that are not installed."""

    pushed: Result
    """Asterism, with runs assigned by their creator while the devices work."""

    def of(self, batch: int) -> list[Result]:
        return [result for result in self.results if result.batch == batch]


def compare(
    peers: Sequence[str] = tuple(PEERS),
    batches: Sequence[int] = BATCHES,
    rounds: int = 3,
    jobs: int | None = None,
) -> Comparison:
    """``jobs`` is how many in place of JOBS."""
    present = [name for name in peers if find_spec(PEERS[name]) is not None]
    results: dict[tuple[str, int], Result] = {}
    for batch in batches:
        for name in present:
            peer = load(name)
            number = jobs or min(JOBS[batch], FEWER.get(name, JOBS[batch]))
            results[name, batch] = Result(peer.NAME, peer.VERSION(), peer.SETTINGS, batch, number)
    ours = load("asterism_pushed")
    pushed = Result(ours.NAME, ours.VERSION(), ours.SETTINGS, PUSHED[1], jobs or PUSHED[0])
    with server() as running:
        for _ in range(rounds):
            for (name, batch), result in results.items():
                result.timings.append(measure(running, name, result.jobs, batch))
            pushed.timings.append(measure(running, "asterism_pushed", pushed.jobs, pushed.batch))
        shown = version(running)
    return Comparison(shown, list(results.values()), [name for name in peers if name not in present], pushed)


def measure(running: Server, name: str, jobs: int, batch: int, workers: int = WORKERS) -> Timing:
    """Let one queue work in a process of its own; raises with what it complained about, and unless its own tables say
    that every job was done once."""
    with database(running) as url, scratch() as home:
        request = {"peer": name, "url": url, "jobs": jobs, "batch": batch, "workers": workers}
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.runs.peers"],
            cwd=ROOT,
            env={**os.environ, "HOME": str(home), "TMPDIR": str(home)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        with process:
            try:
                output, errors = process.communicate(json.dumps(request), PATIENCE)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        if process.returncode:
            raise RuntimeError(f"{name} ended with {process.returncode}:\n{errors[-4000:]}")
        done = ask(running, url, load(name).DONE)
    assert done == f"{jobs}|0", f"{name}: of {jobs} jobs its tables say (done, anything else): {done}"
    return Timing(*json.loads(output.splitlines()[-1]))
