"""The monitor: takes runs from lost devices, assigns waiting runs, gives up what no device can do.

It runs on the elected coordinator. Two monitors at once are wasteful and never wrong: every write of a monitor expects
the revision that it has seen, and a run is taken from a silent device only if no heartbeat arrived meanwhile.

Nothing is taken away while silence may have another reason: when the monitor was just elected, when the store's clock
has jumped, and when most of the fleet fell silent at once.

A coordinator that dies cannot take away its own runs, and its successor would have to observe its silence for the whole
timeout first. Therefore a deputy observes the same sessions and clocks without being elected (``run_deputy_pass``). It
takes away the runs of a dead coordinator as soon as their timeout has passed, and those of other devices if they are
still there when the coordinator would have taken them. That is safe for the same reason as two monitors: a monitor that
takes a run away has itself observed, by its own clock, that no heartbeat of the owner arrived for the whole timeout of
the run; the store's clock says the same; and the commit fails if the owner was heard of since. An owner stops work a
margin before that (device/lease.py). None of this depends on the election. A deputy that is elected has observed the
clocks, and need not wait.

So the runs of a device that dies, be it the coordinator or not, are free after their timeout and one pass. If
coordinator and deputy die together, they are free after the lease, the timeout and two passes.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from asterism.base.expressions import holds
from asterism.core.errors import RunRefused
from asterism.core.run import transitions
from asterism.core.run.circuit_breaker import mass_loss_hold_until
from asterism.core.run.placement import Placer, mismatch_reason
from asterism.core.run.run import ASSIGNED, CLAIMED, Grant, Run, queue_order
from asterism.core.run.session import ABROAD, ENDED, OPEN, SILENT_SHOWN, Session
from asterism.fleet import retention
from asterism.fleet.audit_log import remove_entries
from asterism.fleet.extensions import extensions, plan_port
from asterism.fleet.fleet import Fleet, executes_own_plan
from asterism.fleet.ledger import failure_notice
from asterism.fleet.scheduled_work import SchedulePass
from asterism.fleet.sent_events import remove_events
from asterism.fleet.stored_limits import release_lost_holds
from asterism.store.optimistic_update import try_commit
from asterism.store.protocol import ExpectSession, Notice, PutRun, PutSession, Query, WaitingRuns

log = logging.getLogger("asterism.monitor")

RUNS_PER_PASS = 500
"""How many runs of each sort one pass handles."""

CLOCK_JUMP = 2.0
"""By how many seconds the store's clock may differ from the time that has passed here before it counts as a jump."""

LONGEST_GAP = 30.0
"""After how many seconds without a pass a monitor knows no more than a new one."""

EXPIRY_DELAY = 0.01
"""How many seconds after a run expires the pass begins that takes it away."""

PRUNE_INTERVAL = 30.0
"""How often runs that ended long ago are removed, in seconds."""

WHOLE_PRUNE_INTERVAL = 600.0
"""How often plans, workflows and other records that nothing uses are removed as well, in seconds."""

PRUNED_PER_PASS = 5000
"""How many runs that ended long ago one pass removes: there is other work to do."""

_Kind = tuple[Any, ...]
"""What all devices of a store judge (kind, pinned device), then what only some judge."""


def _kind(run: Run) -> _Kind:
    return (run.kind, run.pinned, run.uses is not None, run.priority, run.series, run.created_by)


def _may_have(session: Session, run: Run) -> bool:
    """Whether a run may be sent to a device: limits are of one store, so one that uses them stays in it."""
    return run.uses is None or session.state != ABROAD


def _is_delayed(run: Run, now: float) -> bool:
    """Whether a waiting run is not to be tried yet. A later time than any delay was written before the store's clock
    was set back."""
    return now < run.not_before <= now + run.work.backoff_most + CLOCK_JUMP


