"""Keys of plan files and workflow files that are names of plug-ins: ``container: {…}`` is ``plugin: {container: {…}}``.

Plug-ins are looked up only for a key that is no other, so that most files need no look-up.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from asterism.base.yaml_lines import YamlMapping


def plugin_key(value: Mapping[Any, Any], known: Collection[str]) -> str | None:
    """The key that is the name of a plug-in; None if there is none, or several. ``known`` are the other keys."""
    unknown = [key for key in value if isinstance(key, str) and key not in known]
    if not unknown or "plugin" in value:
        return None
    from asterism.execution.actions import ACTIONS

    names = [key for key in unknown if ACTIONS.find(key) is not None]
    return names[0] if len(names) == 1 else None


def with_plugin(value: YamlMapping, known: Collection[str]) -> YamlMapping:
    """A task or workflow with the key ``plugin`` for the name of a plug-in. Every key keeps its line."""
    name = plugin_key(value, known)
    if name is None:
        return value
    whole, plugin = YamlMapping(value.line), YamlMapping(value.lines[name])
    for key, own in value.items():
        place = plugin if key == name else whole
        place[key], place.lines[key] = own, value.lines[key]
    whole["plugin"], whole.lines["plugin"] = plugin, plugin.line
    return whole
