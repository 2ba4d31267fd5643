"""``asterism top``: the plans, runs, devices, series and notices of a system, live in a terminal."""

from __future__ import annotations

import sys

import click

from asterism.cli.cli_context import store_option
from asterism.cli.option_types import option

TABS = ("plans", "runs", "devices", "series", "notices")


@click.command()
@option("--tab", "What to show first.", type=click.Choice(TABS), default="plans")
@store_option
def top(tab: str, store: str | None) -> None:
    """Watch and steer plans, runs and devices in the terminal.

    It shows the plans, runs, devices, series and notices of a store, or of a server. Keys: 1 to 5 for the tabs, Enter
    for details, w for why something does not run, l for its log, / to filter, s to sort, p to pause or resume, c to
    cancel, r to retry, q to quit. It needs the extra 'top'."""
    from asterism.base.startup import install_hint

    try:
        import textual  # noqa: F401
    except ImportError:
        raise click.ClickException(f"asterism top needs Textual: {install_hint('top')}") from None
    if not sys.stdin.isatty() or not sys.stdout.isatty():
        raise click.ClickException(
            "asterism top needs a terminal. Without one, use: asterism runs watch, plan list or notice list"
        )
    from asterism.cli.top.top_app import SystemThread, Top

    with SystemThread(store) as opened:
        Top(opened, tab).run()