class Monitor:
    """``every`` is the interval between two passes, in seconds."""

    def __init__(self, fleet: Fleet, name: str, *, every: float = 5.0) -> None:
        self.fleet, self.store, self.name = fleet, fleet.store, name
        self._every = every
        self._longest_gap = max(LONGEST_GAP, 3 * every)
        self._coordinators: set[str] = set()  # the sessions of the coordinators while we were deputy
        self.due_in = float("inf")
        """In how many seconds after the last pass the next run may expire."""
        self._seen: tuple[float, float] | None = None  # the store's clock and ours, at the last pass
        self._hold_until: float | None = None  # by our clock: nothing is taken away before
        self._heard: dict[str, tuple[int, float]] = {}  # the last revision of each session, and when it came, by ours
        self._mass_loss = False  # whether a notice of it was left
        self._no_device_since: dict[_Kind, float] = {}  # by our clock
        self._offered_up_to: str | None = None  # where the last pass stopped among declined runs
        self._assigned_up_to: str | None = None  # and among runs that wait for devices of peers
        self._clock_set_back = True  # whether the store's clock may have been set back
        self._due_later: dict[Grant | None, float] = {}  # by our clock: assignments with too late a deadline
        self._pruned_at: float | None = None
        self._whole_pruned_at: float | None = None
        self._extra_passes = [extension.monitor_pass(fleet) for extension in extensions()]
        self._abroad: dict[str, Session] = {}  # the devices of peers, by session
        self._schedules = SchedulePass(fleet)

    async def run_pass(self) -> None:
        """One pass of the coordinator."""
        now, own = self.store.clock(), self.fleet.clock.time()
        sessions = await self.store.sessions()
        self._abroad = {session.id: session for session in sessions if session.state == ABROAD}
        self._hear(sessions)
        held = await self._is_held(sessions, now, own)
        await self._take_from_silent(now, own, held)
        await self._look_ahead(now, own)
        if not held:
            await self._take_overdue(now)
            if self._clock_set_back:
                await self._take_overdue_by_own_clock(now, own)
            await release_lost_holds(self.store, lambda session: self._silent_for(session, own))
            await self._end_silent_sessions(sessions, now, own)
        await self._correct_future_heartbeats(sessions, now)
        placer = await self.fleet.placer(fresh=True)
        await self.assign_waiting(placer)
        await self._start_next_rounds(placer)
        await self._give_up_unplaceable(placer)
        await self._decide_ticks()
        if not held:
            for extra_pass in self._extra_passes:
                await extra_pass(sessions)
            await self._prune(now)

    async def run_deputy_pass(self, coordinator: str | None) -> None:
        """One pass of the deputy. ``coordinator`` is the session of the elected one."""
        now, own = self.store.clock(), self.fleet.clock.time()
        sessions = await self.store.sessions()
        known = {session.id for session in sessions}
        self._coordinators = {session_id for session_id in (*self._coordinators, coordinator) if session_id in known}
        self._abroad = {session.id: session for session in sessions if session.state == ABROAD}
        self._hear(sessions)
        held = await self._is_held(sessions, now, own, notify=False)
        await self._take_from_silent(now, own, held, deputy=True)
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
        """For how long we have certainly observed no heartbeat. Every heartbeat changes the revision, and the store's
        clock may have jumped back and forth."""
        revision, since = self._heard.get(session.id, (0, own))
        return own - since if revision == session.revision else 0.0

    async def _is_held(self, sessions: Sequence[Session], now: float, own: float, *, notify: bool = True) -> bool:
        """Whether nothing may be taken away now, because the clock jumped or most of the fleet vanished at once. The
        coordinator leaves a notice (``notify``)."""
        hold = (await self.fleet.settings()).hold
        # every device that is alive sends a heartbeat within this time
        longest = max(
            (session.timeout for session in sessions if session.used and session.state != ABROAD), default=0.0
        )
        heartbeat_time = min(hold, longest / 2)
        if self._seen is None or own - self._seen[1] > self._longest_gap:
            # just elected: the clock may have jumped since the last heartbeats, so wait for new ones first
            self._hold_until = own + heartbeat_time
            self._clock_set_back = True
        else:
            jump = (now - self._seen[0]) - (own - self._seen[1])
            message = self._note_clock_jump(jump, own, max(hold, heartbeat_time))
            if message is not None and notify:
                await self._leave_notice("clock", message)
        self._seen = (now, own)
        if self._hold_until is not None and own < self._hold_until:
            return True
        until = mass_loss_hold_until(sessions, now, hold)
        mass_loss = until is not None and now < until
        if mass_loss and not self._mass_loss and notify:
            reachable = [session.reachable(now) for session in sessions if session.state == OPEN]
            await self._leave_notice(
                "brake",
                f"{reachable.count(False)} of {len(reachable)} devices vanished at once: nothing is taken away for "
                f"{hold:g} s",
            )
        self._mass_loss = mass_loss and notify
        return mass_loss

    def _note_clock_jump(self, jump: float, own: float, hold: float) -> str | None:
        """React to a jump of the store's clock. Returns the message of the notice; None if it has not jumped."""
        if abs(jump) <= CLOCK_JUMP:
            return None
        self._no_device_since.clear()
        if jump > 0:
            self._hold_until = own + hold
            return f"the store's clock jumped ahead by {jump:.0f} s: nothing runs out for {hold:g} s"
        self._clock_set_back = True
        return f"the store's clock was set back by {-jump:.0f} s"

    async def _leave_notice(self, kind: str, message: str) -> None:
        log.warning(message)
        await self.store.commit([Notice(self.store.clock(), kind, message, None, self.name)])

    # -- taking runs away ----------------------------------------------------------------------------------------------

    async def _take_from_silent(self, now: float, own: float, held: bool, *, deputy: bool = False) -> None:
        """Take the runs of devices whose timeout has passed, by the store's clock and by ours. The runs of sessions
        that have ended need no clock, and are left to the coordinator."""
        orphans = [
            (run, owner)
            for run, owner in await self.store.orphans(now, RUNS_PER_PASS)
            if (owner.state == ENDED and not deputy) or (not held and self._time_left(run, owner, own, deputy) <= 0.0)
        ]
        reports = await self.store.reports([run.id for run, _ in orphans]) if orphans else {}
        for run, session in orphans:
            silent = f"{session.device} was not heard of for {now - session.beat_at:.0f} s"
            detail = f"{session.device} is gone" if session.state == ENDED else silent
            report = reports.get(run.id)
            latest = run.changed(progress=report.progress or run.progress) if report is not None else run
            guards = [ExpectSession(session.id, session.revision)]
            await self._lose(run, latest, detail, guards, session.peer is not None)

    def _time_left(self, run: Run, owner: Session, own: float, deputy: bool) -> float:
        """How much longer the silence of an owner must be observed before a run is taken away. The deputy waits two
        more passes for the coordinator, unless the owner is the coordinator."""
        leaves_to_coordinator = deputy and owner.id not in self._coordinators
        timeout = owner.loses_after(run.timeout)
        return timeout - self._silent_for(owner, own) + (2.5 * self._every if leaves_to_coordinator else 0.0)

    async def _look_ahead(self, now: float, own: float, *, deputy: bool = False) -> None:
        """Set ``due_in`` if a run may expire before the next regular pass."""
        self.due_in = float("inf")
        for run, owner in await self.store.orphans(now + 1.5 * self._every, RUNS_PER_PASS):
            left = max(self._time_left(run, owner, own, deputy), owner.beat_at + owner.loses_after(run.timeout) - now)
            if left > 0.0 and owner.state != ENDED:
                self.due_in = min(self.due_in, max(left + EXPIRY_DELAY, self._every / 10))

    async def _take_overdue(self, now: float) -> None:
        """Take assigned runs that were not claimed in time, and claimed runs that were not started in time."""
        overdue = Query(statuses=frozenset({ASSIGNED, CLAIMED}), due_before=now, judged=True, limit=RUNS_PER_PASS)
        for run in await self.store.find(overdue):
            what = "did not answer" if run.status is ASSIGNED else "claimed it and did not begin"
            await self._lose(run, run, f"{run.device} {what} in time", [], run.session in self._abroad)

    async def _take_overdue_by_own_clock(self, now: float, own: float) -> None:
        """Take assigned runs whose deadline is too far in the future, since the store's clock was set back: their time
        is measured by our clock."""
        before, self._due_later = self._due_later, {}
        for run in await self.store.find(Query(statuses=frozenset({ASSIGNED}), judged=True, limit=RUNS_PER_PASS)):
            abroad = run.session in self._abroad
            longest = (await self.fleet.settings()).peer_timeout if abroad else run.work.assignment_timeout
            if (run.due_at or 0.0) > now + longest + CLOCK_JUMP:
                since = self._due_later[run.grant] = before.get(run.grant, own)
                if own - since > longest:
                    await self._lose(run, run, f"{run.device} did not answer in time", [], abroad)
        self._clock_set_back = bool(self._due_later)

    async def _lose(self, seen: Run, run: Run, detail: str, guards: list[ExpectSession], abroad: bool) -> None:
        """Take a run away; ``seen`` is its stored record, ``run`` the same with its latest progress. An assignment that
        a device of a peer has not answered does not count as a loss: the stores may not have met since. Neither does
        the loss of the process that runs the plan of the run: it ends with all its tasks, whatever they do."""
        now = self.store.clock()
        unanswered = abroad and run.status is ASSIGNED
        if unanswered:
            after = transitions.take_back(run, now, detail)
        else:
            after = transitions.lose(run, now, detail, counted=not executes_own_plan(run))
        if await try_commit(self.store, [PutRun(after, seen.revision), *guards, *failure_notice(after)]):
            log.info("taken away: %s", detail, extra={"run": seen.id})
        else:
            log.debug("not taken away: the run or its device has changed meanwhile", extra={"run": seen.id})

    async def _end_silent_sessions(self, sessions: Sequence[Session], now: float, own: float) -> None:
        """End sessions that have been silent for long and hold no run: a device may still take work for as long as it
        believes that it was heard. Devices of peers stay as long as their peer does, which may be away for days."""
        for session in sessions:
            if session.state == ABROAD:
                continue
            gone = now - session.beat_at > session.timeout + SILENT_SHOWN
            if session.used == 0 and gone and self._silent_for(session, own) > session.timeout:
                await try_commit(self.store, [PutSession(session.changed(state=ENDED), session.revision)])

    async def _correct_future_heartbeats(self, sessions: Sequence[Session], now: float) -> None:
        """Date heartbeats of the future back to now: the store's clock was set back after them."""
        for session in sessions:
            if session.beat_at > now + CLOCK_JUMP and session.state != ABROAD:
                await try_commit(self.store, [PutSession(session.changed(), session.revision)])

    # -- assigning runs ------------------------------------------------------------------------------------------------

    async def assign_waiting(self, placer: Placer) -> None:
        """Assign runs that wait to devices with a free slot, by score; our own device takes them itself. When more runs
        wait than one pass can look at, every device of this store finds enough to take by itself. Devices of peers take
        nothing here: for them each pass begins where the last one stopped."""
        idle = {session.state for session in placer.sessions.values() if session.idle}
        if not idle:
            return
        waiting = await self.store.find(Query(offered=True, after=self._assigned_up_to, limit=RUNS_PER_PASS))
        crowded = len(waiting) == RUNS_PER_PASS or self._assigned_up_to is not None
        self._assigned_up_to = waiting[-1].id if len(waiting) == RUNS_PER_PASS and ABROAD in idle else None
        if crowded and ABROAD not in idle:
            return
        now = self.store.clock()
        waiting.sort(key=queue_order)
        for run in waiting:
            if _is_delayed(run, now):
                continue
            if run.uses is not None:  # devices take it (stored_limits.py), once its time has come
                if run.not_before > now:
                    await self._change(run, transitions.end_backoff(run, now, "the clock of the store was set back"))
                continue
            run = run.changed(not_before=min(run.not_before, now))
            choice = placer.choose(run, state=ABROAD if crowded else None)
            if choice.owner is None:
                continue
            if choice.owner.device == self.name and self.fleet.local is not None:
                # our own device may be taking the first of those that wait at this moment: one more would be declined
                self.fleet.local.wake()
                placer.record_assignment(self.name)
                continue
            after = transitions.assign(
                run, choice.owner, by=self.name, now=now, scores=choice.scores, within=choice.within
            )
            if await try_commit(self.store, [PutRun(after, run.revision)]):
                placer.record_assignment(choice.owner.device)

    async def _start_next_rounds(self, placer: Placer) -> None:
        """Start a new round of offers for runs that every able device has declined or was tried with, or give them up.
        A device refuses runs by its own rule (``accepts``) without a word in their records, so while there are such
        rules, all waiting runs are looked at. Each pass begins where the last one stopped: runs that only wait for a
        slot must not hide the others."""
        rules = any(session.accepts is not None for session in placer.sessions.values())
        query = Query(offered=True, avoiding=None if rules else True, after=self._offered_up_to, limit=RUNS_PER_PASS)
        waiting = await self.store.find(query)
        self._offered_up_to = waiting[-1].id if len(waiting) == RUNS_PER_PASS else None
        for run in waiting:
            anew, now = run.changed(avoid=(), declined={}), self.store.clock()
            sessions = [session for session in placer.sessions.values() if _may_have(session, run)]
            able = [session for session in sessions if placer.refusal_reason(session, anew) is None]
            if able and all(session.device in run.avoid for session in able):
                yet_to_ask = [session for session in sessions if session.device not in run.avoid]
                resting = any(placer.waits_for(session, anew) for session in yet_to_ask)
                await self._offer_again(run, now, resting=resting)
                continue
            refusals = self._refusals_by_rule(placer, anew) if rules and not able else {}
            if refusals and not _is_delayed(run, now):
                await self._offer_again(run, now, refusals=refusals)

    async def _offer_again(self, run: Run, now: float, **reasons: Any) -> None:
        after = transitions.offer_again(run, now, **reasons)
        if after.ended and await self._must_wait(run.workflow):
            after = transitions.offer_again(run, now, limited=False, **reasons)
        await self._change(run, after)

    def _refusals_by_rule(self, placer: Placer, anew: Run) -> dict[str, str]:
        """Why devices refuse a run by their own rules, if nothing else is wrong with them. Empty if a device that
        rests, or one of an absent peer, is still to be asked."""
        sessions = placer.sessions.values()
        resting = any(placer.waits_for(session, anew) for session in sessions)
        if resting or self._waits_for_peer(placer, anew):
            return {}
        refusals = {session.device: placer.rule_refusal(session, anew) for session in sessions}
        return {device: why for device, why in refusals.items() if why is not None}

    # -- giving up -----------------------------------------------------------------------------------------------------

    async def _give_up_unplaceable(self, placer: Placer) -> None:
        """Give up runs that no device could execute for ``no_device_timeout``, by our clock: the store's may jump. A
        run that a device of an absent peer could execute waits until the peer is met again, or removed."""
        own = self.fleet.clock.time()
        before, self._no_device_since = self._no_device_since, {}
        for waiting in await self.store.waiting():
            for kind, sample in (await self._samples(placer, waiting)).items():
                reasons = self._refusal_reasons(placer, sample)
                if reasons is None or self._waits_for_peer(placer, sample):
                    continue
                known = [at for other, at in before.items() if other in (kind, kind[:2]) or other[:2] == kind]
                since = self._no_device_since[kind] = min(known, default=own)
                if own - since >= sample.work.no_device_timeout and not await self._must_wait(sample.workflow):
                    await self._give_up(kind, sample, reasons)

    async def _must_wait(self, workflow: str) -> bool:
        """Whether the runs of a workflow are teardowns of a plan that is being cancelled. They wait for a device
        without a limit: a cancelled plan is never reopened, so a teardown that is given up would be lost."""
        name = workflow.removeprefix(retention.PREFIX)
        return name != workflow and await plan_port().plan_cancelling(self.store, name)

    async def _samples(self, placer: Placer, waiting: WaitingRuns) -> dict[_Kind, Run]:
        """One waiting run of each kind. A device with a rule of its own may tell runs apart that are equal to other
        devices, and devices of peers are not sent those that use limits."""
        sample, sessions = waiting.sample, placer.sessions.values()
        if all(session.accepts is None and session.state != ABROAD for session in sessions):
            return {_kind(sample)[:2]: sample}
        runs = await self.store.find(Query(workflow=sample.workflow, offered=True, limit=RUNS_PER_PASS))
        return {_kind(run): run for run in runs if _kind(run)[:2] == _kind(sample)[:2]}

    def _refusal_reasons(self, placer: Placer, sample: Run) -> dict[str, str] | None:
        """Why each device cannot execute this kind of run; None if one can, now or when it takes work again."""
        sample = sample.changed(avoid=(), declined={})
        reasons = {}
        for session in placer.sessions.values():
            if not _may_have(session, sample):
                reasons[session.device] = "a run that uses limits is not sent to a device of a peer"
                continue
            why = placer.refusal_reason(session, sample)
            if why is None or placer.waits_for(session, sample):
                return None
            reasons[session.device] = why
        return reasons

    def _waits_for_peer(self, placer: Placer, sample: Run) -> bool:
        """Whether a device of an absent peer could execute this kind of run."""
        if sample.uses is not None:
            return False
        sample = sample.changed(avoid=(), declined={})
        away = [session for session in self._abroad.values() if not session.reachable(placer.now)]
        return any(
            mismatch_reason(session.resumed(), sample, session.expression_names(), holds) is None for session in away
        )

    async def _give_up(self, kind: _Kind, sample: Run, reasons: Mapping[str, str]) -> None:
        refusals = "; ".join(f"{device}: {why}" for device, why in reasons.items()) or "no device is joined"
        timeout = sample.work.no_device_timeout
        why = f"no device could take it for {timeout:g} s. {refusals}"
        now = self.store.clock()
        given_up = 0
        async with contextlib.aclosing(self._all_waiting(sample.workflow)) as waiting:
            async for run in waiting:
                since = run.waiting_since or 0.0
                # a time in the future was written before the store's clock was set back
                waited = now - since >= timeout or since > now + sample.work.backoff_most + CLOCK_JUMP
                if waited and _kind(run)[: len(kind)] == kind:
                    await self._change(run, transitions.give_up(run, now, why))
                    given_up += 1
                    if given_up == RUNS_PER_PASS:
                        return

    async def _all_waiting(self, workflow: str) -> AsyncGenerator[Run, None]:
        """All waiting runs of a workflow, page by page: those to give up may come after many that wait for a slot."""
        page = await self.store.find(Query(workflow=workflow, offered=True, limit=RUNS_PER_PASS))
        while page:
            for run in page:
                yield run
            if len(page) < RUNS_PER_PASS:
                return
            query = Query(workflow=workflow, offered=True, after=page[-1].id, limit=RUNS_PER_PASS)
            page = await self.store.find(query)

    async def _change(self, before: Run, after: Run) -> None:
        if after is before:
            return
        with contextlib.suppress(RunRefused):
            await try_commit(self.store, [PutRun(after, before.revision), *failure_notice(after)])

    async def _decide_ticks(self) -> None:
        """Create the runs and plans of schedules whose time has come."""
        due_in = await self._schedules.run_pass()
        self.due_in = min(self.due_in, max(due_in, self._every / 10))

    async def _prune(self, now: float) -> None:
        own = self.fleet.clock.time()
        if self._pruned_at is not None and own - self._pruned_at < PRUNE_INTERVAL:
            return
        whole = self._whole_pruned_at is None or own - self._whole_pruned_at >= WHOLE_PRUNE_INTERVAL
        settings = await self.fleet.settings()
        before = now - settings.keep
        if whole:
            await remove_events(self.store, now - settings.keep_events)
            await remove_entries(self.store, now - settings.keep_audit)
        if await retention.prune(self.store, before, PRUNED_PER_PASS, runs_alone=not whole) < PRUNED_PER_PASS:
            if whole:
                await self.fleet.collect_files()
            self._pruned_at = own
            self._whole_pruned_at = own if whole else self._whole_pruned_at
