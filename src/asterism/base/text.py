"""Text that comes from outside, made fit to draw: without control characters, not too long, escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from rich.cells import cell_len, set_cell_size

from asterism.base.safe_text import clean as clean


def shorten(text: str, cells: int) -> str:
    """The cleaned text, cut with an ellipsis to at most `cells` terminal cells; wide characters take two."""
    text = clean(text)
    if cell_len(text) <= cells:
        return text
    if cells < 1:
        return ""
    return set_cell_size(text, cells - 1).rstrip() + "…"


def markup(text: str) -> str:
    """The cleaned text, escaped for XML and HTML, between tags and inside quoted attributes alike."""
    return escape(clean(text))


def join_names(names: Sequence[str], most: int) -> str:
    """`a, b, c and 4 more`."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most:,} more"


def plural(count: int, noun: str) -> str:
    """`1 task`, `2 tasks`, `1,000 tasks`, `2 dependencies`."""
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {noun[:-1]}ies" if noun.endswith("y") else f"{count:,} {noun}s"
