"""A fleet in virtual time: a store with a clock to set, connections to cut, and executors under control of a test."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, ClassVar

from asterism.core.run.run import Progress, Run
from asterism.core.run.work import Workflow
from asterism.fleet.device.agent import DeviceAgent
from asterism.fleet.device.executor import RunWork
from asterism.fleet.fleet import Fleet
from asterism.fleet.monitor import Monitor
from asterism.fleet.policy.device_policy import PolicyForbids
from asterism.gateway.device_key import DeviceKey
from asterism.gateway.enrolment import enrol, invite
from asterism.gateway.gateway import HOST_SUFFIX, Gateway
from asterism.gateway.gateway_connection import GatewayAccess
from asterism.gateway.gateway_messages import GatewayRefusal, GatewayRefused
from asterism.store.memory import MemoryStore
from asterism.store.protocol import Notice, Store, Watch
from asterism.store.store_errors import StoreUnavailable
from tests.gateway.memory_outbox import MemoryOutbox

WORK = Workflow("work", call="work:do")
PATIENCE = 20_000.0
"""How long a test waits for something, in virtual seconds, before it says that it never came."""


class Clock:
    """Counts seconds, at its own rate and from its own beginning."""

    def __init__(self, rate: float = 1.0, skew: float = 0.0) -> None:
        self.rate, self.skew = rate, skew

    def time(self) -> float:
        return self.skew + asyncio.get_running_loop().time() * self.rate

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self.rate)


class Line:
    """A store as one device reaches it. While it is ``down`` nothing gets through. ``drops`` and ``loses`` count how
    many of the next questions, by name, get lost on the way or on the way back; ``slow`` says by how many seconds the
    next answer is late, and ``late`` the next question."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.down = False
        self.drops: Counter[str] = Counter()
        self.loses: Counter[str] = Counter()
        self.late: dict[str, float] = {}
        self.slow: dict[str, float] = {}
        self.asked: Counter[str] = Counter()
        self.url, self.files_folder = store.url, store.files_folder

    def clock(self) -> float:
        return self._store.clock()

    def watch(self, topics: frozenset[str]) -> Watch:
        return self._store.watch(topics)

    def dump(self) -> Any:
        return self._store.dump()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        async def ask(*args: Any, **options: Any) -> Any:
            return await self._ask(name, lambda: method(*args, **options))

        return ask

    async def _ask(self, name: str, question: Callable[[], Awaitable[Any]]) -> Any:
        self.asked[name] += 1
        self._break(self.drops, name)
        if self.down:
            raise StoreUnavailable("the line is down")
        await asyncio.sleep(self.late.pop(name, 0.0))
        answer = await question()
        if name != "take" or (answer["runs"] if isinstance(answer, dict) else answer):
            # one that takes nothing is not worth an ambush
            await asyncio.sleep(self.slow.pop(name, 0.0))
        self._break(self.loses, name)
        if self.down:
            raise StoreUnavailable("the line went down")
        return answer

    def _break(self, those: Counter[str], name: str) -> None:
        if those[name]:
            those[name] -= 1
            raise StoreUnavailable(f"a {name} got lost")


class GatewayLine(Line):
    """The gateway of a stage as one device reaches it. Messages have the names of what a device with a store would ask:
    ``heartbeat``, ``take``, ``commit`` for steps, ``find`` for its own runs."""

    NAMES: ClassVar[dict[str, str]] = {"beat": "heartbeat", "steps": "commit", "own": "find"}

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage.store)
        self._stage = stage

    async def send(self, operation: str, body: Any, token: str | None, *, timeout: float) -> Any:
        async def question() -> Any:
            gateway = self._stage.gateway
            assert gateway is not None
            try:
                sent = body if isinstance(body, bytes) else json.loads(json.dumps(body))
                answer = await gateway.answer(operation, token, sent)
            except GatewayRefusal as refusal:
                raise GatewayRefused(str(refusal), refusal.kind) from None
            return answer if isinstance(answer, bytes) else json.loads(json.dumps(answer))

        return await self._ask(self.NAMES.get(operation, operation), question)

    async def close(self) -> None:
        """Nothing to close."""


