"""``asterism plan``, for those who review a plan: its history of edits, and its open edit cycles."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from asterism.cli.cli_context import fleet_options, note, print_json, with_fleet
from asterism.cli.plan_context import check_drawing_options, draw, drawing_options

if TYPE_CHECKING:
    from asterism.fleet.fleet import Fleet

name_argument = click.argument("name")


@click.command()
@name_argument
@click.argument("version", required=False, type=click.IntRange(min=0))
@drawing_options
@fleet_options
def history(
    name: str, version: int | None, svg_path: str | None, as_mermaid: bool, store: str | None, as_json: bool
) -> None:
    """List the versions of a plan, or draw one of them.

    Each version has its author, its reason and its edits. Rejected edits are listed too, the newest 50, with the
    reasons. With VERSION, the plan is drawn as it was when that version was made; version 0 is the plan as it was
    stored."""
    check_drawing_options(svg_path, as_mermaid, as_json)
    if version is None and (svg_path is not None or as_mermaid):
        raise click.UsageError("--svg and --mermaid draw one version: name it after the plan.")

    async def read(fleet: Fleet) -> None:
        from asterism.cli.plan_review_views import history_json, history_lines, past_json, past_line
        from asterism.cli.screen import Screen, print_lines
        from asterism.durable.plan_history import plan_at, versions
        from asterism.durable.rejected_edits import rejected_edits
        from asterism.durable.stored_plans import find_plan

        await find_plan(fleet, name)
        if version is not None:
            past = await plan_at(fleet.store, name, version)
            if as_json:
                print_json(past_json(past))
                return
            draw(past.plan, svg_path, as_mermaid)
            if svg_path is None and not as_mermaid:
                Screen().say(past_line(past))
            return
        found, rejected = await versions(fleet.store, name), await rejected_edits(fleet.store, name)
        if as_json:
            print_json(history_json(found, rejected))
        else:
            print_lines(lambda width: history_lines(found, rejected))
            if len(found) == 1 and not rejected:
                note(f"Plan {name!r} has not been edited.")

    with_fleet(store, read)
