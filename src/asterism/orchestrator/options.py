"""What an execution gets from its orchestrator: the frozen options, the scheduler, the journal of a stored plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from asterism.base import expressions
from asterism.base.expressions import Conditions
from asterism.core.attempt_log import DEFAULT_LIMIT
from asterism.core.errors import PlanError
from asterism.core.plan.assignment_lock import AssignmentLock, EditOn, edit_on_all, edit_on_failure
from asterism.core.plan.constellation import Constellation, EndView, TaskView
from asterism.core.plan.edit_rules import ApprovalRule, EditScope
from asterism.core.plan.edits import APPROVAL_TIMEOUT
from asterism.core.plan.node import Node
from asterism.core.plan.ready_queue import CriticalPathRanks
from asterism.core.plan.status import ConstellationState, TaskStatus
from asterism.core.record import Record
from asterism.execution.artifacts import Artifacts
from asterism.execution.plugin_actions import check_plugin
from asterism.orchestrator.edit_cycles import Editor
from asterism.orchestrator.events import Event
from asterism.orchestrator.plan_mask import mask_conditions
from asterism.orchestrator.roster import Member, Roster
from asterism.orchestrator.unchanged_tasks import ResultRecords

if TYPE_CHECKING:
    from asterism.orchestrator.execution import Execution

Lock = TypeVar("Lock", bound=AssignmentLock)

MAX_BACKOFF = 60.0
"""Seconds between two attempts at most, before the random part."""


class Options(Record, kw_only=True):
    """See ``Orchestrator`` for their meaning. Raises ValueError for values that make no sense."""

    editor: Editor | None = None
    external: bool = False
    policy: str = "scoped"
    edit_on: str | Callable[[TaskView], bool] = "all"
    max_cycles: int = 4
    max_rejections: int = 3
    edit_timeout: float = 600.0
    claim_timeout: float = 30.0
    concurrency: int | None = None
    rank: bool = False
    conditions: Conditions = expressions
    no_device_timeout: float = 300.0
    max_losses: int = 3
    grace: float = 5.0
    seed: int | None = None
    records: ResultRecords | None = None
    log_limit: int = DEFAULT_LIMIT
    approvals: tuple[ApprovalRule, ...] = ()
    approval_timeout: float = APPROVAL_TIMEOUT
    scopes: tuple[EditScope, ...] = ()
    approval_escalation: float | None = None
    artifacts: Artifacts | None = None

    def __post_init__(self) -> None:
        if self.editor is not None and self.external:
            raise ValueError("give an editor, or external=True for editors outside the process, not both")
        if self.concurrency is not None and self.concurrency < 1:
            raise ValueError(f"concurrency must be 1 or more, or None for no limit, not {self.concurrency}")
        if type(self.log_limit) is not int or self.log_limit < 0:
            raise ValueError(f"log_limit must be a number of bytes, 0 or more, not {self.log_limit!r}")
        if not self.approval_timeout > 0:
            raise ValueError(f"approval_timeout must be more than 0 seconds, not {self.approval_timeout!r}")
        if self.approval_escalation is not None and not self.approval_escalation > 0:
            raise ValueError(f"approval_escalation must be more than 0 seconds, not {self.approval_escalation!r}")
        self.lock(Constellation(), AssignmentLock)  # its constructor checks the lock policy and the limits

    @property
    def lock_terms(self) -> dict[str, Any]:
        """The options of a lock that a store keeps with its plan."""
        return {"policy": self.policy, "max_cycles": self.max_cycles, "edit_timeout": self.edit_timeout}

    def lock(self, plan: Constellation, make: type[Lock]) -> Lock:
        """A lock for a plan that has not started."""
        lock = make(plan, **self.lock_terms)
        self.adopt(lock)
        return lock

    def adopt(self, lock: AssignmentLock) -> None:
        """Give a lock, which may come from a store, the options that are not stored with it."""
        lock.edit_on = _edit_on(self._reviewed_ends) if self.editor is not None or self.external else None
        lock.claim_timeout = self.claim_timeout if self.editor is None else None

    @property
    def _reviewed_ends(self) -> str | Callable[[TaskView], bool]:
        """``edit_on``; unless that is given, what the editor itself asks for."""
        own = None if self.editor is None else self.editor.edit_on
        return self.edit_on if own is None or self.edit_on != "all" else own

    def prepare(self, plan: Constellation, assignments: Mapping[str, str] | None = None) -> None:
        """Make a plan ready to run. ``assignments`` maps tasks to devices. Raises PlanError if a condition is not
        valid."""
        self.evaluate_conditions(plan)
        problems = [
            f"{d.source!r} -> {d.target!r}: the condition {d.when!r} is not valid: {problem}"
            for node in plan.nodes.values()
            for d in node.parents.values()
            if d.when is not None and (problem := self.conditions.check(d.when)) is not None
        ]
        if problems:
            raise PlanError(f"plan {plan.id!r} cannot run:\n" + "\n".join(f"  - {p}" for p in problems))
        assigned = [
            (plan.node(task_id), plan.node(task_id).task.changed({"device": device}))
            for task_id, device in (assignments or {}).items()
        ]
        for node, task in assigned:
            node.task = task
            plan.records.mark(node)
        plan.ranks = None  # those of an earlier run may be outdated
        self.add_ranks(plan)
        plan.state = ConstellationState.READY

    def evaluate_conditions(self, plan: Constellation) -> None:
        """Give a plan what evaluates and checks its conditions, and what checks the work of plug-ins."""
        mask_conditions(plan, self.conditions)
        plan.check_plugin = check_plugin

    def add_ranks(self, plan: Constellation) -> None:
        if self.rank and plan.ranks is None:
            plan.ranks = CriticalPathRanks()
            plan.ranks.all(plan.nodes)


def _edit_on(choice: str | Callable[[TaskView], bool]) -> EditOn:
    """``"all"``, ``"failure"``, or a predicate over the task that has ended."""
    if choice == "all":
        return edit_on_all
    if choice == "failure":
        return edit_on_failure
    if not callable(choice):
        raise ValueError(f"edit_on must be 'all', 'failure' or a function of a task, not {choice!r}")
    predicate = choice

    def by_predicate(node: Node, status: TaskStatus, value: Any, error: BaseException | None) -> bool:
        return bool(predicate(EndView(node, status, value, error)))

    return by_predicate


class Scheduler(Protocol):
    """What an execution needs from its orchestrator: the devices, the time, and its turn."""

    roster: Roster
    now: Callable[[], float]
    """The clock: seconds since 1970."""

    concurrency: int | None
    """The limit of running tasks."""

    @property
    def has_room(self) -> bool:
        """Whether this limit allows one more task."""

    @property
    def slots(self) -> int | None:
        """How many tasks can run at once; None for no limit."""

    def wake(self, execution: Execution) -> None:
        """Take a step for this execution as soon as the loop is free."""

    def task_ended(self, execution: Execution, now: float) -> None:
        """A task ended now, without a review: start the next tasks."""

    def keeps_turn(self, now: float) -> bool:
        """Whether a task may follow another one before the other callbacks of the loop get a turn."""

    def rest(self, member: Member) -> None:
        """Give a device no task for a while."""


class PlanJournal(Protocol):
    """The journal of a stored plan: observers and editors learn of a change only when it is durable."""

    def publish(self, event: Event) -> None:
        """Publish an event once everything recorded up to now is durable."""

    async def settled(self) -> bool:
        """Wait until everything recorded up to now is durable; False if it never will be."""
