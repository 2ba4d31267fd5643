"""Large groups as one task: which tasks stand behind it, and how many of them have which status.

Drawings, the page and live views show a group of more than ``LARGE`` elements as its own task, with counts, until
somebody opens it. An element stands behind its group if nothing depends on it but tasks that do so as well. So the rest
of the plan is still a graph without cycles, and an element that another task follows, such as a repair that an editor
has added, is shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping

from asterism.core.plan.graph import Graph
from asterism.core.plan.node import QUEUED, RUNNING, STARTING, Node
from asterism.core.plan.task import Dependency
from asterism.core.record import Record, replace

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
