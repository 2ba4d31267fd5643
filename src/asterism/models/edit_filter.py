"""Filters: which ends of tasks are worth a call of a model.

A filter is asked in the step that records an end. An end that it leaves out opens no cycle, holds nothing and costs
nothing. A plan that gets stuck is always a question to its editor.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from asterism.base import expressions
from asterism.core.errors import PlanError, error_text
from asterism.core.plan.constellation import TaskView
from asterism.core.plan.status import FAILED


class InvalidFilter(PlanError):
    """A filter that cannot be read."""


@dataclass(slots=True)
class EditFilter:
    """An end is asked about if it matches one of these: every failure (``failure``), the tasks whose ids fit one of the
    patterns ``tasks``, the ends for which the CEL condition ``when`` holds; it may use ``task``, ``status``, ``result``
    and ``error``. A condition that cannot be evaluated asks. ``asked`` and ``avoided`` count the ends."""

    failure: bool = True
    tasks: tuple[str, ...] = ()
    when: str | None = None
    everything: bool = False
    asked: int = field(default=0, compare=False)
    avoided: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        self.tasks = tuple(self.tasks)
        problem = None if self.when is None else expressions.check(self.when)
        if problem is not None:
            raise InvalidFilter(f"the condition {self.when!r} is not valid: {problem}")

    def words(self) -> list[str]:
        """The texts from which ``parse`` makes this filter."""
        named = [("all", self.everything), ("failure", self.failure), (f"tasks={','.join(self.tasks)}", self.tasks)]
        return [text for text, given in [*named, (f"when={self.when}", self.when)] if given]

    def __call__(self, task: TaskView) -> bool:
        asks = self.matches(task)
        if asks:
            self.asked += 1
        else:
            self.avoided += 1
        return asks

    def matches(self, task: TaskView) -> bool:
        if self.everything or (self.failure and task.status is FAILED):
            return True
        if any(fnmatchcase(task.id, pattern) for pattern in self.tasks):
            return True
        return self.when is not None and self._holds(self.when, task)

    def _holds(self, when: str, task: TaskView) -> bool:
        names = {
            "task": task.id,
            "status": str(task.status),
            "result": task.value,
            "error": error_text(task.error),
        }
        # one that cannot be evaluated asks: a question too many costs less than a repair that is missing
        return expressions.holds(when, names, expressions.CONDITION_STEPS) is not False

    @classmethod
    def parse(cls, words: str | Iterable[str]) -> EditFilter:
        """A filter as a person writes it: ``all``, ``failure``, ``tasks=deploy-*,test``, ``when=result.score < 0.5``;
        or several of these. Raises InvalidFilter."""
        given = [words] if isinstance(words, str) else list(words)
        found = cls(failure=False)
        for word in given or ["failure"]:
            name, equals, value = word.partition("=")
            if word == "all":
                found.everything = True
            elif word == "failure":
                found.failure = True
            elif name == "tasks" and equals and value:
                found.tasks = (*found.tasks, *filter(None, value.split(",")))
            elif name == "when" and equals and value.strip():
                found.when = value if found.when is None else f"({found.when}) || ({value})"
            else:
                raise InvalidFilter(
                    f"{word!r} is not a filter (examples: all, failure, tasks=deploy-*, when=result.ok)"
                )
        found.__post_init__()
        return found
