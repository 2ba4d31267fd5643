"""YAML with line numbers: parse a file into plain data that knows the line of each value.

The data model is that of JSON: a plain ``true``, ``null`` or number is one, everything else is text, so ``on`` and
``2026-01-01`` stay text; a format may read plain scalars by other rules. Keys are always text. The parser works event
by event: it does not recurse, however deep the nesting, and an alias shares its value instead of copying it.

Plan files, workflow files and device policy files are read with it. All return mistakes as a list, to report every
mistake of a file at once::

    data, mistakes = parse_yaml(text)
    mistakes.append(Mistake(line_of(data, ("tasks", "build")), "task 'build' runs nothing"))
"""

from __future__ import annotations

import errno
import math
import os
import re
import stat
from collections.abc import Callable, Iterable
from typing import Any

import yaml

from asterism.base.text import clean
from asterism.core.record import Record

MAX_DEPTH = 50
"""How deep lists and mappings may be nested."""

MAX_BYTES = 256 << 20
"""How large a file may be."""

MAX_VALUES = 10_000_000
"""How many values a file may contain, counting each alias as a copy."""

MAX_ALIASED = 64 << 20
"""How many characters the aliases of a file may stand for: what is read may be written or sent as JSON, in full."""

LONGEST_NUMBER = 300
"""The longest plain text that is read as a number, in characters."""

_NUMBER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?", re.ASCII)
_CONSTANTS: dict[str, Any] = {"": None, "~": None} | {
    spelling: value
    for word, value in (("null", None), ("true", True), ("false", False))
    for spelling in (word, word.title(), word.upper())
}
_STANDARD_TAG = "tag:yaml.org,2002:"
_TAGS = {f"{_STANDARD_TAG}{name}" for name in ("str", "map", "seq")}
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # PyYAML without libyaml lacks the fast one


class Mistake(Record, order=True):
    """One mistake in a file, as a sentence. A file that has only warnings can be used. ``file`` is set if the mistake
    is in another file than the one that was read, such as one that it includes."""

    line: int
    text: str
    warning: bool = False
    file: str = ""

    def format(self, name: str) -> str:
        """``plan.yaml:7: …``, on one line: the form that editors and terminals can jump to."""
        return clean(f"{self.file or name}:{self.line}: {'warning: ' if self.warning else ''}{self.text}")


class YamlMapping(dict[str, Any]):
    """A mapping. ``line`` is its first line, ``lines`` has the line of each key."""

    __slots__ = ("line", "lines")

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line
        self.lines: dict[str, int] = {}


class YamlList(list[Any]):
    """A list. ``line`` is its first line, ``lines`` has the line of each item."""

    __slots__ = ("line", "lines")

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line
        self.lines: list[int] = []


def line_of(value: Any, path: Iterable[str | int]) -> int:
    """The line of the value at ``path``, or of the last part of the path that exists."""
    line: int = getattr(value, "line", 1)
    for part in path:
        try:
            line = value.lines[part]
        except (AttributeError, LookupError, TypeError):
            break
        value = value[part]
    return line


def read_text(
    path: str | os.PathLike[str], *, max_bytes: int = MAX_BYTES, regular: bool = False
) -> tuple[str, list[Mistake]]:
    """The text of a file in UTF-8. Empty, with a mistake, if it is not UTF-8 or is too large. Raises OSError, with
    ``regular`` also for a file that is a device, a pipe or a socket."""
    with open(path, "rb", opener=open_regular if regular else None) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        return "", [Mistake(1, f"the file is larger than {max_bytes:,} bytes")]
    try:
        return content.decode("utf-8-sig"), []
    except UnicodeDecodeError as error:
        return "", [Mistake(content.count(b"\n", 0, error.start) + 1, "the file is not text in UTF-8")]


def open_regular(path: str, flags: int) -> int:
    """The ``opener`` for a file that somebody else has named: it opens regular files only, and does not wait for a
    pipe. Raises OSError."""
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        kind = errno.EISDIR if os.path.isdir(path) else errno.EINVAL
        raise OSError(kind, os.strerror(kind) if kind == errno.EISDIR else "not a regular file", path)
    return descriptor


