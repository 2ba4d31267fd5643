"""``asterism schedule``: create runs of a workflow, or plans, at given times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from asterism.base.text import clean
from asterism.cli.cli_context import CommandGroup, fleet_options, note, print_json, reason_option, with_system
from asterism.cli.option_types import duration, json_object, named_values, positive_duration

if TYPE_CHECKING:
    from asterism.api.documents import ChangedSchedule
    from asterism.api.system import System

CATCH_UP = ("none", "last", "all")
OVERLAP = ("skip", "queue", "replace", "allow")
CREATED = "created"
SKIPPED = 1

name_argument = click.argument("name")


@click.group(cls=CommandGroup)
def schedule() -> None:
    """Create runs or plans at given times: add, list, show and more.

    The coordinator of the fleet creates them, so a device or `asterism monitor` must be running. `asterism monitor`
    also runs the plans."""


@schedule.command()
@name_argument
@click.option("--workflow", metavar="NAME", help="Create runs of this workflow.")
@click.option("--plan", "path", metavar="PLAN.YAML", help="Create plans of this plan file, which the store keeps.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    callback=named_values,
    metavar="NAME=VALUE",
    help="The value of a parameter of the plan file; repeatable.",
)
@click.option(
    "--input",
    "given",
    type=json_object,
    metavar="JSON|@FILE|-",
    help="The input of each run as a JSON object, in a file, or on standard input.",
)
@click.option("--priority", type=int, metavar="N", help="Priority of each run; default: that of the workflow.")
@click.option("--device", metavar="NAME", help="Run it on this device only.")
@click.option(
    "--cron", metavar="EXPR", help="Times as minute, hour, day of month, month and day of week, such as '0 3 * * *'."
)
@click.option("--every", type=positive_duration, metavar="DURATION", help="An interval instead, such as 5m.")
@click.option("--timezone", metavar="ZONE", default="UTC", show_default=True, help="Time zone of --cron.")
@click.option(
    "--catch-up",
    type=click.Choice(CATCH_UP),
    default="last",
    show_default=True,
    help="Which missed ticks to create when a coordinator is back.",
)
@click.option(
    "--overlap",
    type=click.Choice(OVERLAP),
    default="skip",
    show_default=True,
    help="What to do with a tick while earlier work has not ended.",
)
@click.option(
    "--jitter",
    type=duration,
    default="0s",
    show_default=True,
    metavar="DURATION",
    help="Delay each tick by up to this time.",
)
@click.option("--replace", is_flag=True, help="Change a schedule that exists; its history stays.")
@reason_option
@fleet_options
def add(
    name: str,
    given: dict[str, Any] | None,
    store: str | None,
    as_json: bool,
    every: float | None,
    cron: str | None,
    path: str | None,
    settings: dict[str, str],
    **terms: Any,
) -> None:
    """Add a schedule.

    A tick is a time at which the schedule creates a run or a plan. A tick is missed if no coordinator decides about it
    within 60 s. Names of cron expressions, such as @daily, work too. A plan is the plan file as it is now; add the
    schedule again with --replace after a change of the file.

    \b
    asterism schedule add nightly --cron '0 3 * * *' --timezone Europe/Berlin --plan etl.yaml
    asterism schedule add poll --every 5m --workflow fetch --input '{"site": "a"}'"""
    if (cron is None) == (every is None):
        raise click.UsageError("Give either --cron or --every.")
    if (terms["workflow"] is None) == (path is None):
        raise click.UsageError("Give either --workflow or --plan.")
    if path is not None:
        terms |= _plan_terms(path, settings)
    elif settings:
        raise click.UsageError("--set needs --plan.")
    if every is not None and every != int(every):
        raise click.BadParameter("the interval must be a whole number of seconds.", param_hint="--every")

    async def put(system: System) -> None:
        whole = None if every is None else int(every)
        added = await system.add_schedule(name, input=given or {}, cron=cron, every=whole, **terms)
        if as_json:
            print_json(added)
            return
        from asterism.cli.run.schedule_views import zone_time

        first = zone_time(added, added.next)
        click.echo(clean(f"Schedule {added.name!r} creates {added.target}, {added.times}; first at {first}."))
        for line in added.advice:
            note(line)

    with_system(store, put)


def _plan_terms(path: str, settings: dict[str, str]) -> dict[str, Any]:
    """The fields of the request for a plan file, which is read with all that it includes. Raises UnusablePlanFile with
    every mistake."""
    from pathlib import Path

    from asterism.cli.plan.plan_file_commands import given_parameters, load_plan_file
    from asterism.cli.user_files import allow_imports
    from asterism.planfile.include import included_texts

    allow_imports(path)
    plan_file = load_plan_file(path, given_parameters(settings, None), fleet=True)
    return {
        "text": Path(path).read_text("utf-8-sig"),
        "file": Path(path).name,
        "includes": included_texts(path),
        "params": dict(plan_file.params),
    }


@schedule.command("list")
@fleet_options
def list_(store: str | None, as_json: bool) -> None:
    """List the schedules.

    NEXT is the next tick in the time zone of the schedule, IN the time until it fires, MADE the number of runs that
    were created, and OPEN how many of them have not ended."""

    async def read(system: System) -> None:
        from asterism.cli.run.schedule_views import schedules_table
        from asterism.cli.screen import print_lines

        page = await system.list_schedules()
        if as_json:
            print_json(page.items)
        elif page.items:
            print_lines(lambda width: schedules_table(page.items, width))
            for line in page.advice:
                note(line)
        else:
            note("There are no schedules. Add one with: asterism schedule add NAME --cron '0 3 * * *' --workflow NAME")

    with_system(store, read)


@schedule.command()
@name_argument
@click.option("--plan-file", is_flag=True, help="Print the plan file that the schedule keeps.")
@fleet_options
def show(name: str, plan_file: bool, store: str | None, as_json: bool) -> None:
    """Show a schedule with its terms, next times and latest ticks."""

    async def read(system: System) -> None:
        from asterism.cli.run.schedule_views import NEXT_SHOWN, details_lines
        from asterism.cli.screen import print_lines

        details = await system.show_schedule(name, NEXT_SHOWN, plan_file)
        if plan_file:
            if details.text is None:
                raise click.UsageError(f"Schedule {name!r} keeps no plan file.")
            click.echo(details.text, nl=False)
        elif as_json:
            print_json(details)
        else:
            print_lines(lambda width: details_lines(details, width))

    with_system(store, read)


@schedule.command()
@name_argument
@click.option("--reason", default="", metavar="TEXT", help="The reason, shown with the schedule.")
@fleet_options
def pause(name: str, reason: str, store: str | None, as_json: bool) -> None:
    """Pause a schedule: create nothing until it is resumed. Earlier runs continue."""

    async def ask(system: System) -> None:
        paused = await system.pause_schedule(name, reason)
        _print_changed(paused, f"{'is' if paused.changed else 'was already'} paused, {paused.paused}.", as_json)

    with_system(store, ask)


@schedule.command()
@name_argument
@reason_option
@fleet_options
def resume(name: str, reason: str, store: str | None, as_json: bool) -> None:
    """Resume a paused schedule, from its next tick on. The ticks of the pause are not caught up."""

    async def ask(system: System) -> None:
        from asterism.cli.run.schedule_views import zone_time

        resumed = await system.resume_schedule(name, reason)
        word = "is resumed" if resumed.changed else "was not paused"
        _print_changed(resumed, f"{word}; next at {zone_time(resumed, resumed.next)}.", as_json)

    with_system(store, ask)


@schedule.command()
@name_argument
@reason_option
@fleet_options
def remove(name: str, reason: str, store: str | None, as_json: bool) -> None:
    """Remove a schedule and its history. Earlier runs continue."""

    async def ask(system: System) -> None:
        _print_changed(await system.remove_schedule(name, reason), "is removed.", as_json)

    with_system(store, ask)


def _print_changed(changed: ChangedSchedule, words: str, as_json: bool) -> None:
    if as_json:
        print_json(changed)
    else:
        click.echo(clean(f"Schedule {changed.name!r} {words}"))


@schedule.command("next")
@name_argument
@click.option(
    "-n", "--number", type=click.IntRange(1, 1000), default=5, show_default=True, metavar="N", help="How many times."
)
@fleet_options
def next_(name: str, number: int, store: str | None, as_json: bool) -> None:
    """Print the next times of a schedule, in its time zone."""

    async def read(system: System) -> None:
        from asterism.cli.run.schedule_views import zone_time

        details = await system.show_schedule(name, number)
        if as_json:
            print_json([{"at": at, "local": zone_time(details, at)} for at in details.next_times])
            return
        for at in details.next_times:
            click.echo(zone_time(details, at))
        if details.paused is not None:
            note(f"Schedule {name!r} is paused, {details.paused}. Resume it with: asterism schedule resume {name}")

    with_system(store, read)


@schedule.command()
@name_argument
@click.option(
    "--limit",
    type=click.IntRange(1, 100),
    default=20,
    show_default=True,
    metavar="N",
    help="How many ticks at most; the store keeps 100.",
)
@fleet_options
def history(name: str, limit: int, store: str | None, as_json: bool) -> None:
    """List the latest ticks of a schedule, newest last."""

    async def read(system: System) -> None:
        from asterism.cli.run.schedule_views import history_table
        from asterism.cli.screen import print_lines

        details = await system.show_schedule(name, 0)
        entries = details.history[-limit:]
        if as_json:
            print_json(entries)
        elif entries:
            print_lines(lambda width: history_table(details, entries, width))
        else:
            note(f"Schedule {name!r} has created nothing yet.")

    with_system(store, read)


@schedule.command()
@name_argument
@reason_option
@fleet_options
def run(name: str, reason: str, store: str | None, as_json: bool) -> int:
    """Create the work of a schedule now. Its times stay as they are.

    The overlap policy applies: with `skip` the command exits with 1 while earlier work has not ended."""

    async def ask(system: System) -> int:
        entry = await system.run_schedule(name, reason)
        if as_json:
            print_json(entry)
        elif entry.outcome == CREATED:
            click.echo(entry.what)
        else:
            note(f"Nothing was created: {entry.why}.")
        return 0 if entry.outcome == CREATED else SKIPPED

    return with_system(store, ask)
