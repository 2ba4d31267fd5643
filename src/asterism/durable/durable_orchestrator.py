"""Durable orchestrator: runs plans that are kept in a store and so survive the process that runs them.

``run`` stores a plan and runs it; ``run_stored`` continues a plan that was stopped, by a crash or on purpose;
``standby`` waits until its owner is gone. While it works, the orchestrator is a device of the fleet, with slots of its
own if it executes tasks itself. It owns the plan as long as that device sends heartbeats. What really keeps two owners
apart is the journal (``journal_store.py``).

Cancelling the coroutine that awaits one of these methods stops the orchestrator and leaves the plan in the store: runs
on other devices continue, runs of this process are handed back, and ``run_stored`` finds all of them. ``cancel`` ends
the plan itself.
"""

from __future__ import annotations

import contextlib
import json
import logging
import random
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from asterism.base.clock import Looks, beside
from asterism.core.errors import AlreadyRunning, AsterismError
from asterism.core.json_values import plain_json
from asterism.core.plan.apply import Applied
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edits import Edit, EditBatch, WaitingEdit
from asterism.core.plan.journal import RecordedConstellation, RecordedLock
from asterism.core.record import replace
from asterism.core.run.session import PLAN
from asterism.core.run.work import Work
from asterism.durable.approval_store import approval_terms
from asterism.durable.commands import CancelPlan
from asterism.durable.fleet_device import NO_ACTION, FleetDevice, FleetRoster
from asterism.durable.journal_store import (
    OwnershipLost,
    StoredConstellation,
    check_storable,
    insert,
    load,
    read_head,
    record_end,
)
from asterism.durable.ownership import FleetMembership, Ownership, cancel_runs
from asterism.durable.plan_actor import retry_plan
from asterism.durable.plan_submissions import check_place, plan_cancelling, readable_files
from asterism.durable.plan_summaries import ENDED, live_owner
from asterism.durable.plan_turns import entering, take_turn, turn_terms
from asterism.fleet.device.agent import DeviceAgent
from asterism.fleet.device.membership import DeviceNameTaken, measure
from asterism.fleet.fleet import Fleet, orchestrator_device
from asterism.fleet.policy.device_policy import DevicePolicy
from asterism.fleet.retention import PREFIX
from asterism.fleet.stored_limits import check_plan_limits
from asterism.orchestrator.edit_cycles import Answer
from asterism.orchestrator.options import Options
from asterism.orchestrator.orchestrator import PlanCommands
from asterism.orchestrator.result import Result, StoreRecords
from asterism.orchestrator.scheduler import DeviceScheduler
from asterism.store.optimistic_update import retry_on_conflict
from asterism.store.store_errors import StoreUnavailable

log = logging.getLogger("asterism.durable")

Value = TypeVar("Value")

MAX_OPEN_RUNS, MAX_LOSSES = 1000, 5

HEARTBEAT, TIMEOUT = 5.0, 15.0
"""Seconds between two heartbeats of an orchestrator, and without one until another may take over."""

MONITOR_INTERVAL = 1.0
"""Seconds between two passes of the fleet monitor if this orchestrator is elected to run it."""

STANDBY_INTERVAL = 1.0
"""Seconds between two looks of a standby at the owner of a plan."""


