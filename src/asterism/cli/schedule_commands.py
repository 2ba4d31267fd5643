"""``asterism schedule``: create runs of a workflow, or plans, at given times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from asterism.base.text import clean
from asterism.cli.cli_context import CommandGroup, fleet_options, note, print_json, with_fleet
from asterism.cli.option_types import duration, json_object, named_values, positive_duration

if TYPE_CHECKING:
    from asterism.core.schedule.schedule import Schedule
    from asterism.fleet.fleet import Fleet

CATCH_UP = ("none", "last", "all")
OVERLAP = ("skip", "queue", "replace", "allow")
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
@fleet_options
def add(
    name: str,
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

    async def put(fleet: Fleet) -> None:
        added = await fleet.schedules.add(name, cron=cron, every=None if every is None else int(every), **terms)
        if as_json:
            from asterism.fleet.fleet_json import schedule_json

            print_json(schedule_json(added, fleet.store.clock()))
            return
        click.echo(clean(_added(added)))
        if added.plan is not None:
            note("Its plans are run by: asterism monitor")
        if await fleet.coordinator() is None:
            note("No coordinator is running, so nothing is created yet. Start one with: asterism monitor")

    with_fleet(store, put)


def _plan_terms(path: str, settings: dict[str, str]) -> dict[str, Any]:
    """The arguments of ``Schedules.add`` for a plan file. Raises UnusablePlanFile with every mistake."""
    from pathlib import Path

    from asterism.cli.plan_file_commands import given_parameters, load_plan_file
    from asterism.cli.user_files import allow_imports

    allow_imports(path)
    found = load_plan_file(path, given_parameters(settings, None), fleet=True)
    text = Path(path).read_text("utf-8-sig")
    terms = {"plan": found.constellation, "plan_text": text, "policy": found.policy or "scoped"}
    return {**terms, "params": found.params}


def _added(schedule: Schedule) -> str:
    from asterism.cli.schedule_views import zone_time

    first = zone_time(schedule, schedule.next)
    return f"Schedule {schedule.name!r} creates {schedule.target}, {schedule.times}; first at {first}."


@schedule.command("list")
@fleet_options
def list_(store: str | None, as_json: bool) -> None:
    """List the schedules.

    NEXT is the next tick in the time zone of the schedule, IN the time until it fires, MADE the number of runs that
    were created, and OPEN how many of them have not ended."""

    async def read(fleet: Fleet) -> None:
        from asterism.cli.schedule_views import open_numbers, schedules_table
        from asterism.cli.screen import print_lines
        from asterism.fleet.fleet_json import schedule_json

        found, now = await fleet.schedules.all(), fleet.store.clock()
        if as_json:
            print_json([schedule_json(one, now) for one in found])
        elif found:
            numbers = await open_numbers(fleet, found)
            print_lines(lambda width: schedules_table(found, numbers, now, width))
            if await fleet.coordinator() is None:
                note("No coordinator is running, so nothing is created. Start one with: asterism monitor")
        else:
            note("There are no schedules. Add one with: asterism schedule add NAME --cron '0 3 * * *' --workflow NAME")

    with_fleet(store, read)


@schedule.command()
@name_argument
@click.option("--plan-file", is_flag=True, help="Print the plan file that the schedule keeps.")
@fleet_options
def show(name: str, plan_file: bool, store: str | None, as_json: bool) -> None:
    """Show a schedule with its terms, next times and latest ticks."""

    async def read(fleet: Fleet) -> None:
        if plan_file:
            text = await fleet.schedules.plan_text(name)
            if not text:
                raise click.UsageError(f"Schedule {name!r} keeps no plan file.")
            click.echo(text, nl=False)
            return
        from asterism.cli.schedule_views import details_json, details_lines, read_details
        from asterism.cli.screen import print_lines

        found = await read_details(fleet, name)
        if as_json:
            print_json(details_json(found))
        else:
            print_lines(lambda width: details_lines(found, width))

    with_fleet(store, read)


@schedule.command()
@name_argument
@click.option("--reason", default="", metavar="TEXT", help="The reason, shown with the schedule.")
@fleet_options
def pause(name: str, reason: str, store: str | None, as_json: bool) -> None:
    """Pause a schedule: create nothing until it is resumed. Earlier runs continue."""

    async def ask(fleet: Fleet) -> None:
        before = await fleet.schedules.get(name)
        paused = await fleet.schedules.pause(name, reason)
        already = "was already" if before.paused is not None else "is"
        _print_changed(paused, f"{already} paused, {paused.paused}.", fleet, as_json)

    with_fleet(store, ask)


@schedule.command()
@name_argument
@fleet_options
def resume(name: str, store: str | None, as_json: bool) -> None:
    """Resume a paused schedule, from its next tick on. The ticks of the pause are not caught up."""

    async def ask(fleet: Fleet) -> None:
        from asterism.cli.schedule_views import zone_time

        before = await fleet.schedules.get(name)
        resumed = await fleet.schedules.resume(name)
        word = "is resumed" if before.paused is not None else "was not paused"
        _print_changed(resumed, f"{word}; next at {zone_time(resumed, resumed.next)}.", fleet, as_json)

    with_fleet(store, ask)


@schedule.command()
@name_argument
@fleet_options
def remove(name: str, store: str | None, as_json: bool) -> None:
    """Remove a schedule and its history. Earlier runs continue."""

    async def ask(fleet: Fleet) -> None:
        removed = await fleet.schedules.remove(name)
        if as_json:
            print_json({"name": name, "removed": True})
        else:
            click.echo(clean(f"Schedule {removed.name!r} is removed."))

    with_fleet(store, ask)


def _print_changed(schedule: Schedule, words: str, fleet: Fleet, as_json: bool) -> None:
    if as_json:
        from asterism.fleet.fleet_json import schedule_json

        print_json(schedule_json(schedule, fleet.store.clock()))
    else:
        click.echo(clean(f"Schedule {schedule.name!r} {words}"))


@schedule.command("next")
@name_argument
@click.option(
    "-n", "--number", type=click.IntRange(1, 1000), default=5, show_default=True, metavar="N", help="How many times."
)
@fleet_options
def next_(name: str, number: int, store: str | None, as_json: bool) -> None:
    """Print the next times of a schedule, in its time zone."""

    async def read(fleet: Fleet) -> None:
        from asterism.cli.schedule_views import zone_time

        found, times = await fleet.schedules.get(name), await fleet.schedules.next_times(name, number)
        if as_json:
            print_json([{"at": at, "local": zone_time(found, at)} for at in times])
            return
        for at in times:
            click.echo(zone_time(found, at))
        if found.paused is not None:
            note(f"Schedule {name!r} is paused, {found.paused}. Resume it with: asterism schedule resume {name}")

    with_fleet(store, read)


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

    async def read(fleet: Fleet) -> None:
        from asterism.cli.schedule_views import history_table
        from asterism.cli.screen import print_lines
        from asterism.fleet.fleet_json import entry_json

        found, entries = await fleet.schedules.get(name), (await fleet.schedules.history(name))[-limit:]
        if as_json:
            print_json([entry_json(entry) for entry in entries])
        elif entries:
            print_lines(lambda width: history_table(found, entries, width))
        else:
            note(f"Schedule {name!r} has created nothing yet.")

    with_fleet(store, read)


@schedule.command()
@name_argument
@fleet_options
def run(name: str, store: str | None, as_json: bool) -> int:
    """Create the work of a schedule now. Its times stay as they are.

    The overlap policy applies: with `skip` the command exits with 1 while earlier work has not ended."""

    async def ask(fleet: Fleet) -> int:
        from asterism.core.schedule.ticks import CREATED
        from asterism.fleet.fleet_json import entry_json

        entry = await fleet.schedules.run(name)
        if as_json:
            print_json(entry_json(entry))
        elif entry.outcome == CREATED:
            click.echo(entry.what)
        else:
            note(f"Nothing was created: {entry.why}.")
        return 0 if entry.outcome == CREATED else SKIPPED

    return with_fleet(store, ask)
