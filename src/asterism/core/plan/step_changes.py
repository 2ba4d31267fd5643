"""What each step of a journal changed, as data: for those who follow a plan, and for time travel.

``replay_step`` replays one recorded step (``journal.py``) and returns its changes in order. The same step on the same
plan always returns the same changes, so a reader that continues in the middle misses nothing and gets nothing twice.

============  ========================================================================================================
kind          data
============  ========================================================================================================
``task``      ``task``, ``what`` happened, ``why``, and the progress of the task after the step (``task_progress``)
``edit``      ``version``, ``author``, ``reason``, ``edits``, ``triggers``, ``undoes``, ``diff`` (``structure_diff``)
``cycle``     ``cycle`` (its id), ``what`` (opened, rejected, closed), ``tasks``, ``stuck``; at the end ``outcome``,
              ``cost``
``approval``  ``approval`` (its number), ``what`` (edit or start waits, approved, refused, expired), ``why``, ``author``
              of the edit, ``reason``
``plan``      ``what`` happened, ``why``, and the ``state`` of the plan after the step
============  ========================================================================================================

A step is one change for each task that it concerns. Tasks that an edit adds, changes or removes are in its ``diff``.
The tasks below a task under review are held: from its end with ``review`` until the cycle that names it is closed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from asterism.core.errors import error_text
from asterism.core.history import step_time
from asterism.core.json_values import JsonObject
from asterism.core.plan.apply import Applied
from asterism.core.plan.assignment_lock import AssignmentLock, EditCycle
from asterism.core.plan.edits import AddDependency, AddTask, Edit, RemoveDependency, RemoveTask, UpdateTask
from asterism.core.plan.graph import Graph
from asterism.core.plan.journal import (
    Files,
    Locate,
    Lose,
    Open,
    RecordedConstellation,
    Rejected,
    Reviewed,
    Step,
    Stuck,
    Tried,
    replay,
)
from asterism.core.plan.node import Node

IN_DIFF = frozenset({"added", "edited", "removed"})
"""Entries of the story about tasks that the diff of an edit contains."""

_PLACINGS = {Locate: "located", Files: "files kept", Tried: "counted", Lose: "counted"}
"""What happens to a task in the steps that make no entry of the story."""


class Change(NamedTuple):
    kind: str
    at: float
    data: Mapping[str, Any]


def task_progress(node: Node) -> JsonObject:
    """The progress of a task, for a view."""
    return {
        "status": str(node.status),
        "provisional": node.provisional,
        "reason": error_text(node.error) or node.reason,
        "device": node.device,
        "attempts": node.attempts,
        "awaited_since": node.awaited_since,
        "started_at": node.started_at,
        "ended_at": node.ended_at,
        "attempt": None if (times := node.attempt_times) is None else times.to_json(),
        "needless": node.needless,
        "review": not node.reviewed,
    }


def replay_step(plan: RecordedConstellation, lock: AssignmentLock, step: Step) -> list[Change]:
    """Replay one step, and return what it changed. Raises UnreadableJournal."""
    first, edited = len(plan._story), list[Applied]()
    cycle = lock.cycles.get(step.cycle) if isinstance(step, Rejected | Reviewed) else None
    opened = lock.opened
    plan.on_applied = edited.append
    try:
        replay(plan, lock, [step])
    finally:
        plan.on_applied = None
    changes = [_edit_change(plan, applied) for applied in edited if applied.batch.edits]
    if isinstance(step, Open | Stuck) and lock.opened > opened:
        changes.append(_cycle_change(lock.cycles[lock.opened], "opened", plan.last_at, step.at))
    elif cycle is not None and isinstance(step, Reviewed):
        changes.append(_cycle_change(cycle, "closed", plan.last_at, step.at))
    elif cycle is not None:
        changes.append(_cycle_change(cycle, "rejected", plan.last_at, plan.last_at))
    if isinstance(step, Locate | Files | Tried | Lose):
        changes.append(_task_change(plan.node(step.task), plan.last_at, _PLACINGS[type(step)], ""))
    return [*changes, *_story_changes(plan, first, bool(edited))]


def _story_changes(plan: RecordedConstellation, first: int, edited: bool) -> list[Change]:
    """The entries of the story since then as changes: the last of each task, and those of the plan."""
    changes: dict[str | int, Change] = {}
    for index, (at, what, task, why, facts) in enumerate(plan.story_after(first)):
        if edited and what in IN_DIFF:
            continue
        if "approval" in facts:
            changes[index] = Change("approval", at, {"what": what, "why": why, **facts})
        elif task is None:
            changes[index] = Change("plan", at, {"what": what, "why": why, "state": str(plan.state)})
        elif task in plan.nodes:
            changes.pop(task, None)
            changes[task] = _task_change(plan.nodes[task], at, str(what), why)
        else:  # a note about a task that was removed
            changes[index] = Change("plan", at, {"what": what, "why": why, "state": str(plan.state), "task": task})
    return list(changes.values())


def _task_change(node: Node, at: float, what: str, why: str) -> Change:
    return Change("task", at, {"task": node.id, "what": what, "why": why, **task_progress(node)})


def _cycle_change(cycle: EditCycle, what: str, last_at: float, now: float) -> Change:
    data = {"cycle": cycle.id, "what": what, "tasks": list(cycle.tasks), "stuck": cycle.stuck}
    if what == "opened":
        data["version"] = cycle.version
    elif what == "rejected":
        data["rejections"] = cycle.rejections
    else:
        data["outcome"] = cycle.outcome
        if cycle.cost is not None:
            data["cost"] = cycle.cost.to_json()
    return Change("cycle", step_time(last_at, now), data)


def _edit_change(plan: Graph, applied: Applied) -> Change:
    batch = applied.batch
    return Change(
        "edit",
        plan.last_at,
        {
            "version": applied.version,
            "author": batch.author,
            "reason": batch.reason,
            "triggers": list(batch.triggers),
            "undoes": batch.undoes,
            "edits": [edit.to_json() for edit in batch.edits],
            "diff": structure_diff(plan, applied.reverse),
        },
    )


def structure_diff(plan: Graph, reverse: Iterable[Edit]) -> JsonObject:
    """What an edit changed in the structure of a plan, all in all. ``reverse`` are the edits that revert its changes,
    in the order of these. A task that was removed and added again is ``changed``."""
    tasks: dict[str, bool] = {}  # whether it existed before
    dependencies: dict[tuple[str, str], AddDependency | None] = {}  # as they were before
    for edit in reverse:
        if isinstance(edit, AddTask):
            tasks.setdefault(edit.task.id, True)
        elif isinstance(edit, RemoveTask):
            tasks.setdefault(edit.task_id, False)
        elif isinstance(edit, UpdateTask):
            tasks.setdefault(edit.task_id, True)
        elif isinstance(edit, AddDependency):
            dependencies.setdefault((edit.source, edit.target), edit)
        else:
            assert isinstance(edit, RemoveDependency)  # apply needs no other edit to revert one
            dependencies.setdefault((edit.source, edit.target), None)
    out: JsonObject = {"added": [], "removed": [], "changed": [], "linked": [], "unlinked": [], "relinked": []}
    for task, existed in tasks.items():
        if task in plan.nodes:
            out["changed" if existed else "added"].append(task)
        elif existed:
            out["removed"].append(task)
    for (source, target), before in dependencies.items():
        now = plan.nodes[target].parents.get(source) if target in plan.nodes else None
        if now is not None and before is None:
            out["linked"].append(now.to_json())
        elif now is None and before is not None:
            out["unlinked"].append([source, target])
        elif now is not None and before is not None and now != before.dependency:
            out["relinked"].append(now.to_json())
    return out
