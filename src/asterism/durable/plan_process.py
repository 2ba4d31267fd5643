"""The process of a plan as a device of its orchestrator: it executes the tasks that it can do itself.

Such a task is no run. The journal says that it was started, in a commit before the work begins, and how it ended; its
times and retries are those of ``Execution``, its log is kept by ``TaskLogs``. What the process cannot or may
not do, it hands over to the fleet: then the task becomes a run.

The process works under the lease of its session (fleet/device/lease.py). If the store has not heard of it for the
timeout of a task (``heartbeat_timeout``), the next owner of the plan starts the task again. Until then this one has
stopped it, by its own clock: a function is cancelled, and the guard ends a command even while this process is frozen.
If the plan itself may have been taken over, which is possible earlier, a commit finds out.

Its slots are those of the device of this process in the fleet: tasks and claimed runs share them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from asterism.base.clock import Clock, stopped
from asterism.base.trace_context import current_traceparent
from asterism.core.errors import DeviceLost, DeviceTrouble, DeviceUnavailable
from asterism.core.json_values import NOTHING, SizeLimit
from asterism.core.run.run import Run
from asterism.durable.fleet_device import FleetDevice, PlanRuns, loss_timeout, process_lost, run_key
from asterism.durable.journal_store import OwnershipLost
from asterism.durable.task_logs import TaskLogs
from asterism.execution.function_calls import log_source
from asterism.fleet.device.agent import DeviceAgent
from asterism.fleet.device.executor import RunWork
from asterism.fleet.device.lease import margin
from asterism.fleet.policy.device_policy import PolicyForbids
from asterism.fleet.retention import PREFIX
from asterism.orchestrator.devices import Work
from asterism.orchestrator.roster import Active, Member

log = logging.getLogger("asterism.device")


class PlanProcess:
    """One process that runs one plan. ``has_room`` and ``freed`` connect its slots with those of the device."""

    keeps_time = True
    """The timeout of a task counts from the moment at which its work begins."""

    holds_limits = True
    """What uses limits is handed over to the fleet."""

    def __init__(self, agent: DeviceAgent, fleet: FleetDevice) -> None:
        self.id, self.slots, self.can = agent.name, agent.session.slots, agent.session.can
        self._agent, self._fleet = agent, fleet
        self._clock: Clock = fleet.fleet.clock
        self._timeout = agent.session.timeout
        self._executing: dict[int, tuple[Work, asyncio.Task[Any], float]] = {}  # by epoch: and when it began
        self._cut_off: set[int] = set()  # of them, those that were stopped since the lease is over
        self._watch: asyncio.Task[None] | None = None
        self._checks: set[asyncio.Task[bool]] = set()
        self._plan: PlanRuns | None = None
        self._logs = TaskLogs(fleet.fleet)
        self.member = Member(self.id, self.can, self.slots, device=self)
        self.woken: Callable[[], None] = lambda: None
        """Called when there may be room again."""
        agent.worker.own_tasks = lambda: self.member.running
        agent.on_room = lambda: self.woken()  # type: ignore[method-assign]

    def attach(self, plan: PlanRuns) -> None:
        """The plan was loaded: its journal is another one from now on."""
        self._plan = plan
        self._logs.journal = plan.journal

    async def close(self) -> None:
        """Nothing executes here any more."""
        await stopped(*filter(None, [self._watch]), *self._checks)
        await self._logs.close()

    # -- room ----------------------------------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether it can begin a task now: it has a free slot, and its lease is not about to end."""
        agent = self._agent
        if not self.member.reachable or agent.worker.free_slots <= 0 or agent.draining.is_set():
            return False
        if self._remaining() > 0.0:
            return True
        agent.lease.renewal_due.set()
        self._keep_watch()  # which notices that it was renewed
        return False

    def _remaining(self, timeout: float | None = None) -> float:
        """In how many seconds it must have stopped work that it loses after ``timeout``, unless a heartbeat is accepted
        before; by default the plan itself."""
        lease = self._agent.lease
        timeout = self._timeout if timeout is None else timeout
        return lease.renewed_at + timeout - margin(timeout, lease.grace) - self._clock.time()

    # -- executing -----------------------------------------------------------------------------------------------------

    async def execute(self, work: Work) -> Any:
        assert self._plan is not None
        assert isinstance(work, Active)
        assert work.job is not None
        plan, journal = self._plan, self._plan.journal
        if work.task.uses or self._objects(work, plan):
            return await self._hand_over(work)
        asked = self._clock.time()
        try:
            await journal.commit()
        except OwnershipLost:
            await plan.never()
        except asyncio.CancelledError:
            work.begun = False
            raise
        if self._remaining() <= 0.0 or not self._agent.lease.unbroken_for(self._timeout, asked):
            work.begun = False
            raise DeviceUnavailable("the process was cut off before the task began")
        work.durable = True
        self._executing[work.epoch] = work, work.job, asked
        if self._watch is None:
            self._keep_watch()
        try:
            value = await self._execute(work, plan)
        except asyncio.CancelledError:
            if work.epoch not in self._cut_off:
                raise
            raise process_lost("the store was not reached in time") from None
        except (DeviceUnavailable, PolicyForbids) as error:
            if isinstance(error, PolicyForbids) and error.begun:
                raise
        except DeviceTrouble as error:
            raise DeviceLost(f"{self.id}: {error}") from None
        else:
            if work.epoch in self._cut_off:
                raise process_lost("the store was not reached in time")
            return value
        finally:
            del self._executing[work.epoch]
            self._cut_off.discard(work.epoch)
            if self._agent.claimer.wants_slot:  # unless the plan has a task for it
                work.job.get_loop().call_soon(self._agent.claimer.look_if_free)
        return await self._hand_over(work)

    def _objects(self, work: Active, plan: PlanRuns) -> bool:
        """Whether this process never executes work of this kind. A function is judged when it begins."""
        return work.task.call is None and self._agent.worker.executor.objection(self._run(work, plan)) is not None

    def _run(self, work: Active, plan: PlanRuns, run_input: Any = NOTHING) -> Run:
        """The execution as a run that no store has: what an executor knows of it."""
        name = work.constellation
        key, about = run_key(work), plan.plain(work.task)
        return Run(
            key,
            f"{PREFIX}{name}",
            0,
            work.node.begun_at,
            name,
            about,
            input=run_input,
            key=key,
            epoch=work.epoch,
            device=self.id,
            session=self._agent.session.id,
            traceparent=current_traceparent(),
        )

    async def _execute(self, work: Active, plan: PlanRuns) -> Any:
        fleet, task = self._fleet.fleet, work.task
        run_input = self._fleet.run_input(work, plan)
        run = self._run(work, plan, run_input)
        output = self._logs.output(work)
        log_source.set(output)
        try:
            value = await self._agent.worker.executor.execute(
                RunWork(
                    run,
                    run_input,
                    on_progress=_ignore,
                    on_output=_ignore,
                    lease=self._remaining(loss_timeout(task)),
                    output=output,
                    value_limit=self._value_limit,
                    artifacts=fleet.artifacts,
                    on_files=partial(setattr, work, "files"),
                    attempt=work.attempt,
                )
            )
            await fleet.blobs.check(value, f"the result of task {task.id!r}")
            return value
        finally:
            if output.log is not None:
                await output.finish()

    async def _value_limit(self) -> SizeLimit:
        return self._fleet.fleet.known_settings.value_limit

    async def _hand_over(self, work: Active) -> Any:
        """Let the fleet execute a task that this process cannot or may not execute."""
        assert self._plan is not None
        roster, work.durable = self._plan.roster, False
        roster.move(work, roster.fleet)
        return await self._fleet.execute(work)

    # -- the lease -----------------------------------------------------------------------------------------------------

    def _keep_watch(self) -> None:
        if self._watch is None:
            self._watch = asyncio.get_running_loop().create_task(self._enforce_lease())

    async def _enforce_lease(self) -> None:
        """While anything executes: stop it in time, and tell the guard of the commands how long they may go on."""
        try:
            await self._watch_lease()
        finally:
            self._watch = None  # the next task begins another watch, also after a bug in this one

    async def _watch_lease(self) -> None:
        lease, told, checked = self._agent.lease, 0.0, self._clock.time()
        looked = checked  # the lease does not remember all renewals of a long task
        waited = False
        while self._executing or self._remaining() <= 0.0:
            waited = waited or self._remaining() <= 0.0
            shortest, renewed, told = self._timeout, lease.renewed_at != told, lease.renewed_at
            for epoch, (work, job, began) in self._executing.items():
                timeout = loss_timeout(work.task)
                left, spare = self._remaining(timeout), margin(timeout, lease.grace)
                shortest = min(shortest, spare)
                if renewed:
                    # later than the work is stopped here: the guard ends it only if this process is frozen
                    self._agent.worker.executor.allow(run_key(work), left + spare / 2)
                if epoch in self._cut_off:
                    if left <= -spare / 2:
                        job.cancel()
                elif left <= 0.0 or not lease.unbroken_for(timeout, max(began, looked)):
                    log.warning("stopped: the store was not reached in time", extra={"task": work.task.id})
                    self._cut_off.add(epoch)
                    job.cancel()
            if not lease.unbroken_for(self._timeout, checked):
                checked = self._clock.time()
                self._check_ownership()
            looked = self._clock.time()
            # often, since a machine that was asleep does not notice the time that has passed
            await self._clock.sleep(min(1.0, shortest / 4))
            if waited and self._remaining() > 0.0:
                waited = False
                self.woken()

    def _check_ownership(self) -> None:
        """Another process may have taken the plan over: a commit finds out, and then this one stops its work."""
        assert self._plan is not None
        check = asyncio.get_running_loop().create_task(self._plan.journal.settled())
        self._checks.add(check)
        check.add_done_callback(self._checks.discard)


def _ignore(report: Any) -> None:
    """Progress and the end of the output are shown for runs only."""
