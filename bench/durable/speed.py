"""Durable tasks per second, beside the bare database and beside other engines, all on SQLite files on the same disk.

Every engine has a process to itself for each round, with a home of its own; they take turns, so that a slow moment of
the machine hits all of them, and the best of each counts.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from bench.durable.peers import PEERS, installed, load
from bench.durable.work import graph
from bench.measure import Sample
from bench.peers.surroundings import scratch

ROOT = Path(__file__).parents[2]
SHAPES = ("wide", "chain", "layered")
ROUNDS = 3
PATIENCE = 300.0

BARS = {
    "dbos": dict.fromkeys(SHAPES, 10.0),
    "dbos_sync": dict.fromkeys(SHAPES, 10.0),
    "langgraph": dict.fromkeys(SHAPES, 4.0),
    "raw": {"wide": 0.7, "chain": 0.5, "layered": 0.7},
}
"""How many times as fast as this engine Asterism should be at least, by shape."""


@dataclass
class Speed:
    """An engine: what each round took, by shape."""

    name: str
    version: str
    settings: str
    samples: dict[str, list[Sample]] = field(default_factory=dict)

    def rate(self, shape: str) -> float:
        """Tasks per second, in the best round."""
        return 1 / min(sample.wall_per_task for sample in self.samples[shape])

    def tasks(self, shape: str) -> int:
        return self.samples[shape][0].tasks


@dataclass(frozen=True)
class Comparison:
    """By the name of the peer; the order is that of the table."""

    speeds: dict[str, Speed]
    missing: Sequence[str]
    """Engines that are not installed."""

    @property
    def others(self) -> dict[str, Speed]:
        """The durable engines that are not ours."""
        return {name: speed for name, speed in self.speeds.items() if name not in ("asterism", "raw")}


def compare(peers: Sequence[str] = tuple(PEERS), rounds: int = ROUNDS, tasks: int | None = None) -> Comparison:
    """``tasks`` is how many in place of what each engine can stand."""
    speeds: dict[str, Speed] = {}
    for name in filter(installed, peers):
        peer = load(name)
        speeds[name] = Speed(peer.NAME, peer.VERSION(), peer.SETTINGS, {shape: [] for shape in SHAPES})
    for _ in range(rounds):
        for name, speed in speeds.items():
            limit = load(name).LIMIT
            sizes = [tasks or limit[shape] for shape in SHAPES]
            for shape, sample in zip(SHAPES, measure(name, sizes), strict=True):
                speed.samples[shape].append(sample)
    return Comparison(speeds, [name for name in peers if name not in speeds])


def measure(name: str, tasks: Sequence[int]) -> list[Sample]:
    """One round of one engine, so many tasks of each shape, in a process of its own; raises with what it complained
    about."""
    with scratch() as home:
        graphs = list(zip(SHAPES, tasks, strict=True))
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.durable.peers"],
            cwd=ROOT,
            env={**os.environ, "HOME": str(home), "TMPDIR": str(home)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # so that what it started can be ended with it
        )
        with process:
            try:
                request = json.dumps({"peer": name, "graphs": graphs, "folder": str(home)})
                output, errors = process.communicate(request, PATIENCE)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        raise RuntimeError(f"{name} ended with {process.returncode}:\n{errors[-4000:]}")
    samples = [Sample(*sample) for sample in json.loads(output.splitlines()[-1])]
    sizes = [len(graph(shape, number)) for shape, number in graphs]
    assert [sample.tasks for sample in samples] == sizes, f"{name} measured {samples}, not {sizes} tasks"
    return samples
