"""Hashes of the content of files, to find out whether any of them has changed."""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Iterable, Iterator

MAX_FILES = 100_000
"""How many files the patterns of one task may match."""


class TooManyFiles(ValueError):
    """The patterns match more files than can be compared."""


def hash_files(patterns: Iterable[str], folder: str) -> dict[str, str | None]:
    """The SHA-256 of each file that the patterns name, relative to ``folder``; None for a file that does not exist or
    cannot be read.

    ``*``, ``?`` and ``[…]`` match as in a shell, ``**`` any folders; a folder stands for all files in it."""
    found: dict[str, str | None] = {}
    for pattern in patterns:
        for path in _matches(pattern, folder):
            found[path] = _hash(os.path.join(folder, path))
            if len(found) > MAX_FILES:
                raise TooManyFiles(f"{pattern!r} matches more than {MAX_FILES:,} files; name fewer of them")
    return found


def _matches(pattern: str, folder: str) -> Iterator[str]:
    names = sorted(glob.glob(pattern, root_dir=folder, recursive=True)) if glob.has_magic(pattern) else [pattern]
    for name in names:
        path = os.path.join(folder, name)
        if not os.path.isdir(path):
            yield name
            continue
        for inner, folders, files in os.walk(path):
            folders.sort()
            for file in sorted(files):
                yield os.path.join(name, os.path.relpath(os.path.join(inner, file), path))


def _hash(path: str) -> str | None:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None
