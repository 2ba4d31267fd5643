"""The journal of a plan: every step that changed it, as a record that can be replayed.

A ``RecordedConstellation`` and its ``RecordedLock`` call ``record`` after each step. A step depends only on the plan,
the lock policy and its own arguments. So ``replay`` of the same steps gives the same plan, to the byte.

Epochs and cycle ids are counted, and need no record. Claims of external editors are not recorded: a claim is a lease,
and after a restart the cycle may be claimed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any, NoReturn, TypeVar

from asterism.core.errors import (
    AsterismError,
    EditRejected,
    InvalidTask,
    NotJson,
    RecordedError,
    Violation,
    safe_repr,
)
from asterism.core.history import Facts
from asterism.core.json_values import JsonObject, plain_json
from asterism.core.plan.apply import Applied, UndoStack, apply
from asterism.core.plan.assignment_lock import AssignmentLock, EditCycle
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.editor_cost import EditorCost
from asterism.core.plan.edits import EditBatch
from asterism.core.plan.node import AttemptTimes, Node, provisional_below
from asterism.core.plan.plan_codec import PlanSnapshot, StoredValue, clone
from asterism.core.plan.status import ENDED_STATES, RUNNING, ConstellationState, TaskStatus
from asterism.core.record import InvalidRecord, Record, decode

SCHEMA = 2
"""The version of steps and snapshots."""

TaskStep = TypeVar("TaskStep", bound=Callable[..., None])


class UnreadableJournal(AsterismError):
    """The journal was written by another version, is damaged, or is incomplete."""


def check_schema(record: Any, what: str) -> None:
    """Raises UnreadableJournal for a record of a plan that another version wrote."""
    schema = record.get("schema") if isinstance(record, Mapping) else None
    if schema != SCHEMA:
        raise UnreadableJournal(
            f"{what} is damaged, or was written by another version of Asterism: "
            f"its schema is {safe_repr(schema)}, and this one reads {SCHEMA}"
        )


# -- steps -------------------------------------------------------------------------------------------------------------


class Step(Record, tag_field="step", tag=str.lower, omit_defaults=True, forbid_unknown_fields=True):
    """A step of a plan, which happened at a time (``at``). Its word in the journal is the name of its class."""

    def replay(self, plan: RecordedConstellation, lock: AssignmentLock) -> None:
        """Take the step again."""
        raise NotImplementedError


class Begin(Step):
    """The plan starts."""

    at: float

    def replay(self, plan: RecordedConstellation, lock: AssignmentLock) -> None:
        plan.begin(self.at)


class Start(Step):
    """A task is assigned to a device."""

    task: str
    device: str
    at: float

    def replay(self, plan: RecordedConstellation, lock: AssignmentLock) -> None:
        node = plan.node(self.task)
        node.entry = None  # not in the ready queue any more
        plan.start(node, self.device, self.at)


class Locate(Step):
    """Which device of a fleet runs a task (``set_device``)."""

    task: str
    device: str

    def replay(self, plan: RecordedConstellation, lock: AssignmentLock) -> None:
        plan.set_device(plan.node(self.task), self.device)


class Files(Step):
    """The files that a task has made, just before its end."""

    task: str
    manifest: str

    def replay(self, plan: RecordedConstellation, lock: AssignmentLock) -> None:
        plan.set_files(plan.node(self.task), self.manifest)


class Tried(Step):
    """How often a fleet attempted a task (``set_attempts``)."""

    task: str
    attempts: int
    losses: int

    def replay(self, plan: RecordedConstellation, lock: AssignmentLock) -> None:
        plan.set_attempts(plan.node(self.task), self.attempts, self.losses)


class Ran(Step):
    """The run of a fleet ended, with its times (``record_run``)."""

    task: str
    epoch: int
    at: float
    times: AttemptTimes
    why: str

    def replay(self, plan: RecordedConstellation, lock: AssignmentLock) -> None:
        plan.record_run(self.task, self.epoch, self.at, self.times, self.why)


class ErrorText(Record):
    """The error of a task as it is recorded."""

    kind: str
    message: str


class Finish(Step):
    """A task ended; with ``review`` an editor reviews that end. A store may keep a large value elsewhere: ``stored``
    then says where. Who replays the step puts the value back."""

    task: str
    status: TaskStatus
    at: float
    value: Any = None
    error: ErrorText | None = None
    review: bool = False
    stored: Any = None

    def replay(self, plan: RecordedConstellation, lock: AssignmentLock) -> None:
        node, error = plan.node(self.task), self.error
        recorded = None if error is None else RecordedError(error.kind, error.message)
        plan.finish(node, self.status, self.at, self.value, recorded, self.review)
        if self.stored is not None:
            plan.stored[self.task] = node.value, StoredValue(self.stored)
        if self.review:
            lock.waiting.append((node.id, node.epoch))


class Retry(Step):
    """An attempt failed, and another one follows."""

    task: str
    at: float
    why: str

    def replay(self, plan: RecordedConstellation, lock: AssignmentLock) -> None:
        plan.retry(plan.node(self.task), self.at, self.why)


class Lose(Step):
    """The device of a task vanished (``count_loss``)."""

    task: str

    def replay(self, plan: RecordedConstellation, lock: AssignmentLock) -> None:
        plan.count_loss(plan.node(self.task))


class Release(Step):
    """A task was put back before it began."""

    task: str
    at: float
    why: str

    def replay(self, plan: RecordedConstellation, lock: AssignmentLock) -> None:
        plan.release(plan.node(self.task), self.at, self.why)


class Cancel(Step):
    """A task was cancelled."""

    task: str
    at: float
    why: str

    def replay(self, plan: RecordedConstellation, lock: AssignmentLock) -> None:
        plan.cancel(plan.node(self.task), self.at, self.why)


class Wait(Step):
    """A ready task begins to wait (``wait_for``, ``approval``)."""

    task: str
    at: float

    def replay(self, plan: RecordedConstellation, lock: AssignmentLock) -> None:
        plan.wait(plan.node(self.task), self.at)


class Decide(Step):
    """A person decided whether a waiting task may start."""

    task: str
    at: float
    decision: str
    by: str

    def replay(self, plan: RecordedConstellation, lock: AssignmentLock) -> None:
        plan.decide(plan.node(self.task), self.at, self.decision, self.by)


class Taint(Step):
    """A task brings untrusted data into the plan (``add_taint``)."""

    task: str
    at: float
    why: str

    def replay(self, plan: RecordedConstellation, lock: AssignmentLock) -> None:
        plan.add_taint(plan.node(self.task), self.at, self.why)


class Note(Step):
    """An entry of the story that changes nothing."""

    at: float
    what: str
    task: str | None = None
    why: str = ""
    facts: Facts = None

    def replay(self, plan: RecordedConstellation, lock: AssignmentLock) -> None:
        plan.note(self.at, self.what, self.task, self.why, self.facts)


class Edit(Step):
    """A batch was accepted, in its JSON form. A batch that adds a task reopens an ended plan."""

    batch: Any
    at: float

    def replay(self, plan: RecordedConstellation, lock: AssignmentLock) -> None:
        ended = plan.state in ENDED_STATES
        plan.apply(EditBatch.from_json(self.batch), self.at)
        if ended:
            lock.reopened()


class Reopen(Step):
    """An ended plan is reopened, with these tasks pending again."""

    tasks: tuple[str, ...]
    at: float
    why: str

    def replay(self, plan: RecordedConstellation, lock: AssignmentLock) -> None:
        plan.reopen(self.tasks, self.at, self.why)
        lock.reopened()


class Open(Step):
    """An edit cycle takes the waiting ends."""

    at: float

    def replay(self, plan: RecordedConstellation, lock: AssignmentLock) -> None:
        lock.open(self.at, limited=False)


class Stuck(Step):
    """An edit cycle opens because no task can move."""

    at: float

    def replay(self, plan: RecordedConstellation, lock: AssignmentLock) -> None:
        lock.open_stuck(self.at, always=True)


class Rejected(Step):
    """An answer of an edit cycle was rejected."""

    cycle: int

    def replay(self, plan: RecordedConstellation, lock: AssignmentLock) -> None:
        lock.record_rejection(lock.cycles[self.cycle])


class Reviewed(Step):
    """An edit cycle is closed."""

    cycle: int
    at: float
    outcome: str
    cost: EditorCost | None = None

    def replay(self, plan: RecordedConstellation, lock: AssignmentLock) -> None:
        cycle = lock.cycles[self.cycle]
        cycle.cost = self.cost
        lock.close(cycle, self.at, self.outcome)


class Cancelling(Step):
    """The plan is cancelled: only teardowns start from here on."""

    at: float
    reason: str = ""

    def replay(self, plan: RecordedConstellation, lock: AssignmentLock) -> None:
        plan.begin_cancel(self.at, self.reason)
        lock.waiting.clear()


class Close(Step):
    """The plan ends, unless that makes tasks ready (``always``)."""

    at: float
    cancelled: bool = False

    def replay(self, plan: RecordedConstellation, lock: AssignmentLock) -> None:
        plan.close(self.at, self.cancelled)


_STEPS: Any = list[reduce(or_, Step.__subclasses__())]  # type: ignore[misc]


def decode_steps(items: Any) -> list[Step]:
    """The steps of a record of a journal. Raises UnreadableJournal."""
    try:
        steps: list[Step] = decode(_STEPS, items)
    except InvalidRecord as error:
        raise UnreadableJournal(f"a record of a journal has steps that cannot be read: {error}") from None
    return steps


def replay(plan: RecordedConstellation, lock: AssignmentLock, steps: Iterable[Step]) -> None:
    """Replay recorded steps. Raises UnreadableJournal for a step that cannot be replayed."""
    for number, step in enumerate(steps):
        try:
            step.replay(plan, lock)
        except (AsterismError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise UnreadableJournal(f"step {number} ({str(step)[:80]}) cannot be replayed: {error}") from error


# -- plans that record their steps -------------------------------------------------------------------------------------


def _discard(step: Step) -> None:
    """The default of ``record``: for a plan that is not stored."""


def _recorded(kind: type[Step], method: TaskStep) -> TaskStep:
    """A step that concerns one task: preserves it before, and records the step after."""

    def step(plan: RecordedConstellation, node: Node, *arguments: Any) -> None:
        plan._preserve(node)
        method(plan, node, *arguments)
        plan.record(kind(node.id, *arguments))

    return step  # type: ignore[return-value]


class RecordedConstellation(Constellation):
    """A plan that calls ``record`` after every step, and preserves nodes for a snapshot before it changes them. It also
    has the steps of a plan whose device is a fleet: ``set_device`` and ``set_attempts``."""

    def __init__(self, id: str = "constellation") -> None:
        super().__init__(id)
        self.record: Callable[[Step], None] = _discard
        self.snapshot: PlanSnapshot | None = None  # must know of every node before it changes
        self.stored: dict[str, tuple[Any, StoredValue]] = {}  # results that the store keeps, by task
        self._editing = False
        self.undo_stack = UndoStack()
        self.on_rejected: Callable[[int, EditBatch, EditRejected], None] | None = None  # (version, batch, why)

    @classmethod
    def of(cls, plan: Constellation) -> RecordedConstellation:
        """A copy of a plan, as another process would read it from its record. Raises NotJson."""
        return clone(plan, cls)

    def take_snapshot(self) -> PlanSnapshot:
        """Start a snapshot of the plan as it is now. One at a time."""
        self.snapshot = PlanSnapshot(self, self.stored)
        return self.snapshot

    def _preserve(self, *nodes: Node) -> None:
        if self.snapshot is not None:
            self.snapshot.preserve(*nodes)

    def _preserve_below(self, node: Node) -> None:
        """Preserve a node, the provisional nodes below it, and the children whose conditions they decide."""
        if self.snapshot is not None:
            for below in provisional_below(node):
                self.snapshot.preserve(below, *_conditional_children(below))

    def _preserve_all(self) -> None:
        if self.snapshot is not None:
            self.snapshot.copy_nodes()

    def begin(self, now: float) -> None:
        super().begin(now)
        self.record(Begin(now))

    def start(self, node: Node, device: str, now: float) -> int:
        if self.snapshot is not None:
            self.snapshot.preserve(node)
        epoch = super().start(node, device, now)
        self.record(Start(node.id, device, now))
        return epoch

    def finish(
        self,
        node: Node,
        status: TaskStatus,
        now: float,
        value: Any = None,
        error: BaseException | None = None,
        review: bool = False,
    ) -> None:
        """As in ``Graph``; the error is kept as text, as it would be read from the journal."""
        recorded = None if error is None else RecordedError.of(error)
        value = plain_json(value, f"the result of task {node.id!r}")
        if self.snapshot is not None:
            self.snapshot.preserve(node, *_conditional_children(node))
        super().finish(node, status, now, value, recorded, review)
        text = None if recorded is None else ErrorText(recorded.kind, recorded.message)
        self.record(Finish(node.id, status, now, value, text, review))

    retry = _recorded(Retry, Constellation.retry)
    count_loss = _recorded(Lose, Constellation.count_loss)
    release = _recorded(Release, Constellation.release)
    set_files = _recorded(Files, Constellation.set_files)
    wait = _recorded(Wait, Constellation.wait)
    decide = _recorded(Decide, Constellation.decide)
    add_taint = _recorded(Taint, Constellation.add_taint)

    def set_device(self, node: Node, device: str) -> None:
        """Record which device of a fleet runs a running task."""
        if node.status is not RUNNING or node.device is None:
            self.refuse(node, "locate")
        self._preserve(node)
        node.device = device
        self.records.mark(node)
        self.record(Locate(node.id, device))

    def set_attempts(self, node: Node, attempts: int, losses: int) -> None:
        """Record how often a fleet attempted a running task, and how often it lost a device."""
        if node.status is not RUNNING or node.device is None:
            self.refuse(node, "be counted")
        self._preserve(node)
        node.attempts, node.losses = attempts, losses
        self.records.mark(node)
        self.record(Tried(node.id, attempts, losses))

    def record_run(self, task_id: str, epoch: int, now: float, times: AttemptTimes, why: str) -> None:
        if task_id in self.nodes:
            self._preserve(self.nodes[task_id])
        super().record_run(task_id, epoch, now, times, why)
        self.record(Ran(task_id, epoch, now, times, why))

    def cancel(self, node: Node, now: float, why: str) -> list[tuple[str, int]]:
        self._preserve_below(node)
        stopped = super().cancel(node, now, why)
        if not self._editing:
            self.record(Cancel(node.id, now, why))
        return stopped

    def settle(self, ends: Iterable[tuple[str, int]], now: float) -> list[Node]:
        if self.snapshot is not None:
            ends = tuple(ends)
            for node in filter(None, (self.nodes.get(task_id) for task_id, _ in ends)):
                self._preserve_below(node)
        return super().settle(ends, now)

    def note(self, now: float, what: str, task_id: str | None = None, why: str = "", facts: Facts = None) -> None:
        self.add_entry(now, what, task_id, why, facts)
        self.record(Note(now, what, task_id, why, facts))

    def apply(self, batch: EditBatch, now: float) -> Applied:
        data = _batch_as_json(batch)
        self._preserve_all()  # an edit may change any node
        self._editing = True
        try:
            applied = apply(self, batch, now)
        except EditRejected as rejected:
            if self.on_rejected is not None:
                self.on_rejected(self.version, batch, rejected)
            raise
        finally:
            self._editing = False
        self.record(Edit(data, now))
        self.undo_stack.record(applied)
        if self.on_applied is not None:
            self.on_applied(applied)
        return applied

    def reject(self, batch: EditBatch, violations: Sequence[Violation]) -> NoReturn:
        rejected = EditRejected(violations)
        if self.on_rejected is not None:
            self.on_rejected(self.version, batch, rejected)
        raise rejected

    def reopen(self, tasks: Iterable[str], now: float, why: str) -> Callable[[], None]:
        """As in ``Graph``. What undoes it does not undo the record: for a caller that discards the steps too."""
        tasks = tuple(tasks)
        self._preserve_all()
        undo = super().reopen(tasks, now, why)
        self.record(Reopen(tasks, now, why))
        return undo

    def begin_cancel(self, now: float, reason: str = "") -> list[Node]:
        self._preserve_all()
        cancelled = super().begin_cancel(now, reason)
        self.record(Cancelling(now, reason))
        return cancelled

    def close(self, now: float, cancelled: bool = False) -> ConstellationState:
        self._preserve_all()
        state = super().close(now, cancelled)
        self.record(Close(now, cancelled))
        return state


class RecordedLock(AssignmentLock):
    """The assignment lock of a RecordedConstellation. It records the steps of cycles."""

    @property
    def _record(self) -> Callable[[Step], None]:
        assert isinstance(self.graph, RecordedConstellation)
        return self.graph.record

    def open(self, now: float, *, limited: bool = True) -> EditCycle | None:
        waiting = len(self.waiting)
        cycle = super().open(now, limited=limited)
        if len(self.waiting) != waiting:
            self._record(Open(now))
        return cycle

    def open_stuck(self, now: float, *, always: bool = False) -> EditCycle | None:
        cycle = super().open_stuck(now, always=always)
        if cycle is not None:
            self._record(Stuck(now))
        return cycle

    def record_rejection(self, cycle: EditCycle) -> None:
        super().record_rejection(cycle)
        if cycle.id in self.cycles:  # a closed cycle needs no record
            self._record(Rejected(cycle.id))

    def close(self, cycle: EditCycle, now: float, outcome: str) -> list[Node]:
        confirmed = super().close(cycle, now, outcome)
        self._record(Reviewed(cycle.id, now, outcome, cycle.cost))
        return confirmed


def _conditional_children(node: Node) -> list[Node]:
    """The children that depend on this node by a condition."""
    return [child for child in node.children.values() if child.parents[node.id].when is not None]


def _batch_as_json(batch: EditBatch) -> Any:
    """A batch as JSON, made before it is applied. Raises EditRejected for a batch that cannot be stored."""
    try:
        return plain_json(batch.to_json(), "the edit")
    except NotJson as error:
        raise EditRejected([Violation(None, "not_kept", f"the plan is kept in a store, and {error}")]) from None
    except InvalidTask:
        return None  # apply reports the problems of every edit


# -- what a snapshot has beside the plan -------------------------------------------------------------------------------


def lock_to_json(lock: AssignmentLock) -> JsonObject:
    """The state of a lock: the open cycles, and the ends that wait for the next one."""
    return {
        "waiting": [list(end) for end in lock.waiting],
        "cycles": [cycle.to_json() for cycle in lock.cycles.values()],
        "opened": lock.opened,
        "progress_at_stuck": lock.progress_at_stuck,
    }


def lock_from_json(lock: AssignmentLock, data: Mapping[str, Any]) -> None:
    """Restore into a new lock the state that ``lock_to_json`` wrote."""
    lock.waiting = [(task, epoch) for task, epoch in data["waiting"]]
    lock.opened, lock.progress_at_stuck = data["opened"], data["progress_at_stuck"]
    for item in data["cycles"]:
        lock.add_cycle(decode(EditCycle, item))
