"""The picture of a plan: its tasks and dependencies at one moment, as plain data."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

from asterism.base.text import clean, masked_url, shorten
from asterism.core.plan.group_elements import folded_groups, status_of_group
from asterism.core.plan.status import CANCELLED
from asterism.core.plan.task import plugin_text
from asterism.core.record import Record, field

if TYPE_CHECKING:
    from asterism.core.plan.constellation import Constellation
    from asterism.core.plan.node import Node
    from asterism.core.plan.task import Task
    from asterism.orchestrator.plan_mask import PlanMask

STATUSES = ("pending", "waiting", "queued", "starting", "running", "completed", "failed", "cancelled", "removed")

# What a reader looks for first comes first, for the end of a long line may be cut.
_URGENCY = ("failed", "running", "starting", "queued", "completed", "waiting", "pending", "cancelled", "removed")


class DrawnTask(Record):
    """One task. `note` is a short remark, such as the device or the reason of a failure. `behind` counts the tasks that
    a folded group stands for, by status."""

    id: str
    label: str
    status: str = "pending"
    note: str = ""
    behind: Mapping[str, int] = field(default_factory=dict)


class DrawnEdge(Record):
    """One dependency. It is conditional if `when` has the text of a condition, whatever `on` is."""

    source: str
    target: str
    on: str = "success"
    when: str | None = None

    @property
    def kind(self) -> str:
        """How the edge is drawn: `condition`, or as `on` says."""
        if self.when is not None:
            return "condition"
        return self.on

    @property
    def words(self) -> str:
        """The condition in words; empty for the usual `success`."""
        return {
            "condition": f"if {self.when}",
            "failure": "on failure",
            "completion": "on completion",
            "always": "always",
            "teardown": "teardown",
        }.get(self.kind, "")


class Picture(Record):
    """A plan to draw. Ids are unique, every edge joins two tasks, and there is no cycle.

    The drawing functions raise `ValueError` for a picture that breaks this.
    """

    title: str
    tasks: tuple[DrawnTask, ...]
    edges: tuple[DrawnEdge, ...]

    @property
    def incoming(self) -> dict[str, list[DrawnEdge]]:
        """The edges that lead to each task."""
        incoming: dict[str, list[DrawnEdge]] = {drawn_task.id: [] for drawn_task in self.tasks}
        if len(incoming) < len(self.tasks):
            raise ValueError("two tasks of the picture have the same id")
        for edge in self.edges:
            for end in (edge.source, edge.target):
                if end not in incoming:
                    raise ValueError(f"a line names the task {end!r}, which is not in the picture")
            incoming[edge.target].append(edge)
        return incoming

    def in_order(self) -> list[DrawnTask]:
        """The tasks, each after those that it depends on."""
        tasks = {drawn_task.id: drawn_task for drawn_task in self.tasks}
        parents = {task: [edge.source for edge in edges] for task, edges in self.incoming.items()}
        try:
            return [tasks[task] for task in TopologicalSorter(parents).static_order()]
        except CycleError as error:
            raise ValueError(f"the lines form a cycle: {' → '.join(error.args[1])}") from None


def count_by_status(drawn_tasks: Iterable[DrawnTask]) -> list[tuple[str, int]]:
    """How many tasks have which status, the most urgent status first. Those behind a folded group count."""
    counts: Counter[str] = Counter()
    for drawn_task in drawn_tasks:
        counts[drawn_task.status] += 1
        counts.update(drawn_task.behind)
    return in_order(counts)


def in_order(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Counts by status, the most urgent first."""
    known = [(status, counts[status]) for status in _URGENCY if counts.get(status)]
    return known + sorted((status, count) for status, count in counts.items() if count and status not in _URGENCY)


def counts_text(counts: Mapping[str, int]) -> str:
    """``1 failed, 3 running``."""
    return ", ".join(f"{count:,} {word}" for word, count in in_order(counts))


LONGEST_LABEL = 60


def picture(
    plan: Constellation,
    secrets: PlanMask | None = None,
    phase: Callable[[Node], str | None] | None = None,
    *,
    work: bool = False,
    opened: Collection[str] = (),
) -> Picture:
    """The plan as it is now. A large group is one task with counts, unless it is ``opened``. ``phase`` returns what a
    running task of a fleet does: it may be queued. With ``work``, each task shows what it executes, whatever its
    description says."""
    from asterism.orchestrator.plan_mask import PlanMask  # drawings of other data do not need it

    secrets = secrets or PlanMask(plan)
    folded = folded_groups(plan, opened)

    def status(node: Node) -> str:
        return (phase and phase(node)) or node.shown_status

    drawn_tasks = [
        _drawn_task(node, status(node), secrets, work, folded.counts(node.id, status)) for node in folded.nodes(plan)
    ]
    lines = [DrawnEdge(edge.source, edge.target, edge.on, edge.when) for edge in folded.dependencies(plan)]
    return Picture(plan.id, tuple(drawn_tasks), tuple(lines))


def _drawn_task(node: Node, status: str, secrets: PlanMask, work: bool, behind: Mapping[str, int]) -> DrawnTask:
    shown = shorten(work_text(node.task, secrets), LONGEST_LABEL) if work else label(node.task, secrets)
    if behind:
        return DrawnTask(node.id, counts_text(behind), status_of_group(status, behind), "", behind)
    device = node.task.device if status == "queued" else node.device or node.task.device
    notes = [device or ""]
    if node.status is CANCELLED and not node.given_up:  # somebody cancelled it
        notes.append(shorten(secrets.shown(node.reason), LONGEST_LABEL))
    return DrawnTask(node.id, shown, status, ", ".join(filter(None, notes)))


def work_text(task: Task, secrets: PlanMask) -> str:
    """What a task executes, whole and on one line."""
    return clean(secrets.shown(_action(task)))


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
    if task.agent is not None:
        return str(task.agent["description"])
    if task.plugin is not None:
        return plugin_text(task.plugin)
    if task.wait_for is not None:
        return f"wait {task.wait_text}"
    if task.call is None:
        return ""
    return task.call if isinstance(task.call, str) else f"{getattr(task.call, '__name__', 'function')}()"
