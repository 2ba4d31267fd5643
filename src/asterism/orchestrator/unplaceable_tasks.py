"""Tasks that are ready and that no device of the roster could ever take.

Each waits ``no_device_timeout`` seconds of its own for a device to join, and then fails. Nothing polls: a join looks at
them again, an edit may change or remove them, and one timer each does the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

from asterism.core.errors import NoDevice
from asterism.core.plan.node import Node
from asterism.core.plan.ready_queue import Lane, lane_of
from asterism.core.plan.status import PENDING, RUNNING
from asterism.orchestrator.events import DeviceEvent

if TYPE_CHECKING:
    from asterism.orchestrator.execution import Execution


class Stranded:
    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._timers: dict[Node, asyncio.TimerHandle] = {}

    def __bool__(self) -> bool:
        return bool(self._timers)

    def __iter__(self) -> Iterator[Node]:
        return iter(self._timers)

    def take_in(self, lane: Lane) -> None:
        """The tasks of a lane leave the queue and wait here."""
        queue = self._execution.plan.queue
        while queue.peek(lane) is not None:
            node = queue.pop(lane)
            if node not in self._timers:
                self._wait(node)
                tell = self._execution.tell.tell
                tell(DeviceEvent, kind="no_device", device="", task_id=node.id, detail=wanted(node))

    def _wait(self, node: Node) -> None:
        seconds = self._execution.orchestrator.no_device_timeout
        self._timers[node] = self._execution.loop.call_later(seconds, self._give_up, node)

    def _give_up(self, node: Node) -> None:
        if node.held or not self._execution.dispatching:  # its own turn has not come: it may be edited away yet
            self._wait(node)
            return
        del self._timers[node]
        seconds = self._execution.orchestrator.no_device_timeout
        self._execution.fail(node, NoDevice(f"{wanted(node)} within {seconds:g} s"))

    def look_again(self) -> None:
        """Devices joined or left: who can be taken now goes back to the queue; for the others the time runs on."""
        plan, roster = self._execution.plan, self._execution.orchestrator.roster
        for node in [node for node in self._timers if roster.capable(lane_of(node.task))]:
            self.forget(node)
            if node.status is RUNNING:
                plan.queue.push(node)
            else:
                plan.requeue(node)

    def edited(self) -> None:
        """An edit was applied: forget whom it removed, changed or made wait for something else."""
        for node in [node for node in self._timers if not self._left_alone(node)]:
            self.forget(node)

    def _left_alone(self, node: Node) -> bool:
        if node.status is RUNNING:  # between two attempts: edits cannot reach it
            return True
        present = self._execution.plan.nodes.get(node.id) is node
        return present and node.status is PENDING and not node.open and node.entry is None

    def forget(self, node: Node) -> None:
        timer = self._timers.pop(node, None)
        if timer is not None:
            timer.cancel()

    def clear(self) -> None:
        for node in tuple(self._timers):
            self.forget(node)


def wanted(node: Node) -> str:
    """What a task asks for that nobody has, in words."""
    task = node.task
    terms = [f"the device {task.device!r}"] if task.device is not None else []
    terms += [f"a device that can {', '.join(sorted(task.needs))}"] if task.needs else []
    return f"no device could take task {node.id!r}, which asks for {' and '.join(terms) or 'any device'}"