def constant_or_text(text: str) -> Any:
    """The value of ``true``, ``false``, ``null``, ``~`` and nothing at all; any other text as it is."""
    return _CONSTANTS.get(text, text)


def plain_value(text: str) -> Any:
    """The value of a scalar without quotes, by the rules of JSON; ``~`` is null."""
    match = _NUMBER.fullmatch(text) if text and text[-1].isdigit() else None
    if match is None or len(text) > LONGEST_NUMBER:
        return constant_or_text(text)
    if match[1] is None and match[2] is None:
        return int(text)
    number = float(text)
    return number if math.isfinite(number) else text


def parse_yaml(
    text: str,
    *,
    max_depth: int = MAX_DEPTH,
    plain: Callable[[str], Any] = plain_value,
    any_standard_tag: bool = False,
) -> tuple[Any, list[Mistake]]:
    """The data in a text, and its mistakes as YAML. After a syntax error the data is None.

    ``plain`` returns the value of a scalar without quotes. Tags other than ``!!str``, ``!!map`` and ``!!seq`` are
    mistakes. With ``any_standard_tag`` a scalar may have any tag of YAML; only ``!!str`` changes its value, to text."""
    parser = _Parser(max_depth, plain, any_standard_tag)
    try:
        return parser.parse(_Loader(text)), parser.mistakes
    except _Stop:
        pass
    except yaml.MarkedYAMLError as error:
        line, problem = _syntax_error(error)
        line = min(line, max(0, len(text.splitlines()) - 1))  # libyaml counts the end of the text as one more line
        parser.blame(line, f"{problem}{_tab_hint(text, line)}")
    except yaml.reader.ReaderError as error:
        line = text.encode()[: error.position].count(b"\n")
        parser.blame(line, f"this is not YAML: {error.reason}")
    return None, parser.mistakes


def _syntax_error(error: yaml.MarkedYAMLError) -> tuple[int, str]:
    mark, context = error.problem_mark or error.context_mark, error.context_mark
    line = 0 if mark is None else mark.line
    during = f", {error.context}" if error.context else ""
    since = (
        f" that begins in line {context.line + 1}" if during and context is not None and context.line != line else ""
    )
    return line, f"this is not YAML: {error.problem}{during}{since}"


def _tab_hint(text: str, line: int) -> str:
    """A hint if the line is indented with a tab, which YAML does not allow."""
    lines = text.splitlines()[line : line + 1]
    indent = lines[0][: -len(lines[0].lstrip())] if lines and lines[0].strip() else ""
    return "; the line is indented with a tab, and YAML requires spaces" if "\t" in indent else ""


class _Stop(Exception):
    """Parsing cannot continue; the mistake has been recorded."""


class _Frame:
    """A mapping or list that is being filled."""

    __slots__ = ("aliased", "anchor", "key", "key_line", "size", "start", "value")

    def __init__(self, value: YamlMapping | YamlList, anchor: str | None, start: int) -> None:
        self.value, self.anchor, self.start = value, anchor, start
        self.aliased = 0  # how many characters the aliases in it stand for
        self.key: str | None = None
        self.key_line = 0
        self.size = 1