class Hands:
    """An executor that works until the test says how it ends. Stopping takes ``stopping`` seconds. ``begun`` and
    ``stopped`` are what it did: the run, its epoch, and when."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, int, float]] = []
        self.stopped: list[tuple[str, int, float]] = []
        self.stopping = 0.0
        self.will_not: str | None = None
        self.refuses: str | None = None
        self.closed = False
        self.works: dict[str, RunWork] = {}
        self._ends: dict[str, asyncio.Future[Any]] = {}

    def objection(self, run: Run) -> str | None:
        return self.will_not

    def check(self, run: Run) -> str | None:
        return self.will_not or self.refuses

    def judges_each(self, run: Run) -> bool:
        return True

    def allow(self, run_id: str, seconds: float) -> None:
        """There is no guard."""

    async def probe(self) -> None:
        """They are always able to work."""

    def close(self) -> None:
        self.closed = True

    async def execute(self, work: RunWork) -> Any:
        if self.refuses is not None:
            raise PolicyForbids(self.refuses)
        run, now = work.run, asyncio.get_running_loop().time
        self.begun.append((run.id, run.epoch, now()))
        self.works[run.id] = work
        self._ends[run.id] = asyncio.get_running_loop().create_future()
        try:
            return await self._ends[run.id]
        except asyncio.CancelledError:
            await asyncio.sleep(self.stopping)
            self.stopped.append((run.id, run.epoch, now()))
            raise
        finally:
            self._ends.pop(run.id, None)

    @property
    def busy(self) -> set[str]:
        """The runs that are being worked on."""
        return set(self._ends)

    def finish(self, run: Run | str, value: Any = None) -> None:
        self._ends[run if isinstance(run, str) else run.id].set_result(value)

    def fail(self, run: Run, error: Exception) -> None:
        self._ends[run.id].set_exception(error)

    def progress(self, run: Run, step: int, total: int) -> None:
        self.works[run.id].on_progress(Progress(step, total))

    def says(self, run: Run, words: str) -> None:
        self.works[run.id].on_output(words)


class DeviceHost:
    """A machine on which no other process is the device."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.free = True
        self.closed = False
        self.strays: list[str] = []

    def acquire(self) -> bool:
        return self.free

    def kill_orphans(self, session: str) -> None:
        self.strays.append(session)

    def close(self) -> None:
        self.closed = True


