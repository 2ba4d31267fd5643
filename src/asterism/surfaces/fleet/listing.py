"""Which runs a list shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from asterism.core.run import OWNED, TERMINAL, Run, RunStatus
from asterism.core.session import Session
from asterism.runtime.fleet.fleet import Fleet
from asterism.runtime.peers.removal import held_runs
from asterism.store.protocol import Query, Report
from asterism.surfaces.fleet.views import sessions_of


@dataclass(frozen=True, slots=True)
class Listed:
    """``more`` is whether there are others, ``filtered`` whether only some were asked for; ``held`` are those that were
    left to a peer which was removed, and its name."""

    runs: Sequence[Run]
    sessions: Mapping[str, Session]
    reports: Mapping[str, Report]
    more: bool
    filtered: bool
    held: Mapping[str, str] = field(default_factory=dict)


async def listed(
    fleet: Fleet,
    *,
    statuses: tuple[str, ...],
    workflow: str | None,
    device: str | None,
    series: str | None,
    limit: int,
    newest: bool,
) -> Listed:
    """The last ones that were created, ``limit`` at most or all with 0; the newest of them last unless ``newest``."""
    query = Query(
        statuses=_statuses(statuses),
        workflow=workflow,
        device=device,
        series=series,
        newest=True,
        limit=limit + 1 if limit else None,
    )
    found = await fleet.runs(query)
    more = bool(limit) and len(found) > limit
    shown = found[:limit] if limit else found
    if not newest:
        shown.reverse()
    reports = await fleet.store.reports([run.id for run in shown if run.status in OWNED])
    filtered = any((statuses, workflow, device, series))
    held = await held_runs(fleet.store, [run.id for run in shown if not run.ended])
    return Listed(shown, await sessions_of(fleet), reports, more, filtered, held)


def _statuses(words: tuple[str, ...]) -> frozenset[RunStatus] | None:
    if not words:
        return None
    meant: set[RunStatus] = set()
    for word in words:
        if word == "ended":
            meant |= TERMINAL
        elif word == "open":
            meant |= set(RunStatus) - TERMINAL
        else:
            meant.add(RunStatus(word))
    return frozenset(meant)
