"""Tables of devices, scores and workflows, and the settings of a fleet, for people."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.text import Text

from asterism.base.durations import format_age
from asterism.base.status_colours import BOLD, DIM, tone
from asterism.base.text import clean, masked_url, masked_urls
from asterism.cli.cli_context import format_size
from asterism.cli.screen import Cell, Column, fact_lines, table
from asterism.core.json_values import plain_json
from asterism.core.plan.task import import_path
from asterism.core.run import transitions
from asterism.core.run.run import Run
from asterism.core.run.session import REACHABLE_STATES, Session
from asterism.core.run.workflow import DEFAULTS, Workflow
from asterism.fleet.fleet import Fleet
from asterism.fleet.fleet_json import state_of
from asterism.fleet.settings import Settings

_DEVICE_LOOKS = {
    "busy": "running",
    "ready": "completed",
    "draining": "waiting",
    "resting": "waiting",
    "silent": "failed",
    "suspended": "failed",
}


DEVICE_COLUMNS = (
    Column(""),
    Column("DEVICE", least=8, name=True),
    Column("STATE"),
    Column("PEER", least=6, needed=False),
    Column("SLOTS", right=True),
    Column("LOAD", right=True),
    Column("QUALITY", right=True),
    Column("RANK", right=True),
    Column("BATTERY", right=True, needed=False),
    Column("BEAT", right=True),
    Column("CAN", least=8, needed=False),
)


def devices_table(
    sessions: Sequence[Session], now: float, ranks: Mapping[str, float], coordinator: str | None, width: int | None
) -> list[Text]:
    return table(DEVICE_COLUMNS, [device_row(one, now, ranks, coordinator) for one in sessions], width)


def device_row(session: Session, now: float, ranks: Mapping[str, float], coordinator: str | None) -> list[Cell]:
    state = state_of(session, now)
    there = session.state in REACHABLE_STATES
    rank = ranks.get(session.device, 0.0)
    shown = session.expression_names(rank)
    return [
        Text("*" if session.device == coordinator and there else "", tone("waiting")),
        Text(clean(session.device), "" if there else DIM),
        Text(state, tone(_DEVICE_LOOKS[state]) if state in _DEVICE_LOOKS else DIM),
        clean(session.peer or ""),
        f"{session.used}/{session.slots}",
        f"{shown['load']:.2f}",
        f"{session.quality:.2f}",
        f"{rank:.2f}" if session.device in ranks else "",
        _battery(session.profile.get("battery"), shown["plugged"]),
        Text(format_age(now - session.beat_at), tone("failed") if state == "silent" else ""),
        Text(clean(", ".join(sorted(session.can))), DIM),
    ]


def _battery(battery: object, plugged: object) -> str:
    """The charge of the battery; empty for a device without one."""
    if not isinstance(battery, int | float) or isinstance(battery, bool):
        return ""
    return f"{battery:.0%}{' +' if plugged else ''}"


PARTS = ("load", "connection", "rank", "capability")


@dataclass(frozen=True, slots=True)
class DeviceScore:
    """A device in the selection for a run. ``parts`` is None if it is not a candidate; ``why`` says why, or that it has
    no free slot."""

    device: str
    parts: dict[str, float] | None
    why: str
    chosen: bool

    @property
    def score(self) -> float | None:
        return None if self.parts is None else round(sum(self.parts.values()), 2)

    def to_json(self) -> dict[str, Any]:
        return {
            "device": self.device,
            "score": self.score,
            "parts": None if self.parts is None else {name: round(part, 2) for name, part in self.parts.items()},
            "candidate": self.parts is not None,
            "chosen": self.chosen,
            "why": self.why or None,
        }


async def scores(fleet: Fleet, workflow: Workflow, run: Run | None = None) -> list[DeviceScore]:
    """The devices for a run, or for a new run of the workflow: candidates first, the best at the top."""
    sample = run or transitions.create("sample", workflow, {}, by=fleet.by, now=fleet.store.clock())
    placer = await fleet.placer(fresh=True)
    choice = placer.choose(sample, workflow)
    chosen = choice.owner.device if choice.owner is not None else None
    found = []
    for session in placer.sessions.values():
        refusal = choice.refused.get(session.device)
        parts = placer.score_parts(session, workflow) if refusal is None else None
        why = refusal or ("no free slot" if session.device in choice.busy else "")
        found.append(DeviceScore(session.device, parts, why, session.device == chosen))
    for session in await fleet.store.sessions():
        if session.state in REACHABLE_STATES and session.device not in placer.sessions:
            quiet = f"no heartbeat for {format_age(placer.now - session.beat_at)}"
            found.append(DeviceScore(session.device, None, quiet, False))
    return sorted(found, key=lambda one: (one.score is None, -(one.score or 0.0), one.device))


_SCORE_COLUMNS = (
    Column(""),
    Column("DEVICE", least=8, name=True),
    Column("SCORE", right=True),
    *(Column(part.upper(), right=True) for part in PARTS),
    Column("WHY NOT", least=16, needed=False),
)


def scores_table(found: list[DeviceScore], width: int | None) -> list[Text]:
    rows: list[list[Cell]] = []
    for one in found:
        figures = [f"{one.parts[part]:.1f}" for part in PARTS] if one.parts is not None else [""] * len(PARTS)
        total = "" if one.score is None else f"{one.score:.2f}"
        mark = Text("*" if one.chosen else "", BOLD)
        name = Text(one.device, BOLD if one.chosen else DIM if one.parts is None else "")
        rows.append([mark, name, total, *figures, Text(one.why, DIM)])
    return table(_SCORE_COLUMNS, rows, width)


def scores_lines(workflow: Workflow, run: Run | None, found: list[DeviceScore], width: int | None) -> Iterator[Text]:
    """The scores now, and for a run those at its assignment."""
    about = f"{workflow.name}@{workflow.version}"
    yield Text(f"{f'Run {run.id} of ' if run is not None else ''}{about}, strategy {workflow.strategy}", BOLD)
    if found:
        yield from scores_table(found, width)
    else:
        yield Text("No device is joined.")
    if run is not None and run.scores:
        listed = ", ".join(f"{name} {score:.2f}" for name, score in sorted(run.scores.items(), key=lambda one: -one[1]))
        yield Text()
        yield Text(f"At its assignment to {run.device}, epoch {run.epoch}: {listed}")


_WORKFLOW_COLUMNS = (
    Column("WORKFLOW", least=12, name=True),
    Column("VERSION", right=True),
    Column("EXECUTES", least=20),
    Column("NEEDS", least=6, needed=False),
    Column("BEAT", right=True),
    Column("TIMEOUT", right=True),
    Column("DESCRIPTION", least=12, needed=False),
)


def workflows_table(workflows: Sequence[Workflow], width: int | None) -> list[Text]:
    rows: list[list[Cell]] = [
        [
            flow.name,
            str(flow.version),
            action_of(flow),
            ", ".join(sorted(flow.needs)),
            format_age(flow.heartbeat),
            format_age(flow.timeout),
            Text(clean(flow.description), DIM),
        ]
        for flow in workflows
    ]
    return table(_WORKFLOW_COLUMNS, rows, width)


def action_of(flow: Workflow) -> str:
    """What the workflow executes, on one line."""
    if flow.argv is not None:
        return shlex.join(flow.argv).replace("'{", "{").replace("}'", "}")
    if flow.shell is not None:
        return f"sh: {flow.shell}"
    if flow.http is not None:
        return f"{flow.http.get('method', 'GET')} {masked_url(str(flow.http['url']))}"
    if flow.agent is not None:
        return f"agent: {flow.agent['description']}"
    return import_path(flow.call, flow.name) if flow.call is not None else ""


def workflow_lines(flow: Workflow) -> list[Text]:
    """All fields of a workflow; defaults are dim."""
    lines = [Text.assemble((clean(flow.name), BOLD), f"@{flow.version}  {clean(action_of(flow))}")]
    wide = max(len(name) for name in DEFAULTS)
    for name, default in DEFAULTS.items():
        value = getattr(flow, name)
        if name in ("version", "argv", "shell", "call") or (value == default and not isinstance(value, int | float)):
            continue
        text = ", ".join(sorted(value)) if isinstance(value, frozenset) else _written(value)
        lines.append(Text(f"  {name:<{wide}}  ", DIM).append(clean(text), DIM if value == default else ""))
    return lines


def _written(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g} s"
    return masked_urls(json.dumps(plain_json(value), ensure_ascii=False)) if isinstance(value, Mapping) else str(value)


def settings_lines(settings: Settings) -> list[Text]:
    """The settings of a fleet, each with its meaning."""
    weights = ", ".join(f"{name} {value:g}" for name, value in asdict(settings.weights).items())
    facts = {
        "keep": f"runs are deleted {format_age(settings.keep)} after their end",
        "large": f"inputs and outputs above {format_size(settings.large)} are stored apart",
        "most": f"inputs and outputs above {format_size(settings.most)} are refused",
        "device_bytes": f"each device of a gateway may store {format_size(settings.device_bytes)} of "
        "large results within an hour",
        "lease": f"the coordinator stays elected for {format_age(settings.lease)} without a heartbeat",
        "hold": f"runs stay assigned for {format_age(settings.hold)} when most devices vanish at once",
        "peer_timeout": f"runs of a peer are taken over after {format_age(settings.peer_timeout)} without contact",
        "peer_runs": f"each peer may store {settings.peer_runs:,} runs here",
        "peer_bytes": f"each peer may store {format_size(settings.peer_bytes)} of records here",
        "peer_blobs": f"each peer may store {format_size(settings.peer_blobs)} of large inputs and outputs here",
        "notify_command": shlex.join(settings.notify_command) if settings.notify_command is not None else "none",
        "notify_url": masked_url(settings.notify_url or "none"),
        "weights": weights,
    }
    return fact_lines(facts)
