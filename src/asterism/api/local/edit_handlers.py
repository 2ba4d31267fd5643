"""Editors of plans and the people who watch them: what the operations of ``api/plan_operations`` do.

A cycle is answered by a caller who may edit the plan, in its own name. An edit that waits for a person is decided by a
caller who may operate: a credential for edits alone does not approve its own.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from asterism.api import documents
from asterism.api import plan_operations as declared
from asterism.api.local import plan_documents
from asterism.api.plan_operations import RetryPlan
from asterism.api.system import LocalSystem
from asterism.base.http_limits import RequestRefused
from asterism.core.errors import AsterismError, InvalidTask
from asterism.core.json_values import mappings_in
from asterism.core.plan.awaited import WaitFailed, awaited_plan
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edit_rules import ALL, ApprovalRule, EditScope, fits
from asterism.core.plan.edits import (
    WAITING,
    AddTask,
    CancelTask,
    Edit,
    EditBatch,
    UpdateTask,
    WaitingEdit,
    edit_from_json,
    split_dependencies,
)
from asterism.core.plan.task import LONGEST_DESCRIPTION
from asterism.core.record import Struct, decode, replace
from asterism.core.run.run import Run
from asterism.core.run.run_label import PLAN_PREFIX
from asterism.durable import approval_store, plan_actor
from asterism.durable.approval_store import rules_of, scopes_of
from asterism.durable.editor_budget import (
    Budget,
    InvalidBudget,
    count_refusals,
    go_on_without_editor,
    raise_budget,
    read_account,
    tasks_paid,
)
from asterism.durable.journal_store import Head, load, read_head
from asterism.durable.plan_actor import FEW_EDITS
from asterism.durable.stored_plans import read_plan
from asterism.fleet.fleet import Fleet
from asterism.store.store_errors import StoreUnavailable


class InvalidEdits(AsterismError):
    """Edits that cannot be read. ``reasons`` has the number of each, and why."""

    def __init__(self, reasons: Mapping[int, str]) -> None:
        self.reasons = reasons
        super().__init__(f"{len(reasons)} of the edits cannot be read, and nothing has changed")


def batch_of_edits(edits: Iterable[Edit | Mapping[str, Any]], **fields: Any) -> EditBatch:
    """A batch with the other ``fields``. Raises InvalidEdits with every edit that cannot be read."""
    parsed, edges, reasons = list[Edit](), list[Edit](), dict[int, str]()
    for number, data in enumerate(edits):
        try:
            alone, dependencies = split_dependencies(data)
            edit = edit_from_json(dict(alone)) if isinstance(alone, Mapping) else alone
            _check_description(edit)
            parsed.append(edit)
            edges += dependencies
        except (InvalidTask, TypeError, ValueError) as error:
            reasons[number] = str(error)[:2000]
    if reasons:
        raise InvalidEdits(reasons)
    return EditBatch((*parsed, *edges), **fields)


def _check_description(edit: Edit) -> None:
    """Raises InvalidTask."""
    if isinstance(edit, AddTask):
        text: Any = edit.task.description
    else:
        text = edit.changes.get("description") if isinstance(edit, UpdateTask) else None
    if isinstance(text, str) and len(text) > LONGEST_DESCRIPTION:
        raise InvalidTask(
            f"{edit}: the description has {len(text):,} characters, and the limit is {LONGEST_DESCRIPTION:,}: "
            "shorten it, or keep the text in a file and name the file"
        )


async def read_batch(edits: Sequence[Edit | Mapping[str, Any]], **fields: Any) -> EditBatch:
    """``batch_of_edits``, in a thread if there are many."""
    read = partial(batch_of_edits, edits, **fields)
    return read() if len(edits) <= FEW_EDITS else await asyncio.to_thread(read)


async def check_size(system: LocalSystem, name: str, batch: EditBatch) -> None:
    """Raise RequestRefused if a batch makes a plan too large for a server."""
    added = sum(edit.op == "add_task" for edit in batch.edits)
    if added and not system.own:
        await system.edited_plans.add(system.fleet, name, added)


async def checked_batch(
    system: LocalSystem,
    name: str,
    edits: Sequence[Edit | Mapping[str, Any]],
    reason: str,
    base_version: int | None = None,
    author: str | None = None,
) -> EditBatch:
    """A batch in the name of the caller, or of ``author``. Raises InvalidEdits, and RequestRefused if it makes the plan
    too large, or if the caller may not sign with that name."""
    signed = signature(system, author)
    batch = await read_batch(edits, author=signed, reason=reason, base_version=base_version)
    check_waits(system, batch)
    await check_size(system, name, batch)
    return batch


def check_waits(system: LocalSystem, batch: EditBatch) -> None:
    """Raise ScopeMissing if a task of a batch would wait for a plan that the caller may not observe, or for an event
    and the caller may not observe everything: such a task returns what it has waited for."""
    if system.caller is None:
        return
    for wait in _waits(batch):
        name = "event" not in wait and _known_plan(wait)
        system.caller.check("observe plan {plan}" if name else "observe", {"plan": name})


def _waits(batch: EditBatch) -> Iterator[Mapping[str, Any]]:
    """What tasks wait for that a batch adds or changes, elements of groups among them, except for times."""
    for edit in batch.edits:
        if isinstance(edit, AddTask):
            fields: Mapping[str, Any] = {"wait_for": edit.task.wait_for, "foreach": edit.task.foreach}
        else:
            fields = edit.changes if isinstance(edit, UpdateTask) else {}
        for part in mappings_in(fields):
            wait = part.get("wait_for")
            if isinstance(wait, Mapping) and not wait.keys().isdisjoint(("plan", "event")):
                yield wait


def _known_plan(wait: Mapping[str, Any]) -> str | None:
    """The name of the plan that a task waits for; None if it is known only when the task begins to wait."""
    try:
        return None if "{" in f"{wait['plan']}{wait.get('tick')}" else awaited_plan(wait)
    except WaitFailed:
        return None


def signature(system: LocalSystem, author: str | None) -> str:
    """The name under which a request is kept. Raises RequestRefused."""
    if author is None or author == system.fleet.by:
        return system.fleet.by
    if not system.own:
        raise RequestRefused(403, f"the author is {system.fleet.by!r}, whom the token belongs to: give no other name")
    return author


# -- edits -------------------------------------------------------------------------------------------------------------


async def edit_plan(system: LocalSystem, request: declared.EditPlan) -> documents.EditOutcome:
    name, reason = request.plan, request.reason
    batch = await checked_batch(system, name, request.edits, reason, request.base_version, request.author)
    if request.editor is None:
        return await _edit(system, request, batch, system.editor)
    editor = system.editor or request.editor  # a model can only narrow what its caller may do
    batch = replace(batch, editor=request.editor)  # judged by both names
    async with tasks_paid(system.fleet, name, batch, dry_run=request.dry_run):
        return await _edit(system, request, batch, editor)


async def propose_edit(system: LocalSystem, request: declared.ProposeEdit) -> documents.EditProposal:
    if system.proposer is None:
        words = "there is no model here that answers requests in words. Start the server with --model NAME"
        raise RequestRefused(409, f"{words}, or use your own: asterism plan ask {request.plan}")
    return await system.proposer.propose(system, request)


async def undo_edit(system: LocalSystem, request: declared.UndoEdit) -> documents.EditOutcome:
    batch = await plan_actor.undo_batch(system.fleet, request.plan, request.reason)
    check_waits(system, batch)
    return await _edit(system, request, batch, system.editor)


async def _edit(
    system: LocalSystem, request: declared.EditPlan | declared.UndoEdit, batch: EditBatch, editor: str | None
) -> documents.EditOutcome:
    answer = await plan_actor.edit_plan(
        system.fleet,
        request.plan,
        batch,
        dry_run=request.dry_run,
        timeout=request.timeout,
        editor=editor,
        groups=system.groups,
        entry=system.entry,
    )
    if answer.reopened:
        system.submitted()
    return plan_documents.edit_outcome(request.plan, answer, request.dry_run)


# -- edit cycles -------------------------------------------------------------------------------------------------------


async def list_cycles(system: LocalSystem, request: declared.OnePlan) -> documents.Cycles:
    cycles = await plan_actor.list_cycles(system.fleet, request.plan)
    items = [decode(documents.CycleDetails, cycle.to_json()) for cycle in cycles.cycles]
    return documents.Cycles(items=items, answered_by=cycles.by, now=system.fleet.store.clock())


async def claim_cycle(system: LocalSystem, request: declared.ClaimCycle) -> documents.CycleDetails:
    who = signature(system, request.author)
    cycle = await plan_actor.claim_cycle(
        system.fleet, request.plan, request.cycle, who=who, lease=request.lease, timeout=request.timeout
    )
    return decode(documents.CycleDetails, cycle.to_json())


async def answer_cycle(system: LocalSystem, request: declared.AnswerCycle) -> documents.EditOutcome:
    name, author = request.plan, request.author
    batch = await checked_batch(system, name, request.edits, request.reason, request.base_version, author)
    answer = await plan_actor.answer_cycle(
        system.fleet, name, request.cycle, batch, who=batch.author, timeout=request.timeout
    )
    return plan_documents.edit_outcome(request.plan, answer, dry_run=False)


async def release_cycle(system: LocalSystem, request: declared.ReleaseCycle) -> documents.CycleDetails:
    if system.editor is not None and (limits := await _limits_of(system, request.plan)):
        words = f"a review of plan {request.plan!r} is not ended by an editor: the plan has {limits}"
        action = f"asterism plan release-cycle {request.plan} {request.cycle}"
        raise RequestRefused(403, f"{words}. A person does with: {action}")
    who = signature(system, request.author)
    cycle = await plan_actor.release_cycle(
        system.fleet, request.plan, request.cycle, request.reason, who=who, timeout=request.timeout
    )
    return decode(documents.CycleDetails, cycle.to_json())


# -- approvals ---------------------------------------------------------------------------------------------------------


async def list_approvals(system: LocalSystem, request: declared.ListApprovals) -> documents.Page[documents.WaitingEdit]:
    edits = await approval_store.list_approvals(system.fleet.store, request.plan)
    chosen = [edit for edit in edits if request.all or edit.state == WAITING]
    items = await shown_approvals(system.fleet, request.plan, chosen)
    return documents.Page(items=items, now=system.fleet.store.clock())


async def shown_approvals(fleet: Fleet, name: str, edits: list[WaitingEdit]) -> list[documents.WaitingEdit]:
    """Edits that wait, with secrets masked."""
    return await plan_documents.approval_documents(fleet, await load(fleet.store, name), edits) if edits else []


async def approve_edit(system: LocalSystem, request: declared.ApproveEdit) -> documents.EditOutcome:
    name = request.plan
    batch = None
    if request.edits is not None:
        if not request.edits:
            raise RequestRefused(422, "edits: there are none; leave them out to apply the edit as it is")
        batch = await checked_batch(system, name, request.edits, request.reason, author=request.author)
    who = signature(system, request.author)
    answer = await plan_actor.approve_edit(
        system.fleet,
        name,
        request.approval,
        batch,
        request.reason,
        who=who,
        groups=system.groups,
        timeout=request.timeout,
    )
    return plan_documents.edit_outcome(name, answer, dry_run=False)


async def refuse_edit(system: LocalSystem, request: declared.RefuseEdit) -> documents.WaitingEdit:
    who = signature(system, request.author)
    decided = await plan_actor.refuse_edit(
        system.fleet,
        request.plan,
        request.approval,
        request.reason,
        who=who,
        groups=system.groups,
        timeout=request.timeout,
    )
    with contextlib.suppress(StoreUnavailable):  # then the next edit or request does
        await count_refusals(system.fleet.store, request.plan)
    [document] = await shown_approvals(system.fleet, request.plan, [decided])
    return document


# -- budgets -----------------------------------------------------------------------------------------------------------


async def show_budget(system: LocalSystem, request: declared.OnePlan) -> documents.EditorBudget:
    await read_head(system.fleet.store, request.plan)
    account = await read_account(system.fleet.store, request.plan)
    if account is None:
        raise RequestRefused(404, f"plan {request.plan!r} has no budget: no model has been asked to edit it")
    return plan_documents.budget_document(account)


async def decide_budget(system: LocalSystem, request: declared.DecideBudget) -> documents.EditorBudget:
    await read_head(system.fleet.store, request.plan)
    if (request.limits is None) == (not request.without_editor):
        raise RequestRefused(422, "give either limits or without_editor")
    if request.limits is None:
        return plan_documents.budget_document(await go_on_without_editor(system.fleet, request.plan))
    try:
        limits = Budget.parse(request.limits)
    except InvalidBudget as error:
        raise RequestRefused(422, str(error)) from None
    return plan_documents.budget_document(await raise_budget(system.fleet, request.plan, limits))


# -- the plans that are edited through the server ----------------------------------------------------------------------


MAX_TASKS = 20_000
"""How many tasks a submitted plan, or an edited one, may have."""

READ_AGAIN = 60.0
"""After how many seconds the size of a plan is read again."""

MOST_PLANS = 1000
"""Of how many plans the size is remembered."""


def check_tasks(tasks: int) -> None:
    """Raise RequestRefused if a plan has too many tasks."""
    if tasks > MAX_TASKS:
        raise RequestRefused(413, f"the plan has {tasks:,} tasks; the limit is {MAX_TASKS:,}")


class _Size(Struct):
    at: float
    tasks: int


async def _tasks(fleet: Fleet, name: str) -> int:
    """How many tasks a plan has. Raises UnknownConstellation."""
    ownership = fleet.running_plans.get(name)
    if ownership is not None and ownership.running is not None:
        return len(ownership.running.plan)
    return len((await read_plan(fleet, name)).record.plan)


class EditedPlans:
    """What a server remembers of plans that are edited."""

    def __init__(self) -> None:
        self._sizes: dict[str, _Size] = {}

    async def add(self, fleet: Fleet, name: str, added: int) -> None:
        """Count tasks that an edit adds. Raises RequestRefused if the plan gets too large, and UnknownConstellation."""
        now, known = fleet.clock.time(), self._sizes.pop(name, None)
        if known is None or now - known.at > READ_AGAIN or known.tasks + added > MAX_TASKS:
            known = _Size(now, await _tasks(fleet, name))
        if known.tasks + added > MAX_TASKS:
            raise RequestRefused(413, f"the plan would have more than {MAX_TASKS:,} tasks")
        self._sizes[name] = _Size(known.at, known.tasks + added)
        while len(self._sizes) > MOST_PLANS:
            del self._sizes[next(iter(self._sizes))]


# -- what an editor may not do -----------------------------------------------------------------------------------------


CANCEL = CancelTask.op


def check_cancel_plan(editor: str | None, head: Head) -> None:
    """Raise RequestRefused if an editor may not cancel a whole plan. Without an editor, a person does."""
    obstacle = None if editor is None else cancel_obstacle(scopes_of(head), rules_of(head)[0], editor)
    if obstacle is not None:
        raise RequestRefused(403, f"{obstacle}. A person cancels it with: asterism plan cancel {head.name}")


def cancel_obstacle(scopes: Sequence[EditScope], rules: Sequence[ApprovalRule], editor: str) -> str | None:
    """Why an editor may not cancel a whole plan; None if it may."""
    own = [scope for scope in scopes if scope.is_for(editor)]
    if scopes and not any(ALL in scope.tasks and scope.allows_edit(CANCEL) for scope in own):
        return f"no scope of the editor {editor!r} allows {CANCEL} for every task"
    waits = next((rule for rule in rules if _may_match(rule, editor)), None)
    return None if waits is None else f"a person decides about it by the rule {str(waits)!r}"


def _may_match(rule: ApprovalRule, editor: str) -> bool:
    """Whether a rule may match a cancellation by an editor: the tasks that it names may be added at any time, and a
    cost is one of tasks that are added or changed."""
    cancels = rule.cost is None and (not rule.edits or CANCEL in rule.edits)
    return cancels and (not rule.authors or fits(editor, rule.authors))


async def check_retry_plan(system: LocalSystem, request: RetryPlan) -> None:
    """Raise RequestRefused if an editor may not retry a plan."""
    if system.editor is None:
        return
    limits = await _limits_of(system, request.plan)
    if limits or request.edits:
        why = f"it has {limits}" if limits else "edits with a retry are for people"
        words = f"plan {request.plan!r} is not retried by an editor: {why}"
        raise RequestRefused(403, f"{words}. A person does with: asterism plan retry {request.plan}")


async def _limits_of(system: LocalSystem, name: str) -> str:
    """What of a plan limits its editors; empty if nothing does."""
    stored = (await read_plan(system.fleet, name)).record
    limits = {
        "scopes": bool(scopes_of(stored.head)),
        "rules for approvals": bool(rules_of(stored.head)[0]),
        "untrusted tasks": bool(stored.plan.untrusted),
    }
    return " and ".join(what for what, there in limits.items() if there)


def check_backfill(system: LocalSystem, *, only_missing: bool) -> None:
    """Raise RequestRefused if an editor may not begin a backfill: to run plans again is to retry them."""
    if system.editor is not None and not only_missing:
        words = "a backfill of an editor creates missing plans only (only_missing)"
        raise RequestRefused(403, f"{words}. A person runs failed plans again with: asterism schedule backfill")


def check_replaces_none(system: LocalSystem, plan: Constellation) -> None:
    """Raise RequestRefused if a plan of an editor would cancel others, whatever they allow their editors."""
    if system.editor is not None and plan.overlap is not None and plan.overlap[0] == "replace":
        words = "a plan of an editor cancels no other plan: `overlap: replace` is for people"
        raise RequestRefused(403, f"{words}. Use `overlap: queue` or `skip`, or ask a person to submit it")


def check_cancel_run(run: Run) -> None:
    """Raise RequestRefused if an editor may not cancel a run."""
    if run.workflow.startswith(PLAN_PREFIX):
        plan = run.workflow.removeprefix(PLAN_PREFIX)
        raise RequestRefused(403, f"run {run.id} is a task of plan {plan!r}: cancel it with edit_plan and {CANCEL}")
