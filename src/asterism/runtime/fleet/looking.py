"""How a device comes by work: it claims what is assigned to it, and takes what nobody has while it has room."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from asterism.core import assigning
from asterism.core.errors import RunRefused
from asterism.core.run import ASSIGNED, Run
from asterism.core.workflow import Workflow
from asterism.runtime.fleet.executing import RunWork
from asterism.runtime.fleet.fleet import Fleet
from asterism.runtime.fleet.holding import Holding
from asterism.runtime.fleet.ledger import blob_of
from asterism.runtime.fleet.working import Desk
from asterism.store.protocol import Offer, Query

log = logging.getLogger("asterism.device")

ROUNDS = 4
"""How often one look asks again because it met kinds of work it did not know."""


class Lookout:
    """``willing`` says why the device will not have a run, or None. ``fresh`` sees to it that the device has been heard
    of recently enough to be given work of a workflow."""

    def __init__(
        self,
        fleet: Fleet,
        desk: Desk,
        willing: Callable[[Run, Workflow], str | None],
        fresh: Callable[[Workflow], bool],
    ) -> None:
        self.fleet, self.desk = fleet, desk
        self._willing, self._fresh = willing, fresh
        self._not_kinds: set[str] = set()

    def forget(self) -> None:
        """What the device would not do, it may do now: its profile has changed."""
        self._not_kinds.clear()

    # -- what is assigned to us --------------------------------------------------------------------------------------

    async def look_at_own(self) -> None:
        """Claim what is assigned to us, and stop what somebody wishes to be stopped."""
        found = await self.fleet.store.find(Query(session=self.desk.owner.session))
        for run in found:
            holding = self.desk.get(run.id)
            if holding is not None and holding.grant.epoch == run.epoch and run.wish is not None:
                self.desk.stop(holding, run.wish)
        assigned = [run for run in found if run.status is ASSIGNED]
        assigned.sort(key=lambda run: (-run.priority, run.created_at, run.id))
        flows = {run.kind: await self.fleet.workflows.get(run.workflow, run.version) for run in assigned}
        await asyncio.gather(*(self._claim(run, flows[run.kind]) for run in assigned))

    async def _claim(self, run: Run, flow: Workflow) -> None:
        if self.desk.knows(run.id, run.epoch):
            return
        if not self._fresh(flow):
            return  # the heartbeat that was asked for brings us back here
        why = self._willing(run, flow) or self.objection(run, flow)
        starts = self.desk.reserve(run.id)
        full = not starts and self.desk.room <= 0
        try:
            after = await self.fleet.ledger.change(run, self._answer(run, why, starts, full))
            if after.session == self.desk.owner.session:
                self.desk.unreserve(run.id)
                self.desk.receive(after, flow)
        except RunRefused as refusal:
            log.info("it is not ours to claim: %s", refusal.why, extra={"run": run.id})
        finally:
            self.desk.unreserve(run.id)

    def _answer(self, assigned: Run, why: str | None, starts: bool, full: bool) -> Callable[[Run, Workflow], Run]:
        grant = assigned.grant
        assert grant is not None

        def step(run: Run, flow: Workflow) -> Run:
            now = self.fleet.store.clock()
            if why is not None:
                return assigning.decline(run, grant, why, now)
            if full:
                return assigning.decline(run, grant, "it is full", now, full=True)
            claimed = assigning.claim(run, grant, flow, now)
            return assigning.start(claimed, grant, now) if starts else claimed

        return step

    async def adopt(self, run_id: str, epoch: int) -> None:
        """Begin what the store says is ours and we never heard of: the answer to our claim was lost."""
        run = await self.fleet.store.run(run_id)
        if run is None or run.session != self.desk.owner.session or run.epoch != epoch or run.status is ASSIGNED:
            return
        flow = await self.fleet.workflows.get(run.workflow, run.version)
        if not self.desk.knows(run_id, epoch):
            log.info("taken up: the answer to our claim was lost", extra={"run": run_id})
            self.desk.receive(run, flow)

    def objection(self, run: Run, flow: Workflow) -> str | None:
        """What the device's policy says to this very run. An input that is kept apart is judged when it is there, just
        before the execution."""
        if blob_of(run.input) is not None:
            return self.desk.executor.objection(flow)
        return self.desk.executor.check(RunWork(run, flow, run.input, _nothing, _nothing))

    # -- what nobody has ---------------------------------------------------------------------------------------------

    async def take_offered(self) -> None:
        for _ in range(ROUNDS):
            if self.desk.room <= 0:
                break
            unknown = await self._take(self.desk.free, self.desk.room, None)
            if not unknown:
                break
            for name, version in unknown:
                await self.fleet.workflows.get(name, version)
        if self.desk.room <= 0:
            await self._preempt()

    async def _take(self, free: int, limit: int, above: int | None) -> set[tuple[str, int]]:
        """Take up to ``limit`` runs and start the first ``free`` of them. Returns the workflows that have to be read
        first."""
        unknown: set[tuple[str, int]] = set()
        starts = 0

        def step(run: Run) -> Run | None:  # may be called in another thread, and again: it only looks
            nonlocal starts
            flow = self.fleet.workflows.remembered(run.workflow, run.version)
            if flow is None:
                unknown.add((run.workflow, run.version))
                return None
            if self.desk.executor.objection(flow) is not None:
                self._not_kinds.add(run.kind)
                return None
            if self._willing(run, flow) or not self._fresh(flow) or self.objection(run, flow):
                return None
            now = self.fleet.store.clock()
            taken = assigning.take(run, self.desk.owner, flow, now)
            assert taken.grant is not None
            if starts < free:
                starts += 1
                return assigning.start(taken, taken.grant, now)
            return taken

        offer = Offer(self.desk.owner.device, frozenset(self._not_kinds), self.fleet.store.clock(), limit, above)
        for run in await self.fleet.store.take(offer, step):
            self.desk.receive(run, await self.fleet.workflows.get(run.workflow, run.version))
        return unknown

    async def _preempt(self) -> None:
        """Give up the least urgent work that may be given up, if something more urgent waits."""
        victims = [one for one in self.desk if one.stopping is None and (not one.started or one.workflow.preemptible)]
        if not victims:
            return
        victim = min(victims, key=_worth)
        before = {one.run.id for one in self.desk}
        await self._take(0, 1, victim.run.priority)
        if any(one.run.id not in before for one in self.desk):
            self.desk.stop(victim, "preempted")


def _worth(holding: Holding) -> tuple[int, bool, float]:
    """The least urgent first; among them what has not begun, and then what came last."""
    return (holding.run.priority, holding.started, -holding.since)


def _nothing(_: object) -> None:
    """For the reports of an execution that only might be."""
