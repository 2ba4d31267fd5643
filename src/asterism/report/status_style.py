"""Marks and colours of task statuses in a terminal. The marks differ in shape; colour only helps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.style import Style
from rich.text import Text

from asterism.base.text import clean
from asterism.report.picture import DrawnTask

_MARKS = {
    "pending": "○",
    "waiting": "◌",
    "running": "◐",
    "completed": "●",
    "failed": "✗",
    "cancelled": "⊘",
    "removed": "⊖",
}

_COLOURS = {
    "running": "blue",
    "completed": "green",
    "failed": "red",
    "waiting": "yellow",
    "cancelled": "magenta",
}

# What a reader looks for first comes first, for the end of a long line may be cut.
_URGENCY = ("failed", "running", "completed", "waiting", "pending", "cancelled", "removed")

DIM = Style(dim=True)
BOLD = Style(bold=True)


def mark(status: str) -> str:
    """The glyph of a status, one cell wide."""
    return _MARKS.get(status, "?")


def tone(status: str) -> Style:
    """The style of a status word or mark."""
    if status == "removed":
        return Style(dim=True, strike=True)
    return Style(color=_COLOURS.get(status), bold=status in ("running", "failed"))


def line_tone(kind: str) -> Style:
    """The style of the words of a dependency that asks for more than success."""
    return Style(color={"failure": "red", "condition": "magenta"}.get(kind))


def lane_tone(status: str) -> Style:
    """The style of the lane below a task: coloured once the task has run, so that open edges stand back."""
    return Style(color=_COLOURS[status]) if status in ("completed", "failed", "running") else DIM


def count_by_status(drawn_tasks: Sequence[DrawnTask]) -> list[tuple[str, int]]:
    """How many tasks have which status, the most urgent status first."""
    counts = Counter(drawn_task.status for drawn_task in drawn_tasks)
    known = [(status, counts.pop(status)) for status in _URGENCY if status in counts]
    return known + sorted(counts.items())


def shares(drawn_tasks: Sequence[DrawnTask]) -> Text:
    """The counts in words: `1 failed, 3 running`."""
    counts = count_by_status(drawn_tasks)
    return Text(", ").join(Text(f"{count:,} {clean(status)}", tone(status)) for status, count in counts)
