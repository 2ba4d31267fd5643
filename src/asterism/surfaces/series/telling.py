"""Making a change of a series for a command, and telling what came of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from asterism.surfaces.fleet.access import tell_json
from asterism.surfaces.series.opening import Given, Terms, attempt, fit_to_print, with_register

if TYPE_CHECKING:
    from asterism.series.changing import Outcome, Step
    from asterism.series.register import SeriesRegister


def make_change(
    name: str,
    given: Given,
    step: Step,
    message: str,
    told: Callable[[Outcome, Terms], str],
    *,
    mending: Callable[[SeriesRegister], Awaitable[None]] | None = None,
) -> int:
    """Take a step, and tell what came of it. ``mending`` is what to do before, where the state need not be readable."""
    from asterism.series.changing import change, mend
    from asterism.series.changing import told as message_by

    terms = given.terms

    async def use(register: SeriesRegister) -> int:
        if mending is not None:
            await mending(register)
        make = change if mending is None else mend
        outcome = await attempt(register, terms, make, name, step, message_by(message, terms.by))
        if given.as_json:
            tell_outcome(outcome, terms, status="changed" if outcome.changed else "unchanged")
        elif outcome.token is None:
            click.echo(fit_to_print(nowhere(name, register)))
        else:
            click.echo(fit_to_print(told(outcome, terms)))
        return 0

    return with_register(given, use, create=False)


def tell_outcome(outcome: Outcome, terms: Terms, **first: Any) -> None:
    tell_json(
        {
            **first,
            "active": outcome.after.active,
            "promoted": outcome.promoted,
            "tries": outcome.tries,
            "dry_run": terms.dry_run,
            "state": outcome.after.to_document(),
        }
    )


def would(terms: Terms, done: str, do: str) -> str:
    return f"would {do}" if terms.dry_run else done


def now_active(outcome: Outcome, terms: Terms) -> str:
    after = outcome.after
    who = "nobody" if after.active is None else f"#{after.active}"
    if outcome.promoted is not None:
        return f"{who} {would(terms, 'is active now', 'be active then')} (revision {after.revision})"
    waiting = f", {len(after.queue)} waiting" if after.queue else ""
    return f"{who} {would(terms, 'is', 'be')} active{waiting} (revision {after.revision})"


def nowhere(name: str, register: SeriesRegister) -> str:
    """What to say of a change that changes nothing, since there is no such series: the name may be a slip."""
    return f"there is no series {name} in {register.url}: nothing to change"
