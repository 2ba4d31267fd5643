"""One constellation while it runs.

Nothing here waits in a loop. A task's coroutine ends, and its end is recorded on the spot, in the same call that
holds its dependents (``_ended``); then the orchestrator is woken once, however much has happened, and looks what can
start (``settle_up`` and ``place_one``).

An execution's word counts while its epoch is in ``active``. Whatever stops it early (a timeout, a cancel, a
revocation) moves the epoch to ``stopping``: from then on its result is refused. Its slot is free again when it has
really stopped, or after ``grace``.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from asterism.core.errors import DeviceLost, DeviceUnavailable, NoDevice, error_text
from asterism.core.plan.apply import Applied
from asterism.core.plan.constellation import Constellation, Upstream
from asterism.core.plan.explain import Holder
from asterism.core.plan.lock import AssignmentLock
from asterism.core.plan.node import Node
from asterism.core.plan.ready_queue import Entry, Lane, lane_of
from asterism.core.plan.status import CANCELLED, COMPLETED, FAILED, PENDING, RUNNING, TaskStatus
from asterism.core.plan.task import NOTHING
from asterism.orchestrator.devices import Work
from asterism.orchestrator.edit_cycles import Cycles
from asterism.orchestrator.event_publisher import Telling
from asterism.orchestrator.events import DeviceEvent
from asterism.orchestrator.plan_mask import PlanMask
from asterism.orchestrator.roster import Place
from asterism.orchestrator.unplaceable_tasks import Stranded, wanted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from asterism.orchestrator.orchestrator import Orchestrator

logger = logging.getLogger("asterism.execution")

MAX_BACKOFF = 60.0


async def _at_once() -> bool:
    return True


class Active:
    """A task that a device is working on."""

    __slots__ = ("begun", "delay", "job", "node", "place", "timer")

    def __init__(self, node: Node, place: Place) -> None:
        self.node, self.place = node, place
        self.begun = False
        self.delay: float | None = None  # after a timeout: how long to wait before the next attempt
        self.job: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None


class Execution:
    def __init__(self, orchestrator: Orchestrator, plan: Constellation, lock: AssignmentLock) -> None:
        self.orchestrator, self.plan, self.lock = orchestrator, plan, lock
        self.loop = asyncio.get_running_loop()
        self.now = orchestrator.now
        self.done: asyncio.Future[None] = self.loop.create_future()
        self.paused = False
        self.cancelling = False
        self.slots = orchestrator.slots()  # the most that could run at once since the beginning
        self.served = 0  # when it was given a device last, as a serial number of the orchestrator
        self.active: dict[int, Active] = {}
        self.stopping: dict[int, Active] = {}
        self.parked: dict[Node, None] = {}  # ready, but an execution of the same task is still stopping
        self.backing_off: dict[Node, asyncio.TimerHandle] = {}
        self.stranded = Stranded(self)
        self.refused_since: dict[Node, float] = {}  # tasks that devices keep giving back
        self.tell = Telling(orchestrator.events, plan, self.now)
        self.cycles, self.mask = Cycles(self), PlanMask(plan)
        self.settled: Callable[[], Awaitable[bool]] = _at_once

    def begin(self) -> None:
        self.plan.clock = self.now
        self.plan.on_applied = self.applied
        self.plan.begin(self.now())
        self.tell.constellation("constellation_started")
        self.orchestrator.wake(self)

    def go_on(self) -> None:
        """Take up a plan that ran elsewhere: what was under way is waited for again, and editors are asked again."""
        self.plan.clock = self.now
        self.plan.on_applied = self.applied
        now = self.now()
        for node in self.plan.nodes.values():
            if node.status is not RUNNING or node.tentative is not None:
                continue
            place = self.orchestrator.roster.find(node.device) if node.device is not None else None
            if place is not None:
                self._work_on(node, place)
            elif node.device is not None:
                self.plan.release(node, now, f"{node.device} is not here any more")
            else:
                self.plan.queue.push(node)
        self.tell.constellation("constellation_resumed")
        self.cycles.reopen()
        self.orchestrator.wake(self)

    # -- placing tasks -------------------------------------------------------------------------------------------------

    @property
    def dispatching(self) -> bool:
        return not (self.paused or self.cancelling or self.lock.holds_everything)

    def place_one(self, now: float) -> bool:
        """Start the best ready task that a free device can take; False if there is none."""
        queue, roster = self.plan.queue, self.orchestrator.roster
        best: tuple[Entry, Lane, Place] | None = None
        for lane in tuple(queue.active_lanes):
            place = roster.choose(lane)
            if place is not None:
                entry = queue.peek(lane)
                if entry is not None and (best is None or entry < best[0]):
                    best = (entry, lane, place)
            elif roster.capable(lane):
                roster.set_aside(queue, lane)
            else:
                self.stranded.take_in(lane)
        if best is None:
            return False
        node = queue.pop(best[1])
        if self.stopping and self._still_stopping(node):
            self.parked[node] = None
        else:
            self._start(node, best[2], now)
        return True

    def _still_stopping(self, node: Node) -> bool:
        """Whether an earlier execution of the task has not stopped yet: a piece of work has one owner at a time."""
        return any(active.node.id == node.id for active in self.stopping.values())

    def _start(self, node: Node, place: Place, now: float) -> None:
        self.plan.start(node, place.id, now)
        self._work_on(node, place)
        self.tell.task("task_started", node)

    def _work_on(self, node: Node, place: Place) -> None:
        plan, task, epoch = self.plan, node.task, node.epoch
        self.served = self.orchestrator.roster.give(place)
        results = Upstream(plan.nodes, node.parents) if node.parents else NOTHING
        active = self.active[epoch] = Active(node, place)
        # not by the loop's factory: an eager one would run the task, and what its end starts, inside this very call
        active.job = asyncio.Task(
            self._work(active, epoch, Work(task, plan.id, epoch, node.attempts, results)), loop=self.loop
        )
        if task.timeout is not None and not getattr(place.device, "keeps_time", False):
            active.timer = self.loop.call_later(task.timeout, self._timed_out, node, epoch)

    async def _work(self, active: Active, epoch: int, work: Work) -> None:
        value: Any = None
        error: BaseException | None = None
        status = COMPLETED
        active.begun = True
        try:
            if active.place.left:
                raise DeviceUnavailable(f"{active.place.id!r} left before the task began")
            value = await active.place.device.execute(work)
        except KeyboardInterrupt:
            raise
        except asyncio.CancelledError as cancelled:
            status, error = CANCELLED, cancelled
        except BaseException as failure:  # whatever a task raises is its own failure, even an exit
            status, error = FAILED, self.mask().error(failure)
        self._ended(active, epoch, status, value, error)

    # -- ends ----------------------------------------------------------------------------------------------------------

    def _ended(self, active: Active, epoch: int, status: TaskStatus, value: Any, error: BaseException | None) -> None:
        """An execution is over. If its word still counts, record the end and hold what lies below it, in this one
        call."""
        if active.timer is not None:
            active.timer.cancel()
        if self.active.pop(epoch, None) is None:
            self._stopped(active, epoch, status)
            return
        self.orchestrator.roster.take_back(active.place)
        node = active.node
        if self.refused_since and not isinstance(error, DeviceUnavailable):
            self.refused_since.pop(node, None)
        if status is COMPLETED and not (self.cancelling and node.provisional):
            self.lock.finish(node, COMPLETED, self.now(), value)
            self.tell.end(node)
            if node.reviewed:
                self.orchestrator.ended(self)
                return
        elif self.cancelling:
            self._cancel(node, "the constellation was cancelled")
        elif isinstance(error, DeviceUnavailable):
            self._release(node, active.place, error)
        elif isinstance(error, DeviceLost):
            self._lost(node, active.place, error)
        else:
            self._failed(node, error if status is FAILED else RuntimeError("the task cancelled itself"))
        self.orchestrator.wake(self)

    def _stopped(self, active: Active, epoch: int, status: TaskStatus) -> None:
        """A stopped execution has come to its end; what it says is refused."""
        if self.stopping.pop(epoch, None) is not None:
            self.orchestrator.roster.take_back(active.place)
            self._freed(active, epoch)
        if status is COMPLETED:
            self.plan.note(self.now(), "late result refused", active.node.id, f"epoch {epoch} had been stopped")
            self.tell.task("task_result_refused", active.node)
        self.orchestrator.wake(self)

    def _failed(self, node: Node, error: BaseException | None) -> None:
        """An attempt failed: try again while there are retries left, or let the failure stand."""
        failures = node.attempts - node.losses
        if failures > node.task.retries or getattr(error, "final", False):
            self.fail(node, error)
            return
        delay = self._retry(node, error, failures)
        self.backing_off[node] = self.loop.call_later(delay, self._try_again, node)

    def _retry(self, node: Node, error: BaseException | None, failures: int) -> float:
        """Record that another attempt follows. Returns the seconds to wait before it."""
        grown = node.task.backoff * 2.0 ** min(failures - 1, 30)
        delay = min(MAX_BACKOFF, grown) * self.orchestrator.random.uniform(0.5, 1.5)
        self.plan.retry(node, self.now(), f"{error_text(error)}; attempt {node.attempts + 1} in {delay:.2f} s")
        self.tell.task("task_retrying", node, error)
        return delay

    def fail(self, node: Node, error: BaseException | None) -> None:
        """The failure stands."""
        self.lock.finish(node, FAILED, self.now(), None, error)
        self.tell.end(node)
        self.orchestrator.wake(self)

    def _try_again(self, node: Node) -> None:
        del self.backing_off[node]
        self.plan.queue.push(node)
        self.orchestrator.wake(self)

    def _lost(self, node: Node, place: Place, error: DeviceLost) -> None:
        """The device vanished: that is counted apart from failures of the work."""
        self.plan.count_loss(node)
        self.tell.tell(DeviceEvent, kind="device_lost", device=place.id, task_id=node.id)
        if node.losses > self.orchestrator.max_losses:
            self.fail(node, error)
        else:
            self.plan.retry(node, self.now(), error_text(error))
            self.plan.queue.push(node)
            self.tell.task("task_retrying", node, error)
            self.orchestrator.rest(place)  # so that another one is tried first

    def _release(self, node: Node, place: Place, error: DeviceUnavailable) -> None:
        """The device gave the task back unbegun. It is left alone for a while, so that nothing spins."""
        now = self.now()
        if now - self.refused_since.setdefault(node, now) >= self.orchestrator.no_device_timeout:
            self.fail(node, NoDevice(f"every device gave task {node.id!r} back: {error}"))
            return
        self.plan.release(node, now, error_text(error))
        self.tell.task("task_released", node)
        self.orchestrator.rest(place)

    def _timed_out(self, node: Node, epoch: int) -> None:
        """The attempt has failed. Another one waits until this one has really stopped: one owner at a time."""
        if epoch not in self.active or self.cancelling:  # a cancelled task has been asked to stop already
            return
        active = self.active[epoch]
        error = TimeoutError(f"task {node.id!r} took longer than its timeout of {node.task.timeout} s")
        failures = node.attempts - node.losses
        if failures > node.task.retries:
            self.stop(epoch)
            self.fail(node, error)
        else:
            active.delay = self._retry(node, error, failures)
            self.stop(epoch)

    def _freed(self, active: Active, epoch: int) -> None:
        """An execution has stopped, or is not waited for any longer: what waited for that may go on."""
        parked, self.parked = self.parked, {}
        for node in parked:
            if node.status is RUNNING and node.device is None and node.entry is None:
                self.plan.queue.push(node)
            elif self.plan.nodes.get(node.id) is node:
                self.plan.requeue(node)
        node = active.node
        if active.delay is not None and node.epoch == epoch and node.status is RUNNING and not self.cancelling:
            self.backing_off[node] = self.loop.call_later(active.delay, self._try_again, node)

    # -- stopping ------------------------------------------------------------------------------------------------------

    def stop(self, epoch: int) -> None:
        """Its word no longer counts; ask it to stop, and give its slot away after ``grace`` seconds at the latest."""
        active = self.active.pop(epoch)
        self.stopping[epoch] = active
        if active.timer is not None:
            active.timer.cancel()
        self.ask_to_stop(active, epoch)
        active.timer = self.loop.call_later(self.orchestrator.grace, self._abandon, epoch)

    def ask_to_stop(self, active: Active, epoch: int) -> None:
        assert active.job is not None
        active.job.cancel()
        if not active.begun:  # its coroutine will never run, and so never report its own end
            active.job.add_done_callback(lambda job: self._ended(active, epoch, CANCELLED, None, None))

    def _abandon(self, epoch: int) -> None:
        active = self.stopping.pop(epoch, None)
        if active is not None:
            self.orchestrator.roster.take_back(active.place)
            self._freed(active, epoch)
            logger.warning("task %s did not stop when asked; its slot is given away", active.node.id)
            self.plan.note(self.now(), "abandoned", active.node.id, "it did not stop when asked")
            self.orchestrator.wake(self)

    def _cancel(self, node: Node, why: str) -> None:
        for _, epoch in self.plan.cancel(node, self.now(), why):
            if epoch in self.active:
                self.stop(epoch)
        self._forget_timers(node)
        self.tell.end(node)

    def _forget_timers(self, node: Node) -> None:
        self.stranded.forget(node)
        self.refused_since.pop(node, None)
        timer = self.backing_off.pop(node, None)
        if timer is not None:
            timer.cancel()

    def applied(self, applied: Applied) -> None:
        """An edit was accepted: stop what it revoked or cancelled, and look what can start now."""
        self.cycles.announce(applied)
        for _, epoch in applied.stopped:
            if epoch in self.active:
                self.stop(epoch)
        for node in applied.revoked:
            self.tell.task("task_revoked", node)
        for node in applied.cancelled:
            self.tell.end(node)
        for node in [node for node in self.backing_off if node.status is not RUNNING]:
            self._forget_timers(node)
        self.stranded.edited()
        self.orchestrator.wake(self)

    def cancel(self) -> None:
        """Graceful first: everything that runs is asked to stop, nothing new starts. What has not stopped after
        ``grace`` is recorded as cancelled all the same."""
        if self.cancelling or self.done.done():
            return
        self.cancelling = True
        self.tell.constellation("constellation_cancelling")
        self.cycles.cancel()
        for node in [node for node in self.plan.nodes.values() if node.status is RUNNING]:
            if node.epoch not in self.active:
                self._cancel(node, "the constellation was cancelled")
        for epoch, active in tuple(self.active.items()):
            self.ask_to_stop(active, epoch)
        self.loop.call_later(self.orchestrator.grace, self.cancel_hard)
        self.orchestrator.wake(self)

    def cancel_hard(self) -> None:
        """Stop waiting for tasks that ignore the request."""
        if self.done.done():
            return
        for node in [node for node in self.plan.nodes.values() if node.status is RUNNING]:
            self._cancel(node, "the constellation was cancelled, and it did not stop when asked")
        self.orchestrator.wake(self)

    # -- devices -------------------------------------------------------------------------------------------------------

    def devices_changed(self) -> None:
        """A device joined or left: what found none is looked at again."""
        slots = self.orchestrator.slots()
        self.slots = None if slots is None or self.slots is None else max(slots, self.slots)
        self.stranded.look_again()
        self.plan.queue.activate_all()
        self.orchestrator.wake(self)

    def outside_the_queue(self) -> set[Node]:
        """The ready tasks that wait for something else than their turn. For tests: see ``verify``."""
        return {*self.parked, *self.stranded}

    def placement(self, node: Node) -> Holder | None:
        """What the runtime has to say about why a ready task does not start."""
        roster, lane = self.orchestrator.roster, lane_of(node.task)
        if self.cancelling:
            return Holder("cancel", self.plan.id, "the constellation is being cancelled")
        if self.paused:
            return Holder("pause", self.plan.id, "the constellation is paused")
        if node in self.parked:
            return Holder("stopping", "", "its last execution has been asked to stop and has not stopped yet")
        if node in self.backing_off:
            return Holder("backoff", "", "it waits before its next attempt")
        capable = roster.capable(lane)
        if not capable:
            return Holder("no_device", "", f"{wanted(node)}; the devices are {roster.names()}")
        if not any(place.reachable for place in capable):
            resting = ", ".join(place.id for place in capable)
            return Holder("resting", resting, f"it was given back by every device that could take it: {resting}")
        if not any(place.free for place in capable):
            busy = ", ".join(f"{place.id} ({place.running})" for place in capable)
            return Holder("busy", busy, f"every device that could take it is busy: {busy}")
        if not self.orchestrator.has_room:
            return Holder("concurrency", "", f"the limit of {self.orchestrator.concurrency} tasks at once is reached")
        return None

    # -- the end -------------------------------------------------------------------------------------------------------

    def settle_up(self) -> None:
        """After anything happened: open the cycles that are due, and see whether this is the end."""
        if self.done.done():
            return
        if self.cancelling:
            if not self.active and not self.plan.counts[RUNNING]:
                self._end(cancelled=True)
            return
        self.cycles.open_due()

    def check_end(self) -> None:
        """Nothing runs, no cycle is open and nothing is ready: ask the editor one last time, or end."""
        plan = self.plan
        if self.done.done() or plan.counts[RUNNING] or not self.lock.idle:
            return
        if self.stranded or self.parked or plan.queue.has_ready():
            return
        if plan.counts[PENDING] and self.cycles.open_stuck():
            return
        self._end(cancelled=False)

    def _end(self, cancelled: bool) -> None:
        left = [node for node in self.plan.nodes.values() if node.status is PENDING] if self.tell.of_tasks else []
        state = self.plan.close(self.now(), cancelled)
        for node in left:
            self.tell.end(node)
        self.cycles.cancel()
        for node in tuple(self.backing_off):
            self._forget_timers(node)
        self.stranded.clear()
        self.plan.on_applied = None
        self.tell.constellation(f"constellation_{state}")
        self.done.set_result(None)

    async def stopped(self) -> None:
        """Wait until everything that was told to stop has stopped, at most ``grace`` seconds."""
        jobs = [active.job for active in self.stopping.values() if active.job is not None]
        jobs += [job for job in self.cycles.jobs if not job.done()]
        if jobs:
            await asyncio.wait(jobs, timeout=self.orchestrator.grace)
