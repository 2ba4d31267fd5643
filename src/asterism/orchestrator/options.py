"""What an execution gets from its orchestrator: the frozen options, and the journal of a stored plan."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from asterism.base import expressions
from asterism.base.content_store import ContentFolder
from asterism.base.expressions import Conditions
from asterism.core.attempt_log import DEFAULT_LIMIT
from asterism.core.errors import PlanError
from asterism.core.plan.assignment_lock import AssignmentLock, EditOn, edit_on_all, edit_on_failure
from asterism.core.plan.constellation import Constellation, EndView, TaskView
from asterism.core.plan.edit_rules import ApprovalRule, EditScope
from asterism.core.plan.node import Node
from asterism.core.plan.plan_options import PlanOptions
from asterism.core.plan.ready_queue import CriticalPathRanks
from asterism.core.plan.status import ConstellationState, TaskStatus
from asterism.core.record import replace
from asterism.core.run.placement import Strategy
from asterism.execution.artifacts import Artifacts
from asterism.execution.plugin_actions import check_plugin
from asterism.orchestrator.edit_cycles import Editor, editor_of
from asterism.orchestrator.events import Event
from asterism.orchestrator.plan_mask import mask_conditions
from asterism.orchestrator.unchanged_tasks import ResultRecords

Lock = TypeVar("Lock", bound=AssignmentLock)

MAX_BACKOFF = 60.0
"""Seconds between two attempts at most, before the random part."""

STORED_BACKOFF = 300.0
"""The same for a stored plan, without a random part, as in a fleet."""


class Options(PlanOptions, kw_only=True):
    """The options of an orchestrator. Raises ValueError for values that make no sense."""

    editor: Editor | None = None
    """Answers edit cycles with edits. A user may give an async function ``(view, events)``."""

    external: bool = False
    """Editors outside the process list, claim and answer cycles (without an ``editor``)."""

    policy: str = "scoped"
    """The lock policy, which says what is held during a review: ``scoped``, ``global`` or ``speculative``."""

    edit_on: str | Callable[[TaskView], bool] = "all"
    """Which ends are reviewed: ``all``, ``failure``, or a predicate over the task."""

    max_cycles: int = 4
    """How many edit cycles are open at once."""

    max_rejections: int = 3
    """How many rejected answers one cycle takes before it is closed."""

    claim_timeout: float = 30.0
    """Seconds that an external cycle waits for a claim."""

    strategy: str | Strategy = "score"  # type: ignore[assignment]  # in memory it may be a function, too
    concurrency: int | None = None
    """How many tasks run at once in all; None for as many as the devices take."""

    rank: bool = False
    """Order ready tasks of equal priority by the estimated work that depends on them."""

    conditions: Conditions = expressions
    """What evaluates the conditions of dependencies; CEL by default."""

    max_losses: int = 3
    """How many losses of a device one task survives."""

    grace: float = 5.0
    """Seconds that a task has to stop when asked."""

    seed: int | None = None
    """Of the random part of delays between attempts."""

    records: ResultRecords | None = None
    """Where results of tasks with ``skip_if_unchanged`` are kept; None: they are always executed."""

    log_limit: int = DEFAULT_LIMIT
    """How many bytes of the output of each attempt are kept; 0 for none."""

    approvals: tuple[ApprovalRule, ...] = ()
    """Rules that say which edits wait for a person."""

    scopes: tuple[EditScope, ...] = ()
    """What the editors of the plan may do; without any, everything."""

    artifacts: Artifacts | None = None
    """The files that tasks make (``outputs``). A user may give a folder; without one they are in a temporary folder,
    which lasts as long as the orchestrator or a result."""

    @classmethod
    def of(cls, options: Options | None, fields: Mapping[str, Any]) -> Options:
        """These options with other fields, as a user gives them. Raises TypeError for a field that there is not."""
        given = {name: _AS_FIELD.get(name, lambda value: value)(value) for name, value in fields.items()}
        return cls(**given) if options is None else replace(options, **given)

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


def _artifacts(folder: Artifacts | str | os.PathLike[str] | None) -> Artifacts | None:
    if folder is None or isinstance(folder, Artifacts):
        return folder
    return Artifacts(ContentFolder(Path(folder), time.time))


_AS_FIELD: dict[str, Callable[[Any], Any]] = {
    "editor": editor_of,
    "approvals": tuple,
    "scopes": tuple,
    "artifacts": _artifacts,
}
"""What a field becomes for which a user may give something else."""


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


class PlanJournal(Protocol):
    """The journal of a stored plan: observers and editors learn of a change only when it is durable."""

    def publish(self, event: Event) -> None:
        """Publish an event once everything recorded up to now is durable."""

    def tell_failure(self, node: Node, why: str) -> None:
        """Tell people that a task failed that the process of the plan executed. Called with its end."""

    async def settled(self) -> bool:
        """Wait until everything recorded up to now is durable; False if it never will be."""
