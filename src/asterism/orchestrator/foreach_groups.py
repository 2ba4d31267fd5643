"""Groups of a running plan: expand one into tasks when its list is known, and gather the results of its tasks.

No device executes a group. When it is ready, the orchestrator either applies the edit that expands it, or records its
start and its end in one step of the loop, so a stored plan has both or none of them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from asterism.core.errors import AsterismError
from asterism.core.plan.node import Node
from asterism.core.plan.status import COMPLETED, FAILED
from asterism.execution.foreach_expansion import expansion
from asterism.orchestrator.plan_mask import PlanMask

if TYPE_CHECKING:
    from asterism.orchestrator.execution import Execution

HERE = "orchestrator"
"""The device of a group in the story."""

MOST_NAMES = 5
"""How many failed elements an error names."""


class ElementsFailed(AsterismError):
    """Some tasks of a group failed."""


def advance_group(execution: Execution, node: Node, now: float) -> bool:
    """Expand a group that is ready, or end it. Returns True: one task has made its step."""
    plan = execution.plan
    value: Any = None
    error: AsterismError | None = None
    try:
        foreach = node.task.foreach or {}
        if "of" not in foreach:
            source = plan.nodes.get(foreach["from"])
            result = None if source is None else source.value
            batch = expansion(node.task, tuple(node.parents.values()), result)
            plan.apply(replace(batch, editor=plan.edited.get(node.id)), now)
            return True
        value = _gathered(execution, foreach["of"])
    except AsterismError as failure:  # an edit that was rejected, too: an element has the id of another task
        error = failure
    plan.start(node, HERE, now)
    if error is None:
        execution.end(node, COMPLETED, value)
    else:
        execution.fail(node, PlanMask(plan)().error(error))
    return True


def _gathered(execution: Execution, ids: list[str]) -> list[Any]:
    """The results of the elements that are in the plan. Raises ElementsFailed."""
    nodes = [execution.plan.nodes[one] for one in ids if one in execution.plan.nodes]
    failed = [node.id for node in nodes if node.status is FAILED]
    if failed:
        more = f" and {len(failed) - MOST_NAMES:,} more" if len(failed) > MOST_NAMES else ""
        raise ElementsFailed(f"{len(failed)} of {len(nodes)} elements failed: {', '.join(failed[:MOST_NAMES])}{more}")
    return [node.value for node in nodes]
