"""``asterism resume``, ``standby``, ``pause``, ``cancel``, ``list``, ``story`` and ``edit``: constellations that a
store keeps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from asterism.base.safe_text import clean
from asterism.cli.cli_context import fleet_options, note, options, tell_json, with_fleet
from asterism.cli.local_execution import LocalCommand, here_of, local_options
from asterism.cli.option_types import capabilities, json_object
from asterism.cli.run_output import (
    Wishes,
    concurrency_option,
    editor_option,
    load_editor,
    plain_option,
    quiet_log,
    report_option,
)
from asterism.cli.user_modules import allow_imports

if TYPE_CHECKING:
    from asterism.cli.plan_follower import Followed
    from asterism.fleet.fleet import Fleet

REJECTED = 1

name_argument = click.argument("name")


_orchestrating = options(
    editor_option,
    concurrency_option,
    local_options,
    click.option(
        "--can",
        multiple=True,
        callback=capabilities,
        metavar="WORD",
        help="What this process can do, if it does tasks; whatever the tasks need if left out.",
    ),
    report_option,
    plain_option,
    fleet_options,
)
"""What whoever runs a constellation may say."""


@click.command(cls=LocalCommand)
@name_argument
@_orchestrating
def resume(name: str, store: str | None, as_json: bool, **terms: Any) -> int:
    """Go on with a constellation that was left, or paused.

    What had finished is not done again; what runs on other devices is waited for. One that has ended is told as it
    ended, with its exit code. Ctrl-C leaves it again."""

    async def work(fleet: Fleet, orchestrator: Followed) -> int:
        from asterism.cli.plan_follower import follow
        from asterism.cli.stored_plans import known
        from asterism.core.errors import AlreadyRunning
        from asterism.durable.admin import live_owner, unpause

        found = await known(fleet, name)
        if found.ended:
            note(f"{name} has ended already: nothing is left to do.")
        unpaused = not found.ended and await unpause(fleet, name)
        try:
            return await follow(orchestrator, name, lambda: orchestrator.run_stored(name))
        except AlreadyRunning:
            if not unpaused:
                raise
        owner = await live_owner(fleet.store, await known(fleet, name))
        where = owner.device if owner is not None else found.device
        if as_json:
            tell_json({"id": name, "state": found.state, "resumed": True, "owner": where})
        else:
            click.echo(clean(f"{name} is not paused any more; it goes on where it is run, by {where}"))
        return 0

    return _orchestrate(store, as_json, terms, work)


@click.command(cls=LocalCommand)
@name_argument
@_orchestrating
def standby(name: str, store: str | None, as_json: bool, **terms: Any) -> int:
    """Wait, and take over a constellation when nobody runs it.

    That is when whoever runs it has left, or was not heard of for as long as its --takeover-after says. Ends when the
    constellation has ended, with its exit code."""

    async def work(fleet: Fleet, orchestrator: Followed) -> int:
        from asterism.cli.plan_follower import follow
        from asterism.cli.stored_plans import known
        from asterism.durable.admin import live_owner

        owner = await live_owner(fleet.store, await known(fleet, name))
        if owner is not None:
            note(f"Standing by: {name} is run by {owner.device}.")
        return await follow(orchestrator, name, lambda: orchestrator.standby(name), standby=True)

    return _orchestrate(store, as_json, terms, work)


def _orchestrate(
    store: str | None, as_json: bool, terms: dict[str, Any], work: Callable[[Fleet, Followed], Awaitable[int]]
) -> int:
    from asterism.cli.plan_follower import Followed

    allow_imports()
    wishes = Wishes(terms.pop("report"), as_json, terms.pop("plain"))
    here = here_of(terms.pop("local"), terms.pop("no_local"), frozenset(terms.pop("can")) or None)
    editor = load_editor(terms.pop("editor"))

    async def begin(fleet: Fleet) -> int:
        return await work(fleet, Followed(fleet, here, wishes, editor=editor, **terms))

    with quiet_log(but=("asterism.journal", "asterism.device")):
        return with_fleet(store, begin)


@click.command()
@name_argument
@click.option("--reason", default="", metavar="TEXT", help="Why, for whoever meets it.")
@fleet_options
def pause(name: str, reason: str, store: str | None, as_json: bool) -> None:
    """Start nothing more of a constellation until it is resumed.

    What runs goes on. Whoever runs the constellation goes on running it, and waits."""

    async def ask(fleet: Fleet) -> None:
        from asterism.cli.stored_plans import known
        from asterism.durable import admin

        await known(fleet, name)
        before = await admin.pause_reason(fleet.store, name)
        await admin.pause(fleet, name, reason)
        now = await admin.pause_reason(fleet.store, name)
        if as_json:
            tell_json({"name": name, "paused": now})
        else:
            click.echo(clean(f"{name} is paused{' already' if before is not None else ''}, {now}"))

    with_fleet(store, ask)


@click.command()
@name_argument
@click.option("--reason", default="", metavar="TEXT", help="Why, for the story.")
@fleet_options
def cancel(name: str, reason: str, store: str | None, as_json: bool) -> int:
    """End a constellation that nobody wants any more, for good.

    What runs is asked to stop, nothing more is started, and whoever runs the constellation ends it; if nobody does,
    this process ends it. Waits for that. Ctrl-C stops waiting, and takes nothing back."""

    async def end(fleet: Fleet) -> int:
        from asterism.cli.plan_cancellation import cancel

        return await cancel(fleet, name, reason, as_json)

    with quiet_log(but=("asterism.journal", "asterism.device")):
        return with_fleet(store, end)


@click.command("list")
@fleet_options
def list_(store: str | None, as_json: bool) -> None:
    """List the constellations of a store.

    TASKS says how many have ended, of all; HEARD how long ago their owner was heard of. One that is at rest has begun,
    and nobody runs it: resume goes on with it."""

    async def tell(fleet: Fleet) -> None:
        from asterism.cli.plan_views import constellations_table, summary_json
        from asterism.cli.stored_plans import see_all
        from asterism.cli.text_output import say_lines

        found = await see_all(fleet)
        if as_json:
            tell_json([summary_json(one) for one in found])
        elif found:
            say_lines(lambda width: constellations_table(found, fleet.store.clock(), width))
        else:
            note("There are no constellations yet: asterism run PLAN.YAML --store …")

    with_fleet(store, tell)


@click.command()
@name_argument
@click.argument("task", required=False)
@fleet_options
def story(name: str, task: str | None, store: str | None, as_json: bool) -> None:
    """Tell everything that happened to a constellation, or one task."""

    async def tell(fleet: Fleet) -> None:
        from asterism.cli.plan_views import story_json, story_lines
        from asterism.cli.stored_plans import see
        from asterism.cli.text_output import say_lines
        from asterism.core.errors import UnknownTask
        from asterism.orchestrator.plan_mask import PlanMask

        plan = (await see(fleet, name)).kept.plan
        entries = plan.story(task)
        if task is not None and not entries and task not in plan:
            raise UnknownTask(task)
        secrets = PlanMask(plan)
        if as_json:
            tell_json(story_json(entries, secrets))
        elif entries:
            say_lines(lambda width: story_lines(entries, secrets))
        else:
            note(f"Nothing has happened to {task or name} yet.")

    with_fleet(store, tell)


@click.command()
@name_argument
@click.option(
    "--add",
    "added",
    type=json_object,
    multiple=True,
    metavar="JSON",
    help="A task, as an object with its id, what to do, and what it comes after.",
)
@click.option("--remove", "removed", multiple=True, metavar="ID", help="A task that has not started.")
@click.option(
    "--dependents",
    type=click.Choice(["remove", "bridge"]),
    help="With --remove, what becomes of the tasks below: they go too, or wait for what it waited for.",
)
@click.option("--file", metavar="BATCH.JSON", help="A whole batch of edits; - for the standard input.")
@click.option("--reason", metavar="TEXT", help="Why, for the story.")
@click.option("--dry-run", is_flag=True, help="Only say what would become of it.")
@fleet_options
def edit(name: str, store: str | None, as_json: bool, reason: str | None, dry_run: bool, **wanted: Any) -> int:
    """Edit a constellation that nobody runs, all or nothing.

    \b
    asterism edit nightly --add '{"id": "mail", "shell": "mail-it", "after": "build"}'
    asterism edit nightly --remove build --dependents bridge --dry-run

    Exits with 1 if the edit is rejected, and names every reason."""
    from asterism.cli.plan_edits import by

    batch = _batch(**wanted)

    async def change(fleet: Fleet) -> int:
        from asterism.cli.plan_edits import applied_json, applied_lines, rejected_json
        from asterism.cli.stored_plans import known
        from asterism.core.errors import EditRejected
        from asterism.durable import admin

        await known(fleet, name)
        try:
            applied = await admin.edit(fleet, name, by(batch, fleet.by, reason), dry_run=dry_run)
        except EditRejected as rejected:
            note(str(rejected))
            if as_json:
                tell_json(rejected_json(name, rejected, dry_run))
            return REJECTED
        if as_json:
            tell_json(applied_json(name, applied, dry_run))
        else:
            click.echo("\n".join(applied_lines(name, applied, dry_run)))
        return 0

    return with_fleet(store, change)


def _batch(
    added: tuple[dict[str, Any], ...], removed: tuple[str, ...], dependents: str | None, file: str | None
) -> Any:
    from asterism.cli.plan_edits import batch_in, batch_of

    if file is not None and (added or removed):
        raise click.UsageError("--file has a whole batch: give that, or --add and --remove.")
    if file is None and not added and not removed:
        raise click.UsageError("Say what to change: --add, --remove, or a --file with a batch.")
    if dependents is not None and not removed:
        raise click.UsageError("--dependents says what becomes of the tasks below one that --remove takes away.")
    return batch_in(file) if file is not None else batch_of(added, removed, dependents)
