"""Text for people: cleaned of control characters, shortened, escaped for HTML and JSON.

Names, results and errors come from plan files, stores and peers. Printed as they are, they could move the cursor of a
terminal, hide or reorder text, or forge lines. ``clean`` puts such text on one line and shows every character that a
terminal or XML would act upon as ``·``. ``json_text`` escapes the same characters: nothing is lost, and nothing acts.
The streams of a command are cleaned as a whole: see clean_streams.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

JOINERS = "\u200c\u200d"
"""Joiners, which are kept: they change no order and hide nothing, and some scripts and emoji need them."""

DESCRIBED_LENGTH = 60
"""The longest text that ``describe_value`` returns."""

_OUTSIDE_ASCII = re.compile(r"[^ -~]")
_NOT_A_LINE = re.compile(r"[^ -~\n\t]")


def clean(text: str) -> str:
    """The text on one line, with every character that a terminal or XML would act upon shown as ``·``.

    Line breaks and other white space become spaces. The number of characters stays, so styles keep their positions.
    """
    return text if text.isprintable() else _OUTSIDE_ASCII.sub(_visible, text)


def clean_lines(text: str) -> str:
    """As ``clean``, but line breaks and tabs stay."""
    return text if text.isprintable() else _NOT_A_LINE.sub(_visible, text)


def clean_error(text: str) -> str:
    """The text of an error. Asterism indents the lines after the first; a line break without an indentation came from
    outside, and becomes a space."""
    return re.sub(r"\n(?!  )", " ", clean_lines(text))


def describe_value(value: Any) -> str:
    """A value of a file in a few words, for a message about it. A large list or mapping is not written out."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    text = repr(value)
    return text if len(text) <= DESCRIBED_LENGTH else f"{text[: DESCRIBED_LENGTH - 1]}…"


def _visible(match: re.Match[str]) -> str:
    character = match[0]
    if character.isprintable() or character in JOINERS:
        return character
    return " " if character.isspace() else "·"


def json_text(document: Any, *, indent: int | None = None, encoding: str | None = None) -> str:
    """A JSON document in which every character that a terminal would act upon is escaped. Parsed, it is the same
    document. If ``encoding`` lacks a character, all characters outside ASCII are escaped."""
    text = json.dumps(document, ensure_ascii=False, indent=indent)
    text = text if text.isprintable() else _OUTSIDE_ASCII.sub(_escaped, text)
    try:
        text.encode(encoding or "utf-8")
    except UnicodeEncodeError:
        text = re.sub(r"[^\x00-\x7f]", _unicode_escape, text)
    return text


def _escaped(match: re.Match[str]) -> str:
    character = match[0]
    return (
        character if character.isprintable() or character == "\n" else _unicode_escape(match)
    )  # json escapes the rest


def _unicode_escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def shorten(text: str, cells: int) -> str:
    """The cleaned text, cut with an ellipsis to at most ``cells`` terminal cells. A wide character takes two."""
    from rich.cells import cell_len, set_cell_size  # slow to import, and most commands draw nothing

    text = clean(text)
    if cell_len(text) <= cells:
        return text
    if cells < 1:
        return ""
    return set_cell_size(text, cells - 1).rstrip() + "…"


def markup(text: str) -> str:
    """The cleaned text, escaped for XML and HTML, in elements and in quoted attributes."""
    from html import escape  # a large table of entities, which commands without drawings do not need

    return escape(clean(text))


def join_names(names: Sequence[str], limit: int) -> str:
    """``a, b, c and 4 more``."""
    listed = ", ".join(names[:limit])
    return listed if len(names) <= limit else f"{listed} and {len(names) - limit:,} more"


def plural(count: int, noun: str) -> str:
    """``1 task``, ``2 tasks``, ``1,000 tasks``, ``2 dependencies``."""
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {noun[:-1]}ies" if noun.endswith("y") else f"{count:,} {noun}s"
