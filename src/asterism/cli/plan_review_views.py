"""Versions, edit cycles and waiting edits of a plan, as lines for people and as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from asterism.base.durations import format_age, format_duration
from asterism.base.status_colours import DIM
from asterism.base.text import clean, join_names, shorten
from asterism.cli.cli_context import format_time
from asterism.cli.plan_views import applied_lines, plan_json
from asterism.core.errors import InvalidTask
from asterism.core.plan.approval import WAITING, WaitingEdit
from asterism.core.plan.edits import AddTask, Edit, UpdateDependency, UpdateTask, addition_of, edit_from_json
from asterism.core.plan.graph import Graph
from asterism.durable.approval_store import list_approvals
from asterism.durable.cycle_requests import CycleList, CycleView
from asterism.durable.editor_budget import Account, Spent
from asterism.durable.plan_history import PastPlan, PlanVersion
from asterism.durable.plan_requests import EditAnswer
from asterism.durable.rejected_edits import RejectedEdit
from asterism.durable.stored_plans import StoredPlan
from asterism.fleet.fleet import Fleet

if TYPE_CHECKING:
    from asterism.agents.cassette import Exchange

MOST_NAMES = 5
"""How many tasks a line names."""

MOST_EDITS = 10
"""How many edits of a batch the terminal shows."""


def edit_lines(edits: Sequence[Mapping[str, Any]] | None) -> list[str]:
    """The edits of a batch in JSON, one line each."""
    if edits is None:
        return ["edits that were not kept: too long, or malformed"]
    lines = []
    for edit in edits[:MOST_EDITS]:
        try:
            lines.append(clean(str(edit_from_json(edit))))
        except InvalidTask:  # a mask has changed it
            lines.append(clean(str(edit.get("op", ""))).replace("_", " "))
    more = len(edits) - MOST_EDITS
    return lines if more <= 0 else [*lines, f"and {more:,} more edits"]


def history_lines(versions: Sequence[PlanVersion], rejected: Sequence[RejectedEdit]) -> Iterator[Text]:
    """All edits in the order of time."""
    edits: list[PlanVersion | RejectedEdit] = [*versions, *rejected]
    for one in sorted(edits, key=lambda one: one.at):
        accepted = isinstance(one, PlanVersion)
        what = f"version {one.version}" if accepted else "rejected"
        if accepted and one is versions[0]:
            what += ": as stored" if one.version == 0 else ": the oldest one that is known"
        by = f"  by {clean(one.author)}" if one.author else ""
        why = f": {clean(one.reason)}" if one.reason else ""
        yield Text.assemble((f"{format_time(one.at)}  ", DIM), what, by, why)
        if accepted and one is versions[0]:
            continue
        for line in edit_lines(one.edits):
            yield Text(f"    {line}")
        if isinstance(one, RejectedEdit):
            for violation in one.violations:
                yield Text(f"    ! {clean(str(violation['message']))}")


def history_json(versions: Sequence[PlanVersion], rejected: Sequence[RejectedEdit]) -> dict[str, Any]:
    return {"versions": [one.to_json() for one in versions], "rejected": [one.to_json() for one in rejected]}


def past_json(past: PastPlan) -> dict[str, Any]:
    return {**plan_json(past.plan), "at": past.version.at, "position": str(past.version.position)}


def past_line(past: PastPlan) -> str:
    made = past.version
    by = f" by {clean(made.author)}" if made.author else ""
    why = f": {clean(made.reason)}" if made.reason else ""
    return f"Version {made.version}, {format_time(made.at)}{by}{why}"


# -- edit cycles -------------------------------------------------------------------------------------------------------


def cycle_lines(name: str, found: CycleList, now: float, store: str = "") -> Iterator[Text]:
    """``store`` ends the commands that are advised, as ``same_store`` returns it."""
    for cycle in found.cycles:
        yield Text(f"cycle {cycle.id}: {_subject(cycle)}, open for {format_age(now - cycle.opened_at)}")
        for end in cycle.ends:
            reason = f": {clean(str(end['reason']))}" if end["reason"] else ""
            yield Text(f"    {clean(str(end['task']))} {end['status'] or 'was removed'}{reason}")
        for one in cycle.refusals:
            reason = f": {clean(str(one['reason']))}" if one["reason"] else ""
            yield Text(f"    the answer of approval {one['approval']} was refused by {clean(str(one['by']))}{reason}")
        yield Text(f"    {_reviewer(cycle, found.by, now)}", style=DIM)
    if found.by is not None:
        answer = f"asterism plan answer {clean(name)} {found.cycles[0].id}{store}"
        yield Text(f"Answer one with: {answer} [--add … --remove …]")
    else:
        yield Text(f"No process answers. Resume the plan with: asterism resume {clean(name)}{store}")


def _subject(cycle: CycleView) -> str:
    if cycle.stuck and cycle.refusals:
        return "an answer was refused"
    return "no task can start" if cycle.stuck else f"reviews {join_names(cycle.tasks, MOST_NAMES)}"


def _reviewer(cycle: CycleView, by: str | None, now: float) -> str:
    if by is None:
        return "it waits until a process runs the plan"
    until = "" if cycle.expires_at is None else f"; closed in {format_duration(max(0.0, cycle.expires_at - now))}"
    until = f"; {clean(cycle.on_hold)}" if cycle.on_hold else until
    if cycle.claimed_by is None:
        return f"not claimed{until}"
    lease = "" if cycle.claimed_until is None else f" for {format_duration(max(0.0, cycle.claimed_until - now))}"
    return f"claimed by {clean(cycle.claimed_by)}{lease}{until}"


def claimed_line(name: str, cycle: CycleView, now: float) -> str:
    seconds = format_duration(max(0.0, (cycle.claimed_until or now) - now))
    return (
        f"Cycle {cycle.id} of plan {clean(name)!r} ({_subject(cycle)}) is claimed by {clean(cycle.claimed_by or '')} "
        f"for {seconds}, at version {cycle.version}."
    )


def answered_lines(name: str, cycle: int, answer: EditAnswer) -> list[str]:
    if not answer.applied.batch.edits:
        return [f"Cycle {cycle} of plan {clean(name)!r} is closed without an edit."]
    return [*applied_lines(name, answer, dry_run=False), f"Cycle {cycle} is closed."]


# -- approvals ---------------------------------------------------------------------------------------------------------


def waiting_lines(name: str, edit: WaitingEdit, store: str = "") -> list[str]:
    edits = edit_lines([one.to_json() for one in edit.batch.edits])
    return [
        *edits,
        f"The edit waits for a person: approval {edit.id}.",
        f"Approve it with: asterism plan approve {clean(name)} {edit.id}{store}",
    ]


def approval_lines(
    name: str, found: Sequence[WaitingEdit], now: float, store: str = "", plan: Graph | None = None
) -> Iterator[Text]:
    """Each edit with all of its work: a person approves what is shown. ``plan`` has the old values."""
    for edit in found:
        by = clean(edit.batch.author or "somebody")
        why = f": {clean(edit.batch.reason)}" if edit.batch.reason else ""
        yield Text(f"approval {edit.id}: edit by {by}{why}, {_decision(edit, now)}")
        for line in work_lines(edit.batch.edits, plan if edit.state == WAITING else None):
            yield Text(f"    {line}")
        for reason in edit.reasons:
            yield Text(f"    waits because of: {clean(reason)}", style=DIM)
        if edit.state == WAITING:
            held = f"; holds {join_names(edit.tasks, MOST_NAMES)}" if edit.tasks else ""
            yield Text(f"    refused in {format_duration(max(0.0, edit.expires_at - now))}{clean(held)}", style=DIM)
    first = next((edit for edit in found if edit.state == WAITING), None)
    if first is not None:
        decided = f"{clean(name)} {first.id}{store}"
        yield Text(f"Decide with: asterism plan approve {decided}")
        yield Text(f"         or: asterism plan refuse {decided} [--reason …]")


def work_lines(edits: Sequence[Edit], plan: Graph | None = None) -> Iterator[str]:
    """All edits, with each field of a task that they add, and the old and the new value of each field that they
    change. Without ``plan`` the old values are left out."""
    tasks = {} if plan is None else {task_id: node.task for task_id, node in plan.nodes.items()}
    for edit in edits:
        yield clean(str(edit)) + _old_terms(edit, plan)
        if isinstance(edit, AddTask):
            tasks[edit.task.id] = edit.task
            fields = edit.task.to_json()
            yield from (f"    {field}: {_value(value)}" for field, value in fields.items() if field != "id")
        elif isinstance(edit, UpdateTask):
            old = tasks.get(edit.task_id)
            for field, value in edit.to_json()["changes"].items():
                before = "" if old is None else f"{_value(old.field_to_json(field))} -> "
                yield f"    {field}: {before}{_value(value)}"
            if old is not None:
                tasks[edit.task_id] = old.changed(edit.changes)


def _old_terms(edit: Edit, plan: Graph | None) -> str:
    if plan is None or not isinstance(edit, UpdateDependency):
        return ""
    node = plan.nodes.get(edit.target)
    edge = node.parents.get(edit.source) if node is not None else None
    return "" if edge is None else clean(f" (before: {addition_of(edge)})")


def _value(value: Any) -> str:
    """A value on one line. A text whose characters cannot all be seen is quoted."""
    if isinstance(value, str) and value.isprintable() and value == value.strip() != "":
        return value
    return clean(json.dumps(value, ensure_ascii=isinstance(value, str), sort_keys=True))


async def review_lines(fleet: Fleet, stored: StoredPlan, store: str = "") -> list[str]:
    """What a plan that has not ended waits for: editors, and people. Empty if it waits for none."""
    name, lines = stored.record.head.name, []
    cycles = [] if stored.record.head.ended else list(stored.record.lock.cycles.values())
    if cycles:
        about = "no task can start" if cycles[0].stuck else f"reviews {join_names(cycles[0].tasks, MOST_NAMES)}"
        more = f", and {len(cycles) - 1:,} more" if len(cycles) > 1 else ""
        lines.append(
            f"edit cycle {cycles[0].id} is open ({about}){more}; list with: asterism plan cycles {name}{store}"
        )
    waiting = [edit for edit in await list_approvals(fleet.store, name) if edit.state == WAITING]
    if waiting:
        number = "1 edit waits" if len(waiting) == 1 else f"{len(waiting):,} edits wait"
        lines.append(f"{number} for a person; list with: asterism plan approvals {name}{store}")
    return [clean(line) for line in lines]


def _decision(edit: WaitingEdit, now: float) -> str:
    if edit.state == WAITING:
        return f"waits for {format_age(now - edit.at)}"
    by = f" by {clean(edit.decided_by)}" if edit.decided_by else ""
    return f"{edit.state}{by}" + (f": {clean(edit.why)}" if edit.why else "")


# -- budgets and exchanges ---------------------------------------------------------------------------------------------


def budget_lines(name: str, account: Account, store: str = "") -> list[str]:
    command = f"asterism plan budget {clean(name)}{store}"
    lines = [f"Budget of plan {clean(name)!r}: {account.budget}.", f"Spent: {account.spent_text}."]
    if account.open:
        lines.append(f"Calls under way: {len(account.open)}, which may cost {sum(account.open.values(), Spent())}.")
    if account.without_editor:
        by = f", decided by {clean(account.decided_by)}" if account.decided_by else ""
        lines.append(f"The plan goes on without its editor{by}.")
    elif account.held_since is not None:
        why = f": {clean(account.held_why)}" if account.held_why else ""
        lines.append(f"The plan waits since {format_time(account.held_since)}{why}.")
        lines.append(f"Raise the budget with: {command} --raise '{account.higher_limits()}'")
        lines.append(f"Go on without the editor with: {command} --without-editor")
    return lines


def exchange_lines(found: Sequence[Exchange]) -> list[str]:
    return [
        f"{one.number:>4}  {format_time(one.at)}  {clean(_answer_words(one))}  ({clean(str(one.cost))})"
        for one in found
    ]


def _answer_words(exchange: Exchange) -> str:
    calls = [f"{name}: {arguments}" for _, name, arguments in exchange.answer["calls"]]
    return shorten("; ".join(calls) or exchange.answer["text"] or "nothing", 100)


def exchange_text(exchange: Exchange) -> str:
    """The last message of the question, and the answer."""
    try:
        last = json.loads(exchange.question)["messages"][-1]
        asked = str(last.get("user") or last.get("text") or "")
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError):
        asked = exchange.question  # not as this version asks
    return "\n".join(
        [
            f"exchange {exchange.number}, {format_time(exchange.at)}, {clean(str(exchange.cost))}",
            "",
            *(f"> {clean(line)}" for line in asked.splitlines()),
            "",
            *(f"< {clean(name)} {clean(arguments)}" for _, name, arguments in exchange.answer["calls"]),
            *(f"< {clean(line)}" for line in exchange.answer["text"].splitlines()),
        ]
    )
