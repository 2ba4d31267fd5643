"""Files that only their owner may read, beside the store: ``laptop.db-peers.json`` holds the secrets with which this
store calls its peers, and invitations that were not exchanged yet (invitations.py). No store holds a token, and so
neither does a dump or a backup.

A file is there whole or not at all, and from its first moment nobody else can open it. One that others can read is
refused: what is in it is no secret any more.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asterism.core.errors import AsterismError
from asterism.store.file_ownership import open_plain, planted
from asterism.store.protocol import Store

TOKENS_SUFFIX = "-peers.json"
OTHERS_MODE = stat.S_IRWXG | stat.S_IRWXO
_ADVICE = "look at it, remove it, and invite the peers anew"


class UnusableSecret(AsterismError):
    """A file with the key or the tokens of a store that cannot be used: damaged, or open to others."""


def path_beside(store: Store, ending: str) -> Path:
    """Where a file of a store is. Raises AsterismError for stores that have no peers."""
    path = getattr(store, "path", None)
    if not isinstance(path, Path):
        raise AsterismError(
            f"peers have a SQLite file each, such as sqlite:///laptop.db, and {store.url} is none: devices that share "
            "a store need no peers"
        )
    return path.with_name(f"{path.name}{ending}")


def read_private(path: Path) -> bytes | None:
    """What is in a file; None if it is not there. Raises UnusableSecret, and OSError if it cannot be read."""
    try:
        handle = open_plain(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EINVAL):
            raise
        raise UnusableSecret(f"{path} is a link or no file at all, and is not used: {_ADVICE}") from None
    with open(handle, "rb") as file:
        why = planted(path, os.fstat(handle))
        if why is not None:
            raise UnusableSecret(f"{why}, and is not used: {_ADVICE}")
        mode = os.fstat(handle).st_mode
        if mode & OTHERS_MODE:
            raise UnusableSecret(
                f"{path} can be read by others (mode {stat.S_IMODE(mode):04o}). If nobody has, `chmod 600 {path}` "
                "makes it yours alone; if somebody may have, remove it and invite the peers anew"
            )
        return file.read()


def write_private(path: Path, data: bytes, *, replace: bool) -> bool:
    """Durable when it returns. Without ``replace`` a file that is there already stays. Whether it was written."""
    place = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    handle = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
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
    _sync_folder(path.parent)
    return True


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@dataclass(frozen=True, slots=True)
class Token:
    """What a peer is shown. ``invitation`` is what is to be exchanged for the secret first, None once it was. Neither
    is shown when it is printed by accident."""

    secret: str = field(repr=False)
    invitation: str | None = field(default=None, repr=False)

    def to_json(self) -> str | dict[str, str]:
        return self.secret if self.invitation is None else {"secret": self.secret, "invitation": self.invitation}

    @classmethod
    def from_json(cls, data: Any) -> Token:
        """Raises KeyError, TypeError, ValueError."""
        if isinstance(data, str):
            return cls(data)
        if not isinstance(data["secret"], str) or not isinstance(data["invitation"], str):
            raise ValueError("a secret is a text")
        return cls(data["secret"], data["invitation"])


class TokenFile:
    """The tokens with which a store calls its peers, by their names. Several processes may change them at once."""

    def __init__(self, store: Store) -> None:
        self._path = path_beside(store, TOKENS_SUFFIX)

    def get(self, peer: str) -> Token | None:
        """Raises UnusableSecret."""
        return self._read().get(peer)

    def put(self, peer: str, token: Token) -> None:
        """Durable when it returns."""
        with self._alone():
            self._write({**self._read(), peer: token})

    def remove(self, peer: str) -> None:
        with self._alone():
            kept = self._read()
            if kept.pop(peer, None) is not None:
                self._write(kept)

    def _read(self) -> dict[str, Token]:
        data = read_private(self._path)
        if data is None:
            return {}
        try:
            return {peer: Token.from_json(one) for peer, one in json.loads(data).items()}
        except (AttributeError, KeyError, TypeError, ValueError):
            raise UnusableSecret(
                f"{self._path} is damaged: it is no JSON object of secrets; invite the peers anew"
            ) from None

    def _write(self, tokens: dict[str, Token]) -> None:
        data = {peer: token.to_json() for peer, token in tokens.items()}
        write_private(self._path, json.dumps(data, indent=1, sort_keys=True).encode() + b"\n", replace=True)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Nobody else changes the file meanwhile. The lock is the folder's, since the file itself is replaced."""
        handle = os.open(self._path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)
