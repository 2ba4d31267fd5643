"""``asterism fleet``: the settings of a fleet, and its metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from asterism.api.fleet_operations import MOST_METRIC_RUNS
from asterism.cli.cli_context import Answer, CommandGroup, on_system, print_json, reason_option
from asterism.cli.option_types import duration_option, number_option, pair, size_option, words

if TYPE_CHECKING:
    from asterism.api.documents import Settings
    from asterism.api.system import System


@click.group(cls=CommandGroup)
def fleet() -> None:
    """Show and change the settings of a fleet; print its metrics."""


@fleet.command()
@on_system()
async def show(system: System) -> Answer:
    """Show the settings of the fleet."""
    return _shown(await system.show_settings())


@fleet.command("set")
@duration_option("--keep", help="How long to keep ended runs, such as 30d.")
@size_option("--large", help="Store larger inputs and outputs apart from their runs, such as 64k.")
@size_option("--most", help="Refuse larger inputs and outputs, such as 64M.")
@size_option("--log-limit", help="How much of what each attempt prints to keep, such as 256k.")
@size_option(
    "--device-bytes",
    help="How much of large results each device that joined through a server may store in an hour.",
)
@duration_option("--hold", help="How long to keep runs assigned when most devices vanish at once.")
@duration_option("--lease", help="How long the coordinator stays elected without a heartbeat.")
@duration_option("--peer-timeout", help="Take over the runs of a peer after this time without contact.")
@number_option("--peer-runs", least=0, help="How many runs each peer may store here.")
@size_option("--peer-bytes", help="How much each peer may store here in records.")
@size_option("--peer-blobs", help="How much each peer may store here in large inputs and outputs.")
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
@on_system()
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
