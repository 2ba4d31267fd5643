"""Types of options: durations, sizes, pairs, words, capabilities, JSON, writable files and secrets.

Each function is the ``type`` or the ``callback`` of an option, and raises BadParameter with examples of valid values.
Those named ``*_option`` make options of such types.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click

from asterism.base.durations import InvalidDuration, parse_duration
from asterism.core.json_values import JsonObject
from asterism.core.record import Meta, Record, fields_of
from asterism.core.schedule.schedule import interval_text

if TYPE_CHECKING:
    from asterism.core.plan.edit_rules import ApprovalRule, EditScope

Function = TypeVar("Function", bound=Callable[..., Any])
Source = TypeVar("Source")
Rule = TypeVar("Rule")

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)([kmg])?(?:i?b)?", re.ASCII | re.IGNORECASE)
_BYTES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def duration(text: str) -> float:
    """``90``, ``90s``, ``15m``, ``36h``, ``30d`` in seconds."""
    try:
        return parse_duration(text.strip())
    except InvalidDuration as error:
        raise click.BadParameter(f"{error}.") from None


def tick_text(text: str) -> str:
    """A day or a time: ``2026-11-17``, ``2026-11-17T03:00+01:00``."""
    from asterism.core.schedule.tick_values import InvalidTick, tick_on_request

    try:
        tick_on_request(text)
    except InvalidTick as error:
        raise click.BadParameter(f"{error}.") from None
    return text


def limit_use(text: str) -> tuple[str, int]:
    """``warehouse``, or ``warehouse=2``."""
    name, equals, number = text.partition("=")
    if not name or (equals and not (number.isascii() and number.isdigit())):
        raise click.BadParameter(f"{text!r} is not a valid use of a limit (examples: warehouse, warehouse=2).")
    return name, int(number) if equals else 1


def positive_duration(text: str) -> float:
    """A ``duration`` above zero."""
    seconds = duration(text)
    if seconds <= 0:
        raise click.BadParameter("the duration must be above zero.")
    return seconds


def approval_rule(text: str) -> ApprovalRule:
    """``all``, ``destructive``, or ``edits=remove_task tasks=deploy-*``."""
    from asterism.core.plan.edit_rules import ApprovalRule

    return _edit_rule(ApprovalRule.parse, text)


def edit_scope(text: str) -> EditScope:
    """``any``, or ``edits=add_task,cancel_task tasks=fix-* executors=argv adds=3``."""
    from asterism.core.plan.edit_rules import EditScope

    return _edit_rule(EditScope.parse, text)


def edit_filter(context: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> Any:
    """Which ends an editor reviews: ``all``, ``failure``, or a function of the task; None if nothing is given."""
    if texts in ((), ("all",), ("failure",)):
        return texts[0] if texts else None
    from asterism.models.edit_filter import EditFilter

    return _edit_rule(EditFilter.parse_all, texts)


def _edit_rule(parse: Callable[[Source], Rule], source: Source) -> Rule:
    from asterism.core.errors import PlanError

    try:
        return parse(source)
    except PlanError as error:
        raise click.BadParameter(f"{error}.") from None


def writable_file(context: click.Context, option: click.Parameter, file: Any) -> Any:
    """A file that the command writes at its end, checked before the work begins. ``-`` is standard output."""
    if file is None or str(file) == "-":
        return file
    path = Path(file)
    try:
        there, folder_there = path.exists(), path.parent.is_dir()
        if path.is_dir():
            problem = "it is a directory"
        elif not folder_there:
            problem = f"there is no directory {str(path.parent)!r}; create it first"
        elif not os.access(path if there else path.parent, os.W_OK):
            problem = "permission denied" if there else f"no permission to write in the directory {str(path.parent)!r}"
        else:
            return file
    except (OSError, ValueError) as error:  # a name that is too long, or has a NUL in it
        problem = getattr(error, "strerror", None) or str(error)
    raise click.BadParameter(f"{str(file)!r} cannot be written: {problem}.")


def size(text: str) -> int:
    """``65536``, ``64k``, ``10M`` in bytes."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise click.BadParameter(f"{text!r} is not a valid size (examples: 65536, 64k, 10M, 1G).")
    return int(float(match[1]) * _BYTES[(match[2] or "").lower()])


