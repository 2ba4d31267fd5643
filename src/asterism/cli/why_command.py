"""``asterism why``: what holds a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from asterism.cli.cli_context import find_run, fleet_options, tell_json, with_fleet

if TYPE_CHECKING:
    from asterism.fleet.fleet import Fleet


@click.command()
@click.argument("run")
@fleet_options
def why(run: str, store: str | None, as_json: bool) -> None:
    """Say why a run is not running.

    RUN is the id of a run, or any part of it that no other has. The answer names what holds it: another run of its
    series, a person who paused it, a pause before the next try, no device that could do it, or that all of them are
    busy, resting, silent or being asked."""

    async def tell(fleet: Fleet) -> None:
        from asterism.cli.fleet_json import why_json
        from asterism.cli.hints import hints, why_lines
        from asterism.cli.text_output import say_lines
        from asterism.fleet.run_explanation import why as reasons_of

        found = await find_run(fleet, run)
        answer = await reasons_of(fleet, found.id)
        if as_json:
            tell_json(why_json(answer))
            return
        told = await hints(fleet, found, answer)
        say_lines(lambda width: why_lines(answer, told, width))

    with_fleet(store, tell)
