"""A device as a process: it joins a fleet, works, and leaves.

::

    async with await Fleet.open("sqlite:///fleet.db") as fleet:
        await DeviceAgent(fleet, "kitchen-pc", can={"gpu"}, slots=2).run()
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace as replaced
from typing import Any

from asterism.base import expressions
from asterism.base.error_log import RecurringError
from asterism.base.expressions import holds
from asterism.base.ids import new_id
from asterism.core.errors import AsterismError
from asterism.core.run import transitions
from asterism.core.run.placement import mismatch_reason, resting_reason, unmet_reason
from asterism.core.run.run import Owner, Run
from asterism.core.run.session import RESTING, Session
from asterism.core.run.workflow import SHORTEST_HEARTBEAT, Workflow
from asterism.fleet.coordinator import Coordinator
from asterism.fleet.device.claimer import Lookout
from asterism.fleet.device.executor import Executor, Executors
from asterism.fleet.device.health import Circuit
from asterism.fleet.device.heartbeat import Heart
from asterism.fleet.device.machine_presence import OwnPresence
from asterism.fleet.device.membership import Presence, identity, join, leave, say_draining
from asterism.fleet.device.profile import measure
from asterism.fleet.device.worker import Desk
from asterism.fleet.fleet import Fleet
from asterism.fleet.policy.policy import Policy
from asterism.fleet.workflows import UnknownWorkflow
from asterism.store.protocol import OFFERED, for_device
from asterism.store.store_errors import StoreError, StoreUnavailable

log = logging.getLogger("asterism.device")

LOOK = 5.0
"""How often a device looks for work without being woken, in seconds."""


class DeviceReplaced(AsterismError):
    """Another device took this one's name; everything it did was stopped."""


