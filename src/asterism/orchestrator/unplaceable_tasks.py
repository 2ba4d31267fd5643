"""Ready tasks that no joined device can run: each waits for a device, and fails when its time is up.

The time is ``no_device_timeout``. Nothing polls: a device that joins looks at them again, an edit may change or remove
them, and each has a timer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from asterism.core.errors import NoDevice
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.node import Node
from asterism.core.plan.ready_queue import Lane, lane_of
from asterism.core.plan.status import PENDING, RUNNING
from asterism.orchestrator.events import DeviceEvent, PlanEvents
from asterism.orchestrator.roster import Roster


class UnplaceableTasks:
    """``may_start`` says whether tasks may start now; ``fail`` ends a task whose time is up."""

    def __init__(
        self,
        plan: Constellation,
        roster: Roster,
        events: PlanEvents,
        timeout: float,
        may_start: Callable[[], bool],
        fail: Callable[[Node, BaseException], None],
    ) -> None:
        self._plan, self._roster, self._events, self._timeout = plan, roster, events, timeout
        self._may_start, self._fail = may_start, fail
        self._timers: dict[Node, asyncio.TimerHandle] = {}

    def __bool__(self) -> bool:
        return bool(self._timers)

    def __iter__(self) -> Iterator[Node]:
        return iter(self._timers)

    def add_lane(self, lane: Lane) -> None:
        """Move the tasks of a lane from the queue to here."""
        queue = self._plan.queue
        while queue.peek(lane) is not None:
            node = queue.pop(lane)
            if node not in self._timers:
                self._wait(node)
                detail = f"{missing(node)} has joined"
                self._events.emit(DeviceEvent, kind="no_device", device="", task_id=node.id, detail=detail)

    def _wait(self, node: Node) -> None:
        self._timers[node] = asyncio.get_running_loop().call_later(self._timeout, self._give_up, node)

    def _give_up(self, node: Node) -> None:
        if node.held or not self._may_start():  # it could not start on any device now, and may still be edited
            self._wait(node)
            return
        del self._timers[node]
        self._fail(node, NoDevice(f"{missing(node)} became available within {self._timeout:g} s"))

    def devices_changed(self) -> None:
        """Put the tasks that a device can now run back into the queue; the timers of the others continue."""
        for node in [node for node in self._timers if self._roster.capable(lane_of(node.task))]:
            self.remove(node)
            if node.status is RUNNING:
                self._plan.queue.push(node)
            else:
                self._plan.requeue(node)

    def edited(self) -> None:
        """Forget the tasks that an edit removed, changed, or made wait for another task."""
        for node in [node for node in self._timers if not self._unchanged(node)]:
            self.remove(node)

    def _unchanged(self, node: Node) -> bool:
        if node.status is RUNNING:  # between two attempts, where edits do not reach it
            return True
        present = self._plan.nodes.get(node.id) is node
        return present and node.status is PENDING and not node.open and node.entry is None

    def remove(self, node: Node) -> None:
        timer = self._timers.pop(node, None)
        if timer is not None:
            timer.cancel()

    def clear(self) -> None:
        for node in tuple(self._timers):
            self.remove(node)


def missing(node: Node) -> str:
    """The device that a task needs and that has not joined, such as "no device with 'gpu'"."""
    task = node.task
    needs = f" with {', '.join(map(repr, sorted(task.needs)))}" if task.needs else ""
    return f"no device{needs}" if task.device is None else f"no device {task.device!r}{needs}"