def pair(text: str) -> tuple[str, str]:
    """``NAME=VALUE``."""
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE.")
    return name, value


def words(text: str) -> list[str]:
    """The words of a command line, split as a shell does."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise click.BadParameter(f"the command line cannot be split into words: {error}") from None


def capabilities(context: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    """``--can gpu,ffmpeg`` means ``--can gpu --can ffmpeg``, so a capability contains no comma."""
    words = [word.strip() for text in texts for word in text.split(",")]
    if "" in words:
        shown = next(text for text in texts if "" in map(str.strip, text.split(",")))
        raise click.BadParameter(
            f"{shown!r} contains an empty capability (examples: gpu and gpu,ffmpeg; a comma separates names)."
        )
    return tuple(dict.fromkeys(words))


def json_value(text: str) -> Any:
    """JSON text, or the JSON in a file (``@file``) or on standard input (``-``)."""
    try:
        return _read_json(text)
    except ValueError as error:
        raise click.BadParameter(f"{_source(text)} cannot be used: {error}.") from None
    except OSError as error:
        raise click.BadParameter(f"{text[1:]} cannot be read: {error.strerror}.") from None


def json_object(text: str) -> JsonObject:
    """``json_value``, restricted to objects."""
    document = json_value(text)
    if not isinstance(document, dict):
        kind = {list: "a list", str: "a text", type(None): "null"}.get(type(document), "a bare value")
        raise click.BadParameter(f'{_source(text)} is {kind}, not a JSON object (example: {{"n": 1}}).')
    return document


def _read_json(text: str) -> Any:
    if text == "-":
        content = sys.stdin.buffer.read()
    elif text.startswith("@"):
        content = Path(text[1:]).expanduser().read_bytes()
    else:
        content = text.encode(errors="surrogateescape")
    try:
        return json.loads(content.decode("utf-8-sig"), parse_constant=_refuse_constant)
    except UnicodeDecodeError:
        raise ValueError("it is not text in UTF-8") from None
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON: {error.msg}, line {error.lineno}, column {error.colno}") from None


def _refuse_constant(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


def _source(text: str) -> str:
    if text == "-":
        return "standard input"
    return text[1:] if text.startswith("@") else "the value"


def named_values(context: click.Context, option: click.Parameter, words: tuple[str, ...]) -> dict[str, str]:
    """The values of a repeatable ``NAME=VALUE`` by name; the last one counts."""
    values = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{word!r} is not NAME=VALUE (example: --set day=2026-11-16).")
        values[name] = value
    return values


# -- options -----------------------------------------------------------------------------------------------------------


def option(words: str, help: str, *, to: str | None = None, **more: Any) -> Callable[[Function], Function]:
    """An option as the help shows it: ``--name TEXT`` takes a value, ``--newest`` is a flag. ``to`` is its parameter if
    that is not called so; ``more`` is as for click, and a default is shown unless it is empty."""
    names = [word for word in words.split() if word.startswith("-")]
    value = " ".join(words.split()[len(names) :])
    if value:
        more["metavar"] = value
    elif not more.keys() & {"type", "default"}:
        more["is_flag"] = True
    more.setdefault("show_default", bool(more.get("default")))
    return click.option(*names, *([] if to is None else [to]), help=help, **more)


def duration_option(
    names: str, default: str | None = None, *, help: str, positive: bool = False
) -> Callable[[Function], Function]:
    """An option that is a duration. ``names`` is ``--name``, or ``--name parameter``."""
    kind = positive_duration if positive else duration
    return click.option(*names.split(), type=kind, default=default, show_default=True, metavar="DURATION", help=help)


def size_option(
    name: str, default: str | None = None, *, help: str, shown: str | None = None
) -> Callable[[Function], Function]:
    """An option that is a size in bytes. ``shown`` is its default in the help."""
    return click.option(name, type=size, default=default, show_default=shown or True, metavar="SIZE", help=help)


def number_option(
    name: str, default: int | None = None, *, least: int | None = None, most: int | None = None, help: str
) -> Callable[[Function], Function]:
    """An option that is a whole number."""
    kind = click.IntRange(least, most) if least is not None else click.INT
    return click.option(name, type=kind, default=default, show_default=True, metavar="N", help=help)


def choice_option(words: str, help: str, choices: Iterable[str], **more: Any) -> Callable[[Function], Function]:
    """An option that is one of several words."""
    return option(words, help, type=click.Choice(tuple(choices)), **more)


def capability_option(name: str, help: str) -> Callable[[Function], Function]:
    """An option that has capabilities: repeatable, and with commas."""
    return click.option(name, multiple=True, callback=capabilities, metavar="WORD", help=help)


def pair_option(names: str, help: str) -> Callable[[Function], Function]:
    """A repeatable option that is NAME=VALUE. ``names`` is ``--name``, or ``--name parameter``."""
    return click.option(*names.split(), type=pair, multiple=True, metavar="NAME=VALUE", help=help)


def object_option(help: str) -> Callable[[Function], Function]:
    """The option ``--input``: a JSON object."""
    return click.option("--input", "run_input", type=json_object, metavar="JSON|@FILE|-", help=help)


def record_options(kind: type[Record], notes: Mapping[str, str]) -> Callable[[Function], Function]:
    """An option for each field of a record, with its default and its description: durations and words. ``notes`` are
    the conditions under which some of them have an effect."""

    def decorate(function: Function) -> Function:
        for field in reversed(fields_of(kind)):
            metas, note = list(_metas(field.type)), notes.get(field.name)
            text = next(meta.description for meta in metas if meta.description)
            help = text if note is None else f"{note}: {text[0].lower()}{text[1:]}"
            flag, default = f"--{field.name.replace('_', '-')}", field.default
            if isinstance(default, str):
                add = option(
                    flag, help, type=click.Choice(get_args(field.type.__origin__)), default=default, show_default=False
                )
            else:
                shown = None if default is None else interval_text(int(default))
                add = duration_option(flag, shown, help=help, positive=any(meta.gt is not None for meta in metas))
            function = add(function)
        return function

    return decorate


def _metas(kind: Any) -> Iterator[Meta]:
    """The descriptions and limits in a type."""
    yield from getattr(kind, "__metadata__", ())
    for part in get_args(kind):
        yield from _metas(part)


parameter_option = click.option(
    "--set",
    "settings",
    multiple=True,
    callback=named_values,
    metavar="NAME=VALUE",
    help="The value of a parameter of the plan file; repeatable.",
)


# -- secrets of webhooks, from the environment of a server or from files -----------------------------------------------


MIN_SECRET = 16
"""Characters of a webhook's secret."""


def taken_from_environment(variable: str) -> str:
    """The value of a variable, which is removed: commands that this process starts would inherit it. Its text is
    overwritten as well, or they would read it in /proc/PID/environ, which is the memory that the process began with."""
    import ctypes

    value = os.environ.get(variable, "")
    if value and os.name == "posix":
        getenv = ctypes.CDLL(None).getenv
        getenv.restype = ctypes.c_void_p
        place = getenv(os.fsencode(variable))
        if place:
            ctypes.memset(place, 0, len(os.fsencode(value)))
    os.environ.pop(variable, None)
    return value


def webhook_secret(text: str, advice: str) -> bytes:
    """The secret in a text. Raises UsageError with ``advice`` if it is too short."""
    secret = text.strip().encode()
    if len(secret) < MIN_SECRET:
        raise click.UsageError(advice)
    return secret