class Device:
    """An agent with all that belongs to it."""

    def __init__(self, stage: Stage, name: str, *, host: str | None = None, rate: float = 1.0, **options: Any) -> None:
        key = stage.keys.get(name)
        self.line = Line(stage.store) if key is None else GatewayLine(stage)
        self.hands, self.presence = Hands(), DeviceHost(host or name)
        self.clock = Clock(rate, skew=options.pop("skew", 0.0))
        self.fleet = Fleet(self.line, by=name, clock=self.clock, chance=random.Random(f"{name} {host}"))
        defaults: dict[str, Any] = {"measure": dict, "monitor_every": None, "grace": 1.0}
        place: Fleet | GatewayAccess = self.fleet
        if key is not None:
            assert isinstance(self.line, GatewayLine)
            outbox = stage.outboxes.setdefault(name, MemoryOutbox())
            own: dict[str, Any] = {"clock": self.clock, "chance": self.fleet.chance, "wall": stage.store.clock}
            place = GatewayAccess(self.line, key, outbox, **own)
        self.agent = DeviceAgent(place, name, executor=self.hands, host=self.presence, **{**defaults, **options})
        self.task: asyncio.Task[None] = asyncio.create_task(self.agent.run())

    @property
    def session(self) -> str:
        return self.agent.session.id

    async def crash(self) -> None:
        """Gone without a word."""
        self.line.down = True
        await self.leave()

    async def leave(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


class Stage:
    """``jump`` is by how much the store's clock is wrong. ``through`` is how devices reach the store: themselves, or
    through a ``gateway``."""

    def __init__(self, through: str = "store") -> None:
        self.through = through
        self.gateway: Gateway | None = None
        self.keys: dict[str, DeviceKey] = {}
        self.outboxes: dict[str, MemoryOutbox] = {}
        self._looking: asyncio.Task[None] | None = None
        loop = asyncio.get_running_loop()
        self.now = loop.time
        self.jump = 0.0
        self._fleets = 0
        self.store = MemoryStore(lambda: 1_000_000.0 + loop.time() + self.jump)
        self.person = self.fleet("ann")
        self.devices: list[Device] = []

    def host(self, name: str) -> str:
        """A host as the sessions of devices name it."""
        return f"{name}{HOST_SUFFIX}" if self.through == "gateway" else name

    def fleet(self, by: str, store: Store | None = None) -> Fleet:
        self._fleets += 1  # so that no two draw the same id
        return Fleet(store or self.store, by=by, clock=Clock(), chance=random.Random(self._fleets))

    def monitor(self, name: str = "hub", line: Line | None = None, **options: Any) -> Monitor:
        return Monitor(self.fleet(name, line), name, **options)

    async def device(self, name: str, **options: Any) -> Device:
        """One that has joined."""
        if self.through == "gateway" and options.get("monitor_every") is None and name not in self.keys:
            await self.enrol(name)
        device = Device(self, name, **options)
        self.devices.append(device)
        joined = asyncio.create_task(device.agent.joined.wait())
        await asyncio.wait([joined, device.task], return_when=asyncio.FIRST_COMPLETED)
        if device.task.done():
            joined.cancel()
            device.task.result()
        return device

    async def enrol(self, name: str) -> None:
        """Let devices of this name reach the store through the gateway only."""
        if self.gateway is None:
            await self.start_gateway()
        self.keys[name] = DeviceKey.new()
        await enrol(self.store, await invite(self.store, name=name), name, self.keys[name].public)

    async def start_gateway(self) -> None:
        """Start the server, or start it again: it has forgotten everything."""
        await self.stop_gateway()
        self.gateway = await Gateway.open(self.fleet("server"))
        self._looking = asyncio.create_task(self.gateway.look_for_work())

    async def stop_gateway(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def until(self, condition: Callable[[], Any]) -> None:
        end = self.now() + PATIENCE
        while not condition():
            assert self.now() < end, "it never happened"
            await asyncio.sleep(0.05)

    async def at_work(self, device: Device, run: Run) -> None:
        """Until the device works on the run."""
        await self.until(lambda: run.id in device.hands.busy)

    async def reaches(self, run: Run, status: str) -> Run:
        """The run once it has a status."""
        await self.until(lambda: self.store._runs[run.id].status == status)
        return self.store._runs[run.id]

    async def end_of(self, run: Run) -> Run:
        """The run once it has ended."""
        async with asyncio.timeout(PATIENCE):
            return await self.person.wait(run.id)

    async def read(self, run: Run) -> Run:
        return await self.person.run(run.id)

    async def notices(self, kind: str) -> list[Notice]:
        return [notice for _, notice in await self.store.notices(limit=10_000) if notice.kind == kind]

    async def close(self) -> None:
        for device in self.devices:
            await device.leave()
        await self.stop_gateway()
        await self.person.waiters.close()
        assert await self.store.check() == []


@asynccontextmanager
async def staged(through: str = "store") -> AsyncIterator[Stage]:
    """A fleet in virtual time; at the end no task is left, and its store is consistent."""
    stage = Stage(through)
    try:
        yield stage
    finally:
        await stage.close()
