"""The process of a device: join the fleet, execute runs, and leave when a signal or the store says so.

The first signal lets running work finish, the second hands it back, the third ends the process. ``asterism device
drain`` has the same effect as the first signal.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import click

from asterism.base import expressions
from asterism.base.durations import format_age
from asterism.base.listen_address import ListenAddress
from asterism.base.operating_system import on_signals
from asterism.base.startup import tune_gc
from asterism.base.text import clean, json_text, plural, short, shorten
from asterism.cli.cli_context import format_clock, print_json, run_interruptible, with_fleet
from asterism.cli.editor_options import allow_imports, find_device_policy
from asterism.core.errors import DeviceTrouble, DeviceUnavailable
from asterism.core.json_values import JsonObject
from asterism.core.run.run import Run
from asterism.core.run.session import DEFAULT_TIMEOUT
from asterism.core.run.transitions import attempt_of
from asterism.fleet.device.agent import DeviceAgent
from asterism.fleet.device.agent_work import AgentRunner
from asterism.fleet.device.device_connection import DeviceAccess
from asterism.fleet.device.executor import Executor, RunWork
from asterism.fleet.fleet import Fleet
from asterism.fleet.policy.device_policy import DevicePolicy, PolicyForbids

log = logging.getLogger("asterism.device")

INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """The options of a device. ``policy`` is the path of a device policy file; ``monitor_every`` is None for a device
    that never monitors the fleet; ``peers`` are names or URLs, ``listen`` is the address that answers them.
    ``metrics`` is the address that serves metrics. With ``runs_plans`` the process also runs the plans of
    schedules."""

    name: str
    can: tuple[str, ...] = ()
    slots: int = 1
    backlog: int = 0
    labels: dict[str, str] = field(default_factory=dict)
    accepts: str | None = None
    hands_back: str | None = None
    policy: str | None = None
    replace: bool = False
    monitor_every: float | None = 5.0
    heartbeat: float = 30.0
    heartbeat_timeout: float = DEFAULT_TIMEOUT
    peers: tuple[str, ...] = ()
    listen: str | None = None
    metrics: ListenAddress | None = None
    runs_plans: bool = False
    agent: str | None = None
    """The command of an ACP agent, or the URL of an A2A agent."""

    model: str | None = None
    """The name of a language model that is the agent of the device."""


def join_fleet(
    store: str | None, options: DeviceOptions, *, drain_for: float, as_json: bool, create: bool, wait: float
) -> int:
    """Run a device until it has left the fleet. Returns the exit code. With ``create`` a missing store is created;
    ``wait`` is how long to wait for one that cannot be reached, in seconds."""
    _check_rules(options)
    policy, about_policy = find_device_policy(options.policy)  # also without slots: it guards the notify command
    allow_imports()

    async def work(fleet: Fleet) -> int:
        async with contextlib.AsyncExitStack() as beside:
            for service in _services(fleet, options, policy):
                await beside.enter_async_context(service)
            about = [about_policy] if options.slots or not policy.everything else []
            code, joined = await _work(fleet, fleet.store.url, options, policy, about, drain_for)
        if as_json:
            print_json({**joined, "store": fleet.store.url})
        return code

    with log_to_stderr(as_json=as_json):
        return with_fleet(store, work, create=create, wait=wait)


async def _work(
    fleet: Fleet | DeviceAccess,
    url: str,
    options: DeviceOptions,
    policy: DevicePolicy,
    about: Sequence[str],
    drain_for: float,
) -> tuple[int, JsonObject]:
    """Run a device until it has left. Returns the exit code, and what it was and did, for JSON. ``about`` is logged
    when it joins."""
    tune_gc()
    agent = _agent(fleet, options, policy, await _agent_runner(options, policy))
    held = agent.worker.held
    executor = LoggingExecutor(agent.worker.executor, lambda run: held[run].stopping if run in held else None)
    agent.worker.executor = executor
    shutdown = DeviceShutdown(agent, drain_for)
    with shutdown.on_signals():
        log.info("joining %s as %s", url, options.name)
        for line in about:
            log.info(line)
        code = await shutdown.run()
    session = agent.session
    return code, {"name": session.device, "session": session.id, "runs": executor.started}


def _check_rules(options: DeviceOptions) -> None:
    for option, expression in (("--accepts", options.accepts), ("--hands-back", options.hands_back)):
        problem = expressions.check(expression) if expression is not None else None
        if problem is not None:
            raise click.BadParameter(f"the expression is not valid: {problem}", param_hint=option)


def join_server(
    server: str, code: str | None, fingerprint: str | None, options: DeviceOptions, *, drain_for: float, as_json: bool
) -> int:
    """As ``join_fleet``, through a server."""
    _check_rules(options)
    policy, about_policy = find_device_policy(options.policy)
    allow_imports()

    async def work() -> int:
        from asterism.gateway.gateway_transport import enrolled_access, server_url

        access = await enrolled_access(server_url(server), options.name, code, fingerprint)
        url = access.transport.url
        try:
            exit_code, joined = await _work(access, url, options, policy, [about_policy], drain_for)
        finally:
            await access.transport.close()
        if as_json:
            print_json({**joined, "server": url})
        return exit_code

    with log_to_stderr(as_json=as_json):
        return run_interruptible(work())


async def _agent_runner(options: DeviceOptions, policy: DevicePolicy) -> AgentRunner | None:
    """What runs the agent of the device, if it has one."""
    if options.agent is None and options.model is None:
        return None
    from asterism import agents  # each is imported when it is named: their dependencies are optional

    runner: AgentRunner
    if options.agent is None:
        runner = await agents.ModelAgent.connect(options.model or "")
    elif options.agent.lower().startswith(("http://", "https://")):
        runner = await agents.A2aAgent.connect(options.agent, policy)
    else:
        runner = await agents.AcpAgent.connect(options.agent)
    allowed = ", ".join(policy.rules.permissions) or "nothing (see 'permissions' in the device policy file)"
    log.info("agent %s; it may ask for %s", runner.labels.get("agent"), allowed)
    return runner


def _agent(
    fleet: Fleet | DeviceAccess, options: DeviceOptions, policy: DevicePolicy, runner: AgentRunner | None
) -> DeviceAgent:
    return DeviceAgent(
        fleet,
        options.name,
        can=options.can,
        slots=options.slots,
        backlog=options.backlog,
        labels=options.labels,
        accepts=options.accepts,
        hands_back=options.hands_back,
        policy=policy,
        agent=runner,
        heartbeat=options.heartbeat,
        heartbeat_timeout=options.heartbeat_timeout,
        monitor_every=options.monitor_every,
        replace=options.replace,
    )


def _services(
    fleet: Fleet, options: DeviceOptions, policy: DevicePolicy
) -> Iterator[AbstractAsyncContextManager[object]]:
    """What a device does beside its work, as the options say."""
    if options.peers or options.listen is not None:  # sync with its peers, and answer them
        from asterism.peers.peer_service import peer_connections  # the dependencies of peers are optional

        yield peer_connections(fleet, options.peers, options.listen)
    if options.metrics is not None:
        from asterism.cli.fleet.fleet_metrics import serve_metrics

        yield serve_metrics(fleet, options.metrics.host, options.metrics.port)
    if options.runs_plans:  # those of schedules
        from asterism.durable.durable_orchestrator import DurableOrchestrator
        from asterism.durable.plan_runner import runs_plans

        yield runs_plans(fleet, partial(DurableOrchestrator, device_policy=policy))


class DeviceShutdown:
    """Stops a device by signals. ``drain_for`` is how many seconds running work may take to finish."""

    def __init__(self, agent: DeviceAgent, drain_for: float) -> None:
        self._agent, self._drain_for = agent, drain_for
        self._requests = 0  # signals, or a request from the store
        self._work: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @contextlib.contextmanager
    def on_signals(self) -> Iterator[None]:
        """Handle SIGINT and SIGTERM while the block runs."""
        try:
            with on_signals(self.request):
                yield
        finally:
            if self._timer is not None:
                self._timer.cancel()

    async def run(self) -> int:
        """Run the device until it has left. Returns the exit code."""
        if self._requests:
            return INTERRUPTED
        self._work = asyncio.create_task(self._agent.run())
        drain_requests = asyncio.create_task(self._wait_for_drain_request())
        try:
            await self._work
        except asyncio.CancelledError:
            if self._agent.joined.is_set():
                raise
            return INTERRUPTED
        finally:
            drain_requests.cancel()
        return 0

    async def _wait_for_drain_request(self) -> None:
        """The store may ask the device to leave, too."""
        await self._agent.draining.wait()
        if not self._requests:
            self._requests = 1
            self._leave("a")

    def request(self) -> None:
        """A signal has arrived."""
        self._requests += 1
        if not self._agent.joined.is_set():  # it has no work to finish
            if self._work is not None:
                self._work.cancel()
        elif self._requests == 1:
            self._leave()
        elif self._requests == 2:
            self._hand_back()
        else:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.flush()
            os._exit(INTERRUPTED)  # its child processes end with it

    def _leave(self, next_signal: str = "a second") -> None:
        held = len(self._agent.worker)
        if held:
            runs = plural(held, "run")
            log.info("leaving: %s may take %g s; %s signal hands back now", runs, self._drain_for, next_signal)
        else:
            log.info("leaving")
        self._agent.drain()
        self._timer = asyncio.get_running_loop().call_later(self._drain_for, self._hand_back)

    def _hand_back(self) -> None:
        if len(self._agent.worker):
            log.info("handing back unfinished runs")
        self._agent.drain(hand_back=True)


# -- the log of a device on standard error -----------------------------------------------------------------------------


LONGEST = 300
FIELDS = ("run", "workflow", "device")


class LoggingExecutor:
    """An executor that logs what it does. ``stopping`` returns why the execution of a run is being stopped."""

    def __init__(self, executor: Executor, stopping: Callable[[str], str | None]) -> None:
        self._executor, self._stopping = executor, stopping
        self.started = 0

    def objection(self, run: Run) -> str | None:
        return self._executor.objection(run)

    def check(self, run: Run) -> str | None:
        return self._executor.check(run)

    def judges_each(self, run: Run) -> bool:
        return self._executor.judges_each(run)

    async def probe(self) -> None:
        await self._executor.probe()

    def allow(self, run_id: str, seconds: float) -> None:
        self._executor.allow(run_id, seconds)

    def close(self) -> None:
        self._executor.close()

    async def execute(self, work: RunWork) -> Any:
        run, began = work.run, time.monotonic()
        fields = {"run": run.id, "workflow": run.workflow}
        name = f"run {short(run.id)} ({run.workflow})"
        attempt = attempt_of(run)
        again = f", attempt {attempt}" if attempt > 1 else ""
        log.info("started %s%s", name, again, extra=fields)
        self.started += 1
        try:
            value = await self._executor.execute(work)
        except asyncio.CancelledError:
            log.info("stopped %s after %s: %s", name, _since(began), self._stopping(run.id) or "", extra=fields)
            raise
        except (PolicyForbids, DeviceUnavailable) as error:
            log.warning("refused %s: %s", name, error, extra=fields)
            raise
        except DeviceTrouble as error:
            log.warning("lost %s after %s: %s", name, _since(began), error, extra=fields)
            raise
        except Exception as error:
            why = shorten(f"{type(error).__name__}: {error}", LONGEST)
            log.warning("failed %s after %s: %s", name, _since(began), why, extra=fields)
            raise
        log.info("finished %s after %s", name, _since(began), extra=fields)
        return value


def _since(began: float) -> str:
    return format_age(time.monotonic() - began)


class _TextFormatter(logging.Formatter):
    """``14:05:09  started run k3v9x2ma (transcode)``."""

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        run = getattr(record, "run", None)
        if isinstance(run, str) and short(run) not in text:
            text = f"run {short(run)}: {text}"
        if record.exc_info and record.exc_info[1] is not None:
            text = f"{text}: {record.exc_info[1]!r}"
        return f"{format_clock(record.created)}  {clean(text)}"


class _JsonFormatter(logging.Formatter):
    """The same as JSON, one object per line."""

    def format(self, record: logging.LogRecord) -> str:
        fields: JsonObject = {
            "at": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields |= {name: getattr(record, name) for name in FIELDS if isinstance(getattr(record, name, None), str)}
        if record.exc_info and record.exc_info[1] is not None:
            fields["error"] = repr(record.exc_info[1])
        return json_text(fields)


@contextmanager
def log_to_stderr(*, as_json: bool) -> Iterator[None]:
    """Print the log of Asterism to standard error while the block runs."""
    logger = logging.getLogger("asterism")
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonFormatter() if as_json else _TextFormatter())
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate
