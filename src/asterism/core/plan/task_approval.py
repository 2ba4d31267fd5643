"""The approval that a task needs before it starts: ``approval={"by": "release-managers", "timeout": 14400}``.

When its dependencies hold, such a task *waits* like one that waits for the world (awaited.py): it has no slot and no
device, and is listed with the edits that wait for a person. ``Graph.decide`` records what the person decided. An
approved task is queued; a task that is not approved fails, or with ``else: skip`` is cancelled as not needed.

An approval is for the task as it is. An edit that changes the task makes it ask again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from asterism.core.errors import AsterismError

APPROVED = "approved"
"""The decision about a task that may start; any other says why it may not."""

FAIL, SKIP = "fail", "skip"

EXCLUDED = ("foreach", "wait_for", "revocable")
"""The fields of tasks that do not start on a device once, when they are ready."""


GROUP = "group:"
"""How a pattern begins that is for groups only."""


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


def approval_problems(approval: Mapping[str, Any]) -> Iterator[str]:
    """The problems of a field ``approval``."""
    unknown = sorted(map(str, set(approval) - {"by", "timeout", "else"}))
    if unknown:
        yield f"approval has no field {', '.join(unknown)}; its fields are by, timeout, else"
    by = approval.get("by", ())
    if not isinstance(by, str | list | tuple) or not all(isinstance(name, str) and name for name in by) or by == "":
        yield f"by of approval is a name, a pattern or a list of them, not {by!r}"
    timeout = approval.get("timeout", 1)
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < float("inf"):
        yield f"timeout of approval is a number of seconds above 0, not {timeout!r}"
    if approval.get("else", FAIL) not in (FAIL, SKIP):
        yield f"else of approval is {FAIL} or {SKIP}, not {approval['else']!r}"
