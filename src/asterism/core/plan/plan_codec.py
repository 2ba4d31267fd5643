"""Plans as JSON data, copies of plans, and snapshots that are written while a plan runs.

Only facts are written. Everything derived (counters, order, queue) is computed again when the edges are linked, so a
file cannot contradict itself.

A snapshot is the text of ``Constellation.to_json`` at one instant, to the byte. To write a large plan takes long, and
the plan runs meanwhile. So ``PlanSnapshot`` copies almost nothing at that instant. ``copy_nodes`` copies the nodes step
by step, and ``RecordedConstellation`` calls ``preserve`` for a node that is about to change before it was copied
(copy-on-write). When all nodes are copied, ``chunks`` gives the text. Each call does a small and bounded amount of
work; only an edit, which may change any node, copies all the rest at once (half a second for 100,000 tasks).
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from asterism.core.errors import DuplicateTask, NotJson, PlanError, RecordedError
from asterism.core.json_values import NOTHING, JsonObject, plain_json
from asterism.core.plan.edits import Key
from asterism.core.plan.graph import Graph
from asterism.core.plan.joins import is_over
from asterism.core.plan.node import PROGRESS, AttemptTimes, Node
from asterism.core.plan.node_records import (
    NodeRecords,
    NodeState,
    SharedNodes,
    own_copy,
    own_task,
    state_of,
)
from asterism.core.plan.status import RUNNING, ConstellationState, TaskStatus
from asterism.core.plan.task import Dependency, Task, mappings_of

SCHEMA = 1

_SPARSE: Mapping[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "edited": (lambda edited: dict(sorted(edited.items())), dict),
    **dict.fromkeys(("source", "author"), (str, str)),
    **dict.fromkeys(("tags", "overlap"), (list, tuple)),
    "tick": (dict, dict),
    "cancel_reason": (str, str),
}
"""The fields of a plan that are left out if they are empty, and how each is written and read."""

_progress_of = attrgetter(*PROGRESS)
_INITIAL_PROGRESS = tuple(PROGRESS.values())
"""For a quick test: most tasks have no progress when a plan is first written."""

_IMMUTABLE_TYPES = frozenset({str, int, bool, type(None)})
"""Types of values that are JSON and immutable."""

AnyGraph = TypeVar("AnyGraph", bound=Graph)


def encode(graph: Graph) -> JsonObject:
    """See ``Constellation.to_json``. Rejected edits do not change the text."""
    return _encode(graph, _task_to_json)


def clone(graph: Graph, make: type[AnyGraph]) -> AnyGraph:
    """The same as ``decode(encode(graph))``, but faster: immutable tasks are shared."""
    return _decode(_encode(graph, _task_as_data), make)


def _encode(graph: Graph, task_of: Callable[[Task], Any]) -> JsonObject:
    nodes = sorted(graph.nodes.values(), key=lambda node: node.number)
    return {
        **encode_header(graph),
        "tasks": [{"task": task_of(node.task), **_progress(node)} for node in nodes],
        "dependencies": [encode_dependency(dependency, node) for node in nodes for dependency in node.parents.values()],
        "touched": sorted(encode_touched(graph.touched.items()), key=str),
        "story": [list(entry) for entry in graph._story],
    }


def encode_header(graph: Graph) -> JsonObject:
    """The fields of the plan as a whole, before its tasks."""
    return {
        "schema": SCHEMA,
        "id": graph.id,
        "version": graph.version,
        "state": str(graph.state),
        "epochs": graph.epochs,
        "started_at": graph.started_at,
        "ended_at": graph.ended_at,
        "tainted": sorted(graph.tainted),
        **{name: write(value) for name, (write, _) in _SPARSE.items() if (value := getattr(graph, name))},
    }


def encode_task(node: Node | NodeState) -> JsonObject:
    return {"task": _task_to_json(node.task), **_progress(node)}


def encode_touched(touched: Iterable[tuple[Key, int]]) -> list[list[Any]]:
    """Unsorted. Sorted by their text, they are the same for the same plan."""
    return [[list(key) if isinstance(key, tuple) else key, version] for key, version in touched]


def _task_to_json(task: Task) -> JsonObject:
    return plain_json(task.to_json(), f"task {task.id!r}")  # type: ignore[no-any-return]


def _task_as_data(task: Task) -> Task:
    lasting = all(_IMMUTABLE_TYPES.issuperset(map(type, (values or {}).values())) for values in mappings_of(task))
    named = task.call is None or isinstance(task.call, str)
    return task if lasting and named and type(task) is Task else Task.from_json(_task_to_json(task))


def _progress(node: Node | NodeState) -> JsonObject:
    values = _progress_of(node)
    if values == _INITIAL_PROGRESS:
        progress = {}
    else:
        progress = {name: value for name, value in zip(PROGRESS, values, strict=True) if value != PROGRESS[name]}
    if isinstance(node.value, StoredValue):
        progress["stored"] = node.value.reference
    elif node.value is not None:
        try:
            progress["value"] = plain_json(node.value)
        except NotJson as error:
            raise NotJson(f"the result of task {node.id!r} cannot be stored or sent: {error}") from None
    if node.error is not None:
        recorded = RecordedError.of(node.error)
        progress["error"] = {"type": recorded.kind, "message": recorded.message}
    return progress


def encode_dependency(dependency: Dependency, target: Node | NodeState) -> JsonObject:
    verdict = target.verdicts.get(dependency.source) if target.verdicts else None
    return dependency.to_json() if verdict is None else {**dependency.to_json(), "verdict": verdict}


def decode(data: Mapping[str, Any], make: type[AnyGraph]) -> AnyGraph:
    """See ``Constellation.from_json``."""
    if not isinstance(data, Mapping) or data.get("schema") != SCHEMA:
        schema = data.get("schema") if isinstance(data, Mapping) else None
        raise PlanError(f"this is not a plan of schema {SCHEMA} (its schema is {schema!r})")
    try:
        return _decode(data, make)
    except PlanError:
        raise
    except KeyError as error:
        raise PlanError(f"the plan lacks {error}") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise PlanError(f"the plan cannot be read: {error}") from None


def _decode(data: Mapping[str, Any], make: type[AnyGraph]) -> AnyGraph:
    graph = make(data["id"])
    graph.version, graph.state, graph.epochs = data["version"], ConstellationState(data["state"]), data["epochs"]
    graph.started_at, graph.ended_at = data["started_at"], data["ended_at"]
    graph.tainted = set(data["tainted"])
    for name in _SPARSE.keys() & data.keys():
        setattr(graph, name, _SPARSE[name][1](data[name]))
    for item in data["tasks"]:
        node = _decode_node(graph, item)
        if node.id in graph.nodes:
            raise DuplicateTask(node.id)
        _place(graph, node)
    for item in data["dependencies"]:
        edge = dict(item)
        verdict = edge.pop("verdict", None)
        dependency = Dependency(**edge)
        if dependency.source in graph.node(dependency.target).parents:
            raise PlanError(f"{dependency.target!r} depends on {dependency.source!r} twice")
        graph.link(dependency, verdict)
    graph.touched = {tuple(key) if isinstance(key, list) else key: version for key, version in data["touched"]}
    for entry in data["story"]:
        graph.add_entry(*entry)
    graph.rescope()
    graph.rejoined.clear()
    for node in graph.nodes.values():
        graph.requeue(node)
    return graph


def _decode_node(graph: Graph, item: Mapping[str, Any]) -> Node:
    task = item["task"]
    node = Node(task if type(task) is Task else Task.from_json(task), graph.order.fresh())
    for name in PROGRESS.keys() & item.keys():
        setattr(node, name, item[name])
    node.status = TaskStatus(node.status)
    node.tentative = None if node.tentative is None else TaskStatus(node.tentative)
    node.times = None if node.times is None else AttemptTimes(*node.times)
    node.value = item.get("value")
    if "error" in item:
        node.error = RecordedError(item["error"]["type"], item["error"]["message"])
    return node


def _place(graph: Graph, node: Node) -> None:
    """Add a node with its progress to a graph, without its edges."""
    graph.place(node)
    graph.counts[node.status] += 1
    if node.status is RUNNING:
        graph.running[node.id] = None
    graph.provisionals += node.provisional
    node.unsettled = node.ended_at is not None and (node.provisional or not node.reviewed)
    node.over = is_over(node)


def copy(graph: Graph, into: AnyGraph) -> AnyGraph:
    """Copy the plan and its progress into another graph. Provisional tasks become pending there."""
    into.version, into.epochs, into.tainted = graph.version, graph.epochs, set(graph.tainted)
    into.edited, into.source, into.author = dict(graph.edited), graph.source, graph.author
    into.tags, into.overlap, into.tick = graph.tags, graph.overlap, graph.tick
    if graph.deciders or graph.provisionals:
        _copy_nodes(graph, into)
    else:
        _share_nodes(graph, into)
    return into


def _share_nodes(graph: Graph, into: Graph) -> None:
    table = graph.records.table(graph.nodes)
    into.nodes, into.records = SharedNodes(table), NodeRecords(table)
    into.order, into._placed = graph.order.of_copy(into.nodes), graph._placed
    into.untrusted, into.counts, into.running = dict(graph.untrusted), dict(graph.counts), dict(graph.running)


def _copy_nodes(graph: Graph, into: Graph) -> None:
    """Make all nodes and link them, which computes all counters."""
    for node in graph.nodes.values():
        clone = Node(own_task(node.task), into.order.fresh())
        if not node.provisional:
            for name in PROGRESS:
                setattr(clone, name, getattr(node, name))
            clone.value, clone.error, clone.reviewed = own_copy(node.value), node.error, True
        _place(into, clone)
    for node in graph.nodes.values():
        for dependency in node.parents.values():
            provisional = graph.nodes[dependency.source].provisional
            verdict = node.verdicts.get(dependency.source) if node.verdicts and not provisional else None
            into.link(dependency, verdict)
    into.rescope()


# -- snapshots ---------------------------------------------------------------------------------------------------------

TASKS_PER_CHUNK = 100
"""How many tasks one chunk of text contains."""

ENTRIES_PER_CHUNK = 500
"""How many smaller items (dependencies, story entries, …) one chunk contains."""

CHUNK_LENGTH = 100_000
"""A chunk ends early when it is this long, in characters: results may be large."""


class StoredValue(NamedTuple):
    """Where a store keeps the result of a task that is too large for the journal. A snapshot has it in place of the
    result."""

    reference: Any


class PlanSnapshot:
    """See the module. Shares with the plan only data that is append-only or copied at once. ``stored`` are results that
    a store keeps, by the id of their task, and where."""

    def __init__(self, graph: Graph, stored: Mapping[str, tuple[Any, StoredValue]] = NOTHING) -> None:
        self._stored = stored
        self._header = encode_header(graph)
        self._touched = dict(graph.touched)
        self._story, self._story_length = graph._story, len(graph._story)
        self._nodes = iter(list(graph.nodes.values()))
        self._copied: dict[int, NodeState] = {}  # by the number of the node
        self.complete = False
        """Whether all nodes are copied."""

    def copy_nodes(self, limit: int | None = None) -> None:
        """Copy up to ``limit`` more nodes; all that are left for None."""
        nodes = list(islice(self._nodes, limit))
        for node in nodes:
            self._copy(node)
        self.complete = limit is None or len(nodes) < limit

    def preserve(self, *nodes: Node) -> None:
        """Copy nodes that are about to change, unless they are copied already."""
        if not self.complete:
            for node in nodes:
                self._copy(node)

    def _copy(self, node: Node) -> None:
        if node.number not in self._copied:
            self._copied[node.number] = state_of(node)

    def _state(self, number: int) -> NodeState:
        """The copy of a node, with the place of its result if a store keeps that."""
        state = self._copied[number]
        value, place = self._stored.get(state.id, (None, None))
        return state if value is None or value is not state.value else state._replace(value=place)

    def chunks(self) -> Iterator[str]:
        """The text in chunks, once; all nodes must be copied. Copies are released as they are written: to release
        all at once would take long."""
        assert self.complete
        yield _to_text(self._header)[:-1]
        numbers = sorted(self._copied)
        yield from _list_chunks("tasks", map(encode_task, map(self._state, numbers)), TASKS_PER_CHUNK)
        edges = (encode_dependency(edge, facts) for facts in map(self._copied.pop, numbers) for edge in facts.parents)
        yield from _list_chunks("dependencies", edges, ENTRIES_PER_CHUNK)
        runs: list[Sequence[list[Any]]] = []  # each sorted, since sorting everything at once would take long
        keys = iter(self._touched.items())
        while some := encode_touched(islice(keys, ENTRIES_PER_CHUNK)):
            runs.append(sorted(some, key=str))
            yield ""
        yield from _list_chunks("touched", heapq.merge(*runs, key=str), ENTRIES_PER_CHUNK)
        yield from _list_chunks("story", map(list, islice(self._story, self._story_length)), ENTRIES_PER_CHUNK)
        yield "}"


def _list_chunks(name: str, items: Iterable[Any], most: int) -> Iterator[str]:
    yield f',"{name}":['
    some, length, comma = list[str](), 0, ""
    for text in map(_to_text, items):
        some.append(text)
        length += len(text)
        if len(some) == most or length >= CHUNK_LENGTH:
            yield comma + ",".join(some)
            some, length, comma = [], 0, ","
    if some:
        yield comma + ",".join(some)
    yield "]"


_to_text = json.JSONEncoder(separators=(",", ":")).encode  # created once: json.dumps creates an encoder for each call
