"""Limits of a store: what the operations of ``api/limit_operations`` do. Who holds what is derived from the runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from asterism.api import documents
from asterism.api import limit_operations as declared
from asterism.api.documents import document_of
from asterism.api.local.reasons import leave_reason
from asterism.api.system import LocalSystem
from asterism.core.limits import InvalidLimit, Limit, LimitedRuns, Rate, limit_for, uses_of
from asterism.core.run.run import Run
from asterism.fleet import stored_limits
from asterism.fleet.fleet import Fleet
from asterism.fleet.run_queries import labels_of
from asterism.fleet.stored_limits import LimitNotSet, StoredLimits, read_stored_limits

MOST_NAMED = 100
"""How many runs that hold a limit, and how many that wait for it, are named."""


async def list_limits(system: LocalSystem, request: declared.ListLimits) -> documents.Page[documents.Limit]:
    store = system.fleet.store
    stored = await read_stored_limits(store)
    return documents.Page(items=[_limit(limit, stored) for limit in stored.limits.values()], now=store.clock())


async def show_limit(system: LocalSystem, request: declared.OneLimit) -> documents.LimitDetails:
    fleet = system.fleet
    stored = await read_stored_limits(fleet.store)
    limit = stored.limits.get(request.limit)
    if limit is None:
        raise LimitNotSet(request.limit)
    now, groups = fleet.store.clock(), _groups_of(limit, stored)
    holding = [group for group in groups if not group.waiting]
    waiting = stored.book(now).by_turn(group for group in groups if group.waiting)
    return document_of(
        documents.LimitDetails,
        _limit(limit, stored),
        holders=await _users(fleet, limit, stored, holding),
        next_runs=await _users(fleet, limit, stored, waiting),
        now=now,
    )


async def set_limit(system: LocalSystem, request: declared.SetLimit) -> documents.Limit:
    fleet = system.fleet
    if (request.rate is None) != (request.period is None):
        raise InvalidLimit(f"the rate of limit {request.limit!r} needs a number and a period (example: 10 in 60 s)")
    rate = None if request.rate is None or request.period is None else Rate(request.rate, request.period)
    limit = Limit(request.limit, request.size, rate)
    await stored_limits.set_limit(fleet.store, limit)
    await leave_reason(fleet, f"set limit {limit.name!r}", request.reason)
    return _limit(limit, await read_stored_limits(fleet.store))


async def remove_limit(system: LocalSystem, request: declared.RemoveLimit) -> documents.Limit:
    fleet = system.fleet
    limit = await stored_limits.remove_limit(fleet.store, request.limit)
    await leave_reason(fleet, f"removed limit {limit.name!r}", request.reason)
    stored = await read_stored_limits(fleet.store)
    stored.limits[limit.name] = limit
    return _limit(limit, stored)


def _groups_of(limit: Limit, stored: StoredLimits) -> list[LimitedRuns]:
    """The runs that use a limit."""
    return [group for group in stored.groups if any(_names(limit, stored, group.uses))]


def _names(limit: Limit, stored: StoredLimits, uses: str | None) -> Iterable[str]:
    """Those names in ``uses`` for which the limit counts."""
    return (name for name in uses_of(uses) if limit_for(stored.limits, name) == limit)


def _limit(limit: Limit, stored: StoredLimits) -> documents.Limit:
    used: Counter[str] = Counter()
    waiting = 0
    for group in _groups_of(limit, stored):
        if group.waiting:
            waiting += group.number
        else:
            used.update({name: uses_of(group.uses)[name] * group.number for name in _names(limit, stored, group.uses)})
    rate, period = limit.rate if limit.rate is not None else (None, None)
    return documents.Limit(
        name=limit.name, size=limit.size, rate=rate, period=period, used=dict(sorted(used.items())), waiting=waiting
    )


async def _users(
    fleet: Fleet, limit: Limit, stored: StoredLimits, groups: Iterable[LimitedRuns]
) -> list[documents.LimitUser]:
    runs: list[Run] = []
    for group in groups:
        if len(runs) < MOST_NAMED:
            runs += await fleet.store.limited_runs(group, MOST_NAMED - len(runs))
    labels = await labels_of(fleet, runs)
    return [
        document_of(
            documents.LimitUser,
            run,
            label=labels[run.id],
            uses={name: uses_of(run.uses)[name] for name in _names(limit, stored, run.uses)},
            since=run.assigned_at or run.waiting_since or run.created_at,
        )
        for run in runs
    ]
