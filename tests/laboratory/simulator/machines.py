"""Simulated machines, their work, and their network to the store.

The clock of a machine drifts; it freezes, falls sick and crashes. The network delays, drops, repeats and reorders
messages, and is partitioned. Sometimes only the reply is lost, after the store has performed the request.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from asterism.core.errors import DeviceTrouble
from asterism.core.run.run import Progress, Run
from asterism.fleet.device.executor import RunWork
from asterism.store.protocol import HeartbeatReply, ProgressReport, PutRun, TakeRequest, Watch, Write
from asterism.store.store_errors import StoreUnavailable
from tests.laboratory.simulator.checker import WORK_ERROR, CheckedStore, Checker

GIVES_UP = 4.0
"""How long a machine waits for a reply by default, in seconds."""

Request = Callable[[], Coroutine[Any, Any, Any]]
_Outcome = tuple[Any, Exception | None]
Interception = Callable[[], float]


class Machine:
    """A machine, which is also the clock of its runtime. ``rate`` is how fast that clock runs, ``skew`` its error."""

    def __init__(self, name: str, rate: float, skew: float) -> None:
        self.name, self.rate, self.skew = name, rate, skew
        self.dead = False
        self.wall = 0.0  # the jumps of its wall clock, in seconds
        self.sick = False  # it cannot begin any work, such as one with a full disk
        self.frozen_at: list[tuple[float, float]] = []
        self._loop = asyncio.get_running_loop()
        self._runs = asyncio.Event()
        self._runs.set()
        self._froze: float | None = None

    # -- the runtime's clock -------------------------------------------------------------------------------------------

    def time(self) -> float:
        return self.skew + self._loop.time() * self.rate

    def wall_time(self) -> float:
        """The time by the wall clock, which nothing should rely on."""
        return self.time() + self.wall

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self.rate)
        await self.gate()

    # -- faults --------------------------------------------------------------------------------------------------------

    @property
    def frozen(self) -> bool:
        return self._froze is not None

    def freeze(self) -> None:
        if self._froze is None:
            self._froze = self._loop.time()
            self._runs.clear()

    def thaw(self) -> None:
        if self._froze is not None:
            self.frozen_at.append((self._froze, self._loop.time()))
            self._froze = None
            self._runs.set()

    def crash(self) -> None:
        self.dead = True
        self.thaw()

    async def gate(self) -> None:
        """Wait while the machine is frozen, and without end once it is dead. Everything it does passes here."""
        while self._froze is not None:
            await self._runs.wait()
        if self.dead:
            await never()

    def was_frozen_between(self, start: float, end: float) -> bool:
        return self.frozen or any(a < end and b > start for a, b in self.frozen_at)


async def never() -> NoReturn:
    """Wait until cancelled."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError


SICK = "no space left on its disk"
"""The error of a machine that cannot begin its work."""

STOPPING = 0.5
"""The longest time that an execution takes to stop, in seconds."""


class SimExecutor:
    """Executes runs: that takes time, reports progress, fails sometimes, and needs a moment to stop."""

    def __init__(self, machine: Machine, checker: Checker, chance: random.Random) -> None:
        self._machine, self._checker, self._chance = machine, checker, chance

    def objection(self, run: Run) -> str | None:
        return None

    def check(self, run: Run) -> str | None:
        return None

    def judges_each(self, run: Run) -> bool:
        return True

    async def execute(self, work: RunWork) -> Any:
        asked = self._machine.time()
        await self._machine.gate()
        waited = self._machine.time() - asked
        if work.lease is not None and waited and waited >= work.lease:
            # a frozen machine does nothing: the check of a moment ago would have happened now
            raise RuntimeError("the lease is over")
        if self._machine.sick:
            raise DeviceTrouble(SICK)
        execution = self._checker.begins(work.run.id, work.run.epoch, self._machine)
        steps = int(work.input["steps"])
        first = work.run.progress.step if work.run.progress is not None else 0
        how = "crashed"
        try:
            for step in range(min(first, steps), steps):
                await self._machine.sleep(float(work.input["seconds"]) / steps)
                work.on_progress(Progress(step + 1, steps))
            await self._machine.gate()
            if self._chance.random() < float(work.input["fails"]):
                how = "failed"
                raise RuntimeError(WORK_ERROR)
            how = "finished"
            return {"epoch": work.run.epoch}
        except asyncio.CancelledError:
            if not self._machine.dead:
                await self._stop()
                how = "stopped"
            raise
        finally:
            self._checker.ends(execution, how)

    async def _stop(self) -> None:
        """Take a while to stop, unless cancelled again."""
        await self._machine.sleep(self._chance.uniform(0.0, STOPPING))

    def allow(self, run_id: str, seconds: float) -> None:
        """A simulated machine freezes as a whole."""

    async def probe(self) -> None:
        await self._machine.gate()
        if self._machine.sick:
            raise DeviceTrouble(SICK)

    def close(self) -> None:
        """There is nothing to close."""


