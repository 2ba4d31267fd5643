"""Where people read. A reader that has gone away (``| head``) ends neither a run nor its exit code.

Lines for people: as wide as the terminal, or as wide as they are where there is none."""

from __future__ import annotations

import contextlib
import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from typing import IO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

from asterism.base.safe_text import clean, clean_lines, clean_streams

SHOW_CURSOR = "\x1b[?25h"


class Screen(Console):
    """A console that goes on in silence when nobody reads it any more; rich would leave the program. Whatever text it
    is given, the escape sequences that it writes are rich's own (see ``output.py``)."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control is None and not segment.text.isprintable():
                segment = Segment(clean_lines(segment.text), segment.style)
            yield segment

    @contextlib.contextmanager
    def live(self) -> Iterator[Live]:
        """A picture that is drawn over and over. rich puts streams in place that show what is printed meanwhile above
        the picture, and obey the escape sequences in it: they get cleaned text, too."""
        with Live(console=self, auto_refresh=False, vertical_overflow="crop") as picture, clean_streams():
            yield picture

    def on_broken_pipe(self) -> None:
        self.quiet = True
        forget_output(self.file)

    def say(self, line: str | Text = "") -> None:
        """One line: nothing in it is markup, and the terminal wraps it where it ends. A Text may have several."""
        self.print(
            clean(line) if isinstance(line, str) else line, markup=False, emoji=False, highlight=False, soft_wrap=True
        )


def show_cursor() -> None:
    """The live view has hidden it."""
    if sys.stdout.isatty():
        stream = getattr(sys.stdout, "rich_proxied_file", sys.stdout)
        stream.write(SHOW_CURSOR)
        stream.flush()


def forget_output(file: IO[str]) -> None:
    """What is still in the buffer goes nowhere, instead of failing again at exit."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, file.fileno())
        os.close(nowhere)


def print_lines(lines: Callable[[int | None], Iterable[Text]]) -> None:
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
