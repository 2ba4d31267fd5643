"""``asterism monitor``: watch over a fleet and do no work."""

from __future__ import annotations

from typing import Any

import click

from asterism.cli.cli_context import fleet_options
from asterism.cli.option_types import duration, longer_than_nothing


@click.command()
@click.argument("name", required=False)
@click.option(
    "--every",
    type=duration,
    callback=longer_than_nothing,
    default="5s",
    show_default=True,
    metavar="DURATION",
    help="How often to look.",
)
@click.option(
    "--heartbeat",
    type=duration,
    default="30s",
    show_default=True,
    metavar="DURATION",
    help="How often to say it lives.",
)
@click.option(
    "--timeout", type=duration, default="90s", show_default=True, metavar="DURATION", help="When it counts as gone."
)
@click.option("--policy", metavar="FILE", help="Whom it may tell; asterism/policy.yaml in your configuration.")
@fleet_options
def monitor(name: str | None, every: float, store: str | None, as_json: bool, **terms: Any) -> int:
    """Watch over the devices of a fleet without doing work.

    Every device can do that beside its work, and one is elected to. This is for fleets whose devices come and go: it
    takes away what has run out, hands out what waits, and gives up what nobody can do. Several at once do no harm. NAME
    is monitor- and the name of this machine if left out."""
    import platform

    from asterism.cli.device_process import Terms, join_fleet

    given = name or f"monitor-{platform.node() or 'local'}"
    wanted = Terms(given, slots=0, monitor_every=every, **terms)
    return join_fleet(store, wanted, drain_for=0.0, as_json=as_json, create=False)
