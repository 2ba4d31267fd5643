"""A dependency with the documented names, and the conditions that are Python functions.

The core knows a condition as text. Each function is kept under a text of its own in the ``Conditions`` of its plan; a
copy of the plan carries the same text, so the function is found again when the copy comes back, even by way of JSON.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, Protocol
from uuid import uuid4

from asterism.compat.vocabulary import DependencyType, ExecutionResult, member
from asterism.core.constellation import Constellation
from asterism.core.status import TaskStatus
from asterism.core.task import Dependency

logger = logging.getLogger("asterism.compat.conditions")

Evaluator = Callable[[Any], Any]


class Home(Protocol):
    """The plan that a line belongs to."""

    def relink(self, dependency: Dependency, evaluator: Evaluator | None) -> None: ...


class TaskStarLine:
    """``to_task_id`` waits for ``from_task_id``. A conditional line without a function waits for success."""

    def __init__(
        self,
        from_task_id: str,
        to_task_id: str,
        dependency_type: DependencyType | str = DependencyType.UNCONDITIONAL,
        condition_description: str | None = None,
        condition_evaluator: Evaluator | None = None,
        line_id: str | None = None,
        metadata: dict[str, Any] | None = None,
        condition: str | None = None,
    ) -> None:
        self.line_id = line_id or str(uuid4())
        self.from_task_id, self.to_task_id = from_task_id, to_task_id
        self.condition_description = condition_description or ""
        self.metadata = dict(metadata or {})
        self.home: Home | None = None
        self._type = member(DependencyType, dependency_type)
        self._evaluator = condition_evaluator
        self._condition = condition or self._name_condition()  # the text under which the core knows the function

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

    def _name_condition(self) -> str | None:
        if self._evaluator is None:
            return None
        said = self.condition_description or getattr(self._evaluator, "__name__", "condition")
        return f"{said} #{uuid4().hex[:12]}"

    @property
    def dependency(self) -> Dependency:
        """What the core is to know. Raises ValueError for a task that waits for itself."""
        return self._dependency(self._type, self._condition)

    def _dependency(self, kind: DependencyType, condition: str | None) -> Dependency:
        ends = (self.from_task_id, self.to_task_id)
        if kind is DependencyType.CONDITIONAL and condition is not None:
            return Dependency(*ends, "completion", condition)
        success = kind in (DependencyType.SUCCESS_ONLY, DependencyType.CONDITIONAL)
        return Dependency(*ends, "success" if success else "completion")

    @property
    def dependency_type(self) -> DependencyType:
        return self._type

    @dependency_type.setter
    def dependency_type(self, value: DependencyType | str) -> None:
        kind = member(DependencyType, value)
        if self.home is not None:
            self.home.relink(self._dependency(kind, self._condition), self._evaluator)
        self._type = kind

    @property
    def condition(self) -> str | None:
        return self._condition

    @property
    def condition_evaluator(self) -> Evaluator | None:
        return self._evaluator

    def set_condition_evaluator(self, evaluator: Evaluator) -> None:
        """Judge by another function from now on."""
        before = self._evaluator, self._condition
        self._evaluator = evaluator
        self._condition = self._name_condition()
        try:
            if self.home is not None:
                self.home.relink(self.dependency, evaluator)
        except ValueError:
            self._evaluator, self._condition = before
            raise

    def twin(self) -> TaskStarLine:
        """The same line, belonging to nobody."""
        twin = TaskStarLine(self.from_task_id, self.to_task_id, line_id=self.line_id)
        twin.imitate(self)
        return twin

    def imitate(self, other: TaskStarLine) -> None:
        """Mean what another line between the same tasks means."""
        self.condition_description, self.metadata = other.condition_description, dict(other.metadata)
        self._type, self._evaluator, self._condition = other._type, other._evaluator, other._condition

    def __deepcopy__(self, memo: dict[int, Any]) -> TaskStarLine:
        return self.twin()

    def __repr__(self) -> str:
        return f"<TaskStarLine {self.from_task_id!r} -> {self.to_task_id!r} {self._type}>"


class Lines:
    """The lines of a plan, found by their own id and by the pair of tasks that they join."""

    def __init__(self) -> None:
        self._by_pair: dict[tuple[str, str], TaskStarLine] = {}
        self._by_id: dict[str, TaskStarLine] = {}

    def add(self, line: TaskStarLine, home: Home) -> None:
        """Take a line in; one that has another home stays there and is copied."""
        line = line if line.home is None else line.twin()
        if line.line_id in self._by_id:  # two plans were merged that use the id for different tasks
            line.line_id = str(uuid4())
        line.home = home
        self._by_pair[line.from_task_id, line.to_task_id] = self._by_id[line.line_id] = line

    def take_over(self, line: TaskStarLine, home: Home) -> None:
        """Have what another plan has. A line that is here already stays the same object."""
        here = self._by_pair.get((line.from_task_id, line.to_task_id))
        if here is not None and here.line_id == line.line_id:
            here.imitate(line)
        else:
            self.drop(line.from_task_id, line.to_task_id)
            self.add(line.twin(), home)

    def keep(self, plan: Constellation) -> None:
        """Drop the lines that join tasks which the plan no longer joins."""
        for source, target in tuple(self._by_pair):
            node = plan.nodes.get(target)
            if node is None or source not in node.parents:
                self.drop(source, target)

    def drop(self, source: str, target: str) -> None:
        line = self._by_pair.pop((source, target), None)
        if line is not None:
            del self._by_id[line.line_id]
            line.home = None

    def get(self, line_id: str) -> TaskStarLine | None:
        return self._by_id.get(line_id)

    def of(self, source: str, target: str) -> TaskStarLine:
        return self._by_pair[source, target]

    def __iter__(self) -> Iterator[TaskStarLine]:
        return iter(self._by_pair.values())


class Conditions:
    """Judges conditions for an orchestrator: functions by the text under which they are known."""

    def __init__(self) -> None:
        self._evaluators: dict[str, Evaluator] = {}

    def learn(self, condition: str | None, evaluator: Evaluator | None) -> None:
        if condition is not None and evaluator is not None:
            self._evaluators[condition] = evaluator

    def learn_from(self, other: Conditions) -> None:
        self._evaluators |= other._evaluators

    def check(self, text: str) -> str | None:
        return None if text in self._evaluators else "no condition_evaluator is known for it; set one on its line"

    def evaluate(self, text: str, status: TaskStatus, result: Any) -> bool | str:
        """What the function says of the task's result; of a failed task it is asked about None.

        The documentation shows functions of what the device returned, its code hands over the ExecutionResult around
        that. Both work: the first is tried, and after an exception the second. If both raise, that counts as false."""
        evaluator = self._evaluators.get(text)
        if evaluator is None:
            return f"{text!r} is not known here"
        raised: Exception | None = None
        for subject in [result.result, result] if isinstance(result, ExecutionResult) else [result]:
            try:
                return bool(evaluator(subject))
            except Exception as error:
                raised = raised or error
        logger.warning("the condition %r raised %r and counts as false", text, raised)
        return False
