"""Plans in a store, and their edits, as tables and lines for people, and as JSON for programs.

Times in JSON are seconds since 1970 by the clock of the store. Secrets are masked.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from asterism.base.durations import format_age
from asterism.base.status_colours import DIM, tone
from asterism.base.text import clean, json_text
from asterism.cli.cli_context import format_time
from asterism.cli.screen import Cell, Column, table, wrapped
from asterism.core.errors import EditRejected, error_text
from asterism.core.history import Entry
from asterism.core.json_values import plain_json
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.node import Node
from asterism.core.plan.status import COMPLETED, PENDING
from asterism.durable.stored_plans import StoredPlan, TaskExplanation, UnreadablePlan
from asterism.orchestrator.plan_mask import PlanMask

if TYPE_CHECKING:
    from asterism.durable.plan_requests import EditAnswer, PauseAnswer
    from asterism.fleet.fleet import Fleet

MOST_NAMES = 5
"""How many tasks a line names."""

PLAN_COLUMNS = (
    Column("NAME", least=8, name=True),
    Column("STATE"),
    Column("TASKS", right=True),
    Column("OWNER", least=8, name=True),
    Column("HEARD", right=True, needed=False),
    Column("PAUSED", least=10, needed=False),
)
_LOOKS = {
    "executing": "running",
    "at rest": "waiting",
    "partially failed": "waiting",
    "created": "pending",
    "cancelling": "cancelled",
    "repaired": "completed",
}


def plans_table(found: Sequence[StoredPlan | UnreadablePlan], now: float, width: int | None) -> list[Text]:
    return table(PLAN_COLUMNS, [plan_row(one, now) for one in found], width)


def plan_row(one: StoredPlan | UnreadablePlan, now: float) -> list[Cell]:
    if isinstance(one, UnreadablePlan):
        return [one.name, Text("unreadable", tone("failed")), "", "", "", Text(clean(one.why), DIM)]
    owner = one.owner
    heard = owner or one.gone
    return [
        one.record.head.name,
        _state_cell(one),
        f"{one.done}/{len(one.record.plan)}",
        owner.device if owner is not None else _gone_owner(one),
        format_age(now - heard.beat_at) if heard is not None else "",
        Text(clean(one.paused or ""), DIM),
    ]


def _state_cell(one: StoredPlan) -> Cell:
    state = Text(one.state, tone(_LOOKS.get(one.state, one.state)))
    return state.append(f", {one.waits_for_person}", tone("waiting")) if one.waits_for_person else state


def _gone_owner(one: StoredPlan) -> Cell:
    device = one.record.head.device
    return Text(f"{clean(device)} (gone)", DIM) if one.state in ("at rest", "cancelling") and device else ""


def status_lines(stored: StoredPlan, now: float, resume: str) -> list[str]:
    """The state of a plan, which its drawing does not show. ``resume`` is the command that resumes it."""
    record, owner = stored.record, stored.owner
    tasks = f"{stored.done} of {len(record.plan)} tasks done"
    lines = [f"{record.head.name} is {stored.state}, version {record.plan.version}: {tasks}"]
    if owner is not None:
        lines.append(f"run by {owner.device}, last heartbeat {format_age(now - owner.beat_at)} ago")
    elif not record.head.ended:
        lines += _nobody_lines(stored, now, resume)
    if stored.cancel_request is not None and (stored.cancelling or stored.state == "cancelled"):
        lines.append(f"cancelled {stored.cancel_request}")
    if stored.paused is not None:
        lines.append(f"paused {stored.paused}")
    if record.head.params:
        params = PlanMask(record.plan).shown(record.head.params)
        given = ", ".join(f"{name}={value_text(value)}" for name, value in params.items())
        lines.append(f"parameters: {given}")
    return lines


def _nobody_lines(stored: StoredPlan, now: float, resume: str) -> list[str]:
    """That no process runs a plan, since when, and how to resume it."""
    head, gone, lines = stored.record.head, stored.gone, []
    if head.device is None:
        lines.append("no process runs it")
    else:
        heard = "" if gone is None else f", and was last heard {format_age(now - gone.beat_at)} ago"
        lines.append(f"no process runs it: {head.device} is gone{heard}")
    return [*lines, f"resume it with: {resume}"]


def resume_command(fleet: Fleet, name: str) -> str:
    return shlex.join(["asterism", "resume", name, "--store", fleet.store.url])


def explanation_lines(found: TaskExplanation, width: int | None) -> Iterator[Text]:
    run = f", as run {found.run}" if found.run is not None else ""
    yield Text(f"Task {found.task!r} of plan {found.plan!r} is {found.status}{run}:")
    for reason in found.reasons:
        yield from wrapped(reason.text, width, "  ")
    for hint in found.hints:
        yield from wrapped(hint, width)
    if found.by is not None:
        yield from wrapped(f"Answered by {found.by}, which runs it.", width)


def value_text(value: Any) -> str:
    """A value on one line: text as it is, anything else as JSON."""
    return clean(value if isinstance(value, str) else json_text(value))


def story_lines(entries: Sequence[Entry], secrets: PlanMask, tracebacks: Mapping[int, str]) -> Iterator[Text]:
    """``tracebacks`` are those of functions that failed, by the place of the entry."""
    wide = max((len(entry.task or "") for entry in entries), default=0)
    for place, entry in enumerate(entries):
        yield Text.assemble(
            (f"{format_time(entry.at)}  ", DIM),
            (f"{clean(entry.task or ''):<{wide}}  " if wide else ""),
            clean(entry.what),
            (f"  {clean(secrets.shown(entry.why))}" if entry.why else "", DIM),
        )
        for line in secrets.shown(tracebacks.get(place, "")).splitlines():
            yield Text(f"    {clean(line)}", "red")


def applied_lines(name: str, answer: EditAnswer, dry_run: bool, resume: str = "") -> list[str]:
    """What an edit has changed. ``resume`` is the command that runs the plan, if the edit may have reopened it."""
    applied = answer.applied
    edits = applied.batch.edits
    changes = [clean(str(edit)) for edit in edits]
    stopped = [f"stop task {task!r}" for task in dict.fromkeys(task for task, _ in applied.stopped)]
    if not edits:
        return [f"Plan {name!r} stays at version {applied.version}: the batch changes nothing."]
    version = f"version {applied.version - 1} -> {applied.version}"
    outcome = f"Plan {name!r} would change: {version}." if dry_run else f"Plan {name!r} changed: {version}."
    by = [f"Applied by {clean(answer.by)}, which runs it."] if answer.by is not None else []
    again = [f"No process runs the plan. Resume it with: {resume}"] if answer.rests else []
    if answer.reopened:
        again = ["The plan had ended, and is open again.", *(again or ["A server on this store runs it."])]
    waits = [f"The edit would wait for a person: {clean('; '.join(answer.waits))}."] if answer.waits else []
    return [*changes, *stopped, " ".join([outcome, *by]), *again, *waits]


def paused_line(name: str, answer: PauseAnswer) -> str:
    paused = f"Plan {name!r} {'was already' if answer.already else 'is'} paused, {answer.reason}."
    if answer.owner is None:
        return paused
    if answer.by is None:
        return f"{paused} {answer.owner} runs it, and has not answered yet."
    return f"{paused} {answer.by}, which runs it, starts no more tasks."


# -- for programs ------------------------------------------------------------------------------------------------------


def summary_json(one: StoredPlan | UnreadablePlan) -> dict[str, Any]:
    """One plan of ``plan list``."""
    if isinstance(one, UnreadablePlan):
        return {"name": one.name, "state": "unreadable", "error": one.why}
    record, owner = one.record, one.owner
    return {
        "name": record.head.name,
        "state": one.state_name,
        "repaired": record.plan.repaired,
        "version": record.plan.version,
        "created_at": record.head.created_at,
        "started_at": record.plan.started_at,
        "ended_at": record.plan.ended_at,
        "done": one.done,
        "tasks": len(record.plan),
        "counts": one.counts,
        "owner": owner.device if owner is not None else None,
        "heard_at": owner.beat_at if owner is not None else None,
        "last_owner": one.record.head.device if owner is None and not record.head.ended else None,
        "last_heard_at": one.gone.beat_at if one.gone is not None else None,
        "epoch": record.head.epoch,
        "paused": one.paused,
        "cancelling": one.cancelling,
        "waiting_edits": len(one.waiting),
        "budget_spent": one.budget_spent,
    }


def plan_json(plan: Constellation, stored: StoredPlan | None = None) -> dict[str, Any]:
    """A plan with the state of every task. ``stored`` knows what running tasks do."""
    secrets = PlanMask(plan)
    values = secrets.results()
    return {
        "name": plan.id,
        "state": str(plan.state),
        "version": plan.version,
        "tasks": {node.id: _task(node, values, secrets, stored) for node in plan.nodes.values()},
    }


def details_json(stored: StoredPlan) -> dict[str, Any]:
    """The plan of ``plan show``."""
    params = PlanMask(stored.record.plan).shown(stored.record.head.params)
    shown = {**plan_json(stored.record.plan, stored), "state": stored.state_name}
    plan = {**summary_json(stored), **shown, "orphaned": list(stored.orphaned)}
    return {**plan, "params": params} if params else plan


def _task(node: Node, values: Mapping[str, Any], secrets: PlanMask, stored: StoredPlan | None) -> dict[str, Any]:
    times = node.times if stored is None else stored.times(node)
    out: dict[str, Any] = {
        "status": "waiting" if node.status is PENDING and node.open else str(node.status),
        "after": {source: edge.when or edge.on for source, edge in node.parents.items()},
        "attempts": node.attempts,
        "started_at": node.started_at,
        "ended_at": node.ended_at,
        **({} if times is None else {"attempt": times.to_json()}),
    }
    if stored is not None and (phase := stored.phase(node)) is not None:
        out["phase"] = phase
    if node.status is COMPLETED:
        out["value"] = plain_json(values[node.id], f"the result of task {node.id!r}")
    elif reason := error_text(node.error) or node.reason:
        out["reason"] = secrets.shown(reason)
    return out


def story_json(entries: Sequence[Entry], secrets: PlanMask, tracebacks: Mapping[int, str]) -> list[dict[str, Any]]:
    return [
        {**entry._asdict(), "why": secrets.shown(entry.why)}
        | ({"traceback": secrets.shown(tracebacks[place])} if place in tracebacks else {})
        for place, entry in enumerate(entries)
    ]


def applied_json(name: str, answer: EditAnswer, dry_run: bool) -> dict[str, Any]:
    applied = answer.applied
    return {
        "name": name,
        "accepted": True,
        "dry_run": dry_run,
        "version_before": applied.version - bool(applied.batch.edits),
        "version": applied.version,
        "edits": [edit.to_json() for edit in applied.batch.edits],
        "inverse": None if applied.inverse is None else applied.inverse.to_json(),
        "applied_by": answer.by,
        "reopened": answer.reopened,
        "rests": answer.rests,
        "waits": list(answer.waits),
    }


def rejected_json(name: str, rejected: EditRejected, dry_run: bool) -> dict[str, Any]:
    violations = [{"edit": one.edit, "rule": one.rule, "message": one.message} for one in rejected.violations]
    return {"name": name, "accepted": False, "dry_run": dry_run, "violations": violations}
