"""Moves a run to another device: assigns it there, after its owner has stopped work on it if that is asked for.

A move is one assignment, with a new epoch: the old owner is fenced. Work under way is stopped as for a pause, whose
reason names the move. So if the mover dies meanwhile, the run is paused, and its record says what for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asterism.base.clock import Looks
from asterism.core.errors import AsterismError, RunRefused
from asterism.core.run import transitions
from asterism.core.run.placement import Placer
from asterism.core.run.run import PROCESSING, Run
from asterism.core.run.session import Session
from asterism.core.run.workflow import Workflow
from asterism.fleet.fleet import UnknownDevice, time_to_answer

if TYPE_CHECKING:
    from asterism.fleet.fleet import Fleet

STOP_TIMEOUT = 120.0
"""How long to wait until a device has stopped a run that is to be moved, in seconds. A device that is lost is noticed
earlier. The run stays paused then, and its record says what for."""

STOP_INTERVAL = 0.2
"""How often to look whether a device has stopped a run that is to be moved, in seconds."""


async def move_run(fleet: Fleet, run_id: str, device: str, *, stop: bool, by: str) -> Run:
    """See ``Fleet.move``."""
    run = await fleet.ledger.read(run_id)
    if run.status is not PROCESSING or run.device == device:
        return await _assign_to(fleet, run, device, by)
    if not stop:
        raise RunRefused(run_id, f"{run.device} works on it; with --stop it is stopped there first", run.story)
    await _target(fleet, run, device)  # before anything is stopped
    reason = f"to move it to {device}"
    await fleet.pause(run_id, reason)
    async for last in Looks(fleet.clock, interval=STOP_INTERVAL, timeout=STOP_TIMEOUT):
        run = await fleet.ledger.read(run_id)
        if run.stop_request != "pause":
            break
        if last:
            raise RunRefused(run_id, f"{run.device} was asked to stop it, and has not done so yet", run.story)
    paused_for = f"by {fleet.by}: {reason}"
    try:
        return await _assign_to(fleet, run, device, by, paused_for)
    except AsterismError:  # it was not moved, so it continues where it can; not if somebody else has paused it
        if (await fleet.ledger.read(run_id)).paused == paused_for:
            await fleet.resume(run_id)
        raise


async def _assign_to(fleet: Fleet, run: Run, device: str, by: str, paused_for: str | None = None) -> Run:
    placer, session = await _target(fleet, run, device)
    settings = await fleet.settings()

    def step(run: Run, flow: Workflow) -> Run:
        return transitions.move(
            run,
            session.owner,
            flow,
            by=by,
            now=fleet.store.clock(),
            scores={device: round(sum(placer.score_parts(session, flow).values()), 2)},
            within=time_to_answer(placer, session.owner, settings),
            paused_for=paused_for,
        )

    return await fleet.ledger.change(run, step, put=fleet.ledger.put_own)


async def _target(fleet: Fleet, run: Run, device: str) -> tuple[Placer, Session]:
    """The session of a device that can take a run now, and the placer that knows it. Raises UnknownDevice, and
    AsterismError with the reason why it cannot."""
    placer = await fleet.placer(fresh=True)
    session = placer.sessions.get(device)
    if session is None:
        raise UnknownDevice(f"no device {device!r} is joined, or it is silent; list them with: asterism device list")
    flow = await fleet.workflows.get(run.workflow, run.version)
    refusal = placer.refusal_reason(session, run.changed(avoid=(), declined={}), flow)
    if refusal is None and session.room <= 0 and run.device != device:
        refusal = f"it is full, with {session.used} run{'s' if session.used != 1 else ''}"
    if refusal is not None and not run.ended:
        raise AsterismError(f"run {run.id} cannot be moved to {device}: {refusal}")
    return placer, session
