"""The options of the commands that run a plan: ``run``, ``plan resume`` and ``plan standby``.

``--local`` takes its number with ``=`` only, so that the next word is never read as the number.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import click

from asterism.cli.cli_context import options
from asterism.cli.option_types import duration, writable_file

ALL_PROCESSORS = "one per processor"
TAKEOVER_AFTER = 15.0


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """How a command shows the plan while it runs, and its result."""

    report: str | None
    as_json: bool
    plain: bool


@dataclass(frozen=True, slots=True)
class LocalWork:
    """The tasks that this process executes itself.

    ``slots`` is how many at once; None for one per processor, if no other device is joined. ``can`` is this process's
    capabilities; None for whatever the tasks need."""

    slots: int | None = None
    can: frozenset[str] | None = None


class LocalCommand(click.Command):
    """A command with ``--local[=SLOTS]``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [f"--local={ALL_PROCESSORS}" if word == "--local" else word for word in args])


def _slots(text: str) -> int:
    if text == ALL_PROCESSORS:
        return os.cpu_count() or 1
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise click.BadParameter(f"{text!r} is not a number of slots (examples: --local, --local=4).")
    return int(text)


local_options = options(
    click.option(
        "--local",
        type=_slots,
        metavar="[=SLOTS]",
        help="Execute tasks in this process, too. The default if no device is joined at the start.",
    ),
    click.option("--no-local", is_flag=True, help="Execute no tasks in this process, even if no device is joined."),
    click.option(
        "--takeover-after",
        type=duration,
        default=f"{TAKEOVER_AFTER:g}s",
        show_default=True,
        metavar="DURATION",
        help="Another process may take over after this time without a heartbeat of this one.",
    ),
)

editor_option = click.option(
    "--editor", metavar="MODULE:FUNCTION", help="A Python function that edits the plan while it runs."
)
concurrency_option = click.option(
    "--concurrency", type=click.IntRange(min=1), metavar="N", help="Maximum number of tasks that run at once."
)
report_option = click.option(
    "--report", callback=writable_file, metavar="FILE.html", help="Write a report of the run as a web page."
)
plain_option = click.option("--plain", is_flag=True, help="Print a line for each event instead of the live view.")


def local_work(local: int | None, no_local: bool, can: frozenset[str] | None) -> LocalWork:
    """Raises UsageError if both ``--local`` and ``--no-local`` are given."""
    if local is not None and no_local:
        raise click.UsageError("--local and --no-local exclude each other.")
    return LocalWork(0 if no_local else local, can)
