"""Actions of ``asterism top`` on a plan or a run: pause or resume, cancel, retry; each with the question it asks."""

from __future__ import annotations

from typing import NamedTuple

from asterism.api.system import LocalSystem, System
from asterism.base.text import clean, short
from asterism.cli.plan.plan_cancel import cancelled_end, request_cancel
from asterism.cli.plan.plan_views import paused_line, reopened_line, resume_command
from asterism.cli.run.run_views import describe_outcome
from asterism.cli.top.top_listings import PLANS, RUNS, Subject
from asterism.core.errors import AsterismError

PAUSE, CANCEL, RETRY = ACTIONS = ("pause", "cancel", "retry")


class Question(NamedTuple):
    """What is asked before an action. ``action`` is what happens after a yes: ``pause`` may have become ``resume``."""

    text: str
    action: str


async def question(system: System, action: str, subject: Subject) -> Question:
    """Raises AsterismError if the action does not apply to the subject."""
    if subject.kind == RUNS:
        run = await system.show_run(subject.name)
        paused, name, ended = run.paused is not None, f"run {short(run.id)}", run.ended
    elif subject.kind == PLANS:
        plan = await system.show_plan(subject.name, tasks=False)
        paused, name, ended = plan.paused is not None, f"plan {plan.name!r}", plan.ended
    else:
        raise AsterismError("only plans and runs can be paused, cancelled and retried")
    if action == RETRY and not ended:
        raise AsterismError(f"{name} has not ended: only what has ended can be retried")
    if action != RETRY and ended:
        raise AsterismError(f"{name} has already ended")
    action = "resume" if action == PAUSE and paused else action
    return Question(clean(f"{action.capitalize()} {name}?"), action)


async def act(system: System, action: str, subject: Subject) -> str:
    """Do what was asked, and return the outcome as a sentence. Raises AsterismError if it is refused."""
    if subject.kind == RUNS:
        before = await system.show_run(subject.name)
        request = {
            "pause": system.pause_run,
            "resume": system.resume_run,
            "cancel": system.cancel_run,
            "retry": system.retry_run,
        }
        return describe_outcome(before, await request[action](before.id))
    return clean(await _act_on_plan(system, action, subject.name))


async def _act_on_plan(system: System, action: str, name: str) -> str:
    if action == "pause":
        return paused_line(await system.pause_plan(name))
    if action == "cancel":
        owner = await request_cancel(system, name)
        if owner is not None:
            return f"{owner} runs plan {name!r}, and was asked to cancel it."
        if not isinstance(system, LocalSystem):
            return f"The server was asked to cancel plan {name!r}."
        return f"Plan {name!r} is {(await cancelled_end(system, name)).state}."
    resume = resume_command(system.url, name)
    if action == "retry":
        return f"{reopened_line(name, (await system.retry_plan(name)).tasks or [])} Run it with: {resume}"
    owner = (await system.resume_plan(name)).owner
    by = f"{owner} runs it." if owner is not None else f"No process runs it; run it with: {resume}"
    return f"Plan {name!r} is resumed. {by}"
