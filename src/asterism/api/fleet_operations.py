"""Operations on a fleet: its settings, metrics, notices, store and devices, and the tokens of those who use it."""

from __future__ import annotations

from typing import Annotated, Literal

from asterism.api import documents
from asterism.api.documents import Doc
from asterism.api.operation import Moment, Name, NoFields, Operation, Reason
from asterism.api.request import Request
from asterism.api.run_operations import MOST_AT_ONCE
from asterism.core.record import Meta, field

MOST_METRIC_RUNS = 100_000
"""How many runs one answer of metrics may be made of."""

MOST_NOTICES = 1000
"""How many notices one answer lists."""

Seconds = Annotated[float, Meta(ge=0, le=1e12)] | None
Size = Annotated[int, Meta(ge=0, le=1 << 60)] | None


class ChangeSettings(Request):
    """Settings that are left out stay as they are. Times are in seconds, sizes in bytes."""

    keep: Seconds = None
    keep_events: Seconds = None
    keep_audit: Seconds = None
    large: Size = None
    most: Size = None
    log_limit: Size = None
    device_bytes: Size = None
    credential_bytes: Size = None
    artifacts: Annotated[
        Annotated[str, Meta(max_length=2000)] | None,
        Doc("Where files are kept: file:///folder or s3://bucket/prefix; empty: none."),
    ] = None
    hold: Seconds = None
    lease: Seconds = None
    peer_timeout: Seconds = None
    peer_runs: Size = None
    peer_bytes: Size = None
    peer_blobs: Size = None
    notify_command: Annotated[
        Annotated[list[str], Meta(max_length=1000)] | None, Doc("A command as a list of words; empty: none.")
    ] = None
    notify_url: Annotated[Annotated[str, Meta(max_length=2000)] | None, Doc("An http(s) address; empty: none.")] = None
    weights: Annotated[dict[str, float], Doc("Weights of parts of the score; the others stay.")] = field(
        default_factory=dict
    )
    reason: Reason = ""


class ReadMetrics(Request):
    window: Annotated[float, Meta(gt=0, le=1e9), Doc("Describe the runs created in so many seconds until now.")] = (
        3600.0
    )
    limit: Annotated[int, Meta(ge=1, le=MOST_METRIC_RUNS), Doc("Read at most so many runs, the newest.")] = 10_000


class ListNotices(Request):
    """Which notices: all conditions that are given hold."""

    after: Annotated[int, Meta(ge=0, le=1 << 53), Doc("The `next` of an earlier answer.")] = 0
    limit: Annotated[int, Meta(ge=1, le=MOST_NOTICES)] = 100
    run: Annotated[
        Annotated[str, Meta(max_length=100)] | None, Doc("The id of a run, or a part that no other id has.")
    ] = None
    kind: Annotated[Annotated[str, Meta(max_length=1000)] | None, Doc("One or several kinds, with commas.")] = None
    since: Annotated[Moment | None, Doc("Only notices of the last so many seconds.")] = None
    latest: Annotated[bool, Doc("The latest of those that match, not the first.")] = False
    wait: Annotated[float, Meta(ge=0, le=60), Doc("How long the answer may wait for a notice, in seconds.")] = 0.0


MOST_ENTRIES = 1000
"""How many entries of the audit log one page has at most."""

AuditText = Annotated[str, Meta(max_length=500)] | None


class ListAudit(Request):
    """Which entries: all conditions that are given hold."""

    by: Annotated[AuditText, Doc("The name of who asked, or the id of its token.")] = None
    operation: Annotated[AuditText, Doc("The name of an operation, such as `edit_plan`.")] = None
    target: Annotated[AuditText, Doc("What was changed: the name of a plan, the id of a run.")] = None
    outcome: Annotated[Literal["done", "refused", "failed"] | None, Doc("How it ended.")] = None
    since: Annotated[Moment | None, Doc("At this time or later, in seconds since 1970.")] = None
    until: Annotated[Moment | None, Doc("Before this time.")] = None
    after: Annotated[AuditText, Doc("The `next` of an earlier answer.")] = None
    limit: Annotated[int, Meta(ge=1, le=MOST_ENTRIES)] = 100


class ShowFleet(Request):
    limit: Annotated[int, Meta(ge=1, le=MOST_AT_ONCE), Doc("How many runs of each kind: owned, waiting and ended.")] = (
        100
    )


