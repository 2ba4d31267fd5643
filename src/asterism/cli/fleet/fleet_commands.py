"""``asterism fleet``: the settings of a fleet, and its metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from asterism.api.fleet_operations import MOST_METRIC_RUNS
from asterism.cli.cli_context import CommandGroup, fleet_options, print_json, reason_option, with_system
from asterism.cli.option_types import duration, pair, positive_duration, size, words

if TYPE_CHECKING:
    from asterism.api.documents import Settings
    from asterism.api.system import System


@click.group(cls=CommandGroup)
def fleet() -> None:
    """Show and change the settings of a fleet; print its metrics."""


@fleet.command()
@fleet_options
def show(store: str | None, as_json: bool) -> None:
    """Show the settings of the fleet."""

    async def read(system: System) -> None:
        _print(await system.show_settings(), as_json)

    with_system(store, read)


@fleet.command("set")
@click.option("--keep", type=duration, metavar="DURATION", help="How long to keep ended runs, such as 30d.")
@click.option(
    "--large", type=size, metavar="SIZE", help="Store larger inputs and outputs apart from their runs, such as 64k."
)
@click.option("--most", type=size, metavar="SIZE", help="Refuse larger inputs and outputs, such as 64M.")
@click.option(
    "--log-limit", type=size, metavar="SIZE", help="How much of what each attempt prints to keep, such as 256k."
)
@click.option(
    "--device-bytes",
    type=size,
    metavar="SIZE",
    help="How much of large results each device that joined through a server may store in an hour.",
)
@click.option(
    "--hold", type=duration, metavar="DURATION", help="How long to keep runs assigned when most devices vanish at once."
)
@click.option(
    "--lease", type=duration, metavar="DURATION", help="How long the coordinator stays elected without a heartbeat."
)
@click.option(
    "--peer-timeout",
    type=duration,
    metavar="DURATION",
    help="Take over the runs of a peer after this time without contact.",
)
@click.option("--peer-runs", type=click.IntRange(0), metavar="N", help="How many runs each peer may store here.")
@click.option("--peer-bytes", type=size, metavar="SIZE", help="How much each peer may store here in records.")
@click.option(
    "--peer-blobs", type=size, metavar="SIZE", help="How much each peer may store here in large inputs and outputs."
)
@click.option(
    "--notify-command",
    type=words,
    metavar="WORDS",
    help="A command to run for each notice, with the notice as JSON on standard input; '' for none.",
)
@click.option("--notify-url", metavar="URL", help="A URL to POST each notice to; '' for none.")
@click.option(
    "--weight",
    "weights",
    type=pair,
    multiple=True,
    metavar="NAME=NUMBER",
    help="Weight of a part of the score: load, connection, rank, capability.",
)
@reason_option
@fleet_options
def set_(reason: str, store: str | None, as_json: bool, weights: tuple[tuple[str, str], ...], **settings: Any) -> None:
    """Change settings of the fleet. Settings that are not given stay as they are."""
    changes = {name: value for name, value in settings.items() if value is not None}
    if weights:
        changes["weights"] = {name: _number(name, text) for name, text in weights}
    if not changes:
        raise click.UsageError("No setting is given (example: --keep 30d).")

    async def change(system: System) -> None:
        _print(await system.change_settings(**changes, reason=reason), as_json)

    with_system(store, change)


@fleet.command(short_help="Print metrics of the fleet for Prometheus.")
@click.option(
    "--window",
    type=positive_duration,
    default="1h",
    show_default=True,
    metavar="DURATION",
    help="Describe the runs that were created in this time until now.",
)
@click.option(
    "--limit",
    type=click.IntRange(1, MOST_METRIC_RUNS),
    default=10_000,
    show_default=True,
    metavar="N",
    help="Read at most this many runs, the newest.",
)
@fleet_options
def metrics(window: float, limit: int, store: str | None, as_json: bool) -> None:
    """Print metrics of the fleet in the format of OpenMetrics, for Prometheus.

    They are computed from the stored records: waiting time, work time, declines, losses and scores by workflow and
    device, and the edits and holds of plans. `asterism monitor --listen` serves the same text over HTTP."""

    async def read(system: System) -> None:
        from asterism.base.text import echo_data

        answer = await system.read_metrics(window, limit)
        if as_json:
            print_json(answer.families)
        else:
            echo_data(answer.text.removesuffix("\n"))

    with_system(store, read)


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise click.BadParameter(f"{name} must be a number, not {text!r}", param_hint="--weight") from None


def _print(settings: Settings, as_json: bool) -> None:
    from asterism.cli.fleet.fleet_views import settings_lines
    from asterism.cli.screen import print_lines

    if as_json:
        print_json(settings)
    else:
        print_lines(lambda width: settings_lines(settings))
