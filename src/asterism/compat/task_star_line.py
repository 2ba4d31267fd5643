"""The documented dependency (TaskStarLine), and conditions as Python functions.

In the core a condition is text. The ``Conditions`` of a plan store each function under its own text. A copy of the plan
has the same text, so the function is found again when the copy comes back, even through JSON.

The fields of a line are an immutable record in a table: that of its plan or, for a line in no plan, one of its own. A
copy of a plan shares the records, and makes a line only when somebody asks for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, TypeVar
from uuid import uuid4

from asterism.compat.plan_records import JsonForm, TaskStarLineSchema, as_json, read_moment
from asterism.compat.vocabulary import (
    Alias,
    DependencyType,
    ExecutionResult,
    ReadOnly,
    member,
    refuse,
)
from asterism.core.json_values import JsonObject
from asterism.core.plan.node_records import own_copy
from asterism.core.plan.status import TaskStatus
from asterism.core.plan.task import Dependency

if TYPE_CHECKING:
    from asterism.compat.documented_plan import DocumentedPlan

logger = logging.getLogger("asterism.compat.conditions")

Evaluator = Callable[[Any], Any]
Value = TypeVar("Value")


class LineRecord(NamedTuple):
    """The fields of a line. Nothing changes one, not even its ``facts``: plans share it."""

    line_id: str
    type: DependencyType
    evaluator: Evaluator | None
    condition: str | None
    description: str
    facts: Mapping[str, Any]
    evaluated: tuple[bool, datetime] | None
    created: datetime
    edited: datetime


_GIVEN = (
    *("from_task_id", "to_task_id", "dependency_type", "condition_description", "condition_evaluator", "line_id"),
    *("metadata", "condition"),
)
"""The fields of a line in JSON that are also arguments of its constructor, and its function."""

_WRITTEN = (
    *(name for name in _GIVEN if name != "condition_evaluator"),
    *("last_evaluation_result", "last_evaluation_time", "created_at", "updated_at"),
)

Pair = tuple[str, str]
"""The tasks of a line: from, to."""


class _Fact(Generic[Value]):
    """A field of the record of a line."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._field = name.removeprefix("_")

    def __get__(self, line: TaskStarLine, owner: type | None = None) -> Value:
        fact: Value = getattr(line.record, self._field)
        return fact

    def __set__(self, line: TaskStarLine, value: Value) -> None:
        change: dict[str, Any] = {self._field: value}
        line.record = line.record._replace(**change)


