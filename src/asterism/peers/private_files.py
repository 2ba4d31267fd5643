"""Private files beside the store: secrets that only their owner may read.

``laptop.db-peers.json`` contains the secrets with which this store calls its peers, and invitations that were not
exchanged yet (invitations.py). The store itself contains no token, so dumps and backups do not either.

Files are written atomically and are never readable by others. A file that others can read is refused, since its content
is no longer secret.
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
_ADVICE = "inspect it, remove it, and invite the peers again"


class UnusableSecret(AsterismError):
    """The file with the key or the tokens of a store is damaged, or others can read it."""


def path_beside(store: Store, ending: str) -> Path:
    """The path of a private file of a store. Raises AsterismError for a store that cannot have peers."""
    path = getattr(store, "path", None)
    if not isinstance(path, Path):
        raise AsterismError(
            f"only a SQLite file such as sqlite:///laptop.db can have peers, not {store.url}; devices that share a "
            "store need no peers"
        )
    return path.with_name(f"{path.name}{ending}")


def read_private(path: Path) -> bytes | None:
    """The content of a file; None if it does not exist. Raises UnusableSecret, and OSError if it cannot be read."""
    try:
        handle = open_plain(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EINVAL):
            raise
        raise UnusableSecret(f"{path} is a link or not a regular file, and is not used: {_ADVICE}") from None
    with open(handle, "rb") as file:
        why = planted(path, os.fstat(handle))
        if why is not None:
            raise UnusableSecret(f"{why}, and is not used: {_ADVICE}")
        mode = os.fstat(handle).st_mode
        if mode & OTHERS_MODE:
            raise UnusableSecret(
                f"other users can read {path} (mode {stat.S_IMODE(mode):04o}). If none has, run `chmod 600 {path}`; if "
                "one may have, remove it and invite the peers again"
            )
        return file.read()


def write_private(path: Path, data: bytes, *, replace: bool) -> bool:
    """Write a file durably. Without ``replace`` an existing file stays. Returns whether it was written."""
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
    """The secret that authenticates this store at a peer. ``invitation`` has to be exchanged for it first, None once
    that is done. ``repr`` hides both."""

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
            raise ValueError("a secret has to be a string")
        return cls(data["secret"], data["invitation"])


class TokenFile:
    """The tokens with which a store calls its peers, by peer name. Several processes may change them at once."""

    def __init__(self, store: Store) -> None:
        self._path = path_beside(store, TOKENS_SUFFIX)

    def get(self, peer: str) -> Token | None:
        """Raises UnusableSecret."""
        return self._read().get(peer)

    def put(self, peer: str, token: Token) -> None:
        """Store a token durably."""
        with self._locked():
            self._write({**self._read(), peer: token})

    def remove(self, peer: str) -> None:
        with self._locked():
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
                f"{self._path} is damaged: it is not a JSON object of secrets. Remove it, and invite the peers again"
            ) from None

    def _write(self, tokens: dict[str, Token]) -> None:
        data = {peer: token.to_json() for peer, token in tokens.items()}
        write_private(self._path, json.dumps(data, indent=1, sort_keys=True).encode() + b"\n", replace=True)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock out other processes. The lock is on the folder, since the file itself is replaced."""
        handle = os.open(self._path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)
