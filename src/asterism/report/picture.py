"""The picture of a plan: its tasks and dependencies at one moment, as plain data."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from asterism.base.text import masked_url, shorten
from asterism.core.plan.status import PENDING

if TYPE_CHECKING:
    from asterism.core.plan.constellation import Constellation
    from asterism.core.plan.node import Node
    from asterism.core.plan.task import Dependency, Task
    from asterism.orchestrator.plan_mask import PlanMask

STATUSES = ("pending", "waiting", "running", "completed", "failed", "cancelled", "removed")


@dataclass(frozen=True, slots=True)
class DrawnTask:
    """One task. `note` is a short remark, such as the device or the reason of a failure."""

    id: str
    label: str
    status: str = "pending"
    note: str = ""


@dataclass(frozen=True, slots=True)
class DrawnEdge:
    """One dependency. It is conditional if `when` has the text of a condition, whatever `on` is."""

    source: str
    target: str
    on: str = "success"
    when: str | None = None

    @property
    def kind(self) -> str:
        """How the edge is drawn: `success`, `failure`, `completion` or `condition`."""
        if self.when is not None:
            return "condition"
        return self.on if self.on in ("failure", "completion") else "success"

    @property
    def words(self) -> str:
        """The condition in words; empty for the usual `success`."""
        return {
            "condition": f"if {self.when}",
            "failure": "on failure",
            "completion": "on completion",
        }.get(self.kind, "")


@dataclass(frozen=True, slots=True)
class Picture:
    """A plan to draw. Ids are unique, every edge joins two tasks, and there is no cycle.

    The drawing functions raise `ValueError` for a picture that breaks this.
    """

    title: str
    tasks: tuple[DrawnTask, ...]
    edges: tuple[DrawnEdge, ...]


LONGEST_LABEL = 60


def picture(
    plan: Constellation, secrets: PlanMask | None = None, gone: Mapping[str, Iterable[Dependency]] | None = None
) -> Picture:
    """The plan as it is now. ``gone`` maps tasks that an edit removed to their dependencies.

    A removed task is drawn after its dependencies, and no present task is drawn after it."""
    from asterism.orchestrator.plan_mask import PlanMask  # drawings of other data do not need it

    secrets, gone = secrets or PlanMask(plan), gone or {}
    drawn_tasks = [_drawn_task(node, secrets) for node in plan.nodes.values()]
    drawn_tasks += [DrawnTask(task_id, "", "removed") for task_id in gone]
    lines = [DrawnEdge(edge.source, edge.target, edge.on, edge.when) for edge in plan.dependencies]
    lines += [
        DrawnEdge(edge.source, edge.target, edge.on, edge.when)
        for edges in gone.values()
        for edge in edges
        if edge.source in plan or edge.source in gone
    ]
    return Picture(plan.id, tuple(drawn_tasks), tuple(lines))


def _drawn_task(node: Node, secrets: PlanMask) -> DrawnTask:
    status = "waiting" if node.status is PENDING and node.open else str(node.status)
    return DrawnTask(node.id, label(node.task, secrets), status, node.device or node.task.device or "")


def label(task: Task, secrets: PlanMask) -> str:
    """A task in a line: its description, or its action."""
    return shorten(secrets.shown(task.description or _action(task)), LONGEST_LABEL)


def _action(task: Task) -> str:
    if task.argv is not None:
        return shlex.join(task.argv)
    if task.shell is not None:
        return task.shell
    if task.http is not None:
        return f"{task.http.get('method', 'GET')} {masked_url(str(task.http.get('url', '')))}"
    if task.call is None:
        return ""
    return task.call if isinstance(task.call, str) else f"{getattr(task.call, '__name__', 'function')}()"
