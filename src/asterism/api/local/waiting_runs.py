"""What a run waits for, in a word, and the open runs that wait for the same.

The store cannot filter by it, so runs are read page by page until enough are found.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

from asterism.core.run.run import ASSIGNED, CLAIMED, UNOWNED, Run
from asterism.fleet.fleet import Fleet
from asterism.fleet.run_queries import RunList, list_runs
from asterism.peers.takeover import held_runs

Waiting = Literal["device", "claim", "turn", "retry", "person", "peer"]
WAITING: tuple[Waiting, ...] = get_args(Waiting)

PAGE = 500


def waiting_for(run: Run, held: bool, now: float) -> Waiting | None:
    """``held`` is whether a peer may still execute the run. None if it has ended, or a device works on it."""
    if run.ended:
        return None
    if run.paused is not None:
        return "person"
    if held:
        return "peer"
    if run.held:
        return "turn"
    if run.status in (ASSIGNED, CLAIMED):
        return "claim"
    if run.status not in UNOWNED:
        return None
    return "retry" if run.not_before > now else "device"


async def list_waiting(
    fleet: Fleet, waiting: Waiting, *, statuses: tuple[str, ...], after: str | None, limit: int, **terms: Any
) -> RunList:
    """The open runs that wait for this, the newest first, of those that match the other terms."""
    runs: list[Run] = []
    while True:
        page = await list_runs(fleet, statuses=statuses or ("open",), newest=True, after=after, limit=PAGE, **terms)
        held = await held_runs(fleet.store, [run.id for run in page.runs if not run.ended])
        now = fleet.store.clock()
        runs += [run for run in page.runs if waiting_for(run, run.id in held, now) == waiting]
        if not page.more or len(runs) > limit:
            return RunList(runs[:limit], len(runs) > limit)
        after = page.runs[-1].id
