"""Patterns of files: ``*``, ``?`` and ``[…]`` match as in a shell, ``**`` any folders.

Hidden files match only where a pattern names them. Links to folders are followed only there, too, so that a search ends
in every tree.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase


def matching_paths(pattern: str, folder: str, check: Callable[[], None]) -> Iterator[str]:
    """The files and folders that match a pattern, by name, relative to ``folder``. ``check`` is called for each entry
    that is looked at, and may raise."""
    return _matches("", pattern.split("/"), folder, check)


def _matches(place: str, parts: Sequence[str], folder: str, check: Callable[[], None]) -> Iterator[str]:
    """The paths below ``place`` that match the parts of a pattern, in order."""
    check()
    if not parts:
        yield place
        return
    first, rest = parts[0], parts[1:]
    if not glob.has_magic(first):
        named = f"{place}{first}" if not place or place.endswith("/") else f"{place}/{first}"
        path = named or "/"  # an absolute pattern begins with an empty part
        if os.path.lexists(os.path.join(folder, path)):
            yield from _matches(path, rest, folder, check)
        return
    if first == "**":
        yield from _matches(place, rest, folder, check)
    for entry in _entries(os.path.join(folder, place)):
        check()
        if first == "**" and entry.is_dir(follow_symlinks=False):
            yield from _matches(os.path.join(place, entry.name), parts, folder, check)
        elif first == "**" and not rest and not entry.is_dir():
            yield os.path.join(place, entry.name)
        elif first != "**" and fnmatchcase(entry.name, first):
            yield from _matches(os.path.join(place, entry.name), rest, folder, check)


def _entries(path: str) -> list[os.DirEntry[str]]:
    """The entries of a folder by name, without hidden ones; nothing for what is no folder or cannot be read."""
    try:
        with os.scandir(path or ".") as entries:
            return sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda entry: entry.name)
    except OSError:
        return []
