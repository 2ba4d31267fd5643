"""``asterism check``, ``show`` and ``schema``, and how every command reads a plan file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click

from asterism.base.safe_text import clean
from asterism.base.text import plural
from asterism.cli.cli_context import json_option, tell_json
from asterism.cli.plan_drawing import check_drawing_options, draw, drawing_options
from asterism.cli.user_modules import allow_imports
from asterism.planfile import BadPlan, Mistake, PlanFile, json_schema, load
from asterism.planfile import check as check_file

plan_argument = click.argument("plan", metavar="PLAN.YAML", type=click.Path())


class Unusable(click.ClickException):
    """A plan that cannot be used; the message stands for itself. It is made of lines that were cleaned."""

    several_lines = True

    def show(self, file: object = None) -> None:
        click.echo(self.message, err=True)


def usable(path: str) -> PlanFile:
    """The plan in a file, with warnings told. Raises Unusable with every mistake."""
    try:
        found = load(path)
    except BadPlan as bad:
        raise Unusable(f"{bad}\n{count(bad.mistakes)} in {clean(path)}; nothing was done.") from None
    except OSError as error:
        raise Unusable(f"{clean(path)} cannot be read: {error.strerror}.") from None
    for warning in found.warnings:
        click.echo(warning.format(path), err=True)
    return found


def count(mistakes: Iterable[Mistake]) -> str:
    """``2 mistakes and 1 warning``."""
    mistakes = list(mistakes)
    warnings = sum(mistake.warning for mistake in mistakes)
    numbers = [(len(mistakes) - warnings, "mistake"), (warnings, "warning")]
    return " and ".join(plural(number, noun) for number, noun in numbers if number)


@click.command()
@plan_argument
@click.option("--imports", is_flag=True, help="Also import the functions of call tasks. That runs their modules.")
def check(plan: str, imports: bool) -> None:
    """Report every mistake in a plan file, with line numbers.

    Exits with 0 if the plan can be run, with 64 if not."""
    if imports:
        allow_imports(plan)
    try:
        found, mistakes = check_file(plan, imports=imports)
    except OSError as error:
        raise Unusable(f"{clean(plan)} cannot be read: {error.strerror}.") from None
    for mistake in mistakes:
        click.echo(mistake.format(plan), err=True)
    if found is None:
        raise Unusable(f"{count(mistakes)} in {clean(plan)}.")
    tasks, edges = len(found.constellation), sum(1 for _ in found.constellation.dependencies)
    warnings = f", with {count(mistakes)}" if mistakes else ""
    click.echo(f"{clean(plan)} is fine: {plural(tasks, 'task')}, {plural(edges, 'dependency')}{warnings}.")


@click.command()
@plan_argument
@drawing_options
@json_option
def show(plan: str, svg_path: str | None, as_mermaid: bool, as_json: bool) -> None:
    """Draw the plan in a plan file.

    `asterism plan show NAME` draws a plan in a store, with the states of its tasks."""
    check_drawing_options(svg_path, as_mermaid, as_json)
    if not Path(plan).exists() and not plan.endswith((".yaml", ".yml")):
        name = clean(plan)
        raise Unusable(f"There is no file {name}. To draw a plan in a store, use: asterism plan show {name}")
    found = usable(plan).constellation
    if as_json:
        from asterism.cli.plan_views import plan_json

        tell_json(plan_json(found))
    else:
        draw(found, svg_path, as_mermaid)


@click.command()
def schema() -> None:
    """Print the JSON Schema of plan files.

    Editors use it to complete and check plan files."""
    import json

    click.echo(json.dumps(json_schema(), indent=2, ensure_ascii=False))
