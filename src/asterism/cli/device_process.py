"""A device as a command: it joins, says what it does, and leaves when it is told to."""

from __future__ import annotations

import logging
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field

import click

from asterism.base import expressions
from asterism.base.gc_tuning import tune_gc
from asterism.cli.cli_context import tell_json, with_fleet
from asterism.cli.device_log import Narrated, told
from asterism.cli.device_signals import Leaving
from asterism.cli.policy_lookup import find_policy
from asterism.cli.user_modules import allow_imports
from asterism.fleet.device.agent import DeviceAgent
from asterism.fleet.fleet import Fleet
from asterism.fleet.policy.policy import Policy

log = logging.getLogger("asterism.device")


@dataclass(frozen=True, slots=True)
class Terms:
    """What a device is like. ``policy`` is the path of a file, ``monitor_every`` None for one that never watches over
    the others. ``peers`` are names or addresses of those it stays in touch with, ``listen`` where it answers them."""

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
    timeout: float = 90.0
    peers: tuple[str, ...] = ()
    listen: str | None = None


def join_fleet(store: str | None, terms: Terms, *, drain_for: float, as_json: bool, create: bool) -> int:
    """Until it has left. Returns the exit code. ``create`` is whether a store is made that is not there."""
    for option, expression in (("--accepts", terms.accepts), ("--hands-back", terms.hands_back)):
        problem = expressions.check(expression) if expression is not None else None
        if problem is not None:
            raise click.BadParameter(f"it is not valid: {problem}", param_hint=option)
    policy, about = find_policy(terms.policy)  # who does no work may still run the command that is told of notices
    allow_imports()

    async def work(fleet: Fleet) -> int:
        tune_gc()
        async with _in_touch(fleet, terms):
            agent = _agent(fleet, terms, policy)
            narrated = Narrated(agent.desk.executor, lambda run_id: _stopping(agent, run_id))
            agent.desk.executor = narrated
            leaving = Leaving(agent, drain_for)
            with leaving.heard():
                log.info("joining %s as %s", fleet.store.url, terms.name)
                if terms.slots or not policy.everything:
                    log.info(about)
                code = await leaving.run()
        if as_json:
            session = agent.session
            tell_json({"name": session.device, "session": session.id, "store": fleet.store.url, "runs": narrated.begun})
        return code

    with told(as_json=as_json):
        return with_fleet(store, work, create=create)


def _agent(fleet: Fleet, terms: Terms, policy: Policy) -> DeviceAgent:
    return DeviceAgent(
        fleet,
        terms.name,
        can=terms.can,
        slots=terms.slots,
        backlog=terms.backlog,
        labels=terms.labels,
        accepts=terms.accepts,
        hands_back=terms.hands_back,
        policy=policy,
        heartbeat=terms.heartbeat,
        timeout=terms.timeout,
        monitor_every=terms.monitor_every,
        replace=terms.replace,
    )


def _in_touch(fleet: Fleet, terms: Terms) -> AbstractAsyncContextManager[None]:
    """While a device works, its peers are met and answered, if it has any."""
    if not terms.peers and terms.listen is None:
        return nullcontext()
    from asterism.peers.service import peer_connections  # what it takes to have peers need not be installed

    return peer_connections(fleet, terms.peers, terms.listen)


def _stopping(agent: DeviceAgent, run_id: str) -> str | None:
    holding = agent.desk.get(run_id)
    return holding.stopping if holding is not None else None
