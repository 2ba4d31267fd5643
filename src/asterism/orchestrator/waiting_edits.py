"""Waiting edits of a plan that runs here: which batches wait for a person, and which tasks they hold.

``submit`` is the way of every edit of an editor or a person into the plan. An edit of an editor that is outside its
scope is rejected (``core/plan/edit_rules.py``). An edit that a rule names, or whose editor
may have read untrusted data (``core/plan/taint.py``), waits. All others are applied.

A task with ``approval`` waits in the same way for its start (``ask``): it is a waiting edit that changes nothing. What
a person decides about it is a step of the plan, ``Graph.decide``, whether a process runs the plan or not.

A held task that is ready waits when its turn comes (waits.py), and is queued again when no waiting edit holds it. The
plan does not end while an edit waits. After its time the edit is refused, so it never stops the plan for good.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn

from asterism.core.errors import Violation
from asterism.core.plan.apply import Applied
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edit_rules import (
    ApprovalRule,
    EditScope,
    KnownDevices,
    approval_reasons,
    device_violations,
    scope_violations,
)
from asterism.core.plan.edit_trial import Trial, touched_tasks, trial
from asterism.core.plan.edits import (
    APPROVED,
    EXPIRED,
    REFUSED,
    WAITING,
    ApprovalGone,
    EditBatch,
    EditWaits,
    WaitingEdit,
)
from asterism.core.plan.group_elements import needs_person
from asterism.core.plan.node import Node
from asterism.core.plan.plan_options import APPROVAL_TIMEOUT
from asterism.core.plan.status import ENDED_STATES
from asterism.core.plan.taint import approval_violations, mark_violations, taint_reasons, taint_violations
from asterism.core.plan.task_approval import approvers
from asterism.core.record import replace

Save = Callable[[WaitingEdit], None]
"""Called with each edit that begins to wait, or was decided, in the step that records it."""


class WaitingEdits:
    """``rules`` and ``scopes`` are those of the plan, ``timeout`` is how long an edit waits, ``escalation``
    after how long people are told again. ``announce`` publishes an event, ``decided`` is called after each decision,
    ``alarm`` makes the timer (see Waits). ``devices`` are those that an edit may name; None for any."""

    def __init__(
        self,
        plan: Constellation,
        now: Callable[[], float],
        *,
        rules: Sequence[ApprovalRule] = (),
        timeout: float = APPROVAL_TIMEOUT,
        scopes: Sequence[EditScope] = (),
        escalation: float | None = None,
        devices: Callable[[], KnownDevices | None] = lambda: None,
        announce: Callable[[str, WaitingEdit], None] = lambda kind, edit: None,
        decided: Callable[[], None] = lambda: None,
        alarm: Callable[[Callable[[], None]], Callable[[float], None]] = lambda due: lambda at: None,
    ) -> None:
        self._devices = devices
        self._plan, self.rules, self.timeout, self.scopes = plan, tuple(rules), timeout, tuple(scopes)
        self.escalation = escalation
        self._now, self._announce, self._decided, self._set_alarm = now, announce, decided, alarm(self._expire)
        self.save: Save = lambda edit: None
        self.waiting: dict[int, WaitingEdit] = {}
        self.refused: list[WaitingEdit] = []
        """The answers of editors that were refused, or that nobody approved in time; oldest first."""

        self.decided: dict[int, str] = {}
        """What was decided about the other edits, in words."""

        self._held: Counter[str] = Counter()
        self._newest = 0

    def restore(self, edits: Iterable[WaitingEdit]) -> None:
        """Continue with the edits of an earlier owner, decided ones among them. Their time goes on."""
        for edit in edits:
            self._newest = max(self._newest, edit.id)
            if edit.state == WAITING:
                self._add(edit)
                continue
            self.decided[edit.id] = _decision(edit)
            if edit.state in (REFUSED, EXPIRED) and edit.cycle is not None:
                self.refused.append(edit)
        self._set_timer()

    def submit(
        self, batch: EditBatch, cycle: int | None = None, editor: str | None = None, groups: Iterable[str] = ()
    ) -> Applied:
        """Apply a batch, or let it wait. ``editor`` is the name of the editor that it comes from; None for a person,
        who has no scope: its author, with these ``groups``. If the batch names another editor, it is judged by both
        names, and kept with the first. Raises EditRejected, and EditWaits."""
        now, plan = self._now(), self._plan
        self._check_devices(batch)
        if not self._limits(editor):
            return plan.apply(_from(batch, editor), now)
        tried = trial(plan, batch, now)
        batch, reasons = self._judged(batch, editor, tried, groups)
        batch = _from(batch, editor)
        if not reasons:
            return plan.apply(batch, now)
        return self._wait(batch, cycle, reasons, tried, now)

    def wait_reasons(self, batch: EditBatch, editor: str | None = None, groups: Iterable[str] = ()) -> tuple[str, ...]:
        """Why ``submit`` would let a batch wait; empty if it would not. Changes nothing. Raises EditRejected if the
        batch names an unknown device, is outside the scope of its editor, or cannot wait."""
        self._check_devices(batch)
        if not self._limits(editor):
            return ()
        return self._judged(batch, editor, trial(self._plan, batch, self._now()), groups)[1]

    def check_retry(self, batch: EditBatch, editor: str | None = None, groups: Iterable[str] = ()) -> None:
        """Raise EditRejected if a batch that comes with a retry is outside the scope of its editor, or would wait: the
        retry would begin without it."""
        reasons = self.wait_reasons(batch, editor, groups)
        if reasons:
            problem = f"it needs approval ({'; '.join(reasons)}): retry the plan without edits, and then edit it"
            self._plan.reject(batch, [Violation(None, "approval", problem)])

    def _check_devices(self, batch: EditBatch) -> None:
        """Raise EditRejected if a batch names a device that there is not, and that cannot join."""
        known = self._devices()
        unknown = [] if known is None else device_violations(batch, self._plan, known)
        if unknown:
            self._plan.reject(batch, [*trial(self._plan, batch, self._now()).violations, *unknown])

    def _limits(self, editor: str | None) -> bool:
        """Whether there is anything to judge an edit by."""
        plan = self._plan
        of_editor = editor is not None and (self.scopes or plan.untrusted or plan.tainted)
        return bool(self.rules or of_editor or any(needs_person(node.task) for node in plan.nodes.values()))

    def _judged(
        self, batch: EditBatch, editor: str | None, tried: Trial, groups: Iterable[str]
    ) -> tuple[EditBatch, tuple[str, ...]]:
        """The batch in the name of its editor, and why it waits. Raises EditRejected."""
        plan = self._plan
        if editor is not None:
            for name in dict.fromkeys((editor, batch.editor or editor)):
                self.check_editor(batch, name, tried)
            batch = replace(batch, author=editor)  # whatever name it signs with
        else:
            self._check_person(batch, batch.author, groups, tried)
        if tried.violations:  # apply rejects it: a person is not asked about an edit that cannot be applied
            return batch, ()
        reasons = approval_reasons(self.rules, batch, plan, tried, None if editor is None else batch.editor or editor)
        if editor is not None:
            reasons += taint_reasons(plan, batch, tried)
        if reasons and plan.state in ENDED_STATES:  # nobody runs it: the edit would neither expire nor hold anything
            problem = f"plan {plan.id!r} has ended ({plan.state}), and the edit needs approval ({'; '.join(reasons)})"
            plan.reject(batch, [Violation(None, "ended", f"{problem}; retry the plan, and then edit it")])
        return batch, reasons

    def check_editor(self, batch: EditBatch, editor: str, tried: Trial | None = None) -> None:
        """Raise EditRejected if a batch is outside the scope of its editor."""
        tried = trial(self._plan, batch, self._now()) if tried is None else tried
        outside = [
            *scope_violations(self.scopes, editor, batch, tried, self._plan),
            *mark_violations(tried),
            *taint_violations(batch),
        ]
        if outside:
            self._plan.reject(batch, [*tried.violations, *outside])

    def _check_person(self, batch: EditBatch, who: str, groups: Iterable[str], tried: Trial) -> None:
        """Raise EditRejected if a batch takes an approval away about which a person may not decide."""
        outside = approval_violations(tried, who, [*groups])
        if outside:
            self._plan.reject(batch, [*tried.violations, *outside])

    def _wait(
        self, batch: EditBatch, cycle: int | None, reasons: tuple[str, ...], tried: Trial, now: float
    ) -> NoReturn:
        if batch.base_version is None:  # so that later edits of the same tasks make it stale
            batch = replace(batch, base_version=self._plan.version)
        tasks = touched_tasks(batch, self._plan, tried)
        edit = WaitingEdit(self._newest + 1, batch, now, now + self.timeout, reasons, tasks, cycle)
        self._begin(edit, batch.description)
        raise EditWaits(edit)

    def ask(self, node: Node) -> None:
        """Let a person decide whether a waiting task may start, unless somebody is asked already."""
        if any(edit.task == node.id for edit in self.waiting.values()):
            return
        approval, now = node.task.approval or {}, self._now()
        expires_at = now + approval.get("timeout", APPROVAL_TIMEOUT)
        reason = f"task {node.id!r} waits {node.task.wait_text}"
        batch, by = EditBatch((), base_version=self._plan.version), approvers(approval)
        edit = WaitingEdit(self._newest + 1, batch, now, expires_at, (reason,), (node.id,), task=node.id, by=tuple(by))
        self._begin(edit, reason)

    def _begin(self, edit: WaitingEdit, why: str) -> None:
        self._newest = edit.id
        self._add(edit)
        self._record("waits", edit, why)
        self._announce("edit_waiting", edit)
        self._set_timer()

    def edited(self) -> None:
        """An edit of the plan, now or while nobody ran it: tasks that it has changed or removed ask again."""
        for edit in [edit for edit in self.waiting.values() if edit.task is not None and self._asking(edit) is None]:
            why = "an edit changed the task"
            self._decide(edit.decided(EXPIRED, "", self._now(), why), "expired", why)

    def _asking(self, edit: WaitingEdit) -> Node | None:
        """The task that asks for its start; None if it does not any more."""
        node = self._plan.nodes.get(edit.task or "")
        return node if node is not None and node.awaits and node.needs_approval else None

    def get(self, number: int) -> WaitingEdit:
        """Raises ApprovalGone."""
        edit = self.waiting.get(number)
        if edit is None or edit.expires_at <= self._now() or (edit.task is not None and self._asking(edit) is None):
            why = self.decided.get(number, "it was approved, refused, its time was up, or it never existed")
            raise ApprovalGone(f"nothing waits for approval {number}: {why}")
        return edit

    def approve(
        self, number: int, who: str, batch: EditBatch | None = None, reason: str = "", groups: Iterable[str] = ()
    ) -> Applied:
        """Apply a waiting edit, or ``batch`` in its place, with all checks; or let a task start. Raises ApprovalGone,
        ApprovalForbidden; and EditRejected, with the edit still waiting: it may be changed or refused."""
        edit, now = self.get(number), self._now()
        edit.check_approver(who, groups)
        if batch is not None:
            if edit.task is not None:
                problem = f"approval {number} is for the start of task {edit.task!r}; to change the task, edit the plan"
                self._plan.reject(batch, [Violation(None, "approval", problem)])
            self._check_devices(batch)
            self._check_person(batch, who, groups, trial(self._plan, batch, now))
        applied = self._plan.apply(edit.batch if batch is None else replace(batch, editor=None), now)
        why = ": ".join([*(["changed"] if batch is not None else []), *([reason] if reason else [])])
        decided = edit.decided(APPROVED, who, now, why, applied.version)
        if batch is not None:
            decided = replace(decided, batch=batch)
        changed = ", changed" if batch is not None else ""
        self._decide(decided, "approved", f"by {who}{changed}" + (f": {reason}" if reason else ""))
        return applied

    def refuse(self, number: int, who: str, reason: str = "", groups: Iterable[str] = ()) -> WaitingEdit:
        """Drop a waiting edit, or let a task not start. Raises ApprovalGone and ApprovalForbidden."""
        edit = self.get(number)
        edit.check_approver(who, groups)
        decided = edit.decided(REFUSED, who, self._now(), reason)
        self._decide(decided, "refused", f"by {who}" + (f": {reason}" if reason else ""))
        self._announce_refusal(decided)
        return decided

    def holds(self, node: Node) -> bool:
        """Whether a waiting edit holds a task."""
        return self._held[node.id] > 0

    def holder_of(self, task: str) -> WaitingEdit | None:
        """The first waiting edit that holds a task."""
        return next((edit for edit in self.waiting.values() if task in edit.tasks), None)

    def cancel(self) -> None:
        """The plan is being cancelled: no edit waits any more."""
        for edit in tuple(self.waiting.values()):
            why = "the plan was cancelled"
            self._decide(edit.decided(EXPIRED, "", self._now(), why), "expired", why)

    def _add(self, edit: WaitingEdit) -> None:
        self.waiting[edit.id] = edit
        self._held.update(edit.tasks)

    def _decide(self, edit: WaitingEdit, what: str, why: str) -> None:
        del self.waiting[edit.id]
        self.decided[edit.id] = _decision(edit)
        self._held.subtract(edit.tasks)
        self._record(what, edit, why)
        if edit.task is not None and (node := self._asking(edit)) is not None:
            decision = f"refused {why}" if edit.state == REFUSED else f"not approved: {why}"
            self._plan.decide(node, self._now(), APPROVED if edit.state == APPROVED else decision, why)
        self._set_timer()
        self._decided()

    def _record(self, what: str, edit: WaitingEdit, why: str) -> None:
        """In the story and, in the same commit, wherever the edits are kept."""
        subject, author = ("edit", edit.batch.author or "somebody") if edit.task is None else ("start", "")
        by = f"by {author}: " if author and edit.state == WAITING else ""
        facts = {"approval": edit.id, "author": author, "reason": why}
        self._plan.note(self._now(), f"{subject} {what}", None, f"approval {edit.id}, {by}{why}", facts)
        self.save(edit)

    def _set_timer(self) -> None:
        times = (min(edit.expires_at, self._escalates_at(edit)) for edit in self.waiting.values())
        self._set_alarm(min(times, default=float("inf")))

    def _expire(self) -> None:
        now = self._now()
        for edit in [waiting for waiting in self.waiting.values() if waiting.expires_at <= now]:
            decided = edit.decided(EXPIRED, "", now, "nobody approved it in time")
            self._decide(decided, "expired", "nobody approved it in time")
            self._announce_refusal(decided)
        for edit in [waiting for waiting in self.waiting.values() if self._escalates_at(waiting) <= now]:
            escalated = self.waiting[edit.id] = replace(edit, escalated_at=now)
            self._record("escalated", escalated, "nobody has decided yet")
            self._announce("edit_escalated", escalated)
        self._set_timer()

    def _escalates_at(self, edit: WaitingEdit) -> float:
        if self.escalation is None or edit.escalated_at is not None:
            return float("inf")
        return edit.at + self.escalation

    def _announce_refusal(self, edit: WaitingEdit) -> None:
        if edit.cycle is not None:
            self.refused.append(edit)
        self._announce("edit_refused", edit)


def _decision(edit: WaitingEdit) -> str:
    if edit.state == EXPIRED:
        return f"it has expired: {edit.why}"
    return f"it was {edit.state} already by {edit.decided_by}"


def _from(batch: EditBatch, editor: str | None) -> EditBatch:
    """A batch as one of this editor, whatever it says."""
    return batch if batch.editor == editor else replace(batch, editor=editor)
