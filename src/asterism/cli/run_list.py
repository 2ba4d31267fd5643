"""Which runs a list shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from asterism.cli.fleet_json import sessions_of
from asterism.core.run.run import OWNED, REPORTED_STATUSES, Run, RunStatus
from asterism.core.run.session import Session
from asterism.fleet.fleet import Fleet
from asterism.peers.removal import held_runs
from asterism.store.protocol import ProgressReport, Query

PAGE = 250
"""How many runs are read at a time to find those with a status that only the whole record tells."""


@dataclass(frozen=True, slots=True)
class Listed:
    """``more`` is whether there are others, ``filtered`` whether only some were asked for; ``held`` are those that were
    left to a peer which was removed, and its name."""

    runs: Sequence[Run]
    sessions: Mapping[str, Session]
    reports: Mapping[str, ProgressReport]
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
    words = _words(statuses)
    query = Query(
        statuses=_states(words),
        workflow=workflow,
        device=device,
        series=series,
        newest=True,
        limit=max(limit + 1, PAGE if words is not None else 0) if limit else None,
    )
    found = await _reported(fleet, query, words, limit)
    more = bool(limit) and len(found) > limit
    shown = found[:limit] if limit else found
    if not newest:
        shown.reverse()
    reports = await fleet.store.reports([run.id for run in shown if run.status in OWNED])
    filtered = any((statuses, workflow, device, series))
    held = await held_runs(fleet.store, [run.id for run in shown if not run.ended])
    return Listed(shown, await sessions_of(fleet), reports, more, filtered, held)


async def _reported(fleet: Fleet, query: Query, words: frozenset[str] | None, limit: int) -> list[Run]:
    """The runs whose reported status is among ``words``, one more than ``limit`` if there are so many. A store knows
    the states only, so it is read page by page until enough were found."""
    found: list[Run] = []
    while True:
        page = await fleet.runs(query)
        found += [run for run in page if words is None or run.reported_status in words]
        if query.limit is None or len(page) < query.limit or len(found) > limit:
            return found[: limit + 1] if limit else found
        query = replace(query, after=page[-1].id)


def _words(statuses: tuple[str, ...]) -> frozenset[str] | None:
    """Which statuses are asked for; None for all."""
    if not statuses:
        return None
    groups = {"ended": {"completed", "failed", "cancelled"}}
    groups["open"] = set(REPORTED_STATUSES) - groups["ended"]
    return frozenset().union(*(groups.get(word, {word}) for word in statuses))


def _states(words: frozenset[str] | None) -> frozenset[RunStatus] | None:
    return None if words is None else frozenset().union(*(REPORTED_STATUSES[word] for word in words))
