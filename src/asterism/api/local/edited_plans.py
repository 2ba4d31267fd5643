"""The plans that are edited through the server: their limit of tasks, and one edit after the other.

**Size.** A plan that this process runs says how many tasks it has. Of others the number is read from the store once a
minute, and counted in between: to read a plan for each edit would double the cost of edits. What other processes add
within the minute is not counted: the limit protects the server, and is no promise about the plan.

**Order.** Each edit of a plan that no process runs takes the plan and commits; of edits at one time all but one would
load it, be in vain and begin again. So they wait for each other. Those of a plan that runs go to its owner together.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from weakref import WeakValueDictionary

from asterism.base.http_limits import RequestRefused
from asterism.durable.stored_plans import read_plan
from asterism.fleet.fleet import Fleet

MAX_TASKS = 20_000
"""How many tasks a submitted plan, or an edited one, may have."""

READ_AGAIN = 60.0
"""After how many seconds the size of a plan is read again."""

MOST_PLANS = 1000
"""Of how many plans the size is remembered."""


def check_tasks(tasks: int) -> None:
    """Raise RequestRefused if a plan has too many tasks."""
    if tasks > MAX_TASKS:
        raise RequestRefused(413, f"the plan has {tasks:,} tasks; the limit is {MAX_TASKS:,}")


@dataclass
class _Size:
    at: float
    tasks: int


async def _tasks(fleet: Fleet, name: str) -> int:
    """How many tasks a plan has. Raises UnknownConstellation."""
    ownership = fleet.running_plans.get(name)
    if ownership is not None and ownership.running is not None:
        return len(ownership.running.execution.plan)
    return len((await read_plan(fleet, name)).record.plan)


class EditedPlans:
    """What a server remembers of plans that are edited."""

    def __init__(self) -> None:
        self._sizes: dict[str, _Size] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def add(self, fleet: Fleet, name: str, added: int) -> None:
        """Count tasks that an edit adds. Raises RequestRefused if the plan gets too large, and UnknownConstellation."""
        now, known = fleet.clock.time(), self._sizes.pop(name, None)
        if known is None or now - known.at > READ_AGAIN or known.tasks + added > MAX_TASKS:
            known = _Size(now, await _tasks(fleet, name))
        if known.tasks + added > MAX_TASKS:
            raise RequestRefused(413, f"the plan would have more than {MAX_TASKS:,} tasks")
        self._sizes[name] = _Size(known.at, known.tasks + added)
        while len(self._sizes) > MOST_PLANS:
            del self._sizes[next(iter(self._sizes))]

    def alone(self, name: str) -> asyncio.Lock:
        """The lock of those who edit a plan that no process runs."""
        return self._locks.setdefault(name, asyncio.Lock())
