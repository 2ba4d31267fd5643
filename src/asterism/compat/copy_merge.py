"""Three-way merge of an agent's edited copy into the live plan.

It is a three-way merge. The structure comes from the copy, progress from the live plan, always: whatever state a copy
claims for a task, what the devices reported stands. What was changed is told by comparing the copy with what it was
made from:

* a copy made in this process knows that itself;
* a copy that went by way of JSON carries the version it was written at, and the live plan remembers it;
* a constellation that was built afresh is compared with the plan as it was when the task ended that it answers.
"""

from __future__ import annotations

import logging

from asterism.compat.checked_changes import refusing
from asterism.compat.living_plan import LivingPlan
from asterism.compat.vocabulary import TaskStatus, is_more_advanced
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.diff import Outline, merge
from asterism.core.plan.edits import (
    AddDependency,
    AddTask,
    Edit,
    EditBatch,
    RemoveDependency,
    RemoveTask,
    UpdateDependency,
    UpdateTask,
)
from asterism.core.plan.task import Dependency


def merge_copy(
    live: LivingPlan, copy: LivingPlan, seen: Outline | None, triggers: tuple[str, ...], logger: logging.Logger
) -> None:
    """Apply what was changed in ``copy`` to ``live``, whole or not at all; then the copy becomes what the live plan is.

    ``seen`` is the plan as it was when the copy's author was asked. Raises ModificationRejected and changes nothing."""
    _warn_of_claims(live.plan, copy.plan, logger)
    base, base_version = _base(live, copy, seen)
    wanted, overtaken = merge(live.plan, base, copy.plan)
    if overtaken:
        left_out = "; ".join(map(str, overtaken))
        logger.warning("%s: left out, for the tasks have started or ended meanwhile: %s", live.plan_id, left_out)
    edits = tuple(edit for edit in wanted.edits if not _in_effect(live.plan, edit))
    live.conditions.learn_from(copy.conditions)
    with live.reopened(), refusing():
        batch = EditBatch(edits, "agent", f"the copy of {copy.plan_id!r}", base_version, triggers)
        live.plan.apply(batch, live.plan.clock())
    live.adopt(copy, edits)
    if copy.runner is None:
        copy.follow(live)
        copy.lineage = live.lineage


def _base(live: LivingPlan, copy: LivingPlan, seen: Outline | None) -> tuple[Outline, int | None]:
    """What the copy was made from, and the version that its edits are based on (None: unknown)."""
    if copy.lineage == live.lineage:
        known = copy.plan.origin or live.written(copy.stamp)
        if known is not None:
            return known, known.version
    return seen or live.outline(), None


def _in_effect(live: Constellation, edit: Edit) -> bool:
    """Whether the plan is already as the edit would have it: the same change came another way."""
    nodes = live.nodes
    if isinstance(edit, AddTask):
        return edit.task.id in nodes and nodes[edit.task.id].task == edit.task
    if isinstance(edit, RemoveTask):
        return edit.task_id not in nodes
    if isinstance(edit, UpdateTask):
        node = nodes.get(edit.task_id)
        return node is not None and all(getattr(node.task, name) == value for name, value in edit.changes.items())
    if isinstance(edit, AddDependency | UpdateDependency | RemoveDependency):
        target = nodes.get(edit.target)
        there = None if target is None else target.parents.get(edit.source)
        if isinstance(edit, RemoveDependency):
            return there is None
        return there == Dependency(edit.source, edit.target, edit.on, edit.when)
    return False  # a task cannot be cancelled through a copy


def _warn_of_claims(live: Constellation, copy: Constellation, logger: logging.Logger) -> None:
    for task_id, node in copy.nodes.items():
        if task_id not in live.nodes:
            continue
        claimed, known = TaskStatus(node.status), TaskStatus(live.nodes[task_id].status)
        if is_more_advanced(claimed, known):
            logger.warning("%s: the copy says that %r is %s; it is %s", live.id, task_id, claimed, known)
