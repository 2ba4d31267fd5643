"""Parameters of a plan file: their declarations, and the values that they are given.

A value comes from the caller (``--set NAME=VALUE``, or a program), else from a file of values (``--params FILE``), else
from the environment variable ``ASTERISM_PARAM_<name>``, else it is the default. Texts from a command line or the
environment are converted to the type of the parameter; values from a file or a program must have it.

Values are stored with the plan and shown with it, so a parameter is no place for a secret: use ``{secret: NAME}``.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from asterism.base.yaml_lines import Mistake, YamlMapping, line_of, parse_yaml, plain_value, read_text
from asterism.core.errors import NotJson, describe_value, suggestion
from asterism.core.json_values import JsonObject, plain_json
from asterism.core.record import UNSET, InvalidRecord, Record, decode, field, replace
from asterism.execution.task_inputs import is_reserved
from asterism.planfile import models

VARIABLE_PREFIX = "ASTERISM_PARAM_"

TYPES = {
    "text": (str, "text"),
    "integer": (int, "a whole number"),
    "number": (int | float, "a number"),
    "boolean": (bool, "true or false"),
    "list": (list, "a list, such as [one, two]"),
    "mapping": (Mapping, "a mapping, such as {name: value}"),
}
"""The types of parameters: the type of their values, and how messages name it."""

_STAND_INS: dict[str, Any] = {"integer": 0, "number": 0, "boolean": False, "list": [], "mapping": {}}


class GivenParameters(Record):
    """The values that a caller gives. ``values`` have their types, ``texts`` are converted; ``file`` is the path of a
    file of values. With ``required=False`` a parameter without a value gets a stand-in: the plan can be checked and
    drawn, but must not run."""

    values: Mapping[str, Any] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    file: str | None = None
    required: bool = True


class Declaration(Record):
    """A parameter, and where it is declared."""

    name: str
    type: str
    description: str
    choices: Sequence[Any] | None
    default: Any
    required: bool
    file: str
    line: int

    def mistake(self, text: str) -> Mistake:
        return Mistake(self.line, f"parameter {self.name!r}: {text}", file=self.file)

    @property
    def stand_in(self) -> Any:
        return self.choices[0] if self.choices else _STAND_INS.get(self.type, self.name)

    def problem(self, value: Any) -> str | None:
        """What is wrong with a value; None if the parameter may have it."""
        kind, words = TYPES[self.type]
        if not isinstance(value, kind) or (isinstance(value, bool) and self.type != "boolean"):
            quotes = self.type == "text" and isinstance(value, bool | int | float)
            hint = f'; write it in quotes: "{describe_value(value)}"' if quotes else ""
            return f"must be {words}, not {describe_value(value)}{hint}"
        if self.choices is not None and value not in self.choices:
            return f"must be one of {', '.join(map(describe_value, self.choices))}, not {describe_value(value)}"
        return None


# -- declarations ------------------------------------------------------------------------------------------------------


def declarations(head: models.Head, data: YamlMapping, file: str, mistakes: list[Mistake]) -> dict[str, Declaration]:
    """The parameters that a file declares."""
    declared = {}
    for name, parameter in (head.params or {}).items():
        line = line_of(data, ("params", name))
        if is_reserved(name):
            word = name.isascii() and name.isidentifier()
            why = "has a meaning to shells and programs" if word else "may contain only letters, digits and _"
            mistakes.append(Mistake(line, f"parameter {name!r}: the name {why}; choose another one", file=file))
            continue
        declaration = _declaration(name, parameter, file, line)
        declared[name] = declaration
        of_type = replace(declaration, choices=None)
        problems = [] if declaration.required else [("the default", declaration.problem(declaration.default))]
        problems += [("a choice", of_type.problem(choice)) for choice in declaration.choices or ()]
        mistakes += [declaration.mistake(f"{what} {problem}") for what, problem in problems if problem is not None]
    return declared


def declared_parameters(text: str) -> list[Declaration]:
    """The parameters in the text of a plan file, whatever else is wrong with it; none if they are not valid."""
    data, _ = parse_yaml(text)
    if not isinstance(data, YamlMapping):
        return []
    try:
        head = decode(models.Head, {"asterism": 1, "params": data.get("params")})
    except InvalidRecord:
        return []
    return list(declarations(head, data, "", []).values())


def _declaration(name: str, parameter: Any, file: str, line: int) -> Declaration:
    if not isinstance(parameter, models.Parameter):
        parameter = models.Parameter(default=parameter)
    required = parameter.default is UNSET
    default = None if required else parameter.default
    kind = parameter.type or ("text" if required else _type_of(default))
    return Declaration(name, kind, parameter.description, parameter.choices, default, required, file, line)


def _type_of(value: Any) -> str:
    kinds = ("boolean", "integer", "number", "list", "mapping")  # for Python a boolean is an integer
    return next((kind for kind in kinds if isinstance(value, TYPES[kind][0])), "text")


# -- values ------------------------------------------------------------------------------------------------------------


def resolve(
    declared: Mapping[str, Declaration],
    parameters: GivenParameters,
    line: int,
    mistakes: list[Mistake],
    *,
    named: Collection[str] = (),
) -> JsonObject:
    """The value of each parameter, as JSON. ``line`` is that of ``params`` in the plan file. ``named`` are all names
    in it: a value of a parameter whose declaration has a mistake is not one more mistake."""
    from_file, file_lines = _values_in_file(parameters.file, mistakes)
    for name in [*parameters.texts, *parameters.values]:
        if name not in declared and name not in named:
            mistakes.append(Mistake(line, unknown_parameter(name, declared)))
    for name in from_file:
        if name not in declared and name not in named:
            mistakes.append(Mistake(file_lines[name], unknown_parameter(name, declared), file=parameters.file or ""))
    values = {}
    for name, declaration in declared.items():
        value, source = _value(declaration, parameters, from_file)
        problem = declaration.problem(value) if source else None
        if problem is not None and source == parameters.file:
            mistakes.append(Mistake(file_lines[name], f"parameter {name!r}: {problem}", file=source))
        elif problem is not None:
            mistakes.append(declaration.mistake(f"{problem} (given by {source})"))
        if problem is not None or (not source and declaration.required):
            value = declaration.stand_in
        if not source and declaration.required and parameters.required:
            mistakes.append(declaration.mistake(f"a value is required; give one with --set {name}=VALUE"))
        try:
            values[name] = plain_json(value, f"parameter {name!r}")
        except NotJson as error:
            mistakes.append(declaration.mistake(str(error)))
    return values


def unknown_parameter(name: str, declared: Mapping[str, Any]) -> str:
    known = f"; the parameters are {', '.join(declared)}" if declared else "; the plan has no parameters"
    return f"there is no parameter {name!r}{suggestion(name, list(declared)) or known}"


def _value(declaration: Declaration, parameters: GivenParameters, from_file: Mapping[str, Any]) -> tuple[Any, str]:
    """The value of a parameter, and where it comes from; no origin for the default."""
    name = declaration.name
    if name in parameters.texts:
        return _converted(parameters.texts[name], declaration.type), f"--set {name}={parameters.texts[name]}"
    if name in parameters.values:
        return parameters.values[name], "the caller"
    if name in from_file:
        return from_file[name], str(parameters.file)
    variable = VARIABLE_PREFIX + name
    if variable in os.environ:
        return _converted(os.environ[variable], declaration.type), f"the environment variable {variable}"
    return declaration.default, ""


def _converted(text: str, kind: str) -> Any:
    """A text as a value of a type. Text that has another form is returned as it is, and refused later."""
    if kind == "text":
        return text
    if kind in ("list", "mapping"):
        data, mistakes = parse_yaml(text)
        return text if mistakes or not isinstance(data, list | dict) else data
    return plain_value(text.strip())


def _values_in_file(path: str | None, mistakes: list[Mistake]) -> tuple[JsonObject, dict[str, int]]:
    """The values in a file, and their lines."""
    if path is None:
        return {}, {}
    try:
        text, file_mistakes = read_text(path)
        data, more = (None, []) if file_mistakes else parse_yaml(text)
    except OSError as error:
        mistakes.append(Mistake(1, f"the file of parameters cannot be read: {error.strerror}", file=path))
        return {}, {}
    file_mistakes = [*file_mistakes, *more]
    if not file_mistakes and data is not None and not isinstance(data, YamlMapping):
        file_mistakes = [Mistake(1, "a file of parameters must be a mapping of names to values")]
    mistakes.extend(Mistake(mistake.line, mistake.text, mistake.warning, path) for mistake in file_mistakes)
    return (dict(data), data.lines) if isinstance(data, YamlMapping) else ({}, {})
