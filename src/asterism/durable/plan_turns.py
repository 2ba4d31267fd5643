"""Turns of the plans of one file: how many of them run at a time, if their file has ``overlap``.

If that has a key, they are the plans with this key, of whatever file.

A register for each such file or key names the plans that have their turn (``running``) and those that wait for it
(``waiting``, oldest first). A plan is written there in the commit that stores it. It gets its turn in a commit that
expects this register, so of two plans one gets it. A process that resumes a plan in its turn writes the register too:
who has just judged that the turn is over looks again.

Nothing has to be given back, and nothing leaks: whether a plan still has its turn follows from whether it has ended. A
plan that waits, and with which no process waits, lets the others pass, and so does one that waits for another plan too:
that of the tick before may be behind it. One that has begun keeps its turn for ``TURN_TIMEOUT`` after its process was
last heard of. The commit that takes it away adds a record to the journal of the plan: a process that was only cut off
finds that it has lost the plan. If the plan is resumed later, it waits again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from asterism.base.clock import new_id
from asterism.core.errors import PlanError, PlanOverlaps
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.journal import UnreadableJournal
from asterism.core.plan.status import ConstellationState
from asterism.core.run.session import PLAN
from asterism.durable.journal_store import UnknownConstellation, load, read_head
from asterism.durable.plan_summaries import live_owner, live_sessions
from asterism.durable.runner_registers import is_to_be_run, plan_schedules, submit_again
from asterism.fleet.fleet import Fleet
from asterism.store.optimistic_update import retry_on_conflict
from asterism.store.protocol import PutRegister, Store, Write

TURNS = "plan-turns/"
"""The prefix of the keys of registers, one for each file."""

TURN = "turn"
"""The term of a plan with its file, what it does if others have not ended, and how many may run at once."""

TURN_TIMEOUT = 3600.0
"""Seconds that a plan keeps its turn after the last heartbeat of the process that ran it, if no plan runner is to run
it."""

MOST_WAITING = 1_000
"""How many plans of one file wait for their turn at most."""


class _Turns(NamedTuple):
    key: str
    revision: int | None
    running: Sequence[str]
    waiting: Sequence[str]

    def put(self, running: Sequence[str], waiting: Sequence[str]) -> PutRegister:
        return PutRegister(self.key, {"running": list(running), "waiting": list(waiting)}, self.revision)


async def _read(store: Store, file: str) -> _Turns:
    key = f"{TURNS}{quote(file, safe='')}"
    register = await store.register(key)
    if register is None:
        return _Turns(key, None, (), ())
    return _Turns(key, register.revision, register.value["running"], register.value["waiting"])


def turn_terms(plan: Constellation) -> dict[str, Any]:
    """The terms of a plan whose file has ``overlap``."""
    if plan.overlap is None:
        return {}
    policy, parallel, *key = plan.overlap
    return {TURN: [f"key {key[0]}" if key else plan.source or plan.id, policy, parallel]}


async def entering(store: Store, name: str, terms: Mapping[str, Any]) -> list[Write]:
    """The write with which a new plan waits for its turn; none if it needs none. Raises PlanOverlaps."""
    if TURN not in terms:
        return []
    file, overlap, parallel = terms[TURN]
    turns = await _read(store, file)
    waiting = turns.waiting
    if overlap == "skip":
        open_plans = await _holders(store, [*turns.running, *waiting])
        if len(open_plans) >= parallel:
            raise PlanOverlaps(
                f"no plan of {file!r} is started: plan {open_plans[-1]!r} has not ended, "
                "and the file says `overlap: skip`"
            )
    if len(waiting) >= MOST_WAITING and len(waiting := await _open(store, waiting)) >= MOST_WAITING:
        raise PlanOverlaps(f"no plan of {file!r} is started: {MOST_WAITING} plans wait for their turn, and no more may")
    # a plan of this name may have been removed
    running, waiting = ([other for other in names if other != name] for names in (turns.running, waiting))
    return [turns.put(running, [*waiting, name])]


AWAITED = "after_plan"
"""The term of a plan that names the plan whose success it waits for, before a plan runner runs it."""


async def awaited_plan(store: Store, name: str) -> str | None:
    """The plan whose success a stored plan waits for; None if it may run, also to be cancelled. A plan that was never
    created, or was removed since, holds nothing up."""
    with contextlib.suppress(UnknownConstellation, UnreadableJournal):
        head, _ = await read_head(store, name)
        awaited = head.terms.get(AWAITED)
        if awaited is None or head.cancelling:
            return None
        if (await read_head(store, awaited))[0].state != ConstellationState.COMPLETED:
            return str(awaited)
    return None


async def plan_ahead(store: Store, name: str) -> str | None:
    """The plan of the same file or schedule for whose end a stored plan waits; None if it may run, also to be
    cancelled."""
    return await _turn(store, name, None) or await _ahead_in_schedule(store, name)


async def _ahead_in_schedule(store: Store, name: str) -> str | None:
    """As the plan runner decides it (plan_runner.py)."""
    for schedule in await plan_schedules(store):
        if name in schedule.open and schedule.overlap != "allow":
            earlier = [
                other for other in schedule.open[: schedule.open.index(name)] if not await _has_ended(store, other)
            ]
            if len(earlier) >= schedule.parallel:
                return earlier[0]
    return None


async def take_turn(fleet: Fleet, name: str) -> str | None:
    """Give a stored plan its turn among those of its file, if it may have it; if it replaces earlier plans, these are
    cancelled. Returns the plan for whose end it waits; None if it has its turn, or needs none."""
    return await retry_on_conflict(lambda: _turn(fleet.store, name, fleet))


async def _turn(store: Store, name: str, fleet: Fleet | None) -> str | None:
    """With ``fleet``, the turn is taken."""
    try:
        head, _ = await read_head(store, name)
    except (UnknownConstellation, UnreadableJournal):  # its runner reports that
        return None
    if TURN not in head.terms or head.ended or head.cancelling:
        return None
    file, overlap, parallel = head.terms[TURN]
    turns = await _read(store, file)
    if name in turns.running:
        if fleet is not None and await live_owner(store, head) is None:
            await store.commit([turns.put(turns.running, turns.waiting)])
        return None
    holders = await _holders(store, turns.running)
    is_new = name in turns.waiting  # else it was reopened: it waits, and replaces none that may be newer
    position = turns.waiting.index(name) if is_new else len(turns.waiting)
    earlier = turns.waiting[:position]
    if overlap == "replace" and is_new:
        ahead = await _open(store, [*turns.running, *earlier])
        if fleet is not None:
            for other in ahead[: max(0, len(ahead) - parallel + 1)]:
                await _replace(fleet, other, name)
    else:
        ahead = [*holders, *await _next(store, earlier, parallel - len(holders))]
    if len(ahead) >= parallel:
        if fleet is not None and not is_new and overlap != "replace":  # or newer ones would always be ahead
            await store.commit([turns.put(turns.running, [*turns.waiting, name])])
        return ahead[0]
    if fleet is not None:
        waiting = [*await _open(store, earlier), *turns.waiting[position + 1 :]]
        fences = [write for other in turns.running if other not in holders for write in await _fence(fleet, other)]
        await store.commit([turns.put([*holders, name], waiting), *fences])
    return None


async def _fence(fleet: Fleet, name: str) -> list[Write]:
    """The writes after which a process that still believes to run a plan has lost it; none if it has ended."""
    with contextlib.suppress(UnknownConstellation, UnreadableJournal):
        stored = await load(fleet.store, name)
        if not stored.head.ended:
            head = stored.head.changed(epoch=stored.head.epoch + 1, owner=None)  # as another owner would
            mark = new_id(fleet.store.clock(), fleet.chance)
            return stored.next_record(head, [], mark, [stored.summary(head, records=1)])
    return []


async def _has_ended(store: Store, name: str) -> bool:
    try:
        return (await read_head(store, name))[0].ended
    except UnknownConstellation:  # it was removed
        return True
    except UnreadableJournal:  # as far as is known
        return await _is_abandoned(store, name)


async def _open(store: Store, names: Sequence[str]) -> list[str]:
    """Those of these plans that have not ended."""
    return [name for name in names if not await _has_ended(store, name)]


async def _next(store: Store, names: Sequence[str], most: int) -> list[str]:
    """The first of the waiting plans that go on when they have their turn. All of them ask again and again: nobody
    reads more of the others than it needs."""
    found: list[str] = []
    for name in names:
        if len(found) >= most:
            break
        if not await _has_ended(store, name) and await _may_go_on(store, name):
            found.append(name)
    return found


async def _holders(store: Store, running: Sequence[str]) -> list[str]:
    """The plans that still have their turn."""
    return [name for name in await _open(store, running) if not await _is_abandoned(store, name)]


async def _is_abandoned(store: Store, name: str) -> bool:
    """Whether no process has run a plan for ``TURN_TIMEOUT``, and no plan runner is to run it."""
    device, began, since = None, 0.0, store.clock() - TURN_TIMEOUT
    try:
        head, _ = await read_head(store, name)
        device, began = head.device, head.created_at
        if began >= since or await is_to_be_run(store, name):
            return False
    except (UnknownConstellation, UnreadableJournal):
        pass  # no plan runner can run it
    sessions = await store.sessions(ended=True, device=device)
    return all(session.beat_at < since for session in sessions if session.profile.get(PLAN) == name)


async def _may_go_on(store: Store, name: str) -> bool:
    """Whether a process is to run a plan as soon as it has its turn."""
    try:
        await read_head(store, name)
    except (UnknownConstellation, UnreadableJournal):
        return False
    if await awaited_plan(store, name) is not None or await _ahead_in_schedule(store, name) is not None:
        return False
    if await is_to_be_run(store, name):
        return True
    return any(session.profile.get(PLAN) == name for session in (await live_sessions(store)).values())


async def _replace(fleet: Fleet, name: str, by: str) -> None:
    """Cancel a plan that ``by`` replaces. If no process runs it, or its process dies, a plan runner ends it."""
    from asterism.durable.plan_actor import cancel_plan

    with contextlib.suppress(PlanError, UnreadableJournal):  # it has ended, or cannot be read
        await cancel_plan(fleet, name, f"replaced by plan {by} of the same file or key")
        head, _ = await read_head(fleet.store, name)
        if not head.ended and await live_owner(fleet.store, head) is None:
            await submit_again(fleet, name)
