"""Text made safe to show: no control characters, no passwords in URLs, escaped for HTML and JSON.

Names, results and errors come from plan files, stores and peers. Printed as they are, they could move the cursor of a
terminal, hide or reorder text, or forge lines. Three rules hold for everything that the command line writes:

- **Streams.** While a command runs, standard output and standard error are :class:`CleanStream`: they show every
  character that a terminal acts upon as ``·``, whatever code writes it (click, logging, a traceback). Only line breaks
  and tabs stay, since many messages have several lines. ``clean`` puts text from outside on one line where a message
  is made of it.
- **Styles.** :class:`asterism.cli.screen.Screen` cleans each piece of text before rich styles it. It is the only writer
  that bypasses these streams, so every escape sequence that reaches the terminal is rich's own.
- **JSON.** ``json_text`` escapes the same characters as ``\\uXXXX``: nothing is lost, and nothing acts.

A malformed URL is likely to appear in an error message, so ``masked_url`` does not rely on the syntax of a URL:
everything from the scheme to the last ``@`` may be part of a login. It may hide a part of a path, but never shows a
part of a password.

Names as parts of the path of a URL.

Percent-encoding is not enough: clients and proxies remove the parts ``.`` and ``..`` from a path, also if they are
encoded. Such a name gets a ``~`` in front, and so does a name that looks like the result.
"""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any
from urllib.parse import quote

from asterism.core.errors import NotJson
from asterism.core.record import encode

JOINERS = "\u200c\u200d"
"""Joiners, which are kept: they change no order and hide nothing, and some scripts and emoji need them."""

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


def decode_whole(data: bytes | bytearray, what: str, advice: str, encoding: str = "utf-8") -> str:
    """The bytes of a result as text: every character of it, or none. ``what`` they are and what to do instead are for
    the message. Raises NotJson, and LookupError for an encoding that is unknown."""
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        name = "UTF-8" if encoding == "utf-8" else error.encoding
        raise NotJson(
            f"{what} is not valid {name} (byte 0x{data[error.start]:02x} at offset {error.start:,}): {advice}"
        ) from None


def _visible(match: re.Match[str]) -> str:
    character = match[0]
    if character.isprintable() or character in JOINERS:
        return character
    return " " if character.isspace() else "·"


def json_text(document: Any, *, indent: int | None = None, encoding: str | None = None) -> str:
    """A JSON document in which every character that a terminal would act upon is escaped. Parsed, it is the same
    document. If ``encoding`` lacks a character, all characters outside ASCII are escaped."""
    text = json.dumps(document, ensure_ascii=False, indent=indent, default=encode)
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


def shorten_middle(text: str, cells: int) -> str:
    """As ``shorten``, but cut in the middle: names often differ only at their ends."""
    from rich.cells import cell_len, set_cell_size

    text = clean(text)
    if cell_len(text) <= cells or cells < 3:
        return shorten(text, cells)
    tail = set_cell_size(text[::-1], (cells - 1) // 2).strip()[::-1]
    return f"{set_cell_size(text, cells - 1 - cell_len(tail)).rstrip()}…{tail}"


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


SHORT_ID = 8


def short(run_id: str) -> str:
    """The end of a run's id, for tables and messages: its last letters are random."""
    return run_id[-SHORT_ID:]


# -- URLs --------------------------------------------------------------------------------------------------------------

HIDDEN = "***"

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:(?=[/\\])", re.I)
_SECRET_FIELD = re.compile(
    r"((?:^|[?&;#\s])(?:\w*(?:password|passwd|passphrase|secret|token|signature)|pwd|api_?key|sig)\s*=\s*)[^&;#\s]+",
    re.I,
)
_WORD = re.compile(r"[^\s'\"<>`]+")


def masked_url(address: str) -> str:
    """A URL without its password. With HTTP the whole login is removed, since a user name may be a token."""
    return _SECRET_FIELD.sub(rf"\1{HIDDEN}", _without_login(address))


def masked_urls(text: str) -> str:
    """A text with every URL in it masked, such as the output of another program."""
    return _WORD.sub(lambda match: masked_url(match[0]), text)


def _without_login(address: str) -> str:
    match = _SCHEME.match(address)
    scheme = match[0] if match is not None else ""
    rest = address[len(scheme) :]
    slashes = rest[: len(rest) - len(rest.lstrip("/\\"))]
    rest = rest[len(slashes) :]
    login, _, host = rest.rpartition("@")
    user, colon, _ = login.partition(":")
    if not scheme.lower().startswith("http"):
        return f"{scheme}{slashes}{user}:{HIDDEN}@{host}" if colon else address
    if "@" in re.split(r"[/\\?#]", rest, maxsplit=1)[0]:
        return f"{scheme}{slashes}{host}"
    return f"{scheme}{slashes}{HIDDEN}@{host}" if colon else address  # a password may contain a /


def request_url_problem(url: str) -> str | None:
    """Why a URL cannot be requested; None if it can. ``{name}`` in it stands for an input, which may contain the scheme
    or the host."""
    if "{" in url.partition("://")[0]:
        return None
    if re.match(r"https?://", url, re.I) is None:
        return f"a URL begins with http:// or https://, not {masked_url(url)[:100]!r}"
    return f"{masked_url(url)[:100]!r} has no host" if re.match(r"https?://([/?#]|$)", url, re.I) else None


# -- output streams ----------------------------------------------------------------------------------------------------


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

    def write(self, text: str | bytes) -> int:
        """click writes bytes, too, to a stream without a ``buffer``."""
        shown = text if isinstance(text, str) else text.decode(errors="backslashreplace")
        self._stream.write(clean_lines(shown))
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
    """Clean the streams for the rest of the process, including what Python itself prints at its end.

    A stream may be None: ``>&-`` closes it before the command begins."""
    streams: list[Any] = [sys.stdout, sys.stderr]
    sys.stdout, sys.stderr = (
        stream if stream is None or isinstance(stream, CleanStream) else CleanStream(stream) for stream in streams
    )


@contextmanager
def clean_streams() -> Iterator[None]:
    """Clean the streams while the block runs, also replaced ones."""
    before = sys.stdout, sys.stderr
    clean_streams_for_good()
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


# -- path names --------------------------------------------------------------------------------------------------------


_DOTS = re.compile(r"~*\.{1,2}")


def path_part(name: str) -> str:
    """A name as one part of a path."""
    return quote(f"~{name}" if _DOTS.fullmatch(name) else name, safe="")


def plain_name(part: str) -> str:
    """The name that ``path_part`` has written. The percent-encoding of ``part`` is removed already."""
    return part[1:] if part.startswith("~") and _DOTS.fullmatch(part) else part
