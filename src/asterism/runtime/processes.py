"""Commands: argv lists and shell lines, as child processes that never outlive their orchestrator."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from asterism.core.errors import AsterismError
from asterism.runtime import guard

OUTPUT_LIMIT = 1 << 20
"""How much of a command's output is kept, in bytes: the tail."""


class CommandFailed(AsterismError):
    """A command that ended with another code than 0. ``code`` is negative for a signal; ``output`` is the tail of
    what it said."""

    def __init__(self, code: int, output: str) -> None:
        self.code, self.output = code, output
        ended = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        last = output.strip().splitlines()[-1:]
        super().__init__(f"the command {ended}" + (f": {last[0]}" if last else ""))


class Commands:
    """Runs commands for one device."""

    def __init__(self, grace: float = 5.0) -> None:
        self.grace = grace
        self._guard = guard.Guard()

    async def run(self, argv: Sequence[str], environment: Mapping[str, str]) -> Any:
        """Run a command and return what it printed: parsed if it is JSON, text otherwise. Raises CommandFailed.

        When cancelled, its whole group is asked to stop (SIGTERM), and killed after ``grace`` seconds."""
        pipe = self._guard.pipe()
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(environment),
            process_group=0,
            preexec_fn=partial(guard.report, pipe),  # the pipe itself is closed in the child: it is not passed on
        )
        try:
            output, errors = await asyncio.gather(_tail(process.stdout), _tail(process.stderr))
            code = await process.wait()
        except asyncio.CancelledError:
            await self._stop(process)
            raise
        finally:
            self._end_group(process.pid)
        if code != 0:
            raise CommandFailed(code, errors or output)
        return _parsed(output)

    async def _stop(self, process: asyncio.subprocess.Process) -> None:
        _signal_group(process.pid, signal.SIGTERM)
        ended = asyncio.ensure_future(process.wait())
        await asyncio.wait([ended], timeout=self.grace)
        _signal_group(process.pid, signal.SIGKILL)
        await ended

    def _end_group(self, group: int) -> None:
        _signal_group(group, signal.SIGKILL)  # what the command left behind in its group ends with it
        self._guard.finished(group)

    def close(self) -> None:
        self._guard.close()


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


async def _tail(stream: asyncio.StreamReader | None) -> str:
    """All of a stream, or its end if it is longer than the limit."""
    assert stream is not None
    kept = b""
    while chunk := await stream.read(1 << 16):
        kept = (kept + chunk)[-OUTPUT_LIMIT:]
    return kept.decode(errors="replace")


def _parsed(output: str) -> Any:
    text = output.strip()
    if text[:1] in ("{", "["):
        with contextlib.suppress(ValueError):
            return json.loads(text)
    return text
