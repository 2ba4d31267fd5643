"""The options of commands that orchestrate a constellation of a store: what this process does itself.

``--local`` may be given a number with ``=`` only, so that a word after it is never mistaken for one.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from asterism.cli.cli_context import options
from asterism.cli.option_types import duration

if TYPE_CHECKING:
    from asterism.cli.plan_follower import Here

AS_MANY = "as many as there are processors"
TAKEOVER_AFTER = 15.0


class LocalCommand(click.Command):
    """A command with ``--local[=SLOTS]``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [f"--local={AS_MANY}" if word == "--local" else word for word in args])


def _slots(text: str) -> int:
    if text == AS_MANY:
        return os.cpu_count() or 1
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise click.BadParameter(f"{text!r} is no number of slots: write --local, or --local=4.")
    return int(text)


local_options = options(
    click.option(
        "--local",
        type=_slots,
        metavar="[=SLOTS]",
        help="This process does tasks, too. That is so anyway if no device is joined at the start.",
    ),
    click.option("--no-local", is_flag=True, help="This process does no tasks, even if no device is joined."),
    click.option(
        "--takeover-after",
        type=duration,
        default=f"{TAKEOVER_AFTER:g}s",
        show_default=True,
        metavar="DURATION",
        help="After how long without a word of this process another may take over.",
    ),
)


def here_of(local: int | None, no_local: bool, can: frozenset[str] | None) -> Here:
    from asterism.cli.plan_follower import Here

    if local is not None and no_local:
        raise click.UsageError("--local and --no-local contradict each other.")
    return Here(0 if no_local else local, can)
