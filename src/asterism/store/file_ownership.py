"""File ownership checks: refuse files beside a store that another user may have planted.

In a folder that others can write, such as ``/tmp``, any user can create a file or a folder under the name that a store
is about to use: one that they can read, or a link to a file that they want overwritten. Only files of trusted owners
are used: this user, root, and the owner of the folder, who could replace everything in it.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def trusted_owners(folder: Path) -> frozenset[int] | None:
    """Return the users whose files in a folder are trusted; None where files have no such owners."""
    if not hasattr(os, "geteuid"):
        return None
    return frozenset({0, os.geteuid(), folder.stat().st_uid})


def planted(path: Path, found: os.stat_result) -> str | None:
    """Return why a file cannot be trusted, given its status; None if it can."""
    owners = trusted_owners(path.parent)
    if owners is None or found.st_uid in owners:
        return None
    return f"{path} belongs to another user (uid {found.st_uid}), who may have planted it"


def open_plain(path: Path) -> int:
    """Open a regular file for reading, without following a link or waiting for a pipe. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)
    raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
