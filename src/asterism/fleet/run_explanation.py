"""Explanation of a run: why it is not running, in words and as data.

============  ==========================================================================================================
kind          what holds the run (``name`` says which one)
============  ==========================================================================================================
ended         it has ended
running       nothing: a device executes it
wish          its device has been asked to stop it, and has not stopped yet
pause         a person
series        another run of its series
limit         runs that hold a limit which it uses, or the rate of that limit
backoff       the pause before the next attempt
no_device     no device can execute it
silent        a device that may execute it, or owns it, does not send heartbeats
objection     a device refuses it
suspended     a device that could execute it has stopped taking work, since it lost or failed too much at once
busy          a device that could execute it has no free slot
resting       a device that could execute it would hand it back for now, such as one that is low on battery
turn          nothing: a device with a free slot is about to take it
assigned      a device was assigned to it and has not claimed it yet
claimed       a device has claimed it and has not started it
behind        a run that its device executes first
brake         nothing is taken from silent devices for now, since most of the fleet vanished at once
unwatched     no device is the coordinator
left          a peer, which decides about the run: this store has a copy
removed       a peer that was removed, which decided about the run
============  ==========================================================================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from asterism.base.durations import format_age, format_delay, format_duration
from asterism.core.history import Reason
from asterism.core.limits import Hold, Shortage, UnknownLimit, series_limit, uses_of
from asterism.core.plan.task import absent_plugin
from asterism.core.record import Record
from asterism.core.run.circuit_breaker import mass_loss_hold_until
from asterism.core.run.placement import Placer
from asterism.core.run.run import ASSIGNED, CLAIMED, COMPLETED, OWNED, PROCESSING, Run
from asterism.core.run.run_label import task_name
from asterism.core.run.session import ABROAD, ENDED, REACHABLE_STATES, Session
from asterism.fleet.extensions import extensions
from asterism.fleet.fleet import Fleet
from asterism.fleet.stored_limits import StoredLimits, read_stored_limits, users
from asterism.store.protocol import Query

MOST_NAMED = 20
"""How many devices or runs are named one by one."""

MOST_AHEAD = 1000
"""How many runs of a series are counted."""

FEW_NAMED = 5
"""How many holders of a limit are named."""


class RunExplanation(Record):
    """All reasons; ``str()`` of it is the whole answer in a line."""

    run_id: str
    status: str
    reasons: tuple[Reason, ...]

    def __str__(self) -> str:
        return f"run {self.run_id} is {self.status}: {'; '.join(reason.text for reason in self.reasons)}"


async def explain_run(fleet: Fleet, run_id: str) -> RunExplanation:
    """Explain why a run is not running. Raises UnknownRun."""
    run = await fleet.run(run_id)
    reasons: list[Reason]
    if run.ended:
        reasons = [_ended(run, fleet.store.clock())]
    elif run.status in OWNED:
        reasons = await _Owned(fleet, run).reasons()
    else:
        reasons = await _unowned(fleet, run)
    return RunExplanation(run.id, run.reported_status, tuple(reasons))


def _ended(run: Run, now: float) -> Reason:
    ago = f"{format_age(now - (run.ended_at or now))} ago"
    if run.status is COMPLETED:
        return Reason("ended", "completed", f"it completed on {run.device}, {ago}", run.ended_at)
    word = "cancelled" if run.cancelled else "failed"
    said = (run.error or "").removeprefix("cancelled ") if run.cancelled else f": {run.error}"
    return Reason(
        "ended", word, f"it {'was ' if run.cancelled else ''}{word} {ago}{' ' * run.cancelled}{said}", run.ended_at
    )


# -- runs that a device owns -------------------------------------------------------------------------------------------


class _Owned:
    """A run that a device owns."""

    def __init__(self, fleet: Fleet, run: Run) -> None:
        self.fleet, self.run, self.now = fleet, run, fleet.store.clock()

    async def reasons(self) -> list[Reason]:
        run = self.run
        sessions = await self.fleet.store.sessions(ended=True)
        owner = next((session for session in sessions if session.id == run.session), None)
        reasons = [self._ownership()]
        if run.status is CLAIMED:
            reasons += await self._behind()
        if run.stop_request is not None:
            text = (
                f"{run.device} was asked to {run.stop_request} it by {run.stop_requested_by}, and has not stopped yet"
            )
            reasons.append(Reason("wish", run.stop_request, text))
        left = await _decided_elsewhere(self.fleet, run)
        if left is not None:
            return [*reasons, left]
        if owner is not None and owner.state == ABROAD:
            return [*reasons, *_abroad(owner, self.now)]
        if (
            owner is None
            or self.now - owner.beat_at > owner.loses_after(run.timeout) / 2
            or owner.state not in REACHABLE_STATES
        ):
            reasons += await self._silence(owner, sessions)
        return reasons

    def _ownership(self) -> Reason:
        run, device = self.run, str(self.run.device)
        if run.status is ASSIGNED:
            since, left = _ago(self.now, run.assigned_at), _left(self.now, run.due_at)
            text = f"it was assigned to {device} {since} and has not been claimed; {device} has {left} to answer"
            return Reason("assigned", device, text, run.due_at)
        if run.status is CLAIMED:
            left = _left(self.now, run.due_at)
            text = f"{device} claimed it {_ago(self.now, run.claimed_at)} and has {left} to begin"
            return Reason("claimed", device, text, run.due_at)
        far = f", and has reached {run.progress}" if run.progress is not None else ""
        lasting = format_age(self.now - (run.started_at or self.now))
        return Reason("running", device, f"it has been running on {device} for {lasting}{far}", run.started_at)

    async def _behind(self) -> list[Reason]:
        """The runs that its device executes before it."""
        runs = await self.fleet.runs(Query(session=self.run.session))
        ahead = [run for run in runs if run.status is PROCESSING][:MOST_NAMED]
        return [
            Reason(
                "behind",
                run.id,
                f"{self.run.device} executes {run.id} ({run.workflow}, priority {run.priority}) first",
                run.started_at,
            )
            for run in ahead
        ]

    async def _silence(self, owner: Session | None, sessions: Sequence[Session]) -> list[Reason]:
        run, device = self.run, str(self.run.device)
        if owner is None or owner.state == ENDED:
            reasons = [Reason("silent", device, f"{device} has left the fleet: the run is about to be taken away")]
        else:
            until = owner.beat_at + owner.loses_after(run.timeout)
            then = f"in {format_age(until - self.now)}" if until > self.now else "now"
            age = format_age(self.now - owner.beat_at)
            text = f"{device} has not been heard of for {age}; the run may be taken away {then}"
            reasons = [Reason("silent", device, text, owner.beat_at)]
        return [*reasons, *await self._why_not_taken(sessions)]

    async def _why_not_taken(self, sessions: Sequence[Session]) -> list[Reason]:
        """Why a run of a silent device is not taken away."""
        if await self.fleet.coordinator() is None:
            text = "no device is the coordinator, so nothing is taken away until one joins"
            return [Reason("unwatched", "", text)]
        hold = (await self.fleet.settings()).hold
        until = mass_loss_hold_until([session for session in sessions if session.state != ENDED], self.now, hold)
        if until is None or until <= self.now:
            return []
        left = format_age(until - self.now)
        text = f"most of the fleet vanished at once, probably the network failed: nothing is taken away for {left}"
        return [Reason("brake", "", text, until)]


async def _decided_elsewhere(fleet: Fleet, run: Run) -> Reason | None:
    """Why this store does not decide about a run, as the first extension says that knows; None if it does."""
    for extension in extensions():
        reason = await extension.explain(fleet, run)
        if reason is not None:
            return reason
    return None


def _abroad(owner: Session, now: float) -> Iterator[Reason]:
    if not owner.reachable(now):
        text = f"{owner.device}, a device {owner.host}, has not been heard of for {format_age(now - owner.beat_at)}"
        yield Reason("silent", owner.device, text, owner.beat_at)


# -- runs that no device owns ------------------------------------------------------------------------------------------


async def _unowned(fleet: Fleet, run: Run) -> list[Reason]:
    now = fleet.store.clock()
    if run.paused is not None:
        return [Reason("pause", run.paused, f"it is paused {run.paused}, until it is resumed")]
    elsewhere = await _decided_elsewhere(fleet, run)
    if elsewhere is not None:
        return [elsewhere]
    if run.not_before > now:
        last = run.previous[-1] if run.previous else None
        said = f" on {last.device} ({last.reason}: {last.detail})" if last is not None else ""
        left = format_age(run.not_before - now)
        then = f"in {left}" if left != "0 s" else "at once"
        return [Reason("backoff", "", f"the next attempt begins {then}, after the last one{said}", run.not_before)]
    if run.uses is not None and (limits := await limit_reasons(fleet, uses_of(run.uses), now, run)):
        return limits
    return _placement(await fleet.placer(fresh=True), run, await fleet.store.sessions())


async def _series(fleet: Fleet, stored: StoredLimits, run: Run) -> Reason | None:
    """The run of its series for whose end a run waits; None if it is the next one."""
    if run.series is None:
        return None
    limit = series_limit(run.series)
    groups = [group for group in stored.runs if limit in uses_of(group.uses)]
    others = [other for other in await users(fleet.store, stored, groups, MOST_AHEAD) if isinstance(other, Run)]
    owned = [other for other in others if other.session is not None]
    ahead = sorted((other for other in others if other.session is None and other.id < run.id), key=lambda one: one.id)
    if not owned and not ahead:
        return None
    active, *between = [*owned, *ahead]
    which = f"run {active.id} ({active.workflow}, {active.status}) is the active one of series {run.series}"
    more = f"{len(between)} more come before it" if between else "it is next"
    return Reason("series", run.series, f"{which}, and {more}")


async def limit_reasons(fleet: Fleet, uses: Mapping[str, int], now: float, run: Run | None = None) -> list[Reason]:
    """The series and the limits for which a run waits, or a task."""
    stored = await read_stored_limits(fleet.store)
    series = None if run is None else await _series(fleet, stored, run)
    if series is not None:
        return [series]
    shortages = stored.book(now).shortages(uses)
    return [await _shortage(fleet, stored, shortage, uses[shortage.name], now) for shortage in shortages]


async def _shortage(fleet: Fleet, stored: StoredLimits, shortage: Shortage, amount: int, now: float) -> Reason:
    name, limit = shortage.name, shortage.limit
    if limit is None:
        return Reason("limit", name, str(UnknownLimit(name)))
    wanted = "" if amount == 1 else f" and the run needs {amount} of it"
    if shortage.at is not None and limit.rate is not None:
        number, period = limit.rate
        allows = f"limit {name!r} lets {number:,} begin within {format_duration(period)}{wanted}"
        return Reason("limit", name, f"{allows}: there is room {format_delay(shortage.at - now)}", shortage.at)
    if limit.size == 0:
        return Reason("limit", name, f"limit {name!r} is 0, so nothing that uses it begins")
    if amount > limit.most:
        never = f"limit {name!r} allows {limit.most:g}, and the run needs {amount:,}: nothing of it begins until the "
        return Reason("limit", name, f"{never}limit is raised. See: asterism limit set")
    holders = await _holders(fleet, stored, name)
    free = f"of limit {name!r} ({limit.size:,}) {shortage.free:,} is free{wanted}"
    return Reason("limit", name, f"{free}: {holders}" if holders else free)


async def _holders(fleet: Fleet, stored: StoredLimits, name: str) -> str:
    groups = [group for group in stored.groups if not group.waiting and name in uses_of(group.uses)]
    holders = await users(fleet.store, stored, groups, FEW_NAMED)
    texts = [_holder(holder) for holder in holders]
    more = sum(group.number for group in groups) - len(texts)
    held = ", ".join([*texts, *([f"{more} more"] if more > 0 else [])])
    if not held:
        return ""
    return f"{held} {'holds' if len(texts) + more == 1 else 'hold'} it"


def _holder(holder: Run | Hold) -> str:
    if isinstance(holder, Hold):
        return f"task {holder.task} of plan {holder.plan}"
    return f"run {holder.id} ({holder.workflow}{_task(holder)}) on {holder.device}"


def _task(run: Run) -> str:
    task = task_name(run)
    return "" if task is None else f", task {task}"


def _placement(placer: Placer, run: Run, sessions: Sequence[Session]) -> list[Reason]:
    """Why no device has taken a run that is offered to all."""
    choice = placer.choose(run)
    if choice.owner is not None:
        device = choice.owner.device
        return [Reason("turn", device, f"{device} can take it and has a free slot: it is about to start")]
    waited_for = [_busy(placer, device) for device in choice.busy]
    waited_for += [_resting(placer, device) for device in choice.resting]
    if waited_for:
        return waited_for[:MOST_NAMED]
    reasons = [_no_device(run, placer)]
    asked = [(name, text) for name, text in choice.refused.items() if name == run.pinned or _executes(placer, name)]
    asked = [(name, text) for name, text in asked if run.pinned in (None, name)]
    kinds = {name: "suspended" for name, session in placer.sessions.items() if session.suspended is not None}
    reasons += [Reason(kinds.get(name, "objection"), name, f"{name}: {text}") for name, text in asked[:MOST_NAMED]]
    return [*reasons, *list(_silent(placer, run, sessions))[:MOST_NAMED]]


def _executes(placer: Placer, device: str) -> bool:
    """Whether a device executes work: a process without slots only runs plans, such as the command that asks."""
    return device not in placer.sessions or bool(placer.sessions[device].slots)


def _no_device(run: Run, placer: Placer) -> Reason:
    count = sum(_executes(placer, name) for name in placer.sessions)
    if run.pinned is not None:
        how = "cannot" if run.pinned in placer.sessions else "is not joined"
        return Reason("no_device", run.pinned, f"only device {run.pinned} may take it, and it {how}")
    if not count:
        what = "device that executes work" if placer.sessions else "device"
        return Reason("no_device", "", f"no {what} is joined")
    absent = absent_plugin(run.work.needs, [session.can for session in placer.sessions.values()])
    if absent is not None:
        return Reason("no_device", "", absent)
    return Reason(
        "no_device",
        "",
        f"none of the {count} devices can take it" if count > 1 else "the only device cannot take it",
    )


def _busy(placer: Placer, device: str) -> Reason:
    slots = placer.sessions[device].slots
    taken = "its slot is taken" if slots == 1 else f"all of its {slots} slots are taken"
    return Reason("busy", device, f"{device} can take it, but {taken}")


def _resting(placer: Placer, device: str) -> Reason:
    why = placer.sessions[device].resting
    return Reason("resting", device, f"{device} is resting: it would hand it back because {why}")


def _silent(placer: Placer, run: Run, sessions: Sequence[Session]) -> Iterator[Reason]:
    for session in sessions:
        if (
            session.state in REACHABLE_STATES
            and session.device not in placer.sessions
            and (session.slots or session.device == run.pinned)
            and run.pinned in (None, session.device)
        ):
            text = f"{session.device} has not been heard of for {format_age(placer.now - session.beat_at)}"
            if session.state == ABROAD:
                text += f", since it is reached {session.host}: the run waits until that peer is met"
            yield Reason("silent", session.device, text, session.beat_at)


# -- times -------------------------------------------------------------------------------------------------------------


def _ago(now: float, at: float | None) -> str:
    return f"{format_age(now - at)} ago" if at is not None else "a while ago"


def _left(now: float, at: float | None) -> str:
    return f"{format_age(at - now)} left" if at is not None and at > now else "no time left"
