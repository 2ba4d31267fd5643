"""The monitor: takes away what has run out, hands out what waits, and gives up what nobody can do.

It runs on the elected coordinator. Two at once are wasteful and never wrong: all it does is committed against the
revision it has seen, and a run is taken from a silent device only if no heartbeat came in meanwhile.

While it cannot be sure that silence means anything, nothing is taken away: when it is new in office, when the store's
clock has jumped, and when most of the fleet fell silent at once.

A coordinator that dies cannot take away its own runs, and its successor would have to observe its silence for the whole
timeout first. So there is a deputy, which observes the same sessions and clocks without being elected (``stand_by``).
It takes away the runs of a coordinator as soon as their time is up, and those of other devices if they are still there
when the coordinator would have taken them. That is safe for the reason why two monitors are: whoever takes a run away
has itself observed, by its own clock, that no heartbeat of the owner came in for the run's whole timeout; the store's
clock says the same; and the commit fails if the owner was heard of since. An owner stops work a margin before that
(heart.py). None of this depends on who is in office. A deputy that is elected is not new in office, since it knows
how the clocks went.

So the runs of a device that dies, be it the coordinator or not, are free after their timeout and one pass, unless
coordinator and deputy die together: then they are after the lease, the timeout and two passes.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from asterism.base.expressions import holds
from asterism.core.errors import InvalidWorkflow, NotJson, RunRefused
from asterism.core.run import transitions
from asterism.core.run.circuit_breaker import mass_loss_hold_until
from asterism.core.run.placement import Placer, mismatch_reason
from asterism.core.run.run import ASSIGNED, CLAIMED, Grant, Run
from asterism.core.run.session import ABROAD, ENDED, OPEN, Session
from asterism.core.run.workflow import Workflow
from asterism.fleet import retention
from asterism.fleet.extensions import extensions
from asterism.fleet.fleet import Fleet, time_to_answer
from asterism.fleet.workflows import UnknownWorkflow
from asterism.store.protocol import ExpectSession, Notice, PutRun, PutSession, Query, WaitingRuns
from asterism.store.store_errors import Conflict

log = logging.getLogger("asterism.monitor")

AT_ONCE = 500
"""How many runs one pass deals with, of each sort."""

JUMP = 2.0
"""By how many seconds the store's clock may differ from what has passed here before it is said to have jumped."""

LONGEST_GAP = 30.0
"""After how many seconds without a pass a monitor knows no more than a new one."""

FORGOTTEN = 3600.0
"""How long a device that fell silent is shown as one of the fleet, in seconds."""

SOON = 0.01
"""How many seconds after something runs out the pass begins that takes it away."""

PRUNE_EVERY = 600.0
PRUNED_AT_ONCE = 10
"""How often ``AT_ONCE`` runs are forgotten in one pass: there is other work to do."""


_Kind = tuple[Any, ...]
"""What is the same for all devices (workflow, version, the device it is for), and what one's own rule may look at."""


def _kind(run: Run) -> _Kind:
    return (run.workflow, run.version, run.pinned, run.priority, run.series, run.created_by)


