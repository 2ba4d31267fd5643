"""Taint: what an editor may do once it may have read what strangers wrote.

A task that reads issues, pages or files of strangers is marked ``untrusted``. Its result taints everything that is
derived from it: the results of all tasks below it, and the answers of an editor. An editor sees the whole plan, and may
remember. So its input is tainted from the moment at which an untrusted task of the plan may start, to the end. From
tainted input an editor may only

* **cancel** a task, and so **choose** among the branches that the plan has, by cancelling the others;
* **retry** a task that has failed: add one copy of it, under the id ``NAME-retry``, ``NAME-2``, ``NAME-3`` …, with the
  same dependencies, and let the tasks that wait for the failed one wait for the copy.

Every other batch waits until a person approves it (edit_rules.py). Only a person may remove the mark ``untrusted``, or
a task that has it: under its id a task without the mark could be added later. An editor cancels it.

The taint is a fact of the plan (``Graph.tainted``), which the step that makes an untrusted task ready writes. It is not
derived from the tasks: a person may remove them, and a retry removes the elements of a group, but what an editor has
read stays read. Only a person removes the taint, by the edit ``RemoveTaint``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from asterism.core.errors import NotJson, Violation
from asterism.core.plan.edit_trial import ADDED, CANCELLED, LINKED, UNLINKED, Change, Trial
from asterism.core.plan.edits import EditBatch, RemoveTaint
from asterism.core.plan.graph import Graph
from asterism.core.plan.group_elements import work_of
from asterism.core.plan.node import Node
from asterism.core.plan.status import FAILED
from asterism.core.plan.task import Dependency, Task
from asterism.core.plan.task_approval import approvers, may_decide

UNTRUSTED = "the editor may have read untrusted data"
"""How the reason begins for which an edit waits."""

_COPY = re.compile(r"(.+?)-(?:retry(?:-[0-9]{1,4})?|[0-9]{1,4})", re.DOTALL)


def taint_of_editor(graph: Graph) -> list[str]:
    """The untrusted tasks that an editor may have read from: they have run, or may start at any moment."""
    return sorted(graph.tainted)


def mark_violations(tried: Trial) -> list[Violation]:
    """Why the edits of an editor are rejected, without a question to a person: in the end an untrusted task, or one
    that needs approval, or a group of such elements, is gone or has no mark."""
    untrusted = [
        _violation(change, "untrusted", "is marked as untrusted; only a person removes", "the mark")
        for change, _ in _lost(tried, "untrusted")
    ]
    return untrusted + [_violation(change, *_APPROVAL, _OR_CHANGES) for change, _ in _lost(tried, "approval")]


def approval_violations(tried: Trial, who: str, groups: Collection[str]) -> list[Violation]:
    """Why the edits of a person are rejected: in the end a task lacks its approval, about which others decide."""
    violations = []
    for change, approvals in _lost(tried, "approval"):
        deciders = [by for by in map(approvers, approvals) if not may_decide(by, who, groups)]
        if deciders:
            words = f"needs approval; only {' or '.join(deciders[0])} removes"
            violations.append(_violation(change, "approval", words, _OR_CHANGES))
    return violations


_APPROVAL = ("approval", "needs approval; only a person removes")
_OR_CHANGES = "or changes that"


def _violation(change: Change, name: str, words: str, mark: str) -> Violation:
    what = "the task: cancel it instead" if change.after is None else mark
    return Violation(change.edit, name, f"task {change.task_id!r} {words} {what}")


def _lost(tried: Trial, name: str) -> Iterator[tuple[Change, list[Any]]]:
    """The edits after which a task lacks a field that marks it, and what it was."""
    marks: dict[str, list[Any]] = {}
    lost: dict[str, Change] = {}
    for change in tried.changes:
        wanted = marks.setdefault(change.task_id, _marks(change.before, name))
        if not _missing(_marks(change.after, name), wanted):
            lost.pop(change.task_id, None)
        elif change.task_id not in lost or lost[change.task_id].after is None:
            lost[change.task_id] = change
    for task_id, change in lost.items():
        yield change, _missing(_marks(change.after, name), marks[task_id])


def taint_violations(batch: EditBatch) -> list[Violation]:
    """Why the edits of an editor are rejected: they remove the taint."""
    edits = (index for index, edit in enumerate(batch.edits) if isinstance(edit, RemoveTaint))
    return [Violation(index, "untrusted", "only a person removes the taint of a plan") for index in edits]


def _marks(task: Task | None, name: str) -> list[Any]:
    """The mark of a task, and that of its elements, level by level."""
    return [] if task is None else [getattr(work, name) for work in work_of(task)]


def _missing(marks: list[Any], wanted: list[Any]) -> list[Any]:
    """The marks that are gone or changed. An empty approval is a mark, too: everybody may give it."""
    return [want for mark, want in zip_longest(marks, wanted) if want not in (None, False) and mark != want]


def taint_reasons(graph: Graph, batch: EditBatch, tried: Trial) -> tuple[str, ...]:
    """Which edits of an editor wait for a person because its input is tainted, and why; empty if none does."""
    sources = taint_of_editor(graph) if batch.edits else []
    if not sources:
        return ()
    copies = _copies(graph, tried)
    whole = _retries_whole(graph, copies, tried)
    named = ", ".join(map(repr, sources[:3])) + (f" and {len(sources) - 3} more" if len(sources) > 3 else "")
    bad = dict.fromkeys(
        change.edit for change in tried.changes if not _allowed(graph, copies if whole else {}, tried, change)
    )
    why = f"{UNTRUSTED} of {named}"
    return tuple(f"{batch.edits[index]} ({why})" for index in bad)


def _copies(graph: Graph, tried: Trial) -> Mapping[str, Node]:
    """The copies of failed tasks that a batch adds, each with the original; one of each."""
    originals: dict[str, Node] = {}
    for change in tried.changes:
        task = change.after
        name = _COPY.fullmatch(change.task_id) if change.kind == ADDED else None
        original = graph.nodes.get(name[1]) if name is not None else None
        if task is None or original is None or original.status is not FAILED or original in originals.values():
            continue
        if _is_copy(original.task, task):
            originals[task.id] = original
    return originals


def _is_copy(original: Task, task: Task) -> bool:
    """Whether two tasks differ in their ids only. A function and its import path are the same work."""
    wanted = replace(original, id=task.id)
    try:
        return wanted == task or wanted.to_json() == task.to_json()
    except NotJson:
        return False


def _retries_whole(graph: Graph, copies: Mapping[str, Node], tried: Trial) -> bool:
    """Whether each copy gets the dependencies of its original, all of them and no others, by the end of the batch."""
    by_original = {original.id: copy for copy, original in copies.items()}
    edges: dict[str, dict[str, Dependency]] = {copy: {} for copy in copies}
    for change in tried.changes:
        edge = change.dependency
        if edge is not None and edge.target in edges:
            if change.kind == LINKED:
                edges[edge.target][edge.source] = edge
            else:
                edges[edge.target].pop(edge.source, None)
    for copy, original in copies.items():
        wanted = {
            (replace(edge, source=source, target=copy))
            for edge in original.parents.values()
            for source in (by_original.get(edge.source, edge.source),)
        }
        kept = {replace(edge, target=copy) for edge in original.parents.values()}
        if set(edges[copy].values()) not in (wanted, kept):
            return False
    return True


def _allowed(graph: Graph, copies: Mapping[str, Node], tried: Trial, change: Change) -> bool:
    """Whether a change is a cancellation, or a part of a retry."""
    if change.kind == CANCELLED:
        return True
    if change.kind == ADDED:
        return change.task_id in copies
    edge = change.dependency
    if change.kind not in (LINKED, UNLINKED) or edge is None:
        return False
    if edge.target in copies:
        return True  # all of them together are those of the original
    originals = {original.id: copy for copy, original in copies.items()}
    if change.kind == LINKED:  # a task that waits for the failed one waits for the copy
        original = copies.get(edge.source)
        target = graph.nodes.get(edge.target)
        return original is not None and target is not None and _moved(target.parents.get(original.id), edge)
    copy = originals.get(edge.source)
    return copy is not None and any(
        other.kind == LINKED and other.dependency is not None and _moved(edge, other.dependency)
        for other in tried.changes
        if other.dependency is not None and other.dependency.source == copy
    )


def _moved(before: Dependency | None, after: Dependency) -> bool:
    """Whether a dependency is the same but for its source."""
    return before is not None and replace(before, source=after.source) == after
