"""``run_plan``: a plan in virtual time, on devices that pretend to execute its tasks.

A test says how long tasks take, what they return and how often they fail. All else is real: the scheduler, retries,
timeouts, conditions, edit cycles and locks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from asterism.core.json_values import NOTHING
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.task import needs_of
from asterism.orchestrator.devices import Work
from asterism.orchestrator.orchestrator import Orchestrator
from asterism.orchestrator.result import Result
from asterism.testing.virtual_time import run

SECONDS = 1.0
"""How long a task takes if the test does not say."""


class PretendedFailure(Exception):
    """The failure of a task that was told to fail."""


class PretendedDevice:
    """A device that pretends. Each mapping is by the ids of tasks.

    :param takes: how many seconds a task takes, else one second.
    :param returns: the results of tasks, else None.
    :param fails: how many attempts at a task fail before one succeeds; ``math.inf`` for all.
    """

    def __init__(
        self,
        id: str,
        *,
        can: Iterable[str] = (),
        slots: int | None = None,
        takes: Mapping[str, float] = NOTHING,
        returns: Mapping[str, Any] = NOTHING,
        fails: Mapping[str, float] = NOTHING,
    ) -> None:
        self.id, self.can, self.slots = id, frozenset(can), slots
        self._takes, self._returns, self._fails = takes, returns, fails

    async def execute(self, work: Work) -> Any:
        task = work.task.id
        await asyncio.sleep(self._takes.get(task, SECONDS))
        if work.attempt <= self._fails.get(task, 0):
            raise PretendedFailure(f"attempt {work.attempt} was told to fail")
        return self._returns.get(task)


def run_plan(
    plan: Constellation,
    *,
    takes: Mapping[str, float] = NOTHING,
    returns: Mapping[str, Any] = NOTHING,
    fails: Mapping[str, float] = NOTHING,
    can: Iterable[str] = (),
    slots: int | None = None,
    seed: int | None = None,
    **options: Any,
) -> Result:
    """Run a plan to its end in virtual time, and return its result. ``takes``, ``returns`` and ``fails`` are those of
    ``PretendedDevice``, ``options`` those of ``Orchestrator``.

    There is a device for each that a task names, and one more; each can do whatever the tasks of the plan need, and
    ``can`` adds what tasks need that an editor adds. ``slots`` are those of each device. With a seed, what happens at
    the same time happens in a random order, which the seed decides. Raises Deadlock if the plan would wait for ever."""
    tasks = [view.task for view in plan]
    needs = frozenset(can).union(*map(needs_of, tasks))
    ids = {"pretended", *(task.device for task in tasks if task.device is not None)}
    devices = [
        PretendedDevice(id, can=needs, slots=slots, takes=takes, returns=returns, fails=fails) for id in sorted(ids)
    ]
    return run(Orchestrator(devices, seed=seed, **options).run(plan), seed=seed)
