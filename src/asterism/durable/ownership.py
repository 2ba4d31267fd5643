"""Ownership of a stored plan: take it over, run it, reload it, and leave it to the next owner.

One ``Ownership`` lasts from the moment at which this process takes a plan over until its end is durable, or until
another process may continue it. Within it the plan may be reloaded, as often as necessary: if another process has
changed a run whose end was about to be written, nothing of that commit happened, and the plan is read again.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from asterism.base.clock import first_of, stopped
from asterism.core.errors import AsterismError, RunRefused
from asterism.core.plan.edits import EditWaits
from asterism.core.plan.status import RUNNING
from asterism.core.run.run import TERMINAL, RunStatus
from asterism.durable.approval_store import ApprovalRecords
from asterism.durable.awaited_world import AwaitedWorld
from asterism.durable.commands import CancelPlan, OpenPlan
from asterism.durable.fleet_device import FleetDevice, FleetRoster, PlanRoster, PlanRuns
from asterism.durable.journal_store import (
    Head,
    OwnershipLost,
    ReloadRequired,
    StoredConstellation,
    head_key,
    load,
    read_head,
)
from asterism.durable.journal_writer import JournalWriter
from asterism.durable.plan_actor import answer_messages, is_answered, mailbox_prefix
from asterism.durable.plan_process import PlanProcess
from asterism.durable.plan_summaries import live_owner
from asterism.durable.rejected_edits import RejectionRecorder
from asterism.fleet.device.agent import DeviceAgent
from asterism.fleet.fleet import Fleet
from asterism.fleet.retention import PREFIX
from asterism.orchestrator.events import EventBus
from asterism.orchestrator.execution import Execution
from asterism.orchestrator.options import Options
from asterism.orchestrator.orchestrator import PlanCommands
from asterism.orchestrator.plan_trace import PlanTrace
from asterism.orchestrator.result import Result
from asterism.orchestrator.scheduler import DeviceScheduler
from asterism.store.optimistic_update import retried, try_commit, until_available
from asterism.store.protocol import PutRegister, Query, Register, for_plan
from asterism.store.store_errors import StoreError, StoreUnavailable

log = logging.getLogger("asterism.durable")

Value = TypeVar("Value")

HAND_BACK_TIMEOUT = 30.0
"""Seconds that a leaving orchestrator has to hand back the runs that it executes itself."""

LAST_COMMIT_TIMEOUT = 2.0
"""Seconds that a leaving orchestrator waits for the store."""

MAILBOX_INTERVAL = 1.0
"""Seconds between two looks into the mailbox of the plan without being woken."""

MAILBOX_PAUSE = 0.1
"""Seconds between two looks when too many were in vain, however often the store wakes this process."""

FREE_LOOKS = 10
"""How many looks in vain, one after the other, are not too many. A message wakes its owner when it is sent, answered
and removed. So an editor that sends an edit whenever the last one was answered is answered at once."""

ANSWER_KEPT = 600.0
"""After how many seconds an owner removes an answer that nobody collected: seconds of the owner's own clock since it
first saw the answer. The clock of the store may jump, and the process would take a fresh answer for lost."""


class FleetMembership:
    """The orchestrator as a device of its fleet, for as long as the block lasts. It takes work once it owns its plan:
    of several that want it, all but one leave again. On exit it hands its runs back."""

    def __init__(self, agent: DeviceAgent) -> None:
        self.agent = agent
        agent.hold_back("it does not run its plan yet")

    async def __aenter__(self) -> FleetMembership:
        self.left = asyncio.create_task(self.agent.run())
        try:
            await first_of(self.agent.joined.wait(), asyncio.wait([self.left]))
            if self.left.done():
                self.left.result()
        except BaseException:
            self.left.cancel()
            raise
        return self

    def loss(self) -> AsterismError:
        """Why the orchestrator is a device no longer."""
        error = self.left.exception()
        if isinstance(error, StoreError):
            return error
        why = "it was drained" if error is None else error
        return OwnershipLost(f"{self.agent.name} is no longer a device of the fleet: {why}")

    async def __aexit__(self, *error: object) -> None:
        self.agent.drain(hand_back=True)
        try:
            await asyncio.wait([self.left], timeout=HAND_BACK_TIMEOUT)
        finally:  # the fleet finds out the rest when the heartbeats of this device stop
            await stopped(self.left)


class Ownership:
    """``watch`` is a context that lasts as long as one loaded state of the plan. ``running`` is the plan while it can
    be changed."""

    def __init__(
        self,
        fleet: Fleet,
        device: FleetDevice,
        scheduler: DeviceScheduler,
        options: Options,
        events: EventBus,
        chance: random.Random,
        member: FleetMembership,
        watch: Callable[[StoredConstellation], AbstractAsyncContextManager[None]],
    ) -> None:
        self._fleet, self._device, self._scheduler = fleet, device, scheduler
        self._options, self._events, self._random = options, events, chance
        self._member, self._watch = member, watch
        assert isinstance(scheduler.roster, FleetRoster)
        self._shared = scheduler.roster  # of all plans of the orchestrator
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._started = asyncio.Event()  # while the plan can be changed
        self._paused = False  # by a call in this process
        self._owned = False  # whether this process has been the owner
        self._stored: StoredConstellation | None = None
        agent = member.agent
        self._process = PlanProcess(agent, device) if agent.session.slots else None
        self._before: Execution | None = None  # of the plan as it was loaded before
        self.running: OpenPlan | None = None

    @property
    def head(self) -> Head:
        assert self._stored is not None
        return self._stored.head

    # -- running the plan ----------------------------------------------------------------------------------------------

    async def run(self, stored: StoredConstellation, owner: PlanCommands) -> Result:
        """Run the plan to its end. Raises OwnershipLost if another process continues it, or may."""
        name = stored.plan.id
        self._fleet.running_plans[name] = self
        self._fleet.kept_plans.pop(name, None)
        try:
            while True:
                try:
                    self._stored = stored
                    async with self._watch(stored):
                        result = await self._run_loaded(stored, owner)
                    self._ended.set_result(None)
                    return result
                except ReloadRequired as reason:
                    log.info("plan %s is reloaded: %s", name, reason)
                    await until_available(self._fleet.clock, functools.partial(self._keep_or_claim, name))
                    stored = await until_available(
                        self._fleet.clock, lambda: load(self._fleet.store, name, self._options.conditions)
                    )
        finally:
            del self._fleet.running_plans[name]
            if self._before is not None:  # it was not loaded again
                self._before.abandon()
                await self._before.closed()
            if self._process is not None:
                await self._process.close()
            if not self._ended.done():
                self._ended.set_exception(OwnershipLost(f"plan {name!r} was left before its end"))
                self._ended.exception()  # retrieved, so that asyncio does not complain if no task waits

    @retried
    async def _keep_or_claim(self, name: str) -> None:
        """Find out who owns the plan, since its head or journal has changed. If no process does, this one takes it with
        a commit of the head alone: from then on, nobody owns it for a moment while it is loaded. Raises
        OwnershipLost."""
        store, agent = self._fleet.store, self._member.agent
        head, revision = await read_head(store, name)
        if head.owner == agent.session.id:
            return
        if self._owned or head.ended or await live_owner(store, head) is not None:
            raise OwnershipLost(f"another process continues plan {name!r}: {head.device}")
        claimed = head.changed(owner=agent.session.id, device=agent.name)
        await store.commit([PutRegister(head_key(name), claimed.to_json(), revision)])

    async def _run_loaded(self, stored: StoredConstellation, owner: PlanCommands) -> Result:
        agent, name = self._member.agent, stored.plan.id
        store, clock = self._fleet.store, self._fleet.clock
        lost: asyncio.Future[AsterismError] = asyncio.get_running_loop().create_future()
        journal = JournalWriter(
            store,
            clock,
            self._fleet.chance,
            stored,
            functools.partial(_lose, lost),
            self._events.publish,
        )
        rejections = RejectionRecorder(store, name)
        stored.plan.on_rejected = rejections.record
        plan: PlanRuns | None = None
        execution: Execution | None = None
        jobs: list[asyncio.Task[None]] = []
        try:
            epoch = stored.head.epoch + 1
            stored.plan.note(self._scheduler.now(), "taken up", None, f"by {agent.name}, epoch {epoch}")
            trace = PlanTrace.start(name, self._scheduler.now, stored.head.traceparent)
            span = {} if trace is None or stored.head.traceparent else {"traceparent": trace.traceparent}
            state = "cancelling" if stored.head.cancelling else "executing"
            await journal.change_head(owner=agent.session.id, device=agent.name, epoch=epoch, state=state, **span)
            self._take_work()
            plan = await self._attach(journal)
            outdated = _outdated_runs(stored)
            approvals = await until_available(clock, lambda: ApprovalRecords.read(store, journal))
            messages = await until_available(clock, lambda: store.registers(mailbox_prefix(name)))
            if messages:
                await self._scheduler.roster.learn_devices()
            execution, world = self._start(stored, journal, plan.roster, owner, approvals, trace)
            plan_open = OpenPlan(stored, journal, execution.waiting, store.clock, execution, owner, agent.name)
            self.running = plan_open
            self._started.set()
            if stored.head.cancelling:  # before any task can start
                execution.cancel(stored.head.cancel_reason or "")
            elif stored.head.paused is not None or self._paused:
                execution.pause()
            answered = answer_messages(plan_open, messages)
            jobs = [
                asyncio.create_task(self._follow_mailbox(plan_open, bool(answered))),
                asyncio.create_task(world.follow()),
                asyncio.create_task(cancel_runs(self._fleet, name, outdated)),
            ]
            for job in jobs:
                job.add_done_callback(functools.partial(_job_ended, lost))
            await self._await_end(execution, lost)
            await journal.commit()
            await cancel_runs(self._fleet, name)
            await journal.change_head(state=str(stored.plan.state), owner=None, ended_at=stored.plan.ended_at)
            return execution.result()
        except OwnershipLost as error:
            raise (lost.result() if lost.done() else error) from None  # the first is the cause of the other
        finally:
            if plan is not None:
                plan.close()
            await self._leave(name, journal, execution, jobs)
            await rejections.close()

    async def _attach(self, journal: JournalWriter) -> PlanRuns:
        """Get ready for the tasks of the plan, here and in the fleet."""
        plan = await self._device.attach(journal, PlanRoster(self._shared, self._process))
        if self._process is not None:
            self._process.attach(plan)
        return plan

    def _take_work(self) -> None:
        self._owned = True
        self._member.agent.take_work()

    async def _await_end(self, execution: Execution, lost: asyncio.Future[AsterismError]) -> None:
        """Wait until the plan has ended. Raises what keeps this process from it."""
        ends: list[asyncio.Future[Any]] = [execution.done, lost, self._member.left]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if lost.done():
            raise lost.result()
        if not execution.done.done():
            raise self._member.loss()

    def _start(
        self,
        stored: StoredConstellation,
        journal: JournalWriter,
        roster: PlanRoster,
        owner: object,
        approvals: ApprovalRecords,
        trace: PlanTrace | None,
    ) -> tuple[Execution, AwaitedWorld]:
        plan, lock = stored.plan, stored.lock
        self._scheduler.check_unused(plan.id)
        self._options.adopt(lock)
        self._options.add_ranks(plan)
        execution = Execution(
            self._scheduler, plan, lock, self._options, self._events, self._random, journal, trace, roster
        )
        roster.wake = execution.wake
        approvals.attach(execution.waiting)
        world = execution.waits.world = AwaitedWorld(self._fleet.store, journal, execution)
        self._scheduler.add(execution, owner)
        if plan.started_at is None:
            execution.begin()
        else:
            execution.take_over(self._before)
        if self._before is not None:
            self._before.abandon()  # the plan does not want the rest any more
            self._before = None
        return execution, world

    async def _leave(
        self,
        name: str,
        journal: JournalWriter,
        execution: Execution | None,
        jobs: list[asyncio.Task[None]],
    ) -> None:
        self._started.clear()
        if execution is not None:  # a pause that the head knows of may end while the plan is loaded again
            self._paused = execution.paused and journal.head.paused is None
        for job in jobs:
            job.cancel()
        journal.list_soon()
        try:
            with contextlib.suppress(OwnershipLost, TimeoutError):
                async with asyncio.timeout(LAST_COMMIT_TIMEOUT):  # the next owner need not repeat what is known now
                    await journal.commit()
        finally:  # also if this is cancelled
            journal.seal()
            try:
                if execution is not None:
                    execution.abandon(keeps_work=journal.reload_required)
                    self._before = execution if journal.reload_required else None
                    await self._scheduler.remove(execution)
                await journal.close()
            finally:
                self._device.detach(name)
                self.running = None

    # -- changing the plan ---------------------------------------------------------------------------------------------

    async def change(self, change: Callable[[], Value]) -> Value:
        """Change the plan, and wait until that is durable; that an edit waits for a person is durable, too, before
        EditWaits is raised. If the plan is reloaded before that, nothing of the change has happened, and it is made
        again."""
        while True:
            running, waits = await self._changeable(), None
            try:
                changed = change()  # raises if the plan does not run here any more
            except EditWaits as waiting:
                waits = waiting
            if running is None:
                raise OwnershipLost("the plan was left before the change was durable")
            try:
                await running.journal.commit()
            except ReloadRequired:
                continue
            if waits is not None:
                raise waits
            return changed

    async def _changeable(self) -> OpenPlan | None:
        """The plan as soon as it can be changed; None if it is left for good."""
        while not self._ended.done():
            if self.running is not None and self.running.journal.sealed:
                self._started.clear()  # what changes now would be forgotten: wait until the plan is loaded again
            if self._started.is_set():
                return self.running
            started = asyncio.ensure_future(self._started.wait())
            either: list[asyncio.Future[Any]] = [started, self._ended]
            try:  # not with first_of, which takes more turns of the loop: the plan may have ended by then
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            finally:
                started.cancel()
        return None

    async def cancel(self, command: CancelPlan, find: Callable[[], Execution]) -> None:
        """Cancel the plan, and wait until its end is durable. Any later owner would cancel it too."""

        def cancel() -> None:
            find()  # raises if the plan does not run here any more
            assert self.running is not None
            command.perform(self.running)

        await self.change(cancel)
        await asyncio.shield(self._ended)

    async def _follow_mailbox(self, plan: OpenPlan, answered: bool) -> None:
        """Do what is asked of the plan in its mailbox. With ``answered`` some of it is done, and not written."""
        store, clock, name = self._fleet.store, self._fleet.clock, plan.name
        watch = store.watch(frozenset({for_plan(name)}))
        vain, seen = 0, dict[str, float]()  # since when each answer waits for its process
        try:
            if answered:
                await plan.journal.commit()
            while plan.active:
                answers = 0
                with contextlib.suppress(StoreUnavailable):
                    messages = await store.registers(mailbox_prefix(name))
                    answers = await self._empty(plan, messages)
                    seen = {each.key: seen.get(each.key, clock.time()) for each in messages if is_answered(each)}
                    for each in messages:
                        if clock.time() - seen.get(each.key, clock.time()) > ANSWER_KEPT:
                            await try_commit(store, [PutRegister(each.key, None, each.revision)])
                vain = 0 if answers else vain + 1
                wait = MAILBOX_INTERVAL
                if vain > FREE_LOOKS:
                    await clock.sleep(MAILBOX_PAUSE)
                    wait -= MAILBOX_PAUSE
                if not await watch.wait(wait):
                    vain = 0  # it was quiet
        except OwnershipLost as lost:  # the plan is reloaded or left, and the messages are read again
            log.info("messages to plan %s are not followed any more: %s", name, lost)
        finally:
            watch.close()

    async def _empty(self, plan: OpenPlan, messages: Sequence[Register]) -> int:
        """Answer messages, in one commit with what they change. Returns how many. Raises OwnershipLost and
        StoreUnavailable."""
        if not all(map(is_answered, messages)):
            await plan.running.roster.learn_devices()
        answers = answer_messages(plan, messages)
        if answers:
            await plan.journal.commit()
        return len(answers)


def _lose(lost: asyncio.Future[AsterismError], error: AsterismError) -> None:
    if not lost.done():
        lost.set_result(error)


def _job_ended(lost: asyncio.Future[AsterismError], job: asyncio.Task[None]) -> None:
    """A job beside the plan has ended: an error of the store ends the plan's process, too."""
    error = None if job.cancelled() else job.exception()
    if isinstance(error, StoreError):
        _lose(lost, error)
    elif error is not None:
        log.error("a bug in Asterism", exc_info=error)


async def cancel_runs(fleet: Fleet, name: str, chosen: Callable[[str, int], bool] = lambda task, epoch: True) -> None:
    """Cancel the open runs of a plan that no longer count: an earlier owner had no time to, or the plan has ended."""
    open_runs = Query(workflow=f"{PREFIX}{name}", statuses=frozenset(RunStatus) - TERMINAL)
    for run in await until_available(fleet.clock, lambda: fleet.store.find(open_runs)):
        if run.key is None:
            continue  # it belongs to a plan of this name in a peer's store
        task, _, epoch = run.key.removeprefix(f"{PREFIX}{name}/").rpartition("/")
        if chosen(task, int(epoch)):
            with contextlib.suppress(RunRefused):
                await until_available(fleet.clock, functools.partial(fleet.cancel, run.id))


def _outdated_runs(stored: StoredConstellation) -> Callable[[str, int], bool]:
    """Which executions (task, epoch) no longer count at this moment. Those that end later are not among them."""
    running = {(node.id, node.epoch) for node in stored.plan.nodes.values() if node.status is RUNNING}
    latest = stored.plan.epochs
    return lambda task, epoch: epoch <= latest and (task, epoch) not in running
