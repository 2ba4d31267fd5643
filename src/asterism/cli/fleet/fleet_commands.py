"""``asterism fleet``: the settings of a fleet, and its metrics; ``asterism notice``: its messages to people."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from asterism.api.fleet_operations import MOST_METRIC_RUNS
from asterism.cli.cli_context import Answer, CommandGroup, ask_again, note, on_system, print_json, reason_option
from asterism.cli.option_types import duration_option, number_option, option, pair, size_option, words

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


@fleet.command("set")
@duration_option("--keep", help="How long to keep ended runs, such as 30d.")
@duration_option("--keep-events", help="How long to keep events that plans wait for, such as 7d.")
@size_option("--large", help="Store larger inputs and outputs apart from their runs, such as 64k.")
@size_option("--most", help="Refuse larger inputs and outputs, such as 64M.")
@size_option("--log-limit", help="How much of what each attempt prints to keep, such as 256k.")
@size_option(
    "--device-bytes",
    help="How much of large results each device that joined through a server may store in an hour.",
)
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
    from asterism.cli.fleet.fleet_views import settings_lines

    return Answer(settings, lambda width: settings_lines(settings))


# -- notices -----------------------------------------------------------------------------------------------------------


AT_ONCE = 1000
"""How many notices one answer has."""

WAIT = 20.0
"""How long one answer waits for new notices, in seconds."""


@click.group(cls=CommandGroup)
def notice() -> None:
    """List and follow the notices of a fleet.

    A notice is a message to people: a run failed, a device has suspended itself, a clock jumped."""


@notice.command("list")
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
