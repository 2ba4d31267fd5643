"""Makespan under editing, in virtual time, so that it is exact: three policies, wave by wave, and the lower bound."""

import asyncio
import random
from dataclasses import dataclass
from typing import Any

from asterism import Constellation, EditBatch, LocalDevice, Orchestrator, Task, Work, edits
from asterism.testing.virtual_time import run
from bench.graphs import Graph, layers, waves

POLICIES = ("global", "scoped", "speculative")
LATENCIES = (0.5, 2.0, 5.0)
DEVICES = (5, 20)
PLANS = 60
CHANGES = {"nothing": 0.0, "one in ten": 0.1}
BARS = {"nothing": 1.25, "one in ten": 1.4}
"""What ``speculative`` may take, as a multiple of the lower bound."""

CLAIM = 0.30
"""The cut against edit-then-execute that the origin of the design claims."""


@dataclass(frozen=True)
class Cell:
    """Mean makespans over the lower bound, for one edit latency and number of devices."""

    changes: str
    latency: float
    devices: int
    waves: float
    policies: dict[str, float]

    def cut(self, policy: str) -> float:
        """How much of the wave-by-wave makespan the policy saves."""
        return 1.0 - self.policies[policy] / self.waves


class Scene:
    """One random plan with its durations, and an editor that replaces a task now and then."""

    def __init__(self, seed: int, latency: float, change: float) -> None:
        self.graph: Graph = layers(8, 6, 3, seed)
        self.random = random.Random(seed)
        self.latency, self.change = latency, change
        self.durations = [self._duration() for _ in self.graph]
        self.replaced = 0
        self.worked: list[str] = []

    def _duration(self) -> float:
        return max(0.5, self.random.gauss(3.5, 1.0))

    def plan(self) -> Constellation:
        plan = Constellation("makespan")
        for task, parents in enumerate(self.graph):
            seconds = self.durations[task]
            plan.add(
                Task(str(task), revocable=True, estimate=seconds, data={"seconds": seconds}), after=map(str, parents)
            )
        return plan

    async def work(self, work: Work) -> None:
        await asyncio.sleep(work.task.data["seconds"])
        self.worked.append(work.task.id)

    async def edit(self, view: Any, events: Any) -> Any:
        await asyncio.sleep(self.latency)
        answer = self._replace(view, self.random.choice(events)) if self.random.random() < self.change else []
        return EditBatch(tuple(answer), base_version=view.version)  # it has decided on what it sees now

    def _replace(self, view: Any, event: Any) -> list[Any]:
        """Put another task in the place of one that is about to run below the end."""
        if not hasattr(event, "task_id") or event.task_id not in view:
            return []
        below = [child for child in view[event.task_id].dependents if child in view.modifiable()]
        if not below:
            return []
        old = view[self.random.choice(below)]
        self.replaced += 1
        seconds = self._duration()
        new = Task(f"new-{self.replaced}", revocable=True, estimate=seconds, data={"seconds": seconds})
        return [
            edits.AddTask(new),
            *(edits.AddDependency(d.source, new.id, d.on) for d in old.dependencies),
            *(edits.RemoveDependency(old.id, child) for child in old.dependents),
            *(edits.AddDependency(new.id, child) for child in old.dependents),
            edits.RemoveTask(old.id),
        ]


def over_bound(policy: str, seed: int, latency: float, devices: int, change: float) -> float:
    """The makespan of one plan under one policy, over the lower bound of the plan as it ended."""
    scene = Scene(seed, latency, change)
    plan = scene.plan()
    fleet = [LocalDevice(f"d{number}", slots=1, run=scene.work) for number in range(devices)]
    orchestrator = Orchestrator(fleet, editor=scene, policy=policy, rank=True, seed=seed)
    result = run(orchestrator.run(plan))
    assert result.state == "completed", result.state
    assert len(result.values) == len(plan) == len(scene.graph), f"{len(result.values)} of {len(scene.graph)} completed"
    assert plan.version == result.summary.edits_accepted, f"version {plan.version}"
    assert set(scene.worked) >= set(result.values), "a task completed that nobody worked on"
    return result.summary.makespan / result.summary.lower_bound


def wave_by_wave(seed: int, latency: float, devices: int) -> float:
    """Run a layer, let the editor think, run the next: no overlap of execution and editing."""
    scene = Scene(seed, latency, 0.0)
    total, finish = 0.0, [0.0] * len(scene.graph)
    for wave in waves(scene.graph):
        free = [0.0] * devices
        for task in sorted(wave, key=lambda task: -scene.durations[task]):
            slot = min(range(devices), key=free.__getitem__)
            free[slot] += scene.durations[task]
        total += max(free) + latency
    for task, parents in enumerate(scene.graph):
        finish[task] = scene.durations[task] + max((finish[parent] for parent in parents), default=0.0)
    return total / max(max(finish), sum(scene.durations) / devices)


def cell(changes: str, latency: float, devices: int, plans: int = PLANS) -> Cell:
    share = CHANGES[changes]
    mean = {
        policy: sum(over_bound(policy, seed, latency, devices, share) for seed in range(plans)) / plans
        for policy in POLICIES
    }
    slow = sum(wave_by_wave(seed, latency, devices) for seed in range(plans)) / plans
    return Cell(changes, latency, devices, slow, mean)


def cells() -> list[Cell]:
    return [cell(changes, latency, devices) for changes in CHANGES for latency in LATENCIES for devices in DEVICES]
