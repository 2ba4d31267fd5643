"""``asterism plan cancel``: cancel a plan, and wait for its end.

The process that owns a plan cancels it itself. In a store that is open here, this process does so if no process owns
it: the plan was stopped, or its owner is dead or has sent no heartbeat for its takeover time. At a server, the server
does.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shlex
from collections.abc import Mapping, Sequence
from functools import partial

import click

from asterism.api.documents import Cancellation
from asterism.api.system import LocalSystem, System
from asterism.base.text import clean, join_names
from asterism.cli.cli_context import ask_again, note, print_json
from asterism.cli.interrupts import INTERRUPTED, work_until_interrupted
from asterism.cli.plan.plan_views import ENDED, resume_command
from asterism.core.errors import AlreadyRunning, AsterismError, PlanError
from asterism.core.run.session import Session
from asterism.durable import admin
from asterism.durable.durable_orchestrator import DurableOrchestrator
from asterism.durable.journal_store import OwnershipLost, read_head
from asterism.durable.stored_plans import TaskExplanation, stuck_teardowns
from asterism.fleet.device.membership import DeviceNameTaken
from asterism.fleet.fleet import Fleet
from asterism.orchestrator.result import Result
from asterism.store.store_errors import StoreUnavailable

TEARDOWN_INTERVAL = 1.0
"""Seconds between two looks whether a plan that is being cancelled goes on."""

ANSWER_TIMEOUT = 20.0
"""How long an answer of a server may wait for the end, in seconds."""

TEARDOWNS_WAIT = 75
"""The exit code if a plan stays ``cancelling``, because its teardowns wait for a device."""

MOST_NAMES = 5
"""How many tasks or devices a message names."""


async def cancel(system: System, name: str, reason: str, as_json: bool) -> int:
    """Cancel a plan, and wait until it has ended or Ctrl-C. Returns the exit code, 1 if a teardown failed, and
    75 if only another device could execute those that are left: then the plan stays as it is.

    Raises PlanError if the plan ends in another state."""
    before = await system.show_plan(name, tasks=False)
    already = before.state in ENDED
    await request_cancel(system, name, reason)
    if before.owner is not None:
        note(f"{before.owner} runs {name!r}, and was asked to cancel it.")
    elif not already:
        _tell_of_teardowns(await system.watch_cancel(name))
    again = f"Plan {name!r} is still being cancelled. Wait for its end with: {_cancel_command(system.url, name)}"
    try:
        end = await work_until_interrupted(cancelled_end(system, name), lambda: again)
    except TeardownsWait as waits:
        if as_json:
            print_json(await system.watch_cancel(name))
        note(str(waits))
        return TEARDOWNS_WAIT
    if end is None:
        note(again)
        if as_json:
            print_json(await system.watch_cancel(name))
        return INTERRUPTED
    if end.state != "cancelled":
        raise PlanError(f"plan {name!r} could not be cancelled: it is {end.state}")
    if before.owner is not None and (await system.show_plan(name, tasks=False)).epoch == before.epoch:
        note(f"{before.owner} cancelled it.")
    return _print_end(end, already, as_json)


async def request_cancel(system: System, name: str, reason: str = "") -> str | None:
    """Ask for the cancellation of a plan. Returns the process that runs it, if one does."""
    if isinstance(system, LocalSystem):
        await admin.cancel(system.fleet, name, reason)  # and this process ends it
    else:
        await system.cancel_plan(name, reason)
    return (await system.show_plan(name, tasks=False)).owner


def _print_end(end: Cancellation, already: bool, as_json: bool) -> int:
    """Print that a plan is cancelled. Returns the exit code."""
    if as_json:
        print_json(end)
    else:
        is_cancelled = "was already cancelled" if already else "is cancelled"
        click.echo(clean(f"Plan {end.name!r} {is_cancelled}{f', {end.cancelled}' if end.cancelled else ''}."))
    for task, why in end.failed_teardowns.items():
        note(f"Teardown {task!r} failed, and does not run again: {why}")
    return int(bool(end.failed_teardowns))


def _tell_of_teardowns(cancellation: Cancellation) -> None:
    """This command executes no task: say what the teardowns of a plan need that no process runs."""
    due = cancellation.teardowns
    if due:
        count = "a device of the fleet executes it" if len(due) == 1 else "devices of the fleet execute them"
        note(f"Teardowns come first: {join_names(due, MOST_NAMES)}; {count}.")


async def cancelled_end(system: System, name: str) -> Cancellation:
    """What has become of a plan that is cancelled. Raises TeardownsWait."""
    if isinstance(system, LocalSystem):
        await end_cancelled(system.fleet, name)
        return await system.watch_cancel(name)
    while True:
        cancellation = await ask_again(partial(system.watch_cancel, name, ANSWER_TIMEOUT))
        if cancellation.waiting_teardowns:
            by = cancellation.owner or "The server"
            action = f"{by} goes on with it when a device that can has joined."
            raise TeardownsWait(name, cancellation.waiting_teardowns, action)
        if cancellation.ended:
            return cancellation


class TeardownsWait(AsterismError):
    """A plan is still being cancelled, because no device can execute the teardowns that are left. ``reasons`` has why,
    by task; ``action`` is a sentence with what to do."""

    def __init__(self, name: str, reasons: Mapping[str, str], action: str) -> None:
        teardowns = "; ".join(f"{task}: {why}" for task, why in itertools.islice(reasons.items(), MOST_NAMES))
        super().__init__(
            f"Plan {name!r} is still being cancelled: no device can execute its teardowns ({teardowns}). {action}"
        )


def _teardowns_wait(fleet: Fleet, name: str, stuck: Sequence[TaskExplanation], owner: Session | None) -> TeardownsWait:
    pinned = sorted({reason.name for why in stuck for reason in why.reasons if reason.kind == "no_device"} - {""})
    if owner is not None:
        action = f"{owner.device} goes on with it when a device that can has joined."
    elif pinned:
        action = f"When {join_names(pinned, MOST_NAMES)} can, finish it with: {_cancel_command(fleet.store.url, name)}"
    else:
        action = f"Finish it here with: {resume_command(fleet.store.url, name)} --local"
    return TeardownsWait(name, {why.task: "; ".join(reason.text for reason in why.reasons) for why in stuck}, action)


async def end_cancelled(fleet: Fleet, name: str) -> Result:
    """The result of a plan that its owner cancels, or this process if it has none. Executes no task here. Raises
    TeardownsWait, with the plan as it is, when it goes on only if another device joins."""
    ending = asyncio.create_task(_end_cancelled(fleet, name))
    try:
        while not (await asyncio.wait([ending], timeout=TEARDOWN_INTERVAL))[0]:
            with contextlib.suppress(StoreUnavailable):
                if stuck := await stuck_teardowns(fleet, name):
                    break
        else:
            return await ending
    finally:
        ending.cancel()
        await asyncio.gather(ending, return_exceptions=True)
    head, _ = await read_head(fleet.store, name)
    raise _teardowns_wait(fleet, name, stuck, await admin.live_owner(fleet.store, head))


async def _end_cancelled(fleet: Fleet, name: str) -> Result:
    orchestrator = DurableOrchestrator(fleet)
    # the death of an owner on this machine is known at once; elsewhere, when its heartbeat has timed out
    with contextlib.suppress(AlreadyRunning, DeviceNameTaken, OwnershipLost, StoreUnavailable):
        return await orchestrator.run_stored(name)
    return await orchestrator.standby(name)


def _cancel_command(url: str, name: str) -> str:
    return shlex.join(["asterism", "plan", "cancel", name, "--store", url])
