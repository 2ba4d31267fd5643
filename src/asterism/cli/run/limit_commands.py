"""``asterism limit``: how much the runs of all plans, schedules and people use at a time, and how often they begin."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from asterism.base.text import clean, plural
from asterism.cli.cli_context import Answer, CommandGroup, on_system, reason_option
from asterism.cli.option_types import option, positive_duration

if TYPE_CHECKING:
    from asterism.api.system import System

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


@limit.command("set", short_help="Set or change a limit.")
@click.argument("size", required=False, type=click.IntRange(0))
@option("--rate NUMBER/PERIOD", "How much may begin, such as 10/1m.", to="often", type=rate)
@_notice_reason
@on_system(create=True)
async def set_(system: System, name: str, size: int | None, often: tuple[int, float] | None, reason: str) -> Answer:
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
    from asterism.cli.run.limit_views import limit_text

    return Answer(changed, f"Limit {clean(changed.name)}: {limit_text(changed)}.")


@limit.command("list", short_help="List the limits, what is in use, and what waits.")
async def list_(system: System) -> Answer:
    """List the limits: how much of each is in use, and how many runs wait that use it."""
    from asterism.cli.run.limit_views import limits_table

    page = await system.list_limits()
    if not page.items:
        return Answer([], notes=["No limits are set. Set one with: asterism limit set NAME SIZE"])
    return Answer(page.items, lambda width: limits_table(page.items, width))


@limit.command(short_help="Show who holds a limit, and who waits.")
async def show(system: System, name: str) -> Answer:
    """Show the runs that hold a limit, and those that wait for it, in the order of their turns."""
    from asterism.cli.run.limit_views import limit_lines

    details = await system.show_limit(name)
    return Answer(details, lambda width: limit_lines(details, width))


@limit.command(short_help="Remove a limit.")
@_notice_reason
async def remove(system: System, name: str, reason: str) -> Answer:
    """Remove a limit. New runs that use it are refused; those that wait for it wait until it is set again."""
    removed = await system.remove_limit(name, reason)
    waiting = f"{plural(removed.waiting, 'run')} that use it wait until it is set again."
    return Answer(removed, f"Limit {clean(removed.name)} removed.", notes=[waiting] if removed.waiting else [])
