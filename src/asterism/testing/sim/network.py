"""The network between a machine and the store: it delays, drops, repeats, reorders and partitions, and sometimes only
the answer gets lost, after the store has done what it was asked."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from asterism.core.run import Run
from asterism.store.errors import StoreUnavailable
from asterism.store.memory import MemoryStore
from asterism.store.protocol import Answer, Offer, Report, Watch, Write
from asterism.testing.sim.machine import Machine

GIVES_UP = 4.0
"""After how many seconds a machine stops waiting for an answer."""


@dataclass
class Weather:
    """How bad the network is just now; all of it is chance per message."""

    lost: float = 0.0
    answer_lost: float = 0.0
    repeated: float = 0.0
    slow: float = 0.0
    slowest: float = 20.0


CALM = Weather()


class Wire:
    """The store as one machine reaches it."""

    def __init__(self, store: MemoryStore, machine: Machine, chance: random.Random) -> None:
        self._store, self._machine, self._chance = store, machine, chance
        self.weather = CALM
        self.cut = False
        self.url = f"sim://{machine.name}"
        self._background: set[asyncio.Task[Any]] = set()

    def clock(self) -> float:
        return self._store.clock()

    def __getattr__(self, name: str) -> Any:
        """Every other question is asked over the wire."""
        method = getattr(self._store, name)

        async def ask(*args: Any, **kwargs: Any) -> Any:
            return await self._ask(lambda: method(*args, **kwargs))

        return ask

    async def commit(self, writes: Sequence[Write]) -> None:
        await self._ask(lambda: self._store.commit(writes), repeats=True)

    async def beat(self, session: str, profile: Mapping[str, Any], reports: Sequence[Report]) -> Answer:
        answer: Answer = await self._ask(lambda: self._store.beat(session, profile, reports), repeats=True)
        return answer

    async def take(self, offer: Offer, step: Callable[[Run], Run | None]) -> list[Run]:
        async def conversation() -> list[Run]:
            # the machine takes part in it: if it cannot, the store undoes what was begun
            if self._machine.dead or self._machine.frozen:
                raise StoreUnavailable("the connection broke")
            return await self._store.take(offer, step)

        taken: list[Run] = await self._ask(conversation)
        return taken

    async def _ask(self, question: Callable[[], Any], repeats: bool = False) -> Any:
        await self._machine.gate()
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._spawn(self._deliver(question, answer, repeats))
        done, _ = await asyncio.wait([answer], timeout=GIVES_UP)
        await self._machine.gate()
        if not done:
            answer.cancel()
            raise StoreUnavailable(f"no answer within {GIVES_UP:g} s")
        return answer.result()

    async def _deliver(self, question: Callable[[], Any], answer: asyncio.Future[Any], repeats: bool) -> None:
        chance, weather = self._chance, self.weather
        await asyncio.sleep(self._delay())
        if self.cut or chance.random() < weather.lost:
            return
        if repeats and chance.random() < weather.repeated:
            self._spawn(self._again(question))
        try:
            outcome, failure = await question(), None
        except Exception as error:
            outcome, failure = None, error
        await asyncio.sleep(self._delay())
        if self.cut or chance.random() < weather.answer_lost or answer.done():
            return
        if failure is not None:
            answer.set_exception(failure)
        else:
            answer.set_result(outcome)

    async def _again(self, question: Callable[[], Any]) -> None:
        await asyncio.sleep(self._chance.uniform(0.0, self.weather.slowest))
        try:
            await question()
        except Exception:
            return  # nobody waits for it

    def _delay(self) -> float:
        if self._chance.random() < self.weather.slow:
            return self._chance.uniform(0.1, self.weather.slowest)
        return self._chance.uniform(0.001, 0.03)

    def _spawn(self, job: Any) -> None:
        task = asyncio.get_running_loop().create_task(job)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def dump(self) -> AsyncIterator[Mapping[str, Any]]:
        raise NotImplementedError("a simulated machine makes no backups")

    def watch(self, topics: frozenset[str]) -> Watch:
        return _Watch(self._store.watch(topics), self)

    async def close(self) -> None:
        for task in list(self._background):
            task.cancel()


class _Watch:
    """Wakes get lost like everything else."""

    def __init__(self, watch: Watch, wire: Wire) -> None:
        self._watch, self._wire = watch, wire

    async def wait(self, timeout: float) -> bool:
        deaf = self._wire.cut or self._wire._chance.random() < self._wire.weather.lost
        if deaf:
            await asyncio.sleep(timeout)
        woken = False if deaf else await self._watch.wait(timeout)
        await self._wire._machine.gate()
        return woken

    def close(self) -> None:
        self._watch.close()
