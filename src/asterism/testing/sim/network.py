"""The network between a machine and the store: it delays, drops, repeats, reorders and partitions, and sometimes only
the answer gets lost, after the store has done what it was asked."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from asterism.core.run import Run
from asterism.store.errors import StoreUnavailable
from asterism.store.memory import MemoryStore
from asterism.store.protocol import Answer, Offer, PutRun, Report, Watch, Write
from asterism.testing.sim.machine import Machine

GIVES_UP = 4.0
"""After how many seconds a machine stops waiting for an answer, unless it is said otherwise."""

Question = Callable[[], Coroutine[Any, Any, Any]]
Ambush = Callable[[], float]
"""Something that happens when the store has just done what it was asked, and before it is known: returns by how many
seconds the answer is late."""


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
    """The store as one machine reaches it. ``ambushes`` are set up by name: ``take`` for the next one that takes
    something, ``commit`` for the next one that changes a run, ``beat`` for the next heartbeat."""

    def __init__(self, store: MemoryStore, machine: Machine, chance: random.Random, gives_up: float = GIVES_UP) -> None:
        self._store, self._machine, self._chance, self._gives_up = store, machine, chance, gives_up
        self.weather = CALM
        self.cut = False
        self.ambushes: dict[str, Ambush] = {}
        self.url = f"sim://{machine.name}"

    def clock(self) -> float:
        return self._store.clock()

    def __getattr__(self, name: str) -> Any:
        """Every other question is asked over the wire."""
        method = getattr(self._store, name)

        async def ask(*args: Any, **kwargs: Any) -> Any:
            return await self._ask(name, lambda: method(*args, **kwargs))

        return ask

    async def commit(self, writes: Sequence[Write]) -> None:
        name = "commit" if any(isinstance(write, PutRun) for write in writes) else "put"
        await self._ask(name, lambda: self._store.commit(writes), repeats=True)

    async def beat(self, session: str, profile: Mapping[str, Any], reports: Sequence[Report]) -> Answer:
        answer: Answer = await self._ask("beat", lambda: self._store.beat(session, profile, reports), repeats=True)
        return answer

    async def take(self, offer: Offer, step: Callable[[Run], Run | None]) -> list[Run]:
        async def conversation() -> list[Run]:
            # the machine takes part in it: if it cannot, the store undoes what was begun
            if self._machine.dead or self._machine.frozen:
                raise StoreUnavailable("the connection broke")
            return await self._store.take(offer, step)

        taken: list[Run] = await self._ask("take", conversation)
        return taken

    async def _ask(self, name: str, question: Question, repeats: bool = False) -> Any:
        await self._machine.gate()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[tuple[Any, Exception | None]] = loop.create_future()
        giving_up = loop.call_later(self._gives_up, self._give_up, answer)
        loop.call_later(self._delay(), self._arrive, name, question, answer, repeats)
        try:
            outcome, failure = await answer
        finally:
            giving_up.cancel()
        await self._machine.gate()
        if failure is not None:
            raise failure
        return outcome

    def _give_up(self, answer: asyncio.Future[Any]) -> None:
        if not answer.done():
            answer.set_result((None, StoreUnavailable(f"no answer within {self._gives_up:g} s")))

    def _arrive(self, name: str, question: Question, answer: asyncio.Future[Any], repeats: bool) -> None:
        loop, chance, weather = asyncio.get_running_loop(), self._chance, self.weather
        if self.cut or chance.random() < weather.lost:
            return
        if repeats and chance.random() < weather.repeated:
            loop.call_later(chance.uniform(0.0, weather.slowest), _asked, question)  # nobody waits for it
        outcome = _asked(question)
        late = 0.0
        if name in self.ambushes and outcome[1] is None and (outcome[0] or name == "commit"):
            late = self.ambushes.pop(name)()
            if late:
                loop.call_later(late, self._return, answer, outcome, True)
                return
        loop.call_later(self._delay(), self._return, answer, outcome)

    def _return(self, answer: asyncio.Future[Any], outcome: tuple[Any, Exception | None], surely: bool = False) -> None:
        lost = self.cut or self._chance.random() < self.weather.answer_lost
        if not answer.done() and (surely or not lost):
            answer.set_result(outcome)

    def _delay(self) -> float:
        if self.weather is not CALM and self._chance.random() < self.weather.slow:
            return self._chance.uniform(0.1, self.weather.slowest)
        return self._chance.uniform(0.001, 0.03)

    def dump(self) -> AsyncIterator[Mapping[str, Any]]:
        raise NotImplementedError("a simulated machine makes no backups")

    def watch(self, topics: frozenset[str]) -> Watch:
        return _Watch(self._store.watch(topics), self)

    async def close(self) -> None:
        """Nothing is held."""


def _asked(question: Question) -> tuple[Any, Exception | None]:
    """What the store answers, or what it raises. In memory it never waits, so it is asked without a task."""
    coroutine = question()
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value, None
    except Exception as error:
        return None, error
    coroutine.close()
    raise AssertionError("a store in memory never waits")


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
