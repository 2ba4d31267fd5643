"""``asterism plan``: plans in a store. ``asterism resume`` is short for ``asterism plan resume``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from asterism.base.text import clean
from asterism.cli.cli_context import (
    CommandGroup,
    fleet_options,
    log_options,
    note,
    options,
    print_json,
    refuse_options,
    same_store,
    with_fleet,
)
from asterism.cli.edit_batches import edit_batch, edit_options
from asterism.cli.option_types import duration
from asterism.cli.plan_context import (
    check_drawing_options,
    draw,
    drawing_options,
    quiet_log,
)
from asterism.cli.plan_draft_commands import new
from asterism.cli.plan_review_commands import (
    answer,
    approvals,
    approve,
    budget,
    claim,
    cycles,
    exchanges,
    history,
    print_waiting,
    refuse,
)
from asterism.cli.plan_run_commands import resume, retry, standby

if TYPE_CHECKING:
    from asterism.durable.plan_requests import EditAnswer
    from asterism.fleet.fleet import Fleet

REJECTED = 1

name_argument = click.argument("name")


@click.group(cls=CommandGroup)
def plan() -> None:
    """Manage plans: list, show, story, why, edit, pause, resume and more.

    NAME is the name of a plan in the store; `asterism run PLAN.YAML --store URL` starts one."""


_change_options = options(
    click.option("--reason", metavar="TEXT", help="The reason, for the story."),
    click.option("--dry-run", is_flag=True, help="Show the changes without applying them."),
    click.option(
        "--timeout",
        type=duration,
        default="10s",
        show_default=True,
        metavar="DURATION",
        help="How long to wait for the process that runs the plan.",
    ),
    fleet_options,
)
"""The options of the commands that change a plan in a store."""


@plan.command("list")
@fleet_options
def list_(store: str | None, as_json: bool) -> None:
    """List the plans in a store.

    TASKS is the number of ended tasks and of all tasks; HEARD is the age of the owner's last heartbeat. A plan is at
    rest if it has started but no process runs it; resume it with `asterism resume NAME`."""

    async def read(fleet: Fleet) -> None:
        from asterism.cli.plan_views import plans_table, summary_json
        from asterism.cli.screen import print_lines
        from asterism.durable.stored_plans import list_plans

        found = await list_plans(fleet)
        if as_json:
            print_json([summary_json(one) for one in found])
        elif found:
            print_lines(lambda width: plans_table(found, fleet.store.clock(), width))
        else:
            note("The store has no plans. Start one with: asterism run PLAN.YAML --store URL")

    with_fleet(store, read)


@plan.command()
@name_argument
@drawing_options
@fleet_options
def show(name: str, svg_path: str | None, as_mermaid: bool, store: str | None, as_json: bool) -> None:
    """Draw a plan as it is now, with the states of its tasks."""
    check_drawing_options(svg_path, as_mermaid, as_json)

    async def read(fleet: Fleet) -> None:
        from asterism.cli.plan_review_views import review_lines
        from asterism.cli.plan_views import details_json, resume_command, status_lines
        from asterism.cli.screen import Screen
        from asterism.durable.stored_plans import read_plan

        stored = await read_plan(fleet, name)
        if as_json:
            print_json(details_json(stored))
            return
        draw(stored.record.plan, svg_path, as_mermaid, stored.phase)
        if svg_path is None and not as_mermaid:
            screen, state = Screen(), status_lines(stored, fleet.store.clock(), resume_command(fleet, name))
            for line in ["", *state, *await review_lines(fleet, stored, same_store(fleet))]:
                screen.say(line)

    with_fleet(store, read)


@plan.command()
@name_argument
@click.argument("task", required=False)
@fleet_options
def story(name: str, task: str | None, store: str | None, as_json: bool) -> None:
    """Print everything that happened to a plan, or to one task."""

    async def read(fleet: Fleet) -> None:
        from asterism.cli.plan_views import story_json, story_lines
        from asterism.cli.screen import print_lines
        from asterism.durable.stored_plans import read_plan, unknown_task
        from asterism.durable.task_logs import story_tracebacks
        from asterism.orchestrator.plan_mask import PlanMask

        found = (await read_plan(fleet, name)).record.plan
        entries = found.story(task)
        if task is not None and not entries and task not in found:
            raise unknown_task(found, task)
        secrets, tracebacks = PlanMask(found), await story_tracebacks(fleet, found, entries)
        if as_json:
            print_json(story_json(entries, secrets, tracebacks))
        elif entries:
            print_lines(lambda width: story_lines(entries, secrets, tracebacks))
        else:
            note(f"Nothing has happened to {task or name!r} yet.")

    with_fleet(store, read)


@plan.command()
@name_argument
@click.argument("task")
@fleet_options
def why(name: str, task: str, store: str | None, as_json: bool) -> None:
    """Explain why a task is not running.

    The answer names what holds the task: a task before it, an open edit cycle, a pause, or, for a task that is a run on
    the fleet, what holds that run."""

    async def read(fleet: Fleet) -> None:
        from asterism.api.local.run_handlers import run_advice
        from asterism.cli.plan_views import explanation_lines
        from asterism.cli.screen import print_lines
        from asterism.durable.stored_plans import explain_task, explanation_json

        found = await explain_task(fleet, name, task, run_advice)
        if as_json:
            print_json(explanation_json(found))
        else:
            print_lines(lambda width: explanation_lines(found, width))

    with_fleet(store, read)


@plan.command()
@name_argument
@edit_options
@_change_options
def edit(
    name: str, store: str | None, as_json: bool, reason: str | None, dry_run: bool, timeout: float, **wanted: Any
) -> int:
    """Edit a plan, all or nothing.

    \b
    asterism plan edit nightly --add '{"id": "mail", "shell": "mail-it", "after": "build"}'
    asterism plan edit nightly --remove build --dependents bridge --dry-run

    The process that runs the plan applies the edit; if there is none, this command does. Exits with 1 if the edit is
    rejected, and prints every reason; with 3 if it waits for the approval of a person."""
    batch = edit_batch(**wanted)

    async def change(fleet: Fleet) -> EditAnswer:
        from asterism.durable.plan_requests import edit_plan

        signed = replace(batch, author=batch.author or fleet.by, reason=reason if reason is not None else batch.reason)
        return await edit_plan(fleet, name, signed, dry_run=dry_run, timeout=timeout)

    return _change_plan(name, store, as_json, dry_run, change)


@plan.command()
@name_argument
@_change_options
def undo(name: str, store: str | None, as_json: bool, reason: str | None, dry_run: bool, timeout: float) -> int:
    """Undo the newest edit of a plan.

    Again, it undoes the edit before that. The process that runs the plan applies it; if there is none, this command
    does. Exits with 1 if it is rejected: tasks that the edit added have started, or a later edit depends on it."""

    async def change(fleet: Fleet) -> EditAnswer:
        from asterism.durable.plan_requests import undo_edit

        return await undo_edit(fleet, name, reason or "", dry_run=dry_run, timeout=timeout)

    return _change_plan(name, store, as_json, dry_run, change)


@plan.command()
@name_argument
@click.option("--reason", required=True, metavar="TEXT", help="Why what the editors have read is harmless.")
@fleet_options
def trust(name: str, reason: str, store: str | None, as_json: bool) -> int:
    """Remove the taint of a plan, so that editors may edit again.

    Editors of a plan that has run an untrusted task may only cancel and retry. Read what that task has returned before
    you remove the taint; the next untrusted task that may start brings it back. Exits with 1 if an untrusted task has
    not ended yet."""

    async def change(fleet: Fleet) -> EditAnswer:
        from asterism.core.plan.edits import EditBatch, RemoveTaint
        from asterism.durable.plan_requests import edit_plan

        return await edit_plan(fleet, name, EditBatch((RemoveTaint(reason),), author=fleet.by))

    return _change_plan(name, store, as_json, False, change)


def _change_plan(
    name: str, store: str | None, as_json: bool, dry_run: bool, change: Callable[[Fleet], Awaitable[EditAnswer]]
) -> int:
    """Change a plan, and print the changes or why they were rejected. Returns the exit code."""
    if dry_run:
        refuse_options("has no effect with --dry-run: no process is asked.", "timeout")

    async def attempt(fleet: Fleet) -> int:
        from asterism.cli.plan_views import applied_json, applied_lines, rejected_json, resume_command
        from asterism.core.errors import EditRejected
        from asterism.core.plan.approval import EditWaits
        from asterism.durable.stored_plans import find_plan

        await find_plan(fleet, name)
        try:
            answer = await change(fleet)
        except EditWaits as waits:
            return print_waiting(fleet, name, waits.approval, as_json)
        except EditRejected as rejected:
            for line in str(rejected).splitlines():
                note(line)
            if as_json:
                print_json(rejected_json(name, rejected, dry_run))
            return REJECTED
        if as_json:
            print_json(applied_json(name, answer, dry_run))
        else:
            click.echo("\n".join(applied_lines(name, answer, dry_run, resume_command(fleet, name))))
        return 0

    return with_fleet(store, attempt)


@plan.command()
@name_argument
@click.option("--reason", default="", metavar="TEXT", help="The reason, shown with the plan.")
@fleet_options
def pause(name: str, reason: str, store: str | None, as_json: bool) -> None:
    """Pause a plan: start no more tasks until it is resumed.

    Running tasks continue. The process that runs the plan waits."""

    async def ask(fleet: Fleet) -> None:
        from asterism.cli.plan_views import paused_line
        from asterism.durable.plan_requests import pause_plan
        from asterism.durable.stored_plans import find_plan

        await find_plan(fleet, name)
        answer = await pause_plan(fleet, name, reason)
        if as_json:
            applied = {} if answer.owner is None else {"owner": answer.owner, "applied_by": answer.by}
            print_json({"name": name, "paused": answer.reason, **applied})
        else:
            click.echo(clean(paused_line(name, answer)))

    with_fleet(store, ask)


@plan.command()
@name_argument
@click.option("--reason", default="", metavar="TEXT", help="The reason, for the story.")
@fleet_options
def cancel(name: str, reason: str, store: str | None, as_json: bool) -> int:
    """Cancel a plan for good.

    Running tasks are asked to stop and no task is started. The process that runs the plan cancels it within a second;
    if there is none, this command does. The command waits for the end. Ctrl-C stops the waiting, not the
    cancellation."""

    async def end(fleet: Fleet) -> int:
        from asterism.cli.plan_execution import cancel

        return await cancel(fleet, name, reason, as_json)

    with quiet_log(but=("asterism.journal", "asterism.device")):
        return with_fleet(store, end)


@plan.command(short_help="Print what the tasks of a plan have printed.")
@name_argument
@click.argument("task", required=False)
@log_options
@fleet_options
def logs(name: str, task: str | None, store: str | None, as_json: bool, **terms: Any) -> None:
    """Print what the tasks of a plan have printed, or one task.

    Without TASK the lines of all tasks are printed in the order of time, each with the name of its task. The output of
    all attempts is kept, each up to the --log-limit of the fleet: its beginning and its end. With --json each line is a
    JSON object with its task, attempt, time and stream."""
    if as_json:
        refuse_options("has no effect with --json: each line has its time and stream.", "times")

    async def read(fleet: Fleet) -> None:
        from asterism.cli.log_output import LogOptions, print_plan_log
        from asterism.durable.stored_plans import read_plan, unknown_task
        from asterism.durable.task_logs import task_runs

        found = (await read_plan(fleet, name)).record.plan
        if task is not None and task not in found and not await task_runs(fleet.store, name, task):
            raise unknown_task(found, task)
        await print_plan_log(fleet, name, task, LogOptions(**terms, as_json=as_json))

    with_fleet(store, read)


for _command in (
    resume,
    retry,
    standby,
    history,
    cycles,
    claim,
    answer,
    approvals,
    approve,
    refuse,
    budget,
    exchanges,
    new,
):
    plan.add_command(_command)
