"""Clean output streams of a command: text from outside never acts on a terminal.

Three rules hold for everything that the command line writes:

- **Streams.** While a command runs, standard output and standard error are :class:`CleanStream`: they show every
  character that a terminal acts upon as ``·``, whatever code writes it (click, logging, a traceback). Only line breaks
  and tabs stay.
- **Styles.** :class:`asterism.cli.screen.Screen` cleans each piece of text before rich styles it. It is the only writer
  that bypasses these streams, so every escape sequence that reaches the terminal is rich's own.
- **JSON.** ``text.json_text`` escapes the same characters as ``\\uXXXX``.

The streams keep line breaks, since many messages have several lines. ``text.clean`` puts text from outside on one line
where a message is made of it.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from asterism.base.text import clean_lines


class CleanStream(io.TextIOBase):
    """A text stream whose reader may be a terminal: it cleans what is written to it.

    It has no ``buffer``, so that no code bypasses it by accident."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    @property
    def rich_proxied_file(self) -> IO[str]:
        """Where rich writes: the stream below. Screen has cleaned what rich writes."""
        stream = self._stream
        while hasattr(stream, "rich_proxied_file"):  # rich's own proxy may be on top of another CleanStream
            stream = stream.rich_proxied_file
        return stream

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return getattr(self._stream, "encoding", None) or "utf-8"

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        return getattr(self._stream, "errors", None)

    def write(self, text: str) -> int:
        self._stream.write(clean_lines(text))
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        """Does nothing: the stream below belongs to others."""

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def writable(self) -> bool:
        return True


def echo_data(text: str) -> None:
    """Print data that a person asked for: cleaned for a terminal, unchanged for a file or another program."""
    stream: Any = sys.stdout if sys.stdout.isatty() else getattr(sys.stdout, "rich_proxied_file", sys.stdout)
    stream.write(f"{text}\n")
    stream.flush()


def clean_streams_for_good() -> None:
    """Clean the streams for the rest of the process, including what Python itself prints at its end."""
    sys.stdout, sys.stderr = _cleaned(sys.stdout), _cleaned(sys.stderr)


@contextmanager
def clean_streams() -> Iterator[None]:
    """Clean the streams while the block runs, also replaced ones."""
    before = sys.stdout, sys.stderr
    clean_streams_for_good()
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _cleaned(stream: IO[str] | None) -> Any:
    """A stream may be None: ``>&-`` closes it before the command begins."""
    return stream if stream is None or isinstance(stream, CleanStream) else CleanStream(stream)
