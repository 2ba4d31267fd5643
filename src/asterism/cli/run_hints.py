"""What to do about what holds a run: a command to type, for each reason that a person can do something about."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from rich.text import Text

from asterism.cli.cli_context import short
from asterism.cli.screen import wrapped
from asterism.core.run.run import Run
from asterism.fleet.fleet import Fleet
from asterism.fleet.run_explanation import RunExplanation
from asterism.peers.registry import PeerRegistry


async def hints(fleet: Fleet, run: Run, why: RunExplanation) -> list[str]:
    kinds = {reason.kind for reason in why.reasons}
    told = []
    if "pause" in kinds:
        told.append(f"Let it go on with: asterism runs resume {short(run.id)}")
    for name in [reason.name for reason in why.reasons if reason.kind == "suspended"]:
        told.append(f"See what is wrong with {name}; it tries one run from time to time, and goes on if that succeeds.")
    told += [
        f"Run it here, and all else that the peer left, with: asterism peer remove {shlex.quote(one.name)} --adopt"
        for one in why.reasons
        if one.kind == "removed"
    ]
    there = run.pinned is not None and kinds & {"objection", "suspended"}  # the one device that it is for
    if "no_device" in kinds and not there:
        flow = await fleet.workflows.get(run.workflow, run.version)
        name = shlex.quote(run.pinned) if run.pinned is not None else "NAME"
        can = "".join(f" --can {shlex.quote(need)}" for need in sorted(flow.needs))
        told.append(f"Start one that can, on any machine that reaches the store: asterism device join {name}{can}")
        called = [peer.name for peer in await PeerRegistry(fleet.store).all() if peer.url is not None]
        if called:
            peer = shlex.quote(called[0]) if len(called) == 1 else "NAME"
            told.append(f"Or let a device of a peer have it, if one there can: asterism peer sync {peer}")
    if "unwatched" in kinds:
        told.append("Let somebody watch: asterism monitor, or any asterism device join NAME")
    return told


def why_lines(why: RunExplanation, hints: Sequence[str], width: int | None) -> Iterator[Text]:
    """The answer for people, and what to do about it."""
    yield Text(f"Run {why.run_id} is {why.status}:")
    for reason in why.reasons:
        yield from wrapped(reason.text, width, "  ")
    for hint in hints:
        yield from wrapped(hint, width)