# -- the network -------------------------------------------------------------------------------------------------------


@dataclass
class LinkQuality:
    """The quality of the network of a machine: fault probabilities per message, and the longest delay in seconds."""

    lost: float = 0.0
    answer_lost: float = 0.0
    repeated: float = 0.0
    slow: float = 0.0
    slowest: float = 20.0


PERFECT_LINK = LinkQuality()


class _Message:
    """A request on its way. ``until`` is when the machine stops waiting for the reply."""

    __slots__ = ("answer", "name", "repeats", "request", "until")

    def __init__(
        self, name: str, request: Request, repeats: bool, answer: asyncio.Future[_Outcome], until: float
    ) -> None:
        self.name, self.request, self.repeats, self.answer, self.until = name, request, repeats, answer, until


class Wire:
    """The store as one machine reaches it.

    ``before`` and ``after`` hold interceptions by name: ``take`` for the next take that takes something, ``commit`` for
    the next commit that changes a run, ``heartbeat`` for the next heartbeat. One in ``before`` returns by how many
    seconds the request is late (infinitely many: it is lost). One in ``after`` acts when the store has just performed
    the request, and returns by how many seconds the reply is late. ``session`` is the session of the machine's device.
    """

    times_each = False
    """Whether every request has a timer: the time of its reply is not known in advance."""

    def __init__(
        self, store: CheckedStore, machine: Machine, chance: random.Random, gives_up: float = GIVES_UP
    ) -> None:
        self._store, self._machine, self._chance, self.gives_up = store, machine, chance, gives_up
        self.quality = PERFECT_LINK
        self.cut = False
        self.session = ""
        self.before: dict[str, Interception] = {}
        self.after: dict[str, Interception] = {}
        self.url = f"sim://{machine.name}"
        self.files_folder = None  # simulated work makes no files

    def heal(self) -> None:
        self.quality, self.cut = PERFECT_LINK, False
        self.before.clear()
        self.after.clear()

    def clock(self) -> float:
        return self._store.clock()

    def __getattr__(self, name: str) -> Any:
        """Send every other request over the wire."""
        method = getattr(self._store, name)

        async def ask(*args: Any, **kwargs: Any) -> Any:
            return await self._ask(name, lambda: method(*args, **kwargs))

        return ask

    async def commit(self, writes: Sequence[Write]) -> None:
        name = "commit" if any(isinstance(write, PutRun) for write in writes) else "put"
        await self._ask(name, lambda: self._store.commit(writes), repeats=True)

    async def heartbeat(
        self, session: str, profile: Mapping[str, Any], reports: Sequence[ProgressReport]
    ) -> HeartbeatReply:
        answer: HeartbeatReply = await self._ask(
            "heartbeat", lambda: self._store.heartbeat(session, profile, reports), repeats=True
        )
        return answer

    async def take(self, offer: TakeRequest, step: Callable[[Run], Run | None]) -> list[Run]:
        async def conversation() -> list[Run]:
            # the machine takes part in it: if it cannot, the store rolls back
            if self._machine.dead or self._machine.frozen:
                raise StoreUnavailable("the connection broke")
            return await self._store.take(offer, step)

        taken: list[Run] = await self._ask("take", conversation)
        return taken

    async def _ask(self, name: str, request: Request, repeats: bool = False, patience: float = 0.0) -> Any:
        """Send a request. ``patience`` is how much longer the machine waits for the reply than usual."""
        await self._machine.gate()
        loop = asyncio.get_running_loop()
        message = _Message(name, request, repeats, loop.create_future(), loop.time() + patience + self.gives_up)
        late = self.before.pop(name)() if name in self.before else 0.0
        if late < float("inf"):
            self._later(late + self._delay(), message, self._arrive, message)
        if late == float("inf") or self.times_each:
            self._is_lost(message)
        outcome, failure = await message.answer
        await self._machine.gate()
        if failure is not None:
            raise failure
        return outcome

    def _later(self, seconds: float, message: _Message, then: Callable[..., None], *args: Any) -> None:
        """Whether the reply comes too late is known now, which saves a timer for each request."""
        loop = asyncio.get_running_loop()
        if loop.time() + seconds > message.until:
            self._is_lost(message)
        loop.call_later(seconds, then, *args)

    def _is_lost(self, message: _Message) -> None:
        loop = asyncio.get_running_loop()
        loop.call_at(max(message.until, loop.time()), self._give_up, message)

    def _give_up(self, message: _Message) -> None:
        if not message.answer.done():
            message.answer.set_result((None, StoreUnavailable(f"no answer within {self.gives_up:g} s")))

    def _arrive(self, message: _Message) -> None:
        chance, quality = self._chance, self.quality
        if self.cut or self._happens(quality.lost):
            self._is_lost(message)
            return
        self._repeat(message, self._asked, message.request)
        outcome = self._asked(message.request)
        worth_it = outcome[1] is None and (outcome[0] or message.name == "commit")
        late = self.after.pop(message.name)() if worth_it and message.name in self.after else 0.0
        if late:
            self._later(late, message, self._answer, message, outcome)
        elif quality is PERFECT_LINK and not self.cut and chance.random() < 0.5:
            self._answer(message, outcome)
        else:
            self._later(self._delay(), message, self._return, message, outcome)

    def _happens(self, probability: float) -> bool:
        """Whether a fault of the network happens now."""
        return self.quality is not PERFECT_LINK and self._chance.random() < probability

    def _repeat(self, message: _Message, perform: Callable[..., object], *args: Any) -> None:
        """The same message may arrive again; nobody waits for the answer."""
        if message.repeats and self._happens(self.quality.repeated):
            again = self._chance.uniform(0.0, self.quality.slowest)
            asyncio.get_running_loop().call_later(again, perform, *args)

    def _asked(self, request: Request) -> _Outcome:
        """Return the result of a request to the store, or its error. A store in memory never waits, so no task is
        needed."""
        self._store.writer = self.session
        coroutine = request()
        try:
            coroutine.send(None)
        except StopIteration as end:
            return end.value, None
        except Exception as error:
            return None, error
        coroutine.close()
        raise AssertionError("a store in memory never waits")

    def _return(self, message: _Message, outcome: _Outcome) -> None:
        if not self.cut and not self._happens(self.quality.answer_lost):
            self._answer(message, outcome)
        elif not self.times_each:
            self._is_lost(message)

    def _answer(self, message: _Message, outcome: _Outcome) -> None:
        if not message.answer.done():
            message.answer.set_result(outcome)

    def _delay(self) -> float:
        if self._happens(self.quality.slow):
            return self._chance.uniform(0.1, self.quality.slowest)
        return 0.001 + 0.03 * self._chance.random()

    def dump(self) -> AsyncIterator[Mapping[str, Any]]:
        raise NotImplementedError("a simulated machine cannot make backups")

    def watch(self, topics: frozenset[str]) -> Watch:
        return _Watch(self._store.watch(topics), self)

    async def close(self) -> None:
        """Nothing to close."""


class _Watch:
    """A watch whose wakes get lost like messages."""

    def __init__(self, watch: Watch, wire: Wire) -> None:
        self._watch, self._wire = watch, wire

    async def wait(self, timeout: float) -> bool:
        deaf = self._wire.cut or self._wire._happens(self._wire.quality.lost)
        if deaf:
            await asyncio.sleep(timeout)
        woken = False if deaf else await self._watch.wait(timeout)
        await self._wire._machine.gate()
        return woken

    @property
    def woken(self) -> bool:
        return not self._wire.cut and self._watch.woken

    def close(self) -> None:
        self._watch.close()
