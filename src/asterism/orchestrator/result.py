"""Result of a plan: the states and values of its tasks, its edit cycles, its figures.

What each attempt printed, in memory: at most ``log_limit`` bytes for each, and ``PLAN_FACTOR`` times that for the plan;
beyond, the logs of the attempts that ended first are forgotten. Records of unchanged tasks in a store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self, TypeVar, overload

from asterism.base.log_recorder import LogRecorder
from asterism.base.secret_mask import Mask
from asterism.core.attempt_log import TaskLog
from asterism.core.errors import PlanFailed
from asterism.core.history import PlanEntry
from asterism.core.plan.assignment_lock import EditCycle
from asterism.core.plan.constellation import Constellation, TaskView
from asterism.core.plan.editor_cost import EditorCost
from asterism.core.plan.node import Node
from asterism.core.plan.node_records import NodeRecords
from asterism.core.plan.plan_end import time_at_rest
from asterism.core.plan.status import CANCELLED, COMPLETED, EXIT_CODES, FAILED, ConstellationState
from asterism.core.plan.task import Task
from asterism.core.record import Record
from asterism.execution.artifacts import Artifacts, StoredFile
from asterism.store.optimistic_update import try_commit
from asterism.store.protocol import PutRegister, Store

Value = TypeVar("Value")


class Summary(Record):
    """The figures of a plan, in seconds. No schedule of the same work takes less than ``lower_bound``."""

    makespan: float
    lower_bound: float
    parallelism: Parallelism
    held: float
    cycles: int
    edits_accepted: int
    edits_rejected: int


class EndedTask(TaskView):
    """A task of a result. ``files`` can be read as long as their folder is there."""

    __slots__ = ("_artifacts",)

    def __init__(self, node: Node, records: NodeRecords, artifacts: Artifacts | None) -> None:
        super().__init__(node, records)
        self._artifacts = artifacts

    @property
    def files(self) -> dict[str, tuple[StoredFile, ...]]:
        """The files that the task has made, by the names of its outputs. Raises ArtifactProblem."""
        manifest = self._node.files
        return {} if manifest is None or self._artifacts is None else self._artifacts.stored_files(manifest)


class Result:
    """``result.state``, ``result["build"]`` (the task as it ended), ``result[build]`` (what a ``Task`` returned),
    ``result.summary``; iterate over it for the tasks."""

    def __init__(
        self,
        plan: Constellation,
        cycles: list[EditCycle],
        slots: int | None,
        policy: str,
        logs: PlanLogs | None = None,
        artifacts: Artifacts | None = None,
    ) -> None:
        self.plan = plan
        self.cycles = tuple(cycles)
        self._slots, self._policy, self._logs, self._artifacts = slots, policy, logs, artifacts

    @property
    def state(self) -> ConstellationState:
        return self.plan.state

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.plan.state]

    @property
    def repaired(self) -> bool:
        """Whether the plan completed although tasks failed, because others handled each failure."""
        return self.plan.repaired

    @overload
    def __getitem__(self, task: str) -> EndedTask: ...

    @overload
    def __getitem__(self, task: Task[Value]) -> Value: ...

    def __getitem__(self, task: str | Task[Any]) -> Any:
        """The task with an id, or the result of a task. Raises UnknownTask; of a task that did not complete there is no
        result: raises PlanFailed."""
        if isinstance(task, str):
            return EndedTask(self.plan.node(task), self.plan.records, self._artifacts)
        ended = self[task.id]
        if ended.status is not COMPLETED:
            raise PlanFailed(f"there is no result of {task.id!r}", {task.id: _end_of(ended)}) from ended.error
        return ended.value

    def raise_for_failures(self) -> Self:
        """Return the result of a plan that has completed. Raises PlanFailed with each task that failed, and with those
        that were cancelled if none failed."""
        if self.state is ConstellationState.COMPLETED:
            return self
        failed = [task for task in self if task.status is FAILED] or [task for task in self if task.status is CANCELLED]
        cause = next((task.error for task in failed if task.error is not None), None)
        reasons = {task.id: _end_of(task) for task in failed}
        raise PlanFailed(
            f"the plan {self.plan.id!r} did not complete: it is {self.plan.state_text}", reasons
        ) from cause

    def __iter__(self) -> Iterator[TaskView]:
        return iter(self.plan)

    def __len__(self) -> int:
        return len(self.plan)

    def __repr__(self) -> str:
        return f"<Result of {self.plan.id!r}: {self.state}, {len(self)} tasks>"

    @property
    def values(self) -> dict[str, Any]:
        """The results of the completed tasks, by id."""
        return {task.id: task.value for task in self if task.status == "completed"}

    def logs(self, task_id: str) -> list[TaskLog]:
        """What each attempt at a task printed, if it ran in this process: ``result.logs("build")[-1].text``. Secrets
        are masked. The logs of a plan in a store are read with ``durable.task_logs``. Raises UnknownTask."""
        self.plan.node(task_id)
        return [] if self._logs is None else self._logs.of(task_id)

    def story(self, task_id: str | None = None) -> list[PlanEntry]:
        return self.plan.story(task_id)

    @property
    def holds(self) -> list[tuple[str, float, float]]:
        """(task, from, to): when a ready task did not start because of an end under review."""
        reviewed = {task: cycle.closed_at for cycle in self.cycles for task, _ in cycle.ends if cycle.closed_at}
        everything = (
            [(c.opened_at, c.closed_at) for c in self.cycles if c.closed_at] if self._policy == "global" else []
        )
        holds = []
        for node in self.plan.nodes.values():
            if node.started_at is None:
                continue
            # a branch that was not taken ends with the plan: it held nothing
            ends = [
                end for source in node.parents if (end := self.plan.nodes[source].ended_at or 0.0) <= node.started_at
            ]
            if not ends:
                continue
            ready = max(ends)
            free = max((reviewed.get(source) or 0.0 for source in node.parents), default=0.0)
            free = max([free, *(closed for opened, closed in everything if opened <= ready < closed)])
            if ready < free:
                holds.append((node.id, ready, min(free, node.started_at)))
        return [hold for hold in holds if hold[1] < hold[2]]

    @property
    def editor_cost(self) -> EditorCost:
        """What the editor has cost in all cycles, as far as it tells: calls of a model, tokens, money, time."""
        return sum((cycle.cost for cycle in self.cycles if cycle.cost is not None), EditorCost())

    @property
    def summary(self) -> Summary:
        plan = self.plan
        shape = parallelism(plan.nodes)
        return Summary(
            makespan=(plan.ended_at or 0.0) - (plan.started_at or 0.0) - time_at_rest(plan),
            lower_bound=shape.lower_bound(self._slots),
            parallelism=shape,
            held=covered((start, end) for _, start, end in self.holds),
            cycles=len(self.cycles),
            edits_accepted=plan.version,
            edits_rejected=sum(cycle.rejections for cycle in self.cycles),
        )


def _end_of(task: TaskView) -> str:
    """How a task ended, for a sentence."""
    ended = {FAILED: "failed", CANCELLED: "was cancelled"}.get(task.status, f"is {task.status}")
    return f"{ended}: {task.reason}" if task.reason else ended


def covered(intervals: Iterable[tuple[float, float]]) -> float:
    """The length of the union of intervals."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


