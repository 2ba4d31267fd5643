"""The terminal: a rich console that cleans all text and survives a closed pipe.

A reader that has gone away (``| head``) ends neither a run nor its exit code.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from typing import IO, TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from asterism.base.text import clean, clean_lines, clean_streams

if TYPE_CHECKING:
    from rich.live import Live

SHOW_CURSOR = "\x1b[?25h"


class Screen(Console):
    """A console that continues silently when its reader has gone away; rich would exit. All escape sequences that it
    writes are rich's own, whatever text it is given (see ``base/text.py``)."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control is None and not segment.text.isprintable():
                segment = Segment(clean_lines(segment.text), segment.style)
            yield segment

    @contextlib.contextmanager
    def live(self) -> Iterator[Live]:
        """A live view. Meanwhile rich replaces the streams, to show printed text above the view, and would act on
        escape sequences in it; so the streams are cleaned, too."""
        from rich.live import Live

        with Live(console=self, auto_refresh=False, vertical_overflow="crop") as picture, clean_streams():
            yield picture

    def on_broken_pipe(self) -> None:
        self.quiet = True
        forget_output(self.file)

    def say(self, line: str | Text = "") -> None:
        """Print one line, or a Text of several lines, without markup. The terminal wraps long lines."""
        self.print(
            clean(line) if isinstance(line, str) else line, markup=False, emoji=False, highlight=False, soft_wrap=True
        )


def show_cursor() -> None:
    """Show the cursor again, which the live view hides."""
    if sys.stdout.isatty():
        stream = getattr(sys.stdout, "rich_proxied_file", sys.stdout)
        stream.write(SHOW_CURSOR)
        stream.flush()


def forget_output(file: IO[str]) -> None:
    """Discard what is still in the buffer, which would fail again at exit."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, file.fileno())
        os.close(nowhere)
