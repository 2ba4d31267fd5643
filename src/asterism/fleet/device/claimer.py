"""How a device comes by work: it claims what is assigned to it, and takes what nobody has while it has room."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import NamedTuple

from asterism.base.http_client import load_httpx
from asterism.core.errors import InvalidWorkflow, RunRefused
from asterism.core.run import transitions
from asterism.core.run.run import ASSIGNED, Run
from asterism.core.run.workflow import Workflow
from asterism.fleet.device.executor import RunWork
from asterism.fleet.device.held_run import worth
from asterism.fleet.device.worker import Desk
from asterism.fleet.fleet import Fleet
from asterism.fleet.ledger import blob_of
from asterism.fleet.workflows import UnknownWorkflow
from asterism.store.protocol import Offer, Query

log = logging.getLogger("asterism.device")

ROUNDS = 4
"""How often one look asks again because it met kinds of work it did not know."""


AT_ONCE = 0.01
"""What is taken within so many seconds is taken at one time: then most of what is written of one is written of all."""


JUDGED_AHEAD = 16
"""How many runs are judged at a time, at least, if that takes more than to know their workflow."""


class _Enough(Exception):
    """So much has to be read or judged before more can be taken that it is done first."""


class _Unseen(NamedTuple):
    """What a look met that has to be read, and what has to be judged, before it can be taken: that is done by the
    device itself, not inside the store's transaction."""

    kinds: set[tuple[str, int]]
    runs: list[tuple[Run, Workflow]]

    @property
    def nothing(self) -> bool:
        return not self.kinds and not self.runs


