"""Layouts of plans for the page, remembered by version, so that an edit moves as little as possible.

A large group that nobody has opened is one task.

The layout of a version starts from the layout of the nearest version that is remembered. After a restart of the server,
or for a plan that was not looked at for long, the first layout is a fresh one.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple, TypeVar
from weakref import WeakValueDictionary

from asterism.core.json_values import JsonObject
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.group_elements import folded_groups
from asterism.report.layout import Dependency, Place, PlanLayout, fresh, updated

Known = TypeVar("Known")
Answer = TypeVar("Answer")

COLUMN = 252
ROW = 64
"""The distance of two layers and of two rows, in pixels."""

MOST_REMEMBERED = 30_000
"""How many tasks the remembered layouts have in all, at most; a layout counts as ``LEAST`` tasks at least."""

LEAST = 1000

SMALL = 200
"""A plan of at most this many tasks is laid out at once; a larger one in a thread, since it takes longer."""


class _Known(NamedTuple):
    """``shape`` is the hash of the tasks and dependencies that were laid out: their names would take as much memory as
    the layout."""

    shape: int
    layout: PlanLayout

    @property
    def size(self) -> int:
        return max(len(self.layout.places), LEAST)


class PlanLayouts:
    """The layouts that one server remembers, by plan and version, the most recently used last."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, int], _Known] = OrderedDict()
        self._size = 0
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def layout(self, name: str, plan: Constellation, opened: Collection[str] = ()) -> JsonObject:
        """The layout of a plan as JSON: places in pixels, centres of the boxes."""
        version, layout = plan.version, await self._layout(name, plan, opened)
        return {"version": version, **await _apart(layout_json, layout, len(layout.places))}

    async def layout_after(
        self, name: str, plan: Constellation, edited: Constellation, opened: Collection[str] = ()
    ) -> JsonObject:
        """The layout that ``edited`` would have if it were the next version of the plan. It is not remembered."""
        after = await _computed(await self._layout(name, plan, opened), *_shape(edited, opened))
        return {"version": edited.version, **await _apart(layout_json, after, len(after.places))}

    async def _layout(self, name: str, plan: Constellation, opened: Collection[str]) -> PlanLayout:
        lock = self._locks.setdefault(name, asyncio.Lock())
        async with lock:
            return await self._find(name, plan.version, *_shape(plan, opened))

    async def _find(
        self, name: str, version: int, tasks: Sequence[str], dependencies: Sequence[Dependency]
    ) -> PlanLayout:
        known, shape = self._known.get((name, version)), hash((*tasks, *dependencies))
        if known is None or known.shape != shape:
            others = (other for plan, other in self._known if plan == name)
            nearest = min(others, key=lambda other: (abs(other - version), other), default=None)
            before = self._known[name, nearest].layout if nearest is not None else None
            layout = await _computed(before, tasks, dependencies)
            self._forget((name, version))
            self._remember((name, version), known := _Known(shape, layout))
        self._known.move_to_end((name, version))
        return known.layout

    def _remember(self, key: tuple[str, int], known: _Known) -> None:
        self._known[key] = known
        self._size += known.size
        while self._size > MOST_REMEMBERED and len(self._known) > 1:
            self._forget(next(iter(self._known)))

    def _forget(self, key: tuple[str, int]) -> None:
        known = self._known.pop(key, None)
        self._size -= known.size if known is not None else 0


def _shape(plan: Constellation, opened: Collection[str]) -> tuple[list[str], list[Dependency]]:
    folded = folded_groups(plan, opened)
    return [node.id for node in folded.nodes(plan)], [(edge.source, edge.target) for edge in folded.dependencies(plan)]


async def _computed(before: PlanLayout | None, tasks: Sequence[str], dependencies: Sequence[Dependency]) -> PlanLayout:
    return await _apart(lambda known: _laid_out(known, tasks, dependencies), before, len(tasks))


async def _apart(compute: Callable[[Known], Answer], known: Known, tasks: int) -> Answer:
    """What is computed of so many tasks: in a thread if they are many."""
    return compute(known) if tasks <= SMALL else await asyncio.to_thread(compute, known)


def _laid_out(before: PlanLayout | None, tasks: Sequence[str], dependencies: Sequence[Dependency]) -> PlanLayout:
    return fresh(tasks, dependencies) if before is None else updated(before, tasks, dependencies)


def layout_json(layout: PlanLayout) -> JsonObject:
    """A layout in pixels. ``edges`` has those dependencies that bend, with their bends."""
    first, last = layout.rows
    return {
        "top": round(first * ROW, 1),
        "width": layout.layers * COLUMN,
        "height": round((last - first) * ROW, 1),
        "nodes": {task: [*_pixels(place), place.layer] for task, place in layout.places.items()},
        "edges": [
            {"source": source, "target": target, "points": _points(chain)}
            for (source, target), chain in layout.bends.items()
        ],
    }


def _pixels(place: Place) -> list[float]:
    return [place.layer * COLUMN + COLUMN / 2, round(place.row * ROW, 1)]


def _points(chain: Iterable[Place]) -> list[list[float]]:
    return [_pixels(bend) for bend in chain]
