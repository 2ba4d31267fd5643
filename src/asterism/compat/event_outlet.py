"""Publishes the events of a run on the documented bus, or on a bus of the user.

On the documented bus an event is handed out within the step that makes it. A bus of the user's own, or a subclass with
a ``publish_event`` of its own, is called through that: as a task, so that no observer delays the plan. What has to be
known before the plan goes on (that a task has ended) is then waited for where the plan is held anyway.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from typing import TYPE_CHECKING, Any

from asterism.compat.documented_events import TASK_ENDS, Event, untouched
from asterism.compat.event_bus import HANDLER_TIMEOUT, EventBus

if TYPE_CHECKING:
    from asterism.compat.plan_run import Run

logger = logging.getLogger("asterism.compat.events")

_live: dict[int, dict[str, Run]] = {}
"""The runs on each bus, by the bus's identity and the plan's id: an event names its plan by id alone."""


def live_on(bus: object) -> dict[str, Run]:
    return dict(_live.get(id(bus), {}))


def enter(bus: object, plan_id: str, run: Run) -> None:
    _live.setdefault(id(bus), {})[plan_id] = run


def leave(bus: object, plan_id: str) -> None:
    runs = _live.get(id(bus), {})
    runs.pop(plan_id, None)
    if not runs:
        _live.pop(id(bus), None)


class Outlet:
    """``publish`` never waits. A bus of the user's own has ``HANDLER_TIMEOUT`` seconds to hand an end on."""

    def __init__(self, bus: Any) -> None:
        self._bus = bus
        self._documented = bus if issubclass(type(bus), EventBus) else None
        self._at_once = self._documented is not None and untouched(bus, "publish_event")
        self._publishing: set[asyncio.Task[None]] = set()
        self._ends: set[asyncio.Task[None]] = set()

    def publish(self, event: Event) -> None:
        if self._at_once:
            self._bus.hand_out(event)
            return
        task = asyncio.get_running_loop().create_task(self._send(event))
        for group in (self._publishing, self._ends) if event.event_type in TASK_ENDS else (self._publishing,):
            group.add(task)
            task.add_done_callback(group.discard)

    async def _send(self, event: Event) -> None:
        try:
            answer = self._bus.publish_event(event)
            if inspect.isawaitable(answer):
                await answer
        except Exception:
            logger.exception("%r failed to publish %s", self._bus, event.event_type)

    async def delivered(self, observer: object, timeout: float) -> None:
        """Wait until an observer knows of the ends that were published, at most ``timeout`` seconds."""
        if self._ends:
            await asyncio.wait(self._ends, timeout=min(timeout, HANDLER_TIMEOUT))
        if self._documented is not None:
            await self._documented.caught_up(observer, timeout)

    async def drain(self, timeout: float) -> None:
        """Wait until everything is published and the observers have caught up, at most ``timeout`` seconds."""
        if self._publishing:
            await asyncio.wait(self._publishing, timeout=timeout)
        if self._documented is not None:
            await self._documented.drain(timeout)
