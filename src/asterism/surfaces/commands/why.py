"""``asterism why``: what holds a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from asterism.surfaces.fleet.access import find_run, fleet_options, tell_json, with_fleet

if TYPE_CHECKING:
    from asterism.runtime.fleet.fleet import Fleet


@click.command()
@click.argument("run")
@fleet_options
def why(run: str, store: str | None, as_json: bool) -> None:
    """Say why a run is not running.

    RUN is the id of a run, or any part of it that no other has. The answer names what holds it: another run of its
    series, a person who paused it, a pause before the next try, no device that could do it, or that all of them are
    busy, resting, silent or being asked."""

    async def tell(fleet: Fleet) -> None:
        from asterism.runtime.fleet.why import why as reasons_of
        from asterism.surfaces.fleet.hints import hints, why_lines
        from asterism.surfaces.fleet.speaking import say_lines
        from asterism.surfaces.fleet.views import why_json

        found = await find_run(fleet, run)
        answer = await reasons_of(fleet, found.id)
        if as_json:
            tell_json(why_json(answer))
            return
        told = await hints(fleet, found, answer)
        say_lines(lambda width: why_lines(answer, told, width))

    with_fleet(store, tell)
