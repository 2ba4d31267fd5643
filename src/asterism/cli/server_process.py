"""The process of ``asterism serve``: listens, runs plans, and stops on a signal."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Sequence
from functools import partial

import click

from asterism.base.listen_address import ListenAddress
from asterism.base.startup import install_hint, tune_gc
from asterism.cli.cli_context import note, print_json
from asterism.core.errors import AsterismError
from asterism.fleet.fleet import Fleet
from asterism.server.credentials import Credentials

log = logging.getLogger("asterism.server")


async def serve_until_signal(
    fleet: Fleet, address: ListenAddress, names: Sequence[str], *, local: int, as_json: bool
) -> int:
    """Serve until SIGINT or SIGTERM. Returns the exit code."""
    from asterism.durable.durable_orchestrator import DurableOrchestrator
    from asterism.durable.plan_runner import runs_plans

    try:
        from asterism.server.gateway_routes import monitor_beside
        from asterism.server.http_service import http_service
    except ImportError:
        raise AsterismError(f"the server needs starlette and uvicorn: {install_hint('serve')}") from None
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    tune_gc()
    make = partial(DurableOrchestrator, local=local) if local else DurableOrchestrator
    async with (
        http_service(fleet, address, names) as service,
        monitor_beside(fleet),
        runs_plans(fleet, make) as runner,
    ):
        service.state.submitted = runner.wake
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        try:
            await announce(fleet, service.url, as_json=as_json)
            await stop.wait()
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
        log.info("stopping")
    return 0


async def announce(fleet: Fleet, url: str, *, as_json: bool) -> None:
    """Print the link with a one-time login. It goes to standard output only, never into a log."""
    code = await Credentials(fleet.store).create_login(fleet.by, ["admin"], by=fleet.by)
    link = f"{url}/login?code={code}"
    if as_json:
        print_json({"url": url, "login": link, "store": fleet.store.url})
        return
    click.echo(link)
    note("Open this link in a browser within 10 minutes; it works once. For another: asterism token login")
