"""Series of issues over HTTP: list, show, claim and release, in the register of the store."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from asterism.api import documents
from asterism.base.http_limits import RequestRefused
from asterism.core.series.machine import LONGEST_LEASE, SHORTEST_LEASE, Series, UnreadableSeries
from asterism.series.claims import Claim, Release, claim, release
from asterism.series.register import Snapshot
from asterism.series.series_status import series_status
from asterism.series.store_register import StoreRegister
from asterism.server.endpoint import Call, Endpoint, NoModel

MOST_CHANGES = 50
"""How many of the last changes of a series are shown."""


class NewClaim(BaseModel, extra="forbid"):
    issue: int = Field(ge=1, le=1 << 53)
    lease: float | None = Field(
        None, ge=SHORTEST_LEASE, le=LONGEST_LEASE, description="Seconds until the claim ends by itself."
    )


class NewRelease(BaseModel, extra="forbid"):
    issue: int = Field(ge=1, le=1 << 53)


def _register(call: Call) -> StoreRegister:
    return StoreRegister(call.fleet.store, owned=False)


def _status(name: str, snapshot: Snapshot, now: float) -> dict[str, Any]:
    try:
        return series_json(Series.from_text(snapshot.text, name), now)
    except UnreadableSeries as error:
        return {"name": name, "status": "unreadable", "problem": str(error)}


def series_json(series: Series, now: float) -> dict[str, Any]:
    status = series_status(series, now)
    return {
        "name": series.name,
        "status": status["status"],
        "active": series.active,
        "queue": list(series.queue),
        "since": series.since,
        "lease_until": series.lease_until,
        "by": series.by,
        "paused": series.paused,
        "why_not_promoted": status["why_not_promoted"],
    }


async def list_all(call: Call) -> Any:
    found = await _register(call).read_all()
    now = call.fleet.store.clock()
    return {"items": [_status(name, one, now) for name, one in sorted(found.items())], "next": None}


async def show(call: Call) -> Any:
    name, register = call.path["series"], _register(call)
    snapshot = await register.read(name)
    if snapshot.token is None:
        raise RequestRefused(404, f"there is no series {name!r}")
    changes = await register.history(name, MOST_CHANGES)
    history = [{"at": one.at, "message": one.message} for one in changes]
    return {**_status(name, snapshot, register.clock()), "changes": history}


async def claim_issue(call: Call) -> Any:
    """Claim a series for an issue: it becomes active, or waits in the queue."""
    name, register = call.path["series"], _register(call)
    outcome = await claim(register, name, Claim(call.body.issue, by=call.by, lease=call.body.lease))
    return series_json(outcome.after, register.clock())


async def release_issue(call: Call) -> Any:
    """Release an issue; the next one of the queue becomes active."""
    name, register = call.path["series"], _register(call)
    outcome = await release(register, name, Release(call.body.issue, by=call.by))
    return series_json(outcome.after, register.clock())


One, READ = documents.Series, "observe series"

ENDPOINTS = (
    Endpoint("GET", "/series", list_all, "List series.", READ, answer=documents.Page[documents.Series]),
    Endpoint("GET", "/series/{series}", show, "A series.", READ, answer=documents.SeriesDetails),
    Endpoint("POST", "/series/{series}/claim", claim_issue, "Claim it.", "series", NoModel, NewClaim, One),
    Endpoint("POST", "/series/{series}/release", release_issue, "Release.", "series", NoModel, NewRelease, One),
)
