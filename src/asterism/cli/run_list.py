"""The runs that ``runs list`` shows, with what the table needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from asterism.cli.fleet_json import sessions_of
from asterism.core.run.run import OWNED, REPORTED_STATUSES, Run, RunStatus
from asterism.core.run.session import Session
from asterism.fleet.fleet import Fleet
from asterism.peers.takeover import held_runs
from asterism.store.protocol import ProgressReport, Query

PAGE = 250
"""How many runs are read at a time to find those with a status that the store cannot filter by."""


@dataclass(frozen=True, slots=True)
class RunList:
    """``more`` is whether the store has more runs, ``filtered`` whether a filter was given. ``held`` maps runs that
    wait for a removed peer to its name."""

    runs: Sequence[Run]
    sessions: Mapping[str, Session]
    reports: Mapping[str, ProgressReport]
    more: bool
    filtered: bool
    held: Mapping[str, str] = field(default_factory=dict)


async def list_runs(
    fleet: Fleet,
    *,
    statuses: tuple[str, ...],
    workflow: str | None,
    device: str | None,
    series: str | None,
    limit: int,
    newest: bool,
) -> RunList:
    """The runs that were created last: at most ``limit``, or all if it is 0. The newest come last unless ``newest``."""
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
    return RunList(shown, await sessions_of(fleet), reports, more, filtered, held)


async def _reported(fleet: Fleet, query: Query, words: frozenset[str] | None, limit: int) -> list[Run]:
    """The runs whose reported status is among ``words``, at most one more than ``limit``. The store filters by state
    only, so this reads page by page until it has found enough."""
    found: list[Run] = []
    while True:
        page = await fleet.runs(query)
        found += [run for run in page if words is None or run.reported_status in words]
        if query.limit is None or len(page) < query.limit or len(found) > limit:
            return found[: limit + 1] if limit else found
        query = replace(query, after=page[-1].id)


def _words(statuses: tuple[str, ...]) -> frozenset[str] | None:
    """The statuses of the filter, with ``open`` and ``ended`` expanded; None for all."""
    if not statuses:
        return None
    groups = {"ended": {"completed", "failed", "cancelled"}}
    groups["open"] = set(REPORTED_STATUSES) - groups["ended"]
    return frozenset().union(*(groups.get(word, {word}) for word in statuses))


def _states(words: frozenset[str] | None) -> frozenset[RunStatus] | None:
    return None if words is None else frozenset().union(*(REPORTED_STATUSES[word] for word in words))
