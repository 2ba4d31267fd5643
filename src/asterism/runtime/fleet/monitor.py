"""The monitor: takes away what has run out, hands out what waits, and gives up what nobody can do.

It runs on the elected coordinator. Two at once are wasteful and never wrong: all it does is committed against the
revision it has seen, and a run is taken from a silent device only if no heartbeat came in meanwhile.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence

from asterism.core import assigning
from asterism.core.brake import braked_until
from asterism.core.errors import RunRefused
from asterism.core.placement import Outlook
from asterism.core.run import ASSIGNED, CLAIMED, Run
from asterism.core.session import ENDED, OPEN, REPLACED, Session
from asterism.core.workflow import Workflow
from asterism.runtime.fleet.fleet import Fleet
from asterism.runtime.fleet.notifying import Notifier
from asterism.store.errors import Conflict
from asterism.store.protocol import ExpectSession, Notice, PutRun, PutSession, Query, Waiting

log = logging.getLogger("asterism.monitor")

AT_ONCE = 500
"""How many runs one pass deals with, of each sort."""

JUMP = 5.0
"""By how many seconds the store's clock may differ from what has passed here before it is said to have jumped."""

LONGEST_GAP = 30.0
"""After how many seconds without a pass a monitor knows no more than a new one."""

FORGOTTEN = 3600.0
"""How long a device that fell silent is shown as one of the fleet, in seconds."""

PRUNE_EVERY = 600.0


