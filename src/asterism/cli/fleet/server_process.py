"""The processes of ``asterism serve``, ``run --serve`` and ``mcp``: they serve, run plans, and stop on a signal.

Everybody who can write into the store can write its settings, with the command and the address that get notices. A
device without a device policy file executes whatever the store says, which is its purpose. The purpose of a server is
another one: without a file it executes no notify command, and sends notices to public addresses only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

import click

from asterism.api.credentials import Credentials
from asterism.base.clock import first_of
from asterism.base.http_limits import raise_descriptor_limit
from asterism.base.listen_address import CannotServe, ListenAddress
from asterism.base.operating_system import stop_signals
from asterism.base.startup import install_hint, tune_gc
from asterism.cli.cli_context import DEFAULT_SERVER, note, print_json, same_system
from asterism.cli.editor_options import find_device_policy
from asterism.cli.interrupts import work_until_interrupted
from asterism.cli.series.series_sync_commands import WebhookSettings, open_webhook
from asterism.core.errors import AsterismError
from asterism.durable.durable_orchestrator import DurableOrchestrator
from asterism.durable.plan_runner import runs_plans
from asterism.fleet.fleet import Fleet
from asterism.fleet.policy.device_policy import DevicePolicy

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from asterism.api.system import Proposer
    from asterism.fleet.event_hook import EventHook
    from asterism.server.endpoint import ServerState
    from asterism.server.people_proxy import PeopleProxy

log = logging.getLogger("asterism.server")
series_log = logging.getLogger("asterism.series")


async def serve_until_signal(
    fleet: Fleet,
    address: ListenAddress,
    names: Sequence[str],
    *,
    local: int,
    policy: ServerPolicy,
    login: bool = True,
    webhook: WebhookSettings | None = None,
    hooks: Sequence[EventHook] = (),
    peers: bool = False,
    people: PeopleProxy | None = None,
    proposer: Proposer | None = None,
    as_json: bool,
) -> int:
    """Serve until SIGINT or SIGTERM, or until the worker of the webhook fails. Returns the exit code."""
    from asterism.durable.plan_runner import runs_plans

    try:
        from asterism.mcp.mcp_http import mcp_routes
        from asterism.server import event_hook_routes
        from asterism.server.gateway_routes import monitor_beside
        from asterism.server.http_service import http_service
    except ImportError:
        raise AsterismError(f"the server needs starlette and uvicorn: {install_hint('serve')}") from None
    tune_gc()
    raise_descriptor_limit()
    also: dict[str, str] = {}
    async with contextlib.AsyncExitStack() as stack:
        hook = None
        if webhook is not None:
            hook = await stack.enter_async_context(open_webhook(webhook, address, series_log.info))
        routes = [hook.route] if hook is not None else []
        http = await stack.enter_async_context(contextlib.AsyncExitStack())

        def more(state: ServerState) -> list[BaseRoute]:
            return [*mcp_routes(state), *routes, *event_hook_routes.EventHookRoutes(state, hooks).routes]

        service = await http.enter_async_context(
            http_service(fleet, address, names, more=more, peers=peers, people=people, proposer=proposer)
        )
        await stack.enter_async_context(monitor_beside(fleet, policy.notices))
        runner = await stack.enter_async_context(runs_plans(fleet, policy.orchestrators(local)))
        service.state.submitted = runner.wake
        with stop_signals() as stop:
            if hook is not None:
                await stack.enter_async_context(hook.syncing(stop.set))
                also["webhook"] = service.url + hook.route.path
            if hooks:
                also["hooks"] = service.url + event_hook_routes.PATH
            if peers:
                also["peers"] = f"https://{service.url.partition('://')[2]}"
            await announce(fleet, service.url, login=login, also=also, as_json=as_json)
            log.info(policy.about)
            await stop.wait()
        log.info("stopping")
        await http.aclose()  # first: edits that are on their way are answered by the plans that still run here
    return 0


async def serve_while(fleet: Fleet, run: Callable[[], Awaitable[int]], *, stay: bool) -> int:
    """Serve on this machine while a plan runs, and with ``stay`` on a terminal until Ctrl-C. Returns its exit code."""
    try:
        from asterism.mcp.mcp_http import mcp_routes
        from asterism.server.http_service import DEFAULT_PORT, http_service
    except ImportError:
        raise AsterismError(f"--serve needs starlette and uvicorn: {install_hint('serve')}") from None
    async with contextlib.AsyncExitStack() as serving:
        serve = partial(http_service, fleet, more=mcp_routes)
        try:
            service = await serving.enter_async_context(serve(ListenAddress("127.0.0.1", DEFAULT_PORT)))
        except CannotServe:  # another server has this port
            service = await serving.enter_async_context(serve(ListenAddress("127.0.0.1", 0)))
        note(f"Watch it at {await login_link(fleet, service.url)} (works once, within 10 minutes)")
        code = await run()
        if stay and sys.stderr.isatty():
            note("The page is served until Ctrl-C.")
            await work_until_interrupted(asyncio.Event().wait(), lambda: "Stopped.")
        return code


async def announce(
    fleet: Fleet, url: str, *, login: bool = True, also: Mapping[str, str] = MappingProxyType({}), as_json: bool
) -> None:
    """Print the link with a one-time login. It goes to standard output only, never into a log: the output of a service
    is one, so without ``login`` no link is made. ``also`` are the addresses of what else is served, by its name."""
    link = await login_link(fleet, url) if login else None
    if as_json:
        print_json({"url": url, "login": link, "store": fleet.store.url, **also})
        return
    address = "" if url == DEFAULT_SERVER else f" --server {url}"
    another = f"asterism token login{address}{same_system(fleet.store.url)}"
    if link is None:
        note(f"Serving {url}. For a link that logs a browser in: {another}")
    else:
        click.echo(link)
        note(f"Open this link in a browser within 10 minutes; it works once. For another: {another}")
    if "webhook" in also:
        note(f"Receiving the series webhook at {also['webhook']}")
    if "hooks" in also:
        note(f"Receiving signed events at {also['hooks']}NAME")
    if "peers" in also:
        invite = f"asterism peer invite NAME --url {also['peers']}{same_system(fleet.store.url)}"
        note(f"Answering peers at {also['peers']}. Invite one with: {invite}")


async def login_link(fleet: Fleet, url: str) -> str:
    code = await Credentials(fleet.store).create_login(fleet.by, ["admin"], by=fleet.by)
    return f"{url}/login?code={code}"


# -- device policies of a server ---------------------------------------------------------------------------------------


WITHOUT_FILE = (
    "no device policy file: this server executes no notify command, and sends notices to public addresses only "
    "(see --device-policy)"
)


@dataclass(frozen=True)
class ServerPolicy:
    """``work`` judges the tasks that the server executes itself, ``notices`` the command and the address that get
    notices. ``about`` is a sentence about them."""

    work: DevicePolicy
    notices: DevicePolicy
    about: str

    @classmethod
    def find(cls, path: str | None) -> ServerPolicy:
        """Read the file at ``path``, or the default file if there is one. Raises InvalidDevicePolicy, and UsageError if
        the file cannot be read."""
        policy, about = find_device_policy(path)
        if policy.everything:
            return cls(policy, DevicePolicy.without_file(), WITHOUT_FILE)
        return cls(policy, policy, about)

    def orchestrators(self, local: int) -> Callable[[Fleet], DurableOrchestrator]:
        """Makes the orchestrators of the server's plans, which execute up to ``local`` tasks of each here: they are
        devices that stand for election, too."""
        return partial(
            DurableOrchestrator,
            local=local,
            only_own_tasks=local > 0,
            device_policy=self.work,
            notice_policy=self.notices,
        )


# -- the process of asterism mcp ---------------------------------------------------------------------------------------


async def serve_client(fleet: Fleet, name: str, scopes: Sequence[str], *, local: int) -> int:
    """Serve until the client closes standard input, or SIGINT or SIGTERM. Returns the exit code."""
    try:
        from asterism.mcp.mcp_http import local_caller, serve_stdio
    except ImportError:
        raise AsterismError(f"asterism mcp needs the MCP SDK: {install_hint('mcp')}") from None
    caller = local_caller(name, scopes)
    tune_gc()
    if sys.stdin is not None and sys.stdin.isatty():
        note("An MCP client starts this command and speaks with it here; Ctrl-D ends it. See: asterism mcp --help")
    async with runs_plans(fleet, ServerPolicy.find(None).orchestrators(local)) as runner:
        with stop_signals() as stop:
            await first_of(serve_stdio(fleet, caller, runner.wake), stop.wait())
    return 0
