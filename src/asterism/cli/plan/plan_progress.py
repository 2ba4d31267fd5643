"""The state of the live view of a plan: running and ended tasks, what waits and why, the newest output.

Each event updates it, so that no frame searches the plan. Each method visits little more than it returns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import NamedTuple, Protocol

from asterism.core.attempt_log import TaskLog
from asterism.core.plan.assignment_lock import EditCycle
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edits import WaitingEdit
from asterism.core.plan.explain import Holder, Why
from asterism.core.plan.node import Node
from asterism.core.plan.plan_end import opened_at
from asterism.core.plan.status import PENDING, RUNNING, ConstellationState
from asterism.core.plan.task import Lane, lane_of, needs_of
from asterism.orchestrator.events import ConstellationEvent, DeviceEvent, EditEvent, Event, EventBus, TaskEvent
from asterism.orchestrator.plan_mask import PlanMask
from asterism.report.event_text import names, sentence

MOST_ENDED = 50
"""How many ended tasks are remembered."""

_DOING = {"constellation_paused": "paused", "constellation_cancelling": "cancelling"}
MANY = 50
"""The most parents or reviews that are named; more are counted, because naming them takes too long."""

MOST_GROUPS = 6
"""The most groups of pending tasks."""

COUNTED = 5000
"""How many tasks of a group are counted one by one."""

OUTPUT_LINES = 3
"""How many lines of the newest output are shown."""

OUTPUT_TASKS = 5
"""How many running tasks, and how many ended ones, are asked for their output: the newest."""

OUTPUT_INTERVAL = 0.5
"""Seconds between two looks for output."""

COUNTED_NAMES = 200
"""How many ready tasks are sorted to name the first ones."""


@dataclass(frozen=True, slots=True)
class PendingGroup:
    """Pending tasks with one holder: a word for their state, what holds them, how many they are, the first of them."""

    word: str
    holder: str
    count: int
    first: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class OutputTail:
    """The last lines that a task has printed."""

    task: str
    lines: Sequence[str]


class Begun(NamedTuple):
    """Which device began to execute a task, and when."""

    device: str
    at: float


@dataclass(frozen=True, slots=True)
class FleetState:
    """What the fleet does for a plan in a store: when that was read, the tasks that devices execute, as far as they
    were looked up, how many these are, and how many wait for a device."""

    read_at: float
    begun: Mapping[str, Begun]
    executing: int
    queued: int


class Place(Protocol):
    """A device, or all devices of a fleet as one."""

    @property
    def id(self) -> str: ...
    @property
    def slots(self) -> int | None: ...
    @property
    def running(self) -> int: ...


class PlanSource(Protocol):
    """What the view asks while it shows a plan: an orchestrator, or the copy of a plan that another process runs."""

    @property
    def events(self) -> EventBus: ...

    def now(self) -> float:
        """The clock of the plan: seconds since 1970."""

    def runs(self, plan: Constellation) -> bool:
        """Whether the plan runs, and the other questions may be asked."""

    def places(self) -> Sequence[Place]:
        """Where its tasks are executed."""

    def why(self, task_id: str, plan_id: str, /) -> Why:
        """What holds a task."""

    def cycles(self, plan_id: str, /) -> Sequence[EditCycle]:
        """The open edit cycles."""

    def approvals(self, plan_id: str, /) -> Sequence[WaitingEdit]:
        """The edits that wait for a person."""

    def logs(self, task_id: str, plan_id: str, /) -> Sequence[TaskLog]:
        """What each attempt at a task has printed so far, if this process executes it."""


class OutputSource(Protocol):
    """The newest output of a plan. Each frame asks for it, so it answers with what it has."""

    def __call__(self) -> OutputTail | None: ...

    async def close(self) -> None:
        """The view ends."""


class NewestOutput:
    """Finds the task that has printed last, among those that run here or have just ended. It looks at few tasks, and
    not with every frame: reading a log splits it into lines."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._looked_at = float("-inf")
        self._tail: OutputTail | None = None

    def __call__(self) -> OutputTail | None:
        progress = self._progress
        if not progress.executing:
            return self._tail
        now = progress.orchestrator.now()
        if now - self._looked_at >= OUTPUT_INTERVAL:
            self._looked_at = now
            self._tail = self._newest() or self._tail
        return self._tail

    def _newest(self) -> OutputTail | None:
        progress, tails = self._progress, []
        newest_running = islice(reversed(progress.running), OUTPUT_TASKS)
        for task_id in (*newest_running, *islice(progress.ended, OUTPUT_TASKS)):
            logs = progress.orchestrator.logs(task_id, progress.plan.id) if task_id in progress.plan else []
            lines = logs[-1].lines if logs else []
            if lines:
                tails.append((lines[-1].at, OutputTail(task_id, [line.text for line in lines[-OUTPUT_LINES:]])))
        return max(tails, key=lambda tail: tail[0])[1] if tails else None

    async def close(self) -> None:
        """There is nothing to close."""


