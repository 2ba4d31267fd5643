"""Views of series: lines and tables for people, JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from asterism.core.json_values import JsonObject
from asterism.core.series.machine import Item, Series
from asterism.series.register import series_status, why_not_promoted

if TYPE_CHECKING:
    from rich.text import Text

    from asterism.api import documents
    from asterism.cli.screen import Cell, Column

MAX_QUEUE_SHOWN = 8
"""Issues of a queue that one line shows."""


class SeriesView:
    """One series as it was read; ``series`` is None if the state is unreadable, and ``problem`` is the reason."""

    def __init__(self, name: str, series: Series | None, problem: str | None = None) -> None:
        self.name, self.series, self.problem = name, series, problem

    @classmethod
    def of(cls, document: documents.Series) -> SeriesView:
        return cls(document.name, _series(document.state), document.problem)

    @classmethod
    def unused(cls, name: str) -> SeriesView:
        """The view of a series that does not exist."""
        return cls(name, Series(name))


def describe_issue(item: Item | None) -> str:
    return "no issue" if item is None else f"#{item}"


def heading(name: str) -> str:
    """The name at the beginning of a line. A runner of GitHub Actions takes a line that begins with ``::`` for a
    command."""
    return f"series {name}" if name.startswith("::") else name


def describe_queue(queue: Sequence[Item]) -> str:
    shown = ", ".join(describe_issue(item) for item in queue[:MAX_QUEUE_SHOWN])
    return shown + (f" and {len(queue) - MAX_QUEUE_SHOWN} more" if len(queue) > MAX_QUEUE_SHOWN else "")


def describe_active(series: Series, now: float) -> str:
    """``#120, active for 2 h, by ann``."""
    from asterism.base.durations import format_age

    since = "" if series.since is None else f", active for {format_age(now - series.since)}"
    return f"{describe_issue(series.active)}{since}" + (f", by {series.by}" if series.by else "")


def status_json(view: SeriesView, now: float) -> JsonObject:
    series = view.series
    if series is None:
        return {"series": view.name, "status": "unreadable", "error": view.problem}
    return series_status(series, now)


def status_lines(view: SeriesView, now: float) -> list[Text]:
    """All about one series, a line for each fact."""
    from rich.text import Text

    from asterism.base.durations import format_age
    from asterism.base.status_colours import BOLD, DIM, tone
    from asterism.base.text import clean
    from asterism.cli.cli_context import format_time
    from asterism.cli.series.series_context import UNREADABLE_HINT

    series = view.series
    if series is None:
        problem = Text.assemble((clean(heading(view.name)), BOLD), "  ", (clean(view.problem or ""), tone("failed")))
        return [problem, Text(f"  {UNREADABLE_HINT}", DIM)]
    rows = [("active", describe_active(series, now) if series.active is not None else "none")]
    if series.lease_until is not None:
        left = series.lease_until - now
        rows.append(("lease", f"{format_age(left)} left" if left > 0 else f"expired {format_age(-left)} ago"))
    rows.append(("queue", describe_queue(series.queue) or "empty"))
    if series.forced:
        rows.append(("forced", describe_queue(series.forced)))
    if series.paused is not None:
        rows.append(("paused", series.paused))
    why = why_not_promoted(series, now)
    if why is not None and series.paused is None:
        rows.append(("waits", why))
    changed = f"{format_time(series.updated_at)}, revision {series.revision}" if series.revision else "never"
    rows.append(("changed", changed))
    head = Text(clean(heading(series.name)), BOLD)
    return [head, *(Text(f"  {name:<8} ", DIM).append(clean(text), "") for name, text in rows)]


def status_table(views: Sequence[SeriesView], now: float, width: int | None) -> list[Text]:
    """A line for each series."""
    from asterism.cli.screen import table

    return table(status_columns(), [status_row(view, now) for view in views], width)


def status_columns() -> tuple[Column, ...]:
    from asterism.cli.screen import Column

    return (
        Column("SERIES", least=8, name=True),
        Column("ACTIVE"),
        Column("FOR", right=True),
        Column("BY", least=6, needed=False),
        Column("LEASE", right=True, needed=False),
        Column("QUEUE", least=10),
        Column("NOTE", least=10, needed=False),
    )


def status_row(view: SeriesView, now: float) -> list[Cell]:
    from rich.text import Text

    from asterism.base.durations import format_age
    from asterism.base.status_colours import DIM, tone
    from asterism.base.text import clean

    series = view.series
    if series is None:
        return [heading(view.name), Text("?", tone("failed")), "", "", "", "", Text("unreadable", tone("failed"))]
    left = None if series.lease_until is None else series.lease_until - now
    return [
        heading(series.name),
        Text("-", DIM) if series.active is None else describe_issue(series.active),
        "" if series.since is None else format_age(now - series.since),
        series.by or "",
        "" if left is None else format_age(left) if left > 0 else Text("expired", tone("failed")),
        describe_queue(series.queue),
        Text(clean(_note(series)), DIM),
    ]


def _note(series: Series) -> str:
    if series.paused is not None:
        return f"paused {series.paused}"
    return "not promoted" if series.active is None and series.queue else ""


def history_json(name: str, changes: Sequence[documents.SeriesChange]) -> JsonObject:
    return {
        "series": name,
        "changes": [
            {"at": change.at, "message": change.message, "token": change.token, "state": _state(change)}
            for change in changes
        ],
    }


def history_table(changes: Sequence[documents.SeriesChange], width: int | None) -> list[Text]:
    from rich.text import Text

    from asterism.base.status_colours import DIM
    from asterism.cli.cli_context import format_time
    from asterism.cli.screen import Column, table

    columns = (
        Column("WHEN"),
        Column("REVISION", right=True),
        Column("CHANGE", least=12),
        Column("ACTIVE"),
        Column("QUEUE", least=8, needed=False),
    )
    rows: list[list[Cell]] = []
    for change in changes:
        series = _series(change.state)
        if series is None:
            rows.append([format_time(change.at), "?", change.message, "?", Text("unreadable", DIM)])
            continue
        active = "-" if series.active is None else describe_issue(series.active)
        rows.append(
            [format_time(change.at), str(series.revision), change.message, active, describe_queue(series.queue)]
        )
    return table(columns, rows, width)


def _series(state: documents.SeriesState | None) -> Series | None:
    from asterism.api.local.series_handlers import series_of

    return None if state is None else series_of(state)


def _state(change: documents.SeriesChange) -> JsonObject | None:
    series = _series(change.state)
    return None if series is None else series.to_document()
