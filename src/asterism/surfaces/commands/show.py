"""``asterism show``: a plan as a drawing."""

from __future__ import annotations

from pathlib import Path

import click

from asterism.surfaces.commands.planfiles import Unusable, plan_argument, usable
from asterism.surfaces.drawing import mermaid, svg, terminal
from asterism.surfaces.pictures import picture
from asterism.surfaces.screen import Screen
from asterism.surfaces.secrets import Secrets


@click.command()
@plan_argument
@click.option("--svg", "svg_path", metavar="FILE", help="Write an SVG drawing instead; - for standard output.")
@click.option("--mermaid", "as_mermaid", is_flag=True, help="Print a Mermaid flowchart instead.")
def show(plan: str, svg_path: str | None, as_mermaid: bool) -> None:
    """Draw a plan in the terminal."""
    if svg_path is not None and as_mermaid:
        raise click.UsageError("--svg and --mermaid are two drawings; ask for one of them.")
    found = usable(plan).constellation
    drawn = picture(found, Secrets(node.task for node in found.nodes.values()))
    if as_mermaid:
        click.echo(mermaid(drawn), nl=False)
    elif svg_path == "-":
        click.echo(svg(drawn))
    elif svg_path is not None:
        try:
            Path(svg_path).write_text(svg(drawn), encoding="utf-8")
        except OSError as error:
            raise Unusable(f"{svg_path} cannot be written: {error.strerror}.") from None
    else:
        screen = Screen()
        screen.say(terminal(drawn, screen.width))
