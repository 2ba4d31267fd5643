"""``asterism fleet``, ``notice``, ``limit``, ``event`` and ``top``: what plans, runs and devices of a store share."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from asterism.api.fleet_operations import MOST_METRIC_RUNS
from asterism.base.text import clean, plural
from asterism.cli.cli_context import (
    Answer,
    CommandGroup,
    ask_again,
    listed,
    note,
    on_system,
    print_json,
    reason_option,
    store_option,
    view,
)
from asterism.cli.option_types import (
    duration_option,
    json_value,
    number_option,
    option,
    pair,
    positive_duration,
    size_option,
    words,
)

if TYPE_CHECKING:
    from asterism.api.documents import Notice, Settings
    from asterism.api.system import System


@click.group(cls=CommandGroup)
def fleet() -> None:
    """Show and change the settings of a fleet; print its metrics."""


@fleet.command()
async def show(system: System) -> Answer:
    """Show the settings of the fleet."""
    return _shown(await system.show_settings())


@fleet.command()
@duration_option("--keep", help="How long to keep ended runs, such as 30d.")
@duration_option("--keep-events", help="How long to keep events that plans wait for, such as 7d.")
@duration_option("--keep-audit", help="How long to keep entries of the audit log, such as 90d.")
@size_option("--large", help="Store larger inputs and outputs apart from their runs, such as 64k.")
@size_option("--most", help="Refuse larger inputs and outputs, such as 64M.")
@size_option("--log-limit", help="How much of what each attempt prints to keep, such as 256k.")
@size_option(
    "--device-bytes",
    help="How much of large results each device that joined through a server may store in an hour.",
)
@size_option("--credential-bytes", help="How much each credential of a server may store in an hour.")
@option(
    "--artifacts URL",
    "Where to keep the files of tasks: file:///folder or s3://bucket/prefix; '' for beside the store.",
)
@duration_option("--hold", help="How long to keep runs assigned when most devices vanish at once.")
@duration_option("--lease", help="How long the coordinator stays elected without a heartbeat.")
@duration_option("--peer-timeout", help="Take over the runs of a peer after this time without contact.")
@number_option("--peer-runs", least=0, help="How many runs each peer may store here.")
@size_option("--peer-bytes", help="How much each peer may store here in records.")
@size_option("--peer-blobs", help="How much each peer may store here in large inputs and outputs.")
@option(
    "--notify-command WORDS",
    "A command to run for each notice, with the notice as JSON on standard input; '' for none.",
    type=words,
)
@option("--notify-url URL", "A URL to POST each notice to; '' for none.")
@option(
    "--weight NAME=NUMBER",
    "Weight of a part of the score: load, connection, rank, capability.",
    to="weights",
    type=pair,
    multiple=True,
)
@reason_option()
@on_system()
def set_(reason: str, weights: tuple[tuple[str, str], ...], **settings: Any) -> Any:
    """Change settings of the fleet. Settings that are not given stay as they are."""
    changes = {name: value for name, value in settings.items() if value is not None}
    if weights:
        changes["weights"] = {name: _number(name, text) for name, text in weights}
    if not changes:
        raise click.UsageError("No setting is given (example: --keep 30d).")

    async def change(system: System) -> Answer:
        return _shown(await system.change_settings(**changes, reason=reason))

    return change


@fleet.command(short_help="Print metrics of the fleet for Prometheus.")
@duration_option("--window", "1h", positive=True, help="Describe the runs that were created in this time until now.")
@number_option("--limit", 10_000, least=1, most=MOST_METRIC_RUNS, help="Read at most this many runs, the newest.")
async def metrics(system: System, window: float, limit: int, as_json: bool) -> None:
    """Print metrics of the fleet in the format of OpenMetrics, for Prometheus.

    They are computed from the stored records: waiting time, work time, declines, losses and scores by workflow and
    device, and the edits and holds of plans. `asterism monitor --listen` serves the same text over HTTP."""
    from asterism.base.text import echo_data

    answer = await system.read_metrics(window, limit)
    if as_json:
        print_json(answer.families)
    else:
        echo_data(answer.text.removesuffix("\n"))


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise click.BadParameter(f"{name} must be a number, not {text!r}", param_hint="--weight") from None


def _shown(settings: Settings) -> Answer:
    return Answer(settings, view("fleet.fleet_views:settings_lines", settings))


# -- notices -----------------------------------------------------------------------------------------------------------


AT_ONCE = 1000
"""How many notices one answer has."""

WAIT = 20.0
"""How long one answer waits for new notices, in seconds."""


@click.group(cls=CommandGroup)
def notice() -> None:
    """List and follow the notices of a fleet.

    A notice is a message to people: a run failed, a device has suspended itself, a clock jumped."""


@notice.command()
@option("-f --follow", "Print new notices as they come. Ctrl-C stops it.")
@duration_option("--since", help="Only notices of this time until now, such as 2h.")
@option("--run RUN", "Only notices about this run.")
@option("--kind KIND", "Only notices of this kind, such as failed.", to="kinds", multiple=True)
@number_option("--limit", 50, least=0, help="Maximum number of old notices, the latest; 0 for all.")
async def list_(
    system: System,
    follow: bool,
    since: float | None,
    run: str | None,
    kinds: tuple[str, ...],
    limit: int,
    as_json: bool,
) -> None:
    """List and follow notices, the latest last.

    With --json, prints a JSON array; with --json and --follow, a JSON object for each line."""
    conditions = {"run": run, "kind": ",".join(kinds) or None}
    notices, last = await read_notices(system, limit, since=since, **conditions)
    print_notices(notices, as_json=as_json, as_lines=follow)
    if follow:
        await follow_notices(system, last, as_json=as_json, **conditions)
    elif not notices and not as_json:
        note("There are no notices." if not (since or run or kinds) else "No notice matches.")


async def read_notices(system: System, limit: int, **conditions: Any) -> tuple[list[Notice], int]:
    """The latest notices, at most ``limit`` or with 0 all, oldest first; and the number of the last that was read."""
    if 0 < limit <= AT_ONCE:
        page = await system.list_notices(limit=limit, latest=True, **conditions)
        return page.items, int(page.next or 0)
    notices: list[Notice] = []
    after = 0
    while True:
        page = await system.list_notices(after=after, limit=AT_ONCE, **conditions)
        notices, after = notices + page.items, int(page.next or 0)
        if len(page.items) < AT_ONCE:
            return notices[-limit:], after


async def follow_notices(system: System, after: int, *, as_json: bool, **conditions: Any) -> None:
    """Print new notices until it is cancelled. While the store or the server cannot be reached, it tries again, after
    the last notice that was printed."""
    while True:
        ask = partial(system.list_notices, after=after, limit=AT_ONCE, wait=WAIT, **conditions)
        page = await ask_again(ask, "The notices")
        after = int(page.next or 0)
        print_notices(page.items, as_json=as_json, as_lines=True)


def print_notices(notices: Iterable[Notice], *, as_json: bool, as_lines: bool) -> None:
    """Print notices, one to a line. ``as_json`` prints a JSON array, or with ``as_lines`` an object for each line."""
    from asterism.cli.fleet.fleet_views import notice_line

    if as_json and not as_lines:
        print_json(list(notices))
        return
    for shown in notices:
        if as_json:
            print_json(shown)
        else:
            click.echo(notice_line(shown))


# -- asterism limit ----------------------------------------------------------------------------------------------------


_RATE = re.compile(r"([0-9]{1,9})/(.+)", re.ASCII)
_notice_reason = reason_option("for a notice")


def rate(text: str) -> tuple[int, float]:
    """``10/1m``: ten within any minute."""
    match = _RATE.fullmatch(text.strip())
    if match is None:
        raise click.BadParameter(f"{text!r} is not a valid rate (examples: 10/1m, 2/1s, 1000/1d).")
    return int(match[1]), positive_duration(match[2])


@click.group(cls=CommandGroup)
def limit() -> None:
    """Limit what all plans and runs use at a time, or how often.

    A task says what it uses: `uses: {warehouse: 1}` in a plan file or workflow. It begins when all of that is free, and
    holds it until it ends, whichever way. Limits count over all plans, schedules and runs of a store."""


@limit.command(short_help="Set or change a limit.")
@click.argument("size", required=False, type=click.IntRange(0))
@option("--rate NUMBER/PERIOD", "How much may begin, such as 10/1m.", to="often", type=rate)
@_notice_reason
@on_system(create=True)
async def set_limit(
    system: System, name: str, size: int | None, often: tuple[int, float] | None, reason: str
) -> Answer:
    """Set how much may be in use at a time (SIZE), how much may begin within a period (--rate), or both.

    NAME/* is a limit for each name below it: with `asterism limit set 'account/*' 1`, the runs that use account/7 come
    one after the other. A change counts at once for what waits; what runs is not stopped. With the SIZE 0 nothing
    begins.

    \b
    asterism limit set warehouse 4
    asterism limit set mail --rate 10/1m"""
    if size is None and often is None:
        raise click.UsageError("Give the SIZE of the limit, --rate, or both.")
    number, period = (None, None) if often is None else often
    changed = await system.set_limit(name, size, number, period, reason)
    from asterism.cli.run.run_views import limit_text

    return Answer(changed, f"Limit {clean(changed.name)}: {limit_text(changed)}.")


@limit.command(short_help="List the limits, what is in use, and what waits.")
async def list_limits(system: System) -> Answer:
    """List the limits: how much of each is in use, and how many runs wait that use it."""
    empty = "No limits are set. Set one with: asterism limit set NAME SIZE"
    return listed(await system.list_limits(), "run.run_views:LIMIT_TABLE", empty)


@limit.command(short_help="Show who holds a limit, and who waits.")
async def show_limit(system: System, name: str) -> Answer:
    """Show the runs that hold a limit, and those that wait for it, in the order of their turns."""
    details = await system.show_limit(name)
    return Answer(details, view("run.run_views:limit_lines", details))


@limit.command(short_help="Remove a limit.")
@_notice_reason
async def remove(system: System, name: str, reason: str) -> Answer:
    """Remove a limit. New runs that use it are refused; those that wait for it wait until it is set again."""
    removed = await system.remove_limit(name, reason)
    waiting = f"{plural(removed.waiting, 'run')} that use it wait until it is set again."
    return Answer(removed, f"Limit {clean(removed.name)} removed.", notes=[waiting] if removed.waiting else [])


# -- asterism event ----------------------------------------------------------------------------------------------------


@click.group(cls=CommandGroup)
def event() -> None:
    """Send events that plans wait for, and list them.

    A task with `wait_for: {event: NAME}` waits until an event of this name is sent. An event is kept for some days
    (`asterism fleet set --keep-events`), and continues tasks that begin to wait until then, too."""


@event.command(short_help="Send an event.")
@option("--data JSON|@FILE|-", "The result of the tasks that wait for it.", type=json_value)
@option("--key TEXT", "Send an event with this name and key only once.")
async def send(system: System, name: str, data: Any, key: str | None) -> Answer:
    """Send an event: it continues the tasks that wait for its name.

    With `--key`, a second event of this name and key is not sent; the first one is shown."""
    sent = await system.send_event(name, data, key)
    again = " was sent before" if sent.again else " sent"
    return Answer(sent, f"Event {sent.number} {clean(sent.name)!r}{again}.")


@event.command(short_help="List the events that are kept.")
@number_option("--limit", default=50, help="How many events to list at most.")
async def list_events(system: System, name: str | None, limit: int) -> Answer:
    """List the events that are kept, the newest last, and who has taken them."""
    page = await system.list_events(name, limit=limit)
    page.items.reverse()
    empty = "There are no events. Send one with: asterism event send NAME --data JSON"
    return listed(page, "run.run_views:EVENT_TABLE", empty)


# -- asterism top ------------------------------------------------------------------------------------------------------


TABS = ("plans", "runs", "devices", "series", "notices")


@click.command()
@option("--tab", "What to show first.", type=click.Choice(TABS), default="plans")
@store_option
def top(tab: str, store: str | None) -> None:
    """Watch plans, runs and devices in the terminal.

    It shows the plans, runs, devices, series and notices of a store, or of a server. Keys: 1 to 5 for the tabs, Enter
    for details, w for why something does not run, l for its log, / to filter, q to quit. It needs the extra 'top'."""
    from asterism.base.startup import install_hint

    try:
        import textual  # noqa: F401
    except ImportError:
        raise click.ClickException(f"asterism top needs Textual: {install_hint('top')}") from None
    if not sys.stdin.isatty() or not sys.stdout.isatty():
        raise click.ClickException(
            "asterism top needs a terminal. Without one, use: asterism runs watch, plan list or notice list"
        )
    from asterism.cli.top import SystemThread, Top

    with SystemThread(store) as opened:
        Top(opened, tab).run()
