"""Everything that the command line writes passes here: text from outside never acts on a terminal.

Names, results and errors come from plan files, stores and peers. Printed as they are they could move the cursor, write
to the clipboard, hide or reorder text, or forge lines. Three rules keep them from that:

- **Streams.** While a command runs, standard output and standard error are :class:`CleanStream`: every character that
  a terminal acts upon is shown as ``·``, whoever writes it (click, logging, a traceback). Only line breaks and tabs
  stay.
- **Styles.** :class:`asterism.cli.screen.Screen` cleans each piece of text before rich styles it, and is the one
  writer that goes past the streams above; so every escape sequence that reaches the terminal is rich's own.
- **JSON.** :func:`json_text` escapes the same characters as ``\\uXXXX``: nothing is lost, and nothing acts.

Line breaks are kept by the streams, for many messages have several lines. Text from outside is put on one line with
:func:`clean` where a message is made of it.
"""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

JOINERS = "\u200c\u200d"
"""They change no order and hide nothing, and some scripts and emoji are written with them."""

DESCRIBED_LENGTH = 60
"""The longest text that ``describe_value`` returns."""

_OUTSIDE_ASCII = re.compile(r"[^ -~]")
_NOT_A_LINE = re.compile(r"[^ -~\n\t]")


def clean(text: str) -> str:
    """The text on one line, with every character that a terminal or XML would act upon shown as ``·``.

    Line breaks and other white space become spaces. Each character stays one character, so styles keep their places.
    """
    return text if text.isprintable() else _OUTSIDE_ASCII.sub(_visible, text)


def clean_lines(text: str) -> str:
    """The same, with line breaks and tabs as they are."""
    return text if text.isprintable() else _NOT_A_LINE.sub(_visible, text)


def clean_error(text: str) -> str:
    """The text of an error. The lines after the first are indented where we write several; a line break without an
    indentation came from outside, and is a space."""
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


def _visible(found: re.Match[str]) -> str:
    character = found[0]
    if character.isprintable() or character in JOINERS:
        return character
    return " " if character.isspace() else "·"


def json_text(document: Any, *, indent: int | None = None, encoding: str | None = None) -> str:
    """A JSON document in which whatever a terminal would act upon is escaped; reading it gives the same document.
    Where ``encoding`` cannot write a letter, none beyond ASCII is used."""
    text = json.dumps(document, ensure_ascii=False, indent=indent)
    text = text if text.isprintable() else _OUTSIDE_ASCII.sub(_escaped, text)
    try:
        text.encode(encoding or "utf-8")
    except UnicodeEncodeError:
        text = re.sub(r"[^\x00-\x7f]", _number, text)
    return text


def _escaped(found: re.Match[str]) -> str:
    character = found[0]
    return character if character.isprintable() or character == "\n" else _number(found)  # json escapes others itself


def _number(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


class CleanStream(io.TextIOBase):
    """A text stream whose reader may be a terminal: what is written to it is cleaned.

    It has no ``buffer``, so that nobody finds a way around it by accident."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    @property
    def rich_proxied_file(self) -> IO[str]:
        """Where rich writes: the stream below. What rich writes was cleaned by Screen, and styled after that."""
        found = self._stream
        while hasattr(found, "rich_proxied_file"):  # rich's own proxy may be on top of another CleanStream
            found = found.rich_proxied_file
        return found

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
        """The stream below belongs to others."""

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def writable(self) -> bool:
        return True


def echo_data(text: str) -> None:
    """What somebody asked to have, as it is: a terminal gets it cleaned, a file or another program does not."""
    stream: Any = sys.stdout if sys.stdout.isatty() else getattr(sys.stdout, "rich_proxied_file", sys.stdout)
    stream.write(f"{text}\n")
    stream.flush()


def clean_streams_for_good() -> None:
    """For the process of a command: also what Python itself says at its end is cleaned."""
    sys.stdout, sys.stderr = _cleaned(sys.stdout), _cleaned(sys.stderr)


@contextmanager
def clean_streams() -> Iterator[None]:
    """Clean what is written while the block runs, also to streams that somebody has put in place of the first ones."""
    before = sys.stdout, sys.stderr
    clean_streams_for_good()
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _cleaned(stream: IO[str] | None) -> Any:
    """There may be none: ``>&-`` closes a stream before the command begins."""
    return stream if stream is None or isinstance(stream, CleanStream) else CleanStream(stream)
