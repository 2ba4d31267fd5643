"""Copies of a plan that share what nobody changes (copy-on-write).

A plan that is copied keeps an immutable record of each node (``NodeRecords``). Every step marks the nodes that it
changes, and only their records are made anew for the next copy. A copy shares the records, and makes a node when
somebody asks for it (``SharedNodes``). So a copy costs two copies of a dictionary, whatever it contains, and each node
is paid for by who reads or changes it. Two records that are the same object say the same: ``diff`` looks at no others.

A result may be mutable, and so may be what the mappings of a task contain. A record has its own copy of it
(``own_copy``), and so has each node that is made of the record: a change in place is seen in one plan. A plan that has
handed out a mutable result (``expose``) makes that record anew for each copy.

Counters of joins and teardowns follow from nodes far away, and a provisional task is pending in a copy, which changes
the counters below it. So a plan that has any of these is copied as a whole (``plan_codec.copy``).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from datetime import datetime
from enum import Enum
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple

from asterism.core.plan.node import AttemptTimes, Node, holds
from asterism.core.plan.status import TERMINAL, TaskStatus
from asterism.core.plan.task import MAPPINGS, Dependency, Priority, Task, mappings_of
from asterism.core.record import replace


class NodeState(NamedTuple):
    """The fields of a node that are facts, by the same names."""

    parents: tuple[Dependency, ...]
    verdicts: dict[str, bool | str] | None
    id: str
    task: Task
    value: Any
    error: BaseException | None
    status: TaskStatus
    provisional: bool
    tentative: TaskStatus | None
    reviewed: bool
    needless: bool
    given_up: bool
    epoch: int
    device: str | None
    attempts: int
    losses: int
    started_at: float | None
    ended_at: float | None
    reason: str
    begun_at: float
    worked: float
    times: AttemptTimes | None
    files: str | None
    spent: int
    awaited_since: float | None
    decision: str | None


class NodeRecord(NamedTuple):
    """A node as a copy of its plan sees it: every end is reviewed there."""

    state: NodeState
    children: tuple[str, ...]
    label: int
    number: int
    urgency: Priority


_OWN_FIELDS = NodeState._fields[2:]
_own_fields = attrgetter(*_OWN_FIELDS)
_TASK, _VALUE, _REVIEWED = map(NodeState._fields.index, ("task", "value", "reviewed"))


def state_of(node: Node) -> NodeState:
    return NodeState(tuple(node.parents.values()), dict(node.verdicts) if node.verdicts else None, *_own_fields(node))


def record_of(node: Node) -> NodeRecord:
    fields = list(state_of(node))
    fields[_TASK], fields[_VALUE], fields[_REVIEWED] = own_task(node.task), own_copy(node.value), True
    return NodeRecord(NodeState._make(fields), tuple(node.children), node.label, node.number, node.urgency)


class NodeRecords:
    """The records of the nodes of a plan, in their order. They exist once somebody has asked for them."""

    __slots__ = ("_exposed", "_shared", "_stale", "kept")

    def __init__(self, table: dict[str, NodeRecord] | None = None) -> None:
        self.kept = table
        self._shared = True  # somebody else has the table: it must not change
        self._stale: dict[str, None] = {}  # nodes whose records have to be made anew
        self._exposed: dict[str, None] = {}  # nodes whose results somebody may change in place

    def mark(self, node: Node) -> None:
        """A node has changed, or is changing in the same step."""
        if self.kept is not None:
            self._stale[node.id] = None

    def expose(self, node: Node) -> None:
        """Somebody has the result of a node, and may change it at any time if it is mutable."""
        if not is_immutable(node.value):
            self._exposed[node.id] = None

    def add(self, node: Node) -> None:
        """A node is now the last one of the plan."""
        self.remove(node)
        self.mark(node)

    def remove(self, node: Node) -> None:
        """A node has left the plan."""
        self._exposed.pop(node.id, None)
        if self.kept is not None:
            self._stale.pop(node.id, None)
            if node.id in self.kept:
                del self._own_table(self.kept)[node.id]

    def reset(self) -> None:
        """Any node may have changed."""
        self.kept = None
        self._stale.clear()

    def table(self, nodes: Mapping[str, Node]) -> dict[str, NodeRecord]:
        """The records of all nodes. The table never changes: who changes a node afterwards makes another."""
        if self.kept is None:
            self.kept = {node.id: record_of(node) for node in nodes.values()}
        elif self._stale or self._exposed:
            table = self._own_table(self.kept)
            for node in filter(
                None, map(nodes.get, self._stale | self._exposed)
            ):  # a removed one may have been marked since
                table[node.id] = record_of(node)
            self._stale.clear()
        self._shared = True
        return self.kept

    def _own_table(self, table: dict[str, NodeRecord]) -> dict[str, NodeRecord]:
        if self._shared:
            self.kept, self._shared = table.copy(), False
            return self.kept
        return table


class LazyNodes(MutableMapping[str, Node]):
    """Nodes by their ids, each made when somebody asks for it."""

    __slots__ = ("_items", "_make")

    def __init__(self, items: dict[str, Any], make: Callable[[str], Node]) -> None:
        self._items, self._make = items, make  # anything but a node is a place for one

    def __getitem__(self, task_id: str) -> Node:
        item = self._items[task_id]
        if isinstance(item, Node):
            return item
        node = self._items[task_id] = self._make(task_id)
        return node

    def __setitem__(self, task_id: str, node: Node) -> None:
        self._items[task_id] = node

    def __delitem__(self, task_id: str) -> None:
        del self._items[task_id]

    def __contains__(self, task_id: object) -> bool:
        return task_id in self._items

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


class SharedNodes(LazyNodes):
    """The nodes of a copy. Who changes a counter of a node asks for that node first, so what its neighbours were when
    the plan was copied decides its counters."""

    __slots__ = ("_records",)

    def __init__(self, records: dict[str, NodeRecord]) -> None:
        super().__init__(records.copy(), self._thaw)
        self._records = records

    def _thaw(self, task_id: str) -> Node:
        record = self._records[task_id]
        state = record.state
        node = Node(state.task, record.label)
        for name, value in zip(_OWN_FIELDS, state[2:], strict=True):
            if value is not getattr(node, name):
                setattr(node, name, value)
        node.task, node.value = own_task(state.task), own_copy(state.value)
        node.number, node.urgency, node.over = record.number, record.urgency, state.status in TERMINAL
        node.parents = {edge.source: edge for edge in state.parents}
        node.children = LazyNodes(dict.fromkeys(record.children), self.__getitem__)
        node.verdicts = dict(state.verdicts) if state.verdicts else None
        node.open = sum(not holds(edge, self._records[edge.source].state.status, node) for edge in state.parents)
        return node


# -- values that belong to one plan ------------------------------------------------------------------------------------

_IMMUTABLE = frozenset({type(None), bool, int, float, complex, str, bytes, datetime})


def is_immutable(value: Any) -> bool:
    """Whether nobody can change a value. False if that is not known."""
    if type(value) in _IMMUTABLE or isinstance(value, Enum):
        return True
    if type(value) in (tuple, frozenset):
        try:
            return all(map(is_immutable, value))
        except RecursionError:
            return False
    return type(value) is MappingProxyType and not value


def own_copy(value: Any) -> Any:
    """A copy of a value that shares nothing mutable with it; an immutable value itself. What cannot be copied, such as
    a lock or an open socket, stays shared."""
    if is_immutable(value):
        return value
    if type(value) is dict and _IMMUTABLE.issuperset(map(type, value.values())):
        return value.copy()
    try:
        return copy.deepcopy(value)
    except RecursionError:
        return value
    except Exception:
        return _copy_containers(value, _copied_or_shared, {})


def own_task(task: Task) -> Task:
    """A task whose mappings share no container with those of another; the task itself if it has none. Other objects in
    them stay shared: a task with copies of them might not be equal to this one."""
    mutable = {
        name: mapping
        for name, mapping in zip(MAPPINGS, mappings_of(task), strict=True)
        if mapping and not all(map(is_immutable, mapping.values()))
    }
    if not mutable:
        return task
    try:
        return replace(task, **{name: _copy_containers(mapping, _shared, {}) for name, mapping in mutable.items()})
    except RecursionError:
        return task


def _copy_containers(value: Any, copy_item: Callable[[Any], Any], copies: dict[int, Any]) -> Any:
    """Copy a value as far as it consists of containers, and the rest with ``copy_item``."""
    if id(value) in copies:  # it contains itself
        return copies[id(value)]
    if isinstance(value, dict | MappingProxyType):
        mapping = copies[id(value)] = value.copy()
        mapping.update((key, _copy_containers(item, copy_item, copies)) for key, item in value.items())
        return mapping
    if isinstance(value, list):
        items = copies[id(value)] = copy.copy(value)
        items[:] = [_copy_containers(item, copy_item, copies) for item in value]
        return items
    if type(value) in (tuple, set, frozenset):
        return type(value)(_copy_containers(item, copy_item, copies) for item in value)
    return copy_item(value)


def _copied_or_shared(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception:
        return value


def _shared(value: Any) -> Any:
    return value
