"""``asterism audit``: who changed what, and who was refused it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import click

from asterism.api.documents import read_pages
from asterism.api.fleet_operations import MOST_ENTRIES
from asterism.cli.cli_context import Answer, CommandGroup, listed, options, print_json
from asterism.cli.option_types import duration_option, number_option, option

if TYPE_CHECKING:
    from asterism.api.documents import AuditEntry
    from asterism.api.system import System

filter_options = options(
    option("--by NAME", "Only what this person, program or token asked for."),
    option("--operation NAME", "Only this operation, such as edit_plan."),
    option("--target NAME", "Only what changed this plan, run, schedule …"),
    option("--outcome OUTCOME", "Only entries that ended so.", type=click.Choice(("done", "refused", "failed"))),
    duration_option("--since", help="Only entries of this time until now, such as 2h."),
    duration_option("--until", help="Only entries that are older than this, such as 7d."),
)


@click.group(cls=CommandGroup)
def audit() -> None:
    """List and export who changed what, and who was refused it.

    Every operation that changes something is recorded: of clients of a server, of people at its page, and of commands
    on the store itself. Entries are kept for 90 days (`asterism fleet set --keep-audit`)."""


@audit.command(short_help="List who changed what.")
@filter_options
@number_option("--limit", 50, help="How many entries to list at most.")
async def list_(system: System, limit: int, since: float | None, until: float | None, **wanted: Any) -> Answer:
    """List who changed what, the newest last."""
    page = await read_pages(system.list_audit, limit, MOST_ENTRIES, **wanted, **_times(since, until))
    page.items.reverse()
    empty = "No entry matches." if any((since, until, *wanted.values())) else "Nothing has been changed yet."
    return listed(page, "fleet.fleet_views:AUDIT_TABLE", empty)


@audit.command(short_help="Print all entries as JSON lines.")
@filter_options
async def export(system: System, since: float | None, until: float | None, **wanted: Any) -> None:
    """Print all entries that match as JSON, one in a line, the newest first."""
    async for entry in _all(system, **wanted, **_times(since, until)):
        print_json(entry)


def _times(since: float | None, until: float | None) -> dict[str, Any]:
    """Ages as times."""
    now = time.time()
    return {"since": None if since is None else now - since, "until": None if until is None else now - until}


async def _all(system: System, **wanted: Any) -> AsyncIterator[AuditEntry]:
    after: str | None = None
    while True:
        page = await system.list_audit(**wanted, after=after, limit=MOST_ENTRIES)
        for entry in page.items:
            yield entry
        after = page.next
        if after is None:
            return
