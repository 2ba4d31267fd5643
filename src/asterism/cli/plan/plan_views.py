"""Plans, their stories and edits as tables and lines for people, made of the documents of the API."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from rich.text import Text

from asterism.api.documents import Drawing, EditOutcome, Plan, PlanState, PlanSummary, StoryEntry, TaskWhy
from asterism.base.durations import format_age
from asterism.base.status_colours import DIM, tone
from asterism.base.text import clean, join_names, json_text
from asterism.cli.cli_context import format_time
from asterism.cli.screen import Cell, Column, table, wrapped

MOST_NAMES = 5
"""How many tasks a line names."""

ENDED = ("completed", "failed", "partially_failed", "cancelled")

PLAN_COLUMNS = (
    Column("NAME", least=8, name=True),
    Column("STATE"),
    Column("TASKS", right=True),
    Column("OWNER", least=8, name=True),
    Column("HEARD", right=True, needed=False),
    Column("PAUSED", least=10, needed=False),
)
_LOOKS = {
    "executing": "running",
    "at rest": "waiting",
    "partially failed": "waiting",
    "created": "pending",
    "cancelling": "cancelled",
    "repaired": "completed",
    "unreadable": "failed",
}


def plans_table(plans: Sequence[PlanSummary], now: float, width: int | None) -> list[Text]:
    return table(PLAN_COLUMNS, [plan_row(plan, now) for plan in plans], width)


def plan_row(plan: PlanSummary, now: float) -> list[Cell]:
    state = Text(plan.state_text, tone(_LOOKS.get(plan.state_text, plan.state_text)))
    if plan.error is not None:
        return [plan.name, state, "", "", "", Text(clean(plan.error), DIM)]
    if plan.waits_for_person:
        state.append(f", {plan.waits_for_person}", tone("waiting"))
    heard = plan.heard_at if plan.owner is not None else plan.last_heard_at
    return [
        plan.name,
        state,
        f"{plan.done}/{plan.tasks}",
        plan.owner if plan.owner is not None else _gone_owner(plan),
        format_age(now - heard) if heard is not None else "",
        Text(clean(plan.paused or ""), DIM),
    ]


def _gone_owner(plan: PlanSummary) -> Cell:
    gone = plan.last_owner if plan.state in ("at_rest", "cancelling") else None
    return Text(f"{clean(gone)} (gone)", DIM) if gone else ""


def drawing_text(drawing: Drawing) -> Text:
    """A drawing for the terminal, with its colours."""
    text = Text(drawing.text, no_wrap=True)
    for part in drawing.styles:
        text.stylize(part.style, part.start, part.end)
    return text


def status_lines(plan: Plan, resume: str) -> list[str]:
    """The state of a plan, which its drawing does not show. ``resume`` is the command that resumes it."""
    tasks = f"{plan.done} of {sum(plan.counts.values())} tasks done"
    lines = [f"{plan.name} is {plan.state_text}, version {plan.version}: {tasks}"]
    if plan.owner is not None:
        lines.append(f"run by {plan.owner}, last heartbeat {format_age(plan.now - (plan.heard_at or plan.now))} ago")
    elif plan.state not in ENDED:
        lines += _nobody_lines(plan, resume)
    if plan.cancel_request is not None and (plan.cancelling or plan.state == "cancelled"):
        lines.append(f"cancelled {plan.cancel_request}")
    if plan.paused is not None:
        lines.append(f"paused {plan.paused}")
    if plan.params:
        lines.append(f"parameters: {', '.join(f'{name}={value_text(value)}' for name, value in plan.params.items())}")
    return lines


def _nobody_lines(plan: Plan, resume: str) -> list[str]:
    """That no process runs a plan, since when, and how to resume it."""
    resumed = f"resume it with: {resume}"
    if plan.last_owner is None:
        return ["no process runs it", resumed]
    at = plan.last_heard_at
    heard = "" if at is None else f", and was last heard {format_age(plan.now - at)} ago"
    return [f"no process runs it: {plan.last_owner} is gone{heard}", resumed]


def review_lines(plan: Plan, store: str = "") -> list[str]:
    """What a plan that has not ended waits for: editors, and people. Empty if it waits for none. ``store`` ends the
    commands that are advised, as ``same_system`` returns it."""
    lines = []
    cycles = [] if plan.state in ENDED else plan.cycles
    if cycles:
        about = "no task can start" if cycles[0].stuck else f"reviews {join_names(cycles[0].tasks, MOST_NAMES)}"
        more = f", and {len(cycles) - 1:,} more" if len(cycles) > 1 else ""
        command = f"asterism plan cycles {plan.name}{store}"
        lines.append(f"edit cycle {cycles[0].id} is open ({about}){more}; list with: {command}")
    if plan.waiting_edits:
        number = "1 edit waits" if plan.waiting_edits == 1 else f"{plan.waiting_edits:,} edits wait"
        lines.append(f"{number} for a person; list with: asterism plan approvals {plan.name}{store}")
    return [clean(line) for line in lines]


def failure_lines(plan: Plan) -> Iterator[Text]:
    """The tasks that failed, with the reasons."""
    failed = [task for task in plan.tasks if task.status == "failed"]
    wide = max((len(task.id) for task in failed), default=0)
    for task in failed:
        attempts = f" (attempt {task.attempts})" if task.attempts > 1 else ""
        yield Text.assemble((f"{clean(task.id):<{wide}}  ", tone("failed")), clean(task.reason or ""), (attempts, DIM))


def resume_command(url: str, name: str) -> str:
    return shlex.join(["asterism", "resume", name, "--store", url])


def retry_command(url: str, name: str) -> str:
    return shlex.join(["asterism", "plan", "retry", name, "--store", url])


def list_command(url: str) -> str:
    return shlex.join(["asterism", "plan", "list", "--store", url])


def watch_command(url: str, name: str) -> str:
    return shlex.join(["asterism", "plan", "watch", name, "--store", url])


def explanation_lines(why: TaskWhy, width: int | None) -> Iterator[Text]:
    run = f", as run {why.run}" if why.run is not None else ""
    yield Text(f"Task {why.task!r} of plan {why.name!r} is {why.status}{run}:")
    for reason in why.reasons:
        yield from wrapped(reason.text, width, "  ")
    for advice in why.advice:
        yield from wrapped(advice, width)
    if why.answered_by is not None:
        yield from wrapped(f"Answered by {why.answered_by}, which runs it.", width)


def value_text(value: Any) -> str:
    """A value on one line: text as it is, anything else as JSON."""
    return clean(value if isinstance(value, str) else json_text(value))


def story_lines(entries: Sequence[StoryEntry]) -> Iterator[Text]:
    wide = max((len(entry.task or "") for entry in entries), default=0)
    for entry in entries:
        yield Text.assemble(
            (f"{format_time(entry.at)}  ", DIM),
            (f"{clean(entry.task or ''):<{wide}}  " if wide else ""),
            clean(entry.what),
            (f"  {clean(entry.why)}" if entry.why else "", DIM),
        )
        for line in (entry.traceback or "").splitlines():
            yield Text(f"    {clean(line)}", "red")


def applied_lines(outcome: EditOutcome, resume: str = "") -> list[str]:
    """What an edit has changed. ``resume`` is the command that runs the plan, if the edit may have reopened it."""
    name = outcome.name
    if not outcome.edits:
        return [f"Plan {name!r} stays at version {outcome.version}: the batch changes nothing."]
    version = f"version {outcome.version_before} -> {outcome.version}"
    changed = f"Plan {name!r} {'would change' if outcome.dry_run else 'changed'}: {version}."
    by = [f"Applied by {clean(outcome.applied_by)}, which runs it."] if outcome.applied_by is not None else []
    again = [f"No process runs the plan. Resume it with: {resume}"] if outcome.rests is not None else []
    if outcome.reopened:
        again = ["The plan had ended, and is open again.", *(again or ["A server on this store runs it."])]
    waits = [f"The edit would wait for a person: {clean('; '.join(outcome.waits))}."] if outcome.waits else []
    changes = [*map(clean, outcome.changes), *(f"stop task {task!r}" for task in outcome.stopped)]
    return [*changes, " ".join([changed, *by]), *again, *waits]


def paused_line(state: PlanState) -> str:
    paused = f"Plan {state.name!r} {'was already' if state.already else 'is'} paused, {state.paused}."
    if state.owner is None:
        return paused
    if state.applied_by is None:
        return f"{paused} {state.owner} runs it, and has not answered yet."
    return f"{paused} {state.applied_by}, which runs it, starts no more tasks."


def reopened_line(name: str, tasks: Sequence[str]) -> str:
    """What a retry runs again, in words."""
    if not tasks:
        return f"Plan {name!r} is reopened; no task that has ended runs again."
    run = "runs" if len(tasks) == 1 else "run"
    return f"Plan {name!r} is reopened: {join_names(tasks, MOST_NAMES)} {run} again."
