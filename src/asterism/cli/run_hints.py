"""Hints for a run that does not run: the command that removes each reason that a person can remove."""

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
    """A sentence with a command for each reason that has one."""
    kinds = {reason.kind for reason in why.reasons}
    lines = []
    if "pause" in kinds:
        lines.append(f"Resume it with: asterism runs resume {short(run.id)}")
    for name in [reason.name for reason in why.reasons if reason.kind == "suspended"]:
        lines.append(f"Look for the fault on {name}: it tries a run from time to time, and recovers when one succeeds.")
    lines += [
        f"Run it here, with the other runs of the peer: asterism peer remove {shlex.quote(one.name)} --adopt"
        for one in why.reasons
        if one.kind == "removed"
    ]
    there = run.pinned is not None and kinds & {"objection", "suspended"}  # the only device that may run it
    if "no_device" in kinds and not there:
        flow = await fleet.workflows.get(run.workflow, run.version)
        name = shlex.quote(run.pinned) if run.pinned is not None else "NAME"
        can = "".join(f" --can {shlex.quote(need)}" for need in sorted(flow.needs))
        lines.append(f"On any machine that reaches the store, start a capable device: asterism device join {name}{can}")
        called = [peer.name for peer in await PeerRegistry(fleet.store).all() if peer.url is not None]
        if called:
            peer = shlex.quote(called[0]) if len(called) == 1 else "NAME"
            lines.append(f"Or offer it to the devices of a peer: asterism peer sync {peer}")
    if "unwatched" in kinds:
        lines.append("Start a coordinator: asterism monitor, or any device: asterism device join NAME")
    return lines


def explanation_lines(why: RunExplanation, hints: Sequence[str], width: int | None) -> Iterator[Text]:
    """Why a run does not run, and the hints."""
    yield Text(f"Run {why.run_id} is {why.status}:")
    for reason in why.reasons:
        yield from wrapped(reason.text, width, "  ")
    for hint in hints:
        yield from wrapped(hint, width)
