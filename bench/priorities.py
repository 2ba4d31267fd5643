"""When critical work ends that waits for low tasks, in virtual time, so that it is exact: with inherited priority, and
with the priority of each task alone."""

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from asterism import Constellation, LocalDevice, Orchestrator, Task, Work
from asterism.core.plan import inherited_priority
from asterism.testing.virtual_time import run

PLANS = 40
DEVICES = 4
PLAIN = 60
"""How many tasks of normal priority compete for the devices."""

CHAIN = 5
"""How many low tasks, one after the other, a critical task waits for."""


@dataclass(frozen=True)
class Inversion:
    """Mean seconds over the plans."""

    critical_alone: float
    """When the critical task ended, with the priority of each task alone."""

    critical: float
    """The same with inherited priority."""

    makespan_alone: float
    makespan: float


def plan(seed: int) -> Constellation:
    """Low tasks in a chain with a critical task at its end, beside plain tasks; each takes about 3.5 s."""
    chance = random.Random(seed)
    made = Constellation("priorities")

    def add(name: str, priority: str, after: str | None = None) -> None:
        made.add(Task(name, priority=priority, data={"seconds": max(0.5, chance.gauss(3.5, 1.0))}), after)  # type: ignore[arg-type]

    for number in range(PLAIN):
        add(f"plain-{number}", "normal")
    for number in range(CHAIN):
        add(f"low-{number}", "low", f"low-{number - 1}" if number else None)
    add("critical", "critical", f"low-{CHAIN - 1}")
    return made


async def _work(work: Work) -> None:
    await asyncio.sleep(work.task.data["seconds"])


@contextmanager
def _alone() -> Iterator[None]:
    """Tasks lend nothing."""
    with mock.patch.object(inherited_priority, "linked", return_value=None):
        yield


def times(seed: int) -> tuple[float, float]:
    """When the critical task ended, and the makespan."""
    made = plan(seed)
    devices = [LocalDevice(f"d{number}", slots=1, run=_work) for number in range(DEVICES)]
    result: Any = run(Orchestrator(devices, seed=seed).run(made))
    assert result.state == "completed", result.state
    assert len(result.values) == PLAIN + CHAIN + 1
    return made["critical"].ended_at - made.started_at, result.summary.makespan  # type: ignore[operator]


def inversion(plans: int = PLANS) -> Inversion:
    inherited = [times(seed) for seed in range(plans)]
    with _alone():
        alone = [times(seed) for seed in range(plans)]
    mean = [sum(values) / plans for some in (alone, inherited) for values in zip(*some, strict=True)]
    return Inversion(mean[0], mean[2], mean[1], mean[3])


PAGE = """\
## Inherited priority

In virtual time: the mean of {plans} plans in which a critical task waits for {chain} low tasks, one after the other,
beside {plain} plain tasks of about 3.5 s, on {devices} devices.

| | with the priority of each task alone | with inherited priority |
| --- | --- | --- |
| the critical task has ended after | {0.critical_alone:.1f} s | {0.critical:.1f} s |
| makespan | {0.makespan_alone:.1f} s | {0.makespan:.1f} s |
"""


def page(inversion: Inversion) -> str:
    return PAGE.format(inversion, plans=PLANS, chain=CHAIN, plain=PLAIN, devices=DEVICES)
