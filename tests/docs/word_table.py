"""The options of all commands, for the table in ``docs/reference/words.md``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import click

from asterism.cli.main import commands


class UsedOption(NamedTuple):
    """An option of a command: its names, what its value is called (empty for a flag), and its help."""

    command: str
    names: str
    value: str
    help: str


def used_options() -> Iterator[UsedOption]:
    """Every option of every command."""
    return _options_of(commands, ())


def _options_of(command: click.Command, path: tuple[str, ...]) -> Iterator[UsedOption]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from _options_of(below, (*path, name))
        return
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            names = ", ".join([*parameter.opts, *parameter.secondary_opts])
            yield UsedOption(" ".join(path), names, _value_of(parameter), parameter.help or "")


def _value_of(option: click.Option) -> str:
    if option.is_flag:
        return ""
    if isinstance(option.type, click.Choice):
        return "one of several words"
    return option.metavar or option.type.name.upper()
