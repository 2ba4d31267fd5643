"""The process of ``asterism mcp``: serves its client, and runs the plans that the client submits."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from asterism.base.operating_system import stop_signals
from asterism.base.startup import install_hint, tune_gc
from asterism.cli.cli_context import note
from asterism.cli.serve.server_policy import ServerPolicy
from asterism.core.errors import AsterismError
from asterism.durable.plan_runner import runs_plans
from asterism.fleet.fleet import Fleet


async def serve_client(fleet: Fleet, name: str, scopes: Sequence[str], *, local: int) -> int:
    """Serve until the client closes standard input, or SIGINT or SIGTERM. Returns the exit code."""
    try:
        from asterism.mcp.mcp_stdio import local_caller, serve_stdio
    except ImportError:
        raise AsterismError(f"asterism mcp needs the MCP SDK: {install_hint('mcp')}") from None
    caller = local_caller(name, scopes)
    tune_gc()
    if sys.stdin is not None and sys.stdin.isatty():
        note("An MCP client starts this command and speaks with it here; Ctrl-D ends it. See: asterism mcp --help")
    async with runs_plans(fleet, ServerPolicy.find(None).orchestrators(local)) as runner:
        await _until_signal(asyncio.create_task(serve_stdio(fleet, caller, runner.wake)))
    return 0


async def _until_signal(serving: asyncio.Task[None]) -> None:
    """Wait for the end of a task; a signal ends it in good order."""
    with stop_signals() as stop:
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended = serving.done()
            for task in (serving, stopping):
                task.cancel()
            await asyncio.gather(serving, stopping, return_exceptions=True)
    if ended:
        serving.result()
