"""``asterism plan``: plans in a store or at a server. ``asterism resume`` is short for ``asterism plan resume``."""

from __future__ import annotations

import shlex
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from asterism.api.documents import read_pages
from asterism.api.plan_list_operations import MOST_PLANS, STATES
from asterism.base.text import clean, plural
from asterism.cli.cli_context import (
    Answer,
    CommandGroup,
    log_options,
    name_argument,
    note,
    on_system,
    options,
    print_json,
    reason_option,
    refuse_options,
    same_system,
    story_reason_option,
)
from asterism.cli.option_types import duration_option, number_option
from asterism.cli.plan.plan_context import (
    OutputOptions,
    check_drawing_options,
    check_result_option,
    draw_stored,
    drawing_options,
    edit_batch,
    edit_options,
    plain_option,
    quiet_log,
    report_option,
    result_options,
)
from asterism.cli.plan.plan_draft_commands import new
from asterism.cli.plan.plan_review_commands import (
    answer,
    answer_wait_option,
    approvals,
    approve,
    attempt_edit,
    budget,
    claim,
    cycles,
    exchanges,
    history,
    refuse,
)
from asterism.cli.plan.plan_run_commands import resume, retry, standby

if TYPE_CHECKING:
    from asterism.api.system import System


@click.group(cls=CommandGroup)
def plan() -> None:
    """Manage plans: list, show, story, why, edit, pause, resume and more.

    NAME is the name of a plan in the store; `asterism run PLAN.YAML --store URL` starts one."""


_change_options = options(
    click.option("--reason", metavar="TEXT", help="The reason, for the story."),
    click.option("--dry-run", is_flag=True, help="Show the changes without applying them."),
    answer_wait_option,
)
"""The options of the commands that change a plan in a store."""


@plan.command("list")
@click.option(
    "--state",
    "states",
    type=click.Choice(STATES),
    multiple=True,
    help="Only plans in this state; open means not ended.",
)
@click.option("--name", metavar="TEXT", help="Only plans with this in their name, or like this pattern (* and ?).")
@click.option("--file", metavar="NAME", help="Only plans that were started from this plan file.")
@click.option("--tag", metavar="TAG", help="Only plans with this tag in their plan file.")
@duration_option("--since", help="Only plans of this time until now, such as 2h.")
@duration_option("--until", help="Only plans that are older than this, such as 7d.")
@number_option("--limit", 50, least=0, help="Maximum number of plans; 0 for all.")
@click.option("--after", metavar="POSITION", help="Continue an earlier list at the position that it printed.")
@click.option("--newest", is_flag=True, help="List the newest first instead of last.")
@on_system()
async def list_(
    system: System,
    states: tuple[str, ...],
    since: float | None,
    until: float | None,
    limit: int,
    after: str | None,
    newest: bool,
    as_json: bool,
    **wanted: Any,
) -> None:
    """List the latest plans in a store.

    TASKS is the number of ended tasks and of all tasks; HEARD is the age of the owner's last heartbeat. A plan is at
    rest if it has started but no process runs it; resume it with `asterism resume NAME`."""
    from asterism.cli.plan.plan_views import plans_table

    now = time.time()
    wanted["state"] = ",".join(states) or None
    wanted["since"] = None if since is None else now - since
    wanted["until"] = None if until is None else now - until
    page = await read_pages(system.list_plans, limit, MOST_PLANS, after, **wanted)
    if not newest:
        page.items.reverse()
    answer = Answer(page.items, lambda width: plans_table(page.items, page.now or 0.0, width))
    if not page.items:
        filtered = any(value is not None for value in wanted.values())
        start = "The store has no plans. Start one with: asterism run PLAN.YAML --store URL"
        answer = Answer(page.items, notes=["No plan matches." if filtered else start])
    answer.print(as_json)
    if page.next is not None:
        note(f"There are older plans: --after {shlex.quote(page.next)}, or --limit 0 for all")


@plan.command()
@name_argument
@drawing_options
@click.option("--failed", is_flag=True, help="List only the tasks that failed, with the reasons.")
@on_system()
def show(name: str, svg_path: str | None, as_mermaid: bool, failed: bool, as_json: bool) -> Any:
    """Draw a plan as it is now, with the states of its tasks."""
    check_drawing_options(svg_path, as_mermaid, as_json)
    if failed and (svg_path is not None or as_mermaid):
        raise click.UsageError("--failed lists tasks; --svg and --mermaid draw all of them.")

    async def read(system: System) -> None:
        from asterism.cli.plan.plan_views import failure_lines, resume_command, review_lines, status_lines
        from asterism.cli.screen import Screen, print_lines

        if as_mermaid or svg_path is not None:
            await draw_stored(system, name, svg_path, as_mermaid)
            return
        shown = await system.show_plan(name, results=as_json)
        if as_json:
            print_json([task for task in shown.tasks if task.status == "failed"] if failed else shown)
            return
        if failed:
            print_lines(lambda width: failure_lines(shown))
        else:
            await draw_stored(system, name, None, False)
        screen, state = Screen(), status_lines(shown, resume_command(system.url, name))
        for line in ["", *state, *review_lines(shown, same_system(system.url))]:
            screen.say(line)

    return read


@plan.command()
@name_argument
@click.argument("task", required=False)
@on_system()
async def story(system: System, name: str, task: str | None) -> Answer:
    """Print everything that happened to a plan, or to one task."""
    from asterism.cli.plan.plan_views import story_lines

    entries = (await system.read_story(name, task)).items
    if not entries:
        return Answer(entries, notes=[f"Nothing has happened to {task or name!r} yet."])
    return Answer(entries, lambda width: story_lines(entries))


