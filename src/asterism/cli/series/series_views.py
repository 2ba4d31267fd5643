"""Views of series for people, made of their documents: the table, everything about one, and its changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.text import Text

from asterism.api import documents
from asterism.base.durations import format_age
from asterism.base.status_colours import BOLD, DIM, tone
from asterism.base.text import clean
from asterism.cli.cli_context import format_time
from asterism.cli.series.series_context import (
    UNREADABLE_HINT,
    SeriesView,
    describe_active,
    describe_issue,
    describe_queue,
    state_of,
)
from asterism.cli.tables import Cell, Column, TimedTable, table_of
from asterism.core.series.machine import Series
from asterism.series.register import why_not_promoted


def heading(name: str) -> str:
    """The name at the beginning of a line. A runner of GitHub Actions takes a line that begins with ``::`` for a
    command."""
    return f"series {name}" if name.startswith("::") else name


def _lease(series: Series, now: float) -> Cell:
    left = None if series.lease_until is None else series.lease_until - now
    if left is None:
        return ""
    return format_age(left) if left > 0 else Text("expired", tone("failed"))


def _note(series: Series) -> str:
    if series.paused is not None:
        return f"paused {series.paused}"
    return "not promoted" if series.active is None and series.queue else ""


def _active(series: Series) -> Cell:
    return Text("-", DIM) if series.active is None else describe_issue(series.active)


def _of_state(show: Callable[[Series, float], Cell], unreadable: Cell = "") -> Callable[[SeriesView, float], Cell]:
    """A cell about the state of a series, or what is in its place if that cannot be read."""
    return lambda view, now: unreadable if view.series is None else show(view.series, now)


_FAILED = tone("failed")

SERIES_TABLE = TimedTable[SeriesView](
    {
        Column("SERIES", least=8, name=True): lambda view, now: heading(view.name),
        Column("ACTIVE"): _of_state(lambda series, now: _active(series), Text("?", _FAILED)),
        Column("FOR", right=True): _of_state(
            lambda series, now: "" if series.since is None else format_age(now - series.since)
        ),
        Column("BY", least=6, needed=False): _of_state(lambda series, now: series.holder or series.by or ""),
        Column("LEASE", right=True, needed=False): _of_state(_lease),
        Column("QUEUE", least=10): _of_state(lambda series, now: describe_queue(series.queue)),
        Column("NOTE", least=10, needed=False): _of_state(
            lambda series, now: Text(clean(_note(series)), DIM), Text("unreadable", _FAILED)
        ),
    }
)


def status_lines(view: SeriesView, now: float) -> list[Text]:
    """All about one series, a line for each fact."""
    if view.series is None:
        problem = Text.assemble((clean(heading(view.name)), BOLD), "  ", (clean(view.problem or ""), _FAILED))
        return [problem, Text(f"  {UNREADABLE_HINT}", DIM)]
    facts = [Text(f"  {name:<8} ", DIM).append(clean(text), "") for name, text in _facts(view.series, now)]
    return [Text(clean(heading(view.name)), BOLD), *facts]


def _facts(series: Series, now: float) -> Iterator[tuple[str, str]]:
    yield "active", describe_active(series, now) if series.active is not None else "none"
    if series.lease_until is not None:
        left = series.lease_until - now
        yield "lease", f"{format_age(left)} left" if left > 0 else f"expired {format_age(-left)} ago"
    yield "queue", describe_queue(series.queue) or "empty"
    if series.forced:
        yield "forced", describe_queue(series.forced)
    why = why_not_promoted(series, now)
    if series.paused is not None:
        yield "paused", series.paused
    elif why is not None:
        yield "waits", why
    yield "changed", f"{format_time(series.updated_at)}, revision {series.revision}" if series.revision else "never"


def changes_table(changes: Sequence[documents.SeriesChange], width: int | None) -> list[Text]:
    def of_state(show: Callable[[Series], Cell], unreadable: Cell = "?") -> Callable[[documents.SeriesChange], Cell]:
        def cell(change: documents.SeriesChange) -> Cell:
            series = state_of(change)
            return unreadable if series is None else show(series)

        return cell

    return table_of(
        changes,
        {
            Column("WHEN"): lambda change: format_time(change.at),
            Column("REVISION", right=True): of_state(lambda series: str(series.revision)),
            Column("CHANGE", least=12): lambda change: change.message,
            Column("ACTIVE"): of_state(lambda series: "-" if series.active is None else describe_issue(series.active)),
            Column("QUEUE", least=8, needed=False): of_state(
                lambda series: describe_queue(series.queue), Text("unreadable", DIM)
            ),
        },
        width,
    )
