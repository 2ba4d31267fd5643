"""Taint: what an editor may do once it may have read what strangers wrote.

A task that reads issues, pages or files of strangers is marked ``untrusted``. Its result taints everything that is
derived from it: the results of all tasks below it, and the answers of an editor. An editor sees the whole plan, and may
remember. So its input is tainted from the moment at which an untrusted task of the plan may start, to the end. From
tainted input an editor may only **cancel** a task, and so **choose** among the branches that the plan has, by
cancelling the others. Every other batch waits until a person approves it (edit_rules.py), also one that retries a task:
whatever adds a task says what is executed.

Only a person may remove the mark ``untrusted``, or a task that has it: under its id a task without the mark could be
added later. An editor cancels it.

The taint is a fact of the plan (``Graph.tainted``), which the step that makes an untrusted task ready writes. It is not
derived from the tasks: a person may remove them, and a retry removes the elements of a group, but what an editor has
read stays read. Only a person removes the taint, by the edit ``RemoveTaint``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import zip_longest
from typing import Any

from asterism.core.errors import Violation
from asterism.core.plan.edit_trial import CANCELLED, Change, Trial
from asterism.core.plan.edits import EditBatch, RemoveTaint
from asterism.core.plan.graph import Graph
from asterism.core.plan.group_elements import work_of
from asterism.core.plan.task import Task
from asterism.core.plan.task_approval import approvers, may_decide

UNTRUSTED = "the editor may have read untrusted data"
"""How the reason begins for which an edit waits."""


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
    named = ", ".join(map(repr, sources[:3])) + (f" and {len(sources) - 3} more" if len(sources) > 3 else "")
    bad = dict.fromkeys(change.edit for change in tried.changes if change.kind != CANCELLED)
    why = f"{UNTRUSTED} of {named}"
    return tuple(f"{batch.edits[index]} ({why})" for index in bad)
