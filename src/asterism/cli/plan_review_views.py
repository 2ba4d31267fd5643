"""Versions, edit cycles and waiting edits of a plan, as lines for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text

from asterism.base.status_colours import DIM
from asterism.base.text import clean
from asterism.cli.cli_context import format_time
from asterism.cli.plan_views import plan_json
from asterism.core.errors import InvalidTask
from asterism.core.plan.edits import edit_from_json
from asterism.durable.plan_history import PastPlan, PlanVersion
from asterism.durable.rejected_edits import RejectedEdit

MOST_EDITS = 10
"""How many edits of a batch the terminal shows."""


def edit_lines(edits: Sequence[Mapping[str, Any]] | None) -> list[str]:
    """The edits of a batch in JSON, one line each."""
    if edits is None:
        return ["edits that were not kept: too long, or malformed"]
    lines = []
    for edit in edits[:MOST_EDITS]:
        try:
            lines.append(clean(str(edit_from_json(edit))))
        except InvalidTask:  # a mask has changed it
            lines.append(clean(str(edit.get("op", ""))).replace("_", " "))
    more = len(edits) - MOST_EDITS
    return lines if more <= 0 else [*lines, f"and {more:,} more edits"]


def history_lines(versions: Sequence[PlanVersion], rejected: Sequence[RejectedEdit]) -> Iterator[Text]:
    """All edits in the order of time."""
    for one in sorted([*versions, *rejected], key=lambda one: one.at):
        accepted = isinstance(one, PlanVersion)
        what = f"version {one.version}" if accepted else "rejected"
        if accepted and one is versions[0]:
            what += ": as stored" if one.version == 0 else ": the oldest one that is known"
        by = f"  by {clean(one.author)}" if one.author else ""
        why = f": {clean(one.reason)}" if one.reason else ""
        yield Text.assemble((f"{format_time(one.at)}  ", DIM), what, by, why)
        if accepted and one is versions[0]:
            continue
        for line in edit_lines(one.edits):
            yield Text(f"    {line}")
        if isinstance(one, RejectedEdit):
            for violation in one.violations:
                yield Text(f"    ! {clean(str(violation['message']))}")


def history_json(versions: Sequence[PlanVersion], rejected: Sequence[RejectedEdit]) -> dict[str, Any]:
    return {"versions": [one.to_json() for one in versions], "rejected": [one.to_json() for one in rejected]}


def past_json(past: PastPlan) -> dict[str, Any]:
    return {**plan_json(past.plan), "at": past.version.at, "position": str(past.version.position)}


def past_line(past: PastPlan) -> str:
    made = past.version
    by = f" by {clean(made.author)}" if made.author else ""
    why = f": {clean(made.reason)}" if made.reason else ""
    return f"\nVersion {made.version}, {format_time(made.at)}{by}{why}"
