"""Lines for people: as wide as the terminal, or as wide as they are where there is none."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator

from rich.text import Text

from asterism.base.text import clean
from asterism.cli.screen import Screen


def say_lines(lines: Callable[[int | None], Iterable[Text]]) -> None:
    """``lines`` is given the width to keep to; None where whole lines are better than neat ones."""
    screen = Screen()
    for line in lines(screen.width if screen.is_terminal else None):
        line.plain = clean(line.plain)  # one line each, whatever is in it
        screen.say(line)


def wrapped(sentence: str, width: int | None, indent: str = "") -> Iterator[Text]:
    """A sentence in as many lines as it takes, broken between words."""
    if width is None:
        yield Text(indent + clean(sentence))
        return
    lines = textwrap.wrap(clean(sentence), max(20, width - len(indent)), break_on_hyphens=False)
    yield from (Text(indent + line) for line in lines)
