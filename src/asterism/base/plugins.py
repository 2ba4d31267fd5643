"""Plug-ins: what other packages add to this one by name, through entry points.

A ``Registry`` holds those of one group, such as the kinds of actions (``asterism.actions``). What this package has
itself is in the same registry, so that it comes through the same door; no package replaces it.

Installed packages are searched only for a name that is not built in, and a plug-in is imported when it is first used.
One that cannot be imported is an error for its users alone.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib import import_module
from typing import Any, Generic, TypeVar, cast

from asterism.base.startup import VERSION
from asterism.core.errors import AsterismError, suggestion
from asterism.core.record import Record

Kind = TypeVar("Kind")


class PluginProblem(AsterismError):
    """A plug-in that is not installed, that two packages offer, or that cannot be imported."""


class Plugin(Record):
    """A plug-in: ``value`` is its import path, ``package`` the distribution that has it, ``place`` its folder."""

    group: str
    name: str
    value: str
    package: str
    version: str
    place: str
    built_in: bool = False

    def load(self) -> Any:
        """Import it. Raises PluginProblem, whatever the import raises."""
        module, _, names = self.value.partition(":")
        try:
            found: Any = import_module(module.strip())
            for name in names.split("[")[0].strip().split("."):
                found = getattr(found, name)
        except (Exception, SystemExit) as error:  # importing runs foreign code, which may raise anything
            if self.built_in:
                raise
            what = f"the plug-in {self.name!r} of {self.package} {self.version} cannot be imported"
            raise PluginProblem(f"{what}: {type(error).__name__}: {error}") from error
        return found


class Registry(Generic[Kind]):
    """The plug-ins of one kind. ``built_in`` are the import paths of those that this package has, by name."""

    def __init__(self, group: str, built_in: Mapping[str, str]) -> None:
        self.group = group
        self.built_in = {
            name: Plugin(group, name, value, "asterism", VERSION, "", built_in=True) for name, value in built_in.items()
        }
        self._loaded: dict[Plugin, Kind] = {}

    def find(self, name: str) -> Plugin | None:
        """The plug-in of a name; None if there is none. Raises PluginProblem if two packages offer it."""
        known = self.built_in.get(name)
        if known is not None:
            return known
        offers = [plugin for plugin in _installed(self.group, tuple(sys.path)) if plugin.name == name]
        if len(offers) > 1:
            packages = " and ".join(sorted(plugin.package for plugin in offers))
            raise PluginProblem(f"{packages} both have a plug-in {name!r} ({self.group}): uninstall one of them")
        return offers[0] if offers else None

    def load(self, name: str) -> Kind:
        """The object of a plug-in. Raises PluginProblem."""
        plugin = self.find(name)
        if plugin is None:
            known = [*self.built_in, *(plugin.name for plugin in _installed(self.group, tuple(sys.path)))]
            raise PluginProblem(f"the plug-in {name!r} is not installed here{suggestion(name, known)}")
        if plugin not in self._loaded:
            self._loaded[plugin] = cast("Kind", plugin.load())
        return self._loaded[plugin]

    def __iter__(self) -> Iterator[Plugin]:
        """All plug-ins, those of this package first. Nothing is imported."""
        yield from self.built_in.values()
        yield from _installed(self.group, tuple(sys.path))

    def is_used(self, plugin: Plugin) -> bool:
        """Whether its name stands for this plug-in, and for no other."""
        try:
            return self.find(plugin.name) == plugin
        except PluginProblem:
            return False


@lru_cache(maxsize=64)
def _installed(group: str, path: tuple[str, ...]) -> tuple[Plugin, ...]:
    """The entry points of a group on a path of modules: to search the path takes some hundredths of a second."""
    from importlib.metadata import distributions

    found: dict[tuple[str, str], Plugin] = {}
    for distribution in distributions(path=list(path)):
        for entry in distribution.entry_points:
            if entry.group == group:
                package = distribution.metadata["Name"]
                place = str(distribution.locate_file(""))
                plugin = Plugin(group, entry.name, entry.value, package, distribution.version, place)
                found.setdefault((package, entry.name), plugin)  # the first on the path is the one that is imported
    return tuple(sorted(found.values(), key=lambda plugin: (plugin.name, plugin.package)))
