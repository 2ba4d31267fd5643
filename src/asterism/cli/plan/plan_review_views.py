"""Versions, edit cycles and waiting edits of a plan as lines for people, made of the documents of the API."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text

from asterism.api.documents import (
    CycleDetails,
    Cycles,
    EditorBudget,
    EditOutcome,
    Exchange,
    PastPlan,
    PlanVersion,
    RejectedEdit,
    Versions,
    WaitingEdit,
)
from asterism.base.durations import format_age, format_duration
from asterism.base.status_colours import DIM
from asterism.base.text import clean, join_names, shorten
from asterism.cli.cli_context import format_time
from asterism.cli.plan.plan_views import MOST_NAMES, applied_lines
from asterism.core.errors import InvalidTask
from asterism.core.plan.editor_cost import EditorCost
from asterism.core.plan.edits import edit_from_json

WAITING = "waiting"

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


def history_lines(history: Versions) -> Iterator[Text]:
    """All edits in the order of time."""
    edits: list[PlanVersion | RejectedEdit] = [*history.items, *history.rejected]
    for edit in sorted(edits, key=lambda edit: edit.at):
        accepted = isinstance(edit, PlanVersion)
        what = f"version {edit.version}" if accepted else "rejected"
        if edit is history.items[0]:
            what += ": as stored" if edit.version == 0 else ": the oldest one that is known"
        by = f"  by {clean(edit.author)}" if edit.author else ""
        why = f": {clean(edit.reason)}" if edit.reason else ""
        yield Text.assemble((f"{format_time(edit.at)}  ", DIM), what, by, why)
        if edit is history.items[0]:
            continue
        for line in edit_lines(edit.edits):
            yield Text(f"    {line}")
        if isinstance(edit, RejectedEdit):
            for violation in edit.violations:
                yield Text(f"    ! {clean(violation.message)}")


def past_line(past: PastPlan) -> str:
    made = past.edit
    by = f" by {clean(made.author)}" if made.author else ""
    why = f": {clean(made.reason)}" if made.reason else ""
    return f"Version {made.version}, {format_time(made.at)}{by}{why}"


# -- edit cycles -------------------------------------------------------------------------------------------------------


def cycle_lines(name: str, cycles: Cycles, store: str = "") -> Iterator[Text]:
    """``store`` ends the commands that are advised, as ``same_system`` returns it."""
    now = cycles.now or 0.0
    for cycle in cycles.items:
        yield Text(f"cycle {cycle.id}: {_subject(cycle)}, open for {format_age(now - cycle.opened_at)}")
        for end in cycle.ends:
            reason = f": {clean(end.reason)}" if end.reason else ""
            yield Text(f"    {clean(end.task)} {end.status or 'was removed'}{reason}")
        for refusal in cycle.refusals:
            reason = f": {clean(refusal.reason)}" if refusal.reason else ""
            yield Text(f"    the answer of approval {refusal.approval} was refused by {clean(refusal.by)}{reason}")
        yield Text(f"    {_reviewer(cycle, cycles.answered_by, now)}", style=DIM)
    if cycles.answered_by is not None:
        answer = f"asterism plan answer {clean(name)} {cycles.items[0].id}{store}"
        yield Text(f"Answer one with: {answer} [--add … --remove …]")
    else:
        yield Text(f"No process answers. Resume the plan with: asterism resume {clean(name)}{store}")


def _subject(cycle: CycleDetails) -> str:
    if cycle.stuck and cycle.refusals:
        return "an answer was refused"
    return "no task can start" if cycle.stuck else f"reviews {join_names(cycle.tasks, MOST_NAMES)}"


def _reviewer(cycle: CycleDetails, by: str | None, now: float) -> str:
    if by is None:
        return "it waits until a process runs the plan"
    until = "" if cycle.expires_at is None else f"; closed in {format_duration(max(0.0, cycle.expires_at - now))}"
    until = f"; {clean(cycle.on_hold)}" if cycle.on_hold else until
    if cycle.claimed_by is None:
        return f"not claimed{until}"
    lease = "" if cycle.claimed_until is None else f" for {format_duration(max(0.0, cycle.claimed_until - now))}"
    return f"claimed by {clean(cycle.claimed_by)}{lease}{until}"


def claimed_line(name: str, cycle: CycleDetails, lease: float) -> str:
    """``lease`` is for how many seconds it was claimed."""
    return (
        f"Cycle {cycle.id} of plan {clean(name)!r} ({_subject(cycle)}) is claimed by {clean(cycle.claimed_by or '')} "
        f"for {format_duration(lease)}, at version {cycle.version}."
    )


def answered_lines(cycle: int, outcome: EditOutcome) -> list[str]:
    if not outcome.edits:
        return [f"Cycle {cycle} of plan {clean(outcome.name)!r} is closed without an edit."]
    return [*applied_lines(outcome), f"Cycle {cycle} is closed."]


# -- approvals ---------------------------------------------------------------------------------------------------------


def waiting_lines(name: str, edit: WaitingEdit, store: str = "") -> list[str]:
    return [
        *edit_lines(edit.batch["edits"]),
        f"The edit waits for a person: approval {edit.id}.",
        f"Approve it with: asterism plan approve {clean(name)} {edit.id}{store}",
    ]


def approval_lines(name: str, edits: Sequence[WaitingEdit], now: float, store: str = "") -> Iterator[Text]:
    """Each edit with all of its work: a person approves what is shown."""
    for edit in edits:
        by = clean(edit.batch.get("author") or "somebody")
        why = f": {clean(edit.batch['reason'])}" if edit.batch.get("reason") else ""
        yield Text(f"approval {edit.id}: edit by {by}{why}, {_decision(edit, now)}")
        for line in edit.changes:
            yield Text(f"    {line}")
        for reason in edit.reasons:
            yield Text(f"    waits because of: {clean(reason)}", style=DIM)
        if edit.state == WAITING:
            held = f"; holds {join_names(edit.tasks, MOST_NAMES)}" if edit.tasks else ""
            yield Text(f"    refused in {format_duration(max(0.0, edit.expires_at - now))}{clean(held)}", style=DIM)
    first = next((edit for edit in edits if edit.state == WAITING), None)
    if first is not None:
        decided = f"{clean(name)} {first.id}{store}"
        yield Text(f"Decide with: asterism plan approve {decided}")
        yield Text(f"         or: asterism plan refuse {decided} [--reason …]")


def _decision(edit: WaitingEdit, now: float) -> str:
    if edit.state == WAITING:
        return f"waits for {format_age(now - edit.at)}"
    by = f" by {clean(edit.decided_by)}" if edit.decided_by else ""
    return f"{edit.state}{by}" + (f": {clean(edit.why)}" if edit.why else "")


# -- budgets and exchanges ---------------------------------------------------------------------------------------------


def budget_lines(name: str, budget: EditorBudget, store: str = "") -> list[str]:
    command = f"asterism plan budget {clean(name)}{store}"
    lines = [f"Budget of plan {clean(name)!r}: {budget.budget_text}.", f"Spent: {budget.spent_text}."]
    if budget.calls_under_way:
        lines.append(f"Calls under way: {budget.calls_under_way}, which may cost {budget.reserved_text}.")
    if budget.without_editor:
        by = f", decided by {clean(budget.decided_by)}" if budget.decided_by else ""
        lines.append(f"The plan goes on without its editor{by}.")
    elif budget.held_since is not None:
        why = f": {clean(budget.held_why)}" if budget.held_why else ""
        lines.append(f"The plan waits since {format_time(budget.held_since)}{why}.")
        lines.append(f"Raise the budget with: {command} --raise '{budget.higher_limits}'")
        lines.append(f"Go on without the editor with: {command} --without-editor")
    return lines


def exchange_lines(exchanges: Sequence[Exchange]) -> list[str]:
    return [
        f"{one.number:>4}  {format_time(one.at)}  {clean(_answer_words(one))}  ({_cost_text(one)})" for one in exchanges
    ]


def _cost_text(exchange: Exchange) -> str:
    return clean(str(EditorCost(**vars(exchange.cost))))


def _answer_words(exchange: Exchange) -> str:
    calls = [f"{name}: {arguments}" for _, name, arguments in exchange.answer.calls]
    return shorten("; ".join(calls) or exchange.answer.text or "nothing", 100)


def exchange_text(exchange: Exchange) -> str:
    """The last message of the question, and the answer."""
    try:
        last = json.loads(exchange.question)["messages"][-1]
        asked = str(last.get("user") or last.get("text") or "")
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError):
        asked = exchange.question  # not as this version asks
    return "\n".join(
        [
            f"exchange {exchange.number}, {format_time(exchange.at)}, {_cost_text(exchange)}",
            "",
            *(f"> {clean(line)}" for line in asked.splitlines()),
            "",
            *(f"< {clean(name)} {clean(arguments)}" for _, name, arguments in exchange.answer.calls),
            *(f"< {clean(line)}" for line in exchange.answer.text.splitlines()),
        ]
    )
