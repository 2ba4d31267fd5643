"""``asterism notices``: list and follow the messages of a fleet to people."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from asterism.cli.cli_context import fleet_options, note, with_fleet
from asterism.cli.option_types import duration

if TYPE_CHECKING:
    from asterism.fleet.fleet import Fleet


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Print new notices as they come. Ctrl-C stops it.")
@click.option("--since", type=duration, metavar="DURATION", help="Only notices of this time until now, such as 2h.")
@click.option("--run", metavar="RUN", help="Only notices about this run.")
@click.option("--kind", "kinds", multiple=True, metavar="KIND", help="Only notices of this kind, such as failed.")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    metavar="N",
    default=50,
    show_default=True,
    help="Maximum number of old notices, the latest; 0 for all.",
)
@fleet_options
def notices(
    follow: bool,
    since: float | None,
    run: str | None,
    kinds: tuple[str, ...],
    limit: int,
    store: str | None,
    as_json: bool,
) -> None:
    """List and follow the notices of a fleet.

    A notice is a message to people: a run failed, a device has suspended itself, a clock jumped. The latest is last.
    With --json, prints a JSON array; with --json and --follow, a JSON object for each line."""

    async def read(fleet: Fleet) -> None:
        from asterism.cli.notice_list import NoticeFilter, follow_notices, print_notices, read_notices
        from asterism.fleet.run_queries import find_run

        about = await find_run(fleet, run) if run is not None else None
        start = None if since is None else fleet.store.clock() - since
        wanted = NoticeFilter(about.id if about is not None else None, frozenset(kinds), start)
        last, found = await read_notices(fleet.store, wanted, limit or None)
        print_notices(found, as_json=as_json, as_lines=follow)
        if follow:
            await follow_notices(fleet, wanted, last, as_json=as_json)
        elif not found and not as_json:
            note("There are no notices." if not (since or run or kinds) else "No notice matches.")

    with_fleet(store, read)
