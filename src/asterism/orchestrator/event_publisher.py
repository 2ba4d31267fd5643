"""Telling whoever listens what happens in one execution. An event that nobody listens for is not made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asterism.core.errors import error_text
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.node import Node
from asterism.orchestrator.events import ConstellationEvent, Event, EventBus, TaskEvent


class Telling:
    def __init__(self, bus: EventBus, plan: Constellation, now: Callable[[], float]) -> None:
        self.bus, self.plan, self.now = bus, plan, now
        self.publish = bus.publish

    @property
    def of_tasks(self) -> bool:
        """Whether anybody listens for what happens to tasks; asked for every task, so quick to say no."""
        return bool(self.bus.subscriptions) and self.bus.wants(TaskEvent)

    def tell(self, make: type[Event], /, **fields: Any) -> None:
        if self.bus.wants(make):
            self.publish(make(at=self.now(), constellation=self.plan.id, **fields))

    def constellation(self, kind: str) -> None:
        self.tell(ConstellationEvent, kind=kind, state=self.plan.state, version=self.plan.version)

    def task(self, kind: str, node: Node, error: BaseException | None = None) -> None:
        if self.of_tasks:
            self.tell(
                TaskEvent,
                kind=kind,
                task_id=node.id,
                status=node.status,
                device=node.device,
                epoch=node.epoch,
                attempt=node.attempts,
                error=error,
                reason=error_text(error),
                provisional=node.provisional,
            )

    def end(self, node: Node) -> None:
        """A provisional end is not an event: it becomes one when it is confirmed."""
        if self.of_tasks and not node.provisional:
            self.publish(self.end_event(node))

    def confirmed(self, nodes: list[Node]) -> None:
        for node in nodes:
            if node.ended_at is None:
                self.task("task_confirmed", node)
            else:
                self.end(node)

    def end_event(self, node: Node) -> TaskEvent:
        """How a task ended, provisionally or not: also what its editor is told."""
        status = node.tentative or node.status
        return TaskEvent(
            kind=f"task_{status}",
            at=self.now() if node.ended_at is None else node.ended_at,
            constellation=self.plan.id,
            task_id=node.id,
            status=status,
            device=node.device,
            epoch=node.epoch,
            attempt=node.attempts,
            value=node.value,
            error=node.error,
            reason=error_text(node.error) or node.reason,
            provisional=node.provisional,
        )
