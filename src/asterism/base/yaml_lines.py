"""YAML text as plain data that remembers its lines.

The data model is that of JSON: a plain ``true``, ``null`` or number is one, everything else is text, so that ``on``
and ``2026-01-01`` mean what they look like. Keys are always text. The text is read event by event: no recursion,
whatever the nesting, and an alias shares what it stands for instead of copying it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import yaml

from asterism.base.safe_text import clean

DEEPEST = 50
LARGEST = 10_000_000
"""How many values a file may stand for when its aliases are written out."""

_NUMBER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?", re.ASCII)
_CONSTANTS: dict[str, Any] = {"": None, "~": None} | {
    spelt: value
    for word, value in (("null", None), ("true", True), ("false", False))
    for spelt in (word, word.title(), word.upper())
}
_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("str", "map", "seq")}
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the quick one is missing where PyYAML has no libyaml


@dataclass(frozen=True, slots=True, order=True)
class Mistake:
    """One thing that is wrong in a file, as a sentence. A ``warning`` does not keep the file from being used."""

    line: int
    text: str
    warning: bool = False

    def told(self, name: str) -> str:
        """As a line that editors and terminals can jump to: ``plan.yaml:7: …``. It is one line, whatever is in it."""
        return clean(f"{name}:{self.line}: {'warning: ' if self.warning else ''}{self.text}")


class Block(dict[str, Any]):
    """A mapping. ``line`` is where it begins, ``lines`` where each of its keys stands."""

    __slots__ = ("line", "lines")

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line
        self.lines: dict[str, int] = {}


class Items(list[Any]):
    """A list. ``line`` is where it begins, ``lines`` where each of its items does."""

    __slots__ = ("line", "lines")

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line
        self.lines: list[int] = []


def line_of(value: Any, path: Iterable[str | int]) -> int:
    """The line on which the end of ``path`` is written, or the last part of it that is."""
    line: int = getattr(value, "line", 1)
    for part in path:
        try:
            line = value.lines[part]
        except (AttributeError, LookupError, TypeError):
            break
        value = value[part]
    return line


def read(text: str) -> tuple[Any, list[Mistake]]:
    """The data in a text, and what is wrong with the text as YAML. After a syntax error the data is None."""
    reader = _Reader()
    try:
        return reader.read(_Loader(text)), reader.mistakes
    except _Stop:
        pass
    except yaml.MarkedYAMLError as error:
        line, words = _told(error)
        reader.blame(line, f"{words}{_tabbed(text, line)}")
    except yaml.reader.ReaderError as error:
        line = text.encode()[: error.position].count(b"\n")
        reader.blame(line, f"this is not YAML: {error.reason}")
    return None, reader.mistakes


def _told(error: yaml.MarkedYAMLError) -> tuple[int, str]:
    mark, context = error.problem_mark or error.context_mark, error.context_mark
    line = 0 if mark is None else mark.line
    begun = f", {error.context}" if error.context else ""
    since = f" that begins in line {context.line + 1}" if begun and context is not None and context.line != line else ""
    return line, f"this is not YAML: {error.problem}{begun}{since}"


def _tabbed(text: str, line: int) -> str:
    """A hint, if the line is indented as YAML does not allow."""
    written = text.splitlines()[line : line + 1]
    indent = written[0][: -len(written[0].lstrip())] if written and written[0].strip() else ""
    return "; it is indented with a tab, and YAML wants spaces" if "\t" in indent else ""


class _Stop(Exception):
    """Reading on makes no sense; the mistake has been noted."""


class _Frame:
    """A mapping or list that is being filled."""

    __slots__ = ("anchor", "key", "key_line", "size", "value")

    def __init__(self, value: Block | Items, anchor: str | None) -> None:
        self.value, self.anchor = value, anchor
        self.key: str | None = None
        self.key_line = 0
        self.size = 1


class _Reader:
    def __init__(self) -> None:
        self.mistakes: list[Mistake] = []
        self.stack: list[_Frame] = []
        self.anchors: dict[str, tuple[Any, int] | None] = {}  # value and size; None while it is being filled
        self.root: Any = None
        self.documents = 0

    def blame(self, line: int, text: str) -> None:
        self.mistakes.append(Mistake(line + 1, text))

    def stop(self, line: int, text: str) -> None:
        self.blame(line, text)
        raise _Stop

    def read(self, loader: Any) -> Any:
        next_event, scalar, end = loader.get_event, yaml.ScalarEvent, yaml.CollectionEndEvent
        while (event := next_event()) is not None:
            kind = type(event)
            if kind is scalar:
                self._scalar(event)
            elif issubclass(kind, end):
                self._close(self.stack.pop())
            elif issubclass(kind, yaml.CollectionStartEvent):
                self._open(event)
            elif kind is yaml.AliasEvent:
                self._alias(event)
            elif kind is yaml.DocumentStartEvent:
                self.documents += 1
                if self.documents > 1:
                    self.stop(event.start_mark.line, "a second document begins here; a file holds one plan")
        return self.root

    def _scalar(self, event: Any) -> None:
        line = event.start_mark.line
        frame = self.stack[-1] if self.stack else None
        if frame is not None and frame.key is None and type(frame.value) is Block:
            frame.key, frame.key_line = event.value, line
            return
        value: Any = event.value
        if event.tag is not None:
            self._check_tag(event)
        elif event.implicit[0]:
            value = _plain(value)
        if event.anchor is not None:
            self.anchors[event.anchor] = (value, 1)
        self._put(value, line, 1)

    def _open(self, event: Any) -> None:
        line = event.start_mark.line
        if len(self.stack) >= DEEPEST:
            self.stop(line, f"this is nested more than {DEEPEST} deep")
        if event.tag is not None:
            self._check_tag(event)
        frame = self.stack[-1] if self.stack else None
        if frame is not None and frame.key is None and type(frame.value) is Block:
            self.stop(line, "a key is text, not a list or a mapping")
        if event.anchor is not None:
            self.anchors[event.anchor] = None
        value = Block(line + 1) if isinstance(event, yaml.MappingStartEvent) else Items(line + 1)
        self.stack.append(_Frame(value, event.anchor))

    def _close(self, frame: _Frame) -> None:
        if frame.anchor is not None:
            self.anchors[frame.anchor] = (frame.value, frame.size)
        self._put(frame.value, frame.value.line - 1, frame.size)

    def _alias(self, event: Any) -> None:
        line, name = event.start_mark.line, event.anchor
        if name not in self.anchors:
            self.stop(line, f"*{name} stands for nothing: there is no &{name} above")
        known = self.anchors[name]
        if known is None:
            self.stop(line, f"*{name} stands for something that contains it")
        else:
            self._put(known[0], line, known[1])

    def _check_tag(self, event: Any) -> None:
        if event.tag not in _TAGS:
            self.blame(event.start_mark.line, f"the tag {event.tag!r} has no meaning in a plan")

    def _put(self, value: Any, line: int, size: int) -> None:
        """A value is complete: it goes where it belongs."""
        if not self.stack:
            self.root = value
            return
        frame = self.stack[-1]
        frame.size += size
        if frame.size > LARGEST:
            self.stop(line, f"with its aliases written out, this is more than {LARGEST:,} values")
        if type(frame.value) is Items:
            frame.value.append(value)
            frame.value.lines.append(line + 1)
            return
        block: Any = frame.value
        key, frame.key = frame.key, None
        if key is None:
            self.stop(line, "an alias cannot be a key")
        elif key in block:
            self.blame(frame.key_line, f"the key {key!r} is here twice; the first is in line {block.lines[key]}")
        else:
            block[key] = value
            block.lines[key] = frame.key_line + 1


def _plain(text: str) -> Any:
    """What a scalar without quotes stands for."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    found = _NUMBER.fullmatch(text) if text[-1].isdigit() else None
    if found is None or len(text) > 300:
        return text
    if found[1] is None and found[2] is None:
        return int(text)
    number = float(text)
    return number if math.isfinite(number) else text
