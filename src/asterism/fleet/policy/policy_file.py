"""The file of a device policy, in YAML: its keys, its reader, and every mistake in it with its line.

::

    commands: [ffmpeg, /opt/tools/*]     # names on the device's PATH, absolute paths, patterns
    shell: false
    callables: ["media.jobs:*"]
    hosts: [api.example.org, "10.0.0.0/8:8080"]
    directories: [/srv/media, ~/work]
    environment: [MEDIA_*]               # variables that commands get, and that may be set
    secrets: [API_TOKEN]                 # variables that work may read as secrets; their values are always masked
    workflows: ["media-*"]               # all, if left out
    permissions: [read, edit]            # what an agent on the device may ask for
    plugins: [container]                 # plug-ins whose work the device does

A key that is left out allows nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from asterism.base.yaml_lines import Mistake, constant_or_text, line_of, parse_yaml, read_text
from asterism.core.errors import AsterismError, describe_value
from asterism.fleet.policy.device_policy import PERMISSIONS, Rules
from asterism.fleet.policy.rule_patterns import HostRule

LARGEST = 1 << 20
"""How large the file may be, in bytes."""

_DEEPEST = 4
_NUMBER = re.compile(r"[-+]?(?:0[0-7]*|[1-9][0-9]*|[0-9]+\.[0-9]+)")
_LONGEST_INTEGER = 20


class InvalidDevicePolicy(AsterismError):
    """The file of a device policy has mistakes; ``mistakes`` are all of them, in the order of their lines."""

    def __init__(self, name: str, mistakes: Sequence[Mistake]) -> None:
        self.name, self.mistakes = name, tuple(sorted(mistakes))
        super().__init__("\n".join(mistake.format(name) for mistake in self.mistakes))


def read(path: Path) -> Rules:
    """Read a device policy. Raises InvalidDevicePolicy with every mistake, and OSError if the file cannot be read."""
    text, mistakes = read_text(path, max_bytes=LARGEST)
    if mistakes:
        raise InvalidDevicePolicy(str(path), mistakes)
    return parse(text, str(path))


def parse(text: str, name: str = "policy") -> Rules:
    """Read a device policy from a text; ``name`` names it in messages."""
    data, mistakes = parse_yaml(text, max_depth=_DEEPEST, plain=_plain_value, any_standard_tag=True)
    rules = Rules()
    if isinstance(data, dict):
        rules = _rules(data, mistakes)
    elif not mistakes:
        keys = ", ".join(_KEYS)
        problem = (
            f"a device policy must be a mapping with some of the keys {keys}; to allow nothing, write shell: false"
        )
        mistakes.append(Mistake(1, problem))
    if mistakes:
        raise InvalidDevicePolicy(name, mistakes)
    return rules


def _plain_value(text: str) -> Any:
    """The value of a scalar without quotes. ``~`` is text, the home directory, and ``007`` is a number: no key of a
    device policy takes numbers, so it is refused."""
    if _NUMBER.fullmatch(text):
        return int(text) if "." not in text and len(text) < _LONGEST_INTEGER else float(text)
    return text if text == "~" else constant_or_text(text)


def _rules(data: Mapping[str, Any], mistakes: list[Mistake]) -> Rules:
    for key, value in data.items():
        mistakes += [Mistake(line_of(data, place), text) for place, text in _problems(key, value)]
    if mistakes:
        return Rules()
    values: Any = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
    return Rules(**values)


def _problems(key: str, value: Any) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """What is wrong with the value of a key, and where."""
    if key not in _KEYS:
        near = get_close_matches(key, _KEYS, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"the keys are {', '.join(_KEYS)}"
        yield (key,), f"there is no key {key!r}; {hint}"
    elif key == "shell":
        if not isinstance(value, bool):
            yield (key,), f"shell must be true or false, not {describe_value(value)}"
    elif not isinstance(value, list):
        yield (key,), f"{key} must be a list, such as [one, two], not {describe_value(value)}"
    else:
        for index, item in enumerate(value):
            why = _CHECKS[key](item) if isinstance(item, str) else "must be text"
            if why is not None:
                yield (key, index), f"{key}[{index}] {why}, not {describe_value(item)}"


# -- the checks of one item: what it must be, or None ------------------------------------------------------------------

Check = Callable[[str], str | None]


def _command(text: str) -> str | None:
    if "/" in text:
        return _path(text)
    return "must be a name or an absolute path" if text in ("", ".", "..", "~") else None


def _path(text: str) -> str | None:
    if not text.startswith(("/", "~/")):
        return "must be an absolute path"
    return "must be a path without .." if ".." in text.split("/") else None


def _directory(text: str) -> str | None:
    return None if text == "~" else _path(text)


def _host(text: str) -> str | None:
    try:
        HostRule.parse(text)
    except ValueError as error:
        return str(error)
    return None


def _permission(text: str) -> str | None:
    return None if text in PERMISSIONS else f"must be one of {', '.join(PERMISSIONS)}"


def _fits(pattern: str, what: str) -> Check:
    form = re.compile(pattern, re.ASCII)
    return lambda text: None if form.fullmatch(text) else f"must be {what}, with * for any part"


_variable = _fits(r"[A-Za-z_*?][A-Za-z0-9_*?]*", "the name of a variable")
_CHECKS: dict[str, Check] = {
    "commands": _command,
    "callables": _fits(r"[A-Za-z_*?][\w.*?]*:[A-Za-z_*?][\w.*?]*", "package.module:function"),
    "hosts": _host,
    "directories": _directory,
    "environment": _variable,
    "secrets": _variable,
    "workflows": _fits(r"(?s:.+)", "the name of a workflow"),
    "permissions": _permission,
    "plugins": _fits(r"[a-z*?][a-z0-9_*?-]*", "the name of a plug-in"),
}
_KEYS = ("commands", "shell", *[key for key in _CHECKS if key != "commands"])
