"""``asterism schedule``: create runs of a workflow, or plans, at given times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from asterism.base.text import clean
from asterism.cli.cli_context import (
    Answer,
    CommandGroup,
    name_argument,
    note,
    on_system,
    reason_option,
    refuse_options,
)
from asterism.cli.option_types import duration_option, number_option, object_option, parameter_option, tick_text
from asterism.core.json_values import JsonObject

if TYPE_CHECKING:
    from asterism.api.documents import ChangedSchedule
    from asterism.api.system import System

CATCH_UP = ("none", "last", "all")
OVERLAP = ("skip", "queue", "replace", "allow")
CREATED = "created"
SKIPPED = 1


@click.group(cls=CommandGroup)
def schedule() -> None:
    """Create runs or plans at given times: add, list, show and more.

    The coordinator of the fleet creates them, so a device or `asterism monitor` must be running. `asterism monitor`
    also runs the plans."""


@schedule.command()
@name_argument
@click.option("--workflow", metavar="NAME", help="Create runs of this workflow.")
@click.option("--plan", "path", metavar="PLAN.YAML", help="Create plans of this plan file, which the store keeps.")
@parameter_option
@object_option("The input of each run as a JSON object, in a file, or on standard input.")
@number_option("--priority", help="Priority of each run; default: that of the workflow.")
@click.option("--device", metavar="NAME", help="Run it on this device only.")
@click.option(
    "--cron", metavar="EXPR", help="Times as minute, hour, day of month, month and day of week, such as '0 3 * * *'."
)
@duration_option("--every", positive=True, help="An interval instead, such as 5m.")
@click.option(
    "--on-event",
    metavar="EVENT",
    help="With --plan: create a plan for each event of this name instead, such as 'payment/*'.",
)
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
    help="What to do with a tick while earlier work has not ended; default: skip, with --on-event queue.",
)
@number_option("--parallel", 1, least=1, most=100, help="How many may be at work at once before --overlap counts.")
@duration_option("--jitter", "0s", help="Delay each tick by up to this time.")
@click.option(
    "--after-previous",
    type=click.Choice(["success"]),
    help="With --plan: the plan of a tick waits until that of the tick before has succeeded.",
)
@duration_option(
    "--late-after", positive=True, help="With --plan: a notice says if a plan has not ended this long after its tick."
)
@click.option("--replace", is_flag=True, help="Change a schedule that exists; its history stays.")
@reason_option()
@on_system()
def add(
    name: str,
    run_input: JsonObject | None,
    every: float | None,
    cron: str | None,
    on_event: str | None,
    path: str | None,
    settings: dict[str, str],
    **option_values: Any,
) -> Any:
    """Add a schedule.

    A tick is a time at which the schedule creates a run or a plan. A tick is missed if no coordinator decides about it
    within 60 s. Names of cron expressions, such as @daily, work too. A plan is the plan file as it is now; add the
    schedule again with --replace after a change of the file.

    \b
    asterism schedule add nightly --cron '0 3 * * *' --timezone Europe/Berlin --plan etl.yaml
    asterism schedule add poll --every 5m --workflow fetch --input '{"site": "a"}'
    asterism schedule add orders --on-event 'payment/*' --plan order.yaml"""
    if [cron, every, on_event].count(None) != 2:
        raise click.UsageError("Give one of --cron, --every and --on-event.")
    if (option_values["workflow"] is None) == (path is None):
        raise click.UsageError("Give either --workflow or --plan.")
    if path is not None:
        option_values |= _plan_terms(path, settings)
    elif settings:
        raise click.UsageError("--set needs --plan.")
    if every is not None and every != int(every):
        raise click.BadParameter("the interval must be a whole number of seconds.", param_hint="--every")

    async def put(system: System) -> Answer:
        from asterism.cli.run.schedule_views import zone_time

        whole = None if every is None else int(every)
        added = await system.add_schedule(
            name, input=run_input or {}, cron=cron, every=whole, on_event=on_event, **option_values
        )
        first = f"; first at {zone_time(added, added.next)}" if on_event is None else ""
        text = f"Schedule {added.name!r} creates {added.target}, {added.times}{first}."
        return Answer(added, clean(text), added.advice)

    return put


def _plan_terms(path: str, settings: dict[str, str]) -> dict[str, Any]:
    """The fields of the request for a plan file, which is read with all that it includes. Raises UnusablePlanFile with
    every mistake."""
    from pathlib import Path

    from asterism.cli.editor_options import allow_imports
    from asterism.cli.plan.plan_file_commands import given_parameters, load_plan_file
    from asterism.planfile.include import included_texts

    allow_imports(path)
    plan_file = load_plan_file(path, given_parameters(settings, None), fleet=True, scheduled=True)
    return {
        "text": Path(path).read_text("utf-8-sig"),
        "file": Path(path).name,
        "includes": included_texts(path),
        "params": dict(plan_file.params),
    }


@schedule.command()
@on_system()
async def list_(system: System) -> Answer:
    """List the schedules.

    NEXT is the next tick in the time zone of the schedule, IN the time until it fires, MADE the number of runs that
    were created, and OPEN how many of them have not ended."""
    from asterism.cli.run.schedule_views import schedules_table

    page = await system.list_schedules()
    if not page.items:
        how = "asterism schedule add NAME --cron '0 3 * * *' --workflow NAME"
        return Answer(page.items, notes=[f"There are no schedules. Add one with: {how}"])
    return Answer(page.items, lambda width: schedules_table(page.items, width), page.advice)


@schedule.command()
@name_argument
@click.option("--plan-file", is_flag=True, help="Print the plan file that the schedule keeps.")
@on_system()
async def show(system: System, name: str, plan_file: bool) -> Answer | None:
    """Show a schedule with its terms, next times and latest ticks."""
    from asterism.cli.run.schedule_views import NEXT_SHOWN, details_lines

    details = await system.show_schedule(name, NEXT_SHOWN, plan_file)
    if not plan_file:
        return Answer(details, lambda width: details_lines(details, width))
    if details.text is None:
        raise click.UsageError(f"Schedule {name!r} keeps no plan file.")
    click.echo(details.text, nl=False)
    return None


@schedule.command()
@name_argument
@reason_option("shown with the schedule")
@on_system()
async def pause(system: System, name: str, reason: str) -> Answer:
    """Pause a schedule: create nothing until it is resumed. Earlier runs continue."""
    paused = await system.pause_schedule(name, reason)
    return _changed(paused, f"{'is' if paused.changed else 'was already'} paused, {paused.paused}.")


@schedule.command()
@name_argument
@reason_option()
@on_system()
async def resume(system: System, name: str, reason: str) -> Answer:
    """Resume a paused schedule, from its next tick on. The ticks of the pause are not caught up."""
    from asterism.cli.run.schedule_views import zone_time

    resumed = await system.resume_schedule(name, reason)
    word = "is resumed" if resumed.changed else "was not paused"
    return _changed(resumed, f"{word}; next at {zone_time(resumed, resumed.next)}.")


@schedule.command()
@name_argument
@reason_option()
@on_system()
async def remove(system: System, name: str, reason: str) -> Answer:
    """Remove a schedule and its history. Earlier runs continue."""
    return _changed(await system.remove_schedule(name, reason), "is removed.")


def _changed(changed: ChangedSchedule, words: str) -> Answer:
    return Answer(changed, clean(f"Schedule {changed.name!r} {words}"))


@schedule.command()
@name_argument
@click.option(
    "-n", "--number", type=click.IntRange(1, 1000), default=5, show_default=True, metavar="N", help="How many times."
)
@on_system()
async def next_(system: System, name: str, number: int) -> Answer:
    """Print the next times of a schedule, in its time zone."""
    from asterism.cli.run.schedule_views import zone_time

    details = await system.show_schedule(name, number)
    times = {at: zone_time(details, at) for at in details.next_times}
    resume = f"Resume it with: asterism schedule resume {name}"
    paused = [] if details.paused is None else [f"Schedule {name!r} is paused, {details.paused}. {resume}"]
    document = [{"at": at, "local": local} for at, local in times.items()]
    return Answer(document, "\n".join(times.values()), paused)


@schedule.command()
@name_argument
@number_option("--limit", 20, least=1, most=100, help="How many ticks at most; the store keeps 100.")
@on_system()
async def history(system: System, name: str, limit: int) -> Answer:
    """List the latest ticks of a schedule, newest last."""
    from asterism.cli.run.schedule_views import history_table

    details = await system.show_schedule(name, 0)
    entries = details.history[-limit:]
    if not entries:
        return Answer(entries, notes=[f"Schedule {name!r} has created nothing yet."])
    return Answer(entries, lambda width: history_table(details, entries, width))


@schedule.command(short_help="List the ticks of a schedule, and what became of them.")
@name_argument
@click.option("--from", "first", type=tick_text, metavar="TIME", help="The first day or time; default: 30 days ago.")
@click.option("--to", "last", type=tick_text, metavar="TIME", help="The last day or time; default: now.")
@number_option("--limit", 500, least=1, most=1000, help="How many ticks at most, from the first on.")
@on_system()
async def ticks(system: System, name: str, first: str | None, last: str | None, limit: int) -> Answer:
    """List the ticks of a schedule with what became of them, also those for which nothing was created.

    The states are succeeded, failed, cancelled, running, waiting (created, not begun), skipped, missed, none (nothing
    was created, and the history does not say why) and due."""
    from asterism.cli.run.schedule_views import ticks_table

    page = await system.list_ticks(name, first, last, None, limit)
    more = [] if page.next is None else [f"There are more ticks after {page.items[-1].local}; see --from and --limit."]
    notes = more if page.items else [f"Schedule {name!r} has no tick in this time."]
    return Answer(page, lambda width: ticks_table(page.items, width), notes)


@schedule.command()
@name_argument
@reason_option()
@on_system()
async def run(system: System, name: str, reason: str) -> Answer:
    """Create the work of a schedule now. Its times stay as they are.

    The overlap policy applies: with `skip` the command exits with 1 while earlier work has not ended."""
    entry = await system.run_schedule(name, reason)
    if entry.outcome == CREATED:
        return Answer(entry, entry.what)
    return Answer(entry, notes=[f"Nothing was created: {entry.why}."], code=SKIPPED)


@schedule.command()
@name_argument
@click.option("--from", "first", type=tick_text, metavar="TIME", help="The first day or time, such as 2026-01-01.")
@click.option("--to", "last", type=tick_text, metavar="TIME", help="The last day or time; default: now.")
@duration_option("--every", positive=True, help="Ticks so far apart, from --from on, instead of those of the schedule.")
@number_option("--parallel", 1, least=1, most=100, help="How many plans run at once.")
@click.option("--only-missing", is_flag=True, help="Leave plans alone that failed, instead of a retry.")
@click.option("--cancel", is_flag=True, help="Cancel the backfill of this schedule instead.")
@click.option("--detach", is_flag=True, help="Do not wait for its end.")
@reason_option()
@on_system()
def backfill(
    name: str,
    first: str | None,
    last: str | None,
    every: float | None,
    parallel: int,
    only_missing: bool,
    cancel: bool,
    detach: bool,
    reason: str,
) -> Any:
    """Create the plans of past ticks, one a tick, in their order.

    The coordinator creates them and `asterism monitor` runs them: the command only follows, and Ctrl-C ends nothing but
    that. A tick whose plan succeeded before is skipped, one whose plan failed is run again. Without --from, the command
    follows the backfill that was begun before. It exits with 1 if a plan failed.

    \b
    asterism schedule backfill nightly --from 2026-01-01 --to 2026-03-31 --parallel 4"""
    if first is None:
        refuse_options("needs --from.", "last", "every", "parallel", "only_missing")
    if every is not None and every != int(every):
        raise click.BadParameter("the interval must be a whole number of seconds.", param_hint="--every")

    async def request(system: System) -> Answer:
        from asterism.cli.run.schedule_views import backfill_line, followed_backfill

        if cancel:
            backfill = await system.cancel_backfill(name, reason)
        elif first is not None:
            whole = None if every is None else int(every)
            backfill = await system.backfill_schedule(name, first, last, whole, parallel, only_missing, reason)
        else:
            backfill = await system.show_backfill(name)
        for sentence in backfill.advice:
            note(sentence)
        if not detach and not cancel:
            backfill = await followed_backfill(system, backfill)
        return Answer(backfill, clean(backfill_line(backfill)), code=int(bool(backfill.failed)))

    return request
