"""Teardowns: which tasks lie between a set-up and its teardown, and when the teardown is due.

A dependency with ``on="teardown"`` pairs a set-up with a teardown: ``create -> drop``. Once a device has begun
the set-up, the teardown runs as soon as the set-up has ended and everything *between* the two is over, also in a plan
that is being cancelled. A task is over when it has ended, and its end is settled, or when it can never run. If the
set-up never begins, its teardown is not needed (``Node.has_begun``).

Between a set-up and its teardowns are all tasks below the set-up, except

* its own teardowns and those of set-ups above it, and what is below these: they come afterwards;
* teardowns that are below it only by their order. The teardown of a set-up that is between, though, is between, too: a
  nested pair is torn down from the inside.

Each node has a ``scope``: the set-ups above it, the teardowns at or above it, and the set-ups it is ``inside`` of. It
follows from the scopes of its parents, so a changed edge renews the scopes below it, only as far as they change
(``update``). ``below`` of a set-up counts the tasks inside of it that are not over. So no step searches, and a plan
without teardowns pays nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from asterism.core.plan.node import NO_SCOPE, Node, Scope, descendants

if TYPE_CHECKING:
    from asterism.core.plan.graph import Graph


def teardowns_of(setup: Node) -> list[Node]:
    """The teardowns of a set-up."""
    return [child for child in setup.children.values() if child.setup is setup] if setup.teardowns else []


def is_torn_down(setup: Node) -> bool:
    """Whether a teardown of this set-up has started."""
    return any(teardown.started_at is not None for teardown in teardowns_of(setup))


def is_due(teardown: Node) -> bool:
    """Whether a task is a teardown whose set-up has begun."""
    return teardown.setup is not None and teardown.setup.has_begun


def between(graph: Graph, setup: Node) -> list[Node]:
    """The tasks between a set-up and its teardowns that are not over. Visits all tasks: for messages."""
    return [node for node in graph.nodes.values() if setup in node.scope.inside and not node.over]


# -- rules about the pair ----------------------------------------------------------------------------------------------


def pair_problems(node: Node) -> Iterator[str]:
    """What is wrong with a task as a set-up or as a teardown."""
    if node.task.wait_for is not None and (node.teardowns or node.setup is not None):
        yield f"{node.id!r} waits for the world, so it can be neither a set-up nor a teardown"
    if node.task.approval is not None and (node.teardowns or node.setup is not None):
        yield f"{node.id!r} needs approval, so it can be neither a set-up nor a teardown; put it before the set-up"
    if node.teardowns:
        if node.task.foreach is not None:
            yield f"{node.id!r} is a group, which no device executes; a set-up is a single task"
        if node.provisional:
            yield f"{node.id!r} has started provisionally, and a set-up never does; add its teardown when it has ended"
    if node.setup is None:
        return
    if node.teardowns:
        yield f"{node.id!r} is a teardown, so it cannot be a set-up"
    if node.task.foreach is not None:
        yield f"{node.id!r} is a group, which no device executes; a teardown is a single task"
    if node.task.join == "any":
        yield f"{node.id!r} is a teardown, so it cannot have join: any"
    setups = [source for source, edge in node.parents.items() if edge.on == "teardown"]
    if len(setups) > 1:
        yield f"{node.id!r} tears down {' and '.join(map(repr, setups))}; a task tears down one set-up"
    for source, edge in node.parents.items():
        if edge.on not in ("always", "teardown") or edge.when is not None:  # it could keep the teardown from running
            yield order_problem(source, node.id)


def order_problem(source: str, teardown: str) -> str:
    """What to do about a dependency that could keep a teardown from running."""
    return (
        f"{teardown!r} is a teardown and runs however {source!r} ends: write after: {{{source}: always}}, or leave it "
        "out if it is below the set-up, since a teardown runs after everything below its set-up"
    )


# -- scopes ------------------------------------------------------------------------------------------------------------


def pair(graph: Graph, setup: Node, teardown: Node) -> None:
    """A teardown was linked to its set-up. If it has another one, the batch that does this is about to be rejected."""
    teardown.setup = teardown.setup or setup
    setup.teardowns += 1
    graph.setups[setup] = None
    graph.unscoped[setup] = True
    graph.rejoined[setup] = None  # it no longer starts provisionally


def unpair(graph: Graph, setup: Node, teardown: Node) -> None:
    """A teardown was unlinked from its set-up."""
    others = (graph.nodes[source] for source, edge in teardown.parents.items() if edge.on == "teardown")
    teardown.setup = next(others, None)
    setup.teardowns -= 1
    if not setup.teardowns:
        del graph.setups[setup]
    graph.unscoped[teardown] = True
    for below in descendants(setup):  # now: the next change may cut them off
        graph.unscoped.setdefault(below, False)
    graph.rejoined[setup] = None


def update(graph: Graph) -> list[Node]:
    """Renew the scopes that changed edges concern. Returns the teardowns whose set-ups have other tasks between."""
    pending = _Pending()
    changed: dict[Node, None] = {}
    unscoped, graph.unscoped = graph.unscoped, {}
    for node, deep in unscoped.items():
        pending.add([node, *(descendants(node) if deep else ())])
    while (current := pending.pop()) is not None:
        scope = _scope(graph, current) if graph.nodes.get(current.id) is current else NO_SCOPE
        before = current.scope
        if scope == before:
            continue
        current.scope = scope
        if not current.over:
            for setup in scope.inside ^ before.inside:
                setup.below += 1 if setup in scope.inside else -1
                changed[setup] = None
        # the scopes inside of a set-up depend on what is above the set-up
        pending.add(descendants(current) if current.teardowns else current.children.values())
    return [teardown for setup in changed for teardown in teardowns_of(setup)]


def _scope(graph: Graph, node: Node) -> Scope:
    above: set[Node] = set()
    torn: set[Node] = set()
    inside: set[Node] = set()
    for source, dependency in node.parents.items():
        parent = graph.nodes[source]
        above |= parent.scope.above
        torn |= parent.scope.torn
        if parent.teardowns:
            above.add(parent)
        if node.setup is None or dependency.on == "teardown":
            inside |= parent.scope.inside
            if parent.teardowns:
                inside.add(parent)
    if node.setup is not None:
        torn.add(node)
    afterwards = {teardown.setup for teardown in torn}
    inside = {setup for setup in inside if setup not in afterwards and afterwards.isdisjoint(setup.scope.above)}
    return Scope(frozenset(above), frozenset(torn), frozenset(inside)) if above else NO_SCOPE


class _Pending:
    """Nodes whose scopes have to be renewed, parents first."""

    def __init__(self) -> None:
        self._nodes: dict[int, Node] = {}
        self._labels: list[int] = []

    def add(self, nodes: Iterable[Node]) -> None:
        new = {node.label: node for node in nodes if node.label not in self._nodes}
        self._nodes.update(new)
        if len(new) > len(self._labels):
            self._labels.extend(new)
            heapify(self._labels)
        else:
            for label in new:
                heappush(self._labels, label)

    def pop(self) -> Node | None:
        return self._nodes.pop(heappop(self._labels)) if self._labels else None
