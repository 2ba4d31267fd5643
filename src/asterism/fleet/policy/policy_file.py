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
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from asterism.base.yaml_lines import Mistake, constant_or_text, line_of, parse_yaml, read_text
from asterism.core.errors import AsterismError, describe_value
from asterism.fleet.policy.device_policy import PERMISSIONS, Rules
from asterism.fleet.policy.rule_patterns import HostRule

LARGEST = 1 << 20
"""How large the file may be, in bytes."""

_DEEPEST = 4
_NUMBER = re.compile(r"[-+]?(?:0[0-7]*|[1-9][0-9]*|[0-9]+\.[0-9]+)")
_LONGEST_INTEGER = 20

_VARIABLE = re.compile(r"[A-Za-z_*?][A-Za-z0-9_*?]*")
_FUNCTION = re.compile(r"[A-Za-z_*?][\w.*?]*:[A-Za-z_*?][\w.*?]*", re.ASCII)


_PLUGIN = re.compile(r"[a-z*?][a-z0-9_*?-]*")


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
        keys = ", ".join(_File.model_fields)
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


def _rules(data: Any, mistakes: list[Mistake]) -> Rules:
    try:
        model = _File.model_validate(data)
    except ValidationError as error:
        for problem in error.errors(include_url=False):
            mistakes.append(Mistake(line_of(data, problem["loc"]), _sentence(problem)))
        return Rules()
    values: dict[str, Any] = {}
    for key in model.model_fields_set:
        value = getattr(model, key)
        values[key] = tuple(value) if isinstance(value, list) else value
    return Rules(**values)


# -- the model ---------------------------------------------------------------------------------------------------------


def _command(text: str) -> str:
    if "/" in text:
        return _path(text)
    if not text or text in (".", "..", "~"):
        raise ValueError("must be a name or an absolute path")
    return text


def _path(text: str) -> str:
    if not text.startswith(("/", "~/")):
        raise ValueError("must be an absolute path")
    if ".." in text.split("/"):
        raise ValueError("must be a path without ..")
    return text


def _directory(text: str) -> str:
    return text if text == "~" else _path(text)


def _host(text: str) -> str:
    HostRule.parse(text)
    return text


def _function(text: str) -> str:
    if not _FUNCTION.fullmatch(text):
        raise ValueError("must be package.module:function, with * for any part")
    return text


def _variable(text: str) -> str:
    if not _VARIABLE.fullmatch(text):
        raise ValueError("must be the name of a variable, with * for any part")
    return text


def _workflow(text: str) -> str:
    if not text:
        raise ValueError("must be the name of a workflow, with * for any part")
    return text


def _plugin(text: str) -> str:
    if not _PLUGIN.fullmatch(text):
        raise ValueError("must be the name of a plug-in, with * for any part")
    return text


def _permission(text: str) -> str:
    if text not in PERMISSIONS:
        raise ValueError(f"must be one of {', '.join(PERMISSIONS)}")
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
    workflows: list[
        Annotated[str, AfterValidator(_workflow)]
    ] = []  # all workflows if it is left out; an empty list allows none
    permissions: list[Annotated[str, AfterValidator(_permission)]] = []
    plugins: list[Annotated[str, AfterValidator(_plugin)]] = []


# -- messages ----------------------------------------------------------------------------------------------------------

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
        return f"{written} {problem['ctx']['error']}, not {describe_value(value)}"
    wanted = _WANTED.get(kind)
    return f"{written} must be {wanted}, not {describe_value(value)}" if wanted else f"{written}: {problem['msg']}"
