"""Tiny plans to arrange tests with, and the steps that a runtime would take on them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from asterism.core.errors import EditRejected, Violation
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edits import Edit, EditBatch
from asterism.core.plan.status import COMPLETED, FAILED, PENDING, TaskStatus
from asterism.core.plan.task import Task
from tests.laboratory.plan_invariants import check_invariants


def chain(*ids: str, **fields: Any) -> Constellation:
    """A plan in which each task depends on the one before it; ``fields`` are those of every task."""
    plan = Constellation("tiny")
    for before, task_id in zip((None, *ids), ids, strict=False):
        plan.add(Task(task_id, **fields), after=before)
    return plan


def begin(plan: Constellation, speculative: bool = False) -> Constellation:
    plan.speculative = speculative
    plan.begin(0.0)
    return plan


def start(plan: Constellation, task_id: str, now: float = 1.0, device: str = "laptop") -> int:
    """Take a task out of the ready queue and give it to a device."""
    node = plan.node(task_id)
    assert node.entry is not None, f"{task_id} is not ready"
    node.entry = None
    return plan.start(node, device, now)


def end(
    plan: Constellation,
    task_id: str,
    value: Any = None,
    status: TaskStatus = COMPLETED,
    error: BaseException | None = None,
    review: bool = False,
    now: float = 2.0,
) -> int:
    """Record a task's end (it is started first, if it has not been). Returns the epoch of the execution."""
    node = plan.node(task_id)
    if node.status is PENDING:
        start(plan, task_id, now - 1)
    plan.finish(node, status, now, value, error, review)
    return node.epoch


def fail(plan: Constellation, task_id: str, message: str = "boom", review: bool = False) -> int:
    return end(plan, task_id, status=FAILED, error=RuntimeError(message), review=review)


def review(plan: Constellation, *ids: str, now: float = 3.0) -> list[str]:
    """The editor has looked at the ends of these tasks. Returns what that confirmed."""
    return [node.id for node in plan.settle([(task_id, plan.node(task_id).epoch) for task_id in ids], now)]


def ready(plan: Constellation) -> list[str]:
    """What may start now, best first."""
    entries = [entry for lane in plan.queue.lanes for entry in plan.queue.entries(lane) if entry[4].entry is entry]
    return [entry[4].id for entry in sorted(entries)]


def structure(plan: Constellation) -> tuple[dict[str, Any], dict[tuple[str, str], Any]]:
    """The tasks and the dependencies, whatever their order."""
    return {view.id: view.task for view in plan}, {(d.source, d.target): d for d in plan.dependencies}


def facts(plan: Constellation) -> dict[str, Any]:
    """Everything there is to know about a plan, whatever the order of its tasks and dependencies."""
    data = plan.to_json()
    for name in ("tasks", "dependencies", "touched"):
        data[name] = sorted(json.dumps(item, sort_keys=True) for item in data[name])
    nodes = plan.nodes.values()
    counters = {node.id: (node.open, node.held, node.rank, node.provisional, node.epoch) for node in nodes}
    return {**data, "counters": counters, "ready": ready(plan), "counts": dict(plan.counts)}


def violations(plan: Constellation, *edits: Edit, base_version: int | None = None) -> list[Violation]:
    """Apply a batch that must be rejected, and see that it left no trace. Returns the reasons."""
    before = facts(plan)
    with pytest.raises(EditRejected) as caught:
        plan.apply(EditBatch(tuple(edits), "somebody", base_version=base_version), 9.0)
    check_invariants(plan)
    assert facts(plan) == before
    return list(caught.value.violations)


def told(plan: Constellation, task_id: str | None) -> list[tuple[str, str]]:
    """The story of one task (None: of the plan as a whole) as (what, why)."""
    return [(entry.what, entry.why) for entry in plan.story() if entry.task == task_id]


def through_json(plan: Constellation) -> Constellation:
    """The plan, written out as text and read back; both are the same in every respect."""
    text = json.dumps(plan.to_json())
    twin = Constellation.from_json(json.loads(text))
    assert json.dumps(twin.to_json()) == text
    return twin
