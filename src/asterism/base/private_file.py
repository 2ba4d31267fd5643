"""Files of this user alone: read only if nobody else can have read or planted them, written durably or not at all.

In a folder that others can write, such as ``/tmp``, any user can create a file or a folder under the name that a store
is about to use: one that they can read, or a link to a file that they want overwritten. Only files of trusted owners
are used: this user, root, and the owner of the folder, who could replace everything in it.

A file with a secret that others can read is refused, since its content is no longer secret.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Generic, TypeVar

from asterism.base import operating_system
from asterism.core.errors import AsterismError

T = TypeVar("T")

OTHERS_MODE = stat.S_IRWXG | stat.S_IRWXO


class UnusableSecret(AsterismError):
    """A file with a key or with tokens is damaged, others can read it, or it belongs to another user."""


def trusted_owners(folder: Path) -> frozenset[int] | None:
    """Return the users whose files in a folder are trusted; None where files have no such owners."""
    if not hasattr(os, "geteuid"):
        return None
    return frozenset({0, os.geteuid(), folder.stat().st_uid})


def planted(path: Path, status: os.stat_result) -> str | None:
    """Return why a file cannot be trusted, given its status; None if it can."""
    owners = trusted_owners(path.parent)
    if owners is None or status.st_uid in owners:
        return None
    return f"{path} belongs to another user (uid {status.st_uid}), who may have planted it"


def open_plain(path: Path) -> int:
    """Open a regular file for reading, without following a link or waiting for a pipe. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)
    raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))


def read_private(path: Path, advice: str = "inspect it, and remove it") -> bytes | None:
    """The content of a file; None if it does not exist. ``advice`` is what to do with one that is not used.

    Raises UnusableSecret, and OSError if it cannot be read."""
    try:
        handle = open_plain(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EINVAL):
            raise
        raise UnusableSecret(f"{path} is a link or not a regular file, and is not used: {advice}") from None
    with open(handle, "rb") as file:
        why = planted(path, os.fstat(handle))
        if why is not None:
            raise UnusableSecret(f"{why}, and is not used: {advice}")
        mode = os.fstat(handle).st_mode
        if os.name == "posix" and mode & OTHERS_MODE:
            raise UnusableSecret(
                f"other users can read {path} (mode {stat.S_IMODE(mode):04o}). If none has, run `chmod 600 {path}`; if "
                f"one may have, {advice}"
            )
        return file.read()


def write_private(path: Path, data: bytes, *, replace: bool) -> bool:
    """Write a file durably. Without ``replace`` an existing file stays. Returns whether it was written."""
    place = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    handle = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | operating_system.CLOSE_ON_EXEC, 0o600)
    try:
        with open(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(handle)
        if replace:
            os.replace(place, path)
        else:
            os.link(place, path)
    except FileExistsError:
        return False
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(place)
    handle = operating_system.open_folder(path.parent)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    return True


class PrivateDocument(Generic[T]):
    """A private file with a JSON document, which several processes may change. ``parse`` makes a value of the document,
    and raises KeyError, TypeError, ValueError or AttributeError if it is another one. ``advice`` is what to do with a
    file that is not used."""

    def __init__(self, path: Path, parse: Callable[[Any], T], advice: str) -> None:
        self.path, self._parse, self._advice = path, parse, advice

    def read(self) -> T | None:
        """None if there is no such file. Raises UnusableSecret."""
        data = read_private(self.path, self._advice)
        if data is None:
            return None
        try:
            return self._parse(json.loads(data))
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
            raise UnusableSecret(f"{self.path} is damaged: {self._advice}") from None

    def write(self, document: Any) -> None:
        """Write it durably, or not at all."""
        data = json.dumps(document, indent=1, sort_keys=True).encode() + b"\n"
        write_private(self.path, data, replace=True)

    def locked(self) -> AbstractContextManager[None]:
        """Lock out other processes that change it. Its folder is made if it is missing."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return locked_folder(self.path.parent)


@contextlib.contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Lock out other processes that change a file in a folder. The lock is on the folder, since a file is replaced."""
    handle = operating_system.open_folder(folder)
    try:
        operating_system.lock_file(handle, wait=True)
        yield
    finally:
        os.close(handle)


def config_folder() -> Path:
    """``$XDG_CONFIG_HOME/asterism``, or the same under ``~/.config``."""
    configured = os.environ.get("XDG_CONFIG_HOME", "")
    root = Path(configured) if os.path.isabs(configured) else Path(os.path.expanduser("~")) / ".config"
    return root / "asterism"
