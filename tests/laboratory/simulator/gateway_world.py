"""Simulated fleets whose machines have no store: they reach a gateway, over a network that loses and repeats messages.

The server crashes, too, and forgets all that is not in the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from asterism.base.clock import stopped
from asterism.core.run.run import Grant, Run
from asterism.fleet.device.device_connection import DeviceAccess
from asterism.fleet.fleet import Fleet
from asterism.gateway.device_key import DeviceKey
from asterism.gateway.enrolment import DeviceCredentials, Identity, enrol, invite
from asterism.gateway.gateway import Gateway
from asterism.gateway.gateway_connection import GatewayAccess
from asterism.gateway.gateway_messages import GatewayRefusal, GatewayRefused
from asterism.store.protocol import HeartbeatReply, ProgressReport, TakeRequest, Write
from asterism.store.store_errors import StoreUnavailable
from tests.gateway.memory_outbox import MemoryOutbox
from tests.laboratory.simulator.checker import CheckedStore
from tests.laboratory.simulator.fleet_world import TIMES, FleetLife, FleetWorld
from tests.laboratory.simulator.machines import Machine, Wire, _Message, _Outcome

_writer: ContextVar[str] = ContextVar("_writer", default="")
"""The session for which the server acts."""

NAMES = {"take": "take", "beat": "heartbeat", "steps": "commit"}
"""The operations that faults intercept, by the names of faults."""


class ServerStore:
    """The store as the server uses it: the checker gets to know for which session."""

    def __init__(self, store: CheckedStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, writes: Sequence[Write]) -> None:
        self._store.writer = _writer.get()
        await self._store.commit(writes)

    async def take(self, offer: TakeRequest, step: Callable[[Run], Run | None]) -> list[Run]:
        self._store.writer = _writer.get()
        return await self._store.take(offer, step)

    async def heartbeat(
        self, session: str, profile: Mapping[str, Any], reports: Sequence[ProgressReport]
    ) -> HeartbeatReply:
        self._store.writer = session
        return await self._store.heartbeat(session, profile, reports)


class SimCredentials(DeviceCredentials):
    """Notes for which session a step is made."""

    def grant_of(self, device: str, token: object) -> Grant:
        grant = super().grant_of(device, token)
        _writer.set(grant.session)
        return grant


class SimGateway(Gateway):
    async def identify(self, token: str | None, *, fresh: bool = False) -> Identity:
        identity = await super().identify(token, fresh=fresh)
        _writer.set(identity.owner.session)
        return identity


class SimServer:
    """The process of a server: it may be down."""

    def __init__(self, store: CheckedStore, chance: random.Random) -> None:
        self._store, self._chance = ServerStore(store), chance
        self._gateway: SimGateway | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        fleet = Fleet(self._store, by="server", clock=Machine("server", 1.0, 0.0), chance=self._chance)
        credentials = await SimCredentials.open(fleet.store)
        self._gateway = SimGateway(fleet, credentials, "simulated")
        self.spawn(self._gateway.look_for_work())

    def crash(self) -> None:
        self._gateway = None
        for task in list(self._tasks):
            task.cancel()

    def spawn(self, job: Any) -> asyncio.Task[Any]:
        task = asyncio.create_task(job)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    @property
    def up(self) -> bool:
        return self._gateway is not None

    async def answer(self, operation: str, token: str | None, body: str | bytes) -> Any:
        assert self._gateway is not None
        try:
            answer = await self._gateway.answer(operation, token, body if isinstance(body, bytes) else json.loads(body))
        except GatewayRefusal as refusal:
            raise GatewayRefused(str(refusal), refusal.kind) from None
        return answer if isinstance(answer, bytes) else json.loads(json.dumps(answer))


class SimTransport(Wire):
    """The network of a machine to the server."""

    times_each = True

    def __init__(
        self, server: SimServer, store: CheckedStore, machine: Machine, chance: random.Random, gives_up: float
    ) -> None:
        super().__init__(store, machine, chance, gives_up)
        self._server = server

    async def send(self, operation: str, body: Any, token: str | None, *, timeout: float) -> Any:
        waits = operation == "wait"
        sent = body if isinstance(body, bytes) else json.dumps(body)
        return await self._ask(
            NAMES.get(operation, operation),
            lambda: self._server.answer(operation, token, sent),
            repeats=not waits,
            patience=float(body["seconds"]) if waits else 0.0,
        )

    def _arrive(self, message: _Message) -> None:
        if self.cut or not self._server.up or self._happens(self.quality.lost):
            return
        self._repeat(message, self._perform, message)
        self._server.spawn(self._performed(message))

    def _perform(self, message: _Message) -> None:
        if self._server.up:
            self._server.spawn(_outcome(message))

    async def _performed(self, message: _Message) -> None:
        outcome = await _outcome(message)
        worth_it = outcome[1] is None and (message.name != "take" or bool(outcome[0]["runs"]))
        late = self.after.pop(message.name)() if worth_it and message.name in self.after else 0.0
        asyncio.get_running_loop().call_later(late or self._delay(), self._return, message, outcome)


async def _outcome(message: _Message) -> _Outcome:
    try:
        return await message.request(), None
    except (StoreUnavailable, GatewayRefused) as error:
        return None, error


class GatewayWorld(FleetWorld):
    """Machines that reach the store only through a gateway. The server monitors them."""

    def __init__(self, seed: int, **arguments: Any) -> None:
        super().__init__(seed, **arguments)
        self.server = SimServer(self.store, self.chance)
        self._keys: dict[str, DeviceKey] = {}
        self._disks: dict[str, MemoryOutbox] = {}
        self._monitors: list[asyncio.Task[None]] = []
        self.faults.all += [self._crash_server] * 2

    def wire(self, machine: Machine) -> Wire:
        return SimTransport(self.server, self.store, machine, self.chance, self._gives_up)

    def access(self, wire: Wire, machine: Machine, host: str) -> DeviceAccess:
        assert isinstance(wire, SimTransport)
        disk = self._disks.setdefault(host, MemoryOutbox())
        clocks: dict[str, Any] = {"clock": machine, "wall": lambda: 1_000_000.0 + machine.time()}
        return GatewayAccess(wire, self._keys[machine.name], disk, chance=self.chance, **clocks)

    def device_terms(self, name: str) -> dict[str, Any]:
        return {}

    def fleet_at(self, life: FleetLife) -> Fleet:
        """People use the store."""
        return Fleet(ServerStore(self.store), by="person", chance=self.chance)

    async def play(self) -> None:
        for name in self.names:
            self._keys[name] = DeviceKey.new()
            await enrol(self.store, await invite(self.store, name=name), name, self._keys[name].public)
        await self.server.start()
        self._watch_over()
        try:
            await super().play()
        finally:
            self.server.crash()
            await stopped(*self._monitors)

    def _watch_over(self) -> None:
        """Start a monitor beside the server."""
        machine = Machine("hub", 1.0, 0.0)
        wire = super().wire(machine)
        access = super().access(wire, machine, "hub")
        agent = self.agent(access, machine, "hub", slots=0, **TIMES, **self.monitor_terms)
        wire.session = agent.session.id
        self._monitors.append(asyncio.create_task(self._live(agent)))

    def _heal(self) -> None:
        super()._heal()
        if not self.server.up:
            self.spawn(self.server.start())

    async def _crash_server(self) -> None:
        """The process of the server ends in the middle of everything, and is started again."""
        if self.server.up:
            self.checker.note("the server crashes")
            self.server.crash()
            await asyncio.sleep(self.chance.choice([0.1, 3.0, 8.0, 15.0]))
            with contextlib.suppress(StoreUnavailable):
                if not self.server.up:
                    await self.server.start()
            self.checker.note("the server is back")
