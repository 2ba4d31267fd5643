"""``asterism store info``: the address of a store and what it contains, as JSON and as lines."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from rich.text import Text

from asterism.base.durations import format_age
from asterism.cli.fleet_json import state_of
from asterism.cli.fleet_snapshot import CancelledCount
from asterism.cli.formats import format_time
from asterism.cli.text_table import fact_lines
from asterism.core.run.run import FAILED, RunStatus
from asterism.fleet.fleet import Fleet


async def contents(fleet: Fleet) -> dict[str, Any]:
    store = fleet.store
    counts = await store.counts()
    cancelled = await CancelledCount().count(fleet, counts.get(FAILED, 0), ())
    now = store.clock()
    devices = Counter(state_of(one, now) for one in await fleet.devices())
    series = await store.registers("series/")
    return {
        "store": store.url,
        "clock": now,
        "clock_ahead": round(now - time.time(), 3),
        "runs": _runs(counts, cancelled),
        "devices": dict(sorted(devices.items())),
        "coordinator": await fleet.coordinator(),
        "workflows": len(await fleet.workflows.all()),
        "series": len(series),
        "series_active": sum(isinstance(one.value, dict) and one.value.get("active") is not None for one in series),
    }


def _runs(counts: Mapping[RunStatus, int], cancelled: int | None) -> dict[str, int]:
    """How many runs have each status. The store counts cancelled runs as failed; if there are too many to tell them
    apart, both are one number."""
    runs = {str(status): counts.get(status, 0) for status in RunStatus}
    failed = runs.pop(str(FAILED))
    if cancelled is None:
        return {**runs, "failed or cancelled": failed}
    return {**runs, str(FAILED): failed - cancelled, "cancelled": cancelled}


def contents_lines(found: Mapping[str, Any]) -> list[Text]:
    runs = {name: number for name, number in found["runs"].items() if number}
    off = abs(found["clock_ahead"])
    way = "ahead of" if found["clock_ahead"] > 0 else "behind"
    facts = {
        "store": found["store"],
        "clock": format_time(found["clock"]) + (f", {format_age(off)} {way} this machine's" if off >= 1 else ""),
        "runs": _counted(runs),
        "devices": _counted(found["devices"]),
        "coordinator": found["coordinator"] or "none",
        "workflows": f"{found['workflows']:,}",
        "series": f"{found['series']:,}, {found['series_active']:,} with an active run",
    }
    return fact_lines(facts)


def _counted(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{number:,} {name}" for name, number in numbers.items()) or "none"
