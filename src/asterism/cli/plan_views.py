"""Constellations of a store for people, as tables and lines, and for programs, as JSON.

Times in JSON are seconds since 1970 by the clock of the store. No secret is in any of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from asterism.base.durations import format_age
from asterism.base.text import clean
from asterism.cli.short_spans import moment
from asterism.cli.stored_plans import Seen, Unreadable
from asterism.cli.text_table import Cell, Column, table
from asterism.core.errors import reason_of
from asterism.core.history import Entry
from asterism.core.json_values import plain
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.node import Node
from asterism.core.plan.status import COMPLETED, PENDING
from asterism.orchestrator.plan_mask import PlanMask
from asterism.report.status_style import DIM, tone

_COLUMNS = (
    Column("NAME", least=8),
    Column("STATE"),
    Column("TASKS", right=True),
    Column("OWNER", least=8),
    Column("HEARD", right=True, needed=False),
    Column("PAUSED", least=10, needed=False),
)
_LOOKS = {
    "executing": "running",
    "at rest": "waiting",
    "partially failed": "waiting",
    "created": "pending",
    "cancelling": "cancelled",
}


def constellations_table(found: Sequence[Seen | Unreadable], now: float, width: int | None) -> list[Text]:
    return table(_COLUMNS, [_row(one, now) for one in found], width)


def _row(one: Seen | Unreadable, now: float) -> list[Cell]:
    if isinstance(one, Unreadable):
        return [one.name, Text("unreadable", tone("failed")), "", "", "", Text(clean(one.why), DIM)]
    owner = one.owner
    return [
        one.kept.head.name,
        Text(one.state, tone(_LOOKS.get(one.state, one.state))),
        f"{one.done}/{len(one.kept.plan)}",
        owner.device if owner is not None else "",
        format_age(now - owner.beat_at) if owner is not None else "",
        Text(clean(one.paused or ""), DIM),
    ]


def lines_about(seen: Seen, now: float) -> list[str]:
    """What the drawing of a constellation does not say."""
    kept, owner = seen.kept, seen.owner
    told = [
        f"{kept.head.name} is {seen.state}, version {kept.plan.version}: {seen.done} of {len(kept.plan)} tasks done"
    ]
    if owner is not None:
        told.append(f"run by {owner.device}, heard of {format_age(now - owner.beat_at)} ago")
    if seen.unwanted is not None and (seen.cancelling or seen.state == "cancelled"):
        told.append(f"cancelled {seen.unwanted}")
    if seen.paused is not None:
        told.append(f"paused {seen.paused}")
    return told


def story_lines(entries: Sequence[Entry], secrets: PlanMask) -> list[Text]:
    wide = max((len(entry.task or "") for entry in entries), default=0)
    return [
        Text.assemble(
            (f"{moment(entry.at)}  ", DIM),
            (f"{clean(entry.task or ''):<{wide}}  " if wide else ""),
            clean(entry.what),
            (f"  {clean(secrets.shown(entry.why))}" if entry.why else "", DIM),
        )
        for entry in entries
    ]


# -- for programs ------------------------------------------------------------------------------------------------------


def summary_json(one: Seen | Unreadable) -> dict[str, Any]:
    """A line of the list."""
    if isinstance(one, Unreadable):
        return {"name": one.name, "state": "unreadable", "error": one.why}
    kept, owner = one.kept, one.owner
    return {
        "name": kept.head.name,
        "state": str(kept.plan.state),
        "version": kept.plan.version,
        "created_at": kept.head.created_at,
        "started_at": kept.plan.started_at,
        "ended_at": kept.plan.ended_at,
        "done": one.done,
        "tasks": len(kept.plan),
        "counts": {str(status): count for status, count in kept.plan.counts.items() if count},
        "owner": owner.device if owner is not None else None,
        "heard_at": owner.beat_at if owner is not None else None,
        "epoch": kept.head.epoch,
        "paused": one.paused,
        "cancelling": one.cancelling,
    }


def plan_json(plan: Constellation) -> dict[str, Any]:
    """A plan with the state of every task."""
    secrets = PlanMask(plan)
    values = secrets.results()
    return {
        "name": plan.id,
        "state": str(plan.state),
        "version": plan.version,
        "tasks": {node.id: _task(node, values, secrets) for node in plan.nodes.values()},
    }


def details_json(seen: Seen) -> dict[str, Any]:
    return {**summary_json(seen), **plan_json(seen.kept.plan)}


def _task(node: Node, values: Mapping[str, Any], secrets: PlanMask) -> dict[str, Any]:
    out: dict[str, Any] = {
        "status": "waiting" if node.status is PENDING and node.open else str(node.status),
        "after": {source: edge.when or edge.on for source, edge in node.parents.items()},
        "attempts": node.attempts,
        "started_at": node.started_at,
        "ended_at": node.ended_at,
    }
    if node.status is COMPLETED:
        out["value"] = plain(values[node.id], f"the result of task {node.id!r}")
    elif reason := reason_of(node.error) or node.reason:
        out["reason"] = secrets.shown(reason)
    return out


def story_json(entries: Sequence[Entry], secrets: PlanMask) -> list[dict[str, Any]]:
    return [{**entry._asdict(), "why": secrets.shown(entry.why)} for entry in entries]
