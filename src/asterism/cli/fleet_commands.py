"""``asterism fleet``: what holds for the whole fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from asterism.cli.cli_context import CommandGroup, fleet_options, print_json, with_fleet
from asterism.cli.option_types import duration, pair, size, words

if TYPE_CHECKING:
    from asterism.fleet.fleet import Fleet
    from asterism.fleet.settings import Settings


@click.group(cls=CommandGroup)
def fleet() -> None:
    """Show and change the settings of a fleet."""


@fleet.command()
@fleet_options
def show(store: str | None, as_json: bool) -> None:
    """Show the settings of the fleet. They live in its store."""

    async def tell(found: Fleet) -> None:
        _tell(await found.settings(), as_json)

    with_fleet(store, tell)


@fleet.command("set")
@click.option("--keep", type=duration, metavar="DURATION", help="How long runs are kept after their end, such as 30d.")
@click.option("--large", type=size, metavar="SIZE", help="Inputs and outputs beyond that are kept apart, such as 64k.")
@click.option("--most", type=size, metavar="SIZE", help="Inputs and outputs beyond that are refused, such as 64M.")
@click.option("--hold", type=duration, metavar="DURATION", help="How long the brake lasts when most devices vanish.")
@click.option(
    "--lease", type=duration, metavar="DURATION", help="How long a coordinator that is not heard of stays in office."
)
@click.option(
    "--peer-timeout",
    type=duration,
    metavar="DURATION",
    help="After so long without a word of a peer, its runs are ours.",
)
@click.option("--peer-runs", type=click.IntRange(0), metavar="N", help="How many runs each peer may store here.")
@click.option("--peer-bytes", type=size, metavar="SIZE", help="How much each peer may store here in records.")
@click.option("--peer-blobs", type=size, metavar="SIZE", help="The same of large inputs and outputs.")
@click.option(
    "--notify-command",
    type=words,
    metavar="WORDS",
    help="Told of failures, as JSON on its standard input; '' for none.",
)
@click.option("--notify-url", metavar="URL", help="The same by HTTP POST; '' for none.")
@click.option(
    "--weight",
    "weights",
    type=pair,
    multiple=True,
    metavar="NAME=NUMBER",
    help="Of the score: load, connection, rank, capability.",
)
@fleet_options
def set_(store: str | None, as_json: bool, weights: tuple[tuple[str, str], ...], **given: Any) -> None:
    """Change settings of the fleet; what is left out stays as it is."""
    changes = {name: value for name, value in given.items() if value is not None}
    for name in ("notify_command", "notify_url"):
        if name in changes:
            changes[name] = changes[name] or None
    if weights:
        changes["weights"] = {name: _number(name, text) for name, text in weights}
    if not changes:
        raise click.UsageError("Nothing is to be changed: name a setting, such as --keep 30d.")

    async def change(found: Fleet) -> None:
        _tell(await found.configure(**changes), as_json)

    with_fleet(store, change)


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise click.BadParameter(f"{name} is a number, not {text!r}", param_hint="--weight") from None


def _tell(settings: Settings, as_json: bool) -> None:
    from asterism.cli.screen import print_lines
    from asterism.cli.store_contents import settings_lines

    if as_json:
        print_json(settings.to_json())
    else:
        print_lines(lambda width: settings_lines(settings))
