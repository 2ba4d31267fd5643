"""The heart of a device: it tells the store that the device lives, learns what the store wants, and stops work that it
can no longer be sure of.

Two clocks, never mixed: the store judges by its own when a device was last heard of; the device counts on its own from
*before* it sent the last heartbeat that was accepted, and stops a margin earlier than the store could take its work
away. Whatever a clock says, the two never work on one run at the same time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any

from asterism.base.clock import Clock
from asterism.base.error_log import RecurringError
from asterism.core.run.run import ASSIGNED, Run
from asterism.core.run.workflow import Workflow
from asterism.fleet.device.claimer import Lookout
from asterism.fleet.device.held_run import Holding, margin
from asterism.fleet.device.worker import Desk
from asterism.store.protocol import Answer, Report, Store
from asterism.store.store_errors import StoreUnavailable

log = logging.getLogger("asterism.device")

REPORTING = 1.0
"""How soon progress and output are passed on, in seconds."""

REMEMBERED = 100
"""How many heartbeats are remembered: when the one before was sent, and when the answer was here."""

REMEMBER_PACE = 120.0
"""How long the pace of a workflow is kept up after its last run, in seconds."""


class Heart:
    """``measure`` gives the profile; ``on_work`` is called when there is something to look at, ``on_draining`` when the
    store wants the device to leave."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        desk: Desk,
        lookout: Lookout,
        *,
        heartbeat: float,
        timeout: float,
        grace: float,
        measure: Callable[[], Mapping[str, Any]],
        on_work: Callable[[], None],
        on_draining: Callable[[], None],
    ) -> None:
        self.store, self.clock, self.desk, self.lookout = store, clock, desk, lookout
        self.heartbeat, self.timeout, self.grace = heartbeat, timeout, grace
        self._measure, self._on_work, self._on_draining = measure, on_work, on_draining
        self.renewed = clock.time()
        self._renewals: deque[tuple[float, float]] = deque(maxlen=REMEMBERED)
        self.quality = 1.0
        self._paces: dict[float, float] = {}
        self._beat_now = asyncio.Event()
        self._waits = 0.0  # for how long, until the next beat
        self._asked = False  # somebody waits to be heard of before there is work for us
        self._reporting: asyncio.TimerHandle | None = None

    # -- beating -----------------------------------------------------------------------------------------------------

    def fresh(self, workflow: Workflow) -> bool:
        """Whether the device was heard of recently enough to be given work of this workflow. Any thread may ask."""
        # never when its own time is up, however patient the workflow: it may have been taken for gone
        timeout = min(workflow.timeout, self.timeout)
        spare = margin(timeout, self.grace) + min(workflow.heartbeat, self.heartbeat) / 2
        return self.clock.time() - self.renewed <= timeout - spare

    def expect(self, workflow: Workflow) -> None:
        """Work of this workflow is here, or will be once we are heard of: keep up its pace from now on."""
        self._paces[workflow.heartbeat] = self.clock.time()
        if not self.fresh(workflow):
            self._asked = True
            self._beat_now.set()
        elif workflow.heartbeat < self._waits:  # the next beat would come too late for it
            self._beat_now.set()

    @property
    def pace(self) -> float:
        """How often to beat: as the most demanding work of late asks."""
        now = self.clock.time()
        self._paces = {pace: at for pace, at in self._paces.items() if now - at < REMEMBER_PACE}
        return min(self.heartbeat, *self._paces, *(one.workflow.heartbeat for one in self.desk), self.heartbeat)

    async def beat_for_ever(self) -> None:
        """Returns when the store says that this session is over."""
        try:
            await self._beat_while_alive()
        finally:
            self._nothing_to_report()

    async def _beat_while_alive(self) -> None:
        trouble = RecurringError(log, "no heartbeat", "heartbeats again", self.clock.time)
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._waits):
                    await self._beat_now.wait()
            self._beat_now.clear()
            try:
                alive = await self.beat()
            except StoreUnavailable as error:
                self.quality *= 0.7
                trouble.occurred(error)
                self._waits = min(self.pace / 5, 5.0)
                continue
            if not alive:
                return
            trouble.recovered()
            self._waits = self.pace
            if self._asked:
                self._asked = False
                self._on_work()

    def hurry(self) -> None:
        """Beat now: what the store knows of us is not true any more."""
        self._beat_now.set()

    def news(self) -> None:
        """There is something to report: beat soon, but not for every word."""
        if self._reporting is None:
            self._reporting = asyncio.get_running_loop().call_later(REPORTING, self._report)

    def _report(self) -> None:
        self._reporting = None
        if any(holding.changed for holding in self.desk):
            self._beat_now.set()

    def _nothing_to_report(self) -> None:
        if self._reporting is not None:
            self._reporting.cancel()
            self._reporting = None

    async def beat(self) -> bool:
        sent = self.clock.time()
        self._nothing_to_report()
        changed = [holding for holding in self.desk if holding.changed]
        reports = [holding.report() for holding in changed]
        for holding in changed:
            holding.changed = False
        profile = {**self._measure(), "quality": round(self.quality, 3)}
        try:
            async with asyncio.timeout(min(self.timeout, *(one.run.timeout for one in self.desk), self.timeout) / 3):
                answer = await self._say(profile, reports)
        except (StoreUnavailable, TimeoutError) as error:
            for holding in changed:
                holding.changed = True  # nobody may have heard it
            if isinstance(error, TimeoutError):
                raise StoreUnavailable(f"{self.store.url} did not answer a heartbeat") from None
            raise
        if not answer.alive:
            return await self._stranger()
        self._renewals.append((self.renewed, self.clock.time()))
        self.renewed = sent
        for holding in self.desk:
            # what is being stopped is killed a moment later: the guard has the last word, if we are frozen
            spare = margin(holding.run.timeout, self.grace) / 2
            self.desk.executor.allow(holding.run.id, self.lease(holding) + spare)
        took = self.clock.time() - sent
        self.quality = 0.8 * self.quality + 0.2 * max(0.0, 1.0 - took / self.pace)
        with contextlib.suppress(StoreUnavailable):  # what could not be done now is in the next answer too
            await self._obey(answer, sent)
        return True

    async def _say(self, profile: Mapping[str, Any], reports: Sequence[Report]) -> Answer:
        session = self.desk.owner.session
        try:
            return await self.store.beat(session, profile, reports)
        except ValueError as error:  # what one execution says of itself must not cost the device its life
            log.error("a report cannot be kept: %s", error)
            return await self.store.beat(session, profile, ())

    async def _stranger(self) -> bool:
        """The store does not take us for alive. If it does not know the name at all, it is not the store we joined:
        somebody moved that away, and it may come back."""
        if await self.store.register(f"device/{self.desk.owner.device}") is None:
            raise StoreUnavailable(f"{self.store.url} does not know this device: it is another store, or an empty one")
        return False

    async def _obey(self, answer: Answer, sent: float) -> None:
        if answer.draining:
            self._on_draining()
        held = {one.run: one for one in answer.held}
        for holding in self.desk:
            theirs = held.get(holding.run.id)
            if theirs is not None and theirs.epoch == holding.grant.epoch:
                if theirs.wish is not None:
                    self.desk.stop(holding, theirs.wish)
            elif holding.since < sent and not holding.telling:
                # what came after the question cannot be in the answer, and what is over may be written already
                log.warning("the run is not ours any more", extra={"run": holding.run.id})
                self.desk.stop(holding, "lost")
        for one in answer.held:
            if one.status is ASSIGNED:
                self._on_work()
            elif self.desk.get(one.run) is None:
                if self.desk.knows(one.run, one.epoch):
                    await self.desk.disown(one.run, one.epoch)
                else:
                    await self.lookout.adopt(one.run, one.epoch)

    # -- distrusting oneself -----------------------------------------------------------------------------------------

    def runs_out(self, holding: Holding) -> float:
        """When the device must have stopped work on a run, by its own clock, unless it is heard of before."""
        return self.renewed + holding.run.timeout - margin(holding.run.timeout, self.grace)

    def unbroken(self, run: Run, since: float) -> bool:
        """Whether the store could not have taken a run from us at any moment since then. It could if more than the
        run's timeout may have passed between two heartbeats, even if it has heard of us again."""
        if not self._renewals or self._renewals[-1][1] < since:
            return True  # so it is for all that comes between two heartbeats
        longest = run.timeout - margin(run.timeout, self.grace)
        if len(self._renewals) == REMEMBERED and since < self._renewals[0][0]:
            return False
        lately = takewhile(lambda one: one[1] >= since, reversed(self._renewals))
        return all(heard - sent < longest for sent, heard in lately)

    def lease(self, holding: Holding) -> float:
        """For how many seconds the device is still sure of a run."""
        return self.runs_out(holding) - self.clock.time()

    async def fence_for_ever(self) -> None:
        """Stop whatever the store may soon take away, in time."""
        while True:
            await self.desk.occupied.wait()
            now = self.clock.time()
            shortest = self.timeout
            for holding in self.desk:
                spare = margin(holding.run.timeout, self.grace)
                shortest = min(shortest, spare)
                if now >= self.runs_out(holding):
                    self._fence(holding, now >= self.runs_out(holding) + spare / 2)
                elif not holding.started and holding.run.due_at is not None:
                    spare = margin(holding.workflow.claim_timeout, self.grace)
                    shortest = min(shortest, spare)
                    if self.store.clock() >= holding.run.due_at - spare:
                        self.desk.tire(holding)
            # often, since a machine that sleeps does not notice that time goes by
            await self.clock.sleep(min(1.0, shortest / 4))

    def _fence(self, holding: Holding, at_once: bool) -> None:
        if holding.stopping is None and not holding.telling:
            log.warning("stopped: the store was not reached in time", extra={"run": holding.run.id})
        self.desk.stop(holding, "fenced")
        if at_once:
            self.desk.kill(holding)
