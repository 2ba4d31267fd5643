"""A result as JSON data, for programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asterism.core.errors import error_text
from asterism.core.json_values import plain_json
from asterism.core.plan.node import Node
from asterism.core.plan.status import COMPLETED
from asterism.orchestrator.plan_mask import PlanMask
from asterism.orchestrator.result import Result


def result_json(result: Result) -> dict[str, Any]:
    """The end of a run: its state, its figures and every task. Times are seconds since 1970. No secret is in it."""
    plan, summary = result.plan, result.summary
    secrets = PlanMask(plan)
    values = secrets.results()
    reasons = {entry.task: entry.why for entry in result.story() if entry.what == "cancelled"}
    return {
        "id": plan.id,
        "state": str(result.state),
        "exit_code": result.exit_code,
        "version": plan.version,
        "started_at": plan.started_at,
        "ended_at": plan.ended_at,
        "summary": {
            "makespan": summary.makespan,
            "lower_bound": summary.lower_bound,
            "critical_path": summary.parallelism.critical_path,
            "path": list(summary.parallelism.path),
            "work": summary.parallelism.work,
            "parallelism": summary.parallelism.ratio,
            "held": summary.held,
            "cycles": summary.cycles,
            "edits_accepted": summary.edits_accepted,
            "edits_rejected": summary.edits_rejected,
        },
        "tasks": {node.id: _task(node, reasons.get(node.id, ""), values, secrets) for node in plan.nodes.values()},
    }


def _task(node: Node, reason: str, values: Mapping[str, Any], secrets: PlanMask) -> dict[str, Any]:
    out: dict[str, Any] = {
        "status": str(node.status),
        "device": node.device,
        "attempts": node.attempts,
        "started_at": node.started_at,
        "ended_at": node.ended_at,
    }
    if node.status is COMPLETED:
        out["value"] = plain_json(values[node.id], f"the result of task {node.id!r}")
    elif node.error is not None or reason:
        out["reason"] = secrets.shown(error_text(node.error) or reason)
    return out
