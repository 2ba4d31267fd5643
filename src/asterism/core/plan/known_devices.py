"""Devices that an edit may name: those that there are or were, and those that may still join.

A plan file may name devices to come. An edit is made while the plan runs, by somebody who sees the devices: an unknown
name is a mistake, and its task would wait in vain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from asterism.core.errors import Violation
from asterism.core.plan.edits import AddTask, EditBatch, UpdateTask
from asterism.core.plan.graph import Graph
from asterism.core.plan.task import Task

MOST_NAMES = 20
"""How many names a message lists."""


@dataclass(frozen=True, slots=True)
class KnownDevices:
    """``may_join`` says whether a device of a name may still join, such as one that was invited."""

    names: frozenset[str]
    may_join: Callable[[str], bool] = lambda name: False


def device_violations(batch: EditBatch, plan: Graph, known: KnownDevices) -> list[Violation]:
    """The edits that name a device which was never seen, which cannot join, and which no task of the plan names."""
    unknown = [(index, name) for index, name in _named(batch) if name not in known.names and not known.may_join(name)]
    if not unknown:
        return []
    planned = {node.task.device for node in plan.nodes.values()}
    rejected = [(index, _message(name, known.names)) for index, name in unknown if name not in planned]
    return [Violation(index, "unknown_device", message) for index, message in rejected]


def names_devices(batch: EditBatch) -> bool:
    """Whether an edit of the batch names a device: only then the devices have to be known."""
    return any(True for _ in _named(batch))


def _named(batch: EditBatch) -> Iterator[tuple[int, str]]:
    """The devices that edits name, each with the index of its edit. A placeholder is no name yet."""
    for index, edit in enumerate(batch.edits):
        name = None
        if isinstance(edit, AddTask) and isinstance(edit.task, Task):  # ``apply`` rejects any other
            name = edit.task.device
        elif isinstance(edit, UpdateTask):
            name = edit.changes.get("device")
        if isinstance(name, str) and "{" not in name:
            yield index, name


def _message(name: str, known: frozenset[str]) -> str:
    shown = ", ".join(sorted(known)[:MOST_NAMES]) or "none"
    more = f" and {len(known) - MOST_NAMES} more" if len(known) > MOST_NAMES else ""
    return f"no device {name!r} has joined, and none was invited; the devices are: {shown}{more}"
