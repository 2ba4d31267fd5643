"""Layouts of plans for the page, remembered by version, so that an edit moves as little as possible.

The layout of a version starts from the layout of the nearest version that is remembered. After a restart of the server,
or for a plan that was not looked at for long, the first layout is a fresh one.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from asterism.core.plan.constellation import Constellation
from asterism.report.incremental_layout import Dependency, PlanLayout, fresh, updated
from asterism.report.layout import Place

COLUMN = 244
ROW = 64
"""The distance of two layers and of two rows, in pixels."""

MOST_PLANS = 50
MOST_VERSIONS = 40
"""How many plans, and how many versions of each, are remembered."""

SMALL = 200
"""A plan of at most this many tasks is laid out at once; a larger one in a thread, since it takes longer."""


class _Known(NamedTuple):
    tasks: Sequence[str]
    dependencies: Sequence[Dependency]
    layout: PlanLayout


class PlanLayouts:
    """The layouts that one server remembers."""

    def __init__(self) -> None:
        self._plans: OrderedDict[str, OrderedDict[int, _Known]] = OrderedDict()
        self._locks: dict[str, asyncio.Lock] = {}

    async def layout(self, name: str, plan: Constellation) -> dict[str, Any]:
        """The layout of a plan as JSON: places in pixels, centres of the boxes."""
        return {"version": plan.version, **layout_json(await self._layout(name, plan))}

    async def layout_after(self, name: str, plan: Constellation, edited: Constellation) -> dict[str, Any]:
        """The layout that ``edited`` would have if it were the next version of the plan. It is not remembered."""
        after = await _computed(await self._layout(name, plan), *_shape(edited))
        return {"version": edited.version, **layout_json(after)}

    async def _layout(self, name: str, plan: Constellation) -> PlanLayout:
        async with self._locks.setdefault(name, asyncio.Lock()):
            return await self._find(name, plan.version, *_shape(plan))

    async def _find(
        self, name: str, version: int, tasks: Sequence[str], dependencies: Sequence[Dependency]
    ) -> PlanLayout:
        versions = self._remembered(name)
        known = versions.get(version)
        if known is None or (known.tasks, known.dependencies) != (tasks, dependencies):
            nearest = min(versions, key=lambda other: (abs(other - version), other), default=None)
            before = versions[nearest].layout if nearest is not None else None
            layout = await _computed(before, tasks, dependencies)
            known = versions[version] = _Known(tasks, dependencies, layout)
        versions.move_to_end(version)
        while len(versions) > MOST_VERSIONS:
            versions.popitem(last=False)
        return known.layout

    def _remembered(self, name: str) -> OrderedDict[int, _Known]:
        versions = self._plans.setdefault(name, OrderedDict())
        self._plans.move_to_end(name)
        while len(self._plans) > MOST_PLANS:
            forgotten, _ = self._plans.popitem(last=False)
            self._locks.pop(forgotten, None)
        return versions


def _shape(plan: Constellation) -> tuple[list[str], list[Dependency]]:
    return [task.id for task in plan], [(edge.source, edge.target) for edge in plan.dependencies]


async def _computed(before: PlanLayout | None, tasks: Sequence[str], dependencies: Sequence[Dependency]) -> PlanLayout:
    if len(tasks) <= SMALL:
        return _laid_out(before, tasks, dependencies)
    return await asyncio.to_thread(_laid_out, before, tasks, dependencies)


def _laid_out(before: PlanLayout | None, tasks: Sequence[str], dependencies: Sequence[Dependency]) -> PlanLayout:
    return fresh(tasks, dependencies) if before is None else updated(before, tasks, dependencies)


def layout_json(layout: PlanLayout) -> dict[str, Any]:
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
