"""Execution of one plan: starts its tasks, records their ends, retries, stops and cancels them.

Nothing here polls. When a task's coroutine returns, its end is recorded and its dependents are held in the same call
(``_ended``). One step of the scheduler for all changes opens an edit cycle (``open_cycles``) and starts ready tasks.
The result of an execution counts while its epoch is in ``active``. A timeout, a cancellation or a revocation moves the
epoch to ``stopping``: its result is then refused. Its slot is free when it has really stopped, or after ``grace``.

Groups of a running plan: expand one into tasks when its list is known, and gather the results of its tasks.

No device executes a group. When it is ready, the orchestrator either applies the edit that expands it, or records its
start and its end in one step of the loop, so a stored plan has both or none of them.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import getweakrefcount

from asterism.core.backoff import retry_delay
from asterism.core.errors import AsterismError, DeviceLost, DeviceUnavailable, NoDevice, PlanError, error_text
from asterism.core.plan.apply import Applied
from asterism.core.plan.assignment_lock import AssignmentLock
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edits import WaitingEdit
from asterism.core.plan.graph import plan_cancelled
from asterism.core.plan.group_elements import elements_of, failed_elements
from asterism.core.plan.node import AttemptTimes, Node
from asterism.core.plan.ready_queue import Entry
from asterism.core.plan.status import (
    CANCELLED,
    COMPLETED,
    ENDED_STATES,
    FAILED,
    PENDING,
    RUNNING,
    ConstellationState,
    TaskStatus,
)
from asterism.core.plan.task import GROUP_LANE, Lane, Task
from asterism.core.plan.task_approval import NotApproved
from asterism.core.plan.task_files import handles_files
from asterism.core.record import replace
from asterism.execution.artifacts import ArtifactProblem
from asterism.execution.foreach_expansion import expansion
from asterism.execution.function_calls import log_source
from asterism.orchestrator.edit_cycles import EditCycles, EditorContext
from asterism.orchestrator.events import DeviceEvent, EventBus, PlanEvents
from asterism.orchestrator.options import MAX_BACKOFF, STORED_BACKOFF, Options, PlanJournal
from asterism.orchestrator.plan_mask import PlanMask
from asterism.orchestrator.plan_trace import PlanTrace
from asterism.orchestrator.result import PlanLogs, Result
from asterism.orchestrator.roster import Active, Member, Roster
from asterism.orchestrator.unchanged_tasks import execute_unless_unchanged
from asterism.orchestrator.waiting_edits import WaitingEdits
from asterism.orchestrator.waits import APPROVAL, HERE, STOPPING, Waits

if TYPE_CHECKING:
    from asterism.orchestrator.scheduler import DeviceScheduler

logger = logging.getLogger("asterism.execution")

NO_LIMITS = "it uses limits, and these are kept in a store: run the plan with one, such as with --store"
"""Why a task with ``uses`` is not executed."""

NO_TURNS = "it has `overlap`, and the other plans of its file are in a store: run it with one, such as with --store"
"""Why a plan with ``overlap`` is not run."""

TEARDOWN_TIMEOUT = 300.0
"""Seconds that one attempt at a teardown may take, unless its task has a timeout: it runs also when its plan is
cancelled, and must not keep the plan from its end."""


def timed(task: Task, *, teardown: bool) -> Task:
    """A task as it is executed: a teardown always has a time limit."""
    return task.changed({"timeout": TEARDOWN_TIMEOUT}) if teardown and task.timeout is None else task


def count_references(job: asyncio.Task[None]) -> int:
    """How many references to a job exist, weak ones too."""
    return sys.getrefcount(job) + getweakrefcount(job)


class Execution:
    """``bus`` receives the events; ``chance`` spreads the delays between attempts; a stored plan has a ``journal``, and
    a ``roster`` of its own."""

    def __init__(
        self,
        scheduler: DeviceScheduler,
        plan: Constellation,
        lock: AssignmentLock,
        options: Options,
        bus: EventBus,
        chance: random.Random,
        journal: PlanJournal | None = None,
        trace: PlanTrace | None = None,
        roster: Roster | None = None,
    ) -> None:
        self.plan, self.lock, self.options = plan, lock, options
        self._scheduler, self.roster, self._bus, self._random = scheduler, roster or scheduler.roster, bus, chance
        self._loop = asyncio.get_running_loop()
        self.now = scheduler.now
        self.wake = partial(scheduler.wake, self)
        self.done: asyncio.Future[None] = self._loop.create_future()
        self.paused = self.cancelling = self._hard = False
        self._slots = scheduler.slots  # the most that could run at once since the beginning
        self.last_assigned = 0  # serial number of the last device that it was given
        self.active: dict[int, Active] = {}
        self.stopping: dict[int, Active] = {}
        self._free_job: asyncio.Task[None] | None = None  # during the end of its task: executes the next one
        self._next: Active | None = None  # what that job has been given
        self.events = PlanEvents(bus, plan, self.now, None if journal is None else journal.publish)
        self.mask = PlanMask(plan)
        self.logs = PlanLogs(self.now, options.log_limit, self.mask)
        self._kept_logs = self.logs if options.log_limit and journal is None else None
        self.waits = Waits(self, scheduler)
        self._refused_since = self.waits.refused_since
        self.settled = None if journal is None else journal.settled
        self._tell_failure = None if journal is None else journal.tell_failure
        self.waiting = WaitingEdits(
            plan,
            self.now,
            rules=options.approvals,
            timeout=options.approval_timeout,
            scopes=options.scopes,
            escalation=options.approval_escalation,
            devices=self.roster.known_devices,
            announce=self._announce_waiting,
            decided=self.waits.decided,
            alarm=self.waits.alarm,
        )
        self._waiting = self.waiting.waiting
        self.cycles = EditCycles(self)
        self._trace = self.cycles.trace = trace
        if options.editor is not None:
            context = EditorContext(
                devices=self.roster.profiles,
                logs=self.logs.of,
                mask=self.mask,
                refused=self.waiting.refused,
                continued=plan.started_at is not None,
            )
            options.editor.attach_plan(plan.id, context)

    def begin(self) -> None:
        """Start a new plan."""
        self.plan.clock, self.plan.on_applied = self.now, self.applied
        self.plan.begin(self.now())
        self.events.plan_changed("constellation_started")
        self.wake()

    def take_over(self, before: Execution | None = None) -> None:
        """Continue a plan that another process ran: wait for the tasks that were running, call the editor again.
        ``before`` is the execution of this process, if the plan was
        only read again: its tasks go on, and ends that it had recorded in vain are recorded now."""
        self.plan.clock, self.plan.on_applied = self.now, self.applied
        now = self.now()
        self.waiting.edited()
        for node in tuple(self.plan.nodes.values()):
            if node.awaits:
                self.waits.begin(node)
            if node.status is not RUNNING or node.tentative is not None:
                continue
            if node.device is None:
                self.plan.queue.push(node)
            elif before is not None and self._adopt(node, before):
                continue
            elif (member := self.roster.resumes(node)) is not None:
                self._work_on(node, member, resumed=True)
            else:
                self.plan.release(node, now, f"{node.device} is not here any more")
        self.events.plan_changed("constellation_resumed")
        self.cycles.reopen()
        self.wake()

    def _adopt(self, node: Node, before: Execution) -> bool:
        """Continue what this process executes itself, or record the end of it that it knows."""
        active, known = before.active.get(node.epoch), before.plan.nodes.get(node.id)
        if active is not None and active.durable:
            del before.active[node.epoch]
            active.owner, active.node, active.plan = self, node, self.plan
            self.active[node.epoch] = active
            if active.timer is not None:
                active.timer.cancel()
                timeout = active.task.timeout or 0.0
                active.timer = self._loop.call_at(active.timer.when(), self._timed_out, node, node.epoch, timeout)
            return True
        if known is None or known.epoch != node.epoch or (known.tentative or known.status) not in (COMPLETED, FAILED):
            return False
        if known.files is not None:
            self.plan.set_files(node, known.files)
        self.end(node, known.tentative or known.status, known.value, known.error)
        return True

    def pause(self) -> None:
        self.paused = True
        self.events.plan_changed("constellation_paused")

    def resume(self) -> None:
        self.paused = False
        self.events.plan_changed("constellation_resumed")
        self.wake()

    # -- starting tasks ------------------------------------------------------------------------------------------------

    @property
    def may_start(self) -> bool:
        """Whether there are ready tasks which may start now, as far as the plan goes."""
        return bool(self.plan.queue.active_lanes) and self.dispatching

    @property
    def dispatching(self) -> bool:
        """Whether tasks may start now."""
        if self.cancelling:  # only teardowns are ready
            return not self._hard
        return not (self.paused or (self.lock.policy == "global" and self.lock.holds_everything))

    def start_one(self, now: float) -> bool:
        """Start the best ready task that a free device can run, or advance a group; False if there is neither."""
        queue, roster = self.plan.queue, self.roster
        best: tuple[Entry, Lane, Member] | None = None
        for lane in tuple(queue.active_lanes):
            if lane is GROUP_LANE and queue.peek(lane) is not None:
                return self._advance(queue.pop(lane), now)
            member = roster.choose(lane)
            if member is not None:
                entry = queue.peek(lane)
                if entry is not None and (best is None or entry < best[0]):
                    best = (entry, lane, member)
            elif roster.capable(lane):
                roster.set_aside(queue, lane)
            else:
                self.waits.no_device(lane)
        if best is None:
            return False
        node = queue.pop(best[1])
        if self._waiting and self.waiting.holds(node):
            self.waits.add(node, APPROVAL)
        elif self.stopping and self._still_stopping(node):
            self.waits.add(node, STOPPING)
        else:
            self.plan.start(node, best[2].id, now)
            self._work_on(node, best[2])
            if self._bus.subscriptions:
                self.events.task_changed("task_started", node)
        return True

    def _advance(self, node: Node, now: float) -> bool:
        """Let a ready task wait for the world, or advance a group. Returns True: one task has made its step."""
        if self._waiting and self.waiting.holds(node):
            self.waits.add(node, APPROVAL)
        elif node.task.foreach is not None:
            advance_group(self, node, now)
        elif node.decision is None:
            self.waits.begin(node)
        elif node.needless:
            self._cancel_task(node, f"the start was {node.decision}")
        else:
            self.plan.start(node, HERE, now)
            self.fail(node, NotApproved(f"the start was {node.decision}"))
        return True

    def _still_stopping(self, node: Node) -> bool:
        """Whether an execution of a task has not stopped yet: a task is executed once at a time. A teardown waits for
        that of its set-up, which tells when it has stopped whether it had begun at all."""
        return any(active.node.id == node.id or active.node is node.setup for active in self.stopping.values())

    def _work_on(self, node: Node, member: Member, resumed: bool = False) -> None:
        task = node.task if node.setup is None else timed(node.task, teardown=True)
        epoch, logs = node.epoch, self._kept_logs
        self.last_assigned = self.roster.assign(member)
        active = self.active[epoch] = Active(
            task, self.plan, epoch, node.attempts, logs, node=node, member=member, owner=self, resumed=resumed
        )
        if (task.outputs or task.inputs) and handles_files(task):
            active.artifacts = self.options.artifacts
        if self._free_job is not None and self._scheduler.keeps_turn(node.begun_at):
            active.job, self._free_job, self._next = self._free_job, None, active
        else:  # not by the loop's factory: an eager one would run the task, and what its end starts, inside this call
            active.job = asyncio.Task(self._execute(active), loop=self._loop)
        if task.timeout is not None and not getattr(member.device, "keeps_time", False):
            active.timer = self._loop.call_later(task.timeout, self._timed_out, node, epoch, task.timeout)

    async def _execute(self, active: Active) -> None:
        """Execute a task in this job, and then the first task that its end starts, and so on: a chain needs neither an
        ``asyncio.Task`` nor a turn of the loop for each of its tasks. If a task gives its
        ``current_task()`` to others, the job executes no other task: they may cancel it."""
        job = active.job
        assert job is not None
        references = count_references(job)
        following: Active | None = active
        while following is not None:
            active = following
            status, value = COMPLETED, None
            error: BaseException | None = None
            if active.stops and not active.resumed:
                self._ended(active, CANCELLED, None, None, self.now())
                return
            active.begun = True
            if active.stops:
                job.cancel()  # at the first await
            if active.logs is not None:
                log_source.set(active)
            try:
                if active.member.left:
                    raise DeviceUnavailable(f"{active.member.id!r} left before the task began")
                if active.task.uses and not getattr(active.member.device, "holds_limits", False):
                    raise PlanError(NO_LIMITS)
                if self._trace is None and active.task.skip_if_unchanged is None:
                    value = await active.member.device.execute(active)
                else:
                    value = await self._execute_observed(active)
                if active.task.outputs and active.files is None:
                    raise ArtifactProblem(f"device {active.member.id!r} does not keep files, and the task has outputs")
            except KeyboardInterrupt:
                raise
            except asyncio.CancelledError as cancelled:
                status, error = CANCELLED, cancelled
            except BaseException as failure:  # whatever a task raises is its failure, even an exit
                status, error = FAILED, self.mask().error(failure)
            if active.log is not None:
                self.logs.close(active.task.id, active.epoch)
            active.logs = None  # what it has left behind, such as a thread, may print
            owner, now = active.owner, self.now()
            if status is COMPLETED and count_references(job) == references and not job.cancelling():
                owner._free_job = job
            owner._ended(active, status, value, error, now)
            following, owner._next, owner._free_job, active.job = owner._next, None, None, None

    async def _execute_observed(self, active: Active) -> Any:
        """An execution with a span, or one that is skipped if nothing has changed."""
        execute: Callable[[Active], Awaitable[Any]] = active.member.device.execute
        if active.task.skip_if_unchanged is not None:
            execute = partial(execute_unless_unchanged, self)
        if self._trace is None:
            return await execute(active)
        with self._trace.attempt(active, active.member.id, active.node.parents) as failed:
            try:
                return await execute(active)
            except BaseException as error:
                failed(self.mask().error(error))
                raise

    # -- ends ----------------------------------------------------------------------------------------------------------

    def _ended(self, active: Active, status: TaskStatus, value: Any, error: BaseException | None, now: float) -> None:
        """An execution is over. If its result counts, record the end and hold its dependents, all in this call."""
        if active.timer is not None:
            active.timer.cancel()
        if self.active.pop(active.epoch, None) is None:
            self._stopped(active, status)
            return
        self.roster.release(active.member)
        node = active.node
        if active.expired is not None:
            status, error = FAILED, active.expired
        if self._refused_since and not isinstance(error, DeviceUnavailable):
            self._refused_since.pop(node, None)
        if status is COMPLETED and not (self.cancelling and node.provisional):
            if active.files is not None:
                self.plan.set_files(node, active.files)
            self.lock.finish(node, COMPLETED, now, value)
            if self._bus.subscriptions:
                self.events.task_ended(node)
            if node.reviewed:
                self._scheduler.task_ended(self, now)
                return
        elif self._stops(node):
            if not active.begun and not node.provisional:
                self.plan.release(node, now, "it was cancelled before it began")
            self._cancel_task(node, self._cancelled())
        elif isinstance(error, DeviceUnavailable):
            self._release(node, active.member, error)
        elif isinstance(error, DeviceLost):
            self._lost(node, active.member, error)
        else:
            self._failed(active, error if status is FAILED else RuntimeError("the task cancelled itself"))
        self.wake()

    def _stopped(self, active: Active, status: TaskStatus) -> None:
        """An execution that was told to stop has ended; its result is refused. If it never began, the plan learns of
        that first: a set-up that has not begun is not torn down."""
        if not active.begun and active.node.status is CANCELLED:
            now = self.now()
            times = AttemptTimes(now, ended=now, executed=False)
            self.plan.record_run(active.node.id, active.epoch, now, times, str(times))
        self._free_slot(active.epoch)
        if status is COMPLETED:
            self.plan.note(self.now(), "late result refused", active.node.id, f"epoch {active.epoch} had been stopped")
            self.events.task_changed("task_result_refused", active.node)
        self.wake()

    def _failed(self, active: Active, error: BaseException | None) -> None:
        """An attempt failed: retry, or fail the task if no retry is left. It keeps the files of its last attempt."""
        node = active.node
        failures = node.attempts - node.losses - node.spent
        if failures > node.task.retries or getattr(error, "final", False):
            if active.files is not None:
                self.plan.set_files(node, active.files)
            self.fail(node, error)
            if active.durable and self._tell_failure is not None:
                self._tell_failure(node, self.mask.shown(error_text(error)))
        else:
            self.waits.back_off(node, self._retry(node, error, failures))

    def _retry(self, node: Node, error: BaseException | None, failures: int) -> float:
        """Record that another attempt follows. Returns the seconds until then."""
        if self.settled is None:
            delay = retry_delay(failures, node.task.backoff, MAX_BACKOFF, self._random)
        else:  # as a device of the fleet, which may execute the task as well
            delay = retry_delay(failures, node.task.backoff, STORED_BACKOFF)
        self.plan.retry(node, self.now(), f"{error_text(error)}; attempt {node.attempts + 1} in {delay:.2f} s")
        self.events.task_changed("task_retrying", node, error)
        return delay

    def fail(self, node: Node, error: BaseException | None) -> None:
        """End a task as failed."""
        self.end(node, FAILED, None, error)

    def end(self, node: Node, status: TaskStatus, value: Any, error: BaseException | None = None) -> None:
        """End a task without an execution on a device that would report its end."""
        self.lock.finish(node, status, self.now(), value, error)
        self.events.task_ended(node)
        self.wake()

    def _lost(self, node: Node, member: Member, error: DeviceLost) -> None:
        """The device was lost. Losses have a limit of their own, apart from retries."""
        self.plan.count_loss(node)
        self.events.emit(DeviceEvent, kind="device_lost", device=member.id, task_id=node.id)
        if node.losses > self.options.max_losses and error.counts:
            self.fail(node, error)
        else:
            self.plan.retry(node, self.now(), error_text(error))
            self.plan.queue.push(node)
            self.events.task_changed("task_retrying", node, error)
            if error.counts:
                self._scheduler.rest(member)  # so that another device is tried first

    def _release(self, node: Node, member: Member, error: DeviceUnavailable) -> None:
        """The device gave the task back before it began. The device rests, so that the task does not spin."""
        now = self.now()
        if now - self._refused_since.setdefault(node, now) >= self.options.no_device_timeout:
            self.fail(node, NoDevice(f"every device gave task {node.id!r} back: {error}"))
            return
        self.plan.release(node, now, error_text(error))
        self.events.task_changed("task_released", node)
        self._scheduler.rest(member)

    def _timed_out(self, node: Node, epoch: int, limit: float) -> None:
        """The attempt has failed. The next one waits until this one has really stopped, and so does the failure of a
        task with outputs: those that exist are kept."""
        if epoch not in self.active or self._stops(node):  # it has been asked to stop already
            return
        active, failures = self.active[epoch], node.attempts - node.losses - node.spent
        error = TimeoutError(f"task {node.id!r} took longer than its timeout of {limit} s")
        if failures <= node.task.retries:
            active.delay = self._retry(node, error, failures)
        elif node.task.outputs:
            active.expired = error
            active.timer = self._loop.call_later(self.options.grace, self._grace_of_outputs_over, active)
            self._ask_to_stop(active)
            return
        self.stop(epoch)
        if active.delay is None:
            self.fail(node, error)

    def _grace_of_outputs_over(self, active: Active) -> None:
        if active.epoch not in self.active or self._stops(active.node):
            return
        self.stopping[active.epoch] = self.active.pop(active.epoch)
        self._grace_over(active.epoch)
        self.fail(active.node, active.expired)

    def _free_slot(self, epoch: int) -> Active | None:
        """An execution has stopped, or had its time to: free its slot, and let tasks start that waited for it."""
        active = self.stopping.pop(epoch, None)
        if active is None:
            return None
        self.roster.release(active.member)
        self.waits.stopped()
        node = active.node
        if active.delay is not None and node.epoch == epoch and node.status is RUNNING and not self._stops(node):
            self.waits.back_off(node, active.delay)
        return active

    # -- stopping ------------------------------------------------------------------------------------------------------

    def stop(self, epoch: int) -> None:
        """Refuse its result from now on, ask it to stop, and free its slot after ``grace`` seconds at the latest."""
        active = self.stopping[epoch] = self.active.pop(epoch)
        if active.timer is not None:
            active.timer.cancel()
        self._ask_to_stop(active)
        active.timer = self._loop.call_later(self.options.grace, self._grace_over, epoch)

    def _ask_to_stop(self, active: Active) -> None:
        assert active.job is not None
        if not active.begun and (active.resumed or active is self._next):
            active.stops = True  # an earlier owner created its run, so only the device can stop that; or it begins next
            return
        active.job.cancel()
        if not active.begun:  # its coroutine will never run, and so never report its end
            active.job.add_done_callback(lambda job: self._ended(active, CANCELLED, None, None, self.now()))

    def _grace_over(self, epoch: int) -> None:
        active = self._free_slot(epoch)
        if active is not None:
            logger.warning("task %s did not stop when asked; its slot is free for others", active.node.id)
            self.plan.note(self.now(), "abandoned", active.node.id, "it did not stop when asked")
            self.wake()

    def _cancel_task(self, node: Node, why: str) -> None:
        for _, epoch in self.plan.cancel(node, self.now(), why):
            if epoch in self.active:
                self.stop(epoch)
        self._forget(node)

    def _forget(self, node: Node) -> None:
        """A task was cancelled."""
        self.waits.remove(node)
        self._refused_since.pop(node, None)
        self.events.task_ended(node)

    def applied(self, applied: Applied) -> None:
        """An edit was applied: stop the executions that it revoked or cancelled, and start what is ready."""
        if applied.batch.edits:
            self.cycles.announce(applied)
        for _, epoch in applied.stopped:
            if epoch in self.active:
                self.stop(epoch)
        for node in applied.revoked:
            self.events.task_changed("task_revoked", node)
        for node in applied.cancelled:
            self.events.task_ended(node)
        self.waits.edited()
        self.waiting.edited()
        self.wake()

    def _announce_waiting(self, kind: str, edit: WaitingEdit) -> None:
        """An edit begins to wait for a person, or was refused."""
        self.cycles.publish_waiting(kind, edit)
        if kind == "edit_refused" and edit.task is None and not self.cancelling:
            self.cycles.ask_again(edit)

    def cancel(self, reason: str = "") -> None:
        """Start nothing more but teardowns, and ask running tasks to stop; after ``grace`` seconds they are cancelled
        all the same. ``reason`` says who asked for it and why. A plan that an earlier owner had begun to cancel goes on
        with that."""
        if self.cancelling or self.done.done():
            return
        self.cancelling = True
        self.events.plan_changed("constellation_cancelling")
        self.cycles.cancel()
        self.waiting.cancel()
        for node in [node for node in self.plan.nodes.values() if node.status is RUNNING]:
            if self._stops(node) and node.status is RUNNING and node.epoch not in self.active:
                self._cancel_task(node, plan_cancelled(reason))
        if self.plan.state is not ConstellationState.CANCELLING:
            for node in self.plan.begin_cancel(self.now(), reason):
                self._forget(node)
        for node in [node for node in self.plan.nodes.values() if node.status is PENDING and node.setup is None]:
            self._cancel_task(node, self._cancelled())  # this process has put it back, since its device is gone
        for active in tuple(self.active.values()):
            if self._stops(active.node):
                self._ask_to_stop(active)
        self._loop.call_later(self.options.grace, self._grace_of_plan_over)
        self.wake()

    def _stops(self, node: Node) -> bool:
        """Whether a task is stopped because its plan is cancelled: all but teardowns are."""
        return self.cancelling and (self._hard or node.setup is None)

    def _cancelled(self) -> str:
        """Why a task is cancelled with its plan."""
        return plan_cancelled(self.plan.cancel_reason)

    def _grace_of_plan_over(self) -> None:
        if not self.done.done():
            self._cancel_running("and it did not stop when asked")

    def cancel_hard(self) -> None:
        """End a plan that is being cancelled without waiting: neither for tasks that have not stopped, nor for
        teardowns."""
        if not self.done.done():
            self._hard = True
            self._cancel_running("without waiting")

    def _cancel_running(self, how: str) -> None:
        for node in [node for node in self.plan.nodes.values() if node.status is RUNNING]:
            if self._stops(node) and node.status is RUNNING:  # an earlier one may have revoked it
                self._cancel_task(node, f"{self._cancelled()}, {how}")
        self.wake()

    # -- devices -------------------------------------------------------------------------------------------------------

    def devices_changed(self) -> None:
        """A device joined or left: look again at the tasks that had no device."""
        slots = self._scheduler.slots
        self._slots = None if slots is None or self._slots is None else max(slots, self._slots)
        self.waits.devices_changed()
        self.plan.queue.activate_all()
        self.wake()

    # -- the end -------------------------------------------------------------------------------------------------------

    def open_cycles(self) -> None:
        """First half of a step: open an edit cycle for the ends that wait for one."""
        if self.done.done() or self.cancelling:
            return
        if self.lock.waiting and (cycle := self.lock.open(self.now())) is not None:
            self.cycles.opened(cycle, "cycle_opened")

    def check_end(self) -> None:
        """Second half of a step: if nothing runs, is ready or under review, call the editor a last time, or end."""
        plan = self.plan
        if self.done.done() or plan.counts[RUNNING] or not self.lock.idle:
            return
        ready = self.waits or plan.queue.has_ready()
        if self.cancelling:
            if not self.active and (self._hard or not ready):
                self._end(cancelled=True)
            return
        if ready or self._waiting:
            return
        if (plan.counts[PENDING] or self._awaits_plan) and self.cycles.open_stuck():
            return
        self._end(cancelled=False)

    @property
    def _awaits_plan(self) -> bool:
        """Whether the plan is empty, and its editor is one that plans: it is called once before the end."""
        return not self.plan.nodes and self.options.editor is not None and self.options.editor.starts_plans

    def _end(self, cancelled: bool) -> None:
        left = [node for node in self.plan.nodes.values() if node.status is PENDING] if self._bus.subscriptions else []
        state = self.plan.close(self.now(), cancelled)
        for node in left:
            if node.status is not PENDING:
                self.events.task_ended(node)
        if state not in ENDED_STATES:  # tasks that need only the end of others are ready now
            self.wake()
            return
        self.cycles.cancel()
        self.waits.close()
        self.plan.on_applied = None
        if self._trace is not None:
            self._trace.ended(self.result())
        self.events.plan_changed(f"constellation_{state}")
        self.done.set_result(None)

    async def closed(self) -> None:
        """Wait until what was told to stop has stopped, at most ``grace`` seconds, and observers have their events."""
        if jobs := [*(active.job for active in self.stopping.values() if active.job), *self.cycles.calls]:
            await asyncio.wait(jobs, timeout=self.options.grace)
        await self._bus.drain()

    def result(self) -> Result:
        return Result(self.plan, self.lock.history, self._slots, self.lock.policy, self.logs, self.options.artifacts)

    def abandon(self, *, keeps_work: bool = False) -> None:
        """Another process continues the plan: stop what is left here, and record nothing. With ``keeps_work`` another
        execution of this process does (``take_over``): what this process executes itself goes on."""
        kept = {epoch: active for epoch, active in self.active.items() if keeps_work and active.durable}
        self.paused = True  # nothing starts here any more
        self.stopping |= {epoch: active for epoch, active in self.active.items() if epoch not in kept}
        self.active = kept  # from now on no other end counts
        for active in tuple(self.stopping.values()):
            self._ask_to_stop(active)
        self.cycles.abandon()
        self.waits.close()
        if self._trace is not None:
            self._trace.left()


# -- foreach groups ----------------------------------------------------------------------------------------------------


class ElementsFailed(AsterismError):
    """Some tasks of a group failed."""


def advance_group(execution: Execution, node: Node, now: float) -> None:
    """Expand a group that is ready, or end it."""
    plan = execution.plan
    value: Any = None
    error: AsterismError | None = None
    try:
        foreach = node.task.foreach or {}
        if "of" not in foreach:
            source = plan.nodes.get(foreach["from"])
            result = None if source is None else source.value
            batch = expansion(node.task, tuple(node.parents.values()), result)
            plan.apply(replace(batch, editor=plan.edited.get(node.id)), now)
            return
        value = [element.value for element in elements_of(plan.nodes, node)]
        if failed := failed_elements(plan.nodes, node):
            error = ElementsFailed(failed)
    except AsterismError as failure:  # an edit that was rejected, too: an element has the id of another task
        error = failure
    plan.start(node, HERE, now)
    execution.end(node, *((COMPLETED, value) if error is None else (FAILED, value, PlanMask(plan)().error(error))))
