"""The desk of a device: what it holds, what it executes, and how each piece of work leaves it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from asterism.core import assigning
from asterism.core.errors import Fenced, RecordedError, RunRefused
from asterism.core.jsonable import plain
from asterism.core.run import Owner, Run
from asterism.core.workflow import Workflow
from asterism.runtime.fleet.executing import RunWork
from asterism.runtime.fleet.fleet import Fleet
from asterism.runtime.fleet.holding import Holding
from asterism.runtime.fleet.ledger import UnknownRun
from asterism.runtime.fleet.policy import PolicyForbids
from asterism.store.errors import StoreError, StoreUnavailable
from asterism.store.protocol import Notice

log = logging.getLogger("asterism.device")

REMEMBERED = 10_000
"""How many grants that have left the desk are remembered, so that none is begun twice."""

FOR_EVER = float("inf")


class Executor(Protocol):
    """What executes; runtime.fleet.executing.Executors is the real one."""

    def objection(self, workflow: Workflow) -> str | None: ...

    def check(self, work: RunWork) -> str | None: ...

    async def execute(self, work: RunWork) -> Any: ...

    def close(self) -> None: ...


class Desk:
    """``sure`` says whether a grant may still be begun. ``on_free`` is called whenever there may be room again."""

    def __init__(
        self,
        fleet: Fleet,
        owner: Owner,
        executor: Executor,
        *,
        slots: int,
        backlog: int,
        grace: float,
        sure: Callable[[Holding], bool],
        on_free: Callable[[], None],
    ) -> None:
        self.fleet, self.owner, self.executor = fleet, owner, executor
        self.slots, self.backlog, self.grace = slots, backlog, grace
        self._sure, self._on_free = sure, on_free
        self._held: dict[str, Holding] = {}
        self._past: OrderedDict[tuple[str, int], None] = OrderedDict()
        self._reserved: set[str] = set()
        self._busy = 0  # holdings that execute

    # -- what is on it -----------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Holding]:
        return iter(list(self._held.values()))

    def __len__(self) -> int:
        return len(self._held)

    def get(self, run_id: str) -> Holding | None:
        return self._held.get(run_id)

    def knows(self, run_id: str, epoch: int) -> bool:
        """Whether this grant is here or was here."""
        holding = self._held.get(run_id)
        return (holding is not None and holding.grant.epoch == epoch) or (run_id, epoch) in self._past

    @property
    def free(self) -> int:
        """How many more can be executed at once."""
        return max(0, self.slots - self._busy - len(self._reserved))

    @property
    def room(self) -> int:
        """How many more can be held."""
        return max(0, self.slots + self.backlog - len(self._held) - len(self._reserved))

    def reserve(self, run_id: str) -> bool:
        if self.free <= 0 or self.room <= 0:
            return False
        self._reserved.add(run_id)
        return True

    def unreserve(self, run_id: str) -> None:
        self._reserved.discard(run_id)

    # -- the way in --------------------------------------------------------------------------------------------------

    def receive(self, run: Run, workflow: Workflow) -> None:
        """A grant of ours, committed. It is begun if it has been started, else it waits for a slot."""
        if run.session != self.owner.session or self.knows(run.id, run.epoch):
            return
        holding = Holding(run, workflow, self.fleet.clock.time())
        if not self._sure(holding):
            return  # if it is still ours, the next heartbeat says so
        self._held[run.id] = holding
        if holding.started:
            self._begin(holding)

    def _begin(self, holding: Holding) -> None:
        holding.started = True
        self._busy += 1
        holding.task = asyncio.create_task(self._execute(holding))

    async def start_waiting(self) -> None:
        """Start what is claimed and waits, the most urgent first, while there are slots."""
        waiting = [one for one in self._held.values() if not one.started and one.stopping is None]
        waiting.sort(key=lambda one: (-one.run.priority, one.run.created_at, one.run.id))
        for holding in waiting[: self.free]:
            self._reserved.add(holding.run.id)
            try:
                step = _starting(holding, self.fleet)
                holding.run = await self.fleet.ledger.change(holding.run, step)
            except RunRefused as refusal:
                log.info("lost before it began: %s", refusal.why, extra={"run": holding.run.id})
                self._leave(holding)
            except StoreUnavailable:
                return  # the next look tries again, and the heartbeat tells what became of it
            else:
                if holding.run.id in self._held and holding.stopping is None and self._sure(holding):
                    self._begin(holding)
            finally:
                self._reserved.discard(holding.run.id)

    # -- the work ----------------------------------------------------------------------------------------------------

    async def _execute(self, holding: Holding) -> None:
        run = holding.run
        try:
            given = await self.fleet.blobs.fetch(run.input)
            work = RunWork(run, holding.workflow, given, holding.told_progress, holding.told_output)
            value = plain(await self.executor.execute(work), f"the result of run {run.id}")
            output = await self.fleet.blobs.keep(value, await self.fleet.settings(), f"the result of run {run.id}")
        except asyncio.CancelledError:
            if holding.stopping is None:
                raise  # the whole device is ending
            _no_longer_cancelled()
            await self._stopped(holding)
        except PolicyForbids as error:  # nothing has begun
            words = str(error)
            await self._finish(
                holding, lambda r, flow: assigning.decline(r, holding.grant, words, self.fleet.store.clock())
            )
        except StoreError as error:
            words = f"the store: {error}"
            await self._finish(
                holding,
                lambda r, flow: assigning.release(
                    r, holding.grant, "released", words, self.fleet.store.clock(), holding.progress
                ),
            )
        except Exception as error:
            words = str(RecordedError.of(error))
            await self._finish(
                holding,
                lambda r, flow: assigning.fail(
                    _with_progress(r, holding), holding.grant, words, flow, self.fleet.store.clock()
                ),
            )
        else:
            await self._finish(
                holding,
                lambda r, flow: assigning.complete(
                    _with_progress(r, holding), holding.grant, output, self.fleet.store.clock()
                ),
            )
        finally:
            self._leave(holding)

    async def _finish(self, holding: Holding, step: Callable[[Run, Workflow], Run]) -> None:
        """Tell the store how it ended, for as long as it takes to know that the store has heard."""
        try:
            await self.fleet.ledger.change(holding.run, step, patience=FOR_EVER)
        except Fenced as refusal:
            log.warning("a result came too late: %s", refusal.why, extra={"run": holding.run.id})
            with contextlib.suppress(StoreError):
                now = self.fleet.store.clock()
                message = f"a late result of {self.owner.device} for run {holding.run.id} was refused: {refusal.why}"
                await self.fleet.store.commit([Notice(now, "late", message, holding.run.id, self.owner.device)])
        except UnknownRun:
            log.warning("the run is not in the store any more", extra={"run": holding.run.id})
        except RunRefused as refusal:
            log.warning("refused: %s", refusal.why, extra={"run": holding.run.id})

    async def _stopped(self, holding: Holding) -> None:
        """Its execution was stopped on purpose: hand it back, unless it is not ours any more."""
        why = holding.stopping or ""
        if why in ("lost", "fenced"):
            return
        reason = "preempted" if why == "preempted" else "released"
        await self._finish(
            holding,
            lambda run, flow: assigning.release(
                run, holding.grant, reason, why, self.fleet.store.clock(), holding.progress
            ),
        )

    # -- the way out -------------------------------------------------------------------------------------------------

    def stop(self, holding: Holding, why: str) -> None:
        """Stop the execution of one; ``lost`` and ``fenced`` say nothing to the store, all else hands it back."""
        if holding.stopping is not None:
            return
        holding.stopping = why
        if holding.task is not None:
            holding.task.cancel()
        elif not holding.started:
            holding.task = asyncio.create_task(self._hand_back(holding))

    def kill(self, holding: Holding) -> None:
        """Stop it at once: whatever patience its stopping has ends now."""
        if holding.task is not None:
            holding.task.cancel()

    async def _hand_back(self, holding: Holding) -> None:
        try:
            await self._stopped(holding)
        finally:
            self._leave(holding)

    def _leave(self, holding: Holding) -> None:
        if self._held.get(holding.run.id) is not holding:
            return
        del self._held[holding.run.id]
        self._busy -= holding.started
        self._past[holding.run.id, holding.grant.epoch] = None
        while len(self._past) > REMEMBERED:
            self._past.popitem(last=False)
        self._on_free()

    async def disown(self, run_id: str, epoch: int) -> None:
        """The store thinks we hold something that has left the desk: give it back."""

        def step(run: Run, _: Workflow) -> Run:
            if run.session != self.owner.session or run.epoch != epoch:
                return run
            assert run.grant is not None
            return assigning.release(run, run.grant, "released", "it is not held any more", self.fleet.store.clock())

        with contextlib.suppress(RunRefused, StoreUnavailable):
            await self.fleet.ledger.change(run_id, step)

    async def abandon(self) -> bool:
        """Stop everything and tell nobody. Whether all of it has stopped: a thread cannot be made to."""
        for holding in self:
            holding.stopping = holding.stopping or "fenced"
            self.kill(holding)
        for _ in range(2):
            tasks = [holding.task for holding in self if holding.task is not None]
            if tasks:
                await asyncio.wait(tasks, timeout=self.grace)
            for holding in self:
                self.kill(holding)
        return not len(self)


def _no_longer_cancelled() -> None:
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()


def _starting(holding: Holding, fleet: Fleet) -> Callable[[Run, Workflow], Run]:
    return lambda run, _: assigning.start(run, holding.grant, fleet.store.clock())


def _with_progress(run: Run, holding: Holding) -> Run:
    return (
        run if holding.progress is None or run.progress == holding.progress else run.changed(progress=holding.progress)
    )
