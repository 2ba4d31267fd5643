"""Invariants of a plan: every derived fact is recomputed and compared."""

from __future__ import annotations

from collections.abc import Collection

from asterism.core.plan import joins
from asterism.core.plan.graph import Graph
from asterism.core.plan.node import Node, descendants
from asterism.core.plan.node_records import NodeRecord, is_immutable, record_of
from asterism.core.plan.status import PENDING, RUNNING, TERMINAL, ConstellationState
from asterism.core.plan.task import Dependency
from asterism.core.plan.teardowns import is_due, is_torn_down, teardowns_of


def check_invariants(graph: Graph, outside: Collection[Node] = ()) -> None:
    """Raise AssertionError if an invariant or a counter does not hold. ``outside`` are ready nodes that the
    orchestrator keeps outside the queue: no device can run them, or their last execution has not stopped."""
    queued = {id(entry) for lane in graph.queue.lanes for entry in graph.queue.entries(lane)}
    for node in graph.nodes.values():
        _verify_edges(graph, node)
        _verify_counters(graph, node)
        _verify_progress(node)
        _verify_taint(graph, node)
        if node not in outside:
            _verify_queue(graph, node, queued)
    _verify_urgencies(graph)
    _verify_records(graph)
    for status, count in graph.counts.items():
        assert count == sum(node.status is status for node in graph.nodes.values()), f"count of {status}"
    nodes = graph.nodes.values()
    assert set(graph.running) == {node.id for node in nodes if node.status is RUNNING}, "running tasks"
    deciding = sum((node.task.join == "any") + (node.setup is not None) for node in nodes)
    assert graph.deciders == deciding, "count of joins and teardowns"
    assert set(graph.setups) == {node.setup for node in nodes if node.setup is not None}, "set-ups"
    assert graph.provisionals == sum(node.provisional for node in graph.nodes.values()), "count of provisional tasks"
    epochs = [node.epoch for node in graph.nodes.values() if node.epoch]
    assert len(epochs) == len(set(epochs)), "I1: two tasks share an epoch"


def _verify_records(graph: Graph) -> None:
    """Every step has marked the nodes that it has changed since the records were last asked for."""
    table = graph.records.table(graph.nodes)
    assert list(table) == list(graph.nodes), "order of the records"
    for node in graph.nodes.values():
        assert _comparable(table[node.id]) == _comparable(record_of(node)), f"record of {node.id}"


def _comparable(record: NodeRecord) -> NodeRecord:
    """A record without a result that may be changed in place, or whose copy may not be equal to it."""
    if is_immutable(record.state.value):
        return record
    return record._replace(state=record.state._replace(value=None))


def _verify_urgencies(graph: Graph) -> None:
    expected: dict[str, int] = {}
    for node in sorted(graph.nodes.values(), key=lambda node: node.label, reverse=True):
        waiting = (child for child in node.children.values() if child.status not in TERMINAL)
        lent = (expected[child.id] for child in waiting if child.parents[node.id].on != "failure")
        expected[node.id] = max(node.task.priority, *lent, 0)
        if node.status not in TERMINAL:
            assert node.urgency == expected[node.id], f"urgency of {node.id}"
        assert node.entry is None or node.entry[0] == -node.urgency, f"{node.id} is queued with another urgency"


def _verify_edges(graph: Graph, node: Node) -> None:
    for source, dependency in node.parents.items():
        parent = graph.nodes.get(source)
        assert parent is not None, f"I4: {node.id} depends on {source}, which is gone"
        assert parent.children.get(node.id) is node, f"I4: {source} does not know its child {node.id}"
        assert (dependency.source, dependency.target) == (source, node.id), "I4: an edge under a wrong name"
        assert parent.label < node.label, f"I2: {source} is not ordered before {node.id}"
    for child in node.children.values():
        assert node.id in child.parents, f"I4: {child.id} does not know its parent {node.id}"
        assert graph.nodes.get(child.id) is child, f"I4: {child.id}, a child of {node.id}, is gone"


