"""The elements of groups: what they execute, how many there may be, their results, and how views fold them.

Rules about edits judge a group before it has elements, by its template. The elements of a template may be groups
again: all levels count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from asterism.core.errors import InvalidTask, error_text
from asterism.core.plan.edits import AddDependency, AddTask, Edit, EditBatch, UpdateTask
from asterism.core.plan.node import QUEUED, RUNNING, STARTING, Node
from asterism.core.plan.status import FAILED
from asterism.core.plan.task import Dependency, Task
from asterism.core.record import Record, replace

if TYPE_CHECKING:
    from asterism.core.plan.graph import Graph

DEFAULT_ELEMENTS = 1_000
"""How many elements a group over a result may have, unless it says otherwise."""

MOST_NAMED, LONGEST_REASON = 5, 200
"""How many failed elements an error names, and how much of the reason of each, in characters."""

UNBOUNDED = 10**9
"""A number that stands for all larger ones."""


def work_of(task: Task) -> Iterator[Task]:
    """What a task executes: itself, and the elements of a group, level by level."""
    current: Task | None = task
    while current is not None:
        yield current
        current = _element_of(current)


def _element_of(group: Task) -> Task | None:
    if group.foreach is None or "template" not in group.foreach:
        return None
    try:
        return Task.from_json({**group.foreach["template"], "id": group.id})
    except (InvalidTask, TypeError):  # its elements can never be made
        return None


def is_marked(task: Task) -> bool:
    """Whether a task, or the elements that it will have, are untrusted."""
    return task.untrusted or (task.foreach is not None and any(work.untrusted for work in work_of(task)))


def needs_person(task: Task) -> bool:
    """Whether a task, or the elements that it will have, need approval."""
    return task.approval is not None or (
        task.foreach is not None and any(work.approval is not None for work in work_of(task))
    )


def most_elements(foreach: Mapping[str, Any]) -> int:
    """How many elements a group over a result may have."""
    most = foreach.get("max", DEFAULT_ELEMENTS)
    return min(max(most, 0), UNBOUNDED) if type(most) is int else DEFAULT_ELEMENTS


def most_tasks(task: Task) -> int:
    """How many tasks a task may become: itself, and the elements that it does not have yet."""
    total, each = 0, 1
    for work in work_of(task):
        total += each
        if work.foreach is None or "of" in work.foreach:
            break
        each = min(each * most_elements(work.foreach), UNBOUNDED)
    return total


def elements_of(nodes: Mapping[str, Node], group: Node) -> list[Node]:
    """The elements of a group that are in the plan, in order."""
    return [nodes[task_id] for task_id in (group.task.foreach or {}).get("of", ()) if task_id in nodes]


def failed_elements(nodes: Mapping[str, Node], group: Node) -> str:
    """Which elements of a group failed, and why; empty if none did."""
    elements = elements_of(nodes, group)
    failed = [node for node in elements if node.status is FAILED]
    if not failed:
        return ""
    more = f"; and {len(failed) - MOST_NAMED:,} more" if len(failed) > MOST_NAMED else ""
    named = "; ".join(f"{node.id} ({error_text(node.error)[:LONGEST_REASON]})" for node in failed[:MOST_NAMED])
    return f"{len(failed)} of {len(elements)} elements failed: {named}{more}"


def results_without_failures(nodes: Mapping[str, Node], group: Node) -> list[Any]:
    """The results of the elements of a group, without those that failed. The result of an inner group is a list."""
    results = []
    for node in elements_of(nodes, group):
        if node.status is not FAILED:
            results.append(node.value)
        elif "of" in (node.task.foreach or {}):
            results.append(results_without_failures(nodes, node))
    return results


def tasks_added(batch: EditBatch) -> int:
    """How many tasks a batch may add to a plan, with the elements of groups that it adds or changes."""
    added = 0
    for edit in batch.edits:
        if isinstance(edit, AddTask):
            added += most_tasks(edit.task)
        elif isinstance(edit, UpdateTask) and edit.changes.get("foreach") is not None:
            try:
                added += most_tasks(Task(edit.task_id, foreach=edit.changes["foreach"])) - 1
            except InvalidTask:  # it will be rejected
                continue
    return added


def edit_texts(edits: Sequence[Edit]) -> list[str]:
    """Edits in words. Those that expand a group, and do nothing else, are one line."""
    group = edits[-1] if edits else None
    if isinstance(group, UpdateTask) and "of" in (group.changes.get("foreach") or ()):
        elements = set(group.changes["foreach"]["of"])
        if all(_is_of_group(edit, group.task_id, elements) for edit in edits[:-1]):
            return [f"expand {group.task_id!r} into {len(elements):,} elements"]
    return list(map(str, edits))


def _is_of_group(edit: Edit, group: str, elements: set[str]) -> bool:
    if isinstance(edit, AddTask):
        return edit.task.id in elements
    return isinstance(edit, AddDependency) and (
        edit.target in elements or (edit.target == group and edit.source in elements)
    )


LARGE = 100
"""A group with more elements is folded."""

Shown = Callable[[Node], str]
"""The status of a task as people see it, such as ``Node.shown_status``."""


class FoldedGroups(Record):
    """``behind`` has the tasks behind each folded group, ``group_of`` the group that each of these stands behind."""

    behind: dict[str, list[Node]]
    group_of: dict[str, str]

    def nodes(self, graph: Graph) -> list[Node]:
        """The tasks that are shown."""
        return [node for node in graph.nodes.values() if node.id not in self.group_of]

    def dependencies(self, graph: Graph) -> list[Dependency]:
        """The dependencies between them. What all elements of a group wait for, the group waits for, once."""
        shown: dict[tuple[str, str], Dependency] = {}
        for node in graph.nodes.values():
            group = self.group_of.get(node.id)
            for source, edge in node.parents.items():
                if source in self.group_of:
                    continue
                if group is None:
                    shown[source, node.id] = edge
                elif (source, group) not in shown:
                    shown[source, group] = replace(edge, target=group)
        return list(shown.values())

    def counts(self, group: str, shown: Shown) -> dict[str, int]:
        """How many tasks behind a group have each status; empty if it is not folded."""
        return dict(Counter(map(shown, self.behind.get(group, ()))))


UNFOLDED = FoldedGroups({}, {})


def folded_groups(graph: Graph, opened: Collection[str] = ()) -> FoldedGroups:
    """The large groups of a plan that nobody has opened. A group within a folded one is behind it."""
    behind = {
        node.id: _behind(graph, node)
        for node in graph.nodes.values()
        if node.task.foreach is not None and len(node.task.foreach.get("of", ())) > LARGE and node.id not in opened
    }
    for inner in {node.id for nodes in behind.values() for node in nodes if node.task.foreach is not None}:
        behind.pop(inner, None)
    return FoldedGroups(behind, {node.id: group for group, nodes in behind.items() for node in nodes})


def _behind(graph: Graph, group: Node) -> list[Node]:
    inside, groups = {group: None}, [group]
    for inner in groups:  # grows while it is walked
        for element in (inner.task.foreach or {}).get("of", ()):
            node = graph.nodes.get(element)
            if node is not None and node.children and all(child in inside for child in node.children.values()):
                inside[node] = None
                groups += [node] if node.task.foreach is not None else []
    del inside[group]
    return list(inside)


def status_of_group(own: str, counts: Mapping[str, int]) -> str:
    """The status of a group as people see it: while its elements run, it does. ``own`` is that of its task."""
    if own not in ("pending", "waiting"):
        return own
    return RUNNING if any(counts.get(phase) for phase in (RUNNING, STARTING, QUEUED)) else own
