"""The journal of a constellation: every step that changed it, as data from which the step can be taken again.

::

    begin       now                                       the plan starts
    start       task, device, now                         a task is given to a device
    locate      task, device                              which one of many it was given to
    tried       task, attempts, losses                    how often, by the one that it was given to
    finish      task, status, now, value, error, review   it ended; with ``review`` an editor looks at that first
    retry       task, now, why                            an attempt failed and another one follows
    lose        task                                      its device vanished
    release     task, now, why                            it was put back before it began
    cancel      task, now, why
    note        now, what, task, why                      something to know that changes nothing
    edit        batch, now                                accepted, whole
    open        now                                       a cycle takes the ends that wait
    stuck       now                                       a cycle because nothing can move
    rejected    cycle                                     an answer was not acceptable
    reviewed    cycle, now, outcome                       the cycle is closed
    close       now, cancelled                            the end

A ``RecordedConstellation`` and its ``RecordedLock`` tell of each step as soon as it was taken. A step depends on
nothing but the plan as it is, the policy of the lock and its own arguments, so whoever takes the same steps again has
the same plan, to the byte.

The numbers of epochs and cycles are counted, and so need no entry. What an editor outside has claimed is not recorded:
a claim is a lease, and after a restart the cycle is free again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from asterism.core.errors import AsterismError, EditRejected, InvalidTask, NotJson, RecordedError, Violation
from asterism.core.json_values import plain_json
from asterism.core.plan.apply import Applied, apply
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edits import EditBatch
from asterism.core.plan.lock import AssignmentLock, EditCycle
from asterism.core.plan.node import Node
from asterism.core.plan.plan_codec import Snapshot, clone
from asterism.core.plan.provisional import provisional_below
from asterism.core.plan.status import ConstellationState, TaskStatus

SCHEMA = 2
"""Of steps and snapshots. A later one reads all earlier ones."""

Step = list[Any]
Record = Callable[[Step], None]


class UnreadableJournal(AsterismError):
    """The journal is not what an Asterism of this version or an earlier one wrote, or some of it is missing."""


def _discard(step: Step) -> None:
    """For a plan that nobody keeps."""


class RecordedConstellation(Constellation):
    """A constellation that tells ``record`` of every step."""

    def __init__(self, id: str = "constellation") -> None:
        super().__init__(id)
        self.record: Record = _discard
        self.snapshot: Snapshot | None = None  # which has to know of every task that is about to change
        self._editing = False

    @classmethod
    def of(cls, plan: Constellation) -> RecordedConstellation:
        """A plan of its own that is to another one what another process would read of it. Raises NotJson."""
        return clone(plan, cls)

    def take_snapshot(self) -> Snapshot:
        """The plan as it is now, to be written while it goes on. One at a time."""
        self.snapshot = Snapshot(self)
        return self.snapshot

    def begin(self, now: float) -> None:
        super().begin(now)
        self.record(["begin", now])

    def start(self, node: Node, device: str, now: float) -> int:
        if self.snapshot is not None:
            self.snapshot.preserve(node)
        epoch = super().start(node, device, now)
        self.record(["start", node.id, device, now])
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
        """As of every plan; the error is kept as its words, as it would be read from the journal."""
        kept = None if error is None else RecordedError.of(error)
        value = plain_json(value, f"the result of task {node.id!r}")
        if self.snapshot is not None:
            self.snapshot.preserve(node, *_conditional_children(node))
        super().finish(node, status, now, value, kept, review)
        said = None if kept is None else [kept.kind, kept.message]
        self.record(["finish", node.id, str(status), now, value, said, review])

    def retry(self, node: Node, now: float, why: str) -> None:
        if self.snapshot is not None:
            self.snapshot.preserve(node)
        super().retry(node, now, why)
        self.record(["retry", node.id, now, why])

    def count_loss(self, node: Node) -> None:
        if self.snapshot is not None:
            self.snapshot.preserve(node)
        super().count_loss(node)
        self.record(["lose", node.id])

    def set_device(self, node: Node, device: str) -> None:
        if self.snapshot is not None:
            self.snapshot.preserve(node)
        super().set_device(node, device)
        self.record(["locate", node.id, device])

    def set_attempts(self, node: Node, attempts: int, losses: int) -> None:
        if self.snapshot is not None:
            self.snapshot.preserve(node)
        super().set_attempts(node, attempts, losses)
        self.record(["tried", node.id, attempts, losses])

    def release(self, node: Node, now: float, why: str) -> None:
        if self.snapshot is not None:
            self.snapshot.preserve(node)
        super().release(node, now, why)
        self.record(["release", node.id, now, why])

    def cancel(self, node: Node, now: float, why: str) -> list[tuple[str, int]]:
        if self.snapshot is not None:
            _preserve_below(self.snapshot, node)
        stopped = super().cancel(node, now, why)
        if not self._editing:
            self.record(["cancel", node.id, now, why])
        return stopped

    def settle(self, ends: Iterable[tuple[str, int]], now: float) -> list[Node]:
        if self.snapshot is not None:
            ends = tuple(ends)
            for node in filter(None, (self.nodes.get(task_id) for task_id, _ in ends)):
                _preserve_below(self.snapshot, node)
        return super().settle(ends, now)

    def note(self, now: float, what: str, task_id: str | None = None, why: str = "") -> None:
        super().note(now, what, task_id, why)
        self.record(["note", now, what, task_id, why])

    def apply(self, batch: EditBatch, now: float) -> Applied:
        data = _batch_as_json(batch)
        if self.snapshot is not None:
            self.snapshot.copy_nodes()  # an edit may change anything
        self._editing = True
        try:
            applied = apply(self, batch, now)
        finally:
            self._editing = False
        self.record(["edit", data, now])
        if self.on_applied is not None:
            self.on_applied(applied)
        return applied

    def close(self, now: float, cancelled: bool = False) -> ConstellationState:
        if self.snapshot is not None:
            self.snapshot.copy_nodes()
        state = super().close(now, cancelled)
        self.record(["close", now, cancelled])
        return state


class RecordedLock(AssignmentLock):
    """The lock of a RecordedConstellation."""

    __slots__ = ()

    @property
    def _record(self) -> Record:
        assert isinstance(self.graph, RecordedConstellation)
        return self.graph.record

    def open(self, now: float, *, limited: bool = True) -> EditCycle | None:
        waiting = len(self.waiting)
        cycle = super().open(now, limited=limited)
        if len(self.waiting) != waiting:
            self._record(["open", now])
        return cycle

    def open_stuck(self, now: float, *, always: bool = False) -> EditCycle | None:
        cycle = super().open_stuck(now, always=always)
        if cycle is not None:
            self._record(["stuck", now])
        return cycle

    def record_rejection(self, cycle: EditCycle) -> None:
        super().record_rejection(cycle)
        if cycle.id in self.cycles:  # to one that is closed it makes no difference any more
            self._record(["rejected", cycle.id])

    def close(self, cycle: EditCycle, now: float, outcome: str) -> list[Node]:
        confirmed = super().close(cycle, now, outcome)
        self._record(["reviewed", cycle.id, now, outcome])
        return confirmed


def _preserve_below(snapshot: Snapshot, node: Node) -> None:
    """It is about to change, and what was started on its strength, and what they said of others."""
    for one in provisional_below(node):
        snapshot.preserve(one, *_conditional_children(one))


def _conditional_children(node: Node) -> list[Node]:
    """The dependents for which a condition says what this one's end means to them."""
    return [child for child in node.children.values() if child.parents[node.id].when is not None]


