"""What is in a store, in figures, and what holds for its fleet."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.text import Text

from asterism.base.durations import format_age
from asterism.base.text import clean
from asterism.base.url_text import masked_url
from asterism.cli.fleet_json import state_of
from asterism.cli.fleet_snapshot import CancelledCount
from asterism.cli.formats import format_size, format_time
from asterism.core.run.run import FAILED, RunStatus
from asterism.fleet.fleet import Fleet
from asterism.fleet.settings import Settings
from asterism.report.status_style import DIM


async def contents(fleet: Fleet) -> dict[str, Any]:
    store = fleet.store
    counts = await store.counts()
    cancelled = await CancelledCount().cancelled(fleet, counts.get(FAILED, 0), ())
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
    """How many runs there are by status. The store counts cancelled ones as failed; if it is not known how many of
    them there are, both are one number."""
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
        "series": f"{found['series']:,}, {found['series_active']:,} of them with an active run",
    }
    return _aligned(facts)


def _aligned(facts: Mapping[str, str]) -> list[Text]:
    wide = max(map(len, facts))
    return [Text(f"{name:<{wide}}  ", DIM).append(clean(text), "") for name, text in facts.items()]


def _counted(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{number:,} {name}" for name, number in numbers.items()) or "none"


def settings_lines(settings: Settings) -> list[Text]:
    weights = ", ".join(f"{name} {value:g}" for name, value in asdict(settings.weights).items())
    facts = {
        "keep": f"{format_age(settings.keep)} after their end runs are forgotten",
        "large": f"beyond {format_size(settings.large)} inputs and outputs are kept apart",
        "most": f"beyond {format_size(settings.most)} they are refused",
        "lease": f"{format_age(settings.lease)} is how long a coordinator that is not heard of stays in office",
        "hold": f"{format_age(settings.hold)} is how long nothing is taken away when most devices vanish at once",
        "peer_timeout": f"{format_age(settings.peer_timeout)} after the last word of a peer what is left to it is "
        "taken over",
        "peer_runs": f"{settings.peer_runs:,} runs are kept of each peer at most",
        "peer_bytes": f"{format_size(settings.peer_bytes)} of records are kept of each peer at most",
        "peer_blobs": f"{format_size(settings.peer_blobs)} of large inputs and outputs are kept of each peer at most",
        "notify_command": shlex.join(settings.notify_command) if settings.notify_command is not None else "none",
        "notify_url": masked_url(settings.notify_url or "none"),
        "weights": weights,
    }
    return _aligned(facts)
