"""Waiting for runs to end, and saying what became of what was asked of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from asterism.base.durations import format_age, format_delay
from asterism.base.text import clean
from asterism.cli.cli_context import short
from asterism.cli.fleet_json import took
from asterism.core.run.run import COMPLETED, OWNED, Run
from asterism.fleet.fleet import Fleet


async def ends(fleet: Fleet, runs: Sequence[Run]) -> AsyncIterator[tuple[Run, str]]:
    """Each run as it ends, with a sentence about it."""
    waiting = [asyncio.create_task(fleet.wait(run.id)) for run in runs]
    try:
        for one in asyncio.as_completed(waiting):
            run = await one
            yield run, sentence(run)
    finally:
        for task in waiting:
            task.cancel()


def sentence(run: Run) -> str:
    """How a run ended."""
    lasted = took(run)
    after = f" after {format_age(lasted)}" if lasted is not None else ""
    on = f" on {run.device}" if run.device is not None else ""
    if run.status is COMPLETED:
        return clean(f"{short(run.id)} completed{on}{after}")
    cancelled = (run.error or "").partition(":")[0].removesuffix(" (cancel)")
    word = cancelled if run.cancelled else f"failed{on}{after}: {run.error}"
    return clean(f"{short(run.id)} {word}")


def answer(before: Run, after: Run) -> str:
    """What became of what was asked of a run."""
    name = short(after.id)
    if after.id != before.id:
        return f"{after.id} is a retry of {short(before.id)}: {after.reported_status}"
    if after is before or after.revision == before.revision:
        return f"{name} is as it was: {after.reported_status}"
    if after.ended:
        return clean(f"{name} {after.error or after.status}")
    if after.paused is not None:
        return clean(f"{name} is paused {after.paused}")
    if after.wish is not None:
        return clean(f"{name}: {after.device} was asked to {after.wish} it")
    return clean(f"{name}{_resumed(after)}")


def _resumed(run: Run) -> str:
    """What it means that a run is not to pause any more. Whether its owner has heard of the pause is not known here,
    and who has begun to stop does not turn back: it hands the run back, and nothing keeps it any more."""
    if run.status in OWNED:
        return (
            f": the wish to pause it is withdrawn; {run.device} goes on with it, or hands it back to be offered again "
            "if it has begun to stop"
        )
    if run.held:
        return f" is not paused any more; it waits for its turn in series {run.series}"
    delay = run.not_before - run.story[-1].at
    soon = f" {format_delay(delay)}" if delay > 0 else ""
    return f" is offered again{soon}, to {run.pinned if run.pinned is not None else 'any device that can do it'}"
