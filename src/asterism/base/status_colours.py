"""Marks and colours of task statuses in a terminal. The marks differ in shape; colour only helps."""

from __future__ import annotations

from rich.style import Style

_MARKS = {
    "pending": "○",
    "waiting": "◌",
    "queued": "◔",
    "starting": "◔",
    "running": "◐",
    "completed": "●",
    "failed": "✗",
    "cancelled": "⊘",
    "removed": "⊖",
}

COLOURS = {
    "running": "blue",
    "completed": "green",
    "failed": "red",
    "waiting": "yellow",
    "queued": "yellow",
    "starting": "yellow",
    "cancelled": "magenta",
}

DIM = Style(dim=True)
BOLD = Style(bold=True)


def mark(status: str) -> str:
    """The glyph of a status, one cell wide."""
    return _MARKS.get(status, "?")


def tone(status: str) -> Style:
    """The style of a status word or mark."""
    if status == "removed":
        return Style(dim=True, strike=True)
    return Style(color=COLOURS.get(status), bold=status in ("running", "failed"))
