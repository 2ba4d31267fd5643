"""Filters: which ends of tasks are worth a call of a model.

A filter is asked in the step that records an end. An end that it leaves out opens no cycle, holds nothing and costs
nothing. A plan that gets stuck is always a question to its editor.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Self

from asterism.base import expressions
from asterism.core.errors import PlanError, error_text
from asterism.core.plan.constellation import TaskView
from asterism.core.plan.edit_rules import EditRule, fits
from asterism.core.plan.status import FAILED


class EditFilter(EditRule):
    """An end is asked about if it matches one of these: every failure (``failure``), the tasks whose ids fit one of the
    patterns ``tasks``, the ends for which the CEL condition ``when`` holds; it may use ``task``, ``status``, ``result``
    and ``error``. A condition that cannot be evaluated asks."""

    what = "a filter"
    shorthands: ClassVar = {"failure": {"failure": True}, "all": {"everything": True}}
    examples = "all, failure, tasks=deploy-*, when=result.ok"

    failure: bool = False
    tasks: tuple[str, ...] = ()
    when: str | None = None
    everything: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        problem = None if self.when is None else expressions.check(self.when)
        if problem is not None:
            raise PlanError(f"the condition {self.when!r} is not valid: {problem}")

    def words(self) -> list[str]:
        """The texts from which ``parse_all`` makes this filter."""
        named = [("all", self.everything), ("failure", self.failure), (f"tasks={','.join(self.tasks)}", self.tasks)]
        return [text for text, is_set in [*named, (f"when={self.when}", self.when)] if is_set]

    def __call__(self, task: TaskView) -> bool:
        if self.everything or (self.failure and task.status is FAILED):
            return True
        if fits(task.id, self.tasks):
            return True
        return self.when is not None and self._holds(self.when, task)

    def _holds(self, when: str, task: TaskView) -> bool:
        names = {"task": task.id, "status": str(task.status), "result": task.value, "error": error_text(task.error)}
        # one that cannot be evaluated asks: a question too many costs less than a repair that is missing
        return expressions.holds(when, names, expressions.CONDITION_STEPS) is not False

    @classmethod
    def parse_all(cls, words: str | Iterable[str]) -> Self:
        """A filter as a person writes it: ``all``, ``failure``, ``tasks=deploy-*,test``, ``when=result.score < 0.5``;
        or several of these. Raises PlanError."""
        filters = list(map(cls.parse, [words] if isinstance(words, str) else words)) or [cls(failure=True)]
        conditions = [part.when for part in filters if part.when is not None]
        return cls(
            any(part.failure for part in filters),
            tuple(pattern for part in filters for pattern in part.tasks),
            " || ".join(conditions if len(conditions) < 2 else map("({})".format, conditions)) or None,
            any(part.everything for part in filters),
        )
