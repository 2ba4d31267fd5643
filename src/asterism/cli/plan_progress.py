"""The state behind the live view, updated by each event so that no frame searches the plan."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice

from asterism.core.plan.constellation import Constellation
from asterism.core.plan.explain import Holder
from asterism.core.plan.node import Node
from asterism.core.plan.status import PENDING, RUNNING, ConstellationState
from asterism.orchestrator.events import ConstellationEvent, DeviceEvent, EditEvent, Event, TaskEvent
from asterism.orchestrator.orchestrator import PlanCommands
from asterism.orchestrator.plan_mask import PlanMask
from asterism.report.event_text import names, sentence

KEPT = 50
_DOING = {"constellation_paused": "paused", "constellation_cancelling": "cancelling"}
MANY = 50
"""The most parents or reviews that are named; more are counted, because naming them takes too long."""


class Progress:
    """The running and recently ended tasks, the activity of the plan, and the last action of an editor."""

    def __init__(self, orchestrator: PlanCommands, plan: Constellation, secrets: PlanMask) -> None:
        self.orchestrator, self.plan, self.secrets = orchestrator, plan, secrets
        self.running: dict[str, None] = {}
        self.on_device: dict[str, dict[str, None]] = {}
        for node in plan.nodes.values():  # a resumed plan may have running tasks
            if node.status is RUNNING and node.device is not None and node.tentative is None:
                self._begun(node.id, node.device)
        self.ended: deque[str] = deque(maxlen=KEPT)
        self.stranded: dict[str, None] = {}
        self.latest = ""
        self.doing = ""

    @property
    def executing(self) -> bool:
        return self.plan.state is ConstellationState.EXECUTING and self.plan.owner is self.orchestrator

    def observe(self, event: Event) -> None:
        if event.constellation != self.plan.id:
            return
        if isinstance(event, TaskEvent):
            self._observe_task(event)
        elif isinstance(event, EditEvent):
            if event.kind not in ("cycle_opened", "cycle_closed"):
                self.latest = self.secrets.shown(sentence(event, self.plan))
        elif isinstance(event, ConstellationEvent):
            self.doing = _DOING.get(event.kind, "")
        elif isinstance(event, DeviceEvent) and event.kind == "no_device":
            self.stranded[event.task_id or ""] = None

    def _observe_task(self, event: TaskEvent) -> None:
        self._forget(event.task_id)
        if event.kind in ("task_started", "task_retrying", "task_confirmed"):
            self._begun(event.task_id, event.device)
        elif event.kind in ("task_completed", "task_failed", "task_cancelled"):
            self.ended.appendleft(event.task_id)

    def _begun(self, task_id: str, device: str | None) -> None:
        self.running[task_id] = None
        if device is not None:
            self.on_device.setdefault(device, {})[task_id] = None

    def _forget(self, task_id: str) -> None:
        self.running.pop(task_id, None)
        self.stranded.pop(task_id, None)
        for tasks in self.on_device.values():
            tasks.pop(task_id, None)

    # -- what is shown: each gives at most ``limit``, and looks at little more -----------------------------------------

    def running_nodes(self, limit: int) -> list[Node]:
        nodes = self.plan.nodes
        found = (nodes.get(task_id) for task_id in self.running)
        return list(islice((node for node in found if node is not None and node.status is RUNNING), limit))

    def ended_nodes(self, limit: int) -> list[Node]:
        nodes = self.plan.nodes
        return [nodes[task_id] for task_id in islice(self.ended, limit) if task_id in nodes]

    def pending_nodes(self, limit: int) -> list[Node]:
        """The tasks that are next to start: held ones, ready ones, and those after running ones."""
        if not self.executing:
            return []
        found: dict[str, Node] = {}
        for node in islice(self._candidates(limit), 4 * limit):
            if node.status is PENDING and len(found) < limit:
                found[node.id] = node
        return list(found.values())

    def _candidates(self, limit: int) -> Iterator[Node]:
        nodes = self.plan.nodes
        for cycle in self.orchestrator.cycles(self.plan.id):
            for task_id, _ in cycle.ends[:limit]:
                yield from self._below(task_id, limit)
        yield from (nodes[task_id] for task_id in islice(self.stranded, limit) if task_id in nodes)
        for heap in islice(self.plan.queue.lanes.values(), limit):
            yield from (entry[4] for entry in sorted(heap[: 4 * limit])[:limit])  # the top of a heap is nearly in order
        for task_id in islice(self.running, limit):
            yield from self._below(task_id, limit)

    def _below(self, task_id: str, limit: int) -> Iterator[Node]:
        node = self.plan.nodes.get(task_id)
        return iter(()) if node is None else islice(node.children.values(), limit)

    def holder(self, node: Node) -> tuple[str, str]:
        """What holds a pending task: a word for its state, and the name of the holder."""
        cycles = self.orchestrator.cycles(self.plan.id)
        if len(node.parents) > MANY and node.open:
            return "waiting", f"for {node.open:,} of {len(node.parents):,} tasks"
        if node.held and not node.open and sum(len(cycle.ends) for cycle in cycles) > MANY:
            return "held", f"by cycle {cycles[0].id}, the oldest of {len(cycles)}"
        return _briefly(node, self.orchestrator.why(node.id, self.plan.id).holders)


def _briefly(node: Node, holders: tuple[Holder, ...]) -> tuple[str, str]:
    """The holders in a few words for a table; ``why`` has the whole sentences."""
    first, different = holders[0], dict.fromkeys(holder.name for holder in holders)
    all_names = names(different, len(different))
    if first.kind == "dependency":
        return "waiting", f"for {all_names}"
    if first.kind == "cycle":
        return "held", f"by cycle {all_names}"
    if first.kind in ("review", "provisional"):
        return "held", first.text
    if first.kind == "no_device":
        named = [repr(node.task.device)] if node.task.device is not None else []
        return "ready", f"no device {' '.join([*named, *(f'can {need}' for need in sorted(node.task.needs))])}"
    return "ready", f"busy: {first.name}" if first.kind == "busy" else first.text
