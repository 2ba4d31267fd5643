"""The picture of a plan: its tasks and dependencies at one moment, as plain data, and their graph.

In the graph, tasks are numbered by their position in the picture, so that later steps work on small integers. All walks
are loops over explicit lists: a chain of many thousand tasks is as safe as a short one.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from asterism.base.text import clean, masked_url, shorten
from asterism.core.plan.group_elements import folded_groups, status_of_group
from asterism.core.plan.status import CANCELLED
from asterism.core.plan.task import plugin_text
from asterism.core.record import Record, field

if TYPE_CHECKING:
    from asterism.core.plan.constellation import Constellation
    from asterism.core.plan.node import Node
    from asterism.core.plan.task import Dependency, Task
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
    gone: Mapping[str, Iterable[Dependency]] | None = None,
    phase: Callable[[Node], str | None] | None = None,
    *,
    work: bool = False,
    opened: Collection[str] = (),
) -> Picture:
    """The plan as it is now. A large group is one task with counts, unless it is ``opened``. ``gone`` maps tasks that
    an edit removed to their dependencies. ``phase`` returns what a running task of a fleet does: it may be queued. With
    ``work``, each task shows what it executes, whatever its description says.

    A removed task is drawn after its dependencies, and no present task is drawn after it."""
    from asterism.orchestrator.plan_mask import PlanMask  # drawings of other data do not need it

    secrets, gone = secrets or PlanMask(plan), gone or {}
    folded = folded_groups(plan, opened)

    def status(node: Node) -> str:
        return (phase and phase(node)) or node.shown_status

    drawn_tasks = [
        _drawn_task(node, status(node), secrets, work, folded.counts(node.id, status)) for node in folded.nodes(plan)
    ]
    drawn_tasks += [DrawnTask(task_id, "", "removed") for task_id in gone]
    lines = [DrawnEdge(edge.source, edge.target, edge.on, edge.when) for edge in folded.dependencies(plan)]
    lines += [
        DrawnEdge(folded.group_of.get(edge.source, edge.source), edge.target, edge.on, edge.when)
        for edges in gone.values()
        for edge in edges
        if edge.source in plan or edge.source in gone
    ]
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


class Graph(Record):
    """A directed acyclic graph.

    `edges` keeps the picture's lines in their order, doubles included; `parents` and `children` name each
    neighbour once. `order` is topological. `layers` holds for each task the length of the longest path that
    leads to it.
    """

    edges: tuple[tuple[int, int], ...]
    parents: tuple[tuple[int, ...], ...]
    children: tuple[tuple[int, ...], ...]
    order: tuple[int, ...]
    layers: tuple[int, ...]

    @staticmethod
    def of(picture: Picture) -> Graph:
        """Read the shape of a picture; raises `ValueError` on a repeated id, an unknown end or a cycle."""
        edges = _edges(picture)
        parents: list[dict[int, None]] = [{} for _ in picture.tasks]
        children: list[dict[int, None]] = [{} for _ in picture.tasks]
        for source, target in edges:
            parents[target][source] = None
            children[source][target] = None
        order = _topological(parents, children)
        if len(order) < len(picture.tasks):
            on_cycle = sorted(set(range(len(picture.tasks))) - set(order))
            names = ", ".join(picture.tasks[task].id for task in on_cycle[:5])
            raise ValueError(f"the lines form a cycle that these tasks are on or below: {names}")
        return Graph(
            edges=edges,
            parents=tuple(map(tuple, parents)),
            children=tuple(map(tuple, children)),
            order=tuple(order),
            layers=tuple(_layers(parents, order)),
        )

    def components(self) -> list[list[int]]:
        """The connected components, each in the order of declaration, the first declared first."""
        seen = [False] * len(self.parents)
        components = []
        for start in range(len(self.parents)):
            if seen[start]:
                continue
            seen[start] = True
            component = [start]
            for task in component:  # grows while it is walked
                for other in (*self.parents[task], *self.children[task]):
                    if not seen[other]:
                        seen[other] = True
                        component.append(other)
            components.append(sorted(component))
        return components


def _edges(picture: Picture) -> tuple[tuple[int, int], ...]:
    position = {drawn_task.id: number for number, drawn_task in enumerate(picture.tasks)}
    if len(position) < len(picture.tasks):
        raise ValueError("two tasks of the picture have the same id")
    edges = []
    for line in picture.edges:
        for end in (line.source, line.target):
            if end not in position:
                raise ValueError(f"a line names the task {end!r}, which is not in the picture")
        edges.append((position[line.source], position[line.target]))
    return tuple(edges)


def _topological(parents: Sequence[dict[int, None]], children: Sequence[dict[int, None]]) -> list[int]:
    """Parents before children; tasks on a cycle, or below one, are left out."""
    open_parents = [len(above) for above in parents]
    order = [task for task, count in enumerate(open_parents) if count == 0]
    for task in order:  # grows while it is walked
        for child in children[task]:
            open_parents[child] -= 1
            if open_parents[child] == 0:
                order.append(child)
    return order


def _layers(parents: Sequence[dict[int, None]], order: Sequence[int]) -> list[int]:
    layers = [0] * len(parents)
    for task in order:
        layers[task] = max((layers[parent] + 1 for parent in parents[task]), default=0)
    return layers
