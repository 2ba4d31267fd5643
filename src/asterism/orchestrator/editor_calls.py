"""Talking to editors: how one is asked, and what its answer means."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from asterism.core.errors import EditRejected, Violation, error_text, safe_repr
from asterism.core.plan.constellation import Constellation, ConstellationView, EndView, TaskView
from asterism.core.plan.diff import merge
from asterism.core.plan.edits import EDITS, Edit, EditBatch, edit_from_json
from asterism.core.plan.lock import EditCycle, EditOn, edit_on_all, edit_on_failure
from asterism.core.plan.node import Node
from asterism.core.plan.status import TaskStatus
from asterism.orchestrator.events import Event

Answer = Any
"""None, edits, an EditBatch, JSON forms of these, or a whole new Constellation."""

AskFunction = Callable[[ConstellationView, Sequence[Event]], Awaitable[Answer] | Answer]


class EditorObject(Protocol):
    def edit(self, view: ConstellationView, events: Sequence[Event]) -> Awaitable[Answer] | Answer: ...


Editor = AskFunction | EditorObject


def name_of(editor: Editor) -> str:
    return getattr(editor, "__name__", type(editor).__name__)


async def ask(editor: Editor, view: ConstellationView, events: Sequence[Event]) -> Answer:
    """Ask an editor once. Whatever it raises comes out."""
    function = editor.edit if hasattr(editor, "edit") else editor
    answer = function(view, events)
    return await answer if inspect.isawaitable(answer) else answer


def reviewed(choice: str | Callable[[TaskView], bool]) -> EditOn:
    """What ``edit_on=`` means: ``"all"``, ``"failure"``, or a predicate over the task that has ended."""
    if choice == "all":
        return edit_on_all
    if choice == "failure":
        return edit_on_failure
    if callable(choice):
        predicate = choice

        def by_predicate(node: Node, status: TaskStatus, value: Any, error: BaseException | None) -> bool:
            return bool(predicate(EndView(node, status, value, error)))

        return by_predicate
    raise ValueError(f"edit_on is 'all', 'failure' or a function of a task, not {choice!r}")


def batch_of(answer: Answer, plan: Constellation, cycle: EditCycle, author: str) -> tuple[EditBatch, Sequence[Edit]]:
    """The batch that an answer stands for, and what was left out of it because progress has overtaken it (of a whole
    plan that is handed back; edits are never left out). Raises EditRejected for nonsense, whatever kind it is."""
    try:
        if isinstance(answer, Constellation):
            return merge(plan, answer.origin or plan, answer, author=author, triggers=cycle.tasks)
        batch = _batch(answer, cycle, author)
    except Exception as error:
        raise EditRejected([Violation(None, "malformed", f"the answer cannot be read: {error_text(error)}")]) from None
    if batch is None:
        kind = type(answer).__name__
        words = f"an editor answers with None, edits or a batch of edits, not with {safe_repr(answer)} ({kind})"
        raise EditRejected([Violation(None, "malformed", words)])
    return batch, ()


def _batch(answer: Answer, cycle: EditCycle, author: str) -> EditBatch | None:
    about: dict[str, Any] = {"author": author, "triggers": cycle.tasks}
    if answer is None:
        return EditBatch((), base_version=cycle.version, **about)
    if isinstance(answer, Mapping):
        answer = EditBatch.from_json(answer)
    if isinstance(answer, EditBatch):
        base = cycle.version if answer.base_version is None else answer.base_version
        triggers = tuple(answer.triggers) or cycle.tasks
        return EditBatch(tuple(map(_edit, answer.edits)), answer.author or author, answer.reason, base, triggers)
    edits = [answer] if isinstance(answer, tuple(EDITS.values())) else answer
    if not isinstance(edits, Iterable) or isinstance(edits, str | bytes):
        return None
    return EditBatch(tuple(map(_edit, edits)), base_version=cycle.version, **about)


def _edit(item: Any) -> Edit:
    return edit_from_json(item) if isinstance(item, Mapping) else item
