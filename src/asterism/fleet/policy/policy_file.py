"""The policy file of a device, in YAML::

    commands: [ffmpeg, /opt/tools/*]     # names on the device's PATH, absolute paths, patterns
    shell: false
    callables: ["media.jobs:*"]
    hosts: [api.example.org, "10.0.0.0/8:8080"]
    directories: [/srv/media, ~/work]
    environment: [MEDIA_*]               # variables that commands get, and that may be set
    secrets: [API_TOKEN]                 # variables that work may read as secrets; their values are always masked
    workflows: ["media-*"]               # all, if left out

What is left out allows nothing. Every mistake is told with its line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from asterism.core.errors import AsterismError
from asterism.fleet.policy.matching import HostRule
from asterism.fleet.policy.policy import Rules

LARGEST = 1 << 20
"""How large a policy file may be, in bytes."""

_DEEPEST = 4
_CONSTANTS = {"true": True, "false": False, "null": None, "": None}
_NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]+)?")
LONGEST_NUMBER = 20
"""So many digits are shown as they were written; more are no slip of the pen."""

_VARIABLE = re.compile(r"[A-Za-z_*?][A-Za-z0-9_*?]*")
_FUNCTION = re.compile(r"[A-Za-z_*?][\w.*?]*:[A-Za-z_*?][\w.*?]*", re.ASCII)

Part = str | int


@dataclass(frozen=True, order=True)
class Mistake:
    line: int
    text: str


class BadPolicy(AsterismError):
    """A policy file that cannot be used; ``mistakes`` are all of them, in the order of their lines."""

    def __init__(self, name: str, mistakes: Sequence[Mistake]) -> None:
        self.name, self.mistakes = name, tuple(sorted(mistakes))
        super().__init__("\n".join(f"{name}:{mistake.line}: {mistake.text}" for mistake in self.mistakes))


def read(path: Path) -> Rules:
    """Raises BadPolicy with every mistake, and OSError if the file cannot be read."""
    content = path.read_bytes()
    if len(content) > LARGEST:
        raise BadPolicy(str(path), [Mistake(1, f"this is larger than {LARGEST:,} bytes, and no policy is")])
    try:
        return parse(content.decode("utf-8-sig"), str(path))
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise BadPolicy(str(path), [Mistake(line, "this is not text in UTF-8")]) from None


def parse(text: str, name: str = "policy") -> Rules:
    """``read``, for a text."""
    document = _Document(text)
    rules = Rules()
    if isinstance(document.data, dict):
        rules = _rules(document)
    elif not document.mistakes:
        keys = ", ".join(_File.model_fields)
        document.blame(
            (), f"a policy is a mapping with some of the keys {keys}; one that allows nothing is shell: false"
        )
    if document.mistakes:
        raise BadPolicy(name, document.mistakes)
    return rules


def _rules(document: _Document) -> Rules:
    try:
        found = _File.model_validate(document.data)
    except ValidationError as error:
        for problem in error.errors(include_url=False):
            document.blame(problem["loc"], _sentence(problem))
        return Rules()
    said: dict[str, Any] = {}
    for key in found.model_fields_set:
        value = getattr(found, key)
        said[key] = tuple(value) if isinstance(value, list) else value
    return Rules(**said)


# -- the shape ---------------------------------------------------------------------------------------------------------


def _command(text: str) -> str:
    if "/" in text:
        return _path(text)
    if not text or text in (".", "..", "~"):
        raise ValueError("is a name, or an absolute path")
    return text


def _path(text: str) -> str:
    if not text.startswith(("/", "~/")):
        raise ValueError("is an absolute path")
    if ".." in text.split("/"):
        raise ValueError("is a path without ..")
    return text


def _directory(text: str) -> str:
    return text if text == "~" else _path(text)


def _host(text: str) -> str:
    HostRule.parse(text)
    return text


def _function(text: str) -> str:
    if not _FUNCTION.fullmatch(text):
        raise ValueError("is package.module:function, with * for any part")
    return text


def _variable(text: str) -> str:
    if not _VARIABLE.fullmatch(text):
        raise ValueError("is the name of a variable, with * for any part")
    return text


def _workflow(text: str) -> str:
    if not text:
        raise ValueError("is the name of a workflow, with * for any part")
    return text


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    commands: list[Annotated[str, AfterValidator(_command)]] = []
    shell: bool = False
    callables: list[Annotated[str, AfterValidator(_function)]] = []
    hosts: list[Annotated[str, AfterValidator(_host)]] = []
    directories: list[Annotated[str, AfterValidator(_directory)]] = []
    environment: list[Annotated[str, AfterValidator(_variable)]] = []
    secrets: list[Annotated[str, AfterValidator(_variable)]] = []
    workflows: list[Annotated[str, AfterValidator(_workflow)]] = []  # only if it is written; then nothing is nothing


# -- the words ---------------------------------------------------------------------------------------------------------

_WANTED = {
    "list_type": "a list, such as [one, two]",
    "bool_type": "true or false",
    "string_type": "text",
}


def _sentence(problem: Any) -> str:
    path, kind, value = problem["loc"], problem["type"], problem["input"]
    written = "".join(f"[{part}]" if isinstance(part, int) else str(part) for part in path)
    if kind == "extra_forbidden":
        known = list(_File.model_fields)
        near = get_close_matches(str(path[-1]), known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"the keys are {', '.join(known)}"
        return f"there is no key {written!r}; {hint}"
    if kind == "value_error":
        return f"{written} {problem['ctx']['error']}, not {_shown(value)}"
    wanted = _WANTED.get(kind)
    return f"{written} is {wanted}, not {_shown(value)}" if wanted else f"{written}: {problem['msg']}"


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    return repr(value)[:60]


# -- the text ----------------------------------------------------------------------------------------------------------


class _Document:
    """YAML as plain data, with the line of everything in it. Only true, false, null and numbers are not text."""

    def __init__(self, text: str) -> None:
        self.mistakes: list[Mistake] = []
        self.lines: dict[tuple[Part, ...], int] = {(): 1}
        self.data: Any = None
        try:
            node = yaml.compose(text, Loader=yaml.SafeLoader)
        except RecursionError:
            self.blame((), "this is nested too deep")
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = 1 if mark is None else mark.line + 1
            self.mistakes.append(Mistake(line, f"this is not YAML: {error.problem or error.context}"))
        except yaml.YAMLError as error:
            self.blame((), f"this is not YAML: {' '.join(str(error).split())}")
        else:
            self.data = None if node is None else self._value(node, ())

    def blame(self, path: Sequence[Part], text: str) -> None:
        known = next(self.lines[place] for place in _outwards(tuple(path)) if place in self.lines)
        self.mistakes.append(Mistake(known, text))

    def _value(self, node: yaml.Node, path: tuple[Part, ...]) -> Any:
        self.lines.setdefault(path, node.start_mark.line + 1)
        if len(path) >= _DEEPEST:
            self.blame(path, "this is nested too deep")
            return None
        if isinstance(node, yaml.MappingNode):
            return dict(self._items(node, path))
        if isinstance(node, yaml.SequenceNode):
            return [self._value(item, (*path, index)) for index, item in enumerate(node.value)]
        if not node.tag.startswith("tag:yaml.org,2002:"):
            self.blame(path, f"the tag {node.tag!r} has no meaning in a policy")
        return _scalar(node)

    def _items(self, node: yaml.MappingNode, path: tuple[Part, ...]) -> Iterator[tuple[str, Any]]:
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                self.mistakes.append(Mistake(line, "a key is text, not a list or a mapping"))
            elif (*path, key.value) in self.lines:
                first = self.lines[*path, key.value]
                self.mistakes.append(
                    Mistake(line, f"the key {key.value!r} is here twice; the first is in line {first}")
                )
            else:
                self.lines[*path, key.value] = line
                yield key.value, self._value(value, (*path, key.value))


def _outwards(path: tuple[Part, ...]) -> Iterator[tuple[Part, ...]]:
    for length in range(len(path), -1, -1):
        yield path[:length]


def _scalar(node: Any) -> Any:
    text = node.value
    if node.style is not None or node.tag.endswith(":str"):
        return text
    if text.lower() in _CONSTANTS:
        return _CONSTANTS[text.lower()]
    if not _NUMBER.fullmatch(text):
        return text
    return int(text) if "." not in text and len(text) < LONGEST_NUMBER else float(text)
