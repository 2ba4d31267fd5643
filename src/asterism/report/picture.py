"""What is drawn: the tasks and dependencies of a constellation at one moment, as plain data.

Pictures of constellations: as planned, and as they are."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from asterism.base.text import shorten
from asterism.base.url_text import masked_url
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.node import Node
from asterism.core.plan.status import PENDING
from asterism.core.plan.task import Dependency, Task
from asterism.orchestrator.plan_mask import PlanMask

STATUSES = ("pending", "waiting", "running", "completed", "failed", "cancelled", "removed")


@dataclass(frozen=True, slots=True)
class Star:
    """One task. `note` is a short remark, such as the device or the reason of a failure."""

    id: str
    label: str
    status: str = "pending"
    note: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """One dependency. It is conditional when `when` holds the text of a condition, whatever `on` says."""

    source: str
    target: str
    on: str = "success"
    when: str | None = None

    @property
    def kind(self) -> str:
        """How the line is drawn: `success`, `failure`, `completion` or `condition`."""
        if self.when is not None:
            return "condition"
        return self.on if self.on in ("failure", "completion") else "success"

    @property
    def words(self) -> str:
        """What the line asks for, in words; empty for the usual `success`."""
        return {
            "condition": f"if {self.when}",
            "failure": "on failure",
            "completion": "on completion",
        }.get(self.kind, "")


@dataclass(frozen=True, slots=True)
class Picture:
    """A constellation to draw. Ids are unique, every line joins two stars, and the lines form no cycle.

    The drawing functions raise `ValueError` for a picture that breaks this.
    """

    title: str
    stars: tuple[Star, ...]
    lines: tuple[Line, ...]


LONGEST_LABEL = 60


def picture(plan: Constellation, secrets: PlanMask, gone: Mapping[str, Iterable[Dependency]] | None = None) -> Picture:
    """The plan as it is now. ``gone`` are tasks that an edit removed, with what each of them waited for.

    A removed task hangs below what it waited for, and nothing that is still in the plan hangs below it."""
    gone = gone or {}
    stars = [_star(node, secrets) for node in plan.nodes.values()]
    stars += [Star(task_id, "", "removed") for task_id in gone]
    lines = [Line(edge.source, edge.target, edge.on, edge.when) for edge in plan.dependencies]
    lines += [
        Line(edge.source, edge.target, edge.on, edge.when)
        for edges in gone.values()
        for edge in edges
        if edge.source in plan or edge.source in gone
    ]
    return Picture(plan.id, tuple(stars), tuple(lines))


def _star(node: Node, secrets: PlanMask) -> Star:
    status = "waiting" if node.status is PENDING and node.open else str(node.status)
    return Star(node.id, label(node.task, secrets), status, node.device or node.task.device or "")


def label(task: Task, secrets: PlanMask) -> str:
    """What a task is, in a line: its description, or else what it does."""
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
