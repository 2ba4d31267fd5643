"""A stage for tests of durable plans: orchestrators and devices on one store, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from asterism.base import expressions
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.journal import Finish
from asterism.core.plan.task import Task
from asterism.durable.durable_orchestrator import DurableOrchestrator
from asterism.durable.journal_store import StoredConstellation, load
from asterism.fleet.device.agent import DeviceAgent
from asterism.fleet.fleet import Fleet
from asterism.orchestrator.events import Event
from asterism.orchestrator.result import Result
from asterism.store.memory import MemoryStore
from asterism.store.protocol import PutRegister, Write
from asterism.store.store_errors import Conflict, StoreUnavailable
from tests.durable import durable_work
from tests.durable.durable_work import DONE
from tests.laboratory.simulator.fleet_world import SimHost

PATIENCE = 600.0


class LoopClock:
    def time(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Stage:
    def __init__(self) -> None:
        durable_work.reset()
        loop = asyncio.get_running_loop()
        self.store = MemoryStore(lambda: 1_000_000.0 + loop.time())
        self.now = loop.time
        self._made = 0
        self._tasks: list[asyncio.Task[Any]] = []

    def fleet(self) -> Fleet:
        self._made += 1
        return Fleet(self.store, by="ann", clock=LoopClock(), chance=random.Random(self._made))

    def orchestrator(self, *, host: str = "here", local: int = 4, **options: Any) -> DurableOrchestrator:
        return DurableOrchestrator(
            self.fleet(), local=local, host=host, make_agent=lambda *a, **t: agent(*a, host=host, **t), **options
        )

    async def device(self, name: str, **options: Any) -> DeviceAgent:
        made = agent(self.fleet(), name, host=name, **{"slots": 4, **options})
        self.spawn(made.run())
        await made.joined.wait()
        return made

    def spawn(self, job: Any) -> asyncio.Task[Any]:
        task = asyncio.create_task(job)
        self._tasks.append(task)
        return task

    async def load(self, name: str = "nightly") -> StoredConstellation:
        return await load(self.store, name, expressions)

    async def until(self, condition: Callable[[], Any]) -> None:
        end = self.now() + PATIENCE
        while not condition():
            assert self.now() < end, "it never happened"
            await asyncio.sleep(0.05)

    async def close(self) -> None:
        for _ in range(5):
            for task in self._tasks:
                task.cancel()
            await asyncio.sleep(1.0)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        assert await self.store.check() == []


def agent(*arguments: Any, host: str, **options: Any) -> DeviceAgent:
    return DeviceAgent(*arguments, **{"host": SimHost(host), "measure": dict, "monitor_every": 2.0, **options})


def task(name: str, call: str = "work", **options: Any) -> Task:
    return Task(name, call=f"tests.durable.durable_work:{call}", inputs={"name": name}, **options)


def chain(*names: str, call: str = "work") -> Constellation:
    plan = Constellation("nightly")
    before = None
    for name in names:
        plan.add(task(name, call), before)
        before = name
    return plan


class Line:
    """A store behind a line that may be cut. A cut line is noticed, as by a process that lives on. Each request takes
    ``delay`` seconds, and so at least one turn of the loop, as with a real store."""

    def __init__(self, stage: Stage, delay: float = 0.0) -> None:
        self._store, self.cut, self._delay = stage.store, False, delay

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._store, name)
        if not asyncio.iscoroutinefunction(member):
            return member

        async def asked(*arguments: Any, **more: Any) -> Any:
            if self.cut:
                raise StoreUnavailable("the line is cut")
            await asyncio.sleep(self._delay)
            return await member(*arguments, **more)

        return asked


def behind(stage: Stage, line: Line, host: str = "here", local: int = 4) -> DurableOrchestrator:
    fleet = Fleet(line, by="ann", clock=LoopClock(), chance=random.Random(host))
    return DurableOrchestrator(fleet, local=local, host=host, make_agent=lambda *a, **t: agent(*a, host=host, **t))


@asynccontextmanager
async def staged() -> AsyncIterator[Stage]:
    """A store with a fleet, and durable orchestrators on it, in virtual time."""
    stage = Stage()
    try:
        async with asyncio.timeout(100 * PATIENCE):
            yield stage
    finally:
        await stage.close()


async def left(job: Awaitable[Result], when: Callable[[], Any], stage: Stage) -> None:
    """Run until a condition holds, and then stop the orchestrator."""
    running = asyncio.ensure_future(job)
    await stage.until(lambda: running.done() or when())
    assert not running.done(), running
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


def heard_by(orchestrator: Any) -> list[Event]:
    heard: list[Event] = []
    orchestrator.events.subscribe(heard.append)
    return heard


def overtaken_slowly(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event]:
    """Make the reload of a plan slow. Returns an event that is set when it begins, and one that lets it continue."""
    registers, reached, go = stage.store.registers, asyncio.Event(), asyncio.Event()

    async def slow(prefix: str) -> Any:
        if prefix.startswith("journal/") and not reached.is_set():
            reached.set()
            await go.wait()
        return await registers(prefix)

    monkeypatch.setattr(stage.store, "registers", slow)
    return reached, go


def overtake(stage: Stage) -> None:
    """Let the first task end, and refuse the commit of its end: the plan is read again."""
    refuse_next_end(stage)
    durable_work.gate("a").set()


def refuse_next_end(stage: Stage) -> None:
    """Refuse the next commit of an end, as if another process had changed something of it."""
    commit = stage.store.commit

    async def picky(writes: Sequence[Write]) -> None:
        if ends_a_task(writes):
            stage.store.commit = commit  # type: ignore[method-assign]
            raise Conflict("run that another process has written")
        await commit(writes)

    stage.store.commit = picky  # type: ignore[method-assign]


def ends_a_task(writes: Sequence[Write]) -> bool:
    records = [write.value for write in writes if isinstance(write, PutRegister)]
    return any(isinstance(step, Finish) for record in records for step in getattr(record, "steps", ()))


async def written(*names: str) -> None:
    """Wait until tasks have begun, and a little longer."""
    for name in names:
        await durable_work.gate(f"{name} begun").wait()
    await asyncio.sleep(1.0)


def slowly_completed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, *, refused: bool = False
) -> tuple[asyncio.Event, asyncio.Event]:
    """Make the commit of an end slow. Returns an event that is set when it begins, and one that lets it continue. The
    first one may be ``refused`` then."""
    commit, reached, go = stage.store.commit, asyncio.Event(), asyncio.Event()
    refusals = [Conflict("run that another process has written")] if refused else []

    async def slow(writes: Sequence[Write]) -> None:
        if ends_a_task(writes):
            reached.set()
            await go.wait()
            if refusals:
                raise refusals.pop()
        await commit(writes)

    monkeypatch.setattr(stage.store, "commit", slow)
    return reached, go


__all__ = [
    "DONE",
    "Line",
    "Stage",
    "agent",
    "behind",
    "chain",
    "ends_a_task",
    "heard_by",
    "left",
    "overtake",
    "overtaken_slowly",
    "refuse_next_end",
    "slowly_completed",
    "staged",
    "task",
    "written",
]
