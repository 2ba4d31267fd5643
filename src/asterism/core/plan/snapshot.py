"""A plan as it was at one instant, written while it goes on.

To write a large plan takes long, and meanwhile it must not stand still. So it is *frozen*: at the instant itself next
to nothing is done. Then its tasks are taken one after the other (``take``), and whoever is about to change one that was
not taken yet has it taken first (``before``; see ``RecordedConstellation``). When all are taken nothing that happens to
the plan concerns what is written any more (``pieces``): to the byte, the text of ``Constellation.to_json`` at that
instant. Every call does a small and bounded piece of work, however large the plan; only an edit, which may change
anything, has all that is left taken at once (half a second for 100,000 tasks).
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple

from asterism.core.plan.graph import Graph
from asterism.core.plan.node import Node
from asterism.core.plan.plan_codec import about, encode_edge, encode_task, encode_touched
from asterism.core.plan.status import TaskStatus
from asterism.core.plan.task import Dependency, Task

TASKS = 100
"""So many tasks are one piece of text."""

ENTRIES = 500
"""And so many of everything else, which is smaller."""

LETTERS = 100_000
"""But no more once a piece is as long as that: results may be large."""


class Facts(NamedTuple):
    """What is written of a node, by the same names."""

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
    epoch: int
    device: str | None
    attempts: int
    losses: int
    started_at: float | None
    ended_at: float | None
    reason: str
    begun_at: float
    worked: float


_lasting = attrgetter(*Facts._fields[2:])


class Frozen:
    """Made at the instant. Only what is appended to later, or copied at once, is shared with the plan."""

    def __init__(self, graph: Graph) -> None:
        self._about = about(graph)
        self._touched = dict(graph.touched)
        self._story, self._told = graph._story, len(graph._story)
        self._nodes = iter(list(graph.nodes.values()))
        self._taken: dict[int, Facts] = {}  # by the number of the node, which is its place
        self.whole = False
        """Whether all tasks are taken."""

    def take(self, most: int | None = None) -> None:
        """Take some more tasks, or all that are left."""
        some = list(islice(self._nodes, most))
        for node in some:
            self._take(node)
        self.whole = most is None or len(some) < most

    def before(self, *nodes: Node) -> None:
        """These are about to change."""
        if not self.whole:
            for node in nodes:
                self._take(node)

    def _take(self, node: Node) -> None:
        if node.number not in self._taken:
            verdicts = dict(node.verdicts) if node.verdicts else None
            self._taken[node.number] = Facts(tuple(node.parents.values()), verdicts, *_lasting(node))

    def pieces(self) -> Iterator[str]:
        """The text, once, for which all tasks have to be taken. What is written is let go: to forget all of it at once
        would take long."""
        assert self.whole
        yield _text(self._about)[:-1]
        numbers = sorted(self._taken)
        yield from _list("tasks", map(encode_task, map(self._taken.__getitem__, numbers)), TASKS)
        edges = (encode_edge(edge, facts) for facts in map(self._taken.pop, numbers) for edge in facts.parents)
        yield from _list("dependencies", edges, ENTRIES)
        runs: list[Sequence[list[Any]]] = []  # sorted each, since to sort all of it at once would take long
        keys = iter(self._touched.items())
        while some := encode_touched(islice(keys, ENTRIES)):
            runs.append(sorted(some, key=str))
            yield ""
        yield from _list("touched", heapq.merge(*runs, key=str), ENTRIES)
        yield from _list("story", map(list, islice(self._story, self._told)), ENTRIES)
        yield "}"


def _list(name: str, items: Iterable[Any], most: int) -> Iterator[str]:
    yield f',"{name}":['
    some, length, comma = list[str](), 0, ""
    for text in map(_text, items):
        some.append(text)
        length += len(text)
        if len(some) == most or length >= LETTERS:
            yield comma + ",".join(some)
            some, length, comma = [], 0, ","
    if some:
        yield comma + ",".join(some)
    yield "]"


_text = json.JSONEncoder(separators=(",", ":")).encode  # made once: json.dumps makes one for every text
