"""``asterism event``: events that plans wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from asterism.base.text import clean
from asterism.cli.cli_context import Answer, CommandGroup, name_argument, on_system
from asterism.cli.option_types import json_value, number_option

if TYPE_CHECKING:
    from asterism.api.system import System


@click.group(cls=CommandGroup)
def event() -> None:
    """Send events that plans wait for, and list them.

    A task with `wait_for: {event: NAME}` waits until an event of this name is sent. An event is kept for some days
    (`asterism fleet set --keep-events`), and continues tasks that begin to wait until then, too."""


@event.command(short_help="Send an event.")
@name_argument
@click.option("--data", type=json_value, metavar="JSON|@FILE|-", help="The result of the tasks that wait for it.")
@click.option("--key", help="Send an event with this name and key only once.")
@on_system()
async def send(system: System, name: str, data: Any, key: str | None) -> Answer:
    """Send an event: it continues the tasks that wait for its name.

    With `--key`, a second event of this name and key is not sent; the first one is shown."""
    sent = await system.send_event(name, data, key)
    again = " was sent before" if sent.again else " sent"
    return Answer(sent, f"Event {sent.number} {clean(sent.name)!r}{again}.")


@event.command("list", short_help="List the events that are kept.")
@click.argument("name", required=False)
@number_option("--limit", default=50, help="How many events to list at most.")
@on_system()
async def list_(system: System, name: str | None, limit: int) -> Answer:
    """List the events that are kept, the newest last, and who has taken them."""
    from asterism.cli.run.event_views import events_table

    page = await system.list_events(name, limit=limit)
    if not page.items:
        return Answer([], notes=["There are no events. Send one with: asterism event send NAME --data JSON"])
    page.items.reverse()
    return Answer(page.items, lambda width: events_table(page.items, page.now or 0.0, width))
