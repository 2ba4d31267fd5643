"""Patterns of files: ``*``, ``?`` and ``[…]`` match as in a shell, ``**`` any folders.

``**`` does not follow links, so that a search ends in every tree. Links that another part of a pattern matches are
followed.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterator
from fnmatch import fnmatch


def matching_paths(
    pattern: str,
    folder: str,
    check: Callable[[], None],
    *,
    hidden: bool = False,
    unreadable: Callable[[str, OSError], None] = lambda path, error: None,
) -> Iterator[str]:
    """The files and folders that match a pattern, each once, relative to ``folder``. Each folder is read once.

    ``check`` is called for each path that is looked at, and may raise, to stop a search or to bound it. Without
    ``hidden``, hidden files match only where the pattern has their names. ``unreadable`` is called with each folder
    that exists and cannot be read, and may raise."""
    start, *parts = ["/" if pattern.startswith("/") else "", *(part for part in pattern.split("/")[:-1] if part)]
    parts.append(pattern.rpartition("/")[2])  # empty after a slash: then only folders match
    end, stack = len(parts), [(start, _with_no_folders({0}, parts))]
    while stack:
        check()
        place, reached = stack.pop()
        if end in reached:
            yield place
        path = os.path.join(folder, place)
        below = dict[str, set[int]]()  # which parts are next for each path in this folder
        magic = {at for at in reached - {end} if glob.has_magic(parts[at])}
        for at in reached - {end} - magic:
            if _exists(os.path.join(path, parts[at]), check, unreadable):
                below.setdefault(parts[at], set()).add(at + 1)
        for entry in folder_entries(path, check, unreadable) if magic else ():
            if hidden or not entry.name.startswith("."):
                below.setdefault(entry.name, set()).update(*(_matched(entry, parts, at) for at in magic))
        for name in sorted(below, reverse=True):
            if below[name]:
                between = "/" if place and not place.endswith("/") else ""
                stack.append((f"{place}{between}{name}", _with_no_folders(below[name], parts)))


def folder_entries(
    path: str, check: Callable[[], None], unreadable: Callable[[str, OSError], None]
) -> Iterator[os.DirEntry[str]]:
    """The entries of a folder, in any order; none of what is no folder. See matching_paths for the rest."""
    try:
        with os.scandir(path or ".") as entries:
            for entry in entries:
                check()
                yield entry
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        unreadable(path, error)


def _matched(entry: os.DirEntry[str], parts: list[str], at: int) -> set[int]:
    """Which parts are next below an entry, if it matches the one at ``at``."""
    if parts[at] != "**":
        return {at + 1} if fnmatch(entry.name, parts[at]) else set()
    if entry.is_dir(follow_symlinks=False):
        return {at}
    return {at + 1} if at + 1 == len(parts) and not entry.is_dir() else set()


def _with_no_folders(reached: set[int], parts: list[str]) -> set[int]:
    """The next parts, and what follows each ``**`` among them, which may stand for no folder."""
    for at in sorted(reached):
        while at < len(parts) and parts[at] == "**":
            at += 1
            reached.add(at)
    return reached


def _exists(path: str, check: Callable[[], None], unreadable: Callable[[str, OSError], None]) -> bool:
    check()
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError as error:
        unreadable(os.path.dirname(path), error)
        return False
    return True
