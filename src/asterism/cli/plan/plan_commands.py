"""``asterism plan``: plans in a store or at a server. ``asterism resume`` is short for ``asterism plan resume``."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from asterism.api.documents import PlanTask, read_pages
from asterism.api.plan_operations import MOST_FILES, MOST_PLANS, MOST_TASKS, STATES
from asterism.base.text import clean, clean_lines, echo_data, masked_urls, plural
from asterism.cli.cli_context import (
    Answer,
    CommandGroup,
    fleet_options,
    format_size,
    listed,
    log_options,
    note,
    on_system,
    options,
    print_json,
    reason_option,
    refuse_options,
    same_system,
    server_of,
    story_reason_option,
    view,
    with_fleet,
    with_system,
)
from asterism.cli.csv_table import csv_text
from asterism.cli.editor_options import (
    MODEL_VARIABLE,
    allow_imports,
    budget_limits,
    edit_proposer,
    editor_terms,
    proposer_options,
    resolve_editor,
)
from asterism.cli.option_types import capabilities, duration_option, number_option, option
from asterism.cli.plan.plan_context import (
    EDIT_OPTIONS,
    NO_EDITOR,
    LocalCommand,
    OutputOptions,
    check_drawing_options,
    concurrency_option,
    draw_stored,
    drawing_options,
    edit_batch,
    edit_options,
    editor_options,
    local_options,
    local_work,
    plain_option,
    quiet_log,
    report_option,
    result_options,
)
from asterism.core.record import asdict, replace

if TYPE_CHECKING:
    from asterism.api.documents import EditOutcome, PlanFile, PlanState
    from asterism.api.system import System
    from asterism.cli.plan.plan_execution import WatchedOrchestrator
    from asterism.core.run.work import Workflow
    from asterism.fleet.fleet import Fleet
    from asterism.models.planner import PlanDraft


@click.group(cls=CommandGroup)
def plan() -> None:
    """Manage plans: list, show, story, why, edit, pause, resume and more.

    NAME is the name of a plan in the store; `asterism run PLAN.YAML --store URL` starts one."""


answer_wait_option = duration_option(
    "--wait timeout", "10s", help="How long to wait for the process that runs the plan."
)

_change_options = options(
    option("--reason TEXT", "The reason, for the story."),
    option("--dry-run", "Show the changes without applying them."),
    answer_wait_option,
)
"""The options of the commands that change a plan in a store."""


@plan.command()
@option(
    "--state", "Only plans in this state; open means not ended.", to="states", type=click.Choice(STATES), multiple=True
)
@option("--name TEXT", "Only plans with this in their name, or like this pattern (* and ?).")
@option("--file NAME", "Only plans that were started from this plan file.")
@option("--tag TAG", "Only plans with this tag in their plan file.")
@duration_option("--since", help="Only plans of this time until now, such as 2h.")
@duration_option("--until", help="Only plans that are older than this, such as 7d.")
@number_option("--limit", 50, least=0, help="Maximum number of plans; 0 for all.")
@option("--after POSITION", "Continue an earlier list at the position that it printed.")
@option("--newest", "List the newest first instead of last.")
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
    now = time.time()
    wanted["state"] = ",".join(states) or None
    wanted["since"] = None if since is None else now - since
    wanted["until"] = None if until is None else now - until
    page = await read_pages(system.list_plans, limit, MOST_PLANS, after, **wanted)
    if not newest:
        page.items.reverse()
    filtered = any(value is not None for value in wanted.values())
    start = "The store has no plans. Start one with: asterism run PLAN.YAML --store URL"
    listed(page, "plan.plan_views:PLAN_TABLE", "No plan matches." if filtered else start).print(as_json)
    if page.next is not None:
        note(f"There are older plans: --after {shlex.quote(page.next)}, or --limit 0 for all")


@plan.command()
@drawing_options
@option("--failed", "List only the tasks that failed, with the reasons.")
@option("--csv", "Print a table of the tasks in CSV instead.", to="as_csv")
@option("--open GROUP", "List the elements of this large group (repeatable).", to="opened", multiple=True)
@on_system()
def show(
    name: str,
    as_mermaid: bool,
    failed: bool,
    as_csv: bool,
    opened: tuple[str, ...],
    as_json: bool,
) -> Any:
    """List the tasks of a plan as it is now, with their states.

    Each is below a task that it depends on. A foreach of more than 100 elements is one task with counts. In CSV it has
    a row for each element, times are seconds since 1970, and a ' is put before a text that a spreadsheet would
    calculate."""
    check_drawing_options(as_mermaid, as_json)
    if as_csv and (as_mermaid or as_json or opened):
        raise click.UsageError("--csv has a row for each task; give none of --mermaid, --json and --open with it.")
    if failed and as_mermaid:
        raise click.UsageError("--failed lists tasks; --mermaid draws all of them.")

    async def read(system: System) -> None:
        from asterism.cli.plan.plan_views import command_at, failure_lines, review_lines, stalled_line, status_lines
        from asterism.cli.screen import Screen
        from asterism.cli.tables import print_lines

        if as_mermaid:
            await draw_stored(system, name, as_mermaid, opened=opened)
            return
        tasks: list[PlanTask] = []
        if failed or as_csv:
            status = "failed" if failed else ""
            tasks = (await read_pages(system.list_tasks, 0, MOST_TASKS, plan=name, status=status)).items
        if as_csv:
            echo_data(csv_text([TASK_COLUMNS, *map(_cells, tasks)]))
            return
        shown = await system.show_plan(name, tasks=as_json and not failed, results=as_json)
        if as_json:
            print_json(tasks if failed else shown)
            return
        if failed:
            print_lines(lambda width: failure_lines(tasks))
        else:
            await draw_stored(system, name, False, opened=opened)
        screen, state = Screen(), status_lines(shown, command_at(system.url, "resume", name))
        stalled = stalled_line(await system.explain_plan(name)) if shown.state == "executing" else ""
        for line in ["", *state, *filter(None, [stalled]), *review_lines(shown, same_system(system.url))]:
            screen.say(line)

    return read


TASK_COLUMNS = ("id", "group", "status", "device", "attempts", "started_at", "ended_at", "took", "reason")


def _cells(task: PlanTask) -> list[Any]:
    began = task.started_at if task.attempt is None else task.attempt.begun_at
    took = None if began is None or task.ended_at is None else round(task.ended_at - began, 3)
    cells = {"status": task.phase or task.status, "started_at": began, "took": took}
    return [cells[name] if name in cells else getattr(task, name) for name in TASK_COLUMNS]


@plan.command()
async def story(system: System, name: str, task: str | None) -> Answer:
    """Print everything that happened to a plan, or to one task."""
    entries = (await system.read_story(name, task)).items
    notes = [] if entries else [f"Nothing has happened to {task or name!r} yet."]
    return Answer(entries, view("plan.plan_views:story_lines", entries), notes)


async def _files(system: System, name: str, task: str | None) -> list[PlanFile]:
    """All files of a plan, or of a task."""
    return (await read_pages(system.list_files, 0, MOST_FILES, plan=name, task=task)).items


@plan.command(short_help="List the files that tasks have made.")
async def files(system: System, name: str, task: str | None) -> Answer:
    """List the files that the tasks of a plan have made, or those of one task."""
    found = await _files(system, name, task)
    lines = [f"{clean(file.task)}.{file.output}  {format_size(file.size)}  {clean(file.path)}" for file in found]
    return Answer(found, "\n".join(lines), [] if found else ["There are no files."])


@plan.command()
@option("-o --output DIR", "The folder to write to.", to="folder", required=True, type=click.Path(file_okay=False))
async def get(system: System, name: str, task: str, output: str, folder: str) -> Answer:
    """Write the files of an output of a task to a folder. A group has those of its elements.

    Each file is verified before it gets its name. Called again after an interruption, it continues where it stopped."""

    wanted = [file for file in await _files(system, name, task) if file.output == output]
    if not wanted:
        raise click.ClickException(f"task {clean(task)!r} of plan {clean(name)!r} has no files {clean(output)!r}")
    paths: dict[str, str] = {}
    for file in wanted:
        if (maker := paths.setdefault(file.path, file.task)) != file.task:
            both = f"{clean(maker)!r} and {clean(file.task)!r} both have a file {clean(file.path)!r}"
            raise click.ClickException(f"{both}; get the files of one element at a time")
    for file in wanted:
        await download(system, name, file, Path(folder))
    return Answer(wanted, "\n".join(clean(f"{folder}/{file.path}") for file in wanted))


@plan.command(short_help="Explain why a task or a plan does not go on.")
@click.argument("task", required=False)
async def why(system: System, name: str, task: str | None) -> Answer:
    """Explain why a task is not running, or what holds a whole plan.

    The answer names what holds the task: a task before it, an open edit cycle, a pause, or, for a task that is a run on
    the fleet, what holds that run. Without a task it lists the tasks at the beginning of what waits, by cause."""
    if task is None:
        held = await system.explain_plan(name)
        return Answer(held, view("plan.plan_views:plan_explanation_lines", held))
    answer = await system.explain_task(name, task)
    return Answer(answer, view("plan.plan_views:explanation_lines", answer))


@plan.command()
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


@plan.command(short_help="Change a plan by a request in words.")
@proposer_options
@option("--yes", "Apply the edits without a question.")
@option("--dry-run", "Show the edits without applying them.")
@fleet_options
def ask(
    name: str, request: str, yes: bool, dry_run: bool, store: str | None, as_json: bool, **model_values: Any
) -> int:
    """Let a model write edits for a REQUEST in words.

    \b
    asterism plan ask nightly "skip the mail and send a chat message instead" --model openai:gpt-5
    asterism plan ask nightly "run the tests twice" --dry-run

    The edits are shown before they are applied. In a terminal the command asks whether to apply them; say what to
    change, and the model proposes again. The edits are those of an editor with the name of the model: its scopes, the
    taint of the plan and the rules for approvals limit them. This command calls the model, with the key in its
    environment, also for a plan at a server; the default model is $ASTERISM_MODEL.

    Exits with 1 if the model proposes no edits, if they are rejected, or if you do not want them; with 3 if they wait
    for the approval of a person, or were only shown, since there is no terminal and no --yes."""
    if yes and dry_run:
        raise click.UsageError("--yes and --dry-run exclude each other.")
    if not request.strip():
        raise click.UsageError("The request is empty: say in words what to change.")
    from asterism.cli.plan.plan_proposals import EditConversation

    model_values["models"] = _models(model_values["models"])
    return EditConversation(name, [request], edit_proposer(**model_values), store, yes, dry_run, as_json).hold()


def _models(given: tuple[str, ...]) -> tuple[str, ...]:
    """The models that are given, or the default. Raises UsageError if there is none."""
    models = given or tuple(filter(None, [os.environ.get(MODEL_VARIABLE)]))
    if not models:
        raise click.UsageError(f"Name a model: --model openai:gpt-5, or ${MODEL_VARIABLE}.")
    return models


def _refuse_wait(dry_run: bool) -> None:
    if dry_run:
        refuse_options("has no effect with --dry-run: no process is asked.", "timeout")


@plan.command()
@option("--reason TEXT", "Why what the editors have read is harmless.", required=True)
async def trust(system: System, name: str, reason: str) -> Answer:
    """Remove the taint of a plan, so that editors may edit again.

    Editors of a plan that has run an untrusted task may only cancel tasks. Read what that task has returned before
    you remove the taint; the next untrusted task that may start brings it back. Exits with 1 if an untrusted task has
    not ended yet."""
    from asterism.core.plan.edits import RemoveTaint

    return await attempt_edit(system, name, system.edit_plan(name, (RemoveTaint(reason),)))


@plan.command()
@reason_option("shown with the plan")
async def pause(system: System, name: str, reason: str) -> Answer:
    """Pause a plan: start no more tasks until it is resumed.

    Running tasks continue. The process that runs the plan waits."""
    from asterism.cli.plan.plan_views import paused_line

    state = await system.pause_plan(name, reason)
    return Answer(state, clean(paused_line(state)))


@plan.command()
@story_reason_option
async def cancel(system: System, name: str, reason: str, as_json: bool) -> int:
    """Cancel a plan for good.

    Running tasks are asked to stop, and only teardowns of set-ups that have begun are started. The process that runs
    the plan cancels it within a second; if there is none, this command does. The command waits for the end; if no
    device can execute the teardowns that are left, it exits with 75. Ctrl-C stops the waiting, not the
    cancellation."""
    from asterism.cli.plan.plan_watch import cancel

    with quiet_log(but=("asterism.journal", "asterism.device")):
        return await cancel(system, name, reason, as_json)


@plan.command(short_help="Remove a plan that has ended.")
@reason_option("for the notice")
async def remove(system: System, name: str, reason: str) -> Answer:
    """Remove a plan that has ended, with its journal and its runs.

    The fleet also does this by itself: `asterism fleet set --keep` sets how long it keeps what has ended."""
    removed = await system.remove_plan(name, reason)
    return Answer(removed, clean(f"Plan {name!r} is removed, with {plural(removed.runs, 'run')}."))


@plan.command()
@report_option
@result_options
@plain_option
@on_system()
def watch(name: str, as_json: bool, **chosen: Any) -> Any:
    """Follow a plan that runs elsewhere, until it ends.

    What is printed, and the exit code, are those of `asterism run`. If the plan has ended, the command prints its
    result. Ctrl-C ends the following, and the plan goes on."""
    output = OutputOptions.take(chosen, as_json)
    from asterism.cli.plan.plan_watch import watch_plan

    return partial(watch_plan, name=name, output=output)


@plan.command(short_help="Print what the tasks of a plan have printed.")
@log_options
@on_system()
def logs(name: str, task: str | None, as_json: bool, **chosen: Any) -> Any:
    """Print what the tasks of a plan have printed, or one task.

    Without TASK the lines of all tasks are printed in the order of time, each with the name of its task. The output of
    all attempts is kept, each up to the --log-limit of the fleet: its beginning and its end. With --json each line is a
    JSON object with its task, attempt, time and stream."""
    from asterism.cli.log_output import print_plan_log, read_log_options

    return partial(print_plan_log, name=name, task=task, options=read_log_options(as_json, chosen))


# -- running -----------------------------------------------------------------------------------------------------------


_run_options = options(
    editor_options,
    concurrency_option,
    local_options,
    option(
        "--can WORD",
        "A capability of this process, if it executes tasks; default: all that the tasks need.",
        multiple=True,
        callback=capabilities,
    ),
    report_option,
    result_options,
    plain_option,
    fleet_options,
)
"""The options of the commands that run a plan in a store."""


@plan.command(cls=LocalCommand)
@_run_options
def resume(name: str, store: str | None, as_json: bool, **option_values: Any) -> int:
    """Resume a plan that was stopped or paused.

    Completed tasks are not repeated, and tasks that run on other devices continue. If the plan has ended, the command
    prints its result and exits with its exit code. Ctrl-C stops the plan again. `asterism resume` is short for
    `asterism plan resume`. At a server, the server runs the plan, and the command does not wait for it."""
    if server_of(store) is not None:
        return _ask_server(store, as_json, lambda system: system.resume_plan(name), "resumed")

    async def work(fleet: Fleet, orchestrator: WatchedOrchestrator) -> int:
        from asterism.cli.plan.plan_execution import follow
        from asterism.core.errors import AlreadyRunning
        from asterism.durable.journal_store import read_head
        from asterism.durable.plan_actor import unpause_plan
        from asterism.durable.plan_summaries import live_owner

        head, _ = await read_head(fleet.store, name)
        if head.ended:
            note(f"Plan {name!r} has already ended.")
        unpaused = not head.ended and await unpause_plan(fleet, name)
        try:
            return await follow(orchestrator, name, lambda: orchestrator.run_stored(name))
        except AlreadyRunning:
            if not unpaused:
                raise
        owner = await live_owner(fleet.store, (await read_head(fleet.store, name))[0])
        where = owner.device if owner is not None else head.device
        if as_json:
            print_json({"id": name, "state": head.state, "resumed": True, "owner": where})
        else:
            click.echo(clean(f"Plan {name!r} is resumed; {where} runs it."))
        return 0

    return _run_in_store(store, as_json, option_values, work)


@plan.command(cls=LocalCommand)
@_run_options
def standby(name: str, store: str | None, as_json: bool, **option_values: Any) -> int:
    """Wait until no process runs a plan, then take it over.

    The command takes over when the plan's process has stopped, or has sent no heartbeat for its --takeover-after. It
    exits with the exit code of the plan."""
    if server_of(store) is not None:
        raise click.UsageError("A server takes plans over by itself; standby is for a store that is opened here.")

    async def work(fleet: Fleet, orchestrator: WatchedOrchestrator) -> int:
        from asterism.cli.plan.plan_execution import follow
        from asterism.durable.journal_store import read_head
        from asterism.durable.plan_summaries import live_owner

        head, _ = await read_head(fleet.store, name)
        owner = await live_owner(fleet.store, head)
        if owner is not None:
            note(f"Standing by: {owner.device} runs {name!r}.")
        return await follow(orchestrator, name, lambda: orchestrator.standby(name), standby=True)

    return _run_in_store(store, as_json, option_values, work)


@plan.command(cls=LocalCommand)
@option(
    "--from TASK",
    "Run this task and everything below it again, instead of what failed.",
    to="from_tasks",
    multiple=True,
)
@edit_options
@option("--reason TEXT", "The reason, for the story.", default="")
@_run_options
def retry(
    name: str,
    from_tasks: tuple[str, ...],
    reason: str,
    store: str | None,
    as_json: bool,
    **option_values: Any,
) -> int:
    """Run again what failed in a plan that has ended.

    What was cancelled because of a failure runs, too.

    \b
    asterism plan retry nightly
    asterism plan retry nightly --from load
    asterism plan retry nightly --set load.timeout=5m

    The plan must have ended. Edits are applied first. Completed tasks keep their results and are not repeated. The
    command runs the plan until it ends again, and exits with its exit code; Ctrl-C stops it, and `asterism resume`
    continues it. A plan that was cancelled stays cancelled. At a server, the server runs the plan, and the command does
    not wait for it."""
    wanted = {option: option_values.pop(option) for option in EDIT_OPTIONS}
    batch = edit_batch(**wanted, may_be_empty=True)
    if server_of(store) is not None:
        why = reason or batch.reason
        return _ask_server(store, as_json, lambda system: system.retry_plan(name, list(from_tasks), batch.edits, why))

    async def work(fleet: Fleet, orchestrator: WatchedOrchestrator) -> int:
        from asterism.cli.plan.plan_execution import follow
        from asterism.cli.plan.plan_views import reopened_line
        from asterism.core.errors import UnknownTask
        from asterism.durable.plan_actor import retry_plan
        from asterism.durable.stored_plans import read_plan, unknown_task

        signed = replace(batch, author=batch.author or fleet.by) if batch.edits else None
        try:
            reopened = await retry_plan(fleet, name, from_tasks=from_tasks, batch=signed, reason=reason)
        except UnknownTask as error:
            raise unknown_task((await read_plan(fleet, name)).record.plan, error.task_id) from None
        note(reopened_line(name, reopened.tasks))
        return await follow(orchestrator, name, lambda: orchestrator.run_stored(name))

    return _run_in_store(store, as_json, option_values, work)


def _ask_server(
    store: str | None, as_json: bool, ask: Callable[[System], Awaitable[PlanState]], done: str = "reopened"
) -> int:
    """Let a server run a plan, and say who runs it. Returns the exit code."""
    asked = {"name", "from_tasks", *EDIT_OPTIONS, "reason", "store", "as_json"}
    others = {parameter.name or "" for parameter in click.get_current_context().command.params} - asked
    refuse_options("has no effect at a server: the server runs the plan.", *others)

    async def request(system: System) -> int:
        from asterism.cli.plan.plan_views import reopened_line

        state = await ask(system)
        if as_json:
            print_json(state)
            return 0
        if state.tasks is not None:
            note(reopened_line(state.name, state.tasks))
        by = f"{state.owner} runs it" if state.owner is not None else "a server on its store runs it"
        follow = f"asterism plan show {state.name}{same_system(server_of(store) or '')}"
        click.echo(clean(f"Plan {state.name!r} is {done}; {by}. Look at it with: {follow}"))
        return 0

    return with_system(store, request)


def _run_in_store(
    store: str | None,
    as_json: bool,
    option_values: dict[str, Any],
    work: Callable[[Fleet, WatchedOrchestrator], Awaitable[int]],
) -> int:
    from asterism.cli.plan.plan_execution import WatchedOrchestrator

    output = OutputOptions.take(option_values, as_json)
    if option_values["editor"] is None:
        refuse_options(NO_EDITOR, "edit_on")
    if option_values["no_local"]:
        refuse_options("has no effect with --no-local: this process executes no tasks.", "can")
    allow_imports()
    local = local_work(
        option_values.pop("local"), option_values.pop("no_local"), frozenset(option_values.pop("can")) or None
    )
    option_values |= editor_terms(option_values.pop("editor"), option_values.pop("edit_on"), option_values)

    async def begin(fleet: Fleet) -> int:
        return await work(
            fleet, WatchedOrchestrator(fleet, local, output, **await resolve_editor(fleet, option_values))
        )

    with quiet_log(but=("asterism.journal", "asterism.device")):
        return with_fleet(store, begin)


# -- reviews -----------------------------------------------------------------------------------------------------------


REJECTED, WAITS = 1, 3
"""Exit codes: the edit was rejected; the edit waits for the approval of a person."""


@plan.command()
@click.argument("version", required=False, type=click.IntRange(min=0))
@drawing_options
@on_system()
def history(name: str, version: int | None, as_mermaid: bool, as_json: bool) -> Any:
    """List the versions of a plan, or the tasks of one of them.

    Each version has its author, its reason and its edits. Rejected edits are listed too, the newest 50, with the
    reasons. With VERSION, the plan is shown as it was when that version was made; version 0 is the plan as it was
    stored."""
    check_drawing_options(as_mermaid, as_json)
    if version is None and as_mermaid:
        raise click.UsageError("--mermaid draws one version: name it after the plan.")

    async def read(system: System) -> Answer | None:
        from asterism.cli.plan.plan_views import history_lines, past_line
        from asterism.cli.screen import Screen

        if version is None:
            versions = await system.list_versions(name)
            unedited = len(versions.items) == 1 and not versions.rejected
            notes = [f"Plan {name!r} has not been edited."] if unedited else []
            return Answer(versions, lambda width: history_lines(versions), notes)
        past = await system.show_version(name, version)
        if as_json:
            print_json(past)
            return None
        await draw_stored(system, name, as_mermaid, version)
        if not as_mermaid:
            screen = Screen()
            screen.say()
            screen.say(past_line(past))
        return None

    return read


# -- edits -------------------------------------------------------------------------------------------------------------


async def attempt_edit(
    system: System,
    name: str,
    edit: Awaitable[EditOutcome],
    lines: Callable[[EditOutcome], list[str]] | None = None,
    *,
    dry_run: bool = False,
) -> Answer:
    """Edit a plan. The answer has ``lines``, by default the changes; or that the edit waits, or why it was rejected."""
    from asterism.api.client_errors import ApiError
    from asterism.cli.plan.plan_views import applied_lines, command_at
    from asterism.core.errors import EditRejected
    from asterism.core.plan.edits import EditWaits

    try:
        outcome = await edit
    except EditWaits as waits:
        return await _waiting(system, name, waits.approval.id)
    except ApiError as error:
        if error.approval is None:
            raise
        return await _waiting(system, name, error.approval)
    except EditRejected as rejected:
        for line in str(rejected).splitlines():
            note(line)
        violations = [{"edit": why.edit, "rule": why.rule, "message": why.message} for why in rejected.violations]
        document = {"name": name, "accepted": False, "dry_run": dry_run, "violations": violations}
        return Answer(document, code=REJECTED)
    shown = applied_lines(outcome, command_at(system.url, "resume", name)) if lines is None else lines(outcome)
    return Answer(outcome, "\n".join(shown))


async def _waiting(system: System, name: str, approval: int) -> Answer:
    """That an edit waits for a person."""
    from asterism.cli.plan.plan_views import waiting_lines

    edits = (await system.list_approvals(name, all=True)).items
    waiting = next(edit for edit in edits if edit.id == approval)
    lines = waiting_lines(name, waiting, same_system(system.url))
    return Answer({"name": name, "accepted": False, "waiting": waiting}, "\n".join(lines), code=WAITS)


# -- edit cycles -------------------------------------------------------------------------------------------------------

cycle_argument = click.argument("cycle", type=click.IntRange(min=1))

_editor_options = options(
    option("--by NAME", "The name of the editor; default: your user name.", to="who"),
    answer_wait_option,
)
"""The options of the commands of an editor."""


@plan.command()
async def cycles(system: System, name: str) -> Answer:
    """List the open edit cycles of a plan.

    A cycle reviews tasks that have ended, and holds the tasks after them until it is answered. People and other
    processes answer the cycles of a plan that runs with `--editor outside`."""
    from asterism.cli.plan.plan_views import cycle_lines

    cycles = await system.list_cycles(name)
    if not cycles.items:
        return Answer(cycles.items, notes=[f"Plan {name!r} has no open edit cycle."])
    return Answer(cycles.items, lambda width: cycle_lines(name, cycles, same_system(system.url)))


@plan.command(short_help="Claim an open edit cycle.")
@cycle_argument
@duration_option("--lease", "10m", help="How long the cycle is reserved for this editor.")
@_editor_options
async def claim(system: System, name: str, cycle: int, lease: float, who: str | None, timeout: float) -> Answer:
    """Claim an open edit cycle, so that no other editor answers it.

    A cycle that nobody claims within 30 s is closed without an answer. Claim it again to renew the claim. After its
    --lease other editors may claim it. The plan does not wait for longer than its edit timeout, whether the cycle is
    claimed or not."""
    from asterism.cli.plan.plan_views import claimed_lines

    claimed = await system.claim_cycle(name, cycle, lease, who, timeout)
    return Answer(claimed, claimed_lines(name, claimed, lease, same_system(system.url)))


@plan.command()
@cycle_argument
@edit_options
@option("--reason TEXT", "The reason, for the story.")
@_editor_options
@on_system()
def answer(name: str, cycle: int, reason: str | None, who: str | None, timeout: float, **wanted: Any) -> Any:
    """Answer an open edit cycle, with edits or without.

    \b
    asterism plan answer nightly 3
    asterism plan answer nightly 3 --remove publish --reason "the tests failed"

    Without edits the plan goes on as it is. The edits are applied all or none. Exits with 1 if they are rejected, and
    prints every reason; the cycle stays open for another answer. A cycle that nobody has claimed needs no claim."""
    batch = edit_batch(**wanted, may_be_empty=True)
    why = batch.reason if reason is None else reason
    author = who or batch.author or None

    async def ask(system: System) -> Answer:
        from asterism.cli.plan.plan_views import answered_lines

        edit = system.answer_cycle(name, cycle, batch.edits, why, batch.base_version, author, timeout)
        return await attempt_edit(system, name, edit, lambda outcome: answered_lines(cycle, outcome))

    return ask


@plan.command("release-cycle")
@cycle_argument
@story_reason_option
@_editor_options
async def release_cycle(system: System, name: str, cycle: int, reason: str, who: str | None, timeout: float) -> Answer:
    """Close an edit cycle whose editor does not answer.

    The plan goes on as it is. The editor may be the one of the process that runs the plan, or may have claimed the
    cycle; its answer does not count any more."""
    released = await system.release_cycle(name, cycle, reason, who, timeout)
    return Answer(released, f"Cycle {cycle} of plan {name!r} is closed without an edit.")


# -- approvals ---------------------------------------------------------------------------------------------------------

approval_argument = click.argument("approval", type=click.IntRange(min=1))


@plan.command(short_help="List what waits for a person.")
@option("--all", "Also list edits that were approved, refused or expired.", to="everything")
async def approvals(system: System, name: str, everything: bool) -> Answer:
    """List the edits of a plan, and the starts of its tasks, that wait for a person.

    Rules say which edits wait: `asterism run PLAN.YAML --store URL --approve destructive`. A waiting edit holds the
    tasks that it would change; all other tasks go on. A task with `approval` waits for its start."""
    from asterism.cli.plan.plan_views import approval_lines

    page = await system.list_approvals(name, everything)
    if not page.items:
        return Answer(page.items, notes=[f"Nothing in plan {name!r} waits for a person."])
    store = same_system(system.url)
    return Answer(page.items, lambda width: approval_lines(name, page.items, page.now or 0.0, store))


@plan.command(short_help="Approve what waits for a person.")
@approval_argument
@edit_options
@story_reason_option
@_editor_options
@on_system()
def approve(name: str, approval: int, reason: str, who: str | None, timeout: float, **wanted: Any) -> Any:
    """Approve an edit, or the start of a task, that waits for a person.

    \b
    asterism plan approve nightly 2
    asterism plan approve nightly 2 --edits changed.json

    The edit, or the given edits in its place, is applied with all checks, completely or not at all. Exits with 1 if it
    is rejected, and prints every reason; it then still waits, and can be refused, or approved with other edits."""
    from asterism.cli.plan.plan_views import approved_lines

    batch = edit_batch(**wanted, may_be_empty=True)
    author = who or batch.author or None

    async def ask(system: System) -> Answer:
        edit = system.approve_edit(name, approval, batch.edits or None, reason, author, timeout)
        return await attempt_edit(system, name, edit, lambda outcome: approved_lines(approval, outcome))

    return ask


@plan.command(short_help="Refuse what waits for a person.")
@approval_argument
@reason_option("for its author and the story")
@_editor_options
async def refuse(system: System, name: str, approval: int, reason: str, who: str | None, timeout: float) -> Answer:
    """Refuse an edit, or the start of a task, that waits for a person.

    After an edit, the plan stays as it is, and the tasks that the edit held go on. A task that may not start fails, or
    is skipped if its `approval` says so."""
    decided = await system.refuse_edit(name, approval, reason, who, timeout)
    if decided.task is not None:
        return Answer(decided, f"Task {decided.task!r} of plan {name!r} does not start.")
    return Answer(decided, f"The edit of approval {approval} is refused; plan {name!r} stays as it is.")


# -- budgets -----------------------------------------------------------------------------------------------------------


def _limits(text: str) -> str:
    budget_limits(text)
    return text


@plan.command()
@option(
    "--raise LIMITS",
    "New limits, such as '$5' or '80calls'; the others stay. The editor continues.",
    to="limits",
    type=_limits,
)
@option("--without-editor", "Let the plan go on without its editor.")
@on_system()
def budget(name: str, limits: str | None, without_editor: bool) -> Any:
    """Show or raise the budget of a model that edits a plan.

    \b
    asterism plan budget nightly
    asterism plan budget nightly --raise '$5 80calls'
    asterism plan budget nightly --without-editor

    A spent budget holds the tasks whose start the model would have to review, until somebody decides."""
    if limits is not None and without_editor:
        raise click.UsageError("--raise and --without-editor exclude each other.")

    async def ask(system: System) -> Answer | None:
        from asterism.cli.plan.plan_views import budget_lines

        if limits is not None or without_editor:
            shown = await system.decide_budget(name, limits, without_editor)
        else:
            plan = await system.show_plan(name, tasks=False)
            if plan.budget is None:
                note(f"Plan {name!r} has no budget: no model has been asked to edit it.")
                return None
            shown = plan.budget
        return Answer({"name": name, **asdict(shown)}, "\n".join(budget_lines(name, shown, same_system(system.url))))

    return ask


# -- drafts ------------------------------------------------------------------------------------------------------------


NO_PLAN = 1
"""The exit code if the model wrote no valid plan."""


@plan.command()
@option(
    "--model NAME",
    f"The model; repeatable: the next is asked if one fails. Default: ${MODEL_VARIABLE}.",
    to="models",
    multiple=True,
)
@option("--id NAME", "The id of a plan without one.", to="name", default="plan")
@option("--store URL", "Plan for the devices and with the workflows of this store's fleet.")
@option("--quiet", "Print no explanation and no drawing to standard error.")
def new(request: str, models: tuple[str, ...], name: str, store: str | None, quiet: bool) -> int:
    """Write a plan file for a REQUEST in words.

    \b
    asterism plan new "Compare the three build logs and write a summary" --model anthropic:… > plan.yaml
    asterism run plan.yaml

    The plan file goes to standard output; its explanation and a drawing go to standard error. Nothing is executed. A
    plan with mistakes goes back to the model, at most three times; if it has none then, the command exits with 1."""
    chosen = _models(models)
    if not request.strip():
        raise click.UsageError("The request is empty: say in words what the plan is for.")

    async def draft(fleet: Fleet | None) -> int:
        from asterism.core.errors import AsterismError
        from asterism.models.planner import NoPlan, draft_plan

        around: dict[str, Any] = {} if fleet is None else await _surroundings(fleet)
        try:
            plan_draft = await draft_plan(request, chosen[0], fallback=chosen[1:], name=name, **around)
        except NoPlan as error:
            note(f"The model wrote no valid plan: {error}.")
            for mistake in error.mistakes:
                note(f"  - {mistake}")
            return NO_PLAN
        except AsterismError as error:
            raise click.ClickException(f"{error}.") from None
        _print(request, plan_draft, quiet)
        return 0

    if store is not None:
        return with_fleet(store, draft)
    import asyncio

    return asyncio.run(draft(None))


async def _surroundings(fleet: Fleet) -> dict[str, Any]:
    from asterism.models.device_aliases import fleet_devices, known_capabilities

    workflows = [(flow.name, flow.description or _command(flow)) for flow in await fleet.workflows.all()]
    known = await known_capabilities(fleet)
    return {"devices": await fleet_devices(fleet), "workflows": workflows, "capabilities": known}


def _command(workflow: Workflow) -> str:
    """What a workflow executes, for the provider of a model: without secrets, and without logins in addresses."""
    from asterism.base.secret_mask import environment_mask, secret_names

    mask = environment_mask(secret_names([workflow.env, workflow.http]))
    return masked_urls(mask.text(str(workflow.shell or workflow.argv or workflow.call or "")))


def _print(request: str, draft: PlanDraft, quiet: bool) -> None:
    click.echo("\n".join(f"# {clean(line)}" for line in [request, *draft.explanation.splitlines()]))
    click.echo(clean_lines(draft.file), nl=not draft.file.endswith("\n"))
    if quiet:
        return
    from asterism.cli.screen import Screen
    from asterism.orchestrator.plan_mask import PlanMask
    from asterism.report import terminal
    from asterism.report.picture import LONGEST_LABEL, picture, work_text

    screen, mask = Screen(stderr=True), PlanMask(draft.plan)
    # the work, not its description: both are the model's words, and only one of them is executed
    screen.say(terminal(picture(draft.plan, mask, work=True), screen.width))
    for node in draft.plan.nodes.values():
        if len(work := work_text(node.task, mask)) > LONGEST_LABEL:  # the drawing has cut it
            screen.say(f"{clean(node.id)}: {work}")
    for line in draft.explanation.splitlines():
        screen.say(clean(line))
    screen.say(clean(f"{draft.cost}. Nothing was executed."))


# -- the download of a file that a task has made -----------------------------------------------------------------------


async def download(system: System, plan: str, file: PlanFile, folder: Path) -> None:
    """Write a file below ``folder``. What an earlier call has written is not asked for again. Raises OSError."""
    import base64
    import hashlib

    from asterism.execution.artifacts import CHUNK, stays_inside

    if not stays_inside(file.path):  # the other side may be hostile
        raise click.ClickException(f"the path {clean(file.path)!r} leaves the folder: the file is not written")
    target = folder / file.path
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".{target.name}.{file.sha256[:16]}.part")
    with unfinished.open("a+b") as written:
        written.seek(0)
        hashed = hashlib.sha256()
        for chunk in iter(lambda: written.read(CHUNK), b""):
            hashed.update(chunk)
        while written.tell() < file.size:
            part = await system.read_file(plan, file.task, file.output, file.path, offset=written.tell())
            data = base64.b64decode(part.data)
            if not data:
                break
            hashed.update(data)
            written.write(data)
    if hashed.hexdigest() != file.sha256:
        unfinished.unlink()
        raise click.ClickException(f"{clean(file.path)} is damaged: it does not match its hash, and was not written")
    unfinished.chmod(file.mode & 0o777)
    unfinished.replace(target)
