"""Drawings of a plan for ``show`` and ``plan show``: terminal, SVG or Mermaid."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from asterism.base.text import clean
from asterism.cli.cli_context import options
from asterism.cli.option_types import writable_file

if TYPE_CHECKING:
    from asterism.core.plan.constellation import Constellation


drawing_options = options(
    click.option(
        "--svg",
        "svg_path",
        callback=writable_file,
        metavar="FILE",
        help="Write an SVG drawing instead; - for standard output.",
    ),
    click.option("--mermaid", "as_mermaid", is_flag=True, help="Print a Mermaid flowchart instead."),
)


def check_drawing_options(svg_path: str | None, as_mermaid: bool, as_json: bool) -> None:
    """Raise UsageError if more than one format is asked for."""
    if (svg_path is not None) + as_mermaid + as_json > 1:
        raise click.UsageError("--svg, --mermaid and --json exclude each other; give one of them.")


def draw(plan: Constellation, svg_path: str | None, as_mermaid: bool) -> None:
    """Draw a plan to the terminal, or in the format that the options name."""
    from asterism.cli.screen import Screen
    from asterism.orchestrator.plan_mask import PlanMask
    from asterism.report import mermaid, svg, terminal
    from asterism.report.picture import picture

    drawn = picture(plan, PlanMask(plan))
    if as_mermaid:
        click.echo(mermaid(drawn), nl=False)
    elif svg_path == "-":
        click.echo(svg(drawn))
    elif svg_path is not None:
        try:
            Path(svg_path).write_text(svg(drawn), encoding="utf-8")
        except OSError as error:
            raise click.ClickException(f"{clean(svg_path)} cannot be written: {error.strerror}.") from None
    else:
        screen = Screen()
        screen.say(terminal(drawn, screen.width))