class Monitor:
    def __init__(self, fleet: Fleet, name: str) -> None:
        self.fleet, self.store, self.name = fleet, fleet.store, name
        self.notifier = Notifier(fleet)
        self._seen: tuple[float, float] | None = None  # the store's clock and ours, at the last pass
        self._hold_until: float | None = None  # by our clock: nothing runs out before
        self._braked = False
        self._nobody_since: dict[tuple[str, int, str | None], float] = {}
        self._pruned_at: float | None = None

    async def watch(self) -> None:
        """One pass."""
        now = self.store.clock()
        sessions = await self.store.sessions()
        held = await self._holds(sessions, now)
        if not held:
            await self._take_from_the_silent(now)
            await self._take_what_is_overdue(now)
        await self._tidy_sessions(sessions, now)
        outlook = await self.fleet.outlook(fresh=True)
        await self._hand_out(outlook)
        await self._offer_again(outlook)
        await self._give_up_what_nobody_can_do(outlook, now)
        await self.notifier.deliver()
        await self._prune(now)

    # -- when nothing is taken away ----------------------------------------------------------------------------------

    async def _holds(self, sessions: Sequence[Session], now: float) -> bool:
        """Whether expiry waits, because the clock jumped or most of the fleet vanished at once."""
        own = self.fleet.clock.time()
        hold = (await self.fleet.settings()).hold
        if self._seen is None or own - self._seen[1] > LONGEST_GAP:
            # new in office: whether the clock has jumped since anybody was heard of cannot be known, so all get a
            # chance to be heard of first
            self._hold_until = own + max((one.timeout for one in sessions), default=0.0) / 2
        else:
            jump = (now - self._seen[0]) - (own - self._seen[1])
            if jump > JUMP:
                self._hold_until = own + hold
                await self._tell(
                    "clock", f"the store's clock jumped ahead by {jump:.0f} s: nothing runs out for {hold:g} s"
                )
            elif jump < -JUMP:
                await self._tell("clock", f"the store's clock was set back by {-jump:.0f} s")
        self._seen = (now, own)
        if self._hold_until is not None and own < self._hold_until:
            return True
        until = braked_until(sessions, now, hold)
        braked = until is not None and now < until
        if braked and not self._braked:
            silent = sum(one.state == OPEN and not one.reachable(now) for one in sessions)
            await self._tell(
                "brake", f"{silent} of {len(sessions)} devices vanished at once: nothing is taken away for {hold:g} s"
            )
        self._braked = braked
        return braked

    async def _tell(self, kind: str, message: str) -> None:
        log.warning(message)
        await self.store.commit([Notice(self.store.clock(), kind, message, None, self.name)])

    # -- taking away ---------------------------------------------------------------------------------------------------

    async def _take_from_the_silent(self, now: float) -> None:
        found = await self.store.orphans(now, AT_ONCE)
        reports = await self.store.reports([run.id for run, _ in found])
        for run, session in found:
            silent = f"{session.device} was not heard of for {now - session.beat_at:.0f} s"
            detail = f"{session.device} is gone" if session.state == ENDED else silent
            report = reports.get(run.id)
            kept = run.changed(progress=report.progress or run.progress) if report is not None else run
            await self._lose(run, kept, detail, [ExpectSession(session.id, session.revision)])

    async def _take_what_is_overdue(self, now: float) -> None:
        for status, detail in ((ASSIGNED, "did not answer"), (CLAIMED, "claimed it and did not begin")):
            query = Query(statuses=frozenset({status}), due_before=now, limit=AT_ONCE)
            for run in await self.store.find(query):
                await self._lose(run, run, f"{run.device} {detail} in time", [])

    async def _lose(self, seen: Run, kept: Run, detail: str, guards: list[ExpectSession]) -> None:
        flow = await self.fleet.workflows.get(seen.workflow, seen.version)
        after = assigning.lose(kept, flow, self.store.clock(), detail)
        consequences = await self.fleet.ledger.consequences(after)
        try:
            await self.store.commit([PutRun(after, seen.revision), *guards, *consequences])
        except Conflict as conflict:
            log.debug("not taken away after all: %s", conflict)
        else:
            log.info("taken away: %s", detail, extra={"run": seen.id})

    async def _tidy_sessions(self, sessions: Sequence[Session], now: float) -> None:
        """End what is long gone, and date anew what was heard of in the future: the store's clock was set back."""
        for session in sessions:
            gone = session.state == REPLACED or now - session.beat_at > session.timeout + FORGOTTEN
            if session.used == 0 and gone and not session.reachable(now):
                changed = session.changed(state=ENDED)
            elif session.beat_at > now + JUMP:
                changed = session.changed()
            else:
                continue
            with contextlib.suppress(Conflict):
                await self.store.commit([PutSession(changed, session.revision)])

    # -- handing out ---------------------------------------------------------------------------------------------------

    async def _hand_out(self, outlook: Outlook) -> None:
        """Assign what waits to devices with a free slot, by score. When more waits than one pass can look at, every
        device has enough to take by itself."""
        if not any(session.idle for session in outlook.sessions.values()):
            return
        found = await self.store.find(Query(offered=True, limit=AT_ONCE))
        if len(found) == AT_ONCE:
            return
        now = self.store.clock()
        found.sort(key=lambda run: (-run.priority, run.created_at, run.id))
        for run in found:
            flow = await self.fleet.workflows.get(run.workflow, run.version)
            if run.not_before > now + flow.backoff_most + JUMP:  # written before the store's clock was set back
                run = run.changed(not_before=now)
            if run.not_before > now:
                continue
            choice = outlook.choose(run, flow)
            if choice.owner is None:
                continue
            try:
                after = assigning.assign(run, choice.owner, flow, by=self.name, now=now, scores=choice.scores)
                await self.store.commit([PutRun(after, run.revision)])
            except Conflict:
                continue
            outlook.gave(choice.owner.device)

    async def _offer_again(self, outlook: Outlook) -> None:
        """Runs that every device able to do them has declined or was tried with begin a new round, or are given up."""
        for run in await self.store.find(Query(offered=True, avoiding=True, limit=AT_ONCE)):
            flow = await self.fleet.workflows.get(run.workflow, run.version)
            anew = run.changed(avoid=(), declined={})
            able = [one for one in outlook.sessions.values() if outlook.objection(one, anew, flow) is None]
            if able and all(one.device in run.avoid for one in able):
                await self._step(run, assigning.next_round(run, flow, self.store.clock()))

    async def _give_up_what_nobody_can_do(self, outlook: Outlook, now: float) -> None:
        hopeless = set()
        for waiting in await self.store.waiting():
            flow = await self.fleet.workflows.get(waiting.workflow, waiting.version)
            kind = (waiting.workflow, waiting.version, waiting.pinned)
            objections = self._objections(outlook, waiting, flow)
            if objections is None:
                continue
            hopeless.add(kind)
            since = self._nobody_since.setdefault(kind, now)
            if now - since < flow.no_device_timeout:
                continue
            said = "; ".join(f"{device}: {why}" for device, why in objections.items()) or "no device is joined"
            query = Query(workflow=flow.name, offered=True, waiting_before=now - flow.no_device_timeout, limit=AT_ONCE)
            for run in await self.store.find(query):
                if (run.workflow, run.version, run.pinned) == kind:
                    why = f"no device could take it for {flow.no_device_timeout:g} s. {said}"
                    await self._step(run, assigning.give_up(run, self.store.clock(), why))
        self._nobody_since = {kind: since for kind, since in self._nobody_since.items() if kind in hopeless}

    def _objections(self, outlook: Outlook, waiting: Waiting, flow: Workflow) -> dict[str, str] | None:
        """Why each device cannot do this kind of work; None if one can."""
        sample = assigning.create("sample", flow, {}, by=self.name, now=0.0, device=waiting.pinned)
        objections = {}
        for session in outlook.sessions.values():
            why = outlook.objection(session, sample, flow)
            if why is None:
                return None
            objections[session.device] = why
        return objections

    async def _step(self, before: Run, after: Run) -> None:
        with contextlib.suppress(Conflict, RunRefused):
            consequences = await self.fleet.ledger.consequences(after)
            await self.store.commit([PutRun(after, before.revision), *consequences])

    async def _prune(self, now: float) -> None:
        own = self.fleet.clock.time()
        if self._pruned_at is not None and own - self._pruned_at < PRUNE_EVERY:
            return
        self._pruned_at = own
        keep = (await self.fleet.settings()).keep
        while await self.store.prune(now - keep, AT_ONCE):
            pass
