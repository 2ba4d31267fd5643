"""What the commands that take a plan file have in common."""

from __future__ import annotations

from collections.abc import Iterable

import click

from asterism.base.safe_text import clean
from asterism.base.text import plural
from asterism.planfile import BadPlan, Mistake, PlanFile, load

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
