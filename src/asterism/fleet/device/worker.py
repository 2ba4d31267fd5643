"""The desk of a device: what it holds, what it executes, and how each piece of work leaves it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import partial
from typing import Any

from asterism.core.errors import AsterismError, DeviceTrouble, DeviceUnavailable, Fenced, RecordedError, RunRefused
from asterism.core.json_values import plain_json
from asterism.core.run.run import COMPLETED, Owner, Run
from asterism.core.run.workflow import Workflow
from asterism.fleet.device.completion import End, Outbox
from asterism.fleet.device.executor import Executor, RunWork
from asterism.fleet.device.held_run import Holding, Past, worth
from asterism.fleet.device.outcomes import broken_off, completed, declined, disowned, failed, released, started
from asterism.fleet.fleet import Fleet
from asterism.fleet.ledger import Step, UnknownRun, blob_of
from asterism.fleet.policy.policy import PolicyForbids
from asterism.fleet.run_blobs import is_small
from asterism.store.protocol import Notice, PutRun
from asterism.store.store_errors import StoreError, StoreUnavailable

log = logging.getLogger("asterism.device")

REMEMBERED = 10_000
"""How many grants that have left the desk are remembered, so that none is begun twice."""

TIRED = "no slot became free in time"
FOR_EVER = float("inf")
AGAIN = 1.0
"""After how many seconds a result that the store could not keep is offered to it again."""


class Desk:
    """``lease`` says for how many seconds we are sure of a grant; when none is left it may not be begun. ``unbroken``
    says whether we would have been sure of a run ever since some moment. ``on_free`` is called whenever there may be
    room again, ``on_news`` when an execution has something to report, ``on_end`` when one has ended by itself: of
    which workflow, after how many seconds, and with which error, if any. ``allowance`` says how many more runs may
    come, or None for as many as there is room for. Whoever brings it work sees to it that the heart keeps up the pace
    of that workflow."""

    def __init__(
        self,
        fleet: Fleet,
        owner: Owner,
        executor: Executor,
        *,
        slots: int,
        backlog: int,
        grace: float,
        lease: Callable[[Holding], float],
        unbroken: Callable[[Run, float], bool],
        on_free: Callable[[], None],
        on_news: Callable[[], None],
        on_end: Callable[[Workflow, float, Exception | None], None],
        allowance: Callable[[Iterable[Holding]], int | None],
    ) -> None:
        self.fleet, self.owner, self.executor = fleet, owner, executor
        self.slots, self.backlog, self.grace = slots, backlog, grace
        self._lease, self._unbroken = lease, unbroken
        self._on_free, self._on_news, self._on_end, self._allowance = on_free, on_news, on_end, allowance
        self._outbox = Outbox(fleet, self._told, self._tell_again, lambda end: self._leave(end.holding))
        self.occupied = asyncio.Event()
        self._held: dict[str, Holding] = {}
        self._past = Past(REMEMBERED)  # grants
        self._reserved: dict[str, bool] = {}  # what is coming, and whether it will execute at once
        self._starting = 0  # how many of them will
        self._tired = Past(REMEMBERED)  # ids of runs
        self._busy = 0  # holdings that execute
        self._done = 0  # those that do not any more, and leave as soon as that is written
        self._closed = False

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
        return (holding is not None and holding.grant.epoch == epoch) or self._was_here(run_id, epoch)

    def _was_here(self, run_id: str, epoch: int) -> bool:
        return (run_id, self.owner.session, epoch) in self._past

    @property
    def anything_waits(self) -> bool:
        """Whether something is claimed here that does not execute yet."""
        return len(self._held) > self._busy + self._done

    @property
    def free(self) -> int:
        """How many more can be executed at once."""
        return max(0, self.slots - self._busy - self._starting)

    @property
    def room(self) -> int:
        """How many more can be held. Below 0: so many are too many, and have to go."""
        room = self.slots + self.backlog - len(self._held) + self._done - len(self._reserved)
        allowance = self._allowance(self._held.values())
        return room if allowance is None else min(room, self.free, max(0, allowance - len(self._reserved)))

    @property
    def suspended(self) -> bool:
        """Whether nothing more may come for now, whatever room there is."""
        return self._allowance(self._held.values()) == 0

    def reserve(self, run_id: str) -> bool:
        """Keep a slot for a run that is coming. Whether there was one."""
        if self.free <= 0 or self.room <= 0:
            return False
        self._reserve(run_id, True)
        return True

    def expect(self, run_id: str) -> bool:
        """Keep a place in the backlog for a run that is coming. Whether there was one."""
        if self.room <= 0:
            return False
        self._reserve(run_id, False)
        return True

    def _reserve(self, run_id: str, starts: bool) -> None:
        self.unreserve(run_id)
        self._reserved[run_id] = starts
        self._starting += starts

    def unreserve(self, run_id: str) -> None:
        self._starting -= self._reserved.pop(run_id, False)

    # -- the way in --------------------------------------------------------------------------------------------------

    def receive(self, run: Run, workflow: Workflow, asked: float) -> None:
        """A grant of ours, committed. It is begun if it has been started, else it waits for a slot. ``asked`` is when
        we asked for it, by our own clock: the answer may have been long under way, and the grant be taken away."""
        if self._closed or run.session != self.owner.session or self._was_here(run.id, run.epoch):
            return
        if run.id in self._held:  # this one, or an earlier one that has not left yet: the heartbeat brings it again
            return
        holding = Holding(run, workflow, self.fleet.clock.time(), self._on_news)
        if not self._sure(holding) or not self._unbroken(run, asked):
            return  # if it is still ours, the next heartbeat says so
        self._held[run.id] = holding
        self.occupied.set()
        if holding.started:
            self._begin(holding)

    def _begin(self, holding: Holding) -> None:
        holding.started = True
        self._busy += 1
        self._let(holding, self._execute(holding))

    def _let(self, holding: Holding, job: Coroutine[Any, Any, None]) -> None:
        holding.task = asyncio.create_task(job)
        holding.task.add_done_callback(partial(self._over, holding))

    async def start_waiting(self) -> None:
        """Start what is claimed and waits, the most urgent first, while there are slots."""
        waiting = [one for one in self._held.values() if not one.started and one.stopping is None]
        waiting.sort(key=lambda one: (-one.run.priority, one.run.created_at, one.run.id))
        for holding in waiting:
            if self.free <= 0 or self._closed:
                return
            if holding.stopping is None and self._held.get(holding.run.id) is holding:
                self._reserve(holding.run.id, True)
                try:
                    await self._start(holding)
                except StoreUnavailable:
                    return  # the next look tries again, and the heartbeat tells what became of it
                finally:
                    self.unreserve(holding.run.id)

    async def _start(self, holding: Holding) -> None:
        try:
            holding.run = await self.fleet.ledger.change(holding.run, started(holding, self.fleet.store.clock))
        except RunRefused as refusal:
            log.info("lost before it began: %s", refusal.why, extra={"run": holding.run.id})
            if holding.stopping is None:
                self._leave(holding)
            return
        still_ours = self._held.get(holding.run.id) is holding and holding.stopping is None and not self._closed
        if still_ours and self._sure(holding):
            self._begin(holding)

    def _sure(self, holding: Holding) -> bool:
        """Whether a grant that is just coming in may still be begun: its answer may have been long under way."""
        return self._lease(holding) > 0.0

    # -- the work ----------------------------------------------------------------------------------------------------

    async def _execute(self, holding: Holding) -> None:
        handed = False
        try:
            outcome = await self._outcome(holding)
        except asyncio.CancelledError:
            if holding.stopping is None:
                raise  # the whole device is ending
            _no_longer_cancelled()
            await self._stopped(holding)
        else:
            if outcome is None:
                await self._stopped(holding)
            else:
                handed = len(self._held) > 1 and self._outbox.put(holding, outcome)
                if not handed:
                    await self._finish(holding, outcome)
        finally:
            if not handed:
                self._leave(holding)

    async def _outcome(self, holding: Holding) -> Step | None:
        """Execute it: what is to be told of it, or None if it was stopped."""
        run = holding.run
        try:
            given = run.input if blob_of(run.input) is None else await self.fleet.blobs.fetch(run.input)
        except StoreUnavailable as error:
            return self._troubled(holding, 0.0, DeviceTrouble(f"its input could not be read: {error}"))
        except (StoreError, ValueError) as error:
            return failed(holding, f"its input could not be read: {error}", self.fleet.store.clock, final=True)
        if not self._sure(holding):  # we were frozen since it came: somebody else may have it by now
            holding.stopping = holding.stopping or "fenced"
            return None
        began = self.fleet.clock.time()
        try:
            lease = self._lease(holding)
            work = RunWork(run, holding.workflow, given, holding.told_progress, holding.told_output, lease)
            value = plain_json(await self.executor.execute(work), f"the result of run {run.id}")
        except Exception as error:
            if not self._sure(holding):  # its guard may have ended it, while we were frozen
                holding.stopping = holding.stopping or "fenced"
            if holding.stopping is not None:
                return None
            lasted = self.fleet.clock.time() - began
            if isinstance(error, DeviceTrouble):
                return self._troubled(holding, lasted, error)
            self._on_end(holding.workflow, lasted, error)
            if isinstance(error, PolicyForbids | DeviceUnavailable) and not getattr(error, "begun", False):
                return declined(holding, str(error), self.fleet.store.clock)
            return failed(holding, str(RecordedError.of(error)), self.fleet.store.clock)
        self._on_end(holding.workflow, self.fleet.clock.time() - began, None)
        holding.telling = True
        if is_small(value):
            return completed(holding, value, self.fleet.store.clock)
        return await self._completed(holding, value)

    async def _completed(self, holding: Holding, value: Any) -> Step:
        what = f"the result of run {holding.run.id}"
        while True:
            try:
                output = await self.fleet.blobs.keep(value, await self.fleet.settings(), what)
            except StoreUnavailable as error:
                log.warning("%s could not be kept: %s", what, error, extra={"run": holding.run.id})
                await self.fleet.clock.sleep(AGAIN)
            except (AsterismError, ValueError) as error:
                return failed(holding, str(RecordedError.of(error)), self.fleet.store.clock)
            else:
                break
        return completed(holding, output, self.fleet.store.clock)

    def _troubled(self, holding: Holding, seconds: float, error: DeviceTrouble) -> Step:
        """The device could not do its own part: the run is lost, and the work has not failed."""
        log.warning("given up: %s", error, extra={"run": holding.run.id})
        self._on_end(holding.workflow, seconds, error)
        holding.lost = True
        return broken_off(holding, f"{self.owner.device}: {error}", self.fleet.store.clock)

    def _told(self, end: End) -> None:
        self.fleet.ends.told(end.after)
        self._leave(end.holding)

    def _tell_again(self, end: End) -> None:
        async def tell() -> None:
            try:
                await self._finish(end.holding, end.step, tried=end.after)
            finally:
                self._leave(end.holding)

        self._let(end.holding, tell())

    async def _finish(self, holding: Holding, step: Step, *, result: bool = True, tried: Run | None = None) -> None:
        """Tell the store how it ended, for as long as it takes to know that the store has heard. Nothing is being done
        any more, so it does no harm to go on telling when the grant has run out: then it is refused. ``tried`` is what
        may have been written already."""
        holding.telling = True
        try:
            if tried is not None:
                await self.fleet.ledger.change(tried.id, step, patience=FOR_EVER, tried=tried)
            elif not (result and await self._consumed(holding, step)):
                await self.fleet.ledger.change(holding.run, step, patience=FOR_EVER)
        except Fenced as refusal:
            log.warning("it is not ours any more: %s", refusal.why, extra={"run": holding.run.id})
            if result and not holding.lost:
                await self._came_too_late(holding, refusal.why)
        except UnknownRun:
            log.warning("the run is not in the store any more", extra={"run": holding.run.id})
        except RunRefused as refusal:
            log.warning("refused: %s", refusal.why, extra={"run": holding.run.id})
        except StoreError as error:
            log.error("the store does not take the end of a run: %s", error, extra={"run": holding.run.id})
        except ValueError as error:  # it would be done again and again otherwise
            log.error("the end of a run cannot be kept: %s", error, extra={"run": holding.run.id})
            await self._finish(
                holding, failed(holding, "what came of it cannot be kept", self.fleet.store.clock, final=True)
            )

    async def _consumed(self, holding: Holding, step: Step) -> bool:
        """Have the end of it written by whoever waits for it here, if anybody does: one commit for both."""
        consume = self.fleet.consumers.get(holding.run.id)
        if consume is None:
            return False
        after = step(holding.run, holding.workflow)
        if after.status is not COMPLETED or after.series is not None:
            return False
        # what follows from it is written with it, and may need its slot
        self._busy, self._done, holding.done = self._busy - 1, self._done + 1, True
        if await consume(PutRun(after, holding.run.revision)):
            self.fleet.ends.told(after)
        else:
            await self.fleet.ledger.change(after.id, step, patience=FOR_EVER, tried=after)
        return True

    async def _came_too_late(self, holding: Holding, why: str) -> None:
        run, device = holding.run.id, self.owner.device
        message = f"a late result of {device} for run {run} was refused: {why}"
        with contextlib.suppress(StoreError):
            await self.fleet.store.commit([Notice(self.fleet.store.clock(), "late", message, run, device)])

    async def _stopped(self, holding: Holding) -> None:
        """Its execution was stopped on purpose: hand it back, unless it is not ours any more."""
        why = holding.stopping or ""
        if why in ("lost", "fenced"):
            return
        reason = "preempted" if why == "preempted" else "released"
        await self._finish(holding, released(holding, reason, why, self.fleet.store.clock), result=False)

    # -- the way out -------------------------------------------------------------------------------------------------

    def stop(self, holding: Holding, why: str) -> None:
        """Stop the execution of one; ``lost`` and ``fenced`` say nothing to the store, all else hands it back. What is
        over already is not stopped from being told."""
        if holding.stopping is not None or holding.telling:
            return
        holding.stopping = why
        if holding.task is not None:
            holding.task.cancel()
        elif not holding.started:
            self._let(holding, self._hand_back(holding))

    def tire(self, holding: Holding) -> None:
        """Hand back what has waited for a slot until its claim runs out: others may have one, and it is nobody's
        loss."""
        self.stop(holding, TIRED)
        self._tired.add(holding.run.id)

    def tired_of(self, run_id: str) -> bool:
        """Whether it has waited here in vain before, so that it is not taken again only to wait."""
        return run_id in self._tired

    def kill(self, holding: Holding) -> None:
        """Stop it at once: whatever patience its stopping has ends now."""
        if holding.task is not None and not holding.telling:
            holding.task.cancel()

    def make_way(self) -> None:
        """Stop the least urgent execution that may be stopped, if something more urgent waits here for its slot."""
        if self.free > 0:
            return
        waiting = [one.run.priority for one in self._held.values() if not one.started and one.stopping is None]
        working = [one for one in self._held.values() if one.started]
        if not waiting or any(one.stopping is not None or (one.telling and not one.done) for one in working):
            return  # nothing waits, or a slot is about to be free
        victims = [one for one in working if one.workflow.preemptible and one.run.priority < max(waiting)]
        if victims:
            self.stop(min(victims, key=worth), "preempted")

    async def _hand_back(self, holding: Holding) -> None:
        try:
            await self._stopped(holding)
        finally:
            self._leave(holding)

    def _over(self, holding: Holding, task: asyncio.Task[None]) -> None:
        """A task that is cancelled before its first step takes none at all, so nobody has taken the run off the
        desk."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a mistake in Asterism itself", exc_info=error, extra={"run": holding.run.id})
        if self._held.get(holding.run.id) is not holding or holding.task is not task:
            return
        if holding.stopping in (None, "lost", "fenced") or holding.telling or self._closed:
            self._leave(holding)
        else:
            self._let(holding, self._hand_back(holding))

    def _leave(self, holding: Holding) -> None:
        if self._held.get(holding.run.id) is not holding:
            return
        del self._held[holding.run.id]
        if not self._held:
            self.occupied.clear()
        if holding.done:
            self._done -= 1
        else:
            self._busy -= holding.started
        self._past.add(holding.grant)
        self._on_free()

    async def disown(self, run_id: str, epoch: int) -> None:
        """The store thinks we hold something that has left the desk: give it back, as far as it had come."""
        report = (await self.fleet.store.reports([run_id])).get(run_id)
        progress = report.progress if report is not None and report.epoch == epoch else None

        step = disowned(self.owner, epoch, progress, self.fleet.store.clock)
        with contextlib.suppress(RunRefused):
            await self.fleet.ledger.change(run_id, step, patience=0.0)  # the next heartbeat tries again

    async def abandon(self) -> bool:
        """Stop everything and take nothing more. What is over may still be told, the rest is told to nobody. Whether
        all of it has stopped: a thread cannot be made to."""
        self._closed = True
        for holding in self:
            if holding.task is None:
                self._leave(holding)
            elif not holding.telling:
                holding.stopping = holding.stopping or "fenced"
                holding.task.cancel()
        for _ in range(2):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.grace):
                    # one after the other: what was to be told together may have to be told alone
                    while tasks := {one.task for one in self if one.task is not None and not one.task.done()}:
                        await asyncio.wait(tasks)
            for holding in self:
                if holding.task is not None:
                    holding.task.cancel()
        return not len(self)


def _no_longer_cancelled() -> None:
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()
