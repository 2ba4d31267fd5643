"""An orchestrator whose constellations outlive it.

``run`` keeps a plan in the fleet's store and runs it there; ``go_on`` takes up one that was left, by a crash or on
purpose; ``standby`` waits until whoever runs it is gone. The orchestrator joins the fleet as a device while it works,
with slots of its own if it is to do tasks itself, and owns its constellation as long as that device is heard of. What
really keeps two of them apart is the journal (``keeping.py``).

Cancelling the coroutine that awaits one of these leaves the constellation: what runs on other devices goes on, what ran
here is handed back, and ``go_on`` finds all of it. To end a constellation, ``cancel`` it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from asterism.core.errors import AlreadyRunning, PlanError, RunRefused
from asterism.core.plan.apply import Applied
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edits import EditBatch
from asterism.core.plan.journal import RecordedConstellation, RecordedLock
from asterism.core.plan.ready_queue import CriticalPathRanks
from asterism.core.plan.status import RUNNING
from asterism.core.run.run import TERMINAL, RunStatus
from asterism.core.run.workflow import Workflow
from asterism.durable.admin import cancelling, owner_of, paused
from asterism.durable.fleet_device import NOTHING_TO_DO, FleetDevice, FleetRoster
from asterism.durable.joined_device import Joined
from asterism.durable.journal_store import ENDED, Kept, NotOurs, Overtaken, check_kept, head, keep, load, say_ended
from asterism.durable.journal_writer import Journal
from asterism.durable.ownership import Tenure
from asterism.fleet.device.agent import DeviceAgent
from asterism.fleet.device.membership import DeviceNameTaken
from asterism.fleet.fleet import Fleet
from asterism.fleet.policy.policy import DevicePolicy
from asterism.fleet.retention import PREFIX
from asterism.orchestrator.editor_calls import Answer
from asterism.orchestrator.execution import Execution
from asterism.orchestrator.orchestrator import Orchestrator
from asterism.orchestrator.result import Result
from asterism.store.protocol import Query
from asterism.store.store_errors import StoreUnavailable

log = logging.getLogger("asterism.durable")

Value = TypeVar("Value")

AT_ONCE = 1000
HEARTBEAT, TIMEOUT = 5.0, 15.0
"""How often an orchestrator is heard of, and after how much silence another may take over, in seconds."""

MONITOR_EVERY = 1.0
"""How often it looks after the fleet if it is elected to, in seconds: whoever goes on with a plan is waiting."""

FAREWELL = 2.0
"""How long a leaving orchestrator waits for the store."""

LOOK = 1.0
"""How often a standby looks, and an orchestrator whether it is to pause or to cancel, in seconds."""


class DurableOrchestrator(Orchestrator):
    """``local`` is how many tasks this process does itself (0: none), ``can`` what for. All else is as for every
    Orchestrator; what concerns devices in the process has no meaning here. At most ``at_once`` tasks are under way."""

    def __init__(
        self,
        fleet: Fleet,
        *,
        local: int = 0,
        can: Iterable[str] = (),
        policy_of_device: DevicePolicy | None = None,
        at_once: int = AT_ONCE,
        heartbeat: float = HEARTBEAT,
        timeout: float = TIMEOUT,
        host: str | None = None,
        strategy: str = "score",
        max_losses: int = 5,
        make_agent: Callable[..., DeviceAgent] = DeviceAgent,
        **terms: Any,
    ) -> None:
        super().__init__(strategy=strategy, max_losses=max_losses, **terms)
        self.fleet, self.local, self.can = fleet, local, tuple(can)
        self._host = host or socket.gethostname()
        self._agent_terms: dict[str, Any] = {
            "heartbeat": heartbeat,
            "timeout": timeout,
            "policy": policy_of_device,
            "monitor_every": MONITOR_EVERY,
        }
        self._make_agent = make_agent
        self._journals: dict[str, Journal] = {}
        self._tenures: dict[str, Tenure] = {}
        self.remembered: Kept | None = None
        """The constellation that was taken up last, as this process knows it."""
        self._flow_terms: dict[str, Any] = {
            "no_device_timeout": self.no_device_timeout,
            "losses": max_losses,
            "strategy": strategy,
        }
        Workflow("terms", call=NOTHING_TO_DO, **self._flow_terms)  # complains now about terms that make no sense
        self._device = FleetDevice(fleet, at_once, self._journals.__getitem__, self._flow_terms)
        self.roster = FleetRoster([self._device], "score")

    def now(self) -> float:
        """By the clock of the store, which is the same for everybody who will ever run the constellation."""
        return self.fleet.store.clock()

    # -- what a user calls ---------------------------------------------------------------------------------------------

    async def run(self, plan: Constellation, *, assignments: Mapping[str, str] | None = None) -> Result:
        """Keep a plan under its id, and run it. Raises ConstellationExists, NotJson for what no other process could
        execute, and what ``go_on`` raises."""
        check_kept(plan)
        recorded = RecordedConstellation.of(plan)
        self._prepare(recorded, assignments or {})
        lock = RecordedLock(recorded, **self._lock_terms)
        terms = {name: self._lock_terms[name] for name in ("policy", "max_cycles", "edit_timeout")}
        self._adopt_loop()
        kept = await keep(self.fleet.store, recorded, lock, terms | self._flow_terms)
        agent = self._agent(plan.id)
        async with Joined(agent) as living:
            return await self._own(kept, agent, living)

    async def go_on(self, name: str) -> Result:
        """Go on with a constellation that is in the store. If it has ended, that is the answer. Raises
        UnknownConstellation, UnreadableJournal, AlreadyRunning while somebody else runs it, and NotOurs when it is
        taken over from us."""
        self._adopt_loop()
        found, _ = await head(self.fleet.store, name)
        if found.ended:
            return await self._ended(await load(self.fleet.store, name, self.conditions))
        agent = self._agent(name)
        owner = await owner_of(self.fleet.store, found)
        if owner is not None and owner.device != agent.name:
            raise AlreadyRunning(
                f"constellation {name!r} is run by {owner.device!r}, which was heard of lately; "
                f"`asterism plan standby {name}` waits until it is gone"
            )
        async with Joined(agent) as living:
            kept = await load(self.fleet.store, name, self.conditions)
            return await (self._ended(kept) if kept.plan.state in ENDED else self._own(kept, agent, living))

    def _agent(self, name: str) -> DeviceAgent:
        """Of an earlier life of this device on the same machine it is known at once that it is over."""
        device = f"{name}@{self._host}"
        return self._make_agent(self.fleet, device, slots=self.local, can=self.can, **self._agent_terms)

    async def _ended(self, kept: Kept) -> Result:
        if not kept.head.ended:  # whoever ended it may have had no time for the rest
            await self._call_off(kept.plan.id)
        await say_ended(self.fleet.store, kept)
        return Result(kept.plan, kept.lock.history, None, kept.lock.policy)

    async def standby(self, name: str) -> Result:
        """Wait until nobody runs a constellation, and then go on with it; or until it has ended."""
        while True:
            # another one may be quicker
            with contextlib.suppress(AlreadyRunning, DeviceNameTaken, NotOurs, StoreUnavailable):
                found, _ = await head(self.fleet.store, name)
                if found.ended or await owner_of(self.fleet.store, found) is None:
                    return await self.go_on(name)
            await self.fleet.clock.sleep(LOOK)

    def edit(self, plan_id: str, batch: EditBatch) -> Applied:
        """Not of a constellation in a store: what this returned might yet be lost."""
        raise PlanError(f"constellation {plan_id!r} is kept in a store: use `await amend({plan_id!r}, batch)`")

    async def amend(self, name: str, batch: EditBatch) -> Applied:
        """Edit a constellation that runs here. It is durable when this returns. Raises EditRejected."""
        return await self._durably(name, lambda: Orchestrator.edit(self, name, batch))

    def answer(self, cycle_id: int, who: str, answer: Answer, *, plan_id: str | None = None) -> Applied:
        """Not of a constellation in a store: what this returned might yet be lost."""
        raise PlanError("constellations that are kept in a store are answered with `await respond(cycle_id, who, …)`")

    async def respond(self, cycle_id: int, who: str, answer: Answer, *, plan_id: str | None = None) -> Applied:
        """Answer a claimed cycle. It is durable when this returns. Raises EditRejected."""
        name = plan_id if plan_id is not None else self._execution(None).plan.id
        return await self._durably(name, lambda: self._editable(name).cycles.answer(cycle_id, who, answer))

    async def cancel(self, plan_id: str, *, hard: bool = False) -> None:
        """As every orchestrator, and from the beginning whoever goes on with it would cancel it too. When this returns
        its end is durable. Raises NotOurs if it was left before that."""

        def cancel() -> asyncio.Future[None]:
            execution = self._execution(plan_id)
            self._journals[plan_id].wish(cancelling=True)
            execution.cancel()
            if hard:
                execution.cancel_hard()
            return self._tenures[plan_id].ended

        await asyncio.shield(await self._durably(plan_id, cancel))

    async def _durably(self, name: str, change: Callable[[], Value]) -> Value:
        """Change a constellation that runs here, or will in a moment, and wait until that is durable. If it is taken up
        again before that, nothing of it has happened, and it is judged anew."""
        while True:
            if name in self._tenures:
                await self._tenures[name].running_or_over()
            changed = change()
            try:
                await self._journals[name].commit()
                return changed
            except Overtaken:
                continue

    # -- owning it -----------------------------------------------------------------------------------------------------

    async def _own(self, kept: Kept, agent: DeviceAgent, living: asyncio.Future[None]) -> Result:
        """``living`` is done when the device is not one of the fleet any more: then another may go on."""
        name = kept.plan.id
        tenure = self._tenures[name] = Tenure()
        try:
            while True:
                try:
                    result = await self._own_once(kept, agent, living)
                    tenure.ended.set_result(None)
                    return result
                except Overtaken as news:
                    log.info("constellation %s is taken up again: %s", name, news)
                    kept = await self._device.patiently(lambda: load(self.fleet.store, name, self.conditions))
                    if kept.head.owner != agent.session.id:
                        raise NotOurs(f"{kept.head.device} has gone on with constellation {name!r}") from None
        finally:
            del self._tenures[name]
            tenure.leave(NotOurs(f"constellation {name!r} was left before its end"))

    async def _own_once(self, kept: Kept, agent: DeviceAgent, living: asyncio.Future[None]) -> Result:
        lost: asyncio.Future[NotOurs] = asyncio.get_running_loop().create_future()
        journal = Journal(
            self.fleet.store, self.fleet.clock, self.fleet.chance, kept, _tells(lost), self.events.publish
        )
        name, self.remembered = kept.plan.id, kept
        execution: Execution | None = None
        jobs: list[asyncio.Task[None]] = []
        try:
            epoch = kept.head.epoch + 1
            kept.plan.note(self.now(), "taken up", None, f"by {agent.name}, epoch {epoch}")
            await journal.change_head(owner=agent.session.id, device=agent.name, epoch=epoch, state="executing")
            self._journals[name] = journal
            await self._device.patiently(lambda: self._device.prepare(name, kept.head.terms))
            wished = await self._device.patiently(lambda: paused(self.fleet.store, name)) is not None
            unwanted = await self._device.patiently(lambda: cancelling(self.fleet.store, name))
            stray = _strays(kept)
            execution = self._go_on(kept, journal)
            self._tenures[name].running.set()
            if kept.head.cancelling or unwanted is not None:
                self._begin_to_cancel(execution, journal, unwanted)
            elif wished or self._tenures[name].paused:  # before anything can start
                self.pause(name)
            jobs = [
                asyncio.create_task(self._mind_wishes(execution, journal, wished)),
                asyncio.create_task(self._call_off(name, stray)),
            ]
            ends: list[asyncio.Future[Any]] = [execution.done, lost, living]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if lost.done():
                raise lost.result()
            if not execution.done.done():
                raise NotOurs(f"{agent.name} is no device of the fleet any more")
            await journal.commit()
            await self._call_off(name)
            await journal.change_head(state=str(kept.plan.state), owner=None, ended_at=kept.plan.ended_at)
            return self._result(execution)
        finally:
            await self._let_go(name, journal, execution, jobs)

    async def _let_go(
        self, name: str, journal: Journal, execution: Execution | None, jobs: list[asyncio.Task[None]]
    ) -> None:
        journal.leaving = True
        self._tenures[name].running.clear()
        self._tenures[name].paused = execution is not None and execution.paused
        for job in jobs:
            job.cancel()
        try:
            with contextlib.suppress(NotOurs, TimeoutError):
                async with asyncio.timeout(FAREWELL):  # what is known now need not be found out again
                    await journal.commit()
        finally:  # also when we are told to hurry
            journal.seal()
            try:
                if execution is not None:
                    await self._leave(execution)
                await journal.close()
            finally:
                self._device.forget(name)
                self._journals.pop(name, None)

    def _go_on(self, kept: Kept, journal: Journal) -> Execution:
        plan, lock = kept.plan, kept.lock
        self._not_twice(plan)
        lock.edit_on, lock.claim_timeout = self._edit_on, self._lock_terms["claim_timeout"]
        execution = self._take_on(plan, lock)
        execution.tell.publish = journal.tell  # nothing is told that is not durable

        async def settled() -> bool:
            with contextlib.suppress(NotOurs):
                await journal.commit()
                return True
            return False

        execution.settled = settled
        if self._rank and plan.ranks is None:
            plan.ranks = CriticalPathRanks()
            plan.ranks.all(plan.nodes)
        if plan.started_at is None:
            execution.begin()
        else:
            journal.taken_up = {
                (node.id, node.epoch)
                for node in plan.nodes.values()
                if node.status is RUNNING and node.tentative is None and node.device is not None
            }
            execution.go_on()
        return execution

    async def _leave(self, execution: Execution) -> None:
        """Stop what is left in this process, without a word to anybody: the journal is closed."""
        execution.stopping |= execution.active  # what is stopped now has not failed
        execution.active.clear()
        for epoch, active in tuple(execution.stopping.items()):
            execution.ask_to_stop(active, epoch)
        execution.cycles.abandon()
        await self._dismiss(execution)

    async def _call_off(self, name: str, stray: Callable[[str, int], bool] = lambda task, epoch: True) -> None:
        """Stop runs of executions that do not count any more: whoever was here before had no time to call them off, or
        has just ended the constellation."""
        open_runs = Query(workflow=f"{PREFIX}{name}", statuses=frozenset(RunStatus) - TERMINAL)
        for run in await self._device.patiently(lambda: self.fleet.store.find(open_runs)):
            if run.key is None:
                continue  # of a constellation of this name in a peer's store
            task, _, epoch = run.key.removeprefix(f"{PREFIX}{name}/").rpartition("/")
            if stray(task, int(epoch)):
                with contextlib.suppress(RunRefused):
                    await self._device.patiently(functools.partial(self.fleet.cancel, run.id))

    def _begin_to_cancel(self, execution: Execution, journal: Journal, words: str | None) -> None:
        """Because whoever was here before had begun to, or somebody asks for it from wherever: ``words`` say who."""
        if execution.done.done():
            return  # it has just ended
        if not journal.head.cancelling:
            execution.plan.note(self.now(), "asked to cancel", None, words or "")
            journal.wish(cancelling=True)  # with the note
        execution.cancel()

    async def _mind_wishes(self, execution: Execution, journal: Journal, minded: bool) -> None:
        """Somebody may have paused it, from wherever, or want it no more, which is final. What was said of pausing in
        this process holds until that changes."""
        while not execution.cancelling:
            with contextlib.suppress(StoreUnavailable):
                unwanted = await cancelling(self.fleet.store, execution.plan.id)
                if unwanted is not None:
                    self._begin_to_cancel(execution, journal, unwanted)
                    return
                wished = await paused(self.fleet.store, execution.plan.id) is not None
                if wished != minded:
                    (self.pause if wished else self.resume)(execution.plan.id)
                    minded = wished
            await self.fleet.clock.sleep(LOOK)


def _strays(kept: Kept) -> Callable[[str, int], bool]:
    """Which executions do not count any more, as it is now: what ends from now on is none of them."""
    running = {(node.id, node.epoch) for node in kept.plan.nodes.values() if node.status is RUNNING}
    latest = kept.plan.epochs
    return lambda task, epoch: epoch <= latest and (task, epoch) not in running


def _tells(lost: asyncio.Future[NotOurs]) -> Callable[[NotOurs], None]:
    def tell(error: NotOurs) -> None:
        if not lost.done():
            lost.set_result(error)

    return tell
