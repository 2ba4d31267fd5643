"""Commands: what may be asked of a stored plan. Each is a record with one function, ``perform``, which does it.

A command is performed by the process that has the plan open: the one that runs it, or one that owns it for a moment
because nobody runs it (``plan_actor.py``). Both are an ``OpenPlan``. What a command changes, and its answer, are one
commit. A command either changes nothing and raises, or is done as a whole.

To add a command, add a class below ``Command``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from asterism.core.errors import AlreadyRunning, AsterismError, EditRejected, PlanError, Violation, error_text
from asterism.core.plan.apply import Applied
from asterism.core.plan.assignment_lock import CycleClaimed, CycleGone, EditCycle
from asterism.core.plan.edit_rules import names_devices
from asterism.core.plan.edits import ApprovalForbidden, ApprovalGone, EditBatch, EditWaits, WaitingEdit
from asterism.core.plan.explain import Why
from asterism.core.plan.journal import RecordedConstellation, Step
from asterism.core.plan.status import ConstellationState
from asterism.core.record import Record, Struct, decode, encode, field, replace
from asterism.durable.journal_store import Head, StoredConstellation
from asterism.durable.plan_summaries import ENDED
from asterism.orchestrator.plan_mask import PlanMask
from asterism.orchestrator.waiting_edits import WaitingEdits
from asterism.store.protocol import Notice, PutRegister

if TYPE_CHECKING:
    from asterism.orchestrator.execution import Execution
    from asterism.orchestrator.orchestrator import PlanCommands

Answer = TypeVar("Answer")

LEASE = 60.0
"""Seconds for which a cycle is claimed by default."""


class Journal(Protocol):
    """What a command writes beside its steps, all in one commit."""

    sealed: bool
    """Whether nothing is written any more."""

    @property
    def head(self) -> Head:
        """The head as the next commit leaves it."""

    def stage(self, write: PutRegister | Notice) -> bool:
        """Write this too. Returns whether it replaces an earlier write of that commit."""

    def stage_head(self, **changes: object) -> None:
        """Change the head."""

    async def commit(self) -> None:
        """Make all of it durable."""


class OpenPlan(Struct, eq=False):
    """A plan that this process has open. While it runs it, there is an ``execution`` with the ``commands`` of its
    orchestrator, and ``device`` is the name of the process. ``submission`` lets a plan runner run a plan that has ended
    and is reopened. ``stopped`` are the executions that commands have stopped."""

    stored: StoredConstellation
    journal: Journal
    waiting: WaitingEdits
    now: Any
    execution: Execution | None = None
    commands: PlanCommands | None = None
    device: str | None = None
    submission: PutRegister | None = None
    stopped: list[tuple[str, int]] = field(default_factory=list)

    @property
    def plan(self) -> RecordedConstellation:
        return self.stored.plan

    @property
    def name(self) -> str:
        return self.stored.head.name

    @property
    def active(self) -> bool:
        """Whether commands can be performed: not between the end of a plan and the moment when its owner leaves it."""
        return self.execution is None or not self.execution.done.done()

    @property
    def running(self) -> Execution:
        """Raises PlanError if no process runs the plan."""
        if self.execution is not None:
            return self.execution
        if self.plan.state in ENDED:
            raise PlanError(f"plan {self.name!r} has ended ({self.plan.state})")
        raise PlanError(
            f"no process runs plan {self.name!r}, so its edit cycles wait. Resume it: asterism resume {self.name}"
        )

    def shown(self, text: str) -> str:
        """A text without the secrets of the plan."""
        return str(PlanMask(self.plan).shown(text))

    def edited(self, applied: Applied, *, ended: bool = False) -> EditAnswer:
        """The answer to an edit that was applied. ``ended``: the plan had ended before it."""
        if self.execution is None:  # else it stops them itself
            self.stopped += applied.stopped
        if ended and self.plan.state not in ENDED:
            self.reopen(submit=True)
        return EditAnswer(applied, self.device, reopened=ended and bool(applied.batch.edits))

    def reopen(self, *, submit: bool) -> None:
        """The plan had ended, and does not any more."""
        self.journal.stage_head(state=str(self.plan.state), owner=None, ended_at=None, paused=None)
        if submit and self.submission is not None:
            self.journal.stage(self.submission)


def check_not_cancelled(head: Head, what: str) -> None:
    """Raise PlanError if the plan is being cancelled. ``what`` is what it cannot be, such as ``edited``."""
    if head.cancelling and head.state != ConstellationState.CANCELLED:  # then the caller says that it has ended
        by = f" {head.cancel_reason}" if head.cancel_reason else ""
        raise PlanError(f"plan {head.name!r} is being cancelled{by}: it cannot be {what}")


# -- answers -----------------------------------------------------------------------------------------------------------


class EditAnswer(Record):
    """``by`` is the process that runs the plan and applied the edit; None if no process runs it. ``reopened``: the plan
    had ended, and the edit has opened it again and submitted it to plan runners. ``rests``: no process runs the plan,
    and none will until a person resumes it or starts a server. ``waits`` are the reasons why an edit that was only
    checked would wait for a person, and ``removed`` the tasks that it would remove with others, by the index of the
    edit."""

    applied: Applied
    by: str | None = None
    reopened: bool = False
    waits: tuple[str, ...] = ()
    rests: bool = False
    removed: Mapping[int, Sequence[str]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        applied, inverse = self.applied, self.applied.inverse
        return {
            "by": self.by,
            "reopened": self.reopened,
            "version": applied.version,
            "batch": applied.batch.to_json(),
            "inverse": None if inverse is None else inverse.to_json(),
            "stopped": [list(execution) for execution in applied.stopped],
        }

    @classmethod
    def from_json(cls, data: Any) -> EditAnswer:
        inverse = None if data["inverse"] is None else EditBatch.from_json(data["inverse"])
        stopped = tuple((task, epoch) for task, epoch in data["stopped"])
        applied = Applied(data["version"], EditBatch.from_json(data["batch"]), inverse, stopped)
        return cls(applied, data["by"], data["reopened"])


class PauseAnswer(Record):
    """``reason`` says who paused the plan and why. ``owner`` is the process that runs it, ``by`` the one that obeys."""

    reason: str
    already: bool
    owner: str | None = None
    by: str | None = None


class Done(Record):
    """``already``: there was nothing to do. ``by`` is the process that runs the plan."""

    already: bool
    by: str | None = None


class Reopened(Record):
    """A plan that was reopened: the tasks that run again, and the version after the edits that came with it."""

    name: str
    tasks: tuple[str, ...]
    version: int


class CycleView(Record):
    """An open edit cycle. ``ends`` are the ends under review: objects with ``task``, ``status`` and ``reason``.
    ``version`` is the base of its answer. ``claimed_by`` is its editor until ``claimed_until``; at ``expires_at`` it is
    closed without an answer. Times are those of the store's clock; None if no process runs the plan. ``refusals`` are
    answers that a person refused since the cycle before it: objects with ``approval``, ``by``, ``reason`` and
    ``edits``. ``on_hold`` says why its editor waits for a person; the cycle then does not expire."""

    id: int
    version: int
    opened_at: float
    ends: tuple[Mapping[str, Any], ...]
    stuck: bool
    rejections: int
    claimed_by: str | None = None
    claimed_until: float | None = None
    expires_at: float | None = None
    refusals: tuple[Mapping[str, Any], ...] = ()
    on_hold: str = ""

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(str(end["task"]) for end in self.ends)

    def to_json(self) -> dict[str, Any]:
        return {**Record.to_json(self), "tasks": list(self.tasks)}


class CycleList(Record):
    """``by`` is the process that runs the plan and answered; None if none did, and the journal says what is open."""

    cycles: tuple[CycleView, ...]
    by: str | None = None


# -- commands ----------------------------------------------------------------------------------------------------------


class Command(Record, Generic[Answer], tag_field="command", tag=True):
    """``answer`` is the class of its answer; ``changes``, whether it changes the plan. One that ``lasts`` stays in the
    mailbox until it is done, whether or not somebody waits for the answer."""

    answer: ClassVar[type[Any]] = Done
    changes: ClassVar[bool] = True
    lasts: ClassVar[bool] = False

    def perform(self, plan: OpenPlan) -> Answer:
        """Raises an AsterismError, with nothing changed but what tells of it."""
        raise NotImplementedError

    @property
    def names_devices(self) -> bool:
        """Whether the devices have to be known that an edit may name."""
        batch: EditBatch | None = getattr(self, "batch", None)
        return batch is not None and names_devices(batch)

    def to_json(self) -> dict[str, Any]:
        batch: EditBatch | None = getattr(self, "batch", None)
        if batch is None:
            return Record.to_json(self)
        return {**encode(replace(self, batch=None)), "batch": batch.to_json()}


class EditPlan(Command[EditAnswer]):
    """Apply a batch. ``editor`` is the name of the editor that it comes from, which has a scope; None for a person, its
    author, with these ``groups``. One that adds tasks reopens a plan that has ended."""

    answer = EditAnswer
    batch: EditBatch
    editor: str | None = None
    groups: tuple[str, ...] = ()

    def perform(self, plan: OpenPlan) -> EditAnswer:
        check_not_cancelled(plan.journal.head, "edited")
        ended = plan.plan.state in ENDED
        return plan.edited(plan.waiting.submit(self.batch, None, self.editor, self.groups), ended=ended)


class ApproveEdit(Command[EditAnswer]):
    """Apply a waiting edit, or ``batch`` in its place, or let a task start."""

    answer = EditAnswer
    number: int
    who: str
    batch: EditBatch | None = None
    reason: str = ""
    groups: tuple[str, ...] = ()

    def perform(self, plan: OpenPlan) -> EditAnswer:
        waiting = _approvals(plan)
        return plan.edited(waiting.approve(self.number, self.who, self.batch, self.reason, self.groups))


class RefuseEdit(Command[WaitingEdit]):
    """Drop a waiting edit, or let a task not start."""

    answer = WaitingEdit
    number: int
    who: str
    reason: str = ""
    groups: tuple[str, ...] = ()

    def perform(self, plan: OpenPlan) -> WaitingEdit:
        return _approvals(plan).refuse(self.number, self.who, self.reason, self.groups)


def _approvals(plan: OpenPlan) -> WaitingEdits:
    """The waiting edits of a plan. Raises PlanError, and ApprovalGone if the plan has no rules, and no edit of it waits
    or waited."""
    check_not_cancelled(plan.journal.head, "edited")
    waiting = plan.waiting
    if not waiting.rules and not waiting.waiting and not waiting.decided:
        raise ApprovalGone(f"plan {plan.name!r} has no rules for approvals, and no edit of it waits for a person")
    return waiting


class RetryPlan(Command[Reopened]):
    """Reopen a plan that has ended, to run again what failed and what was cancelled because of it; or ``from_tasks``
    and what lies below them. ``batch`` is applied in the same commit; it is checked like every edit of ``editor``, None
    for a person with these ``groups``, and rejected if it would wait for approval. With ``submit`` the same commit
    submits the plan to plan runners.

    Completed tasks keep their results. A task that runs again gets a new epoch, and so a new run: the runs of earlier
    executions were consumed, and their keys are never used again."""

    answer = Reopened
    why: str
    from_tasks: tuple[str, ...] = ()
    batch: EditBatch | None = None
    editor: str | None = None
    groups: tuple[str, ...] = ()
    submit: bool = False

    def perform(self, plan: OpenPlan) -> Reopened:
        name, head = plan.name, plan.journal.head
        if plan.device is not None:
            raise AlreadyRunning(
                f"plan {name!r} is run by {plan.device!r}: it can be retried when it has ended. "
                f"To change it now: asterism plan edit {name}"
            )
        if plan.plan.state not in ENDED:
            raise PlanError(f"plan {name!r} has not ended; resume it with: asterism resume {name}")
        check_not_cancelled(head, "retried")
        signed = None if self.batch is None else replace(self.batch, editor=self.editor)
        record, steps = plan.plan.record, list[Step]()
        plan.plan.record = steps.append  # a retry that is refused after its first step leaves nothing behind
        try:
            again = plan.plan.run_again(
                plan.now(),
                self.from_tasks,
                signed,
                self.why,
                lambda batch: plan.waiting.check_retry(batch, self.editor, self.groups),
            )
        finally:
            plan.plan.record = record
        for step in steps:
            record(step)
        plan.reopen(submit=self.submit)
        return Reopened(name, tuple(again), plan.plan.version)


class PausePlan(Command[PauseAnswer]):
    """Start no more tasks; running tasks continue. The plan stays paused for all its owners, until it is resumed."""

    answer = PauseAnswer
    lasts = True
    why: str

    def perform(self, plan: OpenPlan) -> PauseAnswer:
        head = plan.journal.head
        if plan.plan.state in ENDED:
            raise PlanError(f"plan {plan.name!r} is {plan.plan.state}: it cannot be paused")
        check_not_cancelled(head, "paused")
        if head.paused is None:
            plan.journal.stage_head(paused=self.why)
        if plan.execution is not None and not plan.execution.paused:
            plan.execution.pause()
        return PauseAnswer(head.paused or self.why, head.paused is not None, plan.device, plan.device)


class ResumePlan(Command[Done]):
    """Start tasks again."""

    lasts = True

    def perform(self, plan: OpenPlan) -> Done:
        head, execution, already = plan.journal.head, plan.execution, True
        if head.paused is not None:
            plan.journal.stage_head(paused=None)
            already = False
        if execution is not None and execution.paused:  # perhaps by a call in its process alone
            execution.resume()
            already = False
        return Done(already, plan.device)


class CancelPlan(Command[Done]):
    """Cancel the plan, which stays cancelled. If no process runs it, the next one that does cancels it, and executes
    its teardowns. With ``hard`` the tasks that run are not asked to stop first."""

    lasts = True
    why: str = ""
    hard: bool = False

    def perform(self, plan: OpenPlan) -> Done:
        state, head = plan.plan.state, plan.journal.head
        if state in ENDED and state is not ConstellationState.CANCELLED:
            raise PlanError(f"plan {plan.name!r} is {state}: it cannot be cancelled")
        already = head.cancelling or state in ENDED
        if not already:
            if self.why:
                plan.plan.note(plan.now(), "asked to cancel", None, self.why)
            plan.journal.stage_head(cancelling=True, cancel_reason=self.why or None, state="cancelling")
        if plan.execution is not None:
            plan.execution.cancel(self.why)
            if self.hard:
                plan.execution.cancel_hard()
        return Done(already, plan.device)


class ListCycles(Command[CycleList]):
    """The open edit cycles."""

    answer = CycleList
    changes = False

    def perform(self, plan: OpenPlan) -> CycleList:
        return CycleList(tuple(_view(plan, cycle) for cycle in plan.stored.lock.cycles.values()), plan.device)


class ClaimCycle(Command[CycleView]):
    """Claim an open cycle for ``lease`` seconds, or renew the claim."""

    answer = CycleView
    cycle: int
    who: str
    lease: float = LEASE

    def perform(self, plan: OpenPlan) -> CycleView:
        return _view(plan, plan.running.cycles.claim(self.cycle, self.who, self.lease))


class ReleaseCycle(Command[CycleView]):
    """Close a cycle whose editor does not answer: the plan goes on as it is."""

    answer = CycleView
    cycle: int
    why: str

    def perform(self, plan: OpenPlan) -> CycleView:
        return _view(plan, plan.running.cycles.release(self.cycle, self.why))


class AnswerCycle(Command[EditAnswer]):
    """Answer a cycle with a batch of edits, or with none. A cycle that nobody has claimed is claimed by the answer: a
    claim is a lease in the memory of an owner, so an editor whose claim was lost with an owner need not try again."""

    answer = EditAnswer
    cycle: int
    who: str
    batch: EditBatch | None = None

    def perform(self, plan: OpenPlan) -> EditAnswer:
        check_not_cancelled(plan.journal.head, "edited")
        cycles, opened = plan.running.cycles, plan.stored.lock.cycles.get(self.cycle)
        if opened is not None and opened.claimed_by is None:
            cycles.claim(self.cycle, self.who, LEASE)
        return plan.edited(cycles.answer(self.cycle, self.who, self.batch or EditBatch(())))


class ExplainTask(Command[Why]):
    """Why a task is not running, as the process that runs the plan knows it."""

    answer = Why
    changes = False
    task: str

    def perform(self, plan: OpenPlan) -> Why:
        execution = plan.running
        assert plan.commands is not None
        why = plan.commands.why(self.task, execution.plan.id)
        holders = (replace(holder, text=plan.shown(holder.text)) for holder in why.holders)
        return replace(why, holders=tuple(holders))


def _view(plan: OpenPlan, cycle: EditCycle) -> CycleView:
    """A cycle as others see it. Claims and deadlines are those of the process that runs the plan, if one does."""
    nodes = [(task, plan.plan.nodes.get(task)) for task in cycle.tasks]
    mask, execution = PlanMask(plan.plan), plan.execution
    ends = tuple(
        {
            "task": task,
            "status": None if node is None else str(node.tentative or node.status),
            "reason": "" if node is None else mask.shown(error_text(node.error) or node.reason),
        }
        for task, node in nodes
    )
    about = cycle.id, cycle.version, cycle.opened_at, ends, cycle.stuck, cycle.rejections
    if execution is None:
        return CycleView(*about, on_hold=mask.shown(cycle.on_hold))
    never, claimed = float("inf"), cycle.claimed_by is not None
    expires = min(cycle.expires_at, never if claimed else cycle.claim_by)
    return CycleView(
        *about,
        cycle.claimed_by,
        cycle.claim_by if claimed and cycle.claim_by < never else None,
        None if expires == never else expires,
        tuple(
            {"approval": edit.id, "by": edit.decided_by, "reason": edit.why, "edits": edit.batch.description}
            for edit in execution.cycles.refusals_of(cycle)
        ),
        mask.shown(cycle.on_hold),
    )


_COMMANDS: dict[str, type[Command[Any]]] = {
    kind.__name__: kind
    for kind in (
        *(EditPlan, ApproveEdit, RefuseEdit, RetryPlan, PausePlan, ResumePlan, CancelPlan),
        *(ListCycles, ClaimCycle, ReleaseCycle, AnswerCycle, ExplainTask),
    )
}


def read_command(data: Mapping[str, Any]) -> Command[Any]:
    """The command in a message. Raises PlanError for one that this version does not know."""
    kind, batch = _COMMANDS.get(data["command"]), data.get("batch")
    if kind is None:
        raise PlanError(f"it does not know the command {data['command']!r}: its version differs")
    return decode(kind, data if batch is None else {**data, "batch": EditBatch.from_json(batch)})


# -- failures ----------------------------------------------------------------------------------------------------------


class Failure(Record, omit_defaults=True):
    """Why a command was not done: the class and the message of the error, with what some of them have beside it."""

    kind: str
    message: str
    violations: tuple[Violation, ...] = ()
    approval: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, error: Exception, device: str | None) -> Failure:
        """``device`` is the process that could not do it."""
        kind = type(error).__name__
        if isinstance(error, EditWaits):
            return cls(kind, "", approval=error.approval.to_json())
        if isinstance(error, EditRejected):
            return cls(kind, "", error.violations)
        if kind in _ERRORS or device is None:
            return cls(kind, str(error))
        return cls("PlanError", f"{device!r} could not do it: {error}")

    def error(self) -> AsterismError:
        """The error, as the one who waits for the answer has to raise it."""
        if self.approval is not None:
            return EditWaits(WaitingEdit.from_json(self.approval))
        if self.kind == EditRejected.__name__:
            return EditRejected(self.violations)
        return _ERRORS.get(self.kind, PlanError)(self.message)


_ERRORS: dict[str, type[AsterismError]] = {
    kind.__name__: kind for kind in (AlreadyRunning, ApprovalForbidden, ApprovalGone, CycleClaimed, CycleGone)
}
