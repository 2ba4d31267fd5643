"""The graph of a plan: nodes, edges, counters, and every status change of a task.

Tasks start (``start``), end (``finish``), are retried (``retry``), released (``release``) or cancelled (``cancel``).
Their ends are reviewed (``settle``). When no task can move, ``close`` cancels the rest. Each step visits only the nodes
that it changes. apply.py carries out edits.

A node is *settled* when it has ended, its editor has reviewed that end, and it is not provisional. Until then each of
its children counts it in ``held``. Under the lock policy ``speculative``, a revocable task starts although ``held`` is
not 0, and is then provisional:

* it is **confirmed** when ``held`` becomes 0. If it has ended by then, its end counts from that moment, which may
  settle it and confirm its children;
* an edit that changes it **revokes** it and every provisional task below it: they are pending again, their epochs are
  void and their results are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping
from operator import attrgetter
from typing import Any, NoReturn

from asterism.core.errors import InvalidTransition, PlanError, UnknownTask, error_text
from asterism.core.history import Facts, PlanEntry, step_time
from asterism.core.json_values import NOTHING
from asterism.core.plan import inherited_priority, joins, plan_end, teardowns
from asterism.core.plan.edits import Key
from asterism.core.plan.group_elements import is_marked
from asterism.core.plan.node import NO_EDGES, AttemptTimes, Node, outcome_fits, provisional_below
from asterism.core.plan.node_records import NodeRecords
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
from asterism.core.plan.task_approval import APPROVED, SKIP
from asterism.core.plan.topological_order import TopologicalOrder, parents_first

PLAN_CANCELLED = "the constellation was cancelled"
"""Why a task is cancelled with its plan. Replay of a journal repeats these words, so they never change."""


def plan_cancelled(reason: str) -> str:
    """Why a task was cancelled with its plan. ``reason`` says who asked and why, such as ``by ann: too slow``."""
    return f"{PLAN_CANCELLED} {reason}" if reason else PLAN_CANCELLED


_number = attrgetter("number")

Evaluate = Callable[[str, TaskStatus, Any], "bool | str"]
"""(condition, status, result) -> whether it holds, or the text of an error."""


def cannot_evaluate(condition: str, status: TaskStatus, result: Any) -> bool | str:
    """The evaluator of a plan without an orchestrator: always an error, so no task starts by accident."""
    return f"{condition!r} cannot be evaluated: the plan has no orchestrator"


def accept_condition(condition: str) -> str | None:
    """The check of a plan without an orchestrator: every condition passes, and the orchestrator checks it later."""
    return None


def accept_plugin(plugin: Mapping[str, Any]) -> str | None:
    """The check of a plan without an orchestrator: the plug-in checks its work later."""
    return None


Overlap = tuple[str, int] | tuple[str, int, str]
"""A policy, how many plans may run before it counts, and their key; without one, plans of the same file count."""


class Graph:
    """See the module. ``Constellation`` is the class that users see."""

    def __init__(self, id: str) -> None:
        if not isinstance(id, str) or not id:
            raise PlanError(f"the id of a plan is a non-empty string, not {id!r}")
        self.id = id
        self.version = 0
        self.state = ConstellationState.CREATED
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.owner: object | None = None  # the orchestrator that runs the plan
        self.speculative = False
        self.evaluate: Evaluate = cannot_evaluate
        self.check_condition: Callable[[str], str | None] = accept_condition
        self.check_plugin: Callable[[Mapping[str, Any]], str | None] = accept_plugin
        self.queue = ReadyQueue()
        self.ranks: CriticalPathRanks | None = None
        self.counts: dict[TaskStatus, int] = dict.fromkeys(TaskStatus, 0)
        self.running: dict[str, None] = {}  # the running tasks
        self.deciders = 0  # how many tasks have join="any" or are teardowns, see joins.py
        self.setups: dict[Node, None] = {}  # tasks that have a teardown, see teardowns.py
        self.unscoped: dict[Node, bool] = {}  # nodes whose scope has to be renewed; with True, those below them, too
        self.untrusted: dict[str, None] = {}  # untrusted tasks, and groups of them; also before an edit
        self.tainted: set[str] = set()  # untrusted tasks that could start, also if they are gone by now; see taint.py
        self.urged: dict[Node, None] = {}  # running tasks whose urgency has changed
        self.edited: dict[str, str] = {}  # tasks whose work an editor wrote or changed, with its name; never removed
        self.source = ""  # the id in the plan file that it comes from, if any
        self.author = ""  # who started it
        self.tags: tuple[str, ...] = ()  # words of the plan file by which plans are found
        self.overlap: Overlap | None = None  # what it does while so many plans of its file or key have not ended
        self.tick: Mapping[str, str] = NOTHING  # of its schedule, by path; see core/schedule/tick_values.py
        self.cancel_reason = ""  # who cancelled it and why, such as ``by ann: too slow``
        self.rejoined: dict[Node, None] = {}  # nodes that may have to be queued or dequeued, see joins.py
        self.provisionals = 0
        self.nodes: MutableMapping[str, Node] = {}
        self.records = NodeRecords()  # what copies share; every step marks there which nodes it changes
        self.order = TopologicalOrder(self.nodes)
        self.touched: dict[Key, int] = {}  # what accepted edits changed, with the version: decides staleness
        self._placed = 0
        self.epochs = 0  # counts executions; the count at its start is the epoch of an execution
        self._story: list[tuple[Any, ...]] = []  # the entries, without facts that are None
        self.last_at = float("-inf")  # the time of the last entry of the story

    def node(self, task_id: str) -> Node:
        """The node of a task. Raises UnknownTask."""
        try:
            return self.nodes[task_id]
        except KeyError:
            raise UnknownTask(task_id) from None

    def story(self, task_id: str | None = None) -> list[PlanEntry]:
        """The story of the plan, or of one task."""
        return [PlanEntry(*entry) for entry in self._story if task_id is None or entry[2] == task_id]

    def story_after(self, count: int) -> list[PlanEntry]:
        """The story without its first ``count`` entries. The cost follows what is new."""
        return [PlanEntry(*entry) for entry in self._story[count:]]

    def add_entry(self, now: float, what: str, task_id: str | None = None, why: str = "", facts: Facts = None) -> None:
        """Add an entry to the story, as part of a step."""
        self.last_at = now = step_time(self.last_at, now)
        self._story.append((now, what, task_id, why) if facts is None else (now, what, task_id, why, facts))

    def note(self, now: float, what: str, task_id: str | None = None, why: str = "", facts: Facts = None) -> None:
        """Add an entry to the story. A step of its own, which changes nothing else; journals record it."""
        self.add_entry(now, what, task_id, why, facts)

    # -- steps of tasks ------------------------------------------------------------------------------------------------

    def begin(self, now: float) -> None:
        """Start the plan. From here on, every change is an edit."""
        if self.state not in (ConstellationState.CREATED, ConstellationState.READY):
            raise PlanError(f"plan {self.id!r} is {self.state}: it cannot begin")
        self.state = ConstellationState.EXECUTING
        self.started_at = now = step_time(self.last_at, now)
        self.add_entry(now, "began")
        self.rejoined.clear()
        for node in self.nodes.values():
            if not node.open:
                self.requeue(node)
        self.rescope()

    def start(self, node: Node, device: str, now: float) -> int:
        """Assign a ready task to a device. Returns the epoch of this execution.

        A running task without a device waits for its next attempt, and keeps its status."""
        if now < self.last_at:
            now = step_time(self.last_at, now)
        if node.status is RUNNING and node.device is None:
            self.records.mark(node)
        else:
            if node.open or (node.held and not self.starts_early(node)):
                self.refuse(node, "start")
            self.change_status(node, "start")
            node.started_at = now
            if node.held:
                node.provisional = True
                self.provisionals += 1
        self.epochs = node.epoch = epoch = self.epochs + 1
        node.attempts += 1
        node.device, node.begun_at, self.last_at = device, now, now
        if node.times is not None:
            node.times = None
        self._story.append((now, "started provisionally" if node.provisional else "started", node.id, device))
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
        """Record the end of a task. With ``review``, the same step holds its children until ``settle``."""
        if now < self.last_at:
            now = step_time(self.last_at, now)
        why = "" if error is None else error_text(error)
        if not node.provisional:
            self.change_status(node, EVENTS[status])
            self._story.append((now, status, node.id, why))
        elif node.tentative is None:
            node.tentative = status
            self.records.mark(node)
            self._story.append((now, f"{status} provisionally", node.id, why))
        else:
            self.refuse(node, EVENTS[status])
        self.last_at = now
        if node.device is not None and node.times is None:
            node.worked += now - node.begun_at
        node.value, node.ended_at, node.entry = value, now, None
        if node.error is not error:
            node.error = error
        node.reviewed = not review
        node.unsettled = unsettled = review or node.provisional
        if self.deciders:
            inherited_priority.ended(self, node)
            joins.ended(self, node)
            return
        source, completed = node.id, status is COMPLETED
        for child in node.children.values():  # only the outgoing edges are visited
            dependency = child.parents[source]
            fits = completed if dependency.on == "success" else outcome_fits(dependency.on, status)
            if fits and (dependency.when is None or self.verdict(node, dependency, child) is True):
                child.open -= 1
            if unsettled:
                child.held += 1
            if not child.open:
                self.requeue(child)

    def verdict(self, node: Node, dependency: Dependency, child: Node) -> bool | str:
        """Evaluate a condition once and keep the result; a text is an error, which counts as false."""
        try:
            verdict = self.evaluate(dependency.when or "", node.tentative or node.status, node.value)
        except Exception as error:
            verdict = error_text(error)
        if child.verdicts is None:
            child.verdicts = {}
        child.verdicts[node.id] = verdict
        self.records.mark(child)
        return verdict

    def retry(self, node: Node, now: float, why: str) -> None:
        """Record a failed attempt that will be retried. The task stays running, without a device until the next
        attempt."""
        if node.status is not RUNNING or node.device is None or node.tentative is not None:
            self.refuse(node, "retry")
        self.records.mark(node)
        node.device = None
        node.worked += step_time(self.last_at, now) - node.begun_at
        self.add_entry(now, "attempt failed", node.id, why)

    def count_loss(self, node: Node) -> None:
        """Count that a device vanished. Losses are counted apart from failures of the work."""
        node.losses += 1
        self.records.mark(node)

    def set_files(self, node: Node, manifest: str) -> None:
        """Record the files that a running task has made, just before its end."""
        if node.status is not RUNNING:
            self.refuse(node, "have files")
        node.files = manifest
        self.records.mark(node)

    def record_run(self, task_id: str, epoch: int, now: float, times: AttemptTimes, why: str) -> None:
        """Record in the story that the run of an execution has ended, and with the task when its last attempt began and
        ended: the plan learns of both afterwards. A task that was cancelled meanwhile has no epoch any more."""
        node = self.nodes.get(task_id)
        if node is not None and (node.epoch == epoch or (node.status is CANCELLED and node.times is None)):
            node.times = times
            self.records.mark(node)
            if times.begun is not None and times.ended is not None:
                node.worked += max(0.0, times.ended - times.begun)
            if node.teardowns:  # it may have ended before it was known that no device has begun it
                joins.refresh(self, teardowns.teardowns_of(node))
                joins.requeue(self)
        self.add_entry(now, "run ended", task_id, why, times._asdict())

    def wait(self, node: Node, now: float) -> None:
        """Let a ready task wait for the world: it leaves the queue until it is started and ended in one step."""
        waits = node.task.wait_for is not None or (node.needs_approval and node.decision is None)
        if node.status is not PENDING or node.open or node.held or not waits:
            self.refuse(node, "wait")
        node.entry, node.awaited_since = None, step_time(self.last_at, now)
        self.records.mark(node)
        self.add_entry(now, "waits", node.id, node.task.wait_text)

    def decide(self, node: Node, now: float, decision: str, by: str) -> None:
        """Record whether a waiting task may start: ``approved``, or why not. It is queued, for its start or its end."""
        if not node.awaits or not node.needs_approval:
            self.refuse(node, "be approved")
        node.awaited_since, node.decision = None, decision
        node.needless = decision != APPROVED and (node.task.approval or {}).get("else") == SKIP
        self.records.mark(node)
        self.add_entry(now, APPROVED if decision == APPROVED else "not approved", node.id, by)
        self.requeue(node)

    def add_taint(self, node: Node, now: float, why: str) -> None:
        """Record that a task brings data into the plan that strangers may have written; see taint.py."""
        self.tainted.add(node.id)
        self.add_entry(now, "brings untrusted data", node.id, why)

    def release(self, node: Node, now: float, why: str) -> None:
        """Put a task back because its device left before the work began. That is not counted as an attempt."""
        if node.status is not RUNNING or node.device is None or node.tentative is not None:
            self.refuse(node, "release")
        self.add_entry(now, "put back", node.id, why)
        if node.attempts - node.spent > 1:  # it has run before: it stays running, so that no edit may change it
            node.attempts -= 1
            node.device = None
            self.records.mark(node)
            self.queue.push(node)
        else:
            self._reset(node)
            self.requeue(node)

    def cancel(self, node: Node, now: float, why: str) -> list[tuple[str, int]]:
        """Cancel a pending or running task. Returns the executions (task, epoch) that must stop."""
        revoked: list[Node] = []
        if node.provisional:
            revoked = provisional_below(node)
            stopped = self.revoke(revoked, now, why)
        elif node.status is RUNNING and node.device is not None:
            stopped = [(node.id, node.epoch)]
        else:
            stopped = []
        self._give_up(node, now, why)
        node.epoch = 0
        if self.state is ConstellationState.CANCELLING:  # none of them will start again
            for other in revoked:
                if other is not node:
                    self._give_up(other, now, plan_cancelled(self.cancel_reason))
        return stopped

    def _pass_on_cancellation(self, node: Node) -> None:
        """Tell the dependents of a cancelled task: those that need only its end have it."""
        if self.deciders:
            joins.cancelled(self, node)
            return
        for child in node.children.values():
            dependency = child.parents[node.id]
            if dependency.on == "always" and self.end_counts(node, dependency, child):
                child.open -= 1
                self.requeue(child)

    def end_counts(self, node: Node, dependency: Dependency, child: Node) -> bool:
        """Whether the condition of a dependency, if it has one, holds for an end."""
        return dependency.when is None or self.verdict(node, dependency, child) is True

    def settle(self, ends: Iterable[tuple[str, int]], now: float) -> list[Node]:
        """Settle the ends (task, epoch) that were reviewed. Returns the provisional tasks that this confirms, in order.

        An end whose epoch is no longer that of its task was revoked, and is ignored."""
        stack = []
        for task_id, epoch in ends:
            node = self.nodes.get(task_id)
            if node is not None and node.epoch == epoch and not node.reviewed:
                node.reviewed = True
                if node.unsettled and not node.provisional:
                    stack.append(node)
        confirmed = []
        while stack:
            node = stack.pop()
            node.unsettled = False
            if self.deciders:
                joins.settled(self, node)
            for child in sorted(node.children.values(), key=_number):
                child.held -= 1
                if child.held:
                    continue
                if not child.provisional:
                    self.requeue(child)
                    continue
                confirmed.append(child)
                if self._confirm(child, now):
                    stack.append(child)
        if self.rejoined:
            joins.requeue(self)
        return confirmed

    def _confirm(self, node: Node, now: float) -> bool:
        """Confirm a provisional task. Returns whether that settles it."""
        node.provisional = False
        self.records.mark(node)
        self.provisionals -= 1
        self.add_entry(now, "confirmed", node.id)
        if node.tentative is None:
            return False
        status, node.tentative = node.tentative, None
        self.change_status(node, EVENTS[status])
        self.add_entry(now, status, node.id, error_text(node.error))
        return node.reviewed

    def revoke(self, nodes: Iterable[Node], now: float, why: str) -> list[tuple[str, int]]:
        """Make provisional tasks pending again. Returns the executions (task, epoch) that must stop."""
        stopped = []
        revoked = [node for node in nodes if node.provisional]
        for node in revoked:
            if node.tentative is None and node.device is not None:
                stopped.append((node.id, node.epoch))
            self._reset(node)
            self.add_entry(now, "revoked", node.id, why)
        for node in revoked:
            self.requeue(node)
        return stopped

    def _reset(self, node: Node) -> None:
        """Make a running task pending, as if it had never run. Its children drop what they knew of its provisional
        end."""
        if node.tentative is not None:
            for child in node.children.values():
                if node.satisfies(child.parents[node.id], child):
                    child.open += 1
                    child.met -= 1
                if child.verdicts:
                    child.verdicts.pop(node.id, None)
                    self.records.mark(child)
                child.held -= 1
                if self.deciders:
                    joins.refresh(self, [child])
                self.requeue(child)
        if node.provisional:
            self.provisionals -= 1
        self.change_status(node, "release")
        node.provisional, node.tentative, node.unsettled, node.reviewed = False, None, False, True
        node.value = node.error = node.device = node.started_at = node.ended_at = node.entry = node.files = None
        node.epoch = node.losses = 0
        node.attempts, node.worked, node.times = node.spent, 0.0, None
        if self.deciders:
            joins.refresh(self, [node])
            joins.requeue(self)

    def begin_cancel(self, now: float, reason: str = "") -> list[Node]:
        """Cancel the plan: nothing starts any more but the teardowns of set-ups that have begun, and no end is
        reviewed. ``reason`` says who cancelled it and why. Returns the tasks that this cancels. Those that run must be
        stopped; then ``close`` ends the plan."""
        if self.state is not ConstellationState.EXECUTING:
            raise PlanError(f"plan {self.id!r} is {self.state}: it cannot be cancelled")
        self.state, self.cancel_reason = ConstellationState.CANCELLING, reason
        self.add_entry(now, "cancelling", None, reason)
        self.settle([(node.id, node.epoch) for node in self.nodes.values() if not node.reviewed], now)
        left = [node for node in self._pending() if not teardowns.is_due(node)]
        for node in left:
            self._give_up(node, now, plan_cancelled(reason))
        return left

    def close(self, now: float, cancelled: bool = False) -> ConstellationState:
        """End the plan when no task can move: cancel the pending tasks, each with a reason. Returns the final state.

        If that makes tasks ready which need only the end of others (``always``), or teardowns, the plan goes on, and
        is closed again when no task can move."""
        if cancelled:
            for node in self._pending():
                self._give_up(node, now, plan_cancelled(self.cancel_reason))
        elif self.counts[PENDING] and self._give_up_lost(now):
            return self.state
        if cancelled:
            self.state = ConstellationState.CANCELLED
        elif not plan_end.has_unreachable(self) and (not self.counts[FAILED] or plan_end.all_handled(self)):
            self.state = ConstellationState.COMPLETED
        else:
            self.state = ConstellationState.PARTIALLY_FAILED if self.counts[COMPLETED] else ConstellationState.FAILED
        self.ended_at = step_time(self.last_at, now)
        self.add_entry(now, str(self.state))
        return self.state

    def reopen(self, tasks: Iterable[str], now: float, why: str) -> Callable[[], None]:
        """Reopen a plan that has ended, with these tasks pending again. Returns what undoes it."""
        return plan_end.reopen(self, tasks, now, why)

    def _pending(self) -> list[Node]:
        return parents_first(node for node in self.nodes.values() if node.status is PENDING)

    def _give_up_lost(self, now: float) -> bool:
        """Give up the tasks that can never run. Returns whether that makes others ready.

        What is left then waits for teardowns that wait for it. Teardowns are given up last."""
        never_started = {node for node in self._pending() if not node.open}
        choices: list[Callable[[Node], bool]] = [
            lambda node: node in never_started or plan_end.is_lost_for_good(self, node),
            lambda node: node.setup is None,
            lambda node: True,
        ]
        for is_chosen in choices:
            for node in self._pending():
                if is_chosen(node):
                    node.given_up, (node.needless, why) = True, plan_end.unreachable_reason(self, node)
                    self._give_up(node, now, why)
            if self.queue.has_ready():
                return True
        return False

    def _give_up(self, node: Node, now: float, why: str) -> None:
        self.change_status(node, "cancel")
        node.entry, node.ended_at, node.reason = None, step_time(self.last_at, now), why
        self.add_entry(now, "cancelled", node.id, why)
        inherited_priority.ended(self, node)
        self._pass_on_cancellation(node)

    # -- structure: used by Constellation and apply --------------------------------------------------------------------

    def insert(self, node: Node) -> None:
        self.place(node)
        self.counts[PENDING] += 1
        self.rerank(node)

    def discard(self, node: Node) -> None:
        """Take out a pending node without edges, as if it had never been inserted."""
        del self.nodes[node.id]
        self.counts[PENDING] -= 1
        joins.discount_task(self, node.task)

    def place(self, node: Node) -> None:
        self._placed += 1
        node.number = self._placed
        self.nodes[node.id] = node
        self.records.add(node)
        if node.task.join == "any":
            joins.count_task(self, node.task)
        if is_marked(node.task):
            self.untrusted[node.id] = None

    def link(self, dependency: Dependency, verdict: bool | str | None = None) -> None:
        """Add an edge. Raises CycleFound, with nothing changed. ``verdict`` is the known result of its condition."""
        source, target = self.node(dependency.source), self.node(dependency.target)
        for node in (source, target, *self.order.connect(source, target)):
            self.records.mark(node)
        if source.children is NO_EDGES:
            source.children = {}
        if target.parents is NO_EDGES:
            target.parents = {}
        source.children[target.id] = target
        target.parents[source.id] = dependency
        if verdict is not None:
            target.verdicts = {**(target.verdicts or {}), source.id: verdict}
        elif dependency.when is not None and outcome_fits(dependency.on, source.tentative or source.status):
            self.verdict(source, dependency, target)
        holds = source.satisfies(dependency, target)
        if not holds:
            target.open += 1
        if source.unsettled:
            target.held += 1
        counted = False
        if dependency.on == "teardown":
            teardowns.pair(self, source, target)
            counted = joins.count_decider(self)
        elif self.setups or self.unscoped:
            self.unscoped.setdefault(target, False)
        if self.deciders and not counted:
            target.met += holds
            target.lost += joins.is_lost(source, dependency, target)
            joins.refresh(self, [target])
        inherited_priority.linked(self, source, target, dependency)
        self.rerank(source)

    def unlink(self, dependency: Dependency) -> bool | str | None:
        """Remove an edge. Returns the result of its condition, for a rollback."""
        source, target = self.node(dependency.source), self.node(dependency.target)
        holds = source.satisfies(dependency, target)
        if not holds:
            target.open -= 1
        if source.unsettled:
            target.held -= 1
        if self.deciders:
            target.met -= holds
            target.lost -= joins.is_lost(source, dependency, target)
        del source.children[target.id], target.parents[source.id]
        self.records.mark(source)
        self.records.mark(target)
        if dependency.on == "teardown":
            teardowns.unpair(self, source, target)
            self.deciders -= 1
        elif self.setups or self.unscoped:
            self.unscoped.setdefault(target, False)
        if self.deciders:
            joins.refresh(self, [target])
        inherited_priority.unlinked(self, source, target, dependency)
        self.rerank(source)
        return target.verdicts.pop(source.id, None) if target.verdicts else None

    def rescope(self) -> None:
        """Renew what edges of set-ups and teardowns have changed: which tasks are between them."""
        if self.unscoped:
            joins.refresh(self, teardowns.update(self))

    def starts_early(self, node: Node) -> bool:
        """Whether a task may start provisionally. Neither set-ups nor teardowns do: what they did cannot be dropped."""
        return self.speculative and node.task.revocable and node.setup is None and not node.teardowns

    def rerank(self, node: Node) -> None:
        """Update ranks and queue after the estimate of a node or its outgoing edges changed."""
        if self.ranks is not None:
            for changed in self.ranks.refresh(self.nodes, node):
                if changed.entry is not None:
                    self.queue.push(changed)

    def requeue(self, node: Node) -> None:
        """Queue or dequeue a pending node, according to its counters."""
        if node.status is not PENDING:
            return
        state = self.state
        if self.untrusted and not node.open and node.task.untrusted and state is not ConstellationState.CREATED:
            self.tainted.add(node.id)
        if (
            not node.open
            and (not node.held or self.starts_early(node))
            and (
                state is ConstellationState.EXECUTING
                or (state is ConstellationState.CANCELLING and node.setup is not None)
            )
        ):
            if node.entry is None and node.awaited_since is None:
                self.queue.push(node)
        else:
            node.entry = None
            if node.awaited_since is not None:  # an edit made it depend on others: it will begin to wait again
                node.awaited_since = None
                self.records.mark(node)

    def change_status(self, node: Node, event: str) -> None:
        """Change a status by the table of transitions. The only place that does so."""
        before, counts = node.status, self.counts
        status = TRANSITIONS[event].get(before)
        if status is None:
            self.refuse(node, event)
        counts[before] -= 1
        counts[status] += 1
        if status is RUNNING:
            self.running[node.id] = None
        elif before is RUNNING:
            del self.running[node.id]
        node.status = status
        if self.records.kept is not None:
            self.records.mark(node)

    def refuse(self, node: Node, event: str) -> NoReturn:
        """Raise InvalidTransition: the state of a task does not allow a step."""
        raise InvalidTransition(node.id, str(node.status), event, self.story(node.id))


def is_modifiable(node: Node) -> bool:
    """Whether an edit may change the node: it is pending or provisional (I3)."""
    return node.status is PENDING or node.provisional