@plan.command()
@name_argument
@click.argument("task")
@on_system()
async def why(system: System, name: str, task: str) -> Answer:
    """Explain why a task is not running.

    The answer names what holds the task: a task before it, an open edit cycle, a pause, or, for a task that is a run on
    the fleet, what holds that run."""
    from asterism.cli.plan.plan_views import explanation_lines

    answer = await system.explain_task(name, task)
    return Answer(answer, lambda width: explanation_lines(answer, width))


@plan.command()
@name_argument
@edit_options
@_change_options
@on_system()
def edit(name: str, reason: str | None, dry_run: bool, timeout: float, **wanted: Any) -> Any:
    """Edit a plan, all or nothing.

    \b
    asterism plan edit nightly --add '{"id": "mail", "shell": "mail-it", "after": "build"}'
    asterism plan edit nightly --remove build --dependents bridge --dry-run

    The process that runs the plan applies the edit; if there is none, this command does. Exits with 1 if the edit is
    rejected, and prints every reason; with 3 if it waits for the approval of a person."""
    batch = edit_batch(**wanted)
    _refuse_wait(dry_run)
    why = batch.reason if reason is None else reason

    async def change(system: System) -> Answer:
        author = batch.author or None
        edit = system.edit_plan(name, batch.edits, why, batch.base_version, dry_run, author, timeout)
        return await attempt_edit(system, name, edit, dry_run=dry_run)

    return change


@plan.command()
@name_argument
@_change_options
@on_system()
def undo(name: str, reason: str | None, dry_run: bool, timeout: float) -> Any:
    """Undo the newest edit of a plan.

    Again, it undoes the edit before that. The process that runs the plan applies it; if there is none, this command
    does. Exits with 1 if it is rejected: tasks that the edit added have started, or a later edit depends on it."""
    _refuse_wait(dry_run)

    async def change(system: System) -> Answer:
        return await attempt_edit(system, name, system.undo_edit(name, reason or "", dry_run, timeout), dry_run=dry_run)

    return change


def _refuse_wait(dry_run: bool) -> None:
    if dry_run:
        refuse_options("has no effect with --dry-run: no process is asked.", "timeout")


@plan.command()
@name_argument
@click.option("--reason", required=True, metavar="TEXT", help="Why what the editors have read is harmless.")
@on_system()
async def trust(system: System, name: str, reason: str) -> Answer:
    """Remove the taint of a plan, so that editors may edit again.

    Editors of a plan that has run an untrusted task may only cancel and retry. Read what that task has returned before
    you remove the taint; the next untrusted task that may start brings it back. Exits with 1 if an untrusted task has
    not ended yet."""
    from asterism.core.plan.edits import RemoveTaint

    return await attempt_edit(system, name, system.edit_plan(name, (RemoveTaint(reason),)))


@plan.command()
@name_argument
@reason_option("shown with the plan")
@on_system()
async def pause(system: System, name: str, reason: str) -> Answer:
    """Pause a plan: start no more tasks until it is resumed.

    Running tasks continue. The process that runs the plan waits."""
    from asterism.cli.plan.plan_views import paused_line

    state = await system.pause_plan(name, reason)
    return Answer(state, clean(paused_line(state)))


@plan.command()
@name_argument
@story_reason_option
@on_system()
async def cancel(system: System, name: str, reason: str, as_json: bool) -> int:
    """Cancel a plan for good.

    Running tasks are asked to stop, and only teardowns of set-ups that have begun are started. The process that runs
    the plan cancels it within a second; if there is none, this command does. The command waits for the end; if no
    device can execute the teardowns that are left, it exits with 75. Ctrl-C stops the waiting, not the
    cancellation."""
    from asterism.cli.plan.plan_cancel import cancel

    with quiet_log(but=("asterism.journal", "asterism.device")):
        return await cancel(system, name, reason, as_json)


@plan.command()
@name_argument
@reason_option("for the notice")
@on_system()
async def remove(system: System, name: str, reason: str) -> Answer:
    """Remove a plan that has ended, with its journal and its runs.

    The fleet also does this by itself: `asterism fleet set --keep` sets how long it keeps what has ended."""
    removed = await system.remove_plan(name, reason)
    return Answer(removed, clean(f"Plan {name!r} is removed, with {plural(removed.runs, 'run')}."))


@plan.command()
@name_argument
@report_option
@result_options
@plain_option
@on_system()
def watch(name: str, as_json: bool, **chosen: Any) -> Any:
    """Follow a plan that runs elsewhere, until it ends.

    What is printed, and the exit code, are those of `asterism run`. If the plan has ended, the command prints its
    result. Ctrl-C ends the following, and the plan goes on."""
    check_result_option(chosen["result"], as_json)
    from asterism.cli.plan.plan_watch import watch_plan

    return partial(watch_plan, name=name, output=OutputOptions(as_json=as_json, **chosen))


@plan.command(short_help="Print what the tasks of a plan have printed.")
@name_argument
@click.argument("task", required=False)
@log_options
@on_system()
def logs(name: str, task: str | None, as_json: bool, **chosen: Any) -> Any:
    """Print what the tasks of a plan have printed, or one task.

    Without TASK the lines of all tasks are printed in the order of time, each with the name of its task. The output of
    all attempts is kept, each up to the --log-limit of the fleet: its beginning and its end. With --json each line is a
    JSON object with its task, attempt, time and stream."""
    from asterism.cli.log_output import print_plan_log, read_log_options

    return partial(print_plan_log, name=name, task=task, options=read_log_options(as_json, chosen))


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
