"""The machinery under a constellation: nodes, edges, the two counters, and how tasks move.

What may happen: tasks start (``start``), end (``finish``), are tried again (``retry``), put back (``release``) or
cancelled (``cancel``), their ends are reviewed (``settle``), and when nothing can move any more the rest is closed
(``close``). Each of these visits only what it changes. Edits go through ``apply.py``, provisional tasks through
``provisional.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from asterism.core.errors import InvalidTransition, PlanError, UnknownTask, error_text
from asterism.core.history import Entry, step_time
from asterism.core.plan import provisional
from asterism.core.plan.edits import Key
from asterism.core.plan.node import Node, outcome_fits
from asterism.core.plan.ready_queue import CriticalPathRanks, ReadyQueue
from asterism.core.plan.status import (
    CANCELLED,
    COMPLETED,
    EVENTS,
    FAILED,
    PENDING,
    RUNNING,
    TRANSITIONS,
    ConstellationState,
    TaskStatus,
)
from asterism.core.plan.task import Dependency
from asterism.core.plan.topological_order import TopologicalOrder, parents_first

Evaluate = Callable[[str, TaskStatus, Any], "bool | str"]
"""(condition, status, result) -> whether it holds, or the text of the error it raised."""


def cannot_evaluate(condition: str, status: TaskStatus, result: Any) -> bool | str:
    """The evaluator of a plan that no runtime has taken on: it cannot decide, so nothing starts by accident."""
    return f"nobody here can evaluate {condition!r}"


def accept_condition(condition: str) -> str | None:
    """The check of a plan that no runtime has taken on: conditions are judged when one does."""
    return None


class Graph:
    def __init__(self, id: str) -> None:
        if not isinstance(id, str) or not id:
            raise PlanError(f"a constellation's id is a non-empty string, not {id!r}")
        self.id = id
        self.version = 0
        self.state = ConstellationState.CREATED
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.speculative = False
        self.evaluate: Evaluate = cannot_evaluate
        self.check_condition: Callable[[str], str | None] = accept_condition
        self.queue = ReadyQueue()
        self.ranks: CriticalPathRanks | None = None
        self.counts: dict[TaskStatus, int] = dict.fromkeys(TaskStatus, 0)
        self.unreachable = 0
        self.provisionals = 0
        self.nodes: dict[str, Node] = {}
        self.order = TopologicalOrder(self.nodes)
        self.touched: dict[Key, int] = {}  # what accepted edits changed, and in which version: decides staleness
        self._placed = 0
        self.epochs = 0  # how many executions were begun: each has the number at its start for a name
        self._story: list[tuple[float, str, str | None, str]] = []

    def node(self, task_id: str) -> Node:
        """The node of a task; UnknownTask if there is none."""
        try:
            return self.nodes[task_id]
        except KeyError:
            raise UnknownTask(task_id) from None

    def story(self, task_id: str | None = None) -> list[Entry]:
        """Everything that happened, or everything that happened to one task."""
        entries = map(Entry._make, self._story)
        return [entry for entry in entries if task_id is None or entry.task == task_id]

    def add_entry(self, now: float, what: str, task_id: str | None = None, why: str = "") -> None:
        self._story.append((self.recorded_time(now), what, task_id, why))

    def recorded_time(self, now: float) -> float:
        """When what happens now happened: never before what happened last, whatever the clock says."""
        return step_time(self._story[-1][0], now) if self._story else now

    def note(self, now: float, what: str, task_id: str | None = None, why: str = "") -> None:
        """Put something into the story that changes nothing."""
        self.add_entry(now, what, task_id, why)

    # -- how tasks move ------------------------------------------------------------------------------------------------

    def begin(self, now: float) -> None:
        """The plan starts: from here on every change is an edit."""
        if self.state not in (ConstellationState.CREATED, ConstellationState.READY):
            raise PlanError(f"constellation {self.id!r} is {self.state}: it cannot begin")
        self.state = ConstellationState.EXECUTING
        self.started_at = now = self.recorded_time(now)
        self.add_entry(now, "began")
        for node in self.nodes.values():
            self.requeue(node)

    def start(self, node: Node, device: str, now: float) -> int:
        """Give a ready task to a device. Returns the epoch: the name of this one execution.

        A running task without a device is one that waits for its next attempt; it keeps its status."""
        now = self.recorded_time(now)
        if node.status is not RUNNING or node.device is not None:
            if node.open or (node.held and not (self.speculative and node.task.revocable)):
                self._refuse(node, "start")
            self.change_status(node, "start")
            node.started_at = now
            if node.held:
                node.provisional = True
                self.provisionals += 1
        self.epochs += 1
        node.epoch = self.epochs
        node.attempts += 1
        node.device, node.begun_at = device, now
        self._story.append((now, "started provisionally" if node.provisional else "started", node.id, device))
        return self.epochs

    def finish(
        self,
        node: Node,
        status: TaskStatus,
        now: float,
        value: Any = None,
        error: BaseException | None = None,
        review: bool = False,
    ) -> None:
        """Record a task's end. With ``review`` its children are held, in this same step, until ``settle``."""
        now = self.recorded_time(now)
        if not node.provisional:
            self.change_status(node, EVENTS[status])
            self._story.append((now, status, node.id, error_text(error)))
        elif node.tentative is None:
            node.tentative = status
            self._story.append((now, f"{status} provisionally", node.id, error_text(error)))
        else:
            self._refuse(node, EVENTS[status])
        if node.device is not None:
            node.worked += now - node.begun_at
        node.value, node.error, node.ended_at, node.entry = value, error, now, None
        node.reviewed = not review
        node.unsettled = unsettled = review or node.provisional
        source, completed = node.id, status is COMPLETED
        for child in node.children.values():  # only the outgoing edges are visited
            dependency = child.parents[source]
            fits = completed if dependency.on == "success" else outcome_fits(dependency.on, status)
            if fits and (dependency.when is None or self._verdict(node, dependency, child)):
                child.open -= 1
            if unsettled:
                child.held += 1
            if not child.open:
                self.requeue(child)

    def _verdict(self, node: Node, dependency: Dependency, child: Node) -> bool:
        """Evaluate a condition once and remember what it said; an error counts as false."""
        try:
            verdict = self.evaluate(dependency.when or "", node.tentative or node.status, node.value)
        except Exception as error:
            verdict = error_text(error)
        if child.verdicts is None:
            child.verdicts = {}
        child.verdicts[node.id] = verdict
        return verdict is True

    def retry(self, node: Node, now: float, why: str) -> None:
        """An attempt failed and another one follows: the task stays running, with no device until it is placed
        again."""
        if node.status is not RUNNING or node.device is None or node.tentative is not None:
            self._refuse(node, "retry")
        node.device = None
        node.worked += self.recorded_time(now) - node.begun_at
        self.add_entry(now, "attempt failed", node.id, why)

    def count_loss(self, node: Node) -> None:
        """Its device vanished: that is counted apart from failures of the work."""
        node.losses += 1

    def set_device(self, node: Node, device: str) -> None:
        """A running task is done by this device: the one that it was given to stands for many."""
        if node.status is not RUNNING or node.device is None:
            self._refuse(node, "locate")
        node.device = device

    def set_attempts(self, node: Node, attempts: int, losses: int) -> None:
        """Where it was given to, a running task has been tried so often, and its device lost so often."""
        if node.status is not RUNNING or node.device is None:
            self._refuse(node, "be counted")
        node.attempts, node.losses = attempts, losses

    def release(self, node: Node, now: float, why: str) -> None:
        """The device left before the work began: the task waits for another one, and nothing counts as an attempt."""
        if node.status is not RUNNING or node.device is None or node.tentative is not None:
            self._refuse(node, "release")
        self.add_entry(now, "put back", node.id, why)
        if node.attempts > 1:  # it had run before: it stays running, so that no edit takes it for untouched
            node.attempts -= 1
            node.device = None
            self.queue.push(node)
        else:
            provisional.reset(self, node)
            self.requeue(node)

    def cancel(self, node: Node, now: float, why: str) -> list[tuple[str, int]]:
        """Cancel a pending or running task. Returns the executions (task, epoch) that have to stop."""
        if node.provisional:
            stopped = provisional.revoke(self, provisional.provisional_below(node), now, why)
        elif node.status is RUNNING and node.device is not None:
            stopped = [(node.id, node.epoch)]
        else:
            stopped = []
        self.change_status(node, "cancel")
        node.entry, node.ended_at, node.epoch, node.reason = None, self.recorded_time(now), 0, why
        self.add_entry(now, "cancelled", node.id, why)
        return stopped

    def settle(self, ends: Iterable[tuple[str, int]], now: float) -> list[Node]:
        """The ends (task, epoch) have been reviewed. Returns the provisional tasks that this confirmed.

        A review of an execution that was revoked meanwhile is void: its epoch is no longer the task's."""
        reviewed = []
        for task_id, epoch in ends:
            node = self.nodes.get(task_id)
            if node is not None and node.epoch == epoch and not node.reviewed:
                node.reviewed = True
                reviewed.append(node)
        return provisional.settle(self, reviewed, now)

    def close(self, now: float, cancelled: bool = False) -> ConstellationState:
        """Nothing can move any more: cancel what is left, each with its reason, and name the end."""
        if self.counts[PENDING]:
            for node in parents_first(node for node in self.nodes.values() if node.status is PENDING):
                self._give_up(node, now, cancelled)
        if cancelled:
            self.state = ConstellationState.CANCELLED
        elif not self.counts[FAILED] and not self.unreachable:
            self.state = ConstellationState.COMPLETED
        else:
            self.state = ConstellationState.PARTIALLY_FAILED if self.counts[COMPLETED] else ConstellationState.FAILED
        self.ended_at = self.recorded_time(now)
        self.add_entry(now, str(self.state))
        return self.state

    def _give_up(self, node: Node, now: float, cancelled: bool) -> None:
        if cancelled:
            why = "the constellation was cancelled"
        else:
            node.needless, why = self.unreachable_reason(node)
            self.unreachable += not node.needless
        self.change_status(node, "cancel")
        node.entry, node.ended_at, node.reason = None, self.recorded_time(now), why
        self.add_entry(now, "cancelled", node.id, why)

    def unreachable_reason(self, node: Node) -> tuple[bool, str]:
        """Whether a blocked task was simply not needed, and the reason in words. Parents come first, so theirs is
        known."""
        unreachable = "unreachable: nothing could start it"
        for source, dependency in node.parents.items():
            parent = self.nodes[source]
            if parent.satisfies(dependency, node):
                continue
            verdict = node.verdicts.get(source) if node.verdicts else None
            if isinstance(verdict, str):
                unreachable = f"unreachable: the condition on {source!r} could not be evaluated: {verdict}"
            elif verdict is False:
                return True, f"not needed: {dependency.when!r} does not hold for {source!r}"
            elif dependency.on == "failure" and parent.status is COMPLETED:
                return True, f"not needed: {source!r} completed and this waits for its failure"
            elif parent.needless:
                return True, f"not needed: {source!r} was not needed"
            else:
                ended = "was cancelled" if parent.status is CANCELLED else f"is {parent.status}"
                unreachable = f"unreachable: it waits for {dependency.on} of {source!r}, which {ended}"
        return False, unreachable

    # -- the structure: used by building, apply and provisional --------------------------------------------------------

    def insert(self, node: Node) -> None:
        self.place(node)
        self.counts[PENDING] += 1
        self.rerank(node)

    def place(self, node: Node) -> None:
        self._placed += 1
        node.number = self._placed
        self.nodes[node.id] = node

    def link(self, dependency: Dependency, verdict: bool | str | None = None) -> None:
        """Add an edge; raises CycleFound with nothing changed. ``verdict`` is what its condition said before, if it
        did."""
        source, target = self.node(dependency.source), self.node(dependency.target)
        self.order.connect(source, target)
        source.children[target.id] = target
        target.parents[source.id] = dependency
        if verdict is not None:
            target.verdicts = {**(target.verdicts or {}), source.id: verdict}
        elif dependency.when is not None and outcome_fits(dependency.on, source.tentative or source.status):
            self._verdict(source, dependency, target)
        if not source.satisfies(dependency, target):
            target.open += 1
        if source.unsettled:
            target.held += 1
        self.rerank(source)

    def unlink(self, dependency: Dependency) -> bool | str | None:
        """Take an edge out. Returns what its condition said, so that a rollback can put it back as it was."""
        source, target = self.node(dependency.source), self.node(dependency.target)
        if not source.satisfies(dependency, target):
            target.open -= 1
        if source.unsettled:
            target.held -= 1
        del source.children[target.id], target.parents[source.id]
        self.rerank(source)
        return target.verdicts.pop(source.id, None) if target.verdicts else None

    def rerank(self, node: Node) -> None:
        """The estimate of a node or the edges out of it changed: correct the ranks, and the places in the queue."""
        if self.ranks is not None:
            for changed in self.ranks.refresh(self.nodes, node):
                if changed.entry is not None:
                    self.queue.push(changed)

    def requeue(self, node: Node) -> None:
        """Make the ready queue agree with the counters of a pending node."""
        if node.status is not PENDING:
            return
        if (
            not node.open
            and (not node.held or (self.speculative and node.task.revocable))
            and self.state is ConstellationState.EXECUTING
        ):
            if node.entry is None:
                self.queue.push(node)
        else:
            node.entry = None

    def change_status(self, node: Node, event: str) -> None:
        """The only place where a status changes: by the table."""
        status = TRANSITIONS[event].get(node.status)
        if status is None:
            self._refuse(node, event)
        self.counts[node.status] -= 1
        self.counts[status] += 1
        node.status = status

    def _refuse(self, node: Node, event: str) -> NoReturn:
        raise InvalidTransition(node.id, str(node.status), event, self.story(node.id))


def is_modifiable(node: Node) -> bool:
    """Whether an edit may change the node: I3 makes running and ended tasks immutable, provisional ones not."""
    return node.status is PENDING or node.provisional
