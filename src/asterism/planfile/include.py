"""The files of a plan: the plan file itself, and those that it includes.

``include`` names other plan files, relative to the file that has it. Their tasks, parameters and devices belong to the
plan; ``id`` and ``policy`` count only in the plan file itself, and ``defaults`` only for the tasks of their own file. A
file that is included twice counts once.

A plan may come from a stranger, and ``check`` is what one does with it first. So an include is a regular file of a
limited size with the name of a plan file, and nothing of it is quoted unless it is a plan.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from os.path import dirname, join, normpath
from pathlib import Path

from asterism.base.yaml_lines import Mistake, YamlMapping, line_of, parse_yaml, read_text
from asterism.core.record import Record

SUFFIXES = (".yaml", ".yml", ".json")
"""How the name of an included file ends."""

MAX_BYTES = 16 << 20
"""How large an included file may be."""

_HEAD = re.compile(r"^\s*[{\"']*asterism[\"']?\s*:", re.MULTILINE)

MAX_FILES = 100
"""How many files a plan may consist of."""


class PlanSource(Record):
    """One file of a plan. ``file`` is its path as messages show it; empty for the plan file itself."""

    data: YamlMapping
    file: str = ""


def read_sources(
    data: YamlMapping, path: str, mistakes: list[Mistake], *, texts: Mapping[str, str] | None = None
) -> list[PlanSource]:
    """The plan file, whose content is ``data``, and all files that it includes, in the order of their mention. With
    ``texts``, by their paths from the folder of the plan file, no file is read: an include that has no text is a
    mistake."""
    reader = _IncludeReader(path, mistakes) if texts is None else _TextReader(path, mistakes, texts)
    reader.add(PlanSource(data), path, (path,))
    return reader.sources


class _IncludeReader:
    def __init__(self, path: str, mistakes: list[Mistake]) -> None:
        self.mistakes = mistakes
        self.sources: list[PlanSource] = []
        self.known = {self._identity(path)}

    def add(self, source: PlanSource, path: str, chain: tuple[str, ...]) -> None:
        """Add a file and what it includes. ``chain`` are the files from the plan file to this one."""
        self.sources.append(source)
        for line, name in _included(source.data):
            place = normpath(join(dirname(path), name))
            if (problem := self._add_included(name, place, chain)) is not None:
                self.mistakes.append(Mistake(line, problem, file=source.file))

    def _add_included(self, name: str, place: str, chain: tuple[str, ...]) -> str | None:
        """Read a file that is included. Returns what is wrong with the include."""
        resolved = self._identity(place)
        if resolved in {self._identity(part) for part in chain}:
            return f"includes {name!r}, which closes a cycle: {' -> '.join([*chain, place])}"
        if resolved in self.known:
            return None
        if len(self.known) >= MAX_FILES:
            return f"includes {name!r}, but a plan consists of at most {MAX_FILES} files"
        if resolved.suffix.lower() not in SUFFIXES or Path(name).suffix.lower() not in SUFFIXES:
            return f"includes {name!r}, but the name of a plan file ends in {' or '.join(SUFFIXES)}"
        self.known.add(resolved)
        try:
            text, mistakes = self._read(place)
        except OSError as error:
            return f"includes {name!r}, but {place} cannot be read: {error.strerror}"
        data, more = (None, []) if mistakes else parse_yaml(text)
        if not _is_plan(text, data):
            why = f" ({mistakes[0].text})" if mistakes else ""
            return f"includes {name!r}, which is not a plan file: it has no line 'asterism: 1'{why}"
        self.mistakes.extend(Mistake(mistake.line, mistake.text, mistake.warning, place) for mistake in more)
        if isinstance(data, YamlMapping):
            self.add(PlanSource(data, place), place, (*chain, place))
        return None

    def _identity(self, place: str) -> Path:
        """Two paths of one file are one."""
        return Path(place).resolve()

    def _read(self, place: str) -> tuple[str, list[Mistake]]:
        """Raises OSError."""
        return read_text(place, max_bytes=MAX_BYTES, regular=True)


class _TextReader(_IncludeReader):
    """Reads includes that were sent with a plan file."""

    def __init__(self, path: str, mistakes: list[Mistake], texts: Mapping[str, str]) -> None:
        super().__init__(path, mistakes)
        self._texts = texts

    def _identity(self, place: str) -> Path:
        return Path(place)

    def _add_included(self, name: str, place: str, chain: tuple[str, ...]) -> str | None:
        if place not in self._texts:
            return f"includes {name!r}, but a plan that is sent as text cannot include files that are not sent with it"
        return super()._add_included(name, place, chain)

    def _read(self, place: str) -> tuple[str, list[Mistake]]:
        return self._texts[place], []


class _RecordingReader(_IncludeReader):
    """Reads includes from the folder of a plan file, and records their texts."""

    def __init__(self, folder: str) -> None:
        self._folder, self.texts = folder, dict[str, str]()
        super().__init__("", [])

    def _identity(self, place: str) -> Path:
        return super()._identity(join(self._folder, place))

    def _read(self, place: str) -> tuple[str, list[Mistake]]:
        text, mistakes = super()._read(join(self._folder, place))
        self.texts[place] = text
        return text, mistakes


def included_texts(path: str) -> dict[str, str]:
    """The texts of all files that a plan file includes, by their paths from its folder, to be sent with it. Raises
    OSError if the plan file cannot be read. A mistake of an include is reported when the plan is read."""
    reader = _RecordingReader(dirname(path))
    data, _ = parse_yaml(read_text(path)[0])
    if isinstance(data, YamlMapping):
        reader.add(PlanSource(data), "", ("",))
    return reader.texts


def _is_plan(text: str, data: object) -> bool:
    """Whether a file is a plan, perhaps one with mistakes: only then may messages quote it."""
    return "asterism" in data if isinstance(data, YamlMapping) else _HEAD.search(text) is not None


def _included(data: YamlMapping) -> Iterator[tuple[int, str]]:
    """The files that ``include`` names, with the line of each. What has another shape is reported with the head."""
    include = data.get("include")
    if isinstance(include, str) and include:
        yield line_of(data, ("include",)), include
    elif isinstance(include, list):
        for index, name in enumerate(include):
            if isinstance(name, str) and name:
                yield line_of(data, ("include", index)), name