class TaskStarLine(JsonForm):
    """``to_task_id`` waits for ``from_task_id``. A conditional line without a function waits for success."""

    schema = TaskStarLineSchema

    _type = _Fact[DependencyType]()
    _evaluator = _Fact["Evaluator | None"]()
    _condition = _Fact["str | None"]()
    _description = _Fact[str]()
    _facts = _Fact[Mapping[str, Any]]()
    _evaluated = _Fact["tuple[bool, datetime] | None"]()
    _created = _Fact[datetime]()
    _edited = _Fact[datetime]()

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
        self._id, self._ends, now = line_id or str(uuid4()), (from_task_id, to_task_id), datetime.now(UTC)
        kind, description = member(DependencyType, dependency_type), condition_description or ""
        facts = own_copy(dict(metadata or {}))
        self.detach(LineRecord(self._id, kind, condition_evaluator, None, description, facts, None, now, now))
        self._condition = condition or self._name_condition()  # the text under which the core knows the function

    @classmethod
    def of(cls, pair: Pair, table: dict[Pair, LineRecord], home: DocumentedPlan) -> TaskStarLine:
        """Make the handle of a line of a plan, whose records are in ``table``."""
        line = cls.__new__(cls)
        line._id, line._ends = table[pair].line_id, pair
        line.bind(table, home)
        return line

    def bind(self, table: dict[Pair, LineRecord], home: DocumentedPlan | None) -> None:
        self._table, self._home = table, home

    def detach(self, record: LineRecord) -> None:
        """Leave its plan, with the fields of ``record``."""
        self.bind({self._ends: record}, None)

    @property
    def record(self) -> LineRecord:
        """Its fields. Its plan is brought up to date before they are read."""
        _ = self.home
        return self._table[self._ends]

    @record.setter
    def record(self, value: LineRecord) -> None:
        self._table[self._ends] = value

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
        label = self.condition_description or getattr(self._evaluator, "__name__", "condition")
        return f"{label} #{uuid4().hex[:12]}"

    @property
    def home(self) -> DocumentedPlan | None:
        """The plan that it belongs to, if it is in one."""
        if self._home is not None:
            self._home.refresh()
        return self._home

    # -- tasks ---------------------------------------------------------------------------------------------------------

    @property
    def line_id(self) -> str:
        return self._id

    @property
    def from_task_id(self) -> str:
        return self._ends[0]

    @property
    def to_task_id(self) -> str:
        return self._ends[1]

    source_task_id, target_task_id = from_task_id, to_task_id

    @property
    def dependency(self) -> Dependency:
        """The line as a dependency of the core. Raises ValueError for a task that waits for itself."""
        return self.as_dependency(self._type, self._condition)

    def as_dependency(self, kind: DependencyType, condition: str | None) -> Dependency:
        """The dependency of the core for another type or condition."""
        if kind is DependencyType.CONDITIONAL and condition is not None:
            return Dependency(*self._ends, "completion", condition)
        success = kind in (DependencyType.SUCCESS_ONLY, DependencyType.CONDITIONAL)
        return Dependency(*self._ends, "success" if success else "completion")

    # -- type and condition --------------------------------------------------------------------------------------------

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
        """The text under which the plan knows the function."""
        return self._condition

    @condition.setter
    def condition(self, value: str | Evaluator | None) -> None:
        """A function, another text for the function of this line, the text of one that the plan knows, or None for no
        condition."""
        if callable(value):
            self.set_condition_evaluator(value)
        else:
            self._set_condition(None if value is None else self._evaluator, value)

    @property
    def condition_evaluator(self) -> Evaluator | None:
        return self._evaluator

    def set_condition_evaluator(self, evaluator: Evaluator) -> None:
        """Use another function from now on."""
        self._set_condition(evaluator, None)

    def _set_condition(self, evaluator: Evaluator | None, condition: str | None) -> None:
        before = self._evaluator, self._condition
        self._evaluator = evaluator
        self._condition = condition or self._name_condition()
        try:
            if self.home is not None:
                self.home.relink(self.dependency, self._evaluator)
        except ValueError:
            self._evaluator, self._condition = before
            raise
        self._evaluated = None
        self._touch()

    @property
    def condition_description(self) -> str:
        return self._description

    @condition_description.setter
    def condition_description(self, value: str) -> None:
        self._description = value
        self._touch()

    @property
    def metadata(self) -> JsonObject:
        """A copy; ``update_metadata`` changes it."""
        return own_copy(dict(self._facts))  # type: ignore[no-any-return]

    def update_metadata(self, metadata: Mapping[str, Any]) -> None:
        self._facts = {**self._facts, **own_copy(dict(metadata))}
        self._touch()

    def _touch(self) -> None:
        self._edited = datetime.now(UTC)

    # -- whether it is satisfied ---------------------------------------------------------------------------------------

    def is_satisfied(self, completed_tasks: Collection[str] | None = None) -> bool:
        """Whether the task before is among ``completed_tasks``. Without these: the verdict of the plan or, for a line
        in no plan, the last result of ``evaluate_condition`` or ``mark_satisfied``."""
        if completed_tasks is not None:
            return self.from_task_id in completed_tasks
        return self.last_evaluation_result is True

    def evaluate_condition(self, prerequisite_result: Any) -> bool:
        """Whether such a result would satisfy the line; None means a failure. It changes nothing in a plan: the plan
        evaluates the condition itself when the task ends."""
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

    def detached_copy(self) -> TaskStarLine:
        """The same line, outside any plan."""
        twin = TaskStarLine(self.from_task_id, self.to_task_id, line_id=self.line_id)
        twin.copy_from(self)
        return twin

    def copy_from(self, other: TaskStarLine) -> None:
        """Take over all fields of another line between the same tasks."""
        self.record = other.record._replace(line_id=self._id)

    def renamed(self) -> None:
        """Take a new id, because two merged plans use this id for different tasks."""
        self._id = str(uuid4())
        self.record = self.record._replace(line_id=self._id)

    def __deepcopy__(self, memo: dict[int, Any]) -> TaskStarLine:
        return self.detached_copy()

    # -- JSON ----------------------------------------------------------------------------------------------------------

    def to_dict(self) -> JsonObject:
        """Everything as JSON data; a function by its name, under ``condition``."""
        return {**{name: as_json(getattr(self, name)) for name in _WRITTEN}, "is_satisfied": self.is_satisfied()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read a line that ``to_dict`` wrote; it is in no plan. Its function has to be set again."""
        for end in ("from_task_id", "to_task_id"):
            if not data.get(end):
                raise ValueError(f"a line needs {end!r}: {dict(data)!r:.200}")
        line = cls(**{name: data[name] for name in _GIVEN if data.get(name)})
        verdict, when = data.get("last_evaluation_result"), data.get("last_evaluation_time")
        if verdict is not None:
            line._evaluated = (bool(verdict), read_moment(when) if when else datetime.now(UTC))
        if data.get("created_at"):
            line._created = line._edited = read_moment(data["created_at"])
        if data.get("updated_at"):
            line._edited = read_moment(data["updated_at"])
        return line

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
    """The lines of a plan, by their id and by their pair of tasks. It makes a line when somebody asks for it, and from
    then on returns the same object."""

    def __init__(self, home: DocumentedPlan) -> None:
        self._home = home
        self._records: dict[Pair, LineRecord] = {}  # always the same dictionary: lines read and write it
        self._pairs: dict[str, Pair] = {}
        self._made: dict[Pair, TaskStarLine] = {}

    def add(self, line: TaskStarLine) -> None:
        """Add a line. A line of another plan stays there and is copied."""
        line = line if line.home is None else line.detached_copy()
        if line.line_id in self._pairs:  # two merged plans use the id for different tasks
            line.renamed()
        pair = line.from_task_id, line.to_task_id
        self._records[pair], self._pairs[line.line_id], self._made[pair] = line.record, pair, line
        line.bind(self._records, self._home)

    def take_over(self, line: TaskStarLine) -> None:
        """Take over a line of another plan. A line that exists here stays the same object."""
        pair = line.from_task_id, line.to_task_id
        here = self._records.get(pair)
        if here is not None and here.line_id == line.line_id:
            self._records[pair] = line.record
        else:
            self.drop(*pair)
            self.add(line.detached_copy())

    def copy_from(self, other: Lines) -> None:
        """Become a copy of the lines of another plan. It shares their records, and visits only the lines that were made
        here: they stay valid, or leave the plan."""
        for pair, line in tuple(self._made.items()):
            there = other._records.get(pair)
            if there is None or there.line_id != line.line_id:
                self.drop(*pair)
        self._records.clear()
        self._records.update(other._records)
        self._pairs = dict(other._pairs)

    def drop(self, source: str, target: str) -> None:
        record = self._records.pop((source, target), None)
        line = self._made.pop((source, target), None)
        if record is not None:
            del self._pairs[record.line_id]
        if record is not None and line is not None:
            line.detach(record)

    def get(self, line_id: str) -> TaskStarLine | None:
        pair = self._pairs.get(line_id)
        return None if pair is None else self.of(*pair)

    def find(self, source: str, target: str) -> TaskStarLine | None:
        return self.of(source, target) if (source, target) in self._records else None

    def of(self, source: str, target: str) -> TaskStarLine:
        pair = source, target
        if pair not in self._made:
            self._made[pair] = TaskStarLine.of(pair, self._records, self._home)
        return self._made[pair]

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[TaskStarLine]:
        return (self.of(*pair) for pair in tuple(self._records))


class Conditions:
    """Evaluates conditions for an orchestrator: functions by their text."""

    def __init__(self) -> None:
        self._evaluators: dict[str, Evaluator] = {}

    def register(self, condition: str | None, evaluator: Evaluator | None) -> None:
        if condition is not None and evaluator is not None:
            self._evaluators[condition] = evaluator

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
