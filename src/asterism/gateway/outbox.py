"""The outbox of a device: results that could not be delivered, as files, until the server has accepted or refused them.

Each is a JSON file that only this user can read, written whole or not at all. A device that is killed finds them again
when it is started the next time.

A queue of steps for a gateway: those that come up while a message is under way leave together with the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from asterism.base.private_file import write_private
from asterism.core.json_values import JsonObject
from asterism.gateway.gateway_messages import LARGEST_MESSAGE, STEPS_AT_ONCE, parse_error

log = logging.getLogger("asterism.device")


class Outbox(Protocol):
    """Keeps messages that were not delivered."""

    def put(self, message: Mapping[str, Any]) -> str | None:
        """Keep a message. Returns its name; None if that was not possible."""

    def remove(self, name: str) -> None: ...

    def waiting(self) -> Iterator[tuple[str, JsonObject]]:
        """The messages by name, the oldest first."""


class FileOutbox:
    """``folder`` is created when the first message is kept."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0

    def put(self, message: Mapping[str, Any]) -> str | None:
        self._number += 1
        name = f"{os.getpid():07d}-{self._number:06d}-{secrets.token_hex(4)}.json"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_private(self._folder / name, json.dumps(message).encode("ascii"), replace=True)
        except (OSError, ValueError) as error:  # it is still delivered while this process lives
            log.error("a result cannot be kept on disk until the server is back: %s", error)
            return None
        return name

    def remove(self, name: str) -> None:
        with contextlib.suppress(OSError):
            (self._folder / name).unlink()

    def waiting(self) -> Iterator[tuple[str, JsonObject]]:
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


# -- step queue --------------------------------------------------------------------------------------------------------


_Waiting = tuple[JsonObject, asyncio.Future[Any], int]


class StepQueue:
    """``ask`` sends a message with steps, and returns an answer for each."""

    def __init__(self, ask: Callable[[list[JsonObject]], Awaitable[list[Any]]]) -> None:
        self._ask = ask
        self._waiting: list[_Waiting] = []
        self._sender: asyncio.Task[None] | None = None
        self._answered = asyncio.Event()  # set when no message is under way
        self._answered.set()

    async def send(self, run_id: str, data: JsonObject, weight: int = 0) -> Any:
        """Send a step about a run, and return its answer. ``weight`` is how long its log and result are at most, in
        bytes. Raises what the answer says, and what ``ask`` raises."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((data, future, weight))
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send_waiting())
        answer = await future
        if "error" in answer:
            raise parse_error(answer, run_id)
        return answer

    async def answered(self) -> None:
        """Wait for the answer to the message that is under way, if there is one."""
        await self._answered.wait()  # once: others may follow without a break

    def close(self) -> None:
        if self._sender is not None:
            self._sender.cancel()

    async def _send_waiting(self) -> None:
        while self._waiting:
            batch: list[_Waiting] = []
            self._answered.clear()
            try:
                await asyncio.sleep(0)  # ends that come up together leave together
                count = self._fitting()
                batch, self._waiting = self._waiting[:count], self._waiting[count:]
                answers = await self._ask([data for data, *_ in batch])
                for (_, future, _), answer in zip(batch, answers, strict=True):
                    if not future.done():
                        future.set_result(answer)
            except asyncio.CancelledError:
                for _, future, _ in (*batch, *self._waiting):
                    future.cancel()
                raise
            except Exception as error:
                for _, future, _ in batch:
                    if not future.done():
                        future.set_exception(error)
                        future.exception()  # a caller that was cancelled does not retrieve it
            finally:
                self._answered.set()

    def _fitting(self) -> int:
        """How many of the steps that wait leave with the next message: at least one."""
        total = 0
        for number, (_, _, weight) in enumerate(self._waiting[:STEPS_AT_ONCE]):
            total += weight
            if number and total > LARGEST_MESSAGE:
                return number
        return min(len(self._waiting), STEPS_AT_ONCE)
