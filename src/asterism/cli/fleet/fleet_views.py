"""Devices, scores, workflows, settings, notices, tokens and a store for people, made of their documents."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from rich.text import Text

from asterism.api import documents
from asterism.base.durations import format_age
from asterism.base.status_colours import BOLD, DIM, tone
from asterism.base.text import clean, masked_url, masked_urls
from asterism.cli.cli_context import format_size, format_time
from asterism.cli.run.run_views import RUN_TABLE
from asterism.cli.tables import Cell, Column, TimedTable, fact_lines, table_of
from asterism.core.plan.task import plugin_text
from asterism.core.record import asdict
from asterism.core.run.work import DEFAULTS

GONE = ("left", "replaced", "revoked")
"""The states of devices that are not there any more."""

_DEVICE_LOOKS = {
    "busy": "running",
    "ready": "completed",
    "draining": "waiting",
    "resting": "waiting",
    "silent": "failed",
    "suspended": "failed",
}


def _battery(device: documents.Device) -> str:
    """The charge of the battery; empty for a device without one. A device that does not say counts as plugged in."""
    plugged = device.profile.get("plugged")
    return "" if device.battery is None else f"{device.battery:.0%}{' +' if plugged is None or plugged else ''}"


def _device_state(device: documents.Device, now: float) -> Text:
    return Text(device.state, tone(_DEVICE_LOOKS[device.state]) if device.state in _DEVICE_LOOKS else DIM)


def _heard(device: documents.Device, now: float) -> Text:
    return Text(format_age(now - device.last_heartbeat_at), tone("failed") if device.state == "silent" else "")


DEVICE_TABLE = TimedTable[documents.Device](
    {
        Column(""): lambda device, now: Text("*" if device.coordinator else "", tone("waiting")),
        Column("DEVICE", least=8, name=True): lambda device, now: Text(
            clean(device.name), DIM if device.state in GONE else ""
        ),
        Column("STATE"): _device_state,
        Column("PEER", least=6, needed=False): lambda device, now: clean(device.peer or ""),
        Column("SLOTS", right=True): lambda device, now: f"{device.used}/{device.slots}",
        Column("LOAD", right=True): lambda device, now: f"{device.load:.2f}",
        Column("QUALITY", right=True): lambda device, now: f"{device.quality:.2f}",
        Column("RANK", right=True): lambda device, now: f"{device.rank:.2f}" if device.rank is not None else "",
        Column("BATTERY", right=True, needed=False): lambda device, now: _battery(device),
        Column("BEAT", right=True): _heard,
        Column("CAN", least=8, needed=False): lambda device, now: Text(clean(", ".join(device.can)), DIM),
    }
)


def device_lines(device: documents.DeviceDetails, width: int | None) -> Iterator[Text]:
    """All fields of a device, the runs that it holds, and its latest."""
    known: dict[str, Any] = {name: value for name, value in asdict(device).items() if value not in (None, [], {})}
    for name in ("holds", "latest", "now"):
        known.pop(name, None)
    for name in ("joined_at", "last_heartbeat_at"):
        known[name] = format_time(known[name])
    facts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in known.items()}
    yield from fact_lines(facts)
    for title, runs in (("Runs that it holds", device.holds), ("Latest runs", device.latest)):
        yield Text()
        yield Text(title, BOLD)
        yield from RUN_TABLE.lines(runs, device.now, width) if runs else [Text("  none", DIM)]


PARTS = ("load", "connection", "rank", "capability")


def scores_table(scores: Sequence[documents.DeviceScore], width: int | None) -> list[Text]:
    def figure(part: str, score: documents.DeviceScore) -> Cell:
        return "" if score.parts is None else f"{score.parts[part]:.1f}"

    def name(score: documents.DeviceScore) -> Cell:
        if score.chosen:
            return Text(score.device, BOLD)
        return Text(score.device, "" if score.candidate else DIM)

    return table_of(
        scores,
        {
            Column(""): lambda score: Text("*" if score.chosen else "", BOLD),
            Column("DEVICE", least=8, name=True): name,
            Column("SCORE", right=True): lambda score: "" if score.score is None else f"{score.score:.2f}",
            **{Column(part.upper(), right=True): partial(figure, part) for part in PARTS},
            Column("WHY NOT", least=16, needed=False): lambda score: Text(score.why or "", DIM),
        },
        width,
    )


def scores_lines(scores: documents.DeviceScores, width: int | None) -> Iterator[Text]:
    """The scores now, and for a run those at its assignment."""
    about = f"{scores.workflow}@{scores.version}"
    yield Text(f"{f'Run {scores.run} of ' if scores.run is not None else ''}{about}, strategy {scores.strategy}", BOLD)
    if scores.devices:
        yield from scores_table(scores.devices, width)
    else:
        yield Text("No device is joined.")
    if scores.assignment:
        order = sorted(scores.assignment.items(), key=lambda pair: -pair[1])
        listed = ", ".join(f"{name} {score:.2f}" for name, score in order)
        yield Text()
        yield Text(f"At its assignment to {scores.assigned_to}, epoch {scores.epoch}: {listed}")


def action_of(flow: documents.Workflow) -> str:
    """What the workflow executes, on one line."""
    if flow.argv is not None:
        return shlex.join(flow.argv).replace("'{", "{").replace("}'", "}")
    if flow.shell is not None:
        return f"sh: {flow.shell}"
    if flow.http is not None:
        return f"{flow.http.get('method', 'GET')} {masked_url(str(flow.http['url']))}"
    if flow.agent is not None:
        return f"agent: {flow.agent['description']}"
    if flow.plugin is not None:
        return plugin_text(flow.plugin)
    return flow.call or ""


WORKFLOW_TABLE = TimedTable[documents.Workflow](
    {
        Column("WORKFLOW", least=12, name=True): lambda flow, now: flow.name,
        Column("VERSION", right=True): lambda flow, now: str(flow.version),
        Column("EXECUTES", least=20): lambda flow, now: action_of(flow),
        Column("NEEDS", least=6, needed=False): lambda flow, now: ", ".join(flow.needs),
        Column("BEAT", right=True): lambda flow, now: format_age(flow.heartbeat),
        Column("TIMEOUT", right=True): lambda flow, now: format_age(flow.heartbeat_timeout),
        Column("DESCRIPTION", least=12, needed=False): lambda flow, now: Text(clean(flow.description), DIM),
    }
)


def workflow_lines(flow: documents.Workflow, width: int | None = None) -> list[Text]:
    """All fields of a workflow; defaults are dim."""
    lines = [Text.assemble((clean(flow.name), BOLD), f"@{flow.version}  {clean(action_of(flow))}")]
    wide = max(len(name) for name in DEFAULTS)
    for name, default in DEFAULTS.items():
        value = getattr(flow, name)
        is_default = value == default or not value
        if name in ("version", "argv", "shell", "call") or (is_default and not isinstance(value, int | float)):
            continue
        text = ", ".join(value) if isinstance(value, list) else _written(value)
        lines.append(Text(f"  {name:<{wide}}  ", DIM).append(clean(text), DIM if value == default else ""))
    return lines


def _written(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g} s"
    return masked_urls(json.dumps(value, ensure_ascii=False)) if isinstance(value, Mapping) else str(value)


AUDIT_TABLE = TimedTable[documents.AuditEntry](
    {
        Column("TIME"): lambda entry, now: format_time(entry.at),
        Column("BY", least=6): lambda entry, now: clean(entry.by),
        Column("OPERATION"): lambda entry, now: entry.operation,
        Column("TARGET", least=8, name=True): lambda entry, now: clean(entry.target),
        Column("OUTCOME"): lambda entry, now: Text(entry.outcome, "" if entry.outcome == "done" else tone("failed")),
        Column("WHY", least=8, needed=False): lambda entry, now: clean(entry.reason or entry.detail),
        Column("FROM", needed=False): lambda entry, now: entry.address or entry.kind,
    }
)


def settings_lines(settings: documents.Settings, width: int | None = None) -> list[Text]:
    """The settings of a fleet, each with its meaning."""
    weights = ", ".join(f"{name} {value:g}" for name, value in settings.weights.items())
    facts = {
        "keep": f"runs are deleted {format_age(settings.keep)} after their end",
        "keep_events": f"events are deleted {format_age(settings.keep_events)} after they were sent",
        "keep_audit": f"entries of the audit log are deleted after {format_age(settings.keep_audit)}",
        "large": f"inputs and outputs above {format_size(settings.large)} are stored apart",
        "most": f"inputs and outputs above {format_size(settings.most)} are refused",
        "device_bytes": f"each device of a gateway may store {format_size(settings.device_bytes)} of "
        "large results within an hour",
        "credential_bytes": f"each credential of a server may store {format_size(settings.credential_bytes)} "
        "within an hour",
        "artifacts": settings.artifacts or "files of tasks are kept beside the store",
        "lease": f"the coordinator stays elected for {format_age(settings.lease)} without a heartbeat",
        "hold": f"runs stay assigned for {format_age(settings.hold)} when most devices vanish at once",
        "peer_timeout": f"runs of a peer are taken over after {format_age(settings.peer_timeout)} without contact",
        "peer_runs": f"each peer may store {settings.peer_runs:,} runs here",
        "peer_bytes": f"each peer may store {format_size(settings.peer_bytes)} of records here",
        "peer_blobs": f"each peer may store {format_size(settings.peer_blobs)} of large inputs and outputs here",
        "notify_command": shlex.join(settings.notify_command) if settings.notify_command is not None else "none",
        "notify_url": settings.notify_url or "none",
        "weights": weights,
    }
    return fact_lines(facts)


# -- notices, tokens, the store ----------------------------------------------------------------------------------------


def notice_line(notice: documents.Notice) -> str:
    return clean(f"{format_time(notice.at)}  {notice.kind:<9}  {notice.message}")


TOKEN_TABLE = TimedTable[documents.Token](
    {
        Column("ID"): lambda token, now: token.id,
        Column("FOR", least=8, name=True): lambda token, now: token.name,
        Column("SCOPES", least=10): lambda token, now: ", ".join(token.scopes),
        Column("KIND"): lambda token, now: token.kind,
        Column("STATE"): lambda token, now: token.state,
        Column("EXPIRES", needed=False): lambda token, now: format_time(token.expires_at),
    }
)


def store_lines(info: documents.StoreInfo, width: int | None = None) -> list[Text]:
    off, way = abs(info.clock_ahead), "ahead of" if info.clock_ahead > 0 else "behind"
    facts = {
        "store": info.store or "",
        "clock": format_time(info.clock) + (f", {format_age(off)} {way} this machine's" if off >= 1 else ""),
        "runs": _counted({name: number for name, number in info.runs.items() if number}),
        "devices": _counted(info.devices),
        "coordinator": info.coordinator or "none",
        "workflows": f"{info.workflows:,}",
        "series": f"{info.series:,}, {info.series_active:,} with an active run",
    }
    return fact_lines(facts)


def _counted(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{number:,} {name}" for name, number in numbers.items()) or "none"
