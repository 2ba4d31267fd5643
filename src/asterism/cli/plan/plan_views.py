"""Plans, their stories, versions, edits and edit cycles as tables and lines, made of the documents of the API."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text

from asterism.api import documents
from asterism.base.durations import format_age, format_duration
from asterism.base.status_colours import DIM, tone
from asterism.base.text import clean, join_names, json_text, plural
from asterism.cli.cli_context import format_time
from asterism.cli.tables import Cell, Column, TimedTable, wrapped
from asterism.core.errors import InvalidTask

MOST_NAMES = 5
"""How many tasks a line names."""

ENDED = ("completed", "failed", "partially_failed", "cancelled")

_LOOKS = {
    "executing": "running",
    "at rest": "waiting",
    "partially failed": "waiting",
    "created": "pending",
    "cancelling": "cancelled",
    "repaired": "completed",
    "unreadable": "failed",
}


def _state_cell(plan: documents.PlanSummary, now: float) -> Text:
    state = Text(plan.state_text, tone(_LOOKS.get(plan.state_text, plan.state_text)))
    waits = f"nothing moves: {plan.stalled}" if plan.stalled else plan.waits_for_person
    return state.append(f", {waits}", tone("waiting")) if waits else state


def _heard_cell(plan: documents.PlanSummary, now: float) -> str:
    heard = plan.heard_at if plan.owner is not None else plan.last_heard_at
    return format_age(now - heard) if heard is not None else ""


def _gone_owner(plan: documents.PlanSummary) -> Cell:
    gone = plan.last_owner if plan.state in ("at_rest", "cancelling") else None
    return Text(f"{clean(gone)} (gone)", DIM) if gone else ""


PLAN_TABLE = TimedTable[documents.PlanSummary](
    {
        Column("NAME", least=8, name=True): lambda plan, now: plan.name,
        Column("STATE"): _state_cell,
        Column("TASKS", right=True): lambda plan, now: "" if plan.error is not None else f"{plan.done}/{plan.tasks}",
        Column("OWNER", least=8, name=True): lambda plan, now: _gone_owner(plan) if plan.owner is None else plan.owner,
        Column("HEARD", right=True, needed=False): _heard_cell,
        Column("PAUSED", least=10, needed=False): lambda plan, now: Text(clean(plan.error or plan.paused or ""), DIM),
    }
)
"""The plans of a list. One that cannot be read has only a name, a state and an error."""


def drawing_text(drawing: documents.Drawing) -> Text:
    """A drawing for the terminal, with its colours."""
    text = Text(drawing.text, no_wrap=True)
    for part in drawing.styles:
        text.stylize(part.style, part.start, part.end)
    return text


def status_lines(plan: documents.Plan, resume: str) -> list[str]:
    """The state of a plan, which its drawing does not show. ``resume`` is the command that resumes it."""
    tasks = f"{plan.done} of {sum(plan.counts.values())} tasks done"
    lines = [f"{plan.name} is {plan.state_text}, version {plan.version}: {tasks}"]
    if plan.owner is not None:
        lines.append(f"run by {plan.owner}, last heartbeat {format_age(plan.now - (plan.heard_at or plan.now))} ago")
    elif plan.ahead is not None:
        lines.append(f"waits for plan {plan.ahead}")
    elif plan.state not in ENDED:
        lines += _nobody_lines(plan, resume)
    if plan.cancel_request is not None and (plan.cancelling or plan.state == "cancelled"):
        lines.append(f"cancelled {plan.cancel_request}")
    if plan.paused is not None:
        lines.append(f"paused {plan.paused}")
    if plan.tick:
        lines.append(f"tick: {plan.tick['tick']}")
    if plan.params:
        lines.append(f"parameters: {', '.join(f'{name}={value_text(value)}' for name, value in plan.params.items())}")
    return lines


def _nobody_lines(plan: documents.Plan, resume: str) -> list[str]:
    """That no process runs a plan, since when, and how to resume it."""
    resumed = f"resume it with: {resume}"
    if plan.last_owner is None:
        return ["no process runs it", resumed]
    at = plan.last_heard_at
    heard = "" if at is None else f", and was last heard {format_age(plan.now - at)} ago"
    return [f"no process runs it: {plan.last_owner} is gone{heard}", resumed]


def review_lines(plan: documents.Plan, store: str = "") -> list[str]:
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
        number = "1 approval waits" if plan.waiting_edits == 1 else f"{plan.waiting_edits:,} approvals wait"
        lines.append(f"{number} for a person; list with: asterism plan approvals {plan.name}{store}")
    return [clean(line) for line in lines]


def failure_lines(failed: Sequence[documents.PlanTask]) -> Iterator[Text]:
    """The tasks that failed, with the reasons."""
    wide = max((len(task.id) for task in failed), default=0)
    for task in failed:
        attempts = f" (attempt {task.attempts})" if task.attempts > 1 else ""
        yield Text.assemble((f"{clean(task.id):<{wide}}  ", tone("failed")), clean(task.reason or ""), (attempts, DIM))


def command_at(url: str, command: str, *names: str) -> str:
    """A command that is advised, for a store or a server: ``command_at(url, "plan watch", "nightly")``."""
    return shlex.join(["asterism", *command.split(), *names, "--store", url])


def explanation_lines(why: documents.TaskWhy, width: int | None) -> Iterator[Text]:
    run = f", as run {why.run}" if why.run is not None else ""
    yield Text(f"Task {why.task!r} of plan {why.name!r} is {why.status}{run}:")
    for reason in why.reasons:
        yield from wrapped(reason.text, width, "  ")
    for advice in why.advice:
        yield from wrapped(advice, width)
    if why.answered_by is not None:
        yield from wrapped(f"Answered by {why.answered_by}, which runs it.", width)


def plan_explanation_lines(why: documents.PlanWhy, width: int | None) -> Iterator[Text]:
    """What holds a plan, by cause."""
    if why.running:
        yield Text(f"Plan {why.name!r} is {clean(why.state)}; running: {clean(join_names(why.running, MOST_NAMES))}.")
    elif why.causes:
        yield Text(f"Nothing of plan {why.name!r} moves, which is {clean(why.state)}.")
    else:
        yield Text(f"Nothing holds plan {why.name!r}, which is {clean(why.state)}.")
    for cause in why.causes:
        behind = f", and {plural(cause.behind, 'task')} behind" if cause.behind else ""
        yield from wrapped(f"{join_names(cause.tasks, MOST_NAMES)}{behind}: {cause.text}", width, "  ")
        for advice in cause.advice:
            yield from wrapped(advice, width, "    ")
    if why.left:
        yield Text(
            f"  and {plural(why.left, 'task')} more, each with its cause: asterism plan why {clean(why.name)} TASK"
        )


def stalled_line(why: documents.PlanWhy) -> str:
    """That nothing of a plan moves, and why; empty if something does."""
    if why.running or not why.causes:
        return ""
    cause = why.causes[0]
    more = f" (and {len(why.causes) - 1} more causes)" if len(why.causes) > 1 else ""
    return clean(f"nothing moves: {join_names(cause.tasks, MOST_NAMES)}: {cause.text}{more}")


def value_text(value: Any) -> str:
    """A value on one line: text as it is, anything else as JSON."""
    return clean(value if isinstance(value, str) else json_text(value))


def story_lines(entries: Sequence[documents.StoryEntry], width: int | None = None) -> Iterator[Text]:
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


def applied_lines(outcome: documents.EditOutcome, resume: str = "") -> list[str]:
    """What an edit has changed. ``resume`` is the command that runs the plan, if the edit may have reopened it."""
    name = outcome.name
    if not outcome.edits:
        return [f"Plan {name!r} stays at version {outcome.version}: the batch changes nothing."]
    version = f"version {outcome.version_before} -> {outcome.version}"
    changed = f"Plan {name!r} {'would change' if outcome.dry_run else 'changed'}: {version}."
    by = [f"Applied by {clean(outcome.applied_by)}, which runs it."] if outcome.applied_by is not None else []
    again = [f"No process runs the plan. Resume it with: {resume}"] if outcome.rests is not None else []
    if outcome.reopened and outcome.dry_run:
        again = ["The plan has ended, and would be open again."]
    elif outcome.reopened:
        again = ["The plan had ended, and is open again.", *(again or ["A server on this store runs it."])]
    waits = [f"The edit would wait for a person: {clean('; '.join(outcome.waits))}."] if outcome.waits else []
    changes = [*map(clean, outcome.changes), *(f"stop task {task!r}" for task in outcome.stopped)]
    return [*changes, " ".join([changed, *by]), *again, *waits]


def paused_line(state: documents.PlanState) -> str:
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


# -- versions and edit cycles ------------------------------------------------------------------------------------------


WAITING = "waiting"

MOST_EDITS = 10
"""How many edits of a batch the terminal shows."""


def edit_lines(edits: Sequence[Mapping[str, Any]] | None) -> list[str]:
    """The edits of a batch in JSON, one line each."""
    from asterism.core.plan.edits import edit_from_json  # a list of plans takes less time to start without them
    from asterism.core.plan.group_elements import edit_texts

    if edits is None:
        return ["edits that were not kept: too long, or malformed"]
    if len(edits) > MOST_EDITS:
        with contextlib.suppress(InvalidTask):
            texts = edit_texts(list(map(edit_from_json, edits)))
            if len(texts) < len(edits):
                return list(map(clean, texts))
    lines = []
    for edit in edits[:MOST_EDITS]:
        try:
            lines.append(clean(str(edit_from_json(edit))))
        except InvalidTask:  # a mask has changed it
            lines.append(clean(str(edit.get("op", ""))).replace("_", " "))
    more = len(edits) - MOST_EDITS
    return lines if more <= 0 else [*lines, f"and {more:,} more edits"]


def history_lines(history: documents.Versions) -> Iterator[Text]:
    """All edits in the order of time."""
    edits: list[documents.PlanVersion | documents.RejectedEdit] = [*history.items, *history.rejected]
    for edit in sorted(edits, key=lambda edit: edit.at):
        accepted = isinstance(edit, documents.PlanVersion)
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
        if isinstance(edit, documents.RejectedEdit):
            for violation in edit.violations:
                yield Text(f"    ! {clean(violation.message)}")


def past_line(past: documents.PastPlan) -> str:
    made = past.edit
    by = f" by {clean(made.author)}" if made.author else ""
    why = f": {clean(made.reason)}" if made.reason else ""
    return f"Version {made.version}, {format_time(made.at)}{by}{why}"


# -- edit cycles -------------------------------------------------------------------------------------------------------


def cycle_lines(name: str, cycles: documents.Cycles, store: str = "") -> Iterator[Text]:
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
        at = f"{clean(name)} {cycles.items[0].id}{store}"
        if any(cycle.claimed_by is None and cycle.expires_at is not None for cycle in cycles.items):
            yield Text(f"Claim one to have more time: asterism plan claim {at}")
        yield Text(f"Answer one with: asterism plan answer {at} [--add … --remove …]")
    else:
        yield Text(f"No process answers. Resume the plan with: asterism resume {clean(name)}{store}")


def _subject(cycle: documents.CycleDetails) -> str:
    if cycle.stuck and cycle.refusals:
        return "an answer was refused"
    return "no task can start" if cycle.stuck else f"reviews {join_names(cycle.tasks, MOST_NAMES)}"


def _reviewer(cycle: documents.CycleDetails, by: str | None, now: float) -> str:
    if by is None:
        return "it waits until a process runs the plan"
    until = "" if cycle.expires_at is None else f"; closed in {format_duration(max(0.0, cycle.expires_at - now))}"
    until = f"; {clean(cycle.on_hold)}" if cycle.on_hold else until
    if cycle.claimed_by is None:
        return f"not claimed{until}"
    lease = "" if cycle.claimed_until is None else f" for {format_duration(max(0.0, cycle.claimed_until - now))}"
    return f"claimed by {clean(cycle.claimed_by)}{lease}{until}"


def claimed_lines(name: str, cycle: documents.CycleDetails, lease: float, store: str = "") -> str:
    """``lease`` is for how many seconds it was claimed; ``store`` ends the command that is advised."""
    return (
        f"Cycle {cycle.id} of plan {clean(name)!r} ({_subject(cycle)}) is claimed by {clean(cycle.claimed_by or '')} "
        f"for {format_duration(lease)}, at version {cycle.version}.\n"
        f"Answer it with: asterism plan answer {clean(name)} {cycle.id}{store} [--add … --remove …]"
    )


def answered_lines(cycle: int, outcome: documents.EditOutcome) -> list[str]:
    if not outcome.edits:
        return [f"Cycle {cycle} of plan {clean(outcome.name)!r} is closed without an edit."]
    return [*applied_lines(outcome), f"Cycle {cycle} is closed."]


# -- approvals ---------------------------------------------------------------------------------------------------------


def waiting_lines(name: str, edit: documents.WaitingEdit, store: str = "") -> list[str]:
    return [
        *edit_lines(edit.batch["edits"]),
        f"The edit waits for a person: approval {edit.id}.",
        f"Approve it with: asterism plan approve {clean(name)} {edit.id}{store}",
    ]


def approved_lines(approval: int, outcome: documents.EditOutcome) -> list[str]:
    """What an approval has changed: the plan, or that a task may start."""
    if not outcome.edits:
        return [f"Approval {approval} of plan {outcome.name!r} is given: the task starts when a device is free."]
    return applied_lines(outcome)


def approval_lines(name: str, edits: Sequence[documents.WaitingEdit], now: float, store: str = "") -> Iterator[Text]:
    """Each edit with all of its work: a person approves what is shown."""
    for edit in edits:
        by = clean(edit.batch.get("author") or "somebody")
        why = f": {clean(edit.batch['reason'])}" if edit.batch.get("reason") else ""
        subject = f"edit by {by}{why}" if edit.task is None else f"start of task {edit.task!r}"
        yield Text(f"approval {edit.id}: {clean(subject)}, {_decision(edit, now)}")
        for line in edit.changes:
            yield Text(f"    {line}")
        for reason in edit.reasons:
            yield Text(f"    waits because of: {clean(reason)}", style=DIM)
        if edit.state == WAITING:
            held = f"; holds {join_names(edit.tasks, MOST_NAMES)}" if edit.tasks else ""
            what = "refused" if edit.task is None else "not approved"
            yield Text(f"    {what} in {format_duration(max(0.0, edit.expires_at - now))}{clean(held)}", style=DIM)
    first = next((edit for edit in edits if edit.state == WAITING), None)
    if first is not None:
        decided = f"{clean(name)} {first.id}{store}"
        yield Text(f"Decide with: asterism plan approve {decided}")
        yield Text(f"         or: asterism plan refuse {decided} [--reason …]")


def _decision(edit: documents.WaitingEdit, now: float) -> str:
    if edit.state == WAITING:
        return f"waits for {format_age(now - edit.at)}"
    by = f" by {clean(edit.decided_by)}" if edit.decided_by else ""
    return f"{edit.state}{by}" + (f": {clean(edit.why)}" if edit.why else "")


# -- budgets -----------------------------------------------------------------------------------------------------------


def budget_lines(name: str, budget: documents.EditorBudget, store: str = "") -> list[str]:
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
