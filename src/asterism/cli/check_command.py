"""``asterism check``: every mistake in a plan file, with its line."""

from __future__ import annotations

import click

from asterism.base.safe_text import clean
from asterism.base.text import plural
from asterism.cli.plan_file_options import Unusable, count, plan_argument
from asterism.cli.user_modules import allow_imports
from asterism.planfile import check as check_file


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