class DurableOrchestrator(PlanCommands):
    """Runs plans in the store of a fleet, on the devices of that fleet.

    ``local``          how many tasks this process executes itself at once; 0 for none
    ``only_own_tasks`` whether it executes only tasks of the plan, and no other runs of the fleet
    ``can``            the capabilities of this process for them
    ``device_policy``  the device policy of this process
    ``notice_policy``  judges the command and the address that get notices; the device policy if left out
    ``max_open_runs``  how many tasks are runs of the fleet at once
    ``heartbeat``      seconds between two heartbeats of this process
    ``takeover_after`` seconds without a heartbeat until another process may take over
    ``host``           the name of this machine
    ``make_agent``     makes the device agent of this process; for tests
    ``fields``         the fields of ``Options``. ``max_losses`` is 5 by default
    """

    def __init__(
        self,
        fleet: Fleet,
        *,
        local: int = 0,
        only_own_tasks: bool = False,
        can: Iterable[str] = (),
        device_policy: DevicePolicy | None = None,
        notice_policy: DevicePolicy | None = None,
        max_open_runs: int = MAX_OPEN_RUNS,
        heartbeat: float = HEARTBEAT,
        takeover_after: float = TIMEOUT,
        host: str | None = None,
        make_agent: Callable[..., DeviceAgent] = DeviceAgent,
        options: Options | None = None,
        **fields: Any,
    ) -> None:
        own = Options(max_losses=MAX_LOSSES, records=StoreRecords(fleet.store)) if options is None else options
        self.options = Options.of(own, fields)
        self.fleet, self.local, self.can = fleet, local, tuple(can)
        self._host, self._only_own_tasks = host or socket.gethostname(), only_own_tasks
        self._agent_terms: dict[str, Any] = {
            "heartbeat": heartbeat,
            "heartbeat_timeout": takeover_after,
            "policy": device_policy,
            "notice_policy": notice_policy,
            "monitor_every": MONITOR_INTERVAL,
        }
        self._make_agent = make_agent
        self._run_terms: dict[str, Any] = {
            "no_device_timeout": self.options.no_device_timeout,
            "losses": self.options.max_losses,
            "strategy": self.options.strategy,
        }
        Work(call=NO_ACTION, **self._run_terms)  # its constructor checks them
        self._device = FleetDevice(fleet, max_open_runs, self._run_terms)
        self._random = random.Random(self.options.seed)
        self._owned: dict[str, Ownership] = {}
        self.stored: StoredConstellation | None = None
        """The plan that was loaded last, as this process knows it."""

        roster, concurrency = FleetRoster(self._device), self.options.concurrency
        # the clock of the store is the same for all owners that a plan ever has
        super().__init__(DeviceScheduler(roster, concurrency=concurrency, clock=fleet.store.clock))

    # -- running -------------------------------------------------------------------------------------------------------

    async def run(
        self,
        plan: Constellation,
        *,
        assignments: Mapping[str, str] | None = None,
        params: Mapping[str, Any] | None = None,
        file: str = "",
    ) -> Result:
        """Store a plan under its id, and run it. ``params`` and ``file`` are recorded with it: the parameters and the
        name of its plan file.
        Raises ConstellationExists, NotJson if another process could not execute a task, and what ``run_stored``
        raises."""
        check_storable(plan)
        await check_plan_limits(self.fleet.store, plan)
        await check_place(self.fleet, plan)
        recorded = RecordedConstellation.of(plan)
        recorded.author = self.fleet.by
        self.options.prepare(recorded, assignments)
        lock = self.options.lock(recorded, RecordedLock)
        self.scheduler.attach_loop()
        plan_options, plain_params = self.options.lock_terms | self._run_terms, plain_json(params or {}, "params")
        options = self.options
        plan_options |= approval_terms(
            options.approvals, options.approval_timeout, options.scopes, options.approval_escalation
        )
        plan_options |= turn_terms(recorded)
        store, terms = self.fleet.store, plan_options

        async def attempt() -> StoredConstellation:
            turn = await entering(store, plan.id, terms)
            return await insert(store, recorded, lock, terms, plain_params, file=file, also=turn)

        stored = await retry_on_conflict(attempt)
        async with FleetMembership(self._agent(plan.id)) as member:
            if await self._await_turn(plan.id):  # meanwhile it may have changed
                stored = await load(store, plan.id, self.options.conditions)
            return await self.own(stored, member)

    async def run_stored(self, name: str) -> Result:
        """Run a stored plan from where it stopped. If it has ended, return its result. Raises UnknownConstellation,
        UnreadableJournal, AlreadyRunning while another process runs it, and OwnershipLost if one takes it over."""
        self.scheduler.attach_loop()
        head, _ = await read_head(self.fleet.store, name)
        if head.ended:
            return await self._result(await load(self.fleet.store, name, self.options.conditions))
        agent = self._agent(name)
        owner = await live_owner(self.fleet.store, head)
        if owner is not None and owner.device != agent.name:
            raise AlreadyRunning(
                f"plan {name!r} is run by {owner.device!r}, whose last heartbeat is recent. "
                f"To wait until it is gone: asterism plan standby {name}"
            )
        async with FleetMembership(agent) as member:
            await self._await_turn(name)
            stored = await load(self.fleet.store, name, self.options.conditions)
            return await (self._result(stored) if stored.plan.state in ENDED else self.own(stored, member))

    async def retry(
        self,
        name: str,
        *,
        from_tasks: Iterable[str] = (),
        edits: EditBatch | Iterable[Edit] | None = None,
        reason: str = "",
    ) -> Result:
        """Run a stored plan that has ended again: the tasks that failed, and those that were cancelled because of them.
        Completed tasks keep their results.

        ``from_tasks`` are run again instead, with everything below them. ``edits`` are applied first, all or none.
        Raises PlanError, EditRejected, and what ``run_stored`` raises."""
        batch = None if edits is None else EditBatch.of(edits)
        first, conditions = tuple(from_tasks), self.options.conditions
        await retry_plan(self.fleet, name, from_tasks=first, batch=batch, reason=reason, conditions=conditions)
        return await self.run_stored(name)

    async def standby(self, name: str) -> Result:
        """Wait until no process runs a plan, and then run it; or until it has ended."""
        while True:
            # another standby may be faster
            with contextlib.suppress(AlreadyRunning, DeviceNameTaken, OwnershipLost, StoreUnavailable):
                head, _ = await read_head(self.fleet.store, name)
                if head.ended or await live_owner(self.fleet.store, head) is None:
                    return await self.run_stored(name)
            await self.fleet.clock.sleep(STANDBY_INTERVAL)

    async def _await_turn(self, name: str) -> bool:
        """Wait until a plan has its turn among those of its file. Returns whether it had to wait."""
        told: str | None = None
        async with contextlib.AsyncExitStack() as replaced:
            async for _ in Looks(self.fleet.clock, interval=STANDBY_INTERVAL):
                with contextlib.suppress(StoreUnavailable):  # its heartbeat says so
                    ahead = await take_turn(self.fleet, name)
                    if ahead is None:
                        break
                    if ahead != told:
                        self.waits_for_turn(name, ahead)
                        if await plan_cancelling(self.fleet.store, ahead):
                            await replaced.enter_async_context(beside(self._end_cancelled(ahead)))
                    told = ahead
        return told is not None

    async def _end_cancelled(self, name: str) -> None:
        """End a plan that is to be cancelled, if its process has died. No plan runner may live."""
        own = self.fleet.named(self.fleet.by)  # the device of an orchestrator would take the place of this one
        try:
            await DurableOrchestrator(own, host=self._host, make_agent=self._make_agent).standby(name)
        except AsterismError as error:
            log.warning("plan %s, which is replaced, cannot be ended: %s", name, error)
        finally:
            await own.waiters.close()

    def _agent(self, name: str) -> DeviceAgent:
        """The device agent. Its name is that of the plan and the machine, so that an earlier process of the same name
        is known to be dead at once."""
        device, options = orchestrator_device(name, self._host), self._agent_terms
        if self._only_own_tasks:
            options = {**options, "accepts": f"run.workflow == {json.dumps(PREFIX + name, ensure_ascii=False)}"}
        measured: Callable[[], Mapping[str, Any]] = options.get("measure", measure)
        options = {**options, "measure": lambda: {**measured(), PLAN: name}}
        return self._make_agent(self.fleet, device, slots=self.local, can=self.can, **options)

    async def _result(self, stored: StoredConstellation) -> Result:
        """The result of a plan that has ended. Its last owner may have died before it could clean up."""
        if not stored.head.ended:
            await cancel_runs(self.fleet, stored.plan.id)
        await record_end(self.fleet.store, stored)
        artifacts = await readable_files(self.fleet)
        return Result(stored.plan, stored.lock.history, None, stored.lock.policy, artifacts=artifacts)

    # -- hooks for subclasses ------------------------------------------------------------------------------------------

    async def own(self, stored: StoredConstellation, member: FleetMembership) -> Result:
        """Run a plan as its owner. A subclass may override this to see the whole time of ownership."""
        name = stored.plan.id
        options = replace(self.plan_options(stored.plan), artifacts=await readable_files(self.fleet))
        ownership = self._owned[name] = Ownership(
            self.fleet,
            self._device,
            self.scheduler,
            options,
            self.events,
            self._random,
            member,
            self._watch,
        )
        try:
            return await ownership.run(stored, self)
        finally:
            del self._owned[name]

    def waits_for_turn(self, name: str, ahead: str) -> None:
        """Called when a plan begins to wait for the end of another plan of its file. A subclass may override this to
        say so."""

    def plan_options(self, plan: Constellation) -> Options:
        """The options with which a plan runs. A subclass may override this to choose them by the plan."""
        return self.options

    @contextlib.asynccontextmanager
    async def _watch(self, stored: StoredConstellation) -> AsyncIterator[None]:
        self.stored = stored
        async with self.watch(stored):
            yield

    def watch(self, stored: StoredConstellation) -> AbstractAsyncContextManager[object]:
        """A context that is entered whenever the plan was loaded, and left before it is loaded again. A subclass may
        override this to observe the plan."""
        return contextlib.nullcontext()

    # -- commands ------------------------------------------------------------------------------------------------------

    async def edit(self, plan_id: str, batch: EditBatch, *, editor: str | None = None) -> Applied:
        """Edit a plan that runs here, as a person or as an editor. Durable on return. Raises EditRejected, and
        EditWaits."""
        await self.scheduler.roster.learn_devices()
        return await self._change(
            plan_id, lambda: self.scheduler.find_editable(plan_id).waiting.submit(batch, None, editor)
        )

    async def approve(
        self,
        number: int,
        who: str,
        batch: EditBatch | None = None,
        *,
        reason: str = "",
        plan_id: str | None = None,
    ) -> Applied:
        """Apply a waiting edit, or ``batch`` in its place. Durable on return. Raises ApprovalGone; and EditRejected,
        with the edit still waiting."""
        name = plan_id if plan_id is not None else self.scheduler.find(None).plan.id
        await self.scheduler.roster.learn_devices()
        return await self._change(
            name, lambda: self.scheduler.find_editable(name).waiting.approve(number, who, batch, reason)
        )

    async def refuse(self, number: int, who: str, reason: str = "", *, plan_id: str | None = None) -> WaitingEdit:
        """Drop a waiting edit. Durable on return. Raises ApprovalGone."""
        name = plan_id if plan_id is not None else self.scheduler.find(None).plan.id
        return await self._change(name, lambda: self.scheduler.find(name).waiting.refuse(number, who, reason))

    async def answer(self, cycle_id: int, who: str, answer: Answer, *, plan_id: str | None = None) -> Applied:
        """Answer a claimed cycle. Durable on return. Raises EditRejected, and EditWaits."""
        name = plan_id if plan_id is not None else self.scheduler.find(None).plan.id
        await self.scheduler.roster.learn_devices()
        return await self._change(name, lambda: self.scheduler.find_editable(name).cycles.answer(cycle_id, who, answer))

    async def cancel(self, plan_id: str, *, hard: bool = False) -> None:
        """Cancel a plan that runs here. Its end is durable on return; meanwhile any later owner would cancel it too.
        Raises OwnershipLost if the plan was left before its end."""
        ownership = self._owned.get(plan_id)
        if ownership is None:
            self.scheduler.find(plan_id)  # raises PlanError
            raise OwnershipLost(f"plan {plan_id!r} is being left by this process")
        await ownership.cancel(CancelPlan(hard=hard), lambda: self.scheduler.find(plan_id))

    async def _change(self, plan_id: str, change: Callable[[], Value]) -> Value:
        ownership = self._owned.get(plan_id)
        return change() if ownership is None else await ownership.change(change)  # change() raises
