"""The order of the tasks of a plan file, and the cycles among them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from heapq import heapify, heappop, heappush

Parents = Mapping[str, Collection[str]]
"""The parents of each task, in the order of the file."""

MOST_SHOWN = 12
"""How many tasks of a cycle a message names."""


def task_order(parents: Parents) -> list[str] | None:
    """All tasks, parents first and otherwise in the order of the file; None if there is a cycle."""
    names = list(parents)
    position = {name: number for number, name in enumerate(names)}
    children: dict[str, list[str]] = {}
    open_parents = [len(above) for above in parents.values()]
    for name, above in parents.items():
        for source in above:
            children.setdefault(source, []).append(name)
    free = [number for number, count in enumerate(open_parents) if not count]
    heapify(free)
    found = []
    while free:
        name = names[heappop(free)]
        found.append(name)
        for child in children.get(name, ()):
            number = position[child]
            open_parents[number] -= 1
            if not open_parents[number]:
                heappush(free, number)
    return found if len(found) == len(names) else None


def cycles(parents: Parents) -> Iterator[tuple[str, str, list[str]]]:
    """Every dependency that closes a cycle, as (source, target, tasks of the cycle). Long cycles are cut in the middle.

    Walks from tasks to their parents, depth first, without recursion."""
    depth: dict[str, int] = {}  # of the tasks on the path that is being walked
    done: set[str] = set()
    for start in parents:
        if start in done:
            continue
        path, open_above = [start], [iter(parents[start])]
        depth[start] = 0
        while path:
            source = next(open_above[-1], None)
            if source is None:
                name = path.pop()
                open_above.pop()
                del depth[name]
                done.add(name)
            elif source in depth:
                yield source, path[-1], _cycle(path, depth[source])
            elif source not in done:
                depth[source] = len(path)
                path.append(source)
                open_above.append(iter(parents[source]))


def _cycle(path: list[str], first: int) -> list[str]:
    """The tasks of the cycle, sources first; ``path`` goes from targets to sources."""
    length = len(path) - first
    if length <= MOST_SHOWN:
        return [path[-1 - step] for step in range(length)] + [path[-1]]
    half = MOST_SHOWN // 2
    head, tail = [path[-1 - step] for step in range(half)], [path[first + half - 1 - step] for step in range(half)]
    return [*head, f"({length - MOST_SHOWN} more)", *tail, path[-1]]
