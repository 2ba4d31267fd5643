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

from asterism.core import assigning
from asterism.core.errors import AsterismError
from asterism.core.placement import against, objection
from asterism.core.run import Owner, Run
from asterism.core.session import Session
from asterism.core.workflow import SHORTEST_HEARTBEAT, Workflow
from asterism.runtime import conditions
from asterism.runtime.conditions import holds
from asterism.runtime.fleet.election import LEASE, Election
from asterism.runtime.fleet.executing import Executor, Executors
from asterism.runtime.fleet.fleet import Fleet
from asterism.runtime.fleet.heart import Heart
from asterism.runtime.fleet.ids import new_id
from asterism.runtime.fleet.joining import Presence, identity, join, leave, say_draining
from asterism.runtime.fleet.looking import Lookout
from asterism.runtime.fleet.monitor import Monitor
from asterism.runtime.fleet.notifying import Notifier
from asterism.runtime.fleet.policy import Policy
from asterism.runtime.fleet.presence import OwnPresence
from asterism.runtime.fleet.profile import measure
from asterism.runtime.fleet.troubles import Trouble
from asterism.runtime.fleet.workflows import UnknownWorkflow
from asterism.runtime.fleet.working import Desk
from asterism.store.errors import StoreError, StoreUnavailable
from asterism.store.protocol import OFFERED, for_device

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
    how often it watches over the others if it is elected; None for never. ``replace`` takes the name from another
    living device. ``measure`` gives its profile."""

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
        lease: float = LEASE,
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
            profile={**measure(), "labels": dict(labels or {})},
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
        self._handing_back = False
        self._shown = self.session.shown()
        self._make_body(heartbeat, timeout, grace)
        self._monitor_every = monitor_every
        self._monitor = Monitor(fleet, name, every=monitor_every or 0.0)
        self._notifier = Notifier(fleet, policy)
        self._election = Election(
            fleet.store, fleet.clock, name, self.session.id, max(lease, 3 * (monitor_every or 0.0))
        )
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
        )
        self.lookout = Lookout(
            fleet,
            self.desk,
            willing=self._unwilling,
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
            self._executor.close()
            self._notifier.close()
            presence.close()

    async def _live(self) -> None:
        jobs = [self.heart.beat_for_ever(), self.heart.fence_for_ever(), self._listen(), self._look()]
        if self._monitor_every is not None:
            jobs += [self._watch_over_others(self._monitor_every), self._tell_people(self._monitor_every)]
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
                await self._election.resign()
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
        trouble = Trouble(log, "cannot look for work", "looking for work again", self.fleet.clock.time)
        while True:
            await self._work_to_look_for.wait()
            self._work_to_look_for.clear()
            try:
                self._asks(1)
                try:
                    await self._look_once()
                finally:
                    self._asks(-1)
                trouble.over()
            except (StoreUnavailable, UnknownWorkflow) as error:
                trouble.met(error)
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
        if not self.draining.is_set() and self.desk.slots:
            await self.lookout.take_offered()
            await self.desk.start_waiting()

    def _unwilling(self, run: Run, flow: Workflow) -> str | None:
        """Why this device will not have a run, in words."""
        if self.draining.is_set():
            return "it is being drained"
        if self._handing_back:
            return f"it hands work back while {self._hands_back}"
        return objection(self.session, run, flow, self._shown, holds)

    def _leaves_to_others(self, run: Run, flow: Workflow) -> bool:
        """Whether somebody else is preferred for a run. The coordinator sees to it; if it does not in time, anybody
        may have it."""
        if not flow.orchestration and flow.prefers is None:
            return False
        if self.fleet.store.clock() - (run.waiting_since or 0.0) > 2 * LOOK:
            return False
        if flow.orchestration and not self._election.elected:
            return True
        return flow.prefers is not None and against(flow.prefers, self._shown, holds) is not None

    def _profile(self) -> dict[str, Any]:
        """What it tells of itself with each heartbeat; and what follows from it."""
        profile = {**self._measure(), "labels": self._labels}
        self._shown = replaced(self.session, profile=profile, used=len(self.desk)).shown()
        self.lookout.forget()
        self._handing_back = self._hands_back is not None and holds(self._hands_back, self._shown) is True
        if self._handing_back:
            for holding in self.desk:
                self.desk.stop(holding, f"it hands work back while {self._hands_back}")
        return profile

    async def _watch_over_others(self, every: float) -> None:
        trouble = Trouble(log, "cannot watch", "watches again", self.fleet.clock.time)
        while True:
            try:
                if await self._election.campaign():
                    await self._monitor.watch()
                trouble.over()
            except Exception as error:  # whatever it is, it must not end the work that is done here
                trouble.met(error)
            await self.fleet.clock.sleep(every * self.fleet.chance.uniform(0.8, 1.2))

    async def _tell_people(self, every: float) -> None:
        """Beside the watch, since whoever is told may take long to listen."""
        trouble = Trouble(log, "cannot tell", "tells again", self.fleet.clock.time)
        while True:
            try:
                if self._election.elected:
                    await self._notifier.deliver()
                trouble.over()
            except Exception as error:
                trouble.met(error)
            await self.fleet.clock.sleep(every)

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
        return assigning.take(run, self.desk.owner, flow, self.fleet.store.clock(), starts=True)

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
        problem = conditions.check(expression) if expression is not None else None
        if problem is not None:
            raise AsterismError(f"device {name!r}: {what} is not valid: {problem}")
