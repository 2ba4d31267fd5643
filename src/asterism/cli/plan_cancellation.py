"""A constellation that is cancelled from the command line, whoever runs it: asked for, waited for, told in the end.

An owner that lives ends it itself. This process takes it up only if nobody has it: it was left, its owner is known to
be dead, or was not heard of for so long that anybody may take over.
"""

from __future__ import annotations

import contextlib
import shlex

import click

from asterism.base.safe_text import clean
from asterism.cli.cli_context import note, tell_json
from asterism.cli.interrupts import INTERRUPTED, work_until_interrupted
from asterism.cli.stored_plans import known
from asterism.core.errors import AlreadyRunning, PlanError
from asterism.core.plan.status import ConstellationState
from asterism.durable import admin
from asterism.durable.durable_orchestrator import DurableOrchestrator
from asterism.durable.journal_store import OwnershipLost
from asterism.fleet.device.membership import DeviceNameTaken
from asterism.fleet.fleet import Fleet
from asterism.orchestrator.result import Result
from asterism.store.store_errors import StoreUnavailable


async def cancel(fleet: Fleet, name: str, reason: str, as_json: bool) -> int:
    """Until it has ended, or nobody waits any more. Returns the exit code. Raises PlanError if it ended otherwise."""
    found = await known(fleet, name)
    await admin.cancel(fleet, name, reason)
    words = await admin.cancel_reason(fleet.store, name)
    owner = None if found.ended else await admin.live_owner(fleet.store, found)
    if owner is not None:
        note(f"{name} is run by {owner.device}, which is asked to cancel it.")
    result = await work_until_interrupted(_ended(fleet, name), lambda: _left(fleet, name))
    if result is None:
        note(_left(fleet, name))
    elif result.state is not ConstellationState.CANCELLED:
        raise PlanError(f"constellation {name!r} is {result.state}: it could not be cancelled any more")
    if as_json:
        state = "cancelling" if result is None else str(result.state)
        tell_json({"name": name, "state": state, "cancelled": words})
    elif result is not None:
        click.echo(clean(f"{name} is cancelled{' already' if found.ended else ''}{f', {words}' if words else ''}"))
    return INTERRUPTED if result is None else 0


async def _ended(fleet: Fleet, name: str) -> Result:
    """Ended by whoever has it; by this process if nobody does. It does none of the tasks."""
    orchestrator = DurableOrchestrator(fleet)
    # of an owner that died on this machine it is known at once; of all others when their time is up
    with contextlib.suppress(AlreadyRunning, DeviceNameTaken, OwnershipLost, StoreUnavailable):
        return await orchestrator.run_stored(name)
    return await orchestrator.standby(name)


def _left(fleet: Fleet, name: str) -> str:
    command = shlex.join(["asterism", "cancel", name, "--store", fleet.store.url])
    return f"{name} is still to be cancelled: by whoever runs it, or resumes it; {command} waits again"