def _verify_counters(graph: Graph, node: Node) -> None:
    parents = [(graph.nodes[source], dependency) for source, dependency in node.parents.items()]
    if graph.deciders:
        assert node.over == joins.is_over(node), f"over of {node.id}"
        assert node.met == sum(parent.satisfies(d, node) for parent, d in parents), f"met of {node.id}"
        assert node.lost == sum(joins.is_lost(parent, d, node) for parent, d in parents), f"lost of {node.id}"
        assert (node.open, node.doomed) == joins.counters(node), f"open of {node.id}"
    else:
        assert node.open == sum(not parent.satisfies(d, node) for parent, d in parents), f"open of {node.id}"
    assert node.held == sum(parent.unsettled for parent, _ in parents), f"held of {node.id}"
    _verify_pair(graph, node, [(parent, d) for parent, d in parents if d.on == "teardown"])


def _verify_pair(graph: Graph, node: Node, setups: list[tuple[Node, Dependency]]) -> None:
    assert [parent for parent, _ in setups] == ([] if node.setup is None else [node.setup]), f"set-up of {node.id}"
    assert node.teardowns == sum(child.setup is node for child in node.children.values()), f"teardowns of {node.id}"
    if not graph.setups or graph.unscoped:  # a plan that has not begun is not scoped yet
        return
    assert node.scope.inside == _set_ups_around(graph, node), f"scope of {node.id}"
    if node.teardowns:
        inside = [other for other in graph.nodes.values() if node in other.scope.inside]
        assert node.below == sum(not other.over for other in inside), f"below of {node.id}"
        if is_torn_down(node):
            assert not any(other.status is RUNNING for other in inside), f"a task runs below {node.id}, torn down"
        assert not node.provisional, f"{node.id} is a set-up and provisional"
    if graph.state is ConstellationState.CANCELLING and node.status is PENDING:
        assert is_due(node) or node.doomed, f"{node.id} is pending in a plan that is being cancelled"


def _set_ups_around(graph: Graph, node: Node) -> set[Node]:
    """The set-ups that a task is between and their teardowns, by the definition in teardowns.py."""
    return {setup for setup in graph.setups if node in _between(graph, setup)}


def _between(graph: Graph, setup: Node) -> set[Node]:
    outer = [other for other in graph.setups if other is setup or setup in descendants(other)]
    afterwards = [teardown for other in outer for teardown in teardowns_of(other)]
    excluded = {*afterwards, *descendants(*afterwards)}
    between: set[Node] = set()
    stack = [setup]
    while stack:
        parent = stack.pop()
        for child in parent.children.values():
            by_order_only = child.setup is not None and child.setup is not parent
            if child not in between and child not in excluded and not by_order_only:
                between.add(child)
                stack.append(child)
    return between


def _verify_progress(node: Node) -> None:
    if node.status is PENDING:
        assert node.epoch == 0, f"{node.id} is pending and has an epoch"
        assert node.tentative is None, f"{node.id} is pending and has ended"
    if node.status is RUNNING:
        # an edit may revive a branch that was decided when a task with join="any" started
        joined = node.task.join == "any" and node.met > 0
        assert node.open == 0 or joined, f"I3: {node.id} runs with open dependencies"
        assert node.held == 0 or node.provisional or joined, f"P2: {node.id} runs below an unreviewed end"
    if node.provisional:
        assert node.status is RUNNING, f"{node.id} is provisional and not running"
        assert node.task.revocable, f"{node.id} is provisional and not revocable"
        assert node.held > 0, f"{node.id} is provisional with nothing to wait for"
    if node.unsettled:
        assert node.tentative is not None or node.status in TERMINAL, f"{node.id} is unsettled and has not ended"
    elif not node.reviewed:
        raise AssertionError(f"the end of {node.id} is not reviewed and holds no task")


def _verify_queue(graph: Graph, node: Node, queued: set[int]) -> None:
    if node.status is PENDING and graph.state is ConstellationState.EXECUTING:
        ready = node.open == 0 and (node.held == 0 or graph.starts_early(node))
        assert ready or not node.awaits, f"{node.id} waits for the world and is not ready"
        queues = ready and not node.awaits
        assert (node.entry is not None) == queues, f"{node.id} is {'not ' if queues else ''}queued"
        assert not queues or id(node.entry) in queued, f"{node.id} is in no heap"
    if node.status in TERMINAL:
        assert node.entry is None, f"{node.id} has ended and is queued"


def _verify_taint(graph: Graph, node: Node) -> None:
    startable = node.status is PENDING and not node.open and graph.state is ConstellationState.EXECUTING
    if node.task.untrusted and (startable or node.status is RUNNING):
        assert node.id in graph.tainted, f"{node.id} is untrusted and may start, and the plan is not tainted"
