"""The documented dependency (TaskStarLine), and conditions as Python functions.

The core knows a condition as text. Each function is kept under a text of its own in the ``Conditions`` of its plan; a
copy of the plan carries the same text, so the function is found again when the copy comes back, even by way of JSON.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Protocol, Self
from uuid import uuid4

from asterism.compat import plan_records
from asterism.compat.documented_names import Alias, ReadOnly
from asterism.compat.plan_records import TaskStarLineSchema, checked
from asterism.compat.vocabulary import DependencyType, ExecutionResult, member, refuse
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.status import TaskStatus
from asterism.core.plan.task import Dependency

logger = logging.getLogger("asterism.compat.conditions")

Evaluator = Callable[[Any], Any]


class Home(Protocol):
    """The plan that a line belongs to."""

    def relink(self, dependency: Dependency, evaluator: Evaluator | None) -> None: ...

    def verdict(self, source: str, target: str) -> tuple[bool | None, datetime | None]: ...


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
        metadata: Mapping[str, Any] | None = None,
        condition: str | None = None,
    ) -> None:
        self._id = line_id or str(uuid4())
        self._ends = (from_task_id, to_task_id)
        self._said = condition_description or ""
        self._facts = dict(metadata or {})
        self.home: Home | None = None
        self._type = member(DependencyType, dependency_type)
        self._evaluator = condition_evaluator
        self._condition = condition or self._name_condition()  # the text under which the core knows the function
        self._evaluated: tuple[bool, datetime] | None = None  # by hand, of a line in no plan
        self._created = self._edited = datetime.now(UTC)

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

    # -- what it joins -------------------------------------------------------------------------------------------------

    @property
    def line_id(self) -> str:
        return self._id

    @property
    def from_task_id(self) -> str:
        return self._ends[0]

    @property
    def to_task_id(self) -> str:
        return self._ends[1]

    @property
    def source_task_id(self) -> str:
        """The same as ``from_task_id``."""
        return self._ends[0]

    @property
    def target_task_id(self) -> str:
        """The same as ``to_task_id``."""
        return self._ends[1]

    @property
    def dependency(self) -> Dependency:
        """What the core is to know. Raises ValueError for a task that waits for itself."""
        return self.as_dependency(self._type, self._condition)

    def as_dependency(self, kind: DependencyType, condition: str | None) -> Dependency:
        """The same edge as another kind of line would be."""
        if kind is DependencyType.CONDITIONAL and condition is not None:
            return Dependency(*self._ends, "completion", condition)
        success = kind in (DependencyType.SUCCESS_ONLY, DependencyType.CONDITIONAL)
        return Dependency(*self._ends, "success" if success else "completion")

    # -- what it waits for ---------------------------------------------------------------------------------------------

    @property
    def dependency_type(self) -> DependencyType:
        return self._type

    @dependency_type.setter
    def dependency_type(self, value: DependencyType | str) -> None:
        kind = member(DependencyType, value)
        if self.home is not None:
            self.home.relink(self.as_dependency(kind, self._condition), self._evaluator)
        self._type, self._evaluated = kind, None
        self._touch()

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
        self._evaluated = None
        self._touch()

    @property
    def condition_description(self) -> str:
        return self._said

    @condition_description.setter
    def condition_description(self, value: str) -> None:
        self._said = value
        self._touch()

    @property
    def metadata(self) -> dict[str, Any]:
        """A copy; ``update_metadata`` changes it."""
        return dict(self._facts)

    def update_metadata(self, metadata: Mapping[str, Any]) -> None:
        self._facts.update(metadata)
        self._touch()

    def _touch(self) -> None:
        self._edited = datetime.now(UTC)

    # -- whether it is satisfied ---------------------------------------------------------------------------------------

    def is_satisfied(self, completed_tasks: Collection[str] | None = None) -> bool:
        """Whether the task before is among ``completed_tasks``. Without these: what the plan says, or, of a line in no
        plan, what ``evaluate_condition`` or ``mark_satisfied`` said last."""
        if completed_tasks is not None:
            return self.from_task_id in completed_tasks
        return self.last_evaluation_result is True

    def evaluate_condition(self, prerequisite_result: Any) -> bool:
        """Whether such a result would satisfy the line; None stands for a failure. It changes nothing in a plan, which
        judges by itself when the task ends."""
        if self._type in (DependencyType.UNCONDITIONAL, DependencyType.COMPLETION_ONLY):
            holds = True
        elif self._type is DependencyType.CONDITIONAL and self._evaluator is not None:
            holds = evaluated(self._evaluator, prerequisite_result, self.condition or "")
        else:
            holds = prerequisite_result is not None
        if self.home is None:
            self._evaluated = (holds, datetime.now(UTC))
        return holds

    def mark_satisfied(self) -> None:
        """Satisfied, whatever the task before does. Refused for a line in a plan: there, remove the dependency."""
        self._only_alone("remove_dependency lets its task start")
        self._evaluated = (True, datetime.now(UTC))
        self._touch()

    def reset_satisfaction(self) -> None:
        """Forget what was evaluated or marked. Refused for a line in a plan, which has no such mark."""
        self._only_alone("it is satisfied when the task before has ended as it says")
        self._evaluated = None
        self._touch()

    def _only_alone(self, instead: str) -> None:
        if self.home is not None:
            raise refuse("progress", f"{self!r} belongs to a plan, which judges it by itself: {instead}")

    @property
    def last_evaluation_result(self) -> bool | None:
        """None before it was evaluated."""
        return self._verdict()[0]

    @property
    def last_evaluation_time(self) -> datetime | None:
        return self._verdict()[1]

    def _verdict(self) -> tuple[bool | None, datetime | None]:
        if self.home is not None:
            return self.home.verdict(*self._ends)
        return (None, None) if self._evaluated is None else self._evaluated

    @property
    def created_at(self) -> datetime:
        return self._created

    @property
    def updated_at(self) -> datetime:
        return self._edited

    # -- copies --------------------------------------------------------------------------------------------------------

    def twin(self) -> TaskStarLine:
        """The same line, outside any plan."""
        twin = TaskStarLine(self.from_task_id, self.to_task_id, line_id=self.line_id)
        twin.imitate(self)
        return twin

    def imitate(self, other: TaskStarLine) -> None:
        """Mean what another line between the same tasks means."""
        self._said, self._facts = other._said, dict(other._facts)
        self._type, self._evaluator, self._condition = other._type, other._evaluator, other._condition
        self._created, self._edited, self._evaluated = other._created, other._edited, other._evaluated

    def renamed(self) -> None:
        """Take a new id: two plans were merged that use this one for different tasks."""
        self._id = str(uuid4())

    def restore(self, created: datetime, edited: datetime, evaluated: tuple[bool, datetime] | None) -> None:
        """What was written of it, read again."""
        self._created, self._edited, self._evaluated = created, edited, evaluated

    def __deepcopy__(self, memo: dict[int, Any]) -> TaskStarLine:
        return self.twin()

    # -- JSON ----------------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON data; a function by its name, under ``condition``."""
        return plan_records.line_to_dict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The line that ``to_dict`` wrote, in no plan. Its function has to be set again."""
        return plan_records.line_from_dict(cls, data)

    def to_json(self, save_path: str | None = None) -> str:
        return plan_records.write(self.to_dict(), save_path)

    @classmethod
    def from_json(cls, json_data: str | None = None, file_path: str | None = None) -> Self:
        return cls.from_dict(plan_records.read(json_data, file_path))

    def to_basemodel(self) -> TaskStarLineSchema:
        return TaskStarLineSchema.model_validate(self.to_dict())

    @classmethod
    def from_basemodel(cls, schema: TaskStarLineSchema) -> Self:
        return cls.from_dict(checked(schema, TaskStarLineSchema))

    def __repr__(self) -> str:
        return f"<TaskStarLine {self.from_task_id!r} -> {self.to_task_id!r} {self._type}>"

    # -- private names that the documents show -------------------------------------------------------------------------

    _line_id = ReadOnly("line_id", "a line keeps its id; add another line instead")
    _from_task_id = ReadOnly("from_task_id", "a line keeps its tasks; add another line instead")
    _to_task_id = ReadOnly("to_task_id", "a line keeps its tasks; add another line instead")
    _dependency_type = Alias("dependency_type")
    _condition_description = Alias("condition_description")
    _metadata = ReadOnly("metadata", "use update_metadata")
    _condition_evaluator = ReadOnly("condition_evaluator", "use set_condition_evaluator")

    @property
    def _is_satisfied(self) -> bool:
        return self.is_satisfied()

    @_is_satisfied.setter
    def _is_satisfied(self, value: bool) -> None:
        self.mark_satisfied() if value else self.reset_satisfaction()


class Lines:
    """The lines of a plan, found by their own id and by the pair of tasks that they join."""

    def __init__(self) -> None:
        self._by_pair: dict[tuple[str, str], TaskStarLine] = {}
        self._by_id: dict[str, TaskStarLine] = {}

    def add(self, line: TaskStarLine, home: Home) -> None:
        """Take a line in; one that has another home stays there and is copied."""
        line = line if line.home is None else line.twin()
        if line.line_id in self._by_id:  # two plans were merged that use the id for different tasks
            line.renamed()
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

    def find(self, source: str, target: str) -> TaskStarLine | None:
        return self._by_pair.get((source, target))

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
        """What the function says of the task's result; of a failed task it is asked about None."""
        evaluator = self._evaluators.get(text)
        if evaluator is None:
            return f"{text!r} is not known here"
        return evaluated(evaluator, result, text)


def evaluated(evaluator: Evaluator, result: Any, text: str) -> bool:
    """What a function says of a result.

    The documentation shows functions of what the device returned, its code hands over the ExecutionResult around that.
    Both work: the first is tried, and after an exception the second. If both raise, that counts as false."""
    raised: Exception | None = None
    for subject in [result.result, result] if isinstance(result, ExecutionResult) else [result]:
        try:
            return bool(evaluator(subject))
        except Exception as error:
            raised = raised or error
    logger.warning("the condition %r raised %r and counts as false", text, raised)
    return False