# -- logs --------------------------------------------------------------------------------------------------------------


PLAN_FACTOR = 256
"""How many full logs a plan keeps in memory."""


FAILURES = ("attempt failed", "failed", "failed provisionally")
"""The entries of a story that a failed attempt leaves."""


def tasks_with_tracebacks(plan: Constellation, story: Iterable[PlanEntry]) -> list[str]:
    """The tasks of a story whose logs may have tracebacks: functions that failed."""
    failed = dict.fromkeys(entry.task for entry in story if entry.what in FAILURES)
    nodes = [plan.nodes[task] for task in failed if task is not None and task in plan]
    return [node.id for node in nodes if node.task.call is not None]


def tracebacks_in(story: Sequence[PlanEntry], logs: Mapping[str, Sequence[TaskLog]]) -> dict[int, str]:
    """The traceback of each entry of a story that has one, by the place of the entry: that of the last attempt which
    failed until then. The attempts of a run are one for the plan."""
    places: dict[str, list[int]] = {}
    for place, entry in enumerate(story):
        if entry.what in FAILURES and entry.task is not None:
            places.setdefault(entry.task, []).append(place)
    tracebacks: dict[int, str] = {}
    for task, failures in places.items():
        for log in logs.get(task, ()):
            if lines := log.traceback:
                # the clock of a device may be ahead of that of the plan
                after = (place for place in failures if story[place].at >= lines[-1].at)
                tracebacks[next(after, failures[-1])] = "\n".join(line.text for line in lines)
    return tracebacks