# -- devices -----------------------------------------------------------------------------------------------------------


class OneDevice(Request):
    device: Name


class ChangeDevice(OneDevice):
    reason: Reason = ""


class InviteDevice(Request):
    name: Annotated[str, Meta(min_length=1, max_length=100), Doc("Its name, or a pattern of names such as lab-*.")]
    can: Annotated[list[str], Meta(max_length=1000), Doc("What it may declare; by default any capability.")] = field(
        default_factory=list
    )
    reason: Reason = ""


class ScoreDevices(Request):
    subject: Annotated[Name, Doc("A workflow, by its name or NAME@VERSION, or a run, by its id or a part of it.")]


# -- tokens ------------------------------------------------------------------------------------------------------------

Scopes = Annotated[
    list[str], Meta(min_length=1, max_length=100), Doc("observe, operate, series, event, admin or edit:PLAN.")
]
Who = Annotated[str, Meta(min_length=1, max_length=100), Doc("Who uses it: the name in stories and edits.")]


class CreateToken(Request):
    name: Who
    scopes: Scopes
    valid: Annotated[float, Meta(ge=0, le=1e10), Doc("How long it is valid, in seconds.")] = 90 * 86_400.0
    reason: Reason = ""


class RevokeToken(Request):
    token: Annotated[Name, Doc("Its id, the second part of the token.")]
    reason: Reason = ""


class CreateLogin(Request):
    """A login of a browser. ``name`` is by default the caller."""

    scopes: Scopes
    name: Who | None = None
    reason: Reason = ""


# -- declarations ------------------------------------------------------------------------------------------------------


class FleetOperations:
    show_settings = Operation(NoFields, documents.Settings, "The settings of the fleet.", "GET /settings")
    change_settings = Operation(
        ChangeSettings, documents.Settings, "Change settings of the fleet.", "POST /settings", needs="admin"
    )
    read_metrics = Operation(
        ReadMetrics, documents.Metrics, "Metrics of the fleet and its plans.", "GET /metrics/families"
    )
    list_notices = Operation(ListNotices, documents.Page[documents.Notice], "Notices, oldest first.", "GET /notices")
    list_audit = Operation(
        ListAudit,
        documents.Page[documents.AuditEntry],
        "Who changed what, and who was refused it, the newest first.",
        "GET /audit",
        needs="admin",
    )
    show_store = Operation(NoFields, documents.StoreInfo, "What the store contains.", "GET /store")
    show_fleet = Operation(
        ShowFleet, documents.FleetView, "The runs and devices of the fleet as they are now.", "GET /fleet"
    )
    list_devices = Operation(NoFields, documents.Page[documents.Device], "List devices.", "GET /devices")
    show_device = Operation(OneDevice, documents.DeviceDetails, "A device and its runs.", "GET /devices/{device}")
    drain_device = Operation(
        ChangeDevice,
        documents.Device,
        "Ask a device to finish its runs, take no more, and leave.",
        "POST /devices/{device}/drain",
    )
    invite_device = Operation(
        InviteDevice,
        documents.DeviceInvitation,
        "Make a code with which one device joins through the server, once.",
        "POST /devices/invitations",
        needs="admin",
        status=201,
        secret=True,
    )
    revoke_device = Operation(
        ChangeDevice,
        documents.RevokedDevice,
        "Revoke the key of a device that joined through the server.",
        "POST /devices/{device}/revoke",
        needs="admin",
    )
    score_devices = Operation(
        ScoreDevices, documents.DeviceScores, "Which device would get a run, and why.", "GET /scores"
    )
    list_tokens = Operation(
        NoFields, documents.Page[documents.Token], "List tokens and browser sessions.", "GET /tokens", needs="admin"
    )
    create_token = Operation(
        CreateToken, documents.CreatedToken, "Create a token.", "POST /tokens", needs="admin", status=201, secret=True
    )
    revoke_token = Operation(
        RevokeToken,
        documents.Token,
        "Revoke a token or a browser session: the next request with it is refused.",
        "POST /tokens/{token}/revoke",
        needs="admin",
    )
    create_login = Operation(
        CreateLogin,
        documents.LoginCode,
        "Make a code that logs one browser in, once.",
        "POST /logins",
        needs="admin",
        status=201,
        secret=True,
    )
