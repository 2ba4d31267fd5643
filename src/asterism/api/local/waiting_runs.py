"""What a run waits for, in a word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from asterism.core.run.run import ASSIGNED, CLAIMED, UNOWNED, Run
from asterism.fleet.fleet import Fleet
from asterism.peers.takeover import held_runs

Waiting = Literal["device", "claim", "turn", "retry", "person", "peer"]
WAITING: tuple[Waiting, ...] = get_args(Waiting)


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


async def choose_waiting(fleet: Fleet, waiting: Waiting, runs: Sequence[Run]) -> list[Run]:
    """Those of some runs that wait for this."""
    held = await held_runs(fleet.store, [run.id for run in runs if not run.ended])
    now = fleet.store.clock()
    return [run for run in runs if waiting_for(run, run.id in held, now) == waiting]
