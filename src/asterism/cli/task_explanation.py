"""``asterism plan why``: why a task is not running, from the stored plan and the task's run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from asterism.base.durations import format_age
from asterism.cli.run_hints import hints
from asterism.cli.screen import wrapped
from asterism.cli.stored_plans import StoredPlan, read_plan
from asterism.core.errors import UnknownTask, error_text
from asterism.core.plan.explain import Holder, why
from asterism.core.plan.node import Node
from asterism.core.plan.status import TERMINAL
from asterism.core.run.run import Run
from asterism.fleet import run_explanation
from asterism.fleet.fleet import Fleet
from asterism.fleet.retention import PREFIX
from asterism.orchestrator.plan_mask import PlanMask
from asterism.store.protocol import Query


@dataclass(frozen=True, slots=True)
class TaskExplanation:
    """``reasons`` are those of the task's run, if it has one; otherwise those of the plan. ``hints`` are commands that
    a person may type."""

    plan: str
    task: str
    status: str
    reasons: Sequence[Holder | run_explanation.Reason]
    run: str | None = None
    hints: Sequence[str] = ()


async def explain_task(fleet: Fleet, name: str, task: str) -> TaskExplanation:
    """Raises UnknownTask."""
    stored = await read_plan(fleet, name)
    plan, now = stored.kept.plan, fleet.store.clock()
    node = plan.nodes.get(task)
    if node is None:
        raise UnknownTask(task)
    if node.status in TERMINAL:
        return TaskExplanation(name, task, str(node.status), [_ended(node, PlanMask(plan), now)])
    run = await _run_of(fleet, name, node)
    if run is not None:
        answer = await run_explanation.explain_run(fleet, run.id)
        return TaskExplanation(name, task, answer.status, answer.reasons, run.id, await hints(fleet, run, answer))
    told = why(plan, stored.kept.lock, node, _plan_holder(stored), now)
    mask = PlanMask(plan)
    reasons = [Holder(one.kind, one.name, mask.shown(one.text)) for one in told.holders]
    return TaskExplanation(name, task, told.status, reasons)


def _ended(node: Node, mask: PlanMask, now: float) -> Holder:
    reason = error_text(node.error) or node.reason
    text = f"it ended {format_age(now - (node.ended_at or now))} ago" + (f": {mask.shown(reason)}" if reason else "")
    return Holder("ended", str(node.status), text)


async def _run_of(fleet: Fleet, plan: str, node: Node) -> Run | None:
    """The run of the fleet that executes a task now."""
    found = await fleet.store.find(Query(key=f"{PREFIX}{plan}/{node.id}/{node.epoch}"))
    return found[0] if found and not found[0].ended else None


def _plan_holder(stored: StoredPlan) -> Holder | None:
    """What keeps the plan from starting a task that is ready."""
    name = stored.kept.head.name
    if stored.cancelling:
        return Holder("cancel", name, "the plan is being cancelled")
    if stored.paused is not None:
        return Holder("pause", name, f"the plan is paused {stored.paused}")
    if stored.owner is None:
        return Holder("at_rest", name, f"no process runs the plan; resume it with: asterism resume {name}")
    return None


def explanation_json(found: TaskExplanation) -> dict[str, Any]:
    reasons = [{"kind": one.kind, "name": one.name, "text": one.text} for one in found.reasons]
    return {"name": found.plan, "task": found.task, "status": found.status, "run": found.run, "reasons": reasons}


def explanation_lines(found: TaskExplanation, width: int | None) -> Iterator[Text]:
    run = f", as run {found.run}" if found.run is not None else ""
    yield Text(f"Task {found.task!r} of plan {found.plan!r} is {found.status}{run}:")
    for reason in found.reasons:
        yield from wrapped(reason.text, width, "  ")
    for hint in found.hints:
        yield from wrapped(hint, width)
