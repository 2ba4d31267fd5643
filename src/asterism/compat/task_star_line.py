"""The documented dependency (TaskStarLine), and conditions as Python functions.

In the core a condition is text. The ``Conditions`` of a plan store each function under its own text. A copy of the plan
has the same text, so the function is found again when the copy comes back.

A line does not change, so that a plan and its copies share it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

from asterism.compat.vocabulary import DependencyType, ExecutionResult, member
from asterism.core.plan.node_records import own_copy
from asterism.core.plan.status import TaskStatus
from asterism.core.plan.task import Dependency

logger = logging.getLogger("asterism.compat.conditions")

Evaluator = Callable[[Any], Any]


@dataclass(frozen=True, slots=True, eq=False)
class TaskStarLine:
    """``to_task_id`` waits for ``from_task_id``. A conditional line without a function waits for success. To change a
    line of a plan, remove it and add another."""

    from_task_id: str
    to_task_id: str
    dependency_type: DependencyType | str = DependencyType.UNCONDITIONAL
    condition_description: str | None = None
    condition_evaluator: Evaluator | None = None
    line_id: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    condition: str | None = None  # the text under which the core knows the function

    def __post_init__(self) -> None:
        condition = self.condition
        if condition is None and self.condition_evaluator is not None:
            label = self.condition_description or getattr(self.condition_evaluator, "__name__", "condition")
            condition = f"{label} #{uuid4().hex[:12]}"
        for name, value in (
            ("dependency_type", member(DependencyType, self.dependency_type)),
            ("line_id", self.line_id or str(uuid4())),
            ("metadata", own_copy(dict(self.metadata or {}))),
            ("condition", condition),
        ):
            object.__setattr__(self, name, value)

    @classmethod
    def create_unconditional(cls, from_task_id: str, to_task_id: str, description: str = "") -> TaskStarLine:
        return cls(from_task_id, to_task_id, DependencyType.UNCONDITIONAL, description)

    @classmethod
    def create_success_only(cls, from_task_id: str, to_task_id: str, description: str = "") -> TaskStarLine:
        return cls(from_task_id, to_task_id, DependencyType.SUCCESS_ONLY, description)

    @classmethod
    def create_conditional(
        cls, from_task_id: str, to_task_id: str, condition_description: str, condition_evaluator: Evaluator
    ) -> TaskStarLine:
        return cls(from_task_id, to_task_id, DependencyType.CONDITIONAL, condition_description, condition_evaluator)

    @property
    def dependency(self) -> Dependency:
        """The line as a dependency of the core. Raises ValueError for a task that waits for itself."""
        ends, kind = (self.from_task_id, self.to_task_id), self.dependency_type
        if kind is DependencyType.CONDITIONAL and self.condition is not None:
            return Dependency(*ends, "completion", self.condition)
        success = kind in (DependencyType.SUCCESS_ONLY, DependencyType.CONDITIONAL)
        return Dependency(*ends, "success" if success else "completion")

    def __deepcopy__(self, memo: dict[int, Any]) -> TaskStarLine:
        return self


class Lines:
    """The lines of a plan, by their id and by their pair of tasks."""

    def __init__(self, by_id: Mapping[str, TaskStarLine] = {}, by_pair: Mapping[tuple[str, str], TaskStarLine] = {}):
        self.by_id, self.by_pair = dict(by_id), dict(by_pair)

    def copy(self) -> Lines:
        return Lines(self.by_id, self.by_pair)

    def put(self, line: TaskStarLine) -> None:
        """Add a line, in place of the one between the same tasks."""
        self.drop(line.from_task_id, line.to_task_id)
        if line.line_id in self.by_id:  # two merged plans use the id for different tasks
            line = replace(line, line_id=str(uuid4()))
        self.by_id[line.line_id] = self.by_pair[line.from_task_id, line.to_task_id] = line

    def drop(self, source: str, target: str) -> None:
        line = self.by_pair.pop((source, target), None)
        if line is not None:
            del self.by_id[line.line_id]


class Conditions:
    """Evaluates conditions for an orchestrator: functions by their text."""

    def __init__(self) -> None:
        self._evaluators: dict[str, Evaluator] = {}

    def register(self, line: TaskStarLine) -> None:
        if line.condition is not None and line.condition_evaluator is not None:
            self._evaluators[line.condition] = line.condition_evaluator

    def register_all(self, other: Conditions) -> None:
        self._evaluators |= other._evaluators

    def check(self, text: str) -> str | None:
        return None if text in self._evaluators else "no condition_evaluator is known for it; set one on its line"

    def evaluate(self, text: str, status: TaskStatus, result: Any) -> bool | str:
        """The function's verdict on the task's result; the result of a failed task is None."""
        evaluator = self._evaluators.get(text)
        if evaluator is None:
            return f"{text!r} is not known here"
        return evaluated(evaluator, result, text)


def evaluated(evaluator: Evaluator, result: Any, text: str) -> bool:
    """Whether a function accepts a result.

    The documentation shows functions of the value that the device returned; its code passes the ExecutionResult around
    that value. Both work: the value is tried first, and the ExecutionResult after an exception. If both raise, the
    condition is false."""
    raised: Exception | None = None
    for subject in [result.result, result] if isinstance(result, ExecutionResult) else [result]:
        try:
            return bool(evaluator(subject))
        except Exception as error:
            raised = raised or error
    logger.warning("the condition %r raised %r and counts as false", text, raised)
    return False