def _batch_as_json(batch: EditBatch) -> Any:
    """A batch as data, before anything changes: what cannot be kept is not accepted."""
    try:
        return plain_json(batch.to_json(), "the edit")
    except NotJson as error:
        raise EditRejected([Violation(None, "not_kept", f"this plan is kept in a store, and {error}")]) from None
    except InvalidTask:
        return None  # whoever applies it will say what is wrong, of every edit


# -- taking the steps again --------------------------------------------------------------------------------------------


def replay(plan: Constellation, lock: AssignmentLock, steps: Iterable[Step]) -> None:
    """Take steps that were recorded. Raises UnreadableJournal for one that cannot be taken."""
    for number, step in enumerate(steps):
        try:
            _REPLAY[step[0]](plan, lock, *step[1:])
        except (AsterismError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise UnreadableJournal(f"step {number} ({str(step)[:80]}) cannot be taken again: {error}") from error


def _finish(
    plan: Constellation,
    lock: AssignmentLock,
    task: str,
    status: str,
    now: float,
    value: Any,
    error: list[str] | None,
    review: bool,
) -> None:
    node = plan.node(task)
    plan.finish(node, TaskStatus(status), now, value, None if error is None else RecordedError(*error), review)
    if review:
        lock.waiting.append((node.id, node.epoch))


def _reviewed(plan: Constellation, lock: AssignmentLock, cycle: int, now: float, outcome: str) -> None:
    lock.close(lock.cycles[cycle], now, outcome)


_REPLAY: dict[str, Callable[..., object]] = {
    "begin": lambda plan, lock, now: plan.begin(now),
    "start": lambda plan, lock, task, device, now: plan.start(_dequeued(plan, task), device, now),
    "finish": _finish,
    "retry": lambda plan, lock, task, now, why: plan.retry(plan.node(task), now, why),
    "lose": lambda plan, lock, task: plan.count_loss(plan.node(task)),
    "locate": lambda plan, lock, task, device: plan.set_device(plan.node(task), device),
    "tried": lambda plan, lock, task, attempts, losses: plan.set_attempts(plan.node(task), attempts, losses),
    "release": lambda plan, lock, task, now, why: plan.release(plan.node(task), now, why),
    "cancel": lambda plan, lock, task, now, why: plan.cancel(plan.node(task), now, why),
    "note": lambda plan, lock, now, what, task, why: plan.note(now, what, task, why),
    "edit": lambda plan, lock, batch, now: plan.apply(EditBatch.from_json(batch), now),
    "open": lambda plan, lock, now: lock.open(now, limited=False),
    "stuck": lambda plan, lock, now: lock.open_stuck(now, always=True),
    "rejected": lambda plan, lock, cycle: lock.record_rejection(lock.cycles[cycle]),
    "reviewed": _reviewed,
    "close": lambda plan, lock, now, cancelled: plan.close(now, cancelled),
}


def _dequeued(plan: Constellation, task: str) -> Node:
    """A node that leaves the queue, as it did when it was placed."""
    node = plan.node(task)
    node.entry = None
    return node


# -- snapshots ---------------------------------------------------------------------------------------------------------


def lock_to_json(lock: AssignmentLock) -> dict[str, Any]:
    """What of a lock is not said by its terms: the cycles that are open, and what waits for the next."""
    return {
        "waiting": [list(end) for end in lock.waiting],
        "cycles": [
            {
                "id": cycle.id,
                "version": cycle.version,
                "opened_at": cycle.opened_at,
                "ends": [list(end) for end in cycle.ends],
                "stuck": cycle.stuck,
                "rejections": cycle.rejections,
                "edits": cycle.edits,
            }
            for cycle in lock.cycles.values()
        ],
        "opened": lock.opened,
        "progress_at_stuck": lock.progress_at_stuck,
    }


def lock_from_json(lock: AssignmentLock, data: Mapping[str, Any]) -> None:
    """Put into a new lock what ``lock_to_json`` wrote."""
    lock.waiting = [(task, epoch) for task, epoch in data["waiting"]]
    lock.opened, lock.progress_at_stuck = data["opened"], data["progress_at_stuck"]
    for one in data["cycles"]:
        ends = tuple((task, epoch) for task, epoch in one["ends"])
        cycle = EditCycle(one["id"], one["version"], one["opened_at"], ends, one["stuck"])
        cycle.rejections, cycle.edits = one["rejections"], one["edits"]
        lock.restore(cycle)
