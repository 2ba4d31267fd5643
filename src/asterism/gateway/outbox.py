"""The outbox of a device: results that could not be delivered, as files, until the server has accepted or refused them.

Each is a JSON file that only this user can read, written whole or not at all. A device that is killed finds them again
when it is started the next time.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

log = logging.getLogger("asterism.device")


class Outbox(Protocol):
    """Keeps messages that were not delivered."""

    def put(self, message: Mapping[str, Any]) -> str | None:
        """Keep a message. Returns its name; None if that was not possible."""

    def remove(self, name: str) -> None: ...

    def waiting(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """The messages by name, the oldest first."""


class FileOutbox:
    """``folder`` is created when the first message is kept."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0

    def put(self, message: Mapping[str, Any]) -> str | None:
        self._number += 1
        name = f"{os.getpid():07d}-{self._number:06d}-{secrets.token_hex(4)}.json"
        place = self._folder / f".{name}"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(handle, "w", encoding="ascii") as file:
                json.dump(message, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(place, self._folder / name)
        except (OSError, ValueError) as error:  # it is still delivered while this process lives
            log.error("a result cannot be kept on disk until the server is back: %s", error)
            with contextlib.suppress(OSError):
                place.unlink()
            return None
        return name

    def remove(self, name: str) -> None:
        with contextlib.suppress(OSError):
            (self._folder / name).unlink()

    def waiting(self) -> Iterator[tuple[str, dict[str, Any]]]:
        try:
            names = [path for path in self._folder.iterdir() if path.suffix == ".json" and path.name[0] != "."]
        except OSError:
            return
        for path in sorted(names, key=lambda path: (path.stat().st_mtime_ns, path.name)):
            try:
                message = json.loads(path.read_text(encoding="ascii"))
                if not isinstance(message, dict):
                    raise ValueError("it is not a message")
            except (OSError, ValueError) as error:
                log.error("%s cannot be read and is left alone: %s", path, error)
            else:
                yield path.name, message


class MemoryOutbox:
    """An outbox in memory, for tests and simulations: a machine that crashes keeps its disk."""

    def __init__(self) -> None:
        self._messages: dict[str, dict[str, Any]] = {}
        self._number = 0

    def put(self, message: Mapping[str, Any]) -> str | None:
        self._number += 1
        name = f"{self._number:06d}"
        self._messages[name] = json.loads(json.dumps(message))
        return name

    def remove(self, name: str) -> None:
        self._messages.pop(name, None)

    def waiting(self) -> Iterator[tuple[str, dict[str, Any]]]:
        yield from list(self._messages.items())
