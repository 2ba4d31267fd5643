"""Files beside a store that somebody else may have put there.

In a folder that others can write, such as ``/tmp``, anybody can make a file or a folder under the name that a store is
about to use: one that they go on reading, or a link to what they want to be overwritten. What belongs to a stranger is
therefore refused. Trusted are this user, root, and whoever owns the folder it lies in, who could replace all of it.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def trusted_owners(folder: Path) -> frozenset[int] | None:
    """The users whose files in a folder are believed in; None where files have no such owners."""
    if not hasattr(os, "geteuid"):
        return None
    return frozenset({0, os.geteuid(), folder.stat().st_uid})


def planted(path: Path, found: os.stat_result) -> str | None:
    """Why a file cannot be trusted, given what was found there; None if it can."""
    owners = trusted_owners(path.parent)
    if owners is None or found.st_uid in owners:
        return None
    return f"{path} belongs to another user (uid {found.st_uid}), who may have put it there"


def open_plain(path: Path) -> int:
    """Open a file for reading, if it is one: a link is not followed, and a pipe is not waited for. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)
    raise OSError(errno.EINVAL, "it is not a file", os.fspath(path))