class _Parser:
    def __init__(self, max_depth: int, plain: Callable[[str], Any], any_standard_tag: bool) -> None:
        self.max_depth, self.plain, self.any_standard_tag = max_depth, plain, any_standard_tag
        self.mistakes: list[Mistake] = []
        self.stack: list[_Frame] = []
        # value, size and number of characters; None while it is being filled
        self.anchors: dict[str, tuple[Any, int, int] | None] = {}
        self.root: Any = None
        self.documents = 0

    def blame(self, line: int, text: str) -> None:
        self.mistakes.append(Mistake(line + 1, text))

    def stop(self, line: int, text: str) -> None:
        self.blame(line, text)
        raise _Stop

    def parse(self, loader: Any) -> Any:
        next_event, scalar, end = loader.get_event, yaml.ScalarEvent, yaml.CollectionEndEvent
        while (event := next_event()) is not None:
            kind = type(event)
            if kind is scalar:
                self._scalar(event)
            elif issubclass(kind, end):
                self._close(self.stack.pop(), event.end_mark.index)
            elif issubclass(kind, yaml.CollectionStartEvent):
                self._open(event)
            elif kind is yaml.AliasEvent:
                self._alias(event)
            elif kind is yaml.DocumentStartEvent:
                self.documents += 1
                if self.documents > 1:
                    self.stop(event.start_mark.line, "a second document begins here; a file may contain only one")
        return self.root

    def _scalar(self, event: Any) -> None:
        line = event.start_mark.line
        frame = self.stack[-1] if self.stack else None
        if frame is not None and frame.key is None and type(frame.value) is YamlMapping:
            frame.key, frame.key_line = event.value, line
            return
        value: Any = event.value
        if event.tag is not None:
            value = self._tagged(event)
        elif event.implicit[0]:
            value = self.plain(value)
        if event.anchor is not None:
            self.anchors[event.anchor] = (value, 1, event.end_mark.index - event.start_mark.index)
        self._put(value, line, 1)

    def _open(self, event: Any) -> None:
        line = event.start_mark.line
        if len(self.stack) >= self.max_depth:
            self.stop(line, f"this is nested too deep: {self.max_depth} levels are allowed")
        if event.tag is not None:
            self._check_tag(event)
        frame = self.stack[-1] if self.stack else None
        if frame is not None and frame.key is None and type(frame.value) is YamlMapping:
            self.stop(line, "a key is text, not a list or a mapping")
        if event.anchor is not None:
            self.anchors[event.anchor] = None
        value = YamlMapping(line + 1) if isinstance(event, yaml.MappingStartEvent) else YamlList(line + 1)
        self.stack.append(_Frame(value, event.anchor, event.start_mark.index))

    def _close(self, frame: _Frame, end: int) -> None:
        if frame.anchor is not None:
            self.anchors[frame.anchor] = (frame.value, frame.size, end - frame.start + frame.aliased)
        self._put(frame.value, frame.value.line - 1, frame.size, frame.aliased)

    def _alias(self, event: Any) -> None:
        line, name = event.start_mark.line, event.anchor
        if name not in self.anchors:
            self.stop(line, f"*{name} is not defined: there is no &{name} above")
        anchored = self.anchors[name]
        if anchored is None:
            self.stop(line, f"*{name} stands for a value that contains it")
        else:
            self._put(anchored[0], line, anchored[1], anchored[2])

    def _tagged(self, event: Any) -> Any:
        """The value of a scalar with a tag."""
        tag, value = event.tag, event.value
        if not self.any_standard_tag or not tag.startswith(_STANDARD_TAG):
            self._check_tag(event)
        elif not event.style and not tag.endswith(":str"):  # without quotes
            return self.plain(value)
        return value

    def _check_tag(self, event: Any) -> None:
        untyped = event.tag == "!" and self.any_standard_tag  # the tag for text
        if event.tag not in _TAGS and not untyped:
            self.blame(event.start_mark.line, f"the tag {event.tag!r} has no meaning here")

    def _put(self, value: Any, line: int, size: int, aliased: int = 0) -> None:
        """Add a complete value to the collection it belongs to. Of its characters, ``aliased`` come from aliases."""
        if not self.stack:
            self.root = value
            return
        frame = self.stack[-1]
        frame.size += size
        if frame.size > MAX_VALUES:
            self.stop(line, f"with its aliases expanded, this has more than {MAX_VALUES:,} values")
        frame.aliased += aliased
        if frame.aliased > MAX_ALIASED:
            self.stop(line, f"the aliases stand for more than {MAX_ALIASED:,} characters")
        if type(frame.value) is YamlList:
            frame.value.append(value)
            frame.value.lines.append(line + 1)
            return
        mapping: Any = frame.value
        key, frame.key = frame.key, None
        if key is None:
            self.stop(line, "an alias cannot be a key")
        elif key in mapping:
            self.blame(frame.key_line, f"the key {key!r} is here twice; the first is in line {mapping.lines[key]}")
        else:
            mapping[key] = value
            mapping.lines[key] = frame.key_line + 1