class Progress:
    """The running and recently ended tasks, the activity of the plan, and the last action of an editor."""

    def __init__(self, orchestrator: PlanSource, plan: Constellation, secrets: PlanMask) -> None:
        self.orchestrator, self.plan, self.secrets = orchestrator, plan, secrets
        self.running: dict[str, None] = {}
        self.on_device: dict[str, dict[str, None]] = {}
        for node in plan.nodes.values():  # a resumed plan may have running tasks
            if node.status is RUNNING and node.device is not None and node.tentative is None:
                self._begun(node.id, node.device)
        self.ended: deque[str] = deque(maxlen=MOST_ENDED)
        self.stranded: dict[str, None] = {}
        self.latest = ""
        self.doing = ""
        self.fleet: FleetState | None = None
        self.newest_output: OutputSource = NewestOutput(self)
        self._opened_at: float | None = None

    @property
    def opened_at(self) -> float | None:
        """When the plan began, or was last reopened."""
        if self._opened_at is None:
            self._opened_at = opened_at(self.plan)
        return self._opened_at

    @property
    def executing(self) -> bool:
        """Whether the plan runs, so that its source can be asked."""
        return self.plan.state is ConstellationState.EXECUTING and self.orchestrator.runs(self.plan)

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

    @property
    def running_count(self) -> int:
        """How many tasks are executed. Those of a plan in a store may also be queued; that was read a moment ago, and
        some have ended or started since."""
        count = self.plan.counts[RUNNING]
        return count if self.fleet is None else max(min(count, self.fleet.executing), count - self.fleet.queued)

    @property
    def queued_count(self) -> int:
        return self.plan.counts[RUNNING] - self.running_count

    def running_nodes(self, limit: int) -> list[Node]:
        return list(islice(self._started_nodes(), min(limit, self.running_count)))

    def queued_group(self) -> PendingGroup | None:
        """The tasks that wait for a device of the fleet."""
        count, running = self.queued_count, self.running_count
        if not count:
            return None
        first = [node.id for node in islice(self._started_nodes(), running, running + COUNTED_NAMES)]
        return PendingGroup("queued", "for a device", count, first)

    def _started_nodes(self) -> Iterator[Node]:
        """Those that devices execute first, as far as that is known; then in the order of their start, in which devices
        begin them."""
        begun: Mapping[str, Begun] = {} if self.fleet is None else self.fleet.begun
        known = (task_id for task_id in begun if task_id in self.running)
        nodes = map(self.plan.nodes.get, chain(known, (task_id for task_id in self.running if task_id not in begun)))
        return (node for node in nodes if node is not None and node.status is RUNNING)

    def place_of(self, node: Node) -> Begun:
        """The device of a running task, and since when it runs."""
        started, fleet = node.started_at or self.orchestrator.now(), self.fleet
        if fleet is None:
            return Begun(node.device or "", started)
        return fleet.begun.get(node.id) or Begun(node.device or "", max(started, fleet.read_at))

    def ended_nodes(self, limit: int) -> list[Node]:
        nodes = self.plan.nodes
        return [nodes[task_id] for task_id in islice(self.ended, limit) if task_id in nodes]

    def pending_nodes(self, limit: int) -> list[Node]:
        """The tasks that are next to start: held ones, ready ones, and those after running ones."""
        if not self.executing:
            return []
        pending: dict[str, Node] = {}
        for node in islice(self._candidates(limit), 4 * limit):
            if node.status is PENDING and len(pending) < limit:
                pending[node.id] = node
        return list(pending.values())

    def pending_groups(self) -> list[PendingGroup]:
        """All pending tasks, by what holds them: a line each when there is no room for every task. Visits the ready
        and the held tasks, up to ``COUNTED`` of each, not the whole plan."""
        if not self.executing:
            return []
        groups = [*self._held_groups(), *self._stranded_groups(), *self._ready_groups()]
        rest = self.plan.counts[PENDING] - sum(group.count for group in groups)
        if rest > 0:
            groups.append(PendingGroup("waiting", "for tasks before them", rest))
        return groups

    def _ready_groups(self) -> Iterator[PendingGroup]:
        """One group for each lane of the queue: its tasks need the same device."""
        queue = self.plan.queue
        for lane in islice(queue.lanes, MOST_GROUPS):
            ready = [entry for entry in islice(queue.entries(lane), COUNTED) if entry[4].entry is entry]
            if ready:
                length = queue.length(lane)
                count = len(ready) if length <= COUNTED else length
                first = [entry[4] for entry in sorted(ready[:COUNTED_NAMES])]
                yield PendingGroup(*self.holder(first[0]), count, [node.id for node in first])

    def _stranded_groups(self) -> Iterator[PendingGroup]:
        """One group for each kind of device that is missing."""
        lanes: dict[Lane, list[Node]] = {}
        for task_id in islice(self.stranded, COUNTED):
            node = self.plan.nodes.get(task_id)
            if node is not None and node.status is PENDING and node.entry is None:
                lanes.setdefault(lane_of(node.task), []).append(node)
        for tasks in islice(lanes.values(), MOST_GROUPS):
            yield PendingGroup(*self.holder(tasks[0]), len(tasks), [node.id for node in tasks])

    def _held_groups(self) -> Iterator[PendingGroup]:
        """One group for each open cycle."""
        seen: set[Node] = set()
        for cycle in islice(self.orchestrator.cycles(self.plan.id), MOST_GROUPS):
            below = (node for task_id, _ in cycle.ends for node in self._below(task_id, COUNTED))
            held = [node for node in islice(below, COUNTED) if node.held and not node.open and node not in seen]
            held = [node for node in dict.fromkeys(held) if node.status is PENDING]
            seen.update(held)
            if held:
                yield PendingGroup("held", f"by cycle {cycle.id}", len(held), [node.id for node in held])

    def _candidates(self, limit: int) -> Iterator[Node]:
        nodes = self.plan.nodes
        for edit in self.orchestrator.approvals(self.plan.id):
            yield from (nodes[task_id] for task_id in edit.tasks[:limit] if task_id in nodes)
        for cycle in self.orchestrator.cycles(self.plan.id):
            for task_id, _ in cycle.ends[:limit]:
                yield from self._below(task_id, limit)
        yield from (nodes[task_id] for task_id in islice(self.stranded, limit) if task_id in nodes)
        queue = self.plan.queue
        for lane in islice(queue.lanes, limit):
            nearly_first = islice(queue.entries(lane), 4 * limit)
            yield from (entry[4] for entry in sorted(nearly_first)[:limit])
        for task_id in islice(self.running, limit):
            yield from self._below(task_id, limit)
        for task_id in islice(self.ended, limit):  # nothing else may be left when a person has to decide
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
    first = holders[0]
    different = dict.fromkeys(holder.name for holder in holders if holder.kind == first.kind)
    all_names = names(different, len(different))
    if first.kind == "dependency":
        return "waiting", f"for {all_names}"
    if first.kind == "cycle":
        return "held", f"by cycle {all_names}"
    if first.kind == "approval":
        return "held", f"by approval {all_names}"
    if first.kind in ("review", "provisional"):
        return "held", first.text
    if first.kind == "no_device":
        named = [repr(node.task.device)] if node.task.device is not None else []
        return "ready", f"no device {' '.join([*named, *(f'can {need}' for need in sorted(needs_of(node.task)))])}"
    return "ready", f"busy: {first.name}" if first.kind == "busy" else first.text
