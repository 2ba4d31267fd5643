"""A fleet as a whole: what the operations of ``api/fleet_operations`` do on a store."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import asdict

from asterism.api import documents
from asterism.api import fleet_operations as declared
from asterism.api.documents import document_of
from asterism.api.local.device_handlers import device_document
from asterism.api.local.reasons import leave_reason
from asterism.api.local.run_handlers import notice_document, run_documents
from asterism.api.system import LocalSystem
from asterism.base.openmetrics import Family, render
from asterism.base.text import masked_url, masked_urls
from asterism.core.run.run import FAILED, RunStatus
from asterism.core.run.session import REACHABLE_STATES
from asterism.durable.plan_metrics import plan_families
from asterism.fleet.fleet import Fleet
from asterism.fleet.joinable_devices import state_of
from asterism.fleet.run_queries import CancelledCount, find_run, take_snapshot
from asterism.fleet.selection_metrics import MAX_RUNS, WINDOW, fleet_families
from asterism.fleet.settings import Settings
from asterism.store.protocol import ENDED, Notice

PAGE = 1000
"""How many notices are read at once."""

LOOK_INTERVAL = 1.0
"""How often to look for new notices, in seconds; the end of a run wakes earlier."""


# -- settings ----------------------------------------------------------------------------------------------------------


async def show_settings(system: LocalSystem, request: declared.ShowSettings) -> documents.Settings:
    return _settings(await system.fleet.settings())


async def change_settings(system: LocalSystem, request: declared.ChangeSettings) -> documents.Settings:
    changes = {
        name: value for name, value in vars(request).items() if name != "reason" and value is not None and value != {}
    }
    for name in ("notify_command", "notify_url", "artifacts"):
        if name in changes:
            changes[name] = changes[name] or None
    settings = await system.fleet.configure(**changes)
    await leave_reason(system.fleet, f"changed the settings {', '.join(changes)}", request.reason)
    return _settings(settings)


def _settings(settings: Settings) -> documents.Settings:
    """The settings with masked addresses: observers read them."""
    words, url = settings.notify_command, settings.notify_url
    shown = {
        "notify_command": None if words is None else [masked_urls(word) for word in words],
        "notify_url": None if url is None else masked_url(url),
        "weights": asdict(settings.weights),
    }
    return documents.Settings(**{**vars(settings), **shown})


# -- metrics -----------------------------------------------------------------------------------------------------------


async def metrics_families(fleet: Fleet, window: float = WINDOW, limit: int = MAX_RUNS) -> list[Family]:
    """The metrics of a fleet and of the plans in its store."""
    return [*await fleet_families(fleet, window, limit), *await plan_families(fleet.store, window)]


async def read_metrics(system: LocalSystem, request: declared.ReadMetrics) -> documents.Metrics:
    families = await metrics_families(system.fleet, request.window, request.limit)
    return documents.Metrics(text=render(families), families=[family.to_json() for family in families])


# -- notices -----------------------------------------------------------------------------------------------------------


async def list_notices(system: LocalSystem, request: declared.ListNotices) -> documents.Page[documents.Notice]:
    """``next`` is the number of the last notice that was read, whether it matched or not."""
    fleet = system.fleet
    run = None if request.run is None else (await find_run(fleet, request.run)).id
    if request.wait <= 0:
        return await _notices(fleet, request, run, request.after)
    watch = fleet.store.watch(frozenset({ENDED}))
    page = documents.Page[documents.Notice](items=[], next=str(request.after))
    with contextlib.closing(watch), contextlib.suppress(TimeoutError):
        async with asyncio.timeout(request.wait):
            while not page.items:
                page = await _notices(fleet, request, run, int(page.next or 0))
                if not page.items:
                    await watch.wait(LOOK_INTERVAL)
    return page


async def _notices(
    fleet: Fleet, request: declared.ListNotices, run: str | None, after: int
) -> documents.Page[documents.Notice]:
    """The first notices after a number that match, or the latest."""
    matches: deque[tuple[int, Notice]] = deque(maxlen=request.limit if request.latest else None)
    start = None if request.since is None else fleet.store.clock() - request.since
    kinds = None if request.kind is None else set(request.kind.split(","))
    while request.latest or len(matches) < request.limit:
        wanted = PAGE if kinds or start is not None or request.latest else request.limit - len(matches)
        notices = await fleet.store.notices(run=run, after=after, limit=wanted)
        for number, notice in notices:
            if len(matches) == request.limit and not request.latest:
                break
            after = number
            if (kinds is None or notice.kind in kinds) and (start is None or notice.at >= start):
                matches.append((number, notice))
        if len(notices) < wanted:
            break
    items = [notice_document(number, notice) for number, notice in matches]
    return documents.Page(items=items, next=str(after), now=fleet.store.clock())


# -- the store ---------------------------------------------------------------------------------------------------------


async def show_store(system: LocalSystem, request: declared.ShowStore) -> documents.StoreInfo:
    fleet, store = system.fleet, system.fleet.store
    counts, now = await store.counts(), store.clock()
    cancelled = await CancelledCount().count(fleet, counts.get(FAILED, 0), ())
    devices = Counter(state_of(session, now) for session in await fleet.devices())
    series = await store.registers("series/")
    return documents.StoreInfo(
        store=None if not system.own else store.url,
        clock=now,
        clock_ahead=round(now - time.time(), 3),
        runs=_run_counts(counts, cancelled),
        devices=dict(sorted(devices.items())),
        coordinator=await fleet.coordinator(),
        workflows=len(await fleet.workflows.all()),
        series=len(series),
        series_active=sum(
            isinstance(register.value, dict) and register.value.get("active") is not None for register in series
        ),
    )


def _run_counts(counts: Mapping[RunStatus, int], cancelled: int | None) -> dict[str, int]:
    """How many runs have each status. The store counts cancelled runs as failed; if there are too many to tell them
    apart, both are one number."""
    runs = {str(status): counts.get(status, 0) for status in RunStatus}
    failed = runs.pop(str(FAILED))
    if cancelled is None:
        return {**runs, "failed or cancelled": failed}
    return {**runs, str(FAILED): failed - cancelled, "cancelled": cancelled}


async def show_fleet(system: LocalSystem, request: declared.ShowFleet) -> documents.FleetView:
    fleet = system.fleet
    snapshot = await take_snapshot(fleet, request.limit, (), fleet.cancelled_count)
    ranks, coordinator = (await fleet.placer()).ranks, snapshot.coordinator
    devices = [
        device_document(session, snapshot.now, ranks, coordinator)
        for session in snapshot.sessions.values()
        if session.state in REACHABLE_STATES
    ]
    runs = {run.id: run for run in await run_documents(fleet, snapshot.runs)}
    return document_of(
        documents.FleetView,
        snapshot,
        counts={str(status): number for status, number in snapshot.counts.items()},
        devices=devices,
        owned=[runs[run.id] for run in snapshot.owned],
        waiting=[runs[run.id] for run in snapshot.waiting],
        ended=[runs[run.id] for run in snapshot.ended],
    )
