"""What a task costs: ours beside the hand-written executor, in one process and turn by turn; then every other peer."""

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec

from bench.graphs import Graph, chain, independent, layers
from bench.measure import Sample, timed_result
from bench.peers import PEERS, asterism_peer, bare, load
from bench.peers.apart import measure_apart

BAR = 2.0
"""Our processor time per task may be this many times that of the bare executor."""

GROWTH = 1.0
"""That ratio may grow by this factor from 1,000 to 100,000 tasks."""

SHAPES: dict[str, Graph] = {
    "10,000 independent": independent(10_000),
    "chain of 1,000": chain(1_000),
    "layers 50 × 20": layers(50, 20),
    "layers 500 × 20": layers(500, 20),
}
SMALL: dict[str, Graph] = {  # what the slow peers are given: only the cost per task counts
    "independent": independent(500),
    "chain": chain(200),
    "layers": layers(20, 20),
}


@dataclass(frozen=True)
class Versus:
    """Both executors on one graph."""

    shape: str
    tasks: int
    ours: Sample
    bare: Sample

    @property
    def ratio(self) -> float:
        return self.ours.cpu / self.bare.cpu


def versus(shape: str, graph: Graph, repeats: int) -> Versus:
    """Turn by turn, so that a slow moment of the machine hits both; the least of each counts."""
    pairs = []
    for _ in range(repeats):
        gc.collect()
        yardstick = bare.run(graph)
        gc.collect()
        pairs.append((asterism_peer.run(graph), yardstick))
    ours = Sample(len(graph), min(p[0].wall for p in pairs), min(p[0].cpu for p in pairs))
    theirs = Sample(len(graph), min(p[1].wall for p in pairs), min(p[1].cpu for p in pairs))
    return Versus(shape, len(graph), ours, theirs)


def against_bare() -> list[Versus]:
    return [versus(shape, graph, 5) for shape, graph in SHAPES.items()]


def building() -> Sample:
    """What it costs to build a plan in the first place: ``add`` per task of the largest shape."""
    graph = SHAPES["layers 500 × 20"]
    samples = []
    for _ in range(3):
        gc.collect()
        sample, plan = timed_result(len(graph), lambda: asterism_peer.build(graph, []))
        assert len(plan) == len(graph), f"the plan has {len(plan)} tasks of {len(graph)}"
        samples.append(sample)
    return min(samples, key=lambda sample: sample.cpu)


def growth() -> list[Versus]:
    """The same shapes at 1,000 and at 100,000 tasks."""
    return [
        versus("independent", independent(1_000), 9),
        versus("independent", independent(100_000), 3),
        versus("layers", layers(50, 20), 9),
        versus("layers", layers(5_000, 20), 3),
    ]


@dataclass(frozen=True)
class PeerCost:
    """A peer on the small shapes; ``samples`` is empty if it is not installed."""

    name: str
    version: str
    samples: dict[str, Sample]


def peers() -> Iterator[PeerCost]:
    for name, package in PEERS.items():
        peer = load(name)
        if find_spec(package) is None:
            yield PeerCost(peer.NAME, "not installed", {})
            continue
        samples = measure_apart(name, list(SMALL.values()), repeats=3)
        yield PeerCost(peer.NAME, peer.VERSION(), dict(zip(SMALL, samples, strict=True)))
