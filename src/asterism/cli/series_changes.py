"""Making a change of a series for a command, or rehearsing it, counting it, and telling what came of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from asterism.cli.cli_context import tell_json
from asterism.cli.series_context import Given, Terms, fit_to_print, with_register

if TYPE_CHECKING:
    from asterism.series.compare_and_swap import UpdateCounts, Outcome, Step
    from asterism.series.register import SeriesRegister, Snapshot


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
    from asterism.series.compare_and_swap import change, mend
    from asterism.series.compare_and_swap import told as message_by

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


async def attempt(
    register: SeriesRegister, terms: Terms, make: Callable[..., Awaitable[Outcome]], *what: Any
) -> Outcome:
    """Make a change with ``change``, ``mend`` or ``claim`` of series/compare_and_swap.py, and write what was
    counted, however it ended. A rehearsal is not counted."""
    from asterism.series.compare_and_swap import Contended, UpdateCounts

    target = _Rehearsal(register) if terms.dry_run else register
    counts, contended = UpdateCounts(), False
    try:
        return await make(target, *what, patience=terms.patience, counts=counts)
    except Contended:
        contended = True
        raise
    finally:
        if terms.metrics is not None and not terms.dry_run:
            _write_metrics(terms.metrics, counts, contended)


def _write_metrics(path: Path, counts: UpdateCounts, contended: bool) -> None:
    from asterism.series.series_metrics import SeriesMetrics

    metrics = SeriesMetrics()
    metrics.add("contended", contended)
    for name in ("promotion_events", "duplicate_prevented", "retries", "conflicts", "unsure", "rate_limited"):
        metrics.add(name, getattr(counts, name))
    try:
        metrics.write(path)
    except OSError as error:  # what was done is done, and the exit code has to say so
        click.echo(f"The figures could not be written to {path}: {error.strerror}", err=True)


class _Rehearsal:
    """What a change asks of a register, which is read and never written: what would be written is forgotten."""

    def __init__(self, register: SeriesRegister) -> None:
        self._register = register

    @property
    def url(self) -> str:
        return self._register.url

    def clock(self) -> float:
        return self._register.clock()

    async def read(self, name: str) -> Snapshot:
        return await self._register.read(name)

    async def swap(self, name: str, expected: str | None, text: str, message: str) -> str:
        return "not written"


def tell_outcome(outcome: Outcome, terms: Terms, **first: Any) -> None:
    print_json(
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
