"""The live view of a running plan in a terminal, or a line for each event without one.

``Progress`` is the state of the view: running and ended tasks, what waits and why, the newest output. Each event
updates it, so that no frame searches the plan, and each method visits little more than it returns. ``frame`` draws it
for a terminal of a given size. The view never delays the plan: handling an event is quick, and a thread writes the
output, so that a stalled terminal stops only the view.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from math import ceil
from typing import IO, NamedTuple, Protocol

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.live import Live
from rich.style import Style
from rich.table import Table
from rich.text import Text

from asterism.base.durations import format_duration
from asterism.base.status_colours import BOLD, DIM, mark, tone
from asterism.base.text import clean, plural, shorten, shorten_middle
from asterism.cli.screen import Screen, forget_output
from asterism.core.attempt_log import TaskLog
from asterism.core.errors import truncate
from asterism.core.history import Reason
from asterism.core.plan.assignment_lock import EditCycle
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edits import WaitingEdit
from asterism.core.plan.explain import Why
from asterism.core.plan.group_elements import UNFOLDED, FoldedGroups, folded_groups, status_of_group
from asterism.core.plan.node import QUEUED, Node
from asterism.core.plan.plan_end import opened_at
from asterism.core.plan.status import PENDING, RUNNING, TERMINAL, ConstellationState, TaskStatus
from asterism.core.plan.task import Lane, lane_of, needs_of
from asterism.orchestrator.events import ConstellationEvent, DeviceEvent, EditEvent, Event, EventBus, TaskEvent
from asterism.orchestrator.plan_mask import PlanMask
from asterism.report.event_text import names, reason, sentence
from asterism.report.picture import counts_text
from asterism.report.result_summary import LONGEST_LINE, state_tone

FASTEST = 1 / 8
"""The shortest time between two frames, in seconds."""

SLOWEST = 0.5
"""The longest time between two frames, in seconds: the times in them keep counting."""


# -- the state of the view -------------------------------------------------------------------------------------------


MOST_ENDED = 50
"""How many ended tasks are remembered."""

_DOING = {"constellation_paused": "paused", "constellation_cancelling": "cancelling"}
MANY = 50
"""The most parents or reviews that are named; more are counted, because naming them takes too long."""

MOST_GROUPS = 6
"""The most groups of pending tasks."""

COUNTED = 5000
"""How many tasks of a group are counted one by one."""

ENDS = ("task_completed", "task_failed", "task_cancelled")

PARTS_TOLD = 100
"""How many lines without a terminal tell of a large group as it proceeds."""

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


class LiveGroups:
    """The folded groups of a plan that is edited while it runs: found again for each version."""

    def __init__(self, plan: Constellation) -> None:
        self._plan, self._of = plan, (-1, plan.nodes)
        self._folded = UNFOLDED

    @property
    def folded(self) -> FoldedGroups:
        of = (self._plan.version, self._plan.nodes)
        if self._of[0] != of[0] or self._of[1] is not of[1]:  # a followed plan gets other nodes
            self._of, self._folded = of, folded_groups(self._plan)
        return self._folded


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
        self.groups = LiveGroups(plan)
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
        elif event.kind == "task_failed" or (event.kind in ENDS and event.task_id not in self.groups.folded.group_of):
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

    def shown_running(self, limit: int) -> list[Node]:
        """The running tasks that are not behind a folded group."""
        behind = self.groups.folded.group_of
        nodes = islice(self._started_nodes(), self.running_count)
        return list(islice((node for node in nodes if node.id not in behind), limit))

    def group_counts(self, limit: int) -> list[tuple[Node, dict[str, int]]]:
        """The folded groups whose elements have not all ended, with how many have which status."""
        folded, nodes = self.groups.folded, self.plan.nodes
        heads = (nodes[group] for group in folded.behind if nodes[group].status is PENDING)
        return [(head, folded.counts(head.id, self._shown_status)) for head in islice(heads, limit)]

    def _shown_status(self, node: Node) -> str:
        queued = self.fleet is not None and node.status is RUNNING and node.id not in self.fleet.begun
        return QUEUED if queued else node.shown_status

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


def _briefly(node: Node, holders: tuple[Reason, ...]) -> tuple[str, str]:
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


# -- watching ----------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def watched(
    orchestrator: PlanSource,
    plan: Constellation,
    console: Screen,
    *,
    plain: bool = False,
    output: Callable[[Progress], OutputSource] = NewestOutput,
) -> AsyncIterator[None]:
    """Show ``plan`` while the block runs it, with the newest ``output``. With ``plain``, or without a terminal, print a
    line for each event."""
    secrets = PlanMask(plan)
    if plain or not console.is_terminal or console.is_dumb_terminal:
        watch: _Lines | _View = _Lines(plan, console.file, secrets)
    else:
        watch = _View(orchestrator, plan, console, secrets, output)
    # All events of a plan may come in one step, when nothing limits how much runs at once.
    subscription = orchestrator.events.subscribe(watch.observe, limit=10_000 + 4 * len(plan))
    try:
        async with watch.showing():
            yield
    finally:
        subscription.close()


class _Lines:
    """Prints a line for each event."""

    def __init__(self, plan: Constellation, file: IO[str], secrets: PlanMask) -> None:
        self._plan, self._file, self._secrets = plan, file, secrets
        self._lines: list[str] = []
        self._wake = asyncio.Event()
        self._over = False
        self._reader_is_gone = False
        self._since: float | None = None  # when the plan began, or was reopened
        self._groups = LiveGroups(plan)
        self._ended = {
            group: Counter(str(node.status) for node in behind if node.status in TERMINAL)
            for group, behind in self._groups.folded.behind.items()
        }

    def observe(self, event: Event) -> None:
        if event.constellation == self._plan.id:
            self._since = self._since or opened_at(self._plan) or event.at
            since = event.at - self._since
            text = self._secrets.shown(self._sentence(event))
            if not text:
                return
            text = truncate(text, LONGEST_LINE) if isinstance(event, TaskEvent) else text  # the last line of a command
            self._lines.append(f"{max(0.0, since):8.2f}  {clean(text)}\n")
            self._wake.set()

    def _sentence(self, event: Event) -> str:
        """An event in words. Of a large group only the failures are told, and the counts at each hundredth."""
        folded = self._groups.folded
        group = folded.group_of.get(event.task_id) if isinstance(event, TaskEvent) else None
        if group is None or not isinstance(event, TaskEvent):
            return sentence(event, self._plan)
        ended, elements = self._ended.setdefault(group, Counter()), len(folded.behind[group])
        if event.kind in ENDS:
            ended[str(event.status)] += 1
        if event.kind not in ("task_started", "task_completed"):
            return sentence(event, self._plan)
        if event.kind == "task_started" or ended.total() % ceil(elements / PARTS_TOLD):
            return ""
        return f"{group}: {counts_text(ended)} of {elements:,}"

    @contextlib.asynccontextmanager
    async def showing(self) -> AsyncIterator[None]:
        writer = asyncio.create_task(self._write_until_done())
        try:
            yield
        finally:
            self._over = True
            self._wake.set()
            await writer

    async def _write_until_done(self) -> None:
        while self._lines or not self._over:
            await self._wake.wait()
            self._wake.clear()
            lines, self._lines = self._lines, []
            await asyncio.to_thread(self._write, lines)

    def _write(self, lines: list[str]) -> None:
        """A reader that has gone away (``| head``) does not end the run."""
        if lines and not self._reader_is_gone:
            try:
                self._file.write("".join(lines))
                self._file.flush()
            except BrokenPipeError:
                self._reader_is_gone = True
                forget_output(self._file)


class _View:
    """Draws a frame when something has happened, but not too often."""

    def __init__(
        self,
        orchestrator: PlanSource,
        plan: Constellation,
        console: Screen,
        secrets: PlanMask,
        output: Callable[[Progress], OutputSource],
    ) -> None:
        self._orchestrator, self._plan, self._console = orchestrator, plan, console
        self._progress = Progress(orchestrator, plan, secrets)
        self._progress.newest_output = output(self._progress)
        self._changed, self._over = asyncio.Event(), asyncio.Event()

    def observe(self, event: Event) -> None:
        self._progress.observe(event)
        self._changed.set()

    @contextlib.asynccontextmanager
    async def showing(self) -> AsyncIterator[None]:
        with self._console.live() as live:
            drawing = asyncio.create_task(self._draw_until_done(live))
            try:
                yield
            finally:
                self._over.set()
                self._changed.set()
                await drawing
                await self._progress.newest_output.close()

    async def _draw_until_done(self, live: Live) -> None:
        """Draw until the plan has ended, and once more at the end."""
        while not self._over.is_set():
            await self._draw(live)
            self._changed.clear()
            await _wait_at_most(self._over, FASTEST)
            await _wait_at_most(self._changed, SLOWEST - FASTEST)
        await self._draw(live)

    async def _draw(self, live: Live) -> None:
        size = self._console.size
        now = 0.0 if self._plan.started_at is None else self._orchestrator.now()
        picture = frame(self._progress, now, size.width, size.height - 1)
        await asyncio.to_thread(live.update, picture, refresh=True)


async def _wait_at_most(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, at most this long."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)


# -- one frame ---------------------------------------------------------------------------------------------------------

MOST_DEVICES = 6
MOST_CYCLES = 3
HEIGHT_FOR_OUTPUT = 10
"""The fewest lines for tasks that leave room for output."""

WIDEST_NAME = 28
WIDEST_DEVICE = 16
UNCOUNTED = 1000
"""A place with this many slots stands for a whole fleet: its free slots are not shown."""

_DONE = (TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED, TaskStatus.RUNNING)


def frame(progress: Progress, now: float, width: int, height: int) -> RenderableType:
    """At most ``height`` lines of at most ``width`` cells."""
    tail = progress.newest_output()
    above = [_heading(progress, now), _bar(progress, width)]
    below = [*_devices(progress, width), *_cycles(progress, now, width), *_latest(progress, width)]
    if height - len(above) - len(below) >= HEIGHT_FOR_OUTPUT:
        below += _output(tail, width)
    room = height - len(above) - len(below) - 2
    middle: list[RenderableType] = [Text(), _tasks(progress, now, width, room)] if room > 0 else []
    return Group(*[*above, *middle, *([Text()] if room > 0 and below else []), *below][:height])


def _heading(progress: Progress, now: float) -> Text:
    plan = progress.plan
    line = Text(no_wrap=True, overflow="ellipsis").append(shorten(plan.id, WIDEST_NAME), BOLD)
    line.append(f"  {progress.doing or plan.state_text}", state_tone(plan.state))
    took = 0.0 if progress.opened_at is None else (plan.ended_at or now) - progress.opened_at
    return line.append(f"  version {plan.version}  {_seconds(took)}{_ahead(progress, took)}", DIM)


def _ahead(progress: Progress, took: float) -> str:
    """How much of a plan is done, and the time left if the other tasks take as long; empty at its beginning and end.
    While nothing runs, the time left is unknown."""
    plan = progress.plan
    ended, total = sum(plan.counts[status] for status in TERMINAL), len(plan)
    if not 0 < ended < total:
        return ""
    left = f", about {format_duration(took * (total - ended) / ended)} left" if progress.running_count else ""
    return f"  {100 * ended // total} %{left}"


def _bar(progress: Progress, width: int) -> Text:
    """A progress bar, and the counts in words."""
    total = len(progress.plan)
    counts = {**progress.plan.counts, RUNNING: progress.running_count}
    numbers = {**{str(status): counts[status] for status in _DONE}, "queued": progress.queued_count}
    numbers[str(PENDING)] = counts[PENDING]
    words = ", ".join(f"{number:,} {word}" for word, number in numbers.items() if number)
    length = max(0, min(32, width - len(words) - 2))
    line, drawn, counted = Text(no_wrap=True, overflow="ellipsis"), 0, 0
    for status in _DONE:
        counted += counts[status]
        end = round(length * counted / total) if total else 0
        line.append("━" * (end - drawn), tone(status))
        drawn = end
    return line.append("─" * (length - drawn), DIM).append(f"  {words}")


def _tasks(progress: Progress, now: float, width: int, room: int) -> Table:
    """Running tasks first, then pending ones with their holders, then the latest ends. If there is no room for all
    pending tasks, there is a line for each holder."""
    heads = progress.group_counts(len(progress.plan))
    if len(heads) >= room:
        grid = _grid(heads[: room - 1] if len(heads) > room else heads)
        if len(heads) > room:
            _line(grid, "pending", plural(len(heads) - room + 1, "more group"), "", "")
        return grid
    room -= len(heads)
    running, ended = progress.shown_running(room + 1), progress.ended_nodes(room)
    share = max(1, room // 4)
    pending, groups = _pending(progress, max(share, room - len(running) - min(share, len(ended))))
    waiting = len(pending) + len(groups)
    some_running = running[: max(share, room - min(share, waiting) - min(share, len(ended)))]
    left = 0
    if len(some_running) < len(running):
        some_running = some_running[:-1]
        left = progress.running_count - len(some_running) - sum(counts.get(str(RUNNING), 0) for _, counts in heads)
    lines = len(some_running) + (left > 0)
    pending, some_groups = pending[: max(share, room - lines - min(share, len(ended)))], groups[: max(0, room - lines)]
    unnamed = 0
    if len(some_groups) < len(groups):
        some_groups = some_groups[:-1]
        unnamed = sum(group.count for group in groups[len(some_groups) :])
    some_ended = ended[: max(0, room - lines - len(pending) - len(some_groups) - (unnamed > 0))]
    grid = _grid(heads)
    for node in some_running:
        device, since = progress.place_of(node)
        _row(grid, node, "running", _run_word(node), _seconds(now - since), "", device)
    if left > 0:
        _line(grid, "running", f"{left:,} more", "running", "")
    for group in some_groups:
        first = f": {names(group.first, group.count)}" if group.first else ""
        look = "waiting" if group.word == "waiting" else "pending"
        _line(grid, look, plural(group.count, "task"), group.word, f"{group.holder}{first}")
    if unnamed and lines + len(some_groups) < room:
        _line(grid, "pending", f"{unnamed:,} more", "pending", "")
    for node in pending:
        word, why = progress.holder(node)
        _row(grid, node, "waiting" if word == "waiting" else "pending", word, "", why)
    for node in some_ended:
        why = progress.secrets.shown(reason(node.error))
        _row(grid, node, str(node.status), str(node.status), _took(node), why)
    return grid


def _grid(heads: Sequence[tuple[Node, Mapping[str, int]]]) -> Table:
    """The columns of tasks, and a line for each folded group: it is one task, with counts of its elements."""
    grid = Table.grid(padding=(0, 2, 0, 0), expand=True)
    grid.add_column(width=1)
    grid.add_column(no_wrap=True, max_width=WIDEST_NAME, overflow="ellipsis")
    for _ in ("status", "device", "time"):
        grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, overflow="ellipsis", ratio=1, style=DIM)
    for head, counts in heads:
        status = status_of_group(head.shown_status, counts)
        _row(grid, head, status, status, "", f"{sum(counts.values()):,}: {counts_text(counts)}")
    return grid


def _pending(progress: Progress, room: int) -> tuple[list[Node], list[PendingGroup]]:
    """The pending tasks, if there is room for all of them; otherwise groups. Queued tasks are always a group."""
    group = progress.queued_group()
    queued = [] if group is None else [group]
    if progress.plan.counts[PENDING] <= room - len(queued):
        return progress.pending_nodes(room - len(queued)), queued
    return [], [*queued, *progress.pending_groups()]


def _line(grid: Table, look: str, name: str, word: str, why: str) -> None:
    """A line for several tasks."""
    style = tone(look)
    grid.add_row(Text(mark(look), style), Text(name), Text(word, style), Text(), Text(), Text(clean(why)))


def _row(grid: Table, node: Node, look: str, word: str, time: str, why: str, device: str | None = None) -> None:
    style: Style = tone(look)
    grid.add_row(
        Text(mark(look), style),
        Text(shorten_middle(node.id, WIDEST_NAME)),
        Text(word, style),
        Text(clean(node.device or "" if device is None else device), DIM),
        Text(time, justify="right"),
        Text(clean(why)),
    )


def _run_word(node: Node) -> str:
    if node.tentative is not None:
        return "unconfirmed"
    if node.device is None:
        return "retrying"
    return "provisional" if node.provisional else "running"


def _took(node: Node) -> str:
    span = node.span
    return "" if span is None or span[1] is None else _seconds(span[1] - span[0])


def _seconds(seconds: float) -> str:
    """A duration whose unit stays the same while it counts up."""
    return f"{max(0.0, seconds):.1f} s" if seconds < 59.95 else format_duration(seconds)


def _devices(progress: Progress, width: int) -> list[Text]:
    """One line for each device: its slots, and its running tasks."""
    places = progress.orchestrator.places()
    wide = max((len(shorten(place.id, WIDEST_DEVICE)) for place in places[:MOST_DEVICES]), default=0)
    most = max((place.slots or 0 for place in places[:MOST_DEVICES]), default=0)
    lines = []
    for place in places[:MOST_DEVICES]:
        line = Text(f"{shorten(place.id, WIDEST_DEVICE):<{wide}}  ", no_wrap=True, overflow="ellipsis")
        if most <= WIDEST_DEVICE:
            taken = min(place.running, place.slots or 0)  # one without a limit has no boxes
            line.append("■" * taken, tone("running")).append("□" * ((place.slots or 0) - taken), DIM)
            line.append(" " * (most - (place.slots or 0) + 2 if most else 0))
        running, tasks = place.running, progress.on_device.get(place.id, {})
        if progress.fleet is not None:  # it is the only place, and not all of its tasks are executed
            running, tasks = progress.running_count, {node.id: None for node in progress.running_nodes(running)}
        counted = (place.slots or 0) < UNCOUNTED
        line.append(f"{running}/{place.slots or '∞'}" if counted else f"{running} running", DIM)
        lines.append(line.append(f"  {clean(names(tasks, len(tasks)))}" if tasks else ""))
    more = len(places) - MOST_DEVICES
    return [*lines, *([Text(f"and {plural(more, 'more device')}", DIM)] if more > 0 else [])]


def _cycles(progress: Progress, now: float, width: int) -> list[Text]:
    """The open edit cycles: the age of each, and the ends that it reviews."""
    cycles = progress.orchestrator.cycles(progress.plan.id) if progress.executing else []
    lines = []
    for cycle in cycles[:MOST_CYCLES]:
        line = Text(f"cycle {cycle.id}", tone("waiting"), no_wrap=True, overflow="ellipsis")
        by = f" by {cycle.claimed_by}" if cycle.claimed_by else ""
        about = names((task for task, _ in cycle.ends), len(cycle.ends)) or "no task can start"
        lines.append(line.append(clean(f"  open for {_seconds(now - cycle.opened_at)}{by}: {about}"), ""))
    more = len(cycles) - MOST_CYCLES
    return [*lines, *([Text(f"and {plural(more, 'more cycle')}", DIM)] if more > 0 else [])]


def _output(tail: OutputTail | None, width: int) -> list[Text]:
    """The end of the newest output, and whose it is."""
    if tail is None:
        return []
    name = shorten(tail.task, WIDEST_NAME)
    return [
        Text(f"{name} │ ", DIM, no_wrap=True).append(shorten(line, max(0, width - cell_len(name) - 3)), "")
        for line in tail.lines[-OUTPUT_LINES:]
    ]


def _latest(progress: Progress, width: int) -> list[Text]:
    return [Text(shorten(progress.latest, width), DIM, no_wrap=True)] if progress.latest else []
