"""Plans as documents of the API: the view of a plan, of one task, and what became of requests. Secrets are masked."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import Any

from asterism.api import documents
from asterism.api.documents import document_of
from asterism.api.local.plan_list_handlers import plan_summary
from asterism.api.plan_operations import ListTasks
from asterism.base.text import clean
from asterism.core.errors import UnknownTask, error_text
from asterism.core.history import PlanEntry
from asterism.core.json_values import JsonObject, plain_json
from asterism.core.plan.assignment_lock import EditCycle
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edit_rules import batch_cost
from asterism.core.plan.edit_trial import removed_tasks, trial
from asterism.core.plan.editor_cost import EditorCost
from asterism.core.plan.edits import (
    WAITING,
    AddTask,
    CancelTask,
    Edit,
    EditBatch,
    UpdateDependency,
    UpdateTask,
    WaitingEdit,
    addition_of,
)
from asterism.core.plan.graph import Graph
from asterism.core.plan.group_elements import UNFOLDED, folded_groups, status_of_group, work_of
from asterism.core.plan.journal import lock_to_json
from asterism.core.plan.node import RUNNING as RUNNING_PHASE
from asterism.core.plan.node import Node, is_process
from asterism.core.plan.status import FAILED, PENDING, RUNNING, TERMINAL
from asterism.core.plan.task import Task, needs_text
from asterism.core.plan.work_patterns import effects_of
from asterism.core.record import decode, replace
from asterism.durable.approval_store import escalation_of
from asterism.durable.commands import EditAnswer
from asterism.durable.editor_budget import Account, Spent
from asterism.durable.journal_store import StoredConstellation
from asterism.durable.plan_history import ClosedCycle
from asterism.durable.stored_plans import StoredPlan, TaskExplanation, TaskRun
from asterism.fleet.fleet import Fleet
from asterism.orchestrator.plan_mask import PlanMask, has_result


def view(
    stored: StoredPlan,
    *,
    now: float,
    tasks: bool = True,
    results: bool = False,
    opened: Collection[str] | None = None,
    approvals: Sequence[documents.WaitingEdit] = (),
) -> documents.Plan:
    """A plan as it is now; without ``tasks`` its lists of tasks and dependencies are empty, with ``results`` its tasks
    have theirs, with ``opened`` large groups are one task. ``approvals`` are the documents of the edits that wait for a
    person."""
    plan, head = stored.record.plan, stored.record.head
    return document_of(
        documents.Plan,
        plan_summary(stored.listed),
        **(structure(plan, stored, results=results, opened=opened) if tasks else {"tasks": [], "dependencies": []}),
        now=now,
        ended=head.ended,
        position=str(stored.record.number),
        cancel_request=stored.record.head.cancel_reason,
        params=PlanMask(plan).shown(dict(head.params)),
        tick=dict(plan.tick),
        orphaned=list(stored.orphaned),
        cycles=[cycle_document(cycle) for cycle in stored.record.lock.cycles.values()],
        approvals=list(approvals),
        budget=None if stored.account is None else budget_document(stored.account),
        ahead=stored.ahead,
    )


def plan_copy(stored: StoredPlan, now: float, results: bool) -> documents.PlanCopy:
    """A plan as Asterism writes it, with secrets masked; the results of its tasks only with ``results``."""
    plan, lock = stored.record.plan, stored.record.lock
    mask = PlanMask(plan)
    values = mask.results() if results else {}
    phases = {node: stored.phase(node) for node in plan.nodes.values() if node.status is RUNNING}
    began = {node: (stored.times(node), stored.runs.get(node.id)) for node in phases if phases[node] == RUNNING_PHASE}
    return documents.PlanCopy(
        position=str(stored.record.number),
        now=now,
        paused=stored.paused,
        policy=lock.policy,
        plan=copied_plan(plan, mask, values),
        lock=lock_to_json(lock),
        closed_cycles=[cycle.to_json() for cycle in lock.history if cycle.closed_at is not None],
        executing={
            node.id: documents.ExecutedTask(device=(run or node).device or "", begun_at=times.begun or now)
            for node, (times, run) in began.items()
            if times is not None
        },
        queued=sum(phase != RUNNING_PHASE for phase in phases.values()),
    )


def copied_plan(plan: Constellation, mask: PlanMask, values: Mapping[str, Any]) -> JsonObject:
    """The JSON form of a plan, masked; ``values`` are the masked results."""
    copied = plan.to_json()
    for item in copied["tasks"]:
        item.pop("value", None)
    masked: JsonObject = mask.shown(copied)
    for item in masked["tasks"]:
        if item["task"]["id"] in values:
            item["value"] = plain_json(values[item["task"]["id"]], "a result")
    return masked


def structure(
    plan: Constellation,
    stored: StoredPlan | None = None,
    *,
    results: bool = False,
    opened: Collection[str] | None = None,
) -> JsonObject:
    """The tasks and the dependencies of a plan. ``stored`` says which device has a running task and since when; None
    for a plan of the past. With ``opened`` every other large group is one task."""
    mask, groups = PlanMask(plan), groups_of(plan)
    folded = UNFOLDED if opened is None else folded_groups(plan, opened)
    values = mask.results() if results else {}
    return {
        "tasks": [
            task_document(node, plan, mask, groups, stored, values, folded.counts(node.id, partial(_status, stored)))
            for node in folded.nodes(plan)
        ],
        "dependencies": [
            documents.PlanDependency(source=edge.source, target=edge.target, on=edge.on, when=edge.when)
            for edge in folded.dependencies(plan)
        ],
    }


def task_page(stored: StoredPlan, request: ListTasks) -> documents.Page[documents.PlanTask]:
    """The tasks of a plan that a request wants, in the order of the plan."""
    plan = stored.record.plan
    mask, groups, wanted = PlanMask(plan), groups_of(plan), request.search.lower()
    nodes = iter(plan.nodes.values())
    if request.after is not None:
        next(node for node in nodes if node.id == request.after)
    found = (
        node
        for node in nodes
        if request.group in (None, groups.get(node.id))
        and request.status in ("", status := _status(stored, node))
        and wanted in "\0".join((node.id, node.task.description, node.device or "", status)).lower()
    )
    items = [task_document(node, plan, mask, groups, stored) for node in islice(found, request.limit + 1)]
    following = items[request.limit - 1].id if len(items) > request.limit else None
    return documents.Page(items=items[: request.limit], next=following)


def _status(stored: StoredPlan | None, node: Node) -> str:
    """The status of a task with its phase."""
    return (stored and stored.phase(node)) or node.shown_status


def content(
    plan: Constellation, *, results: bool = False, opened: Collection[str] | None = None
) -> documents.PlanContent:
    """A plan that is in no store, or of the past."""
    parts = structure(plan, results=results, opened=opened)
    state = str(plan.state)
    return documents.PlanContent(name=plan.id, version=plan.version, state=state, counts=counts(plan), **parts)


def counts(plan: Constellation) -> dict[str, int]:
    return {str(status): count for status, count in plan.counts.items() if count}


def groups_of(plan: Constellation) -> dict[str, str]:
    """The group of each task that is an element of one."""
    return {
        element: node.id
        for node in plan.nodes.values()
        if node.task.foreach is not None
        for element in node.task.foreach.get("of", ())
    }


def task_document(
    node: Node,
    plan: Constellation,
    mask: PlanMask,
    groups: dict[str, str],
    stored: StoredPlan | None = None,
    results: Mapping[str, Any] = MappingProxyType({}),
    behind: Mapping[str, int] = MappingProxyType({}),
) -> documents.PlanTask:
    """``results`` are the masked results of tasks that are shown with it, ``behind`` counts those that it stands
    for."""
    run = None if stored is None else stored.runs.get(node.id)
    times = node.attempt_times if stored is None else stored.times(node)
    reason = error_text(node.error) or node.reason
    held = node.status is PENDING and node.held
    return document_of(
        documents.PlanTask,
        node,
        name=node.task.description or node.id,
        status=status_of_group(node.shown_status, behind),
        waits_for=mask.shown(node.task.wait_text) if node.awaits else None,
        reason=mask.shown(reason) if reason else None,
        device=node.device if run is None else run.device,
        phase=None if stored is None else stored.phase(node),
        attempt=None if times is None else decode(documents.AttemptTimes, times.to_json()),
        held_by=[parent for parent in node.parents if plan.nodes[parent].unsettled] if held else [],
        group=groups.get(node.id),
        estimate=node.task.estimate,
        result=plain_json(results.get(node.id), f"the result of task {node.id!r}"),
        behind=dict(behind),
    )


def task_details(
    stored: StoredPlan, task: str, runs: list[TaskRun], tracebacks: Mapping[int, str] = MappingProxyType({})
) -> documents.Task:
    """A task with its definition, result, executions and story. Raises UnknownTask."""
    plan = stored.record.plan
    node = plan.nodes.get(task)
    if node is None:
        raise UnknownTask(task)
    mask = PlanMask(plan)
    results = mask.results() if has_result(node) else {}
    return document_of(
        documents.Task,
        task_document(node, plan, mask, groups_of(plan), stored, results),
        definition=mask.shown(node.task.to_json()),
        executions=sorted(
            [execution_document(execution, mask) for execution in runs] + own_executions(plan.story(task), runs, mask),
            key=lambda execution: execution.created_at,
        ),
        story=story_documents(plan.story(task), mask, tracebacks),
    )


def execution_document(execution: TaskRun, mask: PlanMask) -> documents.Attempt:
    run = execution.run
    error = None if run.error is None else mask.shown(run.error)
    return document_of(documents.Attempt, run, run=run.id, status=run.reported_status, error=error)


def own_executions(story: Sequence[PlanEntry], runs: Sequence[TaskRun], mask: PlanMask) -> list[documents.Attempt]:
    """The executions of a task by the process of its plan, as far back as its story goes. What that has handed over to
    the fleet is a run."""
    executions: list[documents.Attempt] = []
    last: documents.Attempt | None = None
    for entry in story:
        what = entry.what.removesuffix(" provisionally")
        if what == "started" and is_process(entry.why):
            last = documents.Attempt(
                run=None,
                status="processing",
                device=entry.why,
                created_at=entry.at,
                assigned_at=entry.at,
                started_at=entry.at,
                ended_at=None,
                error=None,
            )
            executions.append(last)
        elif last is not None and what in (*TERMINAL, "attempt failed", "put back", "revoked"):
            status = what if what in TERMINAL else "failed" if what == "attempt failed" else "cancelled"
            error = mask.shown(entry.why) if entry.why and status != "completed" else None
            executions[-1], last = replace(last, status=status, ended_at=entry.at, error=error), None
    handed_over = [execution.run.created_at for execution in runs]
    return [
        execution
        for execution in executions
        if not any(execution.created_at <= at <= (execution.ended_at or at) for at in handed_over)
    ]


def story_documents(
    story: Sequence[PlanEntry], mask: PlanMask, tracebacks: Mapping[int, str] = MappingProxyType({})
) -> list[documents.StoryEntry]:
    """``tracebacks`` are those of functions that failed, by the place of the entry."""
    return [
        document_of(
            documents.StoryEntry,
            entry,
            why=mask.shown(entry.why),
            traceback=mask.shown(tracebacks[place]) if place in tracebacks else None,
        )
        for place, entry in enumerate(story)
    ]


def cycle_document(cycle: EditCycle) -> documents.Cycle:
    expires_at = cycle.expires_at if math.isfinite(cycle.expires_at) else None
    return document_of(documents.Cycle, cycle, expires_at=expires_at)


# -- editors -----------------------------------------------------------------------------------------------------------


def closed_cycles(cycles: Sequence[ClosedCycle], approvals: Sequence[WaitingEdit]) -> list[documents.ClosedCycle]:
    """The closed cycles of a plan. Of a cycle whose answer has waited for a person, ``approvals`` tell the version."""
    approved = {edit.cycle: edit.version for edit in approvals if edit.cycle is not None}
    return [
        document_of(
            documents.ClosedCycle,
            cycle,
            closed_at=cycle.closed_at or cycle.opened_at,
            version=approved.get(cycle.id) if version is None else version,
        )
        for cycle, version in cycles
    ]


def total_cost(cycles: Sequence[ClosedCycle]) -> EditorCost | None:
    """What the editors of a plan have cost in all closed cycles; None if they tell nothing."""
    total = sum((closed.cycle.cost for closed in cycles if closed.cycle.cost is not None), EditorCost())
    return total or None


def budget_document(account: Account) -> documents.EditorBudget:
    texts = {
        "budget_text": str(account.budget),
        "spent_text": account.spent_text,
        "calls_under_way": len(account.open),
        "reserved_text": str(sum(account.open.values(), Spent())) if account.open else "",
        "higher_limits": account.higher_limits() if account.held_since is not None else "",
        "held_until": account.held_until,
    }
    return decode(documents.EditorBudget, {**account.to_json(), **texts})


async def approval_documents(
    fleet: Fleet, record: StoredConstellation, edits: Sequence[WaitingEdit]
) -> list[documents.WaitingEdit]:
    """Edits that wait for a person, or waited, with secrets masked."""
    if not edits:
        return []
    settings, mask = await fleet.settings(), PlanMask(record.plan)
    told = {"command": settings.notify_command, "url": settings.notify_url}
    receivers = [name for name, receiver in told.items() if receiver is not None]
    return [
        decode(
            documents.WaitingEdit,
            mask.shown({**edit.to_json(), "changes": _changes(edit, record)} | _waiting_json(edit, record, receivers)),
        )
        for edit in edits
    ]


def _changes(edit: WaitingEdit, record: StoredConstellation) -> list[str]:
    """The work of an edit, or of a task that asks for its start; the old values, and the task, only while it waits."""
    if edit.task is not None:
        node = record.plan.nodes.get(edit.task) if edit.state == WAITING else None
        return [] if node is None else [clean(f"start task {edit.task!r}"), *_field_lines(node.task)]
    return list(change_lines(edit.batch.edits, record.plan if edit.state == WAITING else None))


def change_lines(edits: Sequence[Edit], plan: Graph | None = None) -> Iterator[str]:
    """All edits, with each field of a task that they add, the old and the new value of each field that they change, and
    the tasks that they remove with another. Without ``plan`` the old values and those tasks are left out."""
    tasks = {} if plan is None else {task_id: node.task for task_id, node in plan.nodes.items()}
    removed = {} if plan is None else removed_tasks(trial(plan, EditBatch(tuple(edits))), edits)
    for number, edit in enumerate(edits):
        yield _folded(edit_line(edit)) + _old_dependency(edit, plan)
        yield from _removed_lines(removed.get(number, ()))
        if isinstance(edit, AddTask):
            tasks[edit.task.id] = edit.task
            yield from _field_lines(edit.task)
        elif isinstance(edit, UpdateTask):
            old = tasks.get(edit.task_id)
            for field, value in edit.to_json()["changes"].items():
                before = "" if old is None else f"{_value(old.field_to_json(field))} -> "
                yield f"    {field}: {before}{_value(value)}"
            if old is not None:
                tasks[edit.task_id] = old.changed(edit.changes)


def _field_lines(task: Task) -> Iterator[str]:
    return (f"    {field}: {_value(value)}" for field, value in task.to_json().items() if field != "id")


def edit_line(edit: Edit) -> str:
    """An edit as a sentence. The reason of a cancellation is not in the text of the edit, which journals repeat."""
    reason = f": {edit.reason}" if isinstance(edit, CancelTask) and edit.reason else ""
    return clean(f"{edit}{reason}")


def _removed_lines(tasks: Sequence[str]) -> Iterator[str]:
    yield from (clean(f"    also removes task {task!r}") for task in tasks)


def _old_dependency(edit: Edit, plan: Graph | None) -> str:
    if plan is None or not isinstance(edit, UpdateDependency):
        return ""
    node = plan.nodes.get(edit.target)
    edge = node.parents.get(edit.source) if node is not None else None
    return "" if edge is None else clean(f" (before: {addition_of(edge)})")


_WIDEST_GAP = 3
_GAP = re.compile(rf"[ \u2800\u3164\uffa0\u115f\u1160]{{{_WIDEST_GAP + 1},}}")
"""Characters without ink, which could push what follows into a line of a terminal that looks like its own."""


def _value(value: Any) -> str:
    """A value on one line. A text whose characters cannot all be seen is quoted, and a wide gap is folded."""
    if isinstance(value, str) and value.isprintable() and value == value.strip() != "":
        return _folded(value)
    return _folded(clean(json.dumps(value, ensure_ascii=isinstance(value, str), sort_keys=True)))


def _folded(text: str) -> str:
    return _GAP.sub(lambda gap: f" [{len(gap[0])} spaces] ", text)


def _waiting_json(edit: WaitingEdit, record: StoredConstellation, receivers: list[str]) -> dict[str, Any]:
    """What the tasks of an edit cost and do, and when people hear of it again; empty if it does not wait."""
    if edit.state != WAITING:
        return {}
    tried, escalation = trial(record.plan, edit.batch), escalation_of(record.head)
    tasks = {task.id: work_of(task) for change in tried.changes for task in change.tasks}
    effects = {task: sorted({effect for part in work for effect in effects_of(part)}) for task, work in tasks.items()}
    return {
        "cost": batch_cost(tried),
        "effects": {task: names for task, names in effects.items() if names},
        "escalates_at": None if escalation is None else edit.at + escalation,
        "escalates_to": receivers,
    }


def drawing(
    plan: Constellation,
    form: str,
    width: int = 80,
    opened: Collection[str] = (),
    phase: Callable[[Node], str | None] | None = None,
) -> documents.Drawing:
    """A plan as ``text`` of at most ``width`` cells a line, or ``mermaid``. ``phase`` tells what running tasks
    do, ``opened`` which large groups are drawn task by task. Secrets are masked."""
    from asterism.report import mermaid, terminal  # rich, which other documents do not need
    from asterism.report.picture import picture

    drawn = picture(plan, PlanMask(plan), phase=phase, opened=opened)
    if form == "text":
        text = terminal(drawn, width)
        styles = [documents.TextStyle(start=span.start, end=span.end, style=str(span.style)) for span in text.spans]
        return documents.Drawing(name=plan.id, form=form, text=text.plain, styles=styles)
    return documents.Drawing(name=plan.id, form=form, text=mermaid(drawn))


def cause_text(needs: Sequence[str], reasons: Sequence[str]) -> str:
    """Why tasks do not run, in a sentence."""
    return "; ".join([*([f"it needs a device with {needs_text(needs)}"] if needs else []), *reasons])


def cancellation(stored: StoredPlan, stuck: Sequence[TaskExplanation] = ()) -> documents.Cancellation:
    """``stuck`` are the teardowns that no device can execute."""
    from asterism.report import event_text  # with all of the report

    plan, owner = stored.record.plan, stored.owner
    teardowns = [node for node in plan.nodes.values() if node.setup is not None]
    failed, mask = [node for node in teardowns if node.status is FAILED], PlanMask(plan)
    return documents.Cancellation(
        name=plan.id,
        state=stored.state_name,
        ended=stored.record.head.ended,
        owner=None if owner is None else owner.device,
        cancelled=stored.record.head.cancel_reason,
        teardowns=[
            teardown.id
            for teardown in teardowns
            if teardown.status is RUNNING or (teardown.status is PENDING and stored.is_due(teardown))
        ],
        waiting_teardowns={why.task: "; ".join(reason.text for reason in why.reasons) for why in stuck},
        failed_teardowns={node.id: str(mask.shown(event_text.reason(node.error))) for node in failed},
    )


def rest_text(name: str) -> str:
    """That a plan rests, and what to do about it."""
    return f"no process runs the plan; resume it with: asterism resume {name}"


def edit_outcome(name: str, answer: EditAnswer, dry_run: bool) -> documents.EditOutcome:
    applied = answer.applied
    return documents.EditOutcome(
        name=name,
        accepted=True,
        dry_run=dry_run,
        version_before=applied.version - bool(applied.batch.edits),
        version=applied.version,
        edits=[edit.to_json() for edit in applied.batch.edits],
        changes=[
            line
            for number, edit in enumerate(applied.batch.edits)
            for line in (edit_line(edit), *_removed_lines(answer.removed.get(number, ())))
        ],
        stopped=list(dict.fromkeys(task for task, _ in applied.stopped)),
        inverse=None if applied.inverse is None else applied.inverse.to_json(),
        applied_by=answer.by,
        reopened=answer.reopened,
        rests=rest_text(name) if answer.rests else None,
        waits=list(answer.waits),
    )
