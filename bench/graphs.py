"""The task graphs that every executor of the benchmarks runs, and the proof that it ran them.

A graph is nothing but the parents of each task: task `i` waits for the tasks in `graph[i]`, all of them
smaller than `i`. Each peer translates that into its own terms.
"""

import random
from collections.abc import Iterable

Graph = list[tuple[int, ...]]


def independent(n: int) -> Graph:
    """`n` tasks that wait for nothing."""
    return [()] * n


def chain(n: int) -> Graph:
    """`n` tasks in single file."""
    return [(i - 1,) if i else () for i in range(n)]


def layers(depth: int, width: int, parents: int = 3, seed: int = 0) -> Graph:
    """`depth` layers of `width` tasks, each waiting for `parents` random tasks of the layer before it."""
    dice = random.Random(seed)
    graph: Graph = [()] * width if depth else []
    for start in range(0, (depth - 1) * width, width):
        above = range(start, start + width)
        graph += [tuple(dice.sample(above, parents)) for _ in range(width)]
    return graph


def children(graph: Graph) -> list[list[int]]:
    """The tasks that wait for each task."""
    result: list[list[int]] = [[] for _ in graph]
    for task, parents in enumerate(graph):
        for parent in parents:
            result[parent].append(task)
    return result


def waves(graph: Graph) -> list[list[int]]:
    """The tasks by the length of the longest path that leads to them: no wave has an edge inside."""
    level: list[int] = []
    result: list[list[int]] = []
    for task, parents in enumerate(graph):
        level.append(1 + max((level[parent] for parent in parents), default=-1))
        if level[task] == len(result):
            result.append([])
        result[level[task]].append(task)
    return result


def is_chain(graph: Graph) -> bool:
    """Whether each task waits for exactly the one before it."""
    return graph == chain(len(graph))


def check(graph: Graph, trace: Iterable[int]) -> None:
    """Raise unless `trace` shows that every task ran once, and started after its parents had ended.

    A task that starts writes `~task` (which is negative), one that ends writes `task`: two bare integers, so
    that the proof costs next to nothing and can stay in the body while it is timed.
    """
    started, ended = bytearray(len(graph)), bytearray(len(graph))
    for mark in trace:
        if mark >= 0:
            ended[mark] += 1
            continue
        task = ~mark
        started[task] += 1
        if early := [parent for parent in graph[task] if not ended[parent]]:
            raise AssertionError(f"task {task} started before its parents {early} had ended")
        if started[task] > 1:
            raise AssertionError(f"task {task} ran more than once")
    if missing := [task for task in range(len(graph)) if (started[task], ended[task]) != (1, 1)]:
        raise AssertionError(f"{len(missing)} of {len(graph)} tasks did not run to their end: {missing[:10]}")
