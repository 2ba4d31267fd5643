"""``asterism plugins``: the plug-ins of this machine, where each comes from, and what it may do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from asterism.base.plugins import Plugin, Registry
from asterism.base.text import clean
from asterism.cli.cli_context import Answer, fleet_options, refuse_server

if TYPE_CHECKING:
    from rich.text import Text


@dataclass(frozen=True, slots=True)
class PluginLine:
    """A plug-in as it is listed. ``secrets`` are the variables that it reads, ``starts_processes`` and
    ``uses_network`` what it declares. ``schema`` is the JSON Schema of its work. ``error`` says why it cannot be used,
    ``unavailable`` what this machine lacks."""

    name: str
    package: str
    version: str
    value: str
    place: str
    built_in: bool
    secrets: list[str] | None = None
    starts_processes: bool | None = None
    uses_network: bool | None = None
    schema: dict[str, Any] | None = None
    unavailable: str | None = None
    error: str | None = None


@click.command()
@fleet_options
def plugins(store: str | None, as_json: bool) -> int:
    """List the plug-ins of this machine, and what each may do.

    A plug-in is part of an installed package and adds a kind of action. To tell what each declares, this imports all of
    them."""
    refuse_server(store, "Plug-ins are those of a machine: use the command there, with --store sqlite:///file.db.")
    lines = list(_lines())
    return Answer([asdict(line) for line in lines], lambda width: _table(lines, width)).print(as_json)


def _lines() -> Iterator[PluginLine]:
    from asterism.execution.actions import ACTIONS

    for plugin in ACTIONS:
        yield _line(plugin, ACTIONS)


def _line(plugin: Plugin, registry: Registry[Any]) -> PluginLine:
    place = (plugin.package, plugin.version, plugin.value, plugin.place, plugin.built_in)
    if not registry.is_used(plugin):
        taken = "of this package" if plugin.name in registry.built_in else "of another package"
        return PluginLine(plugin.name, *place, error=f"not used: a plug-in {taken} has its name")
    try:
        return PluginLine(plugin.name, *place, **_action(registry.load(plugin.name)))
    except (Exception, SystemExit) as error:  # foreign code, which may raise anything
        return PluginLine(plugin.name, *place, error=str(error))


def _action(found: Any) -> dict[str, Any]:
    """What an action declares. Raises what is wrong with it."""
    from asterism.execution.plugin_actions import Action

    declared: dict[str, Any] = {
        "secrets": list(found.secrets),
        "starts_processes": bool(found.starts_processes),
        "uses_network": bool(found.uses_network),
    }
    if isinstance(found, type) and issubclass(found, Action):
        declared |= {"schema": found.schema(), "unavailable": found.unavailable()}
    return declared


def _table(lines: list[PluginLine], width: int | None) -> Iterable[Text]:
    from asterism.cli.tables import Cell, Column, table_of

    columns: dict[Column, Callable[[PluginLine], Cell]] = {
        Column("PLUG-IN", least=8, name=True): lambda line: line.name,
        Column("PACKAGE", least=10): lambda line: f"{line.package} {line.version}",
        Column("MAY", least=10): _may,
        Column("FROM", least=10, needed=False): lambda line: line.place,
        Column("NOT USABLE", least=12, needed=False): lambda line: clean(line.error or line.unavailable or ""),
    }
    return table_of(lines, columns, width)


def _may(line: PluginLine) -> str:
    words = ["start processes"] * bool(line.starts_processes) + ["use the network"] * bool(line.uses_network)
    words += [f"read {name}" for name in line.secrets or ()]
    return ", ".join(words)
