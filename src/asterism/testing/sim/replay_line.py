"""The line that replays a world: a command for a shell, with everything that made the world what it was.

The worlds of this package have names (``WORLDS``); any other is named by where it is to be had, ``module:Class``. What
else a world was given is written as JSON.
"""

from __future__ import annotations

import importlib
import json
import shlex
from collections.abc import Mapping, Set
from typing import Any

COMMAND = "python -m asterism.testing.sim"

_HERE = "asterism.testing.sim."
WORLDS: Mapping[str, str] = {
    "fleet": f"{_HERE}world:World",
    "batteries": f"{_HERE}batteries:BatteryWorld",
    "wall-clocks": f"{_HERE}wall_clocks:WallClockWorld",
    "plans": f"{_HERE}plans:PlanWorld",
    "peers": f"{_HERE}peers:PeerWorld",
    "forgetful-peers": f"{_HERE}peer_worlds:ForgetfulWorld",
    "jumping-peers": f"{_HERE}peer_worlds:JumpingWorld",
    "put-back-peers": f"{_HERE}peer_worlds:PutBackWorld",
}


def replay_line(seed: int, world: type[Any], terms: Mapping[str, Any]) -> str:
    """The command. What cannot be written into it, such as a function, is named in a comment behind it."""
    words = ["--seed", str(seed)]
    place = f"{world.__module__}:{world.__qualname__}"
    name = next((name for name, known in WORLDS.items() if known == place), place)
    if name != "fleet":
        words += ["--world", name]
    written = {name: text for name, value in terms.items() if (text := _written(value)) is not None}
    if written:
        words += ["--terms", "{" + ", ".join(f"{json.dumps(name)}: {text}" for name, text in written.items()) + "}"]
    left = [name for name in terms if name not in written]
    comment = f"  # without {', '.join(left)}, which only a program can give" if left else ""
    return f"{COMMAND} {shlex.join(words)}{comment}"


def world_named(name: str) -> type[Any]:
    """Raises ValueError if there is no such world."""
    module, _, attribute = WORLDS.get(name, name).partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        known = ", ".join(WORLDS)
        raise ValueError(f"there is no world {name!r} ({error}); there are {known}, and module:Class") from error
    if not isinstance(found, type):
        raise ValueError(f"{name!r} is no class of worlds")
    return found


def _written(value: Any) -> str | None:
    """A value as JSON; None for one that cannot be."""
    try:
        return json.dumps(value, default=_list)
    except TypeError:
        return None


def _list(value: Any) -> Any:
    if isinstance(value, Set):
        return sorted(value)
    raise TypeError(value)
