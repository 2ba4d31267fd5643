"""Actions of ``asterism top`` on a plan or a run: pause or resume, cancel, retry; each with the question it asks."""

from __future__ import annotations

from typing import NamedTuple

from asterism.api.system import LocalSystem
from asterism.base.text import clean, short
from asterism.cli.plan.plan_cancel import end_cancelled
from asterism.cli.plan.plan_views import paused_line, reopened_line, resume_command
from asterism.cli.run.run_views import describe_outcome
from asterism.cli.top.top_listings import PLANS, RUNS, Subject
from asterism.core.errors import AsterismError
from asterism.durable import admin
from asterism.durable.journal_store import read_head
from asterism.durable.plan_retry import reopen_plan
from asterism.fleet.fleet import Fleet

PAUSE, CANCEL, RETRY = ACTIONS = ("pause", "cancel", "retry")


class Question(NamedTuple):
    """What is asked before an action. ``action`` is what happens after a yes: ``pause`` may have become ``resume``."""

    text: str
    action: str


async def question(fleet: Fleet, action: str, subject: Subject) -> Question:
    """Raises AsterismError if the action does not apply to the subject."""
    if subject.kind == RUNS:
        run = await fleet.run(subject.name)
        paused, name, ended = run.paused is not None, f"run {short(run.id)}", run.ended
    elif subject.kind == PLANS:
        head, _ = await read_head(fleet.store, subject.name)
        paused = await admin.pause_reason(fleet.store, subject.name) is not None
        name, ended = f"plan {subject.name!r}", head.ended
    else:
        raise AsterismError("only plans and runs can be paused, cancelled and retried")
    if action == RETRY and not ended:
        raise AsterismError(f"{name} has not ended: only what has ended can be retried")
    if action != RETRY and ended:
        raise AsterismError(f"{name} has already ended")
    action = "resume" if action == PAUSE and paused else action
    return Question(clean(f"{action.capitalize()} {name}?"), action)


async def act(fleet: Fleet, action: str, subject: Subject) -> str:
    """Do what was asked, and return the outcome as a sentence. Raises AsterismError if it is refused."""
    if subject.kind == RUNS:
        system = LocalSystem(fleet)
        before = await system.show_run(subject.name)
        request = {
            "pause": system.pause_run,
            "resume": system.resume_run,
            "cancel": system.cancel_run,
            "retry": system.retry_run,
        }
        return describe_outcome(before, await request[action](before.id))
    return clean(await _act_on_plan(fleet, action, subject.name))


async def _act_on_plan(fleet: Fleet, action: str, name: str) -> str:
    resume = resume_command(fleet.store.url, name)
    if action == "pause":
        return paused_line(await LocalSystem(fleet).pause_plan(name))
    if action == "resume":
        await admin.unpause(fleet, name)
        owner = await admin.live_owner(fleet.store, (await read_head(fleet.store, name))[0])
        by = f"{owner.device} runs it." if owner is not None else f"No process runs it; run it with: {resume}"
        return f"Plan {name!r} is resumed. {by}"
    if action == "retry":
        reopened = await reopen_plan(fleet, name)
        return f"{reopened_line(name, reopened.tasks)} Run it with: {resume}"
    await admin.cancel(fleet, name)
    owner = await admin.live_owner(fleet.store, (await read_head(fleet.store, name))[0])
    if owner is not None:
        return f"{owner.device} runs plan {name!r}, and was asked to cancel it."
    result = await end_cancelled(fleet, name)
    return f"Plan {name!r} is {result.state}."
