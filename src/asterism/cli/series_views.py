"""What is shown of a series: sentences and tables for people, JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from asterism.core.series.machine import Item, Series

if TYPE_CHECKING:
    from rich.text import Text

    from asterism.series.register import Change

MOST_SHOWN = 8
"""How many of a queue are named in a line."""


class Looked:
    """One series as it was found: ``series`` is None if it could not be read, and ``problem`` says why."""

    def __init__(self, name: str, series: Series | None, problem: str | None = None) -> None:
        self.name, self.series, self.problem = name, series, problem


def issue(item: Item | None) -> str:
    return "nobody" if item is None else f"#{item}"


def heading(name: str) -> str:
    """The name where it begins a line: a runner of GitHub Actions takes one that begins with ``::`` for a command."""
    return f"series {name}" if name.startswith("::") else name


def why_not_promoted(series: Series, now: float) -> str | None:
    """Why the head of the queue is not active; None if nobody waits, or somebody is active as it should be."""
    if series.active is not None:
        if series.lease_until is not None and series.lease_until <= now:
            return f"the lease of {issue(series.active)} has run out: the next claim or promotion ends it"
        return None
    if not series.queue:
        return None
    if series.paused is not None:
        return f"paused {series.paused}"
    return f"nobody promoted it: `asterism series promote {series.name}` does, and so does its own claim"


def line_of_queue(queue: Sequence[Item]) -> str:
    shown = ", ".join(issue(item) for item in queue[:MOST_SHOWN])
    return shown + (f" and {len(queue) - MOST_SHOWN} more" if len(queue) > MOST_SHOWN else "")


def holder(series: Series, now: float) -> str:
    """``#120, active for 2 h, by ann``."""
    from asterism.base.durations import format_age

    since = "" if series.since is None else f", active for {format_age(now - series.since)}"
    return f"{issue(series.active)}{since}" + (f", by {series.by}" if series.by else "")


def status_json(found: Looked, now: float) -> dict[str, Any]:
    series = found.series
    if series is None:
        return {"series": found.name, "status": "unreadable", "error": found.problem}
    status = "paused" if series.paused is not None else "active" if series.active is not None else "free"
    return {
        **series.to_document(),
        "status": status,
        "age": None if series.since is None else round(max(0.0, now - series.since), 3),
        "why_not_promoted": why_not_promoted(series, now),
    }


def status_lines(found: Looked, now: float) -> list[Text]:
    """Everything about one series."""
    from rich.text import Text

    from asterism.base.durations import format_age
    from asterism.base.text import clean
    from asterism.cli.series_context import MENDED
    from asterism.cli.short_spans import moment
    from asterism.report.status_style import BOLD, DIM, tone

    series = found.series
    if series is None:
        problem = Text.assemble((clean(heading(found.name)), BOLD), "  ", (clean(found.problem or ""), tone("failed")))
        return [problem, Text(f"  {MENDED}", DIM)]
    told = [("active", holder(series, now) if series.active is not None else "nobody")]
    if series.lease_until is not None:
        left = series.lease_until - now
        told.append(("lease", f"{format_age(left)} left" if left > 0 else f"ran out {format_age(-left)} ago"))
    told.append(("queue", line_of_queue(series.queue) or "empty"))
    if series.paused is not None:
        told.append(("paused", series.paused))
    why = why_not_promoted(series, now)
    if why is not None and series.paused is None:
        told.append(("waits", why))
    changed = f"{format_time(series.updated_at)}, revision {series.revision}" if series.revision else "never"
    told.append(("changed", changed))
    head = Text(clean(heading(series.name)), BOLD)
    return [head, *(Text(f"  {name:<8} ", DIM).append(clean(text), "") for name, text in told)]


def status_table(found: Sequence[Looked], now: float, width: int | None) -> list[Text]:
    """A line for each series."""
    from rich.text import Text

    from asterism.base.durations import format_age
    from asterism.base.text import clean
    from asterism.cli.text_table import Cell, Column, table
    from asterism.report.status_style import DIM, tone

    columns = (
        Column("SERIES", least=8),
        Column("ACTIVE"),
        Column("FOR", right=True),
        Column("BY", least=6, needed=False),
        Column("LEASE", right=True, needed=False),
        Column("QUEUE", least=10),
        Column("NOTE", least=10, needed=False),
    )
    rows: list[list[Cell]] = []
    for one in found:
        series = one.series
        if series is None:
            rows.append(
                [heading(one.name), Text("?", tone("failed")), "", "", "", "", Text("unreadable", tone("failed"))]
            )
            continue
        left = None if series.lease_until is None else series.lease_until - now
        rows.append(
            [
                heading(series.name),
                Text("-", DIM) if series.active is None else issue(series.active),
                "" if series.since is None else format_age(now - series.since),
                series.by or "",
                "" if left is None else format_age(left) if left > 0 else Text("ran out", tone("failed")),
                line_of_queue(series.queue),
                Text(clean(_note(series)), DIM),
            ]
        )
    return table(columns, rows, width)


def _note(series: Series) -> str:
    if series.paused is not None:
        return f"paused {series.paused}"
    return "not promoted" if series.active is None and series.queue else ""


def history_json(name: str, changes: Sequence[Change]) -> dict[str, Any]:
    return {
        "series": name,
        "changes": [
            {"at": one.at, "message": one.message, "token": one.token, "state": _state(name, one)} for one in changes
        ],
    }


def history_table(name: str, changes: Sequence[Change], width: int | None) -> list[Text]:
    from rich.text import Text

    from asterism.cli.formats import format_time
    from asterism.cli.text_table import Cell, Column, table
    from asterism.report.status_style import DIM

    columns = (
        Column("WHEN"),
        Column("REVISION", right=True),
        Column("CHANGE", least=12),
        Column("ACTIVE"),
        Column("QUEUE", least=8, needed=False),
    )
    rows: list[list[Cell]] = []
    for one in changes:
        series = _series(name, one)
        if series is None:
            rows.append([format_time(one.at), "?", one.message, "?", Text("cannot be read", DIM)])
            continue
        active = "-" if series.active is None else issue(series.active)
        rows.append([format_time(one.at), str(series.revision), one.message, active, line_of_queue(series.queue)])
    return table(columns, rows, width)


def _series(name: str, change: Change) -> Series | None:
    from asterism.core.series.machine import UnreadableSeries

    try:
        return Series.from_text(change.text, name)
    except UnreadableSeries:
        return None


def _state(name: str, change: Change) -> dict[str, Any] | None:
    series = _series(name, change)
    return None if series is None else series.to_document()
