"""How many of the failed runs were cancelled by somebody: a store counts both as failed.

A run that has ended does not change, so they are read once and again when there are others. A store that has more than
are worth reading is not asked: then it is not known how many they are, and nobody says otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence

from asterism.core.run.run import FAILED, Run
from asterism.fleet.fleet import Fleet
from asterism.store.protocol import Query

MOST = 1000
"""How many failed runs are read to count those that were cancelled."""

PAGE = 250
"""How many are read at a time: each may have a large input."""


class Tally:
    """Kept from one look to the next."""

    def __init__(self) -> None:
        self._cancelled: dict[str, bool] = {}

    async def cancelled(self, fleet: Fleet, failed: int, seen: Sequence[Run]) -> int | None:
        """How many of the ``failed`` runs were cancelled; None if they are too many to tell. ``seen`` are runs of which
        this much is known: one among them that is not counted yet tells that another was forgotten meanwhile."""
        if failed > MOST:
            return None
        known = {run.id: run.cancelled for run in seen if run.status is FAILED}
        if len(known) == failed:  # all of them are in sight
            self._cancelled = known
        elif len(self._cancelled) != failed or not known.keys() <= self._cancelled.keys():
            self._cancelled = await self._read(fleet)
        return min(failed, sum(self._cancelled.values()))  # one may have ended since they were counted

    async def _read(self, fleet: Fleet) -> dict[str, bool]:
        found: dict[str, bool] = {}
        after: str | None = None
        while len(found) <= MOST:
            page = await fleet.runs(Query(statuses=frozenset({FAILED}), after=after, limit=PAGE))
            found |= {run.id: run.cancelled for run in page}
            if len(page) < PAGE:
                break
            after = page[-1].id
        return found
