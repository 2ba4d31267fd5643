"""Styles of drawn plans in a terminal, and the count of tasks by status."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.style import Style
from rich.text import Text

from asterism.base.status_colours import BOLD, COLOURS, DIM, mark, tone
from asterism.base.text import clean
from asterism.report.picture import DrawnTask

__all__ = ["BOLD", "DIM", "count_by_status", "lane_tone", "line_tone", "mark", "shares", "tone"]

# What a reader looks for first comes first, for the end of a long line may be cut.
_URGENCY = ("failed", "running", "starting", "queued", "completed", "waiting", "pending", "cancelled", "removed")


def line_tone(kind: str) -> Style:
    """The style of the words of a dependency that asks for more than success."""
    return Style(color={"failure": "red", "condition": "magenta"}.get(kind))


def lane_tone(status: str) -> Style:
    """The style of the lane below a task: coloured once the task has run, so that open edges stand back."""
    return Style(color=COLOURS[status]) if status in ("completed", "failed", "running") else DIM


def count_by_status(drawn_tasks: Sequence[DrawnTask]) -> list[tuple[str, int]]:
    """How many tasks have which status, the most urgent status first."""
    counts = Counter(drawn_task.status for drawn_task in drawn_tasks)
    known = [(status, counts.pop(status)) for status in _URGENCY if status in counts]
    return known + sorted(counts.items())


def shares(drawn_tasks: Sequence[DrawnTask]) -> Text:
    """The counts in words: `1 failed, 3 running`."""
    counts = count_by_status(drawn_tasks)
    return Text(", ").join(Text(f"{count:,} {clean(status)}", tone(status)) for status, count in counts)
