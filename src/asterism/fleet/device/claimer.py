"""The claimer of a device: claims runs that are assigned to it, and takes runs that no device has.

A device gets runs in three ways. The coordinator assigns a run to it, which it claims or declines. It takes a run that
is offered to all, while it has room. Or a program in its own process creates a run, which starts here in the same
commit (``reserve``, ``accept``, ``begin``: the ``InProcessDevice`` of a fleet).

Before it takes an offered run, the device judges it: it asks its executor, which knows the device policy. Judging
happens on the event loop; inside the transaction of the store the claimer only looks up earlier judgements.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from asterism.base.error_log import RecurringError
from asterism.base.https_session import load_httpx
from asterism.core.errors import RunRefused
from asterism.core.run import transitions
from asterism.core.run.run import ASSIGNED, Run, queue_order
from asterism.core.run.work import Work
from asterism.fleet.device.completion import HeldRun
from asterism.fleet.device.device_connection import Claim, Decline, DeviceConnection, Refuse
from asterism.fleet.device.health import DeviceHealth
from asterism.fleet.device.lease import Lease
from asterism.fleet.device.take_order import Acceptance, DeviceParts, OwnScore, TakeOrder, Unseen
from asterism.fleet.device.worker import Worker
from asterism.store.store_errors import StoreUnavailable

log = logging.getLogger("asterism.device")

ROUNDS = 4
"""How often a look for more urgent work asks the store again after it judged kinds that it did not know."""

MOST_KINDS = 5_000
"""How many kinds of runs that a device can execute are remembered: each task of a plan may be of its own."""


class Claimer:
    def __init__(
        self,
        connection: DeviceConnection,
        worker: Worker,
        lease: Lease,
        health: DeviceHealth,
        acceptance: Acceptance,
        own_score: OwnScore,
    ) -> None:
        self._connection, self.worker, self.own_score = connection, worker, own_score
        self._lease, self._health, self._acceptance = lease, health, acceptance
        self._able: dict[str, Work] = {}  # the work of the kinds that the device can execute
        self._unable: set[str] = set()
        self._cleared: set[str] = set()  # ids of runs that were judged, and would be executed here
        self._parts = DeviceParts(connection, worker, lease, acceptance, own_score, self._able, self._cleared)
        self._wake = asyncio.Event()  # there may be work
        self._assigned = True  # some of it may be assigned to us
        self._unclaimed: set[str] = set()  # ids of assigned runs that wait for a fresh lease: their places are kept
        self._wakes = 0
        self._nothing_at = -1  # the wake after which the store had nothing to offer
        self._look_when_free = False  # runs wait that only a free slot may begin
        self._news = 0  # how often there was a reason to believe that runs wait for a slot here
        self._no_news_since = -1  # the last of these after which a look has left none
        self._refused_in_turn = False  # whether a run was not begun here since, because others may wait
        self._look_at: float | None = None  # when to look again for what waits for a rate
        self._open_requests = 0
        self.settled = asyncio.Event()
        """Set while no request is open whose answer may bring a run."""
        self.settled.set()

    # -- when to look ------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Look for work: the store says that there is some, or what the device accepts has changed."""
        self._news += 1
        self._look_anew()

    def _look_anew(self) -> None:
        self._wakes += 1
        self._assigned = True
        self._wake.set()

    def look(self) -> None:
        """Look again, whether or not there is new work."""
        self._wake.set()

    def look_if_free(self) -> None:
        """There may be room again. That is no reason to look if nothing waits here and the store has no more."""
        if not self._wake.is_set() and self.wants_slot:
            self._wake.set()

    @property
    def wants_slot(self) -> bool:
        """Whether work may wait for a slot."""
        return self._assigned or self.worker.has_waiting or self._wakes != self._nothing_at

    def _look_later(self, seconds: float) -> None:
        """Look again then, or earlier: a rate has room for more."""
        loop = asyncio.get_running_loop()
        at = loop.time() + seconds
        if self._look_at is None or at < self._look_at:
            self._look_at = at
            loop.call_later(seconds, self._look_then, at)

    def _look_then(self, at: float) -> None:
        if at == self._look_at:
            self._look_at = None
            self.wake()

    async def listen(self) -> None:
        """Wake when the store announces work, and from time to time. Runs until it is cancelled."""
        watch = self._connection.watch()
        try:
            while True:
                woken = await watch.wait(self._connection.look_interval)
                if woken:
                    self.wake()
                elif self._connection.looks_alone:
                    self._look_anew()
                elif not self._health.well:
                    self.look()  # its pause may be over, and no work may come before it says so
        finally:
            watch.close()

    async def claim_until_cancelled(self) -> None:
        """Look for work whenever there may be some."""
        trouble = RecurringError(log, "cannot look for work", "looking for work again", self._connection.clock.time)
        self.look()
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                self._count_request(1)
                try:
                    await self._look_once()
                finally:
                    self._count_request(-1)
                trouble.recovered()
            except StoreUnavailable as error:
                trouble.occurred(error)
                self._assigned = True
                await self._connection.clock.sleep(self._connection.retry_pause())
                self._wake.set()

    async def _look_once(self) -> None:
        if self._assigned:
            self._assigned = False
            await self._look_at_own()
        if self.worker.has_waiting:
            await self.worker.start_waiting()
        if self._acceptance.takes_offers:
            if not self._health.well:
                await self._health.retry(self.worker, self.worker.executor.probe)
            await self._take_offered()
            if self.worker.has_waiting:
                await self.worker.start_waiting()

    def _count_request(self, change: int) -> None:
        self._open_requests += change
        (self.settled.clear if self._open_requests else self.settled.set)()

    # -- what the device would execute -------------------------------------------------------------------------------

    def forget_judgements(self) -> None:
        """The profile of the device has changed, and with it what the device would execute."""
        self._unable.clear()
        self._able.clear()
        self._cleared.clear()

    async def _judge_kind(self, kind: str, run: Run | None) -> None:
        """Find out whether the device can execute a kind of runs. ``run`` is one of them, None if it cannot be
        read."""
        if run is None or self.worker.executor.objection(run) is not None:
            self._unable.add(kind)
            return
        if run.work.http is not None:
            await load_httpx()  # needed to judge addresses, and slow to import
        if len(self._able) >= MOST_KINDS:
            self._able.clear()
        self._able[kind] = run.work

    async def _judge(self, run: Run) -> None:
        """Whether a run would be executed here. If not, the refusal is written into the run, without a grant: the store
        does not offer it to this device again in this round, and the record shows why."""
        why = self.worker.executor.check(run)
        if why is None:
            self._cleared.add(run.id)
            return
        with contextlib.suppress(RunRefused):  # another device has it by now
            await self._connection.change(run, Refuse(self.worker.owner, why))
            log.info("declined: %s", why, extra={"run": run.id})

    # -- runs assigned to this device --------------------------------------------------------------------------------

    async def _look_at_own(self) -> None:
        """Claim what is assigned to us, and stop what a person asks us to stop."""
        own = await self._connection.own_runs()
        self._unclaimed.clear()
        for run in own:
            held = self.worker.held.get(run.id)
            if held is None or held.grant.epoch != run.epoch:
                continue
            if run.stop_request is not None:
                self.worker.stop(held, run.stop_request)
            if not held.started and run.revision > held.run.revision:
                held.run = run  # its priority may have changed while it waits for a slot
        assigned = [run for run in own if run.status is ASSIGNED]
        assigned.sort(key=queue_order)
        if any(run.work.http is not None for run in assigned):
            await load_httpx()
        outcomes = await asyncio.gather(*map(self._claim, assigned), return_exceptions=True)  # all have ended by then
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _claim(self, run: Run) -> None:
        if run.id in self.worker.held or self.worker.knows(run.id, run.epoch):
            return
        if not self._lease.require(run.work):
            self._unclaimed.add(run.id)
            return  # the heartbeat that is due now brings us back here
        why = self._acceptance.refusal_reason(run) or self.worker.executor.check(run)
        for_now = self._acceptance.declines_for_now
        asked = self._connection.clock.time()
        starts = self.worker.reserve(run.id, starts=True)
        if not starts and not self.worker.reserve(run.id, starts=False) and why is None:
            why, for_now = "it is full", True
        grant = run.grant
        assert grant is not None
        step = Claim(grant, starts) if why is None else Decline(grant, why, for_now)
        try:
            after = await self._connection.change(run, step)
            if why is not None:
                log.info("declined: %s", why, extra={"run": run.id})
            if after.session == self.worker.owner.session:
                self.worker.unreserve(run.id)
                self.worker.receive(after, asked)
            elif self._acceptance.draining:
                await self._connection.drain()  # the store has not heard of it
            elif for_now:
                self.wake()  # it waits for a slot now, and is the first to get one
        except RunRefused as refusal:
            log.info("it is not ours to claim: %s", refusal.why, extra={"run": run.id})
        finally:
            self.worker.unreserve(run.id)

    async def adopt(self, run_id: str, epoch: int) -> None:
        """Begin a run that the store says is ours and that we never heard of: the answer to our claim was lost."""
        asked = self._connection.clock.time()
        run = await self._connection.own_run(run_id)
        if run is None or run.epoch != epoch or run.status is ASSIGNED:
            return
        if run.work.http is not None:
            await load_httpx()
        if not self.worker.knows(run_id, epoch):
            log.info("taken up: the answer to our claim was lost", extra={"run": run_id})
            self._lease.require(run.work)
            self.worker.receive(run, asked)

    async def adopt_all(self) -> None:
        """Adopt every such run now, without waiting for a heartbeat."""
        for run in await self._connection.own_runs():
            if not self.worker.knows(run.id, run.epoch):
                await self.adopt(run.id, run.epoch)

    # -- runs offered to all -----------------------------------------------------------------------------------------

    async def _take_offered(self) -> None:
        if self.worker.suspended:
            return
        if not self._connection.commits_together:
            await self._connection.ends_under_way()
        while self._room > 0 and self._wakes != self._nothing_at:
            wakes, room, news = self._wakes, self._room, self._news
            taken, unseen = await self._take(max(0, self.worker.free_slots - len(self._unclaimed)), room, None)
            if not unseen:
                # the store has no more: do not ask again each time that a slot becomes free
                if len(taken) < room and not self._look_when_free:
                    self._nothing_at, self._no_news_since = wakes, news
                elif self._refused_in_turn and not await self._connection.has_offers():
                    self._no_news_since = news
                self._refused_in_turn = False
                break
            await self._see(unseen)  # what was judged is not met again, so this comes to an end
            if self._assigned:
                return  # we were woken meanwhile: what is assigned to us goes first, in the next look
        if self.worker.room <= 0:
            await self._preempt()
        if self.worker.has_waiting:
            self._preempt_for_waiting()

    @property
    def _room(self) -> int:
        """How many offered runs can be held beside those that are assigned to us."""
        return self.worker.room - len(self._unclaimed)

    async def _see(self, unseen: Unseen) -> None:
        for kind, run in unseen.kinds.items():
            await self._judge_kind(kind, run)
        for outcome in await asyncio.gather(*map(self._judge, unseen.runs), return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def _take(self, free: int, limit: int, above: int | None) -> tuple[list[Run], Unseen]:
        """Take up to ``limit`` runs with a priority ``above`` that, and start the first ``free`` of them. Returns what
        was taken, and what must be judged first."""
        order = TakeOrder(self._parts, frozenset(self._unable), free=free, limit=limit, above=above)
        asked = self._connection.clock.time()
        taken = await self._connection.take(order)
        for work in (*order.stale[:1], *order.taken_kinds.values()):  # of most kinds there are many runs
            self._lease.require(work)
        if order.look_in is not None:
            self._look_later(order.look_in)
        self._look_when_free = order.look_when_free
        for run in taken:
            self.worker.receive(run, asked)
        return taken, order.unseen

    async def _preempt(self) -> None:
        """Give up the least urgent run that may be given up, if the store offers a more urgent one."""
        for _ in range(ROUNDS):
            going = [held for held in self.worker if held.stopping is None and not held.ending]
            victims = [held for held in going if not held.started or held.run.work.preemptible]
            if not victims or self.worker.room < 0:
                return  # no run may go, or one is going already
            victim = min(victims, key=_preemption_order)
            taken, unseen = await self._take(0, 1, victim.run.priority)
            if taken:
                if self.worker.room < 0 and self.worker.held.get(victim.run.id) is victim:
                    self._stop_for(taken[0], victim)
                return
            if not unseen:
                return
            await self._see(unseen)

    def _preempt_for_waiting(self) -> None:
        """Stop the least urgent execution that may be preempted, if a more urgent held run waits for its slot."""
        if self.worker.free_slots > 0:
            return
        waiting = [held.run for held in self.worker if not held.started and held.stopping is None]
        working = [held for held in self.worker if held.started]
        if not waiting or any(held.stopping is not None or (held.ending and not held.slot_freed) for held in working):
            return  # nothing waits, or a slot is about to be free
        first = min(waiting, key=queue_order)
        victims = [held for held in working if held.run.work.preemptible and held.run.priority < first.priority]
        if victims:
            self._stop_for(first, min(victims, key=_preemption_order))

    def _stop_for(self, urgent: Run, victim: HeldRun) -> None:
        """Stop an execution for a more urgent run, which the record of the stopped one then names."""
        if victim.stopping is None and not victim.ending:
            victim.preempted_by = f"run {urgent.id} ({urgent.workflow}, priority {urgent.priority})"
            self.worker.stop(victim, f"preempted by {victim.preempted_by}")

    # -- runs created in this process --------------------------------------------------------------------------------

    @property
    def device(self) -> str:
        return self.worker.owner.device

    @property
    def full(self) -> bool:
        return self.worker.room <= 0

    def reserve(self, run: Run) -> bool:
        """Keep a slot for a run that is about to be created here. Returns False if the device cannot take it now, or if
        others may wait for the slot: then this run waits with them, and the next look takes the first of all."""
        if not self._lease.is_fresh(run.work):
            self._lease.require(run.work)
            return False
        if self._acceptance.refusal_reason(run) or self.worker.executor.check(run):
            return False
        if self._news != self._no_news_since or self.worker.has_waiting:
            self._refused_in_turn = True
            self.look()
            return False
        if not self.worker.reserve(run.id, starts=True):
            self._news += 1  # it will wait
            return False
        self._count_request(1)
        return True

    def unreserve(self, run: Run) -> None:
        """The run is here by now, or will not come."""
        self.worker.unreserve(run.id)
        self._count_request(-1)

    def accept(self, run: Run) -> Run:
        """The run as it is written when it is created: taken by this device, and started."""
        scores = self.own_score.scores(run.work, len(self.worker.held))
        now = self._connection.store_time()
        return transitions.take(run, self.worker.owner, now, starts=True, scores=scores)

    def begin(self, run: Run, asked: float) -> None:
        """Execute a run that was created here. ``asked`` is when its creation was sent, by the device's clock."""
        self.worker.unreserve(run.id)
        self._lease.require(run.work)
        self.worker.receive(run, asked)

    def holds(self, run_id: str) -> bool:
        return run_id in self.worker.held


def _preemption_order(held: HeldRun) -> tuple[int, bool, float]:
    """Sort key: the least urgent first; among equals what has not begun, then the most recent."""
    return (held.run.priority, held.started, -held.since)
