"""A plan file that becomes a constellation in a store, and what there is to say if it is there already."""

from __future__ import annotations

from typing import Any

import click

from asterism.base.text import some
from asterism.cli.plan_follower import Followed, resume_command
from asterism.core.plan.constellation import Constellation
from asterism.durable.admin import initial_plan
from asterism.durable.journal_store import ENDED, ConstellationExists, load
from asterism.fleet.fleet import Fleet
from asterism.orchestrator.result import Result

MOST_NAMES = 5


async def begin(orchestrator: Followed, plan: Constellation) -> Result:
    """Keep a plan, and run it. If its name is taken, everything is left as it is, and whoever asked is told what there
    is."""
    try:
        return await orchestrator.run(plan)
    except ConstellationExists:
        raise click.ClickException(await _existing(orchestrator.fleet, plan)) from None


async def _existing(fleet: Fleet, plan: Constellation) -> str:
    kept = await load(fleet.store, plan.id)
    first = await initial_plan(fleet.store, plan.id)
    if first is None:
        compared = "It goes on as it is kept, whatever the plan file says now"
    elif changes := differences(first, plan):
        compared = f"The plan file differs from what it was started with: {changes}"
    else:
        compared = "The plan file is what it was started with"
    resumed = "says how it ended" if kept.plan.state in ENDED else "goes on with it as it is kept"
    edited = f", version {kept.plan.version}" if kept.plan.version else ""
    return (
        f"there is a constellation {plan.id!r} in {fleet.store.url} already ({kept.plan.state}{edited}). {compared}.\n"
        f"`{resume_command(fleet, plan.id)}` {resumed}; another --id starts anew."
    )


def differences(old: Constellation, new: Constellation) -> str:
    """Which tasks differ, in words; nothing if none does."""
    before, after = _outline(old), _outline(new)
    told = [
        (sorted(after.keys() - before.keys()), "new"),
        (sorted(before.keys() - after.keys()), "gone"),
        (sorted(name for name in before.keys() & after.keys() if before[name] != after[name]), "changed"),
    ]
    return "; ".join(f"{some(names, MOST_NAMES)} {word}" for names, word in told if names)


def _outline(plan: Constellation) -> dict[str, Any]:
    """Each task with what it waits for."""
    return {
        node.id: (node.task.to_json(), {source: edge.to_json() for source, edge in node.parents.items()})
        for node in plan.nodes.values()
    }
