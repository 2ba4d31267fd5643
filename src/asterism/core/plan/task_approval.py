"""The approval that a task needs before it starts: ``approval={"by": "release-managers", "timeout": 14400}``.

When its dependencies hold, such a task *waits* like one that waits for the world (awaited.py): it has no slot and no
device, and is listed with the edits that wait for a person. ``Graph.decide`` records what the person decided. An
approved task is queued; a task that is not approved fails, or with ``else: skip`` is cancelled as not needed.

An approval is for the task as it is. An edit that changes the task makes it ask again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

from asterism.core.errors import AsterismError
from asterism.core.record import Meta, Name, Record, Seconds, expected, field

APPROVED = "approved"
"""The decision about a task that may start; any other says why it may not."""

FAIL, SKIP = "fail", "skip"

EXCLUDED = ("foreach", "wait_for", "revocable")
"""The fields of tasks that do not start on a device once, when they are ready."""


GROUP = "group:"
"""How a pattern begins that is for groups only."""


class Approval(Record, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A person decides whether the task starts."""

    by: Annotated[
        Annotated[Name | list[Name], expected("a name or a list of names")] | None,
        Meta(description="the people or groups who may decide, or patterns of them; default: everybody"),
    ] = None
    timeout: Annotated[Seconds | None, Meta(description="it is not approved after so long; default: 1d")] = None
    otherwise: Annotated[
        Literal["fail", "skip"] | None, Meta(description="what a task does that is not approved; default: fail")
    ] = field(default=None, name="else")


class NotApproved(AsterismError):
    """A person refused the start of a task, or nobody approved it in time."""


def approvers(approval: Mapping[str, Any]) -> tuple[str, ...]:
    """Patterns of the names of the people who may decide; empty for everybody."""
    by = approval.get("by", ())
    return (by,) if isinstance(by, str) else tuple(by)


def may_decide(by: Collection[str], who: str, groups: Collection[str]) -> bool:
    """Whether a person is among those who may decide. A pattern ``group:NAME`` is for groups only; any other is for
    names of persons and of groups."""
    names = {*groups, *(f"{GROUP}{group}" for group in groups), *([] if who.startswith(GROUP) else [who])}
    return not by or any(fnmatchcase(name, pattern) for name in names for pattern in by)


def approval_text(approval: Mapping[str, Any]) -> str:
    """What a task waits for, such as ``for approval by release-managers``."""
    by = " or ".join(approvers(approval))
    return f"for approval by {by}" if by else "for approval"
