"""``asterism schedule``: create runs of a workflow, or plans, at given times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import click

from asterism.api.schedule_operations import CatchUp, Overlap
from asterism.base.text import clean
from asterism.cli.cli_context import (
    Answer,
    CommandGroup,
    listed,
    note,
    on_system,
    reason_option,
    refuse_options,
    view,
)
from asterism.cli.option_types import (
    choice_option,
    duration_option,
    number_option,
    object_option,
    option,
    parameter_option,
    tick_text,
)
from asterism.core.json_values import JsonObject

if TYPE_CHECKING:
    from asterism.api.documents import ChangedSchedule
    from asterism.api.system import System

CATCH_UP, OVERLAP = map(get_args, (CatchUp, Overlap))
CREATED = "created"
NEXT_SHOWN = 3
SKIPPED = 1


@click.group(cls=CommandGroup)
def schedule() -> None:
    """Create runs or plans at given times: add, list, show and more.

    The coordinator of the fleet creates them, so a device or `asterism monitor` must be running. `asterism monitor`
    also runs the plans."""


@schedule.command()
@option("--workflow NAME", "Create runs of this workflow.")
@option(
    "--plan PLAN.YAML",
    "Create plans of this plan file, or of the Python plan at module:plan; the store keeps it.",
    to="path",
)
@parameter_option
@object_option("The input of each run as a JSON object, in a file, or on standard input.")
@number_option("--priority", help="Priority of each run; default: that of the workflow.")
@option("--device NAME", "Run it on this device only.")
@option("--cron EXPR", "Times as minute, hour, day of month, month and day of week, such as '0 3 * * *'.")
@duration_option("--every", positive=True, help="An interval instead, such as 5m.")
@option("--on-event EVENT", "With --plan: create a plan for each event of this name instead, such as 'payment/*'.")
@option("--timezone ZONE", "Time zone of --cron.", default="UTC")
@choice_option("--catch-up", "Which missed ticks to create when a coordinator is back.", CATCH_UP, default="last")
@choice_option(
    "--overlap",
    "What to do with a tick while earlier work has not ended; default: skip, with --on-event or --catch-up all queue.",
    OVERLAP,
)
@number_option("--parallel", 1, least=1, most=100, help="How many may be at work at once before --overlap counts.")
@duration_option("--jitter", "0s", help="Delay each tick by up to this time.")
@choice_option(
    "--after-previous",
    "With --plan: the plan of a tick waits until that of the tick before has succeeded.",
    ["success"],
)
@duration_option(
    "--late-after", positive=True, help="With --plan: a notice says if a plan has not ended this long after its tick."
)
@option("--replace", "Change a schedule that exists; its history stays.")
@reason_option()
@on_system(create=True)
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
    from asterism.cli.editor_options import allow_imports
    from asterism.cli.plan.plan_file_commands import given_parameters, load_plan_file, sent_file

    allow_imports(path)
    plan_file = load_plan_file(path, given_parameters(settings, None), fleet=True, scheduled=True)
    return sent_file(path, plan_file)


@schedule.command()
async def list_(system: System) -> Answer:
    """List the schedules.

    NEXT is the next tick in the time zone of the schedule, IN the time until it fires, MADE the number of runs that
    were created, and OPEN how many of them have not ended."""
    page = await system.list_schedules()
    how = "asterism schedule add NAME --cron '0 3 * * *' --workflow NAME"
    empty = f"There are no schedules. Add one with: {how}"
    return listed(page, "run.schedule_views:SCHEDULE_TABLE", empty, page.advice)


@schedule.command()
@option("--plan-file", "Print the plan file that the schedule keeps.")
async def show(system: System, name: str, plan_file: bool) -> Answer | None:
    """Show a schedule with its terms, next times and latest ticks."""
    details = await system.show_schedule(name, NEXT_SHOWN, plan_file)
    if not plan_file:
        return Answer(details, view("run.schedule_views:details_lines", details))
    if details.text is None:
        raise click.UsageError(f"Schedule {name!r} keeps no plan file.")
    click.echo(details.text, nl=False)
    return None


@schedule.command()
@reason_option("shown with the schedule")
async def pause(system: System, name: str, reason: str) -> Answer:
    """Pause a schedule: create nothing until it is resumed. Earlier runs continue."""
    paused = await system.pause_schedule(name, reason)
    return _changed(paused, f"{'is' if paused.changed else 'was already'} paused, {paused.paused}.")


@schedule.command()
@reason_option()
async def resume(system: System, name: str, reason: str) -> Answer:
    """Resume a paused schedule, from its next tick on. The ticks of the pause are not caught up."""
    from asterism.cli.run.schedule_views import zone_time

    resumed = await system.resume_schedule(name, reason)
    word = "is resumed" if resumed.changed else "was not paused"
    return _changed(resumed, f"{word}; next at {zone_time(resumed, resumed.next)}.")


@schedule.command()
@reason_option()
async def remove(system: System, name: str, reason: str) -> Answer:
    """Remove a schedule and its history. Earlier runs continue."""
    return _changed(await system.remove_schedule(name, reason), "is removed.")


def _changed(changed: ChangedSchedule, words: str) -> Answer:
    return Answer(changed, clean(f"Schedule {changed.name!r} {words}"))


@schedule.command()
@option("-n --number N", "How many times.", type=click.IntRange(1, 1000), default=5)
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
@number_option("--limit", 20, least=1, most=200, help="How many ticks at most; the store keeps 200.")
async def history(system: System, name: str, limit: int) -> Answer:
    """List the latest ticks of a schedule, newest last."""
    details = await system.show_schedule(name, 0)
    entries = details.history[-limit:]
    notes = [] if entries else [f"Schedule {name!r} has created nothing yet."]
    return Answer(entries, view("run.schedule_views:history_table", details, entries) if entries else None, notes)


@schedule.command(short_help="List the ticks of a schedule, and what became of them.")
@option("--from TIME", "The first day or time; default: 30 days ago.", to="first", type=tick_text)
@option("--to TIME", "The last day or time; default: now.", to="last", type=tick_text)
@number_option("--limit", 500, least=1, most=1000, help="How many ticks at most, from the first on.")
async def ticks(system: System, name: str, first: str | None, last: str | None, limit: int) -> Answer:
    """List the ticks of a schedule with what became of them, also those for which nothing was created.

    The states are succeeded, failed, cancelled, running, waiting (created, not begun), skipped, missed, none (nothing
    was created, and the history does not say why) and due."""
    page = await system.list_ticks(name, first, last, None, limit)
    more = [] if page.next is None else [f"There are more ticks after {page.items[-1].local}; see --from and --limit."]
    notes = more if page.items else [f"Schedule {name!r} has no tick in this time."]
    return Answer(page, view("run.schedule_views:TICK_TABLE.lines", page.items, 0.0), notes)


@schedule.command()
@reason_option()
async def run(system: System, name: str, reason: str) -> Answer:
    """Create the work of a schedule now. Its times stay as they are.

    The overlap policy applies: with `skip` the command exits with 1 while earlier work has not ended."""
    entry = await system.run_schedule(name, reason)
    if entry.outcome == CREATED:
        return Answer(entry, entry.what)
    return Answer(entry, notes=[f"Nothing was created: {entry.why}."], code=SKIPPED)


@schedule.command()
@option("--from TIME", "The first day or time, such as 2026-01-01.", to="first", type=tick_text)
@option("--to TIME", "The last day or time; default: now.", to="last", type=tick_text)
@duration_option("--every", positive=True, help="Ticks so far apart, from --from on, instead of those of the schedule.")
@number_option("--parallel", 1, least=1, most=100, help="How many plans run at once.")
@option("--only-missing", "Leave plans alone that failed, instead of a retry.")
@option("--cancel", "Cancel the backfill of this schedule instead.")
@option("--detach", "Do not wait for its end.")
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
