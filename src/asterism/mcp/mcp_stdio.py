"""MCP over standard input and output: a client starts this process, and is its only caller."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from mcp.server.stdio import stdio_server

from asterism.api.credentials import Credential, check_scopes
from asterism.api.system import LocalSystem
from asterism.core.errors import AsterismError
from asterism.fleet.fleet import Fleet
from asterism.mcp.mcp_server import mcp_server
from asterism.mcp.mcp_tools import McpHost


def local_caller(name: str, scopes: Iterable[str]) -> Credential:
    """The client that started this process. It needs no token: it has the store. Raises InvalidScope."""
    return Credential("local", name, "", "local", 0.0, name, float("inf"), scopes=check_scopes(scopes))


async def serve_stdio(fleet: Fleet, caller: Credential, submitted: Callable[[], None]) -> None:
    """Serve the client until it closes standard input. Whatever else prints meanwhile goes to standard error.
    ``submitted`` is called when there may be a plan to run."""
    if sys.__stdin__ is None or sys.__stdout__ is None:
        raise AsterismError("an MCP client speaks over standard input and output, but one of them is closed")
    system = LocalSystem(fleet.named(caller.name), caller.name, submitted, own=False, caller=caller)
    host = McpHost(fleet, lambda caller: system)
    server = mcp_server(host, caller)
    with contextlib.redirect_stdout(sys.__stdout__):  # the command line has replaced it by a stream without a buffer
        lines: Any = InputLines(own_input())  # of a file, the server reads nothing but lines
        async with stdio_server(lines) as (received, sent):
            try:
                await server.run(received, sent, server.create_initialization_options())
            finally:
                host.stopping.set()


# -- standard input ----------------------------------------------------------------------------------------------------

READ_SIZE = 64 * 1024
LINES_AHEAD = 16
"""How many messages are read before the server takes one."""


def own_input() -> int:
    """A descriptor of standard input that no child process shares: what they read is empty."""
    own = os.dup(0)  # not inheritable
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return own


class InputLines:
    """The lines of a descriptor, read by a thread that does not outlive the process: so a signal ends the command even
    while its client says nothing."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._loop = descriptor, asyncio.get_running_loop()
        self._lines: asyncio.Queue[str | None] = asyncio.Queue(LINES_AHEAD)
        threading.Thread(target=self._read, name="standard input", daemon=True).start()

    def __aiter__(self) -> InputLines:
        return self

    async def __anext__(self) -> str:
        line = await self._lines.get()
        if line is None:
            raise StopAsyncIteration
        return line

    def _read(self) -> None:
        rest: list[bytes] = []
        while data := self._more():
            *whole, last = data.split(b"\n")
            for line in whole:
                self._put(b"".join([*rest, line]).decode("utf-8", "replace"))
                rest = []
            rest.append(last)
        self._put(None)

    def _more(self) -> bytes:
        try:
            return os.read(self._descriptor, READ_SIZE)
        except OSError:  # a terminal that has gone away
            return b""

    def _put(self, line: str | None) -> None:
        """Wait until there is room. If the server has gone meanwhile, nobody waits for the thread."""
        with contextlib.suppress(RuntimeError):
            asyncio.run_coroutine_threadsafe(self._lines.put(line), self._loop).result()
