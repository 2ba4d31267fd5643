"""The worker of a device: the runs it holds, their executions, and how each of them ends.

A run is received with its grant committed, waits for a slot or begins at once, is executed, and leaves when its end is
written. Nothing is executed after the lease on it has run out (lease.py), and no grant is begun twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any

from asterism.base.log_recorder import LogRecorder
from asterism.base.remembered import Remembered
from asterism.core.errors import (
    AsterismError,
    DeviceTrouble,
    DeviceUnavailable,
    Fenced,
    RecordedError,
    RunRefused,
    TooLarge,
)
from asterism.core.json_values import plain_json
from asterism.core.record import replace
from asterism.core.run.run import Grant, Run, queue_order
from asterism.core.run.session import Session
from asterism.execution.function_calls import log_source
from asterism.execution.task_inputs import call_apart
from asterism.fleet.device.completion import CompletionBatch, HeldEnd, HeldRun
from asterism.fleet.device.device_connection import (
    BreakOff,
    Complete,
    Decline,
    DeviceConnection,
    Disown,
    Fail,
    OwnerStep,
    Release,
    Start,
)
from asterism.fleet.device.executor import Executor, RunWork
from asterism.fleet.device.health import DeviceHealth
from asterism.fleet.device.lease import Lease
from asterism.fleet.ledger import UnknownRun, blob_of, is_small
from asterism.fleet.policy.device_policy import PolicyForbids
from asterism.store.optimistic_update import IMMEDIATE_RETRIES
from asterism.store.store_errors import Conflict, StoreError, StoreUnavailable

log = logging.getLogger("asterism.device")

GRANTS_REMEMBERED = 10_000
"""How many grants that have left the worker are remembered, so that none is begun twice."""

LOST = "lost"
FENCED = "fenced"
NO_SLOT = "no slot became free in time"
"""Why an execution is stopped. After ``LOST`` and ``FENCED`` the run belongs to others, and nothing is written;
after any other reason the run is handed back."""

VAIN_WAITS_NAMED = 200
"""How many runs that waited in vain an order to a gateway names."""

RESULT_RETRY = 1.0
"""After how many seconds a result that the store could not take is offered to it again."""


class Worker:
    """``held`` are the runs that the device holds, by id. ``on_free`` is called whenever there may be room again,
    ``on_report`` when an execution has progress or output to report."""

    def __init__(
        self,
        connection: DeviceConnection,
        session: Session,
        executor: Executor,
        lease: Lease,
        health: DeviceHealth,
        *,
        on_free: Callable[[], None],
        on_report: Callable[[], None],
    ) -> None:
        self._connection, self.owner, self.executor = connection, session.owner, executor
        self._slots, self._backlog = session.slots, session.backlog
        self._lease, self._health = lease, health
        self._on_free, self._on_report = on_free, on_report
        self._batch = CompletionBatch(connection, self._written, self._write_alone, lambda end: self._leave(end.held))
        self.occupied = asyncio.Event()
        self.held: dict[str, HeldRun] = {}
        self._past_grants: Remembered[tuple[str, str, int], None] = Remembered(GRANTS_REMEMBERED)
        self._reserved: dict[str, bool] = {}  # runs that are coming, and whether they will execute at once
        self._starting = 0  # how many of them will
        self._waited_in_vain: Remembered[str, None] = Remembered(GRANTS_REMEMBERED)  # ids of runs
        self._busy = 0  # held runs that execute
        self._freed = 0  # held runs whose slot was freed before their end is written
        self._closed = False
        self.own_tasks: Callable[[], int] = lambda: 0
        """Counts the slots that the process uses for tasks of the plan that it runs."""

    # -- what is held ------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[HeldRun]:
        return iter(list(self.held.values()))

    def __len__(self) -> int:
        return len(self.held)

    def knows(self, run_id: str, epoch: int) -> bool:
        """Whether this grant is held or was held."""
        held = self.held.get(run_id)
        if held is not None and held.grant.epoch == epoch:
            return True
        return (run_id, self.owner.session, epoch) in self._past_grants

    @property
    def has_waiting(self) -> bool:
        """Whether a held run does not execute yet."""
        return len(self.held) - self._freed > self._busy

    @property
    def in_use(self) -> int:
        """How many runs are held, without those whose slot is free while their end is written, and tasks of a plan."""
        return len(self.held) - self._freed + self.own_tasks()

    @property
    def free_slots(self) -> int:
        """How many more runs can be executed at once."""
        return max(0, self._slots - self._busy - self._starting - self.own_tasks())

    @property
    def room(self) -> int:
        """How many more runs can be held. A negative number says how many are too many, and have to go."""
        room = self._slots + self._backlog - self.in_use - len(self._reserved)
        if self._health.well:  # the usual case, on the hot path of every run
            return room
        allowance = self._health.allowance(self.held.values())
        return room if allowance is None else min(room, self.free_slots, max(0, allowance - len(self._reserved)))

    @property
    def suspended(self) -> bool:
        """Whether the device takes no run for now, whatever room there is."""
        return not self._health.well and self._health.allowance(self.held.values()) == 0

    def reserve(self, run_id: str, *, starts: bool) -> bool:
        """Keep a slot for a run that is coming and starts at once, or a place in the backlog. Returns False if there is
        none."""
        if self.room <= 0 or (starts and self.free_slots <= 0):
            return False
        self._starting += starts - self._reserved.get(run_id, False)
        self._reserved[run_id] = starts
        return True

    def unreserve(self, run_id: str) -> None:
        self._starting -= self._reserved.pop(run_id, False)

    # -- runs arrive -------------------------------------------------------------------------------------------------

    def receive(self, run: Run, asked: float) -> None:
        """Take a run whose grant to this device is committed. It begins if it has been started, else it waits for a
        slot. ``asked`` is when the device asked for it, by its own clock: the answer may have taken long, and the store
        may have taken the grant away since."""
        grant = Grant(run.id, self.owner.session, run.epoch)
        if self._closed or run.session != self.owner.session or grant in self._past_grants:
            return
        if run.id in self.held:  # this grant, or an earlier one that has not left: the heartbeat brings it again
            return
        started, now = run.started_at is not None, self._connection.clock.time()
        if self._lease.remaining(run, now) <= 0.0 or not self._lease.unbroken(run, asked):
            return  # if it is still ours, the next heartbeat says so
        held = HeldRun(run, grant, now, self._on_report, started, run.progress, self._make_log)
        self.held[run.id] = held
        self.occupied.set()
        if started:
            self._begin(held)

    def _begin(self, held: HeldRun) -> None:
        held.started = True
        self._busy += 1
        self._spawn(held, self._execute(held))

    def _spawn(self, held: HeldRun, job: Coroutine[Any, Any, None]) -> None:
        held.task = asyncio.create_task(job)
        held.task.add_done_callback(partial(self._task_done, held))

    async def start_waiting(self) -> None:
        """Start the held runs that wait, the most urgent first, while there are free slots."""
        waiting = [held for held in self.held.values() if not held.started and held.stopping is None]
        waiting.sort(key=lambda held: queue_order(held.run))
        for held in waiting:
            if self.free_slots <= 0 or self._closed:
                return
            if held.stopping is None and self.held.get(held.run.id) is held:
                self._reserved[held.run.id] = True
                self._starting += 1
                try:
                    await self._start(held)
                except StoreUnavailable:
                    return  # the next look tries again, and the heartbeat says whether it was written
                finally:
                    self.unreserve(held.run.id)

    async def _start(self, held: HeldRun) -> None:
        try:
            held.run = await self._connection.change(held.run, Start(held.grant))
        except RunRefused as refusal:
            log.info("lost before it began: %s", refusal.why, extra={"run": held.run.id})
            if held.stopping is None:
                self._leave(held)
            return
        still_held = self.held.get(held.run.id) is held and held.stopping is None and not self._closed
        if still_held and self._lease.remaining(held.run) > 0.0:
            self._begin(held)

    def _make_log(self, held: HeldRun) -> LogRecorder | None:
        """What records the output of a run. Called at its first output, in any thread."""
        limit = self._connection.log_limit
        if not limit:
            return None
        printed = partial(self._printed, held)
        return LogRecorder(self._connection.store_time, limit, mask=lambda: held.mask, on_new=printed)

    def _printed(self, held: HeldRun) -> None:
        if held.changed:
            return
        loop = held.task.get_loop() if held.task is not None else None
        if loop is None or asyncio._get_running_loop() is loop:
            held.printed()
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the device is gone
                loop.call_soon_threadsafe(held.printed)

    async def _finish_log(self, held: HeldRun) -> None:
        """Prepare the last part of a log, which is written with the end of the run. What is large becomes a blob."""
        last = held.last_log()
        if last is None:
            return
        chunks = []
        for chunk in last.chunks:
            try:
                value = await self._connection.keep(chunk.value, held.run, f"the log of run {held.run.id}")
            except (AsterismError, ValueError):  # the store has no room for a blob now, or it is too large for one
                value = chunk.value
            chunks.append(chunk._replace(value=value))
        held.log_writes = [replace(last, chunks=chunks)]

    # -- executions --------------------------------------------------------------------------------------------------

    async def _execute(self, held: HeldRun) -> None:
        batched = False
        try:
            try:
                step = await self._outcome(held)
            finally:
                held.close_log()
            if held.log is not None:
                held.ending = held.ending or step is not None  # it is over: its end is written, whatever comes now
                await self._finish_log(held)
        except asyncio.CancelledError:
            if held.stopping is None:
                raise  # the whole device is ending
            _no_longer_cancelled()
            if held.log is not None and held.stopping not in (LOST, FENCED):
                await self._finish_log(held)
            await self._hand_back(held)
        else:
            if step is None:
                await self._hand_back(held)
            else:
                together = len(self.held) > 1 and self._connection.commits_together
                batched = together and self._batch.add(held, step)
                if self._frees_early(held, step):
                    self._free_slot(held)
                    self._on_free()
                if not batched:
                    await self._write_end(held, step)
        finally:
            if not batched:
                self._leave(held)

    async def _outcome(self, held: HeldRun) -> OwnerStep | None:
        """Execute the run and return the step that ends it; None if it was stopped."""
        run, clock = held.run, self._connection.clock
        try:
            run_input = run.input if blob_of(run.input) is None else await self._connection.fetch_input(run)
        except StoreUnavailable as error:
            return self._broken_off(held, 0.0, DeviceTrouble(f"its input could not be read: {error}"))
        except (StoreError, ValueError) as error:
            return Fail(held.grant, f"its input could not be read: {error}", held.progress, final=True)
        began = clock.time()
        lease = self._lease.remaining(run, began)
        if lease <= 0.0:  # this process was frozen since the run came: another device may have it
            held.stopping = held.stopping or FENCED
            return None
        try:
            log_source.set(held)
            work = RunWork(
                run,
                run_input,
                on_progress=held.set_progress,
                on_output=held.set_output,
                lease=lease,
                output=held,
                value_limit=self._connection.value_limit,
                artifacts=partial(self._connection.artifacts, run),
                on_files=held.set_files,
            )
            value = await call_apart(plain_json, await self.executor.execute(work), f"the result of run {run.id}")
        except Exception as error:
            if self._lease.remaining(held.run) <= 0.0:  # its guard may have ended it while this process was frozen
                held.stopping = held.stopping or FENCED
            if held.stopping is not None:
                return None
            took = clock.time() - began
            if isinstance(error, DeviceTrouble):
                return self._broken_off(held, took, error)
            self._health.record_end(held.run.workflow, took, error)
            if isinstance(error, DeviceUnavailable) or (isinstance(error, PolicyForbids) and not error.begun):
                return Decline(held.grant, str(error))
            return _failure(held, error)
        if not self._health.well:
            self._health.record_end(held.run.workflow, clock.time() - began, None)
        held.ending = True
        if is_small(value):
            return Complete(held.grant, value, held.progress, held.files)
        return await self._completed_with_blob(held, value)

    async def _completed_with_blob(self, held: HeldRun, value: Any) -> OwnerStep:
        """Store a value that may be large, for as long as it takes."""
        what = f"the result of run {held.run.id}"
        while True:
            try:
                output = await self._connection.keep(value, held.run, what)
            except StoreUnavailable as error:
                log.warning("%s could not be stored: %s", what, error, extra={"run": held.run.id})
                await self._connection.clock.sleep(RESULT_RETRY)
            except (AsterismError, ValueError) as error:
                return _failure(held, error)
            else:
                return Complete(held.grant, output, held.progress, held.files)

    def _broken_off(self, held: HeldRun, seconds: float, error: DeviceTrouble) -> OwnerStep:
        """The device could not do its own part: the run is lost, and the work has not failed."""
        log.warning("given up: %s", error, extra={"run": held.run.id})
        self._health.record_end(held.run.workflow, seconds, error)
        held.lost = True
        return BreakOff(held.grant, f"{self.owner.device}: {error}", held.progress)

    # -- ends --------------------------------------------------------------------------------------------------------

    def _frees_early(self, held: HeldRun, step: OwnerStep) -> bool:
        """Whether other runs may have the slot before the end of this one is written."""
        return self._connection.commits_together and isinstance(step, Complete) and self._freed < self._slots

    def _written(self, end: HeldEnd) -> None:
        self._connection.ended(end.after)
        self._leave(end.held)

    def _write_alone(self, end: HeldEnd) -> None:
        async def write() -> None:
            try:
                await self._write_end(end.held, end.step, tried=end.after)
            finally:
                self._leave(end.held)

        self._spawn(end.held, write())

    async def _write_end(
        self, held: HeldRun, step: OwnerStep, *, result: bool = True, tried: Run | None = None
    ) -> None:
        """Write the end of a run, for as long as it takes to know that it is written. Nothing is executed any more, so
        it does no harm to continue after the lease has expired: the store then refuses it. ``tried`` is what may have
        been written already."""
        held.ending = True
        try:
            await self._connection.end(held.run, step, held.log_writes, tried=tried)
        except Fenced as refusal:
            log.warning("the run belongs to others: %s", refusal.why, extra={"run": held.run.id})
            if result and not held.lost:
                with contextlib.suppress(StoreError):
                    await self._connection.notice_late_result(held.run.id, refusal.why)
        except UnknownRun:
            log.warning("the store has no such run any more", extra={"run": held.run.id})
        except RunRefused as refusal:
            log.warning("refused: %s", refusal.why, extra={"run": held.run.id})
        except StoreError as error:
            log.error("the store does not accept the end of a run: %s", error, extra={"run": held.run.id})
        except ValueError as error:  # the run would be executed again and again otherwise
            log.error("the end of a run cannot be stored: %s", error, extra={"run": held.run.id})
            if held.log_writes or not isinstance(step, Fail):  # once more, without what may be the reason
                held.log_writes = ()
                await self._write_end(held, Fail(held.grant, "its result cannot be stored", held.progress, final=True))

    def _free_slot(self, held: HeldRun) -> None:
        """Nothing is executed any more: the next run may begin while the end is written."""
        if not held.slot_freed:
            self._busy, self._freed, held.slot_freed = self._busy - 1, self._freed + 1, True

    async def _hand_back(self, held: HeldRun) -> None:
        """Its execution was stopped on purpose: release the run, unless it belongs to others by now."""
        why = held.stopping or ""
        if why in (LOST, FENCED):
            return
        reason, detail = ("released", why) if held.preempted_by is None else ("preempted", f"by {held.preempted_by}")
        await self._write_end(held, Release(held.grant, reason, detail, held.progress), result=False)

    # -- stopping ----------------------------------------------------------------------------------------------------

    def stop(self, held: HeldRun, why: str) -> None:
        """Stop an execution and hand the run back, unless ``why`` is LOST or FENCED. The end of an
        execution that is over is still written."""
        if held.stopping is not None or held.ending:
            return
        held.stopping = why
        if held.task is not None:
            held.task.cancel()
        elif not held.started:
            self._spawn(held, self._hand_back_and_leave(held))

    def give_up_waiting(self, held: HeldRun) -> None:
        """Hand back a run whose claim is about to run out while it waits for a slot: other devices may have one, and
        it does not count as a loss."""
        self.stop(held, NO_SLOT)
        self._waited_in_vain[held.run.id] = None

    def waited_in_vain(self, run_id: str) -> bool:
        """Whether the run has waited here for a slot before; it is not taken again only to wait."""
        return run_id in self._waited_in_vain

    def vain_waits(self) -> list[str]:
        """The ids of the last runs that waited here in vain."""
        return list(self._waited_in_vain)[-VAIN_WAITS_NAMED:]

    def kill(self, held: HeldRun) -> None:
        """Stop an execution at once, without the grace period."""
        if held.task is not None and not held.ending:
            held.task.cancel()

    async def _hand_back_and_leave(self, held: HeldRun) -> None:
        try:
            await self._hand_back(held)
        finally:
            self._leave(held)

    def _task_done(self, held: HeldRun, task: asyncio.Task[None]) -> None:
        """A task that is cancelled before its first step takes no step at all, so its run is still held."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a bug in Asterism", exc_info=error, extra={"run": held.run.id})
        if self.held.get(held.run.id) is not held or held.task is not task:
            return
        if held.stopping in (None, LOST, FENCED) or held.ending or self._closed:
            self._leave(held)
        else:
            self._spawn(held, self._hand_back_and_leave(held))

    def _leave(self, held: HeldRun) -> None:
        if self.held.get(held.run.id) is not held:
            return
        del self.held[held.run.id]
        if not self.held:
            self.occupied.clear()
        if held.slot_freed:
            self._freed -= 1
        else:
            self._busy -= held.started
        self._past_grants[held.grant] = None
        self._on_free()

    async def disown(self, run_id: str, epoch: int) -> None:
        """The store believes that this device holds a run that it does not hold any more: give it back, with the
        progress it had made."""
        progress = await self._connection.progress_of(run_id, epoch)
        step = Disown(Grant(run_id, self.owner.session, epoch), self.owner.device, progress)
        with contextlib.suppress(RunRefused, Conflict):  # the next heartbeat tries again; this one must not pause
            await self._connection.change(run_id, step, patience=0.0, tries=IMMEDIATE_RETRIES + 1)

    async def abandon(self) -> bool:
        """Stop everything and take nothing more. Ends that are known may still be written; of the rest nothing is
        written. Returns whether all of it has stopped: a thread cannot be stopped."""
        self._closed = True
        for held in self:
            if held.task is None:
                self._leave(held)
            elif not held.ending:
                held.stopping = held.stopping or FENCED
                held.task.cancel()
        clock = asyncio.get_running_loop().time
        for _ in range(2):
            end = clock() + self._lease.grace  # asyncio.timeout does not end in a cancelled task before Python 3.11.3
            # in rounds: ends that were batched may have to be written alone
            while clock() < end and (tasks := {held.task for held in self if held.task and not held.task.done()}):
                await asyncio.wait(tasks, timeout=end - clock())
            for held in self:
                if held.task is not None:
                    held.task.cancel()
        return not len(self) and not self.own_tasks()


def _failure(held: HeldRun, error: Exception) -> Fail:
    """The end of work that failed. A value above its limit would be so in the next attempt, too."""
    return Fail(held.grant, str(RecordedError.of(error)), held.progress, isinstance(error, TooLarge), held.files)


def _no_longer_cancelled() -> None:
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()
