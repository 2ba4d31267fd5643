"""``asterism notice``: list and follow the messages of a fleet to people."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from asterism.cli.cli_context import CommandGroup, ask_again, note, on_system, print_json
from asterism.cli.option_types import duration_option, number_option

if TYPE_CHECKING:
    from asterism.api.documents import Notice
    from asterism.api.system import System

AT_ONCE = 1000
"""How many notices one answer has."""

WAIT = 20.0
"""How long one answer waits for new notices, in seconds."""


@click.group(cls=CommandGroup)
def notice() -> None:
    """List and follow the notices of a fleet.

    A notice is a message to people: a run failed, a device has suspended itself, a clock jumped."""


@notice.command("list")
@click.option("-f", "--follow", is_flag=True, help="Print new notices as they come. Ctrl-C stops it.")
@duration_option("--since", help="Only notices of this time until now, such as 2h.")
@click.option("--run", metavar="RUN", help="Only notices about this run.")
@click.option("--kind", "kinds", multiple=True, metavar="KIND", help="Only notices of this kind, such as failed.")
@number_option("--limit", 50, least=0, help="Maximum number of old notices, the latest; 0 for all.")
@on_system()
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