class Lookout:
    """``willing`` says why the device will not have a run, or None; ``resting`` why it will have none for now.
    ``fresh`` says whether the device has been heard of recently enough to be given work of a workflow, and ``expect``
    sees to it that it is. ``yields`` says whether a run is left to others for now."""

    def __init__(
        self,
        fleet: Fleet,
        desk: Desk,
        willing: Callable[[Run, Workflow], str | None],
        resting: Callable[[], str | None],
        fresh: Callable[[Workflow], bool],
        expect: Callable[[Workflow], None],
        yields: Callable[[Run, Workflow], bool],
    ) -> None:
        self.fleet, self.desk = fleet, desk
        self._willing, self._resting, self._fresh = willing, resting, fresh
        self._expect, self._yields = expect, yields
        self._able: set[str] = set()
        self._not_kinds: set[str] = set()
        self._cleared: set[str] = set()  # the ids of runs that were judged, and would be executed here
        self._calls = 0
        self._nothing_at = -1

    def forget(self) -> None:
        """What the device would not do, it may do now: its profile has changed."""
        self._not_kinds.clear()
        self._able.clear()
        self._cleared.clear()

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
        await self._learn({(run.workflow, run.version) for run in assigned})
        flows = [self.fleet.workflows.remembered(run.workflow, run.version) for run in assigned]
        claims = [self._claim(run, flow) for run, flow in zip(assigned, flows, strict=True) if flow is not None]
        for outcome in await asyncio.gather(*claims, return_exceptions=True):  # none goes on when this has ended
            if isinstance(outcome, BaseException):
                raise outcome

    async def _claim(self, run: Run, flow: Workflow) -> None:
        if self.desk.knows(run.id, run.epoch) or self.desk.get(run.id) is not None:
            return
        self._expect(flow)
        if not self._fresh(flow):
            return  # the heartbeat that was asked for brings us back here
        resting = self._resting()
        why = resting or self._willing(run, flow) or self.objection(run, flow)
        asked = self.fleet.clock.time()
        starts = self.desk.reserve(run.id)
        full = not starts and not self.desk.expect(run.id)
        for_now = resting is not None
        if why is None and full:
            why, for_now = "it is full", True
        try:
            after = await self.fleet.ledger.change(run, self._answer(run, why, starts, for_now))
            if why is not None:
                log.info("declined: %s", why, extra={"run": run.id})
            if after.session == self.desk.owner.session:
                self.desk.unreserve(run.id)
                self.desk.receive(after, flow, asked)
        except RunRefused as refusal:
            log.info("it is not ours to claim: %s", refusal.why, extra={"run": run.id})
        finally:
            self.desk.unreserve(run.id)

    def _answer(self, assigned: Run, why: str | None, starts: bool, for_now: bool) -> Callable[[Run, Workflow], Run]:
        grant = assigned.grant
        assert grant is not None

        def step(run: Run, flow: Workflow) -> Run:
            now = self.fleet.store.clock()
            if why is not None:
                return transitions.decline(run, grant, why, now, for_now=for_now)
            claimed = transitions.claim(run, grant, flow, now)
            return transitions.start(claimed, grant, now) if starts else claimed

        return step

    async def adopt(self, run_id: str, epoch: int) -> None:
        """Begin what the store says is ours and we never heard of: the answer to our claim was lost."""
        asked = self.fleet.clock.time()
        run = await self.fleet.store.run(run_id)
        if run is None or run.session != self.desk.owner.session or run.epoch != epoch or run.status is ASSIGNED:
            return
        await self._learn({(run.workflow, run.version)})
        flow = self.fleet.workflows.remembered(run.workflow, run.version)
        if flow is not None and not self.desk.knows(run_id, epoch):
            log.info("taken up: the answer to our claim was lost", extra={"run": run_id})
            self._expect(flow)
            self.desk.receive(run, flow, asked)

    async def adopt_all(self) -> None:
        """Begin all of it, without waiting for a heartbeat to tell."""
        for run in await self.fleet.store.find(Query(session=self.desk.owner.session)):
            if not self.desk.knows(run.id, run.epoch):
                await self.adopt(run.id, run.epoch)

    def objection(self, run: Run, flow: Workflow) -> str | None:
        """What the device's policy says to this very run. An input that is kept apart is judged when it is there, just
        before the execution."""
        if blob_of(run.input) is not None:
            return self.desk.executor.objection(flow)
        return self.desk.executor.check(RunWork(run, flow, run.input, _nothing, _nothing))

    # -- what nobody has ---------------------------------------------------------------------------------------------

    def called(self) -> None:
        """There may be something for us: the store has said so, or it is time to look again."""
        self._calls += 1

    @property
    def may_find(self) -> bool:
        """Whether there may be something that nobody has; not if there was none, and we were not called since."""
        return self._calls != self._nothing_at

    async def take_offered(self) -> None:
        if self.desk.suspended:
            return
        rounds = 0
        while rounds < ROUNDS and self.desk.room > 0 and self.may_find:
            calls, room = self._calls, self.desk.room
            taken, unseen = await self._take(self.desk.free, room, None)
            if unseen.nothing:
                if taken < room:  # there was no more: not to be asked for again, each time that a slot is free
                    self._nothing_at = calls
                break
            rounds += not unseen.runs  # those that were judged are not met again, so this comes to an end
            await self._see(unseen)
        if self.desk.room <= 0:
            await self._preempt()
        self.desk.make_way()

    async def _see(self, unseen: _Unseen) -> None:
        await self._learn(unseen.kinds)
        for outcome in await asyncio.gather(*(self._judge(*one) for one in unseen.runs), return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def _judge(self, run: Run, flow: Workflow) -> None:
        """Whether a run would be executed here. If not, that is written into it without a grant: the store does not
        offer it to this device again in this round, and everybody can see why."""
        why = self.objection(run, flow)
        if why is None:
            self._cleared.add(run.id)
            return
        device, clock = self.desk.owner.device, self.fleet.store.clock
        with contextlib.suppress(RunRefused):  # somebody has it by now
            await self.fleet.ledger.change(run, lambda one, _: transitions.refuse(one, device, why, clock()))
            log.info("declined: %s", why, extra={"run": run.id})

    async def _learn(self, unknown: set[tuple[str, int]]) -> None:
        for name, version in sorted(unknown):
            kind = f"{name}@{version}"
            try:
                flow = await self.fleet.workflows.get(name, version)
            except (InvalidWorkflow, UnknownWorkflow) as error:  # as a later version of Asterism may write it
                log.warning("not for this device: %s", error)
                self._not_kinds.add(kind)
            else:
                able = self.desk.executor.objection(flow) is None
                if able and flow.http is not None:
                    await load_httpx()  # addresses are judged with it, in steps of the loop
                (self._able if able else self._not_kinds).add(kind)

    async def _take(self, free: int, limit: int, above: int | None) -> tuple[int, _Unseen]:
        """Take up to ``limit`` runs and start the first ``free`` of them. Returns how many it were, and what has to be
        read or judged first."""
        unseen = _Unseen(set(), [])
        stale: list[Workflow] = []
        known: dict[tuple[str, int], Workflow] = {}  # what we are able to do, and fresh enough for
        starts, moment = 0, float("-inf")

        def step(run: Run) -> Run | None:  # may be called in another thread, and again: it only looks
            nonlocal starts, moment
            kind = (run.workflow, run.version)
            flow = known.get(kind) or self.fleet.workflows.remembered(*kind)
            if flow is None or (kind not in known and run.kind not in self._able):
                if kind in unseen.kinds:
                    raise _Enough  # the whole queue may be of that kind
                unseen.kinds.add(kind)
                return None
            if self.desk.get(run.id) is not None or (starts >= free and self.desk.tired_of(run.id)):
                return None
            if self._yields(run, flow) or self._willing(run, flow):
                return None
            if kind not in known:
                if not self._fresh(flow):
                    stale.append(flow)
                    return None
                known[kind] = flow
            if run.id not in self._cleared and self.desk.executor.judges_each(flow, run.input):
                if len(unseen.runs) >= max(limit, JUDGED_AHEAD):
                    raise _Enough
                unseen.runs.append((run, flow))
            if unseen.runs:
                return None  # nothing overtakes what has to be judged first
            starts += 1
            now = self.fleet.store.clock()
            if not (run.waiting_since or 0.0) <= moment <= now < moment + AT_ONCE:
                moment = now
            return transitions.take(run, self.desk.owner, flow, moment, starts=starts <= free)

        asked = self.fleet.clock.time()
        offer = Offer(self.desk.owner.device, frozenset(self._not_kinds), self.fleet.store.clock(), limit, above)
        try:
            taken = await self.fleet.store.take(offer, step)
        except _Enough:
            return 0, unseen
        for flow in stale[:1]:
            self._expect(flow)
        for flow in known.values():  # of most kinds there are many runs
            self._expect(flow)
        for run in taken:
            self.desk.receive(run, known[run.workflow, run.version], asked)
        return len(taken), unseen

    async def _preempt(self) -> None:
        """Give up the least urgent work that may be given up, if something more urgent waits."""
        for _ in range(ROUNDS):
            going = [one for one in self.desk if one.stopping is None and not one.telling]
            victims = [one for one in going if not one.started or one.workflow.preemptible]
            if not victims or self.desk.room < 0:
                return  # there is nobody to go, or somebody is going already
            victim = min(victims, key=worth)
            taken, unseen = await self._take(0, 1, victim.run.priority)
            if taken:
                if self.desk.room < 0 and self.desk.get(victim.run.id) is victim:
                    self.desk.stop(victim, "preempted")
                return
            if unseen.nothing:
                return
            await self._see(unseen)


def _nothing(_: object) -> None:
    """For the reports of an execution that only might be."""
