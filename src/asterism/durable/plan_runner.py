"""The plan runner: runs the plans that schedules have created, and those that were submitted to a server.

A tick stores a plan; any process with a plan runner may run it. Of the plans of a schedule, the oldest ones run, as
many as it lets run at once.
Several runners at once are safe: the journal of a plan decides who owns it (journal_store.py), and a runner that finds
an owner looks again later. If an owner dies, a runner takes the plan over when the heartbeat of the owner has timed
out, at once if the owner was on the same machine.

The runner executes no task itself: the tasks are runs of the fleet.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable

from asterism.base.clock import beside, first_of, new_id, stopped
from asterism.base.error_log import RecurringError
from asterism.core.errors import AlreadyRunning, AsterismError
from asterism.core.schedule.schedule import Schedule
from asterism.durable.durable_orchestrator import DurableOrchestrator
from asterism.durable.journal_store import OwnershipLost, read_head
from asterism.durable.plan_submissions import open_submissions, plan_ended
from asterism.durable.plan_summaries import live_owner
from asterism.durable.plan_turns import awaited_plan, take_turn
from asterism.durable.runner_registers import RUNNER_RENEWAL, announce_runner, plan_schedules, withdraw_runner
from asterism.fleet.device.membership import DeviceNameTaken
from asterism.fleet.fleet import Fleet
from asterism.store.store_errors import StoreUnavailable

log = logging.getLogger("asterism.schedule")

LOOK_INTERVAL = 5.0
"""Seconds between two looks for plans that no process runs."""

SOON, LOOKS_AFTER_END = 0.5, 6
"""The seconds between two looks after the end of a plan, and their number: the next plan of a schedule or a backfill
follows, and a coordinator in another process creates it."""

TRIES_BEFORE_WARNING = 3
"""How often the name for the process of a plan is taken before people are warned."""


class PlanRunner:
    """``every`` is the time between two looks, in seconds. ``make`` makes the orchestrator of one plan."""

    def __init__(
        self,
        fleet: Fleet,
        *,
        every: float = LOOK_INTERVAL,
        make: Callable[[Fleet], DurableOrchestrator] = DurableOrchestrator,
    ) -> None:
        self._fleet, self._every, self._make = fleet, every, make
        self._woken = asyncio.Event()
        self._id = new_id(fleet.store.clock(), fleet.chance)
        self._announced_at: float | None = None
        self._looks_soon = 0
        self._hindered: dict[str, int] = {}  # how often the name for a plan was taken, though nobody ran the plan
        self.running: dict[str, asyncio.Task[None]] = {}
        """The plans that this process runs, by name."""

    async def run(self) -> None:
        """Run plans until this is cancelled; then leave them to other processes."""
        trouble = RecurringError(log, "cannot run plans", "runs plans again", self._fleet.clock.time)
        self._fleet.plan_runners.add(self.wake)
        try:
            while True:
                try:
                    await self._announce()
                    await self.look()
                    trouble.recovered()
                except Exception as error:  # no error of the runner may end the process
                    trouble.occurred(error)
                await self._pause()
        finally:
            self._fleet.plan_runners.discard(self.wake)
            await stopped(*self.running.values())
            with contextlib.suppress(StoreUnavailable):
                await withdraw_runner(self._fleet.store, self._id)

    async def _announce(self) -> None:
        now = self._fleet.clock.time()
        if self._announced_at is None or now - self._announced_at >= RUNNER_RENEWAL:
            await announce_runner(self._fleet.store, self._id)
            self._announced_at = now

    def wake(self) -> None:
        """Look now: there may be a plan to run."""
        self._woken.set()

    async def _pause(self) -> None:
        """Wait until it is time for the next look, or until this is woken."""
        pause = min(SOON, self._every) if self._looks_soon else self._every
        self._looks_soon = max(0, self._looks_soon - 1)
        await first_of(self._fleet.clock.sleep(pause), self._woken.wait())
        self._woken.clear()

    async def look(self) -> None:
        """Start to run the plans that are due and run nowhere."""
        self.running = {name: task for name, task in self.running.items() if not task.done()}
        for schedule in await plan_schedules(self._fleet.store):
            async for name in self._due(schedule):
                await self._start(name)
        for name in await open_submissions(self._fleet.store):
            await self._start(name)

    async def _start(self, name: str) -> None:
        if name in self.running or await awaited_plan(self._fleet.store, name) is not None:
            return
        if await take_turn(self._fleet, name) is None:
            self.running[name] = asyncio.create_task(self._run(name))

    async def _due(self, schedule: Schedule) -> AsyncIterator[str]:
        """The plans of a schedule that may run now: all, or the oldest ones if not all may overlap."""
        room = len(schedule.open) if schedule.overlap == "allow" else schedule.parallel
        for name in schedule.open:
            if room and not await plan_ended(self._fleet.store, name):
                room -= 1
                yield name

    async def _run(self, name: str) -> None:
        """Run one plan, unless another process does. Looks for the next one follow."""
        fleet = self._fleet
        # the device of an orchestrator would take the place of this process's own
        own = fleet.named(fleet.by)
        try:
            result = await self._make(own).run_stored(name)
            log.info("plan %s has ended: %s", name, result.state)
            self._looks_soon = LOOKS_AFTER_END
            self.wake()
        except DeviceNameTaken as reason:
            await self._name_taken(name, reason)
        except (AlreadyRunning, OwnershipLost, StoreUnavailable) as reason:
            log.debug("plan %s is not run here: %s", name, reason)
        except AsterismError as error:
            log.warning("plan %s cannot be run: %s", name, error)
        finally:
            await own.waiters.close()

    async def _name_taken(self, name: str, reason: DeviceNameTaken) -> None:
        """Log that the name for the process of a plan is taken: usually by another process that runs the plan, or is
        about to; otherwise people have to know, once."""
        log.debug("plan %s is not run here: %s", name, reason)
        with contextlib.suppress(AsterismError):
            head, _ = await read_head(self._fleet.store, name)
            if await live_owner(self._fleet.store, head) is not None:
                self._hindered.pop(name, None)
                return
            self._hindered[name] = self._hindered.get(name, 0) + 1
            if self._hindered[name] == TRIES_BEFORE_WARNING:
                log.warning("plan %s cannot be run, and no process runs it: %s", name, reason)


@contextlib.asynccontextmanager
async def runs_plans(
    fleet: Fleet, make: Callable[[Fleet], DurableOrchestrator] = DurableOrchestrator
) -> AsyncIterator[PlanRunner]:
    """While the block runs, this process runs the plans of schedules and those that were submitted."""
    runner = PlanRunner(fleet, make=make)
    async with beside(runner.run()):
        yield runner
