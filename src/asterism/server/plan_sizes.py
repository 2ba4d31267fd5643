"""The limit of tasks in a plan, for edits: read from the store once a minute for each plan, and counted in between.

To read a plan for each edit would double the cost of edits. What other processes add within the minute is not counted:
the limit protects the server, and is no promise about the plan.
"""

from __future__ import annotations

from dataclasses import dataclass

from asterism.base.http_limits import RequestRefused
from asterism.durable.stored_plans import read_plan
from asterism.fleet.fleet import Fleet

READ_AGAIN = 60.0
"""After how many seconds the size of a plan is read again."""

MOST_PLANS = 1000
"""How many plans are remembered."""


@dataclass
class _Known:
    at: float
    tasks: int


class PlanSizes:
    """The number of tasks of the plans that are edited."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    async def add(self, fleet: Fleet, name: str, added: int, most: int) -> None:
        """Count tasks that an edit adds. Raises RequestRefused if the plan gets too large, and UnknownConstellation."""
        now, known = fleet.clock.time(), self._known.pop(name, None)
        if known is None or now - known.at > READ_AGAIN or known.tasks + added > most:
            known = _Known(now, len((await read_plan(fleet, name)).record.plan))
        if known.tasks + added > most:
            raise RequestRefused(413, f"the plan would have more than {most:,} tasks")
        self._known[name] = _Known(known.at, known.tasks + added)
        while len(self._known) > MOST_PLANS:
            del self._known[next(iter(self._known))]