class DeviceAgent:
    """``can`` are its capabilities, ``slots`` how much it does at once (0: it only watches over others), ``backlog``
    how much more it claims in advance. ``accepts`` is its own rule about what it will have, an expression over ``run``
    and ``device``; with ``hands_back``, an expression over its profile, it gives back all work while that holds.
    ``heartbeat`` and ``timeout`` are for a device without work; with work the workflows' count. ``monitor_every`` is
    how often it watches over the others if it is elected; None for never. ``lease`` is how long an election lasts, that
    of the fleet's settings if left out. ``replace`` takes the name from another living device. ``measure`` gives its
    profile."""

    def __init__(
        self,
        fleet: Fleet,
        name: str,
        *,
        can: Iterable[str] = (),
        slots: int = 1,
        backlog: int = 0,
        labels: Mapping[str, str] | None = None,
        accepts: str | None = None,
        hands_back: str | None = None,
        policy: Policy | None = None,
        executor: Executor | None = None,
        heartbeat: float = 30.0,
        timeout: float = 90.0,
        grace: float = 5.0,
        monitor_every: float | None = 5.0,
        lease: float | None = None,
        replace: bool = False,
        presence: Presence | None = None,
        measure: Callable[[], Mapping[str, Any]] = measure,
    ) -> None:
        _check(name, slots, backlog, heartbeat, timeout)
        _check_rules(name, accepts, hands_back)
        self.fleet, self.name = fleet, name
        self.session = Session(
            new_id(fleet.store.clock(), fleet.chance),
            name,
            fleet.store.clock(),
            can=frozenset(can),
            slots=slots,
            backlog=backlog,
            accepts=accepts,
            timeout=timeout,
        )
        self._labels, self._hands_back, self._replace = dict(labels or {}), hands_back, replace
        self._measure, self._presence = measure, presence
        policy = policy or Policy.open()
        self._executor = executor or Executors(policy, device=name, session=self.session.id, grace=grace)
        self._work_to_look_for = asyncio.Event()
        self._assigned = True
        self.draining = asyncio.Event()
        self._hurries = False  # what is being done is given back before it leaves
        self._asking = 0  # how many questions the store has not answered after which something may be ours
        self._answered = asyncio.Event()  # none is open
        self._answered.set()
        self._resting: str | None = None  # why it would hand work back, as of the last heartbeat
        self._shown: Mapping[str, Any] = {}
        self._circuit = Circuit(fleet, name, lambda: self._executor.probe(), self._circuit_changed)
        self._make_body(heartbeat, timeout, grace)
        self.session = replaced(self.session, profile=self._profile())
        self._monitor_every = monitor_every
        self._coordinator = Coordinator(fleet, name, self.session.id, policy, every=monitor_every or 0.0, lease=lease)
        self.joined = asyncio.Event()

    def _make_body(self, heartbeat: float, timeout: float, grace: float) -> None:
        """The desk, the lookout and the heart, which know of each other."""
        fleet, session = self.fleet, self.session
        self.desk = Desk(
            fleet,
            Owner(self.name, session.id),
            self._executor,
            slots=session.slots,
            backlog=session.backlog,
            grace=grace,
            lease=lambda holding: self.heart.lease(holding),
            unbroken=lambda run, asked: self.heart.unbroken(run, asked),
            on_free=self._freed,
            on_news=lambda: self.heart.news(),
            on_end=self._circuit.ended,
            allowance=self._circuit.allowance,
        )
        self.lookout = Lookout(
            fleet,
            self.desk,
            willing=self._unwilling,
            resting=lambda: resting_reason(self._resting),
            fresh=lambda flow: self.heart.fresh(flow),
            expect=lambda flow: self.heart.expect(flow),
            yields=self._leaves_to_others,
        )
        self.heart = Heart(
            fleet.store,
            fleet.clock,
            self.desk,
            self.lookout,
            heartbeat=heartbeat,
            timeout=timeout,
            grace=grace,
            measure=self._profile,
            on_work=self._work_assigned,
            on_draining=self.draining.set,
        )

    # -- life --------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Join, work until drained, and leave. Raises DeviceNameTaken, DeviceReplaced, and what makes work
        impossible, such as a store that is corrupt."""
        store = await identity(self.fleet.store, self.fleet.clock)
        if isinstance(self._executor, Executors):
            self._executor.belong_to(store)
        presence = self._presence or OwnPresence(store, self.name)
        self.session = replaced(self.session, host=presence.host)
        began = self.fleet.clock.time()
        try:
            await join(self.fleet.store, self.fleet.clock, self.session, presence, replace=self._replace)
            log.info("joined as %s", self.name)
            self.heart.renewed = began  # the store may have heard of us as long ago as that
            await self._live()
        finally:
            if self.fleet.local is self:
                self.fleet.local = None
            self._circuit.close()
            self._executor.close()
            self._coordinator.close()
            presence.close()

    async def _live(self) -> None:
        jobs = [self.heart.beat_for_ever(), self.heart.fence_for_ever(), self._listen(), self._look()]
        if self._monitor_every is not None:
            jobs += [self._coordinator.watch_for_ever(), self._coordinator.tell_for_ever()]
        tasks = [asyncio.create_task(job) for job in jobs]
        beating = tasks[0]
        drained = asyncio.create_task(self._drained())
        self.fleet.local = self
        self.joined.set()
        try:
            await asyncio.wait([*tasks, drained], return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
            if beating.done():
                raise DeviceReplaced(
                    f"another device has taken the name {self.name!r}: what was being done here was stopped"
                )
        finally:
            self.fleet.local = None
            stopped = await self._stop(tasks[:2], [drained, *tasks[2:]])
            if stopped and not (beating.done() and not beating.cancelled()):
                await self._leave()

    async def _stop(self, heart: Sequence[asyncio.Task[None]], others: Sequence[asyncio.Task[None]]) -> bool:
        """Take nothing more, and stop what is being done: the heart beats until that has happened. Whether it has."""
        try:
            try:
                await _cancel(others)
            finally:  # also when we are told to hurry
                stopped = await self.desk.abandon()
            return stopped
        finally:
            await _cancel([*heart, *others])

    async def _leave(self) -> None:
        """Say that nothing is being done here any more; if the store does not hear it, time will tell it."""
        with contextlib.suppress(StoreError, TimeoutError):
            async with asyncio.timeout(self.heart.timeout / 3):
                await self._coordinator.resign()
                await leave(self.fleet.store, self.session.id)
        log.info("left")

    # -- leaving -----------------------------------------------------------------------------------------------------

    def drain(self, *, hand_back: bool = False) -> None:
        """Take nothing more and leave when all is done; with ``hand_back`` what is being done is given back instead."""
        self._hurries = self._hurries or hand_back
        self.draining.set()
        self._look_for_work()
        if hand_back:
            self._clear_the_desk()

    def _clear_the_desk(self) -> None:
        """Of what has not begun, and of everything if there is a hurry."""
        for holding in self.desk:
            if self._hurries or not holding.started:
                self.desk.stop(holding, "the device is leaving")

    async def _drained(self) -> None:
        await self.draining.wait()
        with contextlib.suppress(StoreError):  # so that nobody gives us anything more; if it is not heard, we decline
            await say_draining(self.fleet.store, self.session.id)
        sure = False
        while True:
            await self._answered.wait()  # what was asked for before may be ours, and nobody else would begin it
            tasks = [holding.task for holding in self.desk if holding.task is not None]
            self._clear_the_desk()
            if not len(self.desk):
                if sure:
                    return
                sure = True
                with contextlib.suppress(StoreError, TimeoutError):
                    async with asyncio.timeout(self.heart.timeout / 3):
                        await self.lookout.adopt_all()
            elif tasks:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            else:
                await asyncio.sleep(0)

    # -- work --------------------------------------------------------------------------------------------------------

    def _look_for_work(self) -> None:
        self._work_to_look_for.set()

    def _freed(self) -> None:
        """There may be room again. That is nothing to look into if nothing waits here and the store has no more."""
        if self._work_to_look_for.is_set():
            return  # by another of those that are leaving together
        if self._assigned or self.desk.anything_waits or self.lookout.may_find:
            self._work_to_look_for.set()

    def _work_assigned(self) -> None:
        self.lookout.called()
        self._assigned = True
        self._work_to_look_for.set()

    async def _listen(self) -> None:
        watch = self.fleet.store.watch(frozenset({OFFERED, for_device(self.name)}))
        try:
            while True:
                await watch.wait(LOOK)
                self._work_assigned()
        finally:
            watch.close()

    async def _look(self) -> None:
        trouble = RecurringError(log, "cannot look for work", "looking for work again", self.fleet.clock.time)
        while True:
            await self._work_to_look_for.wait()
            self._work_to_look_for.clear()
            try:
                self._asks(1)
                try:
                    await self._look_once()
                finally:
                    self._asks(-1)
                trouble.recovered()
            except (StoreUnavailable, UnknownWorkflow) as error:
                trouble.occurred(error)
                self._assigned = True
                await self.fleet.clock.sleep(1.0)
                self._work_to_look_for.set()

    def _asks(self, more: int) -> None:
        self._asking += more
        (self._answered.clear if self._asking else self._answered.set)()

    async def _look_once(self) -> None:
        if self._assigned:
            self._assigned = False
            await self.lookout.look_at_own()
        await self.desk.start_waiting()
        if not self.draining.is_set() and self.desk.slots and self._resting is None:
            await self._circuit.try_again(self.desk)
            await self.lookout.take_offered()
            await self.desk.start_waiting()

    def _unwilling(self, run: Run, flow: Workflow) -> str | None:
        """Why this device will not have a run, in words."""
        if self.draining.is_set():
            return "it is being drained"
        return resting_reason(self._resting) or mismatch_reason(self.session, run, flow, self._shown, holds)

    def _leaves_to_others(self, run: Run, flow: Workflow) -> bool:
        """Whether somebody else is preferred for a run. The coordinator sees to it; if it does not in time, anybody
        may have it."""
        if not flow.orchestration and flow.prefers is None:
            return False
        if self.fleet.store.clock() - (run.waiting_since or 0.0) > 2 * LOOK:
            return False
        if flow.orchestration and not self._coordinator.elected:
            return True
        return flow.prefers is not None and unmet_reason(flow.prefers, self._shown, holds) is not None

    def _circuit_changed(self) -> None:
        """The device has stopped taking work, or takes it again: everybody is told, and what waits here goes elsewhere
        or may be joined by more."""
        why = self._circuit.suspended
        for holding in self.desk if why is not None else ():
            if not holding.started:
                self.desk.stop(holding, f"it has stopped taking work: {why}")
        self.heart.hurry()
        self._work_assigned()

    def _profile(self) -> dict[str, Any]:
        """What it tells of itself with each heartbeat; and what follows from it."""
        profile = {**self._measure(), "labels": self._labels}
        if self._circuit.suspended is not None:
            profile["suspended"] = self._circuit.suspended
        self._shown = replaced(self.session, profile=profile, used=len(self.desk)).expression_names()
        self.lookout.forget()
        rested, self._resting = self._resting, self._rest()
        if self._resting is not None:
            for holding in self.desk:
                self.desk.stop(holding, f"it hands work back while {self._hands_back}")
        if rested is None and self._resting is not None:
            log.info("resting: %s", self._resting)
        elif rested is not None and self._resting is None:
            log.info("takes work again")
            self._work_assigned()  # what has waited for us need not wait for anybody's next look
        return {**profile, RESTING: self._resting}

    def _rest(self) -> str | None:
        """Why it would hand work back now; None if it would not."""
        if self._hands_back is None or holds(self._hands_back, self._shown) is not True:
            return None
        return f"{self._hands_back!r} holds"

    # -- work that was created here ----------------------------------------------------------------------------------

    def reserve(self, run: Run, flow: Workflow) -> bool:
        """Keep a slot for a run that is about to be created here, if we are able, willing and free."""
        if not self.heart.fresh(flow):
            self.heart.expect(flow)
            return False
        able = self._unwilling(run, flow) is None and self.lookout.objection(run, flow) is None
        if not able or not self.desk.reserve(run.id):
            return False
        self._asks(1)
        return True

    def unreserve(self, run: Run) -> None:
        """It is here by now, or will not come."""
        self.desk.unreserve(run.id)
        self._asks(-1)

    def accept(self, run: Run, flow: Workflow) -> Run:
        """The run as ours, under way: what is written when it is created."""
        return transitions.take(run, self.desk.owner, flow, self.fleet.store.clock(), starts=True)

    def begin(self, run: Run, flow: Workflow, asked: float) -> None:
        self.desk.unreserve(run.id)
        self.heart.expect(flow)
        self.desk.receive(run, flow, asked)


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _check(name: str, slots: int, backlog: int, heartbeat: float, timeout: float) -> None:
    if not name or not name.isprintable() or "|" in name or len(name) > 200:
        raise AsterismError(f"the name of a device is 1 to 200 printable characters without '|', not {name!r}")
    if slots < 0 or backlog < 0:
        raise AsterismError(f"device {name!r}: slots and backlog are whole numbers, 0 or more")
    if heartbeat < SHORTEST_HEARTBEAT:
        raise AsterismError(f"device {name!r}: its heartbeat is {SHORTEST_HEARTBEAT:g} s at least, not {heartbeat:g} s")
    if not 2 * heartbeat <= timeout < float("inf"):
        raise AsterismError(
            f"device {name!r}: its timeout ({timeout:g} s) must be at least twice its heartbeat ({heartbeat:g} s), "
            "or one late heartbeat would cost it its work"
        )


def _check_rules(name: str, accepts: str | None, hands_back: str | None) -> None:
    for what, expression in (("accepts", accepts), ("hands_back", hands_back)):
        problem = expressions.check(expression) if expression is not None else None
        if problem is not None:
            raise AsterismError(f"device {name!r}: {what} is not valid: {problem}")