class Monitor:
    """``every`` is how many seconds are between two passes, about."""

    def __init__(self, fleet: Fleet, name: str, *, every: float = 5.0) -> None:
        self.fleet, self.store, self.name = fleet, fleet.store, name
        self._every = every
        self._longest_gap = max(LONGEST_GAP, 3 * every)
        self._coordinators: set[str] = set()  # the sessions that were in office while we stood by
        self.due_in = float("inf")  # in how many seconds more may run out, since the last pass
        self._seen: tuple[float, float] | None = None  # the store's clock and ours, at the last pass
        self._hold_until: float | None = None  # by our clock: nothing runs out before
        self._heard: dict[str, tuple[int, float]] = {}  # the last we saw of each session, and when, by our clock
        self._braked = False
        self._nobody_since: dict[_Kind, float] = {}  # by our clock
        self._offered_up_to: str | None = None  # how far the last pass came with what was declined
        self._handed_up_to: str | None = None  # and with what waits for devices of peers
        self._set_back = True  # whether the store's clock may have been
        self._due_later: dict[Grant | None, float] = {}  # by our clock: assignments that would last too long
        self._pruned_at: float | None = None
        self._extra_passes = [extension.monitor_pass(fleet) for extension in extensions()]
        self._abroad: dict[str, Session] = {}  # the devices of peers, by session
        self._missing: set[tuple[str, int]] = set()  # workflows of which was said that they are

    async def watch(self) -> None:
        """One pass."""
        now, own = self.store.clock(), self.fleet.clock.time()
        sessions = await self.store.sessions()
        self._abroad = {one.id: one for one in sessions if one.state == ABROAD}
        self._hear(sessions)
        held = await self._holds(sessions, now, own)
        await self._take_from_the_silent(now, own, held)
        await self._look_ahead(now, own)
        if not held:
            await self._take_what_is_overdue(now)
            if self._set_back:
                await self._take_what_is_due_in_the_future(now, own)
            await self._end_what_is_gone(sessions, now, own)
        await self._date_anew(sessions, now)
        outlook = await self.fleet.outlook(fresh=True)
        await self.hand_out(outlook)
        await self._offer_again(outlook)
        await self._give_up_what_nobody_can_do(outlook)
        if not held:
            for extra_pass in self._extra_passes:
                await extra_pass(sessions)
            await self._prune(now)

    async def stand_by(self, coordinator: str | None) -> None:
        """One pass of the deputy. ``coordinator`` is the session that is in office."""
        now, own = self.store.clock(), self.fleet.clock.time()
        sessions = await self.store.sessions()
        known = {one.id for one in sessions}
        self._coordinators = {one for one in (*self._coordinators, coordinator) if one in known}
        self._abroad = {one.id: one for one in sessions if one.state == ABROAD}
        self._hear(sessions)
        held = await self._holds(sessions, now, own, tells=False)
        await self._take_from_the_silent(now, own, held, deputy=True)
        await self._look_ahead(now, own, deputy=True)

    # -- when nothing is taken away ----------------------------------------------------------------------------------

    def _hear(self, sessions: Sequence[Session]) -> None:
        own = self.fleet.clock.time()
        before, self._heard = self._heard, {}
        for session in sessions:
            seen = before.get(session.id)
            unchanged = seen is not None and seen[0] == session.revision
            self._heard[session.id] = seen if seen is not None and unchanged else (session.revision, own)

    def _silent_for(self, session: Session, own: float) -> float:
        """For how long it was certainly not heard of: every heartbeat makes another revision, and the store's clock
        may have jumped there and back."""
        revision, since = self._heard.get(session.id, (0, own))
        return own - since if revision == session.revision else 0.0

    async def _holds(self, sessions: Sequence[Session], now: float, own: float, *, tells: bool = True) -> bool:
        """Whether expiry waits, because the clock jumped or most of the fleet vanished at once. Whoever is in office
        ``tells`` people of it."""
        hold = (await self.fleet.settings()).hold
        # in which everybody who is alive is heard of
        chance = min(hold, max((one.timeout for one in sessions if one.used and one.state != ABROAD), default=0.0) / 2)
        if self._seen is None or own - self._seen[1] > self._longest_gap:
            # new in office: whether the clock has jumped since anybody was heard of cannot be known, so all get a
            # chance to be heard of first
            self._hold_until = own + chance
            self._set_back = True
        else:
            words = self._notice_a_jump((now - self._seen[0]) - (own - self._seen[1]), own, max(hold, chance))
            if words is not None and tells:
                await self._tell("clock", words)
        self._seen = (now, own)
        if self._hold_until is not None and own < self._hold_until:
            return True
        until = mass_loss_hold_until(sessions, now, hold)
        braked = until is not None and now < until
        if braked and not self._braked and tells:
            reachable = [one.reachable(now) for one in sessions if one.state == OPEN]
            await self._tell(
                "brake",
                f"{reachable.count(False)} of {len(reachable)} devices vanished at once: nothing is taken away for "
                f"{hold:g} s",
            )
        self._braked = braked and tells
        return braked

    def _notice_a_jump(self, jump: float, own: float, hold: float) -> str | None:
        """What is to be told of a clock that has jumped, if it has."""
        if abs(jump) <= JUMP:
            return None
        self._nobody_since.clear()
        if jump > 0:
            self._hold_until = own + hold
            return f"the store's clock jumped ahead by {jump:.0f} s: nothing runs out for {hold:g} s"
        self._set_back = True
        return f"the store's clock was set back by {-jump:.0f} s"

    async def _tell(self, kind: str, message: str) -> None:
        log.warning(message)
        await self.store.commit([Notice(self.store.clock(), kind, message, None, self.name)])

    # -- taking away ---------------------------------------------------------------------------------------------------

    async def _take_from_the_silent(self, now: float, own: float, held: bool, *, deputy: bool = False) -> None:
        """When their time is up by the store's clock, and by ours as well. Those that are known to have ended need no
        clock to be judged by, and are left to whoever is in office."""
        found = [
            (run, owner)
            for run, owner in await self.store.orphans(now, AT_ONCE)
            if (owner.state == ENDED and not deputy) or (not held and self._left(run, owner, own, deputy) <= 0.0)
        ]
        reports = await self.store.reports([run.id for run, _ in found]) if found else {}
        for run, session in found:
            silent = f"{session.device} was not heard of for {now - session.beat_at:.0f} s"
            detail = f"{session.device} is gone" if session.state == ENDED else silent
            report = reports.get(run.id)
            kept = run.changed(progress=report.progress or run.progress) if report is not None else run
            await self._lose(run, kept, detail, [ExpectSession(session.id, session.revision)], session.peer is not None)

    def _left(self, run: Run, owner: Session, own: float, deputy: bool) -> float:
        """How much longer we have to observe the silence of an owner before we take a run away. What a coordinator in
        office would take, the deputy leaves to it for two passes."""
        left_to_another = deputy and owner.id not in self._coordinators
        return run.timeout - self._silent_for(owner, own) + (2.5 * self._every if left_to_another else 0.0)

    async def _look_ahead(self, now: float, own: float, *, deputy: bool = False) -> None:
        """When the next pass has something to take away, if that is before it is due anyway."""
        self.due_in = float("inf")
        for run, owner in await self.store.orphans(now + 1.5 * self._every, AT_ONCE):
            left = max(self._left(run, owner, own, deputy), owner.beat_at + run.timeout - now)
            if left > 0.0 and owner.state != ENDED:
                self.due_in = min(self.due_in, max(left + SOON, self._every / 10))

    async def _take_what_is_overdue(self, now: float) -> None:
        overdue = Query(statuses=frozenset({ASSIGNED, CLAIMED}), due_before=now, judged=True, limit=AT_ONCE)
        for run in await self.store.find(overdue):
            what = "did not answer" if run.status is ASSIGNED else "claimed it and did not begin"
            await self._lose(run, run, f"{run.device} {what} in time", [], run.session in self._abroad)

    async def _take_what_is_due_in_the_future(self, now: float, own: float) -> None:
        """Assignments that would last longer than any, since the store's clock was set back: theirs is counted by our
        clock."""
        before, self._due_later = self._due_later, {}
        for run in await self.store.find(Query(statuses=frozenset({ASSIGNED}), judged=True, limit=AT_ONCE)):
            flow = await self._flow(run.workflow, run.version)
            if flow is None:
                continue
            abroad = run.session in self._abroad
            longest = (await self.fleet.settings()).peer_timeout if abroad else flow.assignment_timeout
            if (run.due_at or 0.0) > now + longest + JUMP:
                since = self._due_later[run.grant] = before.get(run.grant, own)
                if own - since > longest:
                    await self._lose(run, run, f"{run.device} did not answer in time", [], abroad)
        self._set_back = bool(self._due_later)

    async def _lose(self, seen: Run, kept: Run, detail: str, guards: list[ExpectSession], abroad: bool) -> None:
        """A device of a peer that has not answered is not lost: the peer may not have been met since."""
        flow = await self._flow(seen.workflow, seen.version)
        if flow is None:
            return
        now = self.store.clock()
        unanswered = abroad and kept.status is ASSIGNED
        after = transitions.take_back(kept, now, detail) if unanswered else transitions.lose(kept, flow, now, detail)
        consequences = await self.fleet.ledger.consequences(after)
        try:
            await self.store.commit([PutRun(after, seen.revision), *guards, *consequences])
        except Conflict as conflict:
            log.debug("not taken away after all: %s", conflict)
        else:
            log.info("taken away: %s", detail, extra={"run": seen.id})

    async def _end_what_is_gone(self, sessions: Sequence[Session], now: float, own: float) -> None:
        """Long after its last word, since it may still take work for as long as it believes that it was heard. Those of
        peers stay as long as their peer does: it may be away for days."""
        for session in sessions:
            if session.state == ABROAD:
                continue
            gone = now - session.beat_at > session.timeout + FORGOTTEN
            if session.used == 0 and gone and self._silent_for(session, own) > session.timeout:
                await self._put(session, session.changed(state=ENDED))

    async def _date_anew(self, sessions: Sequence[Session], now: float) -> None:
        """What was heard of in the future: the store's clock was set back, and it becomes now."""
        for session in sessions:
            if session.beat_at > now + JUMP and session.state != ABROAD:
                await self._put(session, session.changed())

    async def _put(self, before: Session, after: Session) -> None:
        with contextlib.suppress(Conflict):
            await self.store.commit([PutSession(after, before.revision)])

    # -- handing out ---------------------------------------------------------------------------------------------------

    async def hand_out(self, outlook: Placer) -> None:
        """Assign what waits to devices with a free slot, by score. When more waits than one pass can look at, every
        device has enough to take by itself. Those of peers take nothing here: for them each pass goes on where the last
        one ended."""
        idle = {session.state for session in outlook.sessions.values() if session.idle}
        if not idle:
            return
        found = await self.store.find(Query(offered=True, after=self._handed_up_to, limit=AT_ONCE))
        crowded = len(found) == AT_ONCE or self._handed_up_to is not None
        self._handed_up_to = found[-1].id if len(found) == AT_ONCE and ABROAD in idle else None
        if crowded and ABROAD not in idle:
            return
        now, settings = self.store.clock(), await self.fleet.settings()
        found.sort(key=lambda run: (-run.priority, run.created_at, run.id))
        for run in found:
            flow = await self._flow(run.workflow, run.version)
            if flow is None:
                continue
            if run.not_before > now + flow.backoff_most + JUMP:  # written before the store's clock was set back
                run = run.changed(not_before=now)
            if run.not_before > now:
                continue
            choice = outlook.choose(run, flow, state=ABROAD if crowded else None)
            if choice.owner is None:
                continue
            try:
                within = time_to_answer(outlook, choice.owner, settings)
                after = transitions.assign(
                    run, choice.owner, flow, by=self.name, now=now, scores=choice.scores, within=within
                )
                await self.store.commit([PutRun(after, run.revision)])
            except Conflict:
                continue
            outlook.record_assignment(choice.owner.device)

    async def _offer_again(self, outlook: Placer) -> None:
        """Runs that every device able to do them has declined or was tried with begin a new round, or are given up.
        Each pass goes on where the last one ended: those that only wait for a slot must not hide the others."""
        found = await self.store.find(Query(offered=True, avoiding=True, after=self._offered_up_to, limit=AT_ONCE))
        self._offered_up_to = found[-1].id if len(found) == AT_ONCE else None
        for run in found:
            flow = await self._flow(run.workflow, run.version)
            if flow is None:
                continue
            anew = run.changed(avoid=(), declined={})
            able = [one for one in outlook.sessions.values() if outlook.refusal_reason(one, anew, flow) is None]
            if able and all(one.device in run.avoid for one in able):
                yet_to_ask = [one for one in outlook.sessions.values() if one.device not in run.avoid]
                resting = any(outlook.waits_for(one, anew, flow) for one in yet_to_ask)
                await self._step(run, transitions.offer_again(run, flow, self.store.clock(), resting=resting))

    async def _give_up_what_nobody_can_do(self, outlook: Placer) -> None:
        """Nobody for ``no_device_timeout``, by our clock: the store's may jump. What a device of a peer that is away
        could do waits until the peer is met again, or removed."""
        own = self.fleet.clock.time()
        before, self._nobody_since = self._nobody_since, {}
        for waiting in await self.store.waiting():
            flow = await self._flow(waiting.workflow, waiting.version)
            if flow is None:
                continue
            for kind, sample in (await self._kinds(outlook, waiting, flow)).items():
                objections = self._objections(outlook, sample, flow)
                if objections is None or self._waits_for_a_peer(outlook, sample, flow):
                    continue
                known = [at for other, at in before.items() if other in (kind, kind[:3]) or other[:3] == kind]
                since = self._nobody_since[kind] = min(known, default=own)
                if own - since >= flow.no_device_timeout:
                    await self._give_up(kind, flow, objections)

    async def _kinds(self, outlook: Placer, waiting: WaitingRuns, flow: Workflow) -> dict[_Kind, Run]:
        """What waits, one run of each kind. A device with a rule of its own may tell runs apart that are the same to
        the others."""
        sample = transitions.create("", flow, {}, by=self.name, now=0.0, device=waiting.pinned)
        if all(session.accepts is None for session in outlook.sessions.values()):
            return {_kind(sample)[:3]: sample}
        found = await self.store.find(Query(workflow=flow.name, offered=True, limit=AT_ONCE))
        return {_kind(run): run for run in found if _kind(run)[:3] == _kind(sample)[:3]}

    def _objections(self, outlook: Placer, sample: Run, flow: Workflow) -> dict[str, str] | None:
        """Why each device cannot do this kind of work; None if one can, now or when it takes work again."""
        sample = sample.changed(avoid=(), declined={})
        objections = {}
        for session in outlook.sessions.values():
            why = outlook.refusal_reason(session, sample, flow)
            if why is None or outlook.waits_for(session, sample, flow):
                return None
            objections[session.device] = why
        return objections

    def _waits_for_a_peer(self, outlook: Placer, sample: Run, flow: Workflow) -> bool:
        """Whether a device of a peer could do this kind of work, if only the peer were met."""
        sample = sample.changed(avoid=(), declined={})
        away = [one for one in self._abroad.values() if not one.reachable(outlook.now)]
        return any(mismatch_reason(one.resumed(), sample, flow, one.expression_names(), holds) is None for one in away)

    async def _flow(self, name: str, version: int) -> Workflow | None:
        """None if there is none, or it cannot be read: that is said, and what needs it is left alone. It must not keep
        the others from being dealt with."""
        try:
            return await self.fleet.workflows.get(name, version)
        except (UnknownWorkflow, InvalidWorkflow, NotJson) as error:
            if (name, version) not in self._missing:
                self._missing.add((name, version))
                log.warning("what needs it is left alone: %s", error)
            return None

    async def _give_up(self, kind: _Kind, flow: Workflow, objections: Mapping[str, str]) -> None:
        said = "; ".join(f"{device}: {why}" for device, why in objections.items()) or "no device is joined"
        why = f"no device could take it for {flow.no_device_timeout:g} s. {said}"
        now = self.store.clock()
        given_up = 0
        async with contextlib.aclosing(self._all_waiting(flow)) as waiting:
            async for run in waiting:
                since = run.waiting_since or 0.0
                # what waits since the future was written before the store's clock was set back
                waited = now - since >= flow.no_device_timeout or since > now + flow.backoff_most + JUMP
                if waited and _kind(run)[: len(kind)] == kind:
                    await self._step(run, transitions.give_up(run, now, why))
                    given_up += 1
                    if given_up == AT_ONCE:
                        return

    async def _all_waiting(self, flow: Workflow) -> AsyncGenerator[Run, None]:
        """Page by page: what is to be given up may stand behind any number of others that only wait for a slot."""
        found = await self.store.find(Query(workflow=flow.name, offered=True, limit=AT_ONCE))
        while found:
            for run in found:
                yield run
            if len(found) < AT_ONCE:
                return
            found = await self.store.find(Query(workflow=flow.name, offered=True, after=found[-1].id, limit=AT_ONCE))

    async def _step(self, before: Run, after: Run) -> None:
        if after is before:
            return
        with contextlib.suppress(Conflict, RunRefused):
            consequences = await self.fleet.ledger.consequences(after)
            await self.store.commit([PutRun(after, before.revision), *consequences])

    async def _prune(self, now: float) -> None:
        own = self.fleet.clock.time()
        if self._pruned_at is not None and own - self._pruned_at < PRUNE_EVERY:
            return
        before = now - (await self.fleet.settings()).keep
        for _ in range(PRUNED_AT_ONCE):
            if not await retention.prune(self.store, before, AT_ONCE):
                self._pruned_at = own
                return
