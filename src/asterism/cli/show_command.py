"""``asterism show``: a plan as a drawing; one of a store with the states of its tasks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from asterism.base.safe_text import clean
from asterism.cli.cli_context import fleet_options, tell_json, with_fleet
from asterism.cli.option_types import can_be_written
from asterism.cli.plan_file_options import Unusable, usable
from asterism.cli.screen import Screen
from asterism.orchestrator.plan_mask import PlanMask
from asterism.report import mermaid, svg, terminal
from asterism.report.plan_picture import picture

if TYPE_CHECKING:
    from asterism.cli.stored_plans import Seen
    from asterism.core.plan.constellation import Constellation
    from asterism.fleet.fleet import Fleet


@click.command()
@click.argument("plan", metavar="PLAN.YAML|NAME", type=click.Path())
@click.option(
    "--svg",
    "svg_path",
    callback=can_be_written,
    metavar="FILE",
    help="Write an SVG drawing instead; - for standard output.",
)
@click.option("--mermaid", "as_mermaid", is_flag=True, help="Print a Mermaid flowchart instead.")
@fleet_options
@click.pass_context
def show(
    context: click.Context, /, plan: str, svg_path: str | None, as_mermaid: bool, store: str | None, as_json: bool
) -> None:
    """Draw a plan in the terminal.

    With --store it is the constellation of that name, as it is now, with the states of its tasks. $ASTERISM_STORE is
    asked for a name that is no file."""
    if (svg_path is not None) + as_mermaid + as_json > 1:
        raise click.UsageError("--svg, --mermaid and --json are different drawings; ask for one of them.")
    named = _is_a_name(context, plan)
    if store is None and named:
        raise Unusable(
            f"There is no file {clean(plan)}. "
            "To see a constellation of that name, say where it is: --store, or $ASTERISM_STORE."
        )
    if store is None or not named:
        found = usable(plan).constellation
        if as_json:
            from asterism.cli.plan_views import plan_json

            tell_json(plan_json(found))
        else:
            _draw(found, svg_path, as_mermaid)
        return
    seen, now = with_fleet(store, lambda fleet: _seen(fleet, plan))
    from asterism.cli.plan_views import details_json, lines_about

    if as_json:
        tell_json(details_json(seen))
        return
    _draw(seen.kept.plan, svg_path, as_mermaid)
    if svg_path is None and not as_mermaid:
        screen = Screen()
        for line in ["", *lines_about(seen, now)]:
            screen.say(line)


def _is_a_name(context: click.Context, plan: str) -> bool:
    """Whoever names a store means a constellation of it; a store in the environment is not meant by who names a
    file."""
    named = context.get_parameter_source("store") is ParameterSource.COMMANDLINE
    return named or not (Path(plan).exists() or plan.endswith((".yaml", ".yml")))


async def _seen(fleet: Fleet, name: str) -> tuple[Seen, float]:
    from asterism.cli.stored_plans import see

    return await see(fleet, name), fleet.store.clock()


def _draw(plan: Constellation, svg_path: str | None, as_mermaid: bool) -> None:
    drawn = picture(plan, PlanMask(plan))
    if as_mermaid:
        click.echo(mermaid(drawn), nl=False)
    elif svg_path == "-":
        click.echo(svg(drawn))
    elif svg_path is not None:
        try:
            Path(svg_path).write_text(svg(drawn), encoding="utf-8")
        except OSError as error:
            raise Unusable(f"{clean(svg_path)} cannot be written: {error.strerror}.") from None
    else:
        screen = Screen()
        screen.say(terminal(drawn, screen.width))
