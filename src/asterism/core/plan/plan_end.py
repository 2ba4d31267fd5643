"""The end of a plan: why tasks are given up, whether failures were handled, and how a plan is reopened.

``Graph.close`` ends a plan: it *gives up* the tasks that can never run. ``reopen`` is the reverse, as one step of the
journal: the tasks that were given up, and the tasks that it names, are pending again. All others keep their results.
The next execution of a task has a new epoch, so it is a new run of a fleet, and no result of an earlier execution
counts.

``retry_choice`` says what a retry runs again. An edit that adds tasks reopens a plan without running anything again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from operator import attrgetter
from typing import TYPE_CHECKING

from asterism.core.errors import PlanError
from asterism.core.plan import inherited_priority, joins
from asterism.core.plan.node import NODE_FIELDS, Node, descendants, handler_of
from asterism.core.plan.status import CANCELLED, COMPLETED, ENDED_STATES, FAILED, PENDING, ConstellationState
from asterism.core.plan.task import Dependency
from asterism.core.plan.teardowns import is_torn_down, teardowns_of
from asterism.core.plan.topological_order import parents_first

if TYPE_CHECKING:
    from asterism.core.plan.graph import Graph


def has_unreachable(graph: Graph) -> bool:
    """Whether a task was needed, and could never run."""
    return graph.counts[CANCELLED] > 0 and any(node.given_up and not node.needless for node in graph.nodes.values())


def is_lost_for_good(graph: Graph, node: Node) -> bool:
    """Whether the ends above a task keep it from ever starting. Called when no task can move, for parents first."""
    lost = [joins.is_lost(graph.nodes[source], edge, node) for source, edge in node.parents.items()]
    return bool(lost) and (all(lost) if node.task.join == "any" else any(lost))


def all_handled(graph: Graph) -> bool:
    """Whether each failure was handled."""
    return all(handler_of(node) is not None for node in graph.nodes.values() if node.status is FAILED)


def unreachable_reason(graph: Graph, node: Node) -> tuple[bool, str]:
    """Whether a blocked task was not needed, and the reason. Called for parents before their children.

    If one of several dependencies makes a task unnecessary, it was not needed; with ``join="any"``, only if each of
    them does."""
    needless, blocked = "", ""
    for dependency in node.parents.values():
        if graph.nodes[dependency.source].satisfies(dependency, node):
            continue
        why, needed = _edge_reason(graph, node, dependency)
        if needed:
            blocked = why
        elif node.task.join == "any":
            needless = why
        else:
            return True, f"not needed: {why}"
    if needless and not blocked:
        return True, f"not needed: {needless}"
    return False, f"unreachable: {blocked or 'no task could start it'}"


def _edge_reason(graph: Graph, node: Node, dependency: Dependency) -> tuple[str, bool]:
    """Why a dependency does not hold, and whether the task was needed all the same."""
    source, parent = dependency.source, graph.nodes[dependency.source]
    verdict = node.verdicts.get(source) if node.verdicts else None
    if isinstance(verdict, str):
        return f"the condition on {source!r} could not be evaluated: {verdict}", True
    if verdict is False:
        return f"{dependency.when!r} does not hold for {source!r}", False
    if dependency.on == "teardown":
        if not parent.has_begun:
            return f"its set-up {source!r} never started", False
        return "tasks between it and its set-up wait for it", True
    if dependency.on == "failure" and parent.status is COMPLETED:
        return f"it runs only if {source!r} fails, and {source!r} completed", False
    if parent.needless:
        return f"{source!r} was not needed", False
    if parent.status is FAILED and (handler := handler_of(parent)) is not None:
        return f"{source!r} failed, and {handler.id!r} handled that", False
    if parent.status is PENDING:
        return f"{dependency.requirement}, and {source!r} waits for it", True
    ended = f"was {parent.status}" if parent.status is CANCELLED else parent.status
    return f"{dependency.requirement}, but {source!r} {ended}", True


def time_at_rest(graph: Graph) -> float:
    """For how many seconds a plan that was reopened was at rest, between its ends and its reopenings."""
    rest, ended_at = 0.0, None
    for entry in graph.story():
        if entry.task is None and entry.what in ENDED_STATES:
            ended_at = entry.at
        elif entry.task is None and entry.what == "reopened" and ended_at is not None:
            rest, ended_at = rest + entry.at - ended_at, None
    return rest


def opened_at(graph: Graph) -> float | None:
    """When a plan began, or was last reopened."""
    reopened = (entry.at for entry in reversed(graph.story()) if entry.task is None and entry.what == "reopened")
    return next(reopened, graph.started_at)


# -- reopening ---------------------------------------------------------------------------------------------------------


def retry_choice(graph: Graph, from_tasks: Collection[str] = ()) -> list[str]:
    """The tasks that a retry runs again: those whose failure was not handled; or ``from_tasks``, with all tasks below
    them. Raises PlanError if the plan cannot be retried, and UnknownTask."""
    if graph.state not in ENDED_STATES:
        raise PlanError(f"plan {graph.id!r} is {graph.state}: only a plan that has ended can be retried")
    check_reopenable(graph)
    if not from_tasks:
        failed = (node for node in graph.nodes.values() if node.status is FAILED)
        chosen = {node for node in failed if handler_of(node) is None}
    else:
        first = [graph.node(task_id) for task_id in from_tasks]
        chosen = {*first, *descendants(*first)}
        for task_id in from_tasks:
            _check_startable(graph, graph.node(task_id), chosen)
    _add_pairs(graph, chosen)
    return [node.id for node in graph.nodes.values() if node in chosen]


def _add_pairs(graph: Graph, chosen: set[Node]) -> None:
    """Run a set-up that was torn down again, with its teardowns, if a task between them runs again."""
    size = -1
    while graph.setups and size < len(chosen):
        size = len(chosen)
        revived = chosen | {node for node in descendants(*chosen) if node.given_up}
        for setup in {setup for node in revived for setup in node.scope.inside}:
            if is_torn_down(setup):
                chosen.update((setup, *teardowns_of(setup)))


def check_reopenable(graph: Graph) -> None:
    """Raise PlanError for a plan that was cancelled: that is for good."""
    if graph.state is ConstellationState.CANCELLED:
        raise PlanError(f"plan {graph.id!r} was cancelled, for good; to run it again, start it under another name")


def _check_startable(graph: Graph, node: Node, chosen: Collection[Node]) -> None:
    """Raise PlanError if a task that is run again could not start."""
    edges = [(graph.nodes[source], dependency) for source, dependency in node.parents.items()]
    blocked = [
        dependency for parent, dependency in edges if parent not in chosen and not parent.satisfies(dependency, node)
    ]
    if blocked and (node.task.join == "all" or len(blocked) == len(edges)):
        why, _ = _edge_reason(graph, node, blocked[0])
        raise PlanError(f"task {node.id!r} could not start again: {why}; begin with {blocked[0].source!r}")


_STRUCTURE = {"task", "label", "id", "number", "parents", "children", "setup", "teardowns", "scope"}
_KEPT = tuple(name for name in NODE_FIELDS if name not in _STRUCTURE | {"rank", "verdicts"})
"""The fields of a node that reopening a plan changes; ``verdicts`` is changed in place."""

_kept_of = attrgetter(*_KEPT)


def reopen(graph: Graph, tasks: Iterable[str], now: float, why: str) -> Callable[[], None]:
    """Reopen a plan that has ended. ``tasks`` and all that were given up are pending again. Returns what undoes it."""
    if graph.state not in ENDED_STATES:
        raise PlanError(f"plan {graph.id!r} is {graph.state}: it cannot be reopened")
    check_reopenable(graph)
    chosen = [graph.node(task_id) for task_id in tasks]
    undo = _undo(graph)
    graph.state, graph.ended_at = ConstellationState.EXECUTING, None
    graph.add_entry(now, "reopened", None, why)
    graph.records.reset()
    again = set(chosen)
    for node in parents_first(graph.nodes.values()):  # the order of ``nodes`` depends on rejected edits
        if node in again:
            _reset(graph, node)
            graph.add_entry(now, "retried", node.id, why)
        elif node.given_up:
            _reset(graph, node)
            graph.add_entry(now, "reopened", node.id)
    _recount(graph)
    inherited_priority.recompute(graph)
    for node in graph.nodes.values():
        graph.requeue(node)
    return undo


def _reset(graph: Graph, node: Node) -> None:
    """Make a task that has ended pending. Its dependents drop what they knew of its end."""
    graph.counts[node.status] -= 1  # no transition of a task leads out of a terminal status: this is one of the plan
    graph.counts[PENDING] += 1
    node.status = PENDING
    for child in node.children.values():
        if child.verdicts:
            child.verdicts.pop(node.id, None)
    node.tentative, node.unsettled, node.reviewed, node.needless, node.given_up = None, False, True, False, False
    node.value = node.error = node.device = node.started_at = node.ended_at = node.entry = node.files = None
    node.epoch, node.losses, node.spent, node.reason, node.times = 0, 0, node.attempts, "", None
    node.awaited_since = node.decision = None


def _recount(graph: Graph) -> None:
    for node in graph.nodes.values():
        parents = [(graph.nodes[source], dependency) for source, dependency in node.parents.items()]
        node.open = sum(not parent.satisfies(dependency, node) for parent, dependency in parents)
        node.held = sum(parent.unsettled for parent, _ in parents)
    if graph.deciders:
        joins.recount(graph)
        graph.rejoined.clear()


def _undo(graph: Graph) -> Callable[[], None]:
    """Keep the progress of a plan, and return what restores it. A plan is reopened rarely, so all of it is kept."""
    nodes = [(node, _kept_of(node), dict(node.verdicts) if node.verdicts else None) for node in graph.nodes.values()]
    whole, tainted = (graph.state, graph.ended_at), set(graph.tainted)
    counts, length, last_at = dict(graph.counts), len(graph._story), graph.last_at

    def restore() -> None:
        graph.rescope()  # what was linked since then is gone, and must not be counted off again
        graph.state, graph.ended_at = whole
        graph.counts, graph.last_at, graph.tainted = counts, last_at, tainted
        del graph._story[length:]
        for node, values, verdicts in nodes:
            for name, value in zip(_KEPT, values, strict=True):
                setattr(node, name, value)
            node.verdicts = verdicts
        graph.records.reset()

    return restore