class PlanLogs:
    """``clock`` dates the lines, ``mask`` returns the secrets of the plan."""

    def __init__(self, clock: Callable[[], float], limit: int, mask: Callable[[], Mask]) -> None:
        self._clock, self._limit, self._mask = clock, limit, mask
        self._tasks: dict[str, dict[int, tuple[int, LogRecorder]]] = {}  # by task and epoch: attempt and recorder
        self._ended: dict[tuple[str, int], int] = {}  # executions in the order of their ends, and the size of each log
        self._size = 0

    def recorder(self, task_id: str, epoch: int, attempt: int) -> LogRecorder:
        """The recorder of an execution, made at the first call. May be called in any thread."""
        epochs = self._tasks.setdefault(task_id, {})  # in one step: several threads may print at once
        entry = epochs.get(epoch)
        if entry is None:
            entry = epochs.setdefault(epoch, (attempt, LogRecorder(self._clock, self._limit, mask=self._mask)))
        return entry[1]

    def close(self, task_id: str, epoch: int) -> None:
        """An execution has ended. What it prints from now on is dropped."""
        if task_id not in self._tasks or epoch not in self._tasks[task_id]:  # most tasks print nothing
            return
        recorder = self._tasks[task_id][epoch][1]
        recorder.close()
        self._ended[task_id, epoch] = recorder.size
        self._size += recorder.size
        while self._size > PLAN_FACTOR * self._limit and len(self._ended) > 1:
            task, oldest = next(iter(self._ended))
            self._size -= self._ended.pop((task, oldest))
            del self._tasks[task][oldest]

    def of(self, task_id: str) -> list[TaskLog]:
        """The logs of the attempts at a task that printed something, oldest first."""
        epochs = sorted(self._tasks.get(task_id, {}).items())
        return [TaskLog(attempt, tuple(recorder.chunks())) for _, (attempt, recorder) in epochs if recorder]

    def __bool__(self) -> bool:
        """Whether any task has printed something."""
        return bool(self._tasks)


# -- result records ----------------------------------------------------------------------------------------------------


PREFIX = "unchanged/"
"""Prefix of the registers with records. Retention knows it too."""


class StoreRecords:
    """Where an orchestrator keeps the results of tasks with ``skip_if_unchanged``. Retention removes those that were
    not used for long."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def get(self, key: str) -> Mapping[str, Any] | None:
        register = await self._store.register(PREFIX + key)
        return register.value if register is not None and isinstance(register.value, Mapping) else None

    async def put(self, key: str, record: Mapping[str, Any]) -> None:
        """If another process writes the same record just now, one of them is kept."""
        known = await self._store.register(PREFIX + key)
        await self._write(key, record, None if known is None else known.revision)

    async def renew(self, key: str) -> bool:
        """The record has been there all the time: no collection has removed the files that it names."""
        while (known := await self._store.register(PREFIX + key)) is not None:
            if await self._write(key, known.value, known.revision):
                return True
        return False

    async def _write(self, key: str, record: Mapping[str, Any], revision: int | None) -> bool:
        value = {**record, "at": self._store.clock()}
        return await try_commit(self._store, [PutRegister(PREFIX + key, value, revision)])


# -- parallelism -------------------------------------------------------------------------------------------------------


class Parallelism(Record):
    """``critical_path`` is L: the seconds along the longest path, whose tasks are in ``path``. ``work`` is W: the
    seconds of all tasks. ``width`` is the largest number of tasks in one layer."""

    critical_path: float
    path: tuple[str, ...]
    work: float
    width: int

    @property
    def ratio(self) -> float:
        """W / L: how many devices the plan could keep busy on average."""
        return self.work / self.critical_path if self.critical_path else 0.0

    def lower_bound(self, slots: int | None) -> float:
        """The shortest possible makespan on that many slots."""
        return max(self.critical_path, self.work / slots if slots else 0.0)


def durations(nodes: Mapping[str, Node]) -> dict[str, float]:
    """Seconds per task: measured if it has ended (all attempts, without the waits between them), else its estimate,
    or 1. A task that ended without running has 0."""
    return {node.id: _duration(node) for node in nodes.values()}


def _duration(node: Node) -> float:
    if node.ended_at is not None:
        return node.worked
    return node.task.estimate if node.task.estimate is not None else 1.0


def parallelism(nodes: Mapping[str, Node], seconds: Mapping[str, float] | None = None) -> Parallelism:
    """The parallelism of a plan, by the ``seconds`` of each task. Visits every task and dependency once."""
    seconds = durations(nodes) if seconds is None else seconds
    reach: dict[str, float] = {}
    layer: dict[str, int] = {}
    before: dict[str, str | None] = {}
    for node in sorted(nodes.values(), key=lambda node: node.label):
        last = max(node.parents, key=lambda source: reach[source], default=None)
        before[node.id] = last
        reach[node.id] = seconds[node.id] + (reach[last] if last is not None else 0.0)
        layer[node.id] = 1 + max((layer[source] for source in node.parents), default=-1)
    width: dict[int, int] = {}
    for depth in layer.values():
        width[depth] = width.get(depth, 0) + 1
    end = max(reach, key=lambda task_id: reach[task_id], default=None)
    longest = reach[end] if end is not None else 0.0
    return Parallelism(longest, _walk_back(before, end), sum(seconds.values()), max(width.values(), default=0))


def _walk_back(before: Mapping[str, str | None], end: str | None) -> tuple[str, ...]:
    path: list[str] = []
    while end is not None:
        path.append(end)
        end = before[end]
    return tuple(reversed(path))
