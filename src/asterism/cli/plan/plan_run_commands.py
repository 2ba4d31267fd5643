"""``asterism plan resume``, ``retry`` and ``standby``: the commands that run a plan in a store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from asterism.base.text import clean
from asterism.cli.cli_context import (
    fleet_options,
    note,
    options,
    print_json,
    refuse_options,
    same_system,
    server_of,
    with_fleet,
    with_system,
)
from asterism.cli.model_options import resolve_editor
from asterism.cli.option_types import capabilities
from asterism.cli.plan.plan_context import (
    NO_EDITOR,
    LocalCommand,
    OutputOptions,
    check_result_option,
    concurrency_option,
    editor_options,
    local_options,
    local_work,
    plain_option,
    quiet_log,
    read_batch,
    report_option,
    result_options,
)
from asterism.cli.user_files import allow_imports, editor_terms

if TYPE_CHECKING:
    from asterism.api.documents import PlanState
    from asterism.api.system import System
    from asterism.cli.plan.plan_execution import WatchedOrchestrator
    from asterism.fleet.fleet import Fleet

name_argument = click.argument("name")

_run_options = options(
    editor_options,
    concurrency_option,
    local_options,
    click.option(
        "--can",
        multiple=True,
        callback=capabilities,
        metavar="WORD",
        help="A capability of this process, if it executes tasks; default: all that the tasks need.",
    ),
    report_option,
    result_options,
    plain_option,
    fleet_options,
)
"""The options of the commands that run a plan in a store."""


@click.command(cls=LocalCommand)
@name_argument
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
        from asterism.durable.admin import live_owner, unpause
        from asterism.durable.journal_store import read_head

        head, _ = await read_head(fleet.store, name)
        if head.ended:
            note(f"Plan {name!r} has already ended.")
        unpaused = not head.ended and await unpause(fleet, name)
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


@click.command(cls=LocalCommand)
@name_argument
@_run_options
def standby(name: str, store: str | None, as_json: bool, **option_values: Any) -> int:
    """Wait until no process runs a plan, then take it over.

    The command takes over when the plan's process has stopped, or has sent no heartbeat for its --takeover-after. It
    exits with the exit code of the plan."""
    if server_of(store) is not None:
        raise click.UsageError("A server takes plans over by itself; standby is for a store that is opened here.")

    async def work(fleet: Fleet, orchestrator: WatchedOrchestrator) -> int:
        from asterism.cli.plan.plan_execution import follow
        from asterism.durable.admin import live_owner
        from asterism.durable.journal_store import read_head

        head, _ = await read_head(fleet.store, name)
        owner = await live_owner(fleet.store, head)
        if owner is not None:
            note(f"Standing by: {owner.device} runs {name!r}.")
        return await follow(orchestrator, name, lambda: orchestrator.standby(name), standby=True)

    return _run_in_store(store, as_json, option_values, work)


@click.command(cls=LocalCommand)
@name_argument
@click.option(
    "--from",
    "from_tasks",
    multiple=True,
    metavar="TASK",
    help="Run this task and everything below it again, instead of what failed.",
)
@click.option(
    "--edits", "edits_file", metavar="BATCH.JSON", help="First apply the batch of edits in a file; - for stdin."
)
@click.option("--reason", default="", metavar="TEXT", help="The reason, for the story.")
@_run_options
def retry(
    name: str,
    from_tasks: tuple[str, ...],
    edits_file: str | None,
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
    asterism plan retry nightly --edits mend.json

    The plan must have ended. Completed tasks keep their results and are not repeated. The command runs the plan until
    it ends again, and exits with its exit code; Ctrl-C stops it, and `asterism resume` continues it. A plan that was
    cancelled stays cancelled. At a server, the server runs the plan, and the command does not wait for it."""
    batch = None if edits_file is None else read_batch(edits_file)
    if server_of(store) is not None:
        edits, why = ((), reason) if batch is None else (batch.edits, reason or batch.reason)
        return _ask_server(store, as_json, lambda system: system.retry_plan(name, list(from_tasks), edits, why))

    async def work(fleet: Fleet, orchestrator: WatchedOrchestrator) -> int:
        from asterism.cli.plan.plan_execution import follow
        from asterism.cli.plan.plan_views import reopened_line
        from asterism.core.errors import UnknownTask
        from asterism.durable.plan_retry import reopen_plan
        from asterism.durable.stored_plans import read_plan, unknown_task

        signed = None if batch is None else replace(batch, author=batch.author or fleet.by)
        try:
            reopened = await reopen_plan(fleet, name, from_tasks=from_tasks, batch=signed, reason=reason)
        except UnknownTask as error:
            raise unknown_task((await read_plan(fleet, name)).record.plan, error.task_id) from None
        note(reopened_line(name, reopened.tasks))
        return await follow(orchestrator, name, lambda: orchestrator.run_stored(name))

    return _run_in_store(store, as_json, option_values, work)


def _ask_server(
    store: str | None, as_json: bool, ask: Callable[[System], Awaitable[PlanState]], done: str = "reopened"
) -> int:
    """Let a server run a plan, and say who runs it. Returns the exit code."""
    asked = {"name", "from_tasks", "edits_file", "reason", "store", "as_json"}
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

    check_result_option(option_values["result"], as_json)
    if option_values["editor"] is None:
        refuse_options(NO_EDITOR, "edit_on")
    if option_values["no_local"]:
        refuse_options("has no effect with --no-local: this process executes no tasks.", "can")
    allow_imports()
    output = OutputOptions(
        option_values.pop("report"),
        as_json,
        option_values.pop("plain"),
        option_values.pop("stats"),
        option_values.pop("result"),
    )
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
