"""Operations on a fleet as a whole: its settings, metrics and notices, and what its store contains."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated

from asterism.api import documents
from asterism.api.documents import Doc
from asterism.api.operation import Limit, Operation, Reason
from asterism.api.quick_dataclass import Request
from asterism.api.run_operations import MOST_AT_ONCE

MOST_METRIC_RUNS = 100_000
"""How many runs one answer of metrics may be made of."""

MOST_NOTICES = 1000
"""How many notices one answer lists."""

Seconds = Annotated[float | None, Limit(ge=0, le=1e12)]
Size = Annotated[int | None, Limit(ge=0, le=1 << 60)]


class ShowSettings(Request):
    """The settings of the fleet."""


class ChangeSettings(Request):
    """Settings that are left out stay as they are. Times are in seconds, sizes in bytes."""

    keep: Seconds = None
    keep_events: Seconds = None
    large: Size = None
    most: Size = None
    log_limit: Size = None
    device_bytes: Size = None
    artifacts: Annotated[
        str | None,
        Limit(max_length=2000),
        Doc("Where files are kept: file:///folder or s3://bucket/prefix; empty: none."),
    ] = None
    hold: Seconds = None
    lease: Seconds = None
    peer_timeout: Seconds = None
    peer_runs: Size = None
    peer_bytes: Size = None
    peer_blobs: Size = None
    notify_command: Annotated[
        list[str] | None, Limit(max_length=1000), Doc("A command as a list of words; empty: none.")
    ] = None
    notify_url: Annotated[str | None, Limit(max_length=2000), Doc("An http(s) address; empty: none.")] = None
    weights: Annotated[dict[str, float], Doc("Weights of parts of the score; the others stay.")] = field(
        default_factory=dict
    )
    reason: Reason = ""


class ReadMetrics(Request):
    window: Annotated[float, Limit(gt=0, le=1e9), Doc("Describe the runs created in so many seconds until now.")] = (
        3600.0
    )
    limit: Annotated[int, Limit(ge=1, le=MOST_METRIC_RUNS), Doc("Read at most so many runs, the newest.")] = 10_000


class ListNotices(Request):
    """Which notices: all conditions that are given hold."""

    after: Annotated[int, Limit(ge=0, le=1 << 53), Doc("The `next` of an earlier answer.")] = 0
    limit: Annotated[int, Limit(ge=1, le=MOST_NOTICES)] = 100
    run: Annotated[str | None, Limit(max_length=100), Doc("The id of a run, or a part that no other id has.")] = None
    kind: Annotated[str | None, Limit(max_length=1000), Doc("One or several kinds, with commas.")] = None
    since: Annotated[float | None, Limit(ge=0, le=1e12), Doc("Only notices of the last so many seconds.")] = None
    latest: Annotated[bool, Doc("The latest of those that match, not the first.")] = False
    wait: Annotated[float, Limit(ge=0, le=60), Doc("How long the answer may wait for a notice, in seconds.")] = 0.0


class ShowStore(Request):
    """The store."""


class ShowFleet(Request):
    limit: Annotated[
        int, Limit(ge=1, le=MOST_AT_ONCE), Doc("How many runs of each kind: owned, waiting and ended.")
    ] = 100


class FleetOperations:
    show_settings = Operation(ShowSettings, documents.Settings, "The settings of the fleet.", "GET /settings")
    change_settings = Operation(
        ChangeSettings, documents.Settings, "Change settings of the fleet.", "POST /settings", needs="admin"
    )
    read_metrics = Operation(
        ReadMetrics, documents.Metrics, "Metrics of the fleet and its plans.", "GET /metrics/families"
    )
    list_notices = Operation(ListNotices, documents.Page[documents.Notice], "Notices, oldest first.", "GET /notices")
    show_store = Operation(ShowStore, documents.StoreInfo, "What the store contains.", "GET /store")
    show_fleet = Operation(
        ShowFleet, documents.FleetView, "The runs and devices of the fleet as they are now.", "GET /fleet"
    )
