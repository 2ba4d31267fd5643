"""Read-only windows: on one task, and on a whole plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from asterism.core.errors import reason_of
from asterism.core.history import Entry
from asterism.core.plan.node import Node
from asterism.core.plan.status import PENDING, TERMINAL, TaskStatus
from asterism.core.plan.task import Dependency, Task

if TYPE_CHECKING:
    from asterism.core.plan.constellation import Constellation


class TaskView:
    """One task as it is now. It follows the task: read it later and it shows later facts."""

    __slots__ = ("_node",)

    def __init__(self, node: Node) -> None:
        self._node = node

    @property
    def id(self) -> str:
        return self._node.id

    @property
    def task(self) -> Task:
        return self._node.task

    @property
    def status(self) -> TaskStatus:
        return self._node.status

    @property
    def waiting(self) -> bool:
        """Pending with open dependencies."""
        return self._node.status is PENDING and self._node.open > 0

    @property
    def value(self) -> Any:
        """The result; None until the task's end stands (a provisional result is not shown)."""
        return self._node.value if self._node.status in TERMINAL else None

    @property
    def error(self) -> BaseException | None:
        return self._node.error if self._node.status in TERMINAL else None

    @property
    def reason(self) -> str:
        """Why it failed or was cancelled, in words."""
        return reason_of(self.error) or self._node.reason

    @property
    def provisional(self) -> bool:
        return self._node.provisional

    @property
    def device(self) -> str | None:
        return self._node.device

    @property
    def attempts(self) -> int:
        return self._node.attempts

    @property
    def started_at(self) -> float | None:
        return self._node.started_at

    @property
    def ended_at(self) -> float | None:
        return self._node.ended_at

    @property
    def dependencies(self) -> tuple[Dependency, ...]:
        """What this task waits for."""
        return tuple(self._node.parents.values())

    @property
    def dependents(self) -> tuple[str, ...]:
        """The tasks that wait for this one."""
        return tuple(self._node.children)

    def __repr__(self) -> str:
        return f"<task {self.id!r} {'waiting' if self.waiting else self.status}>"


class EndView(TaskView):
    """A task in the moment of its end, before that is recorded: what a predicate of ``edit_on`` sees."""

    __slots__ = ("_error", "_status", "_value")

    def __init__(self, node: Node, status: TaskStatus, value: Any, error: BaseException | None) -> None:
        super().__init__(node)
        self._status, self._value, self._error = status, value, error

    @property
    def status(self) -> TaskStatus:
        return self._status

    @property
    def value(self) -> Any:
        return self._value

    @property
    def error(self) -> BaseException | None:
        return self._error


class Upstream(Mapping[str, Any]):
    """The results of the tasks that one depends on, by id; read when asked for. A task that failed has None."""

    __slots__ = ("_nodes", "_sources")

    def __init__(self, nodes: Mapping[str, Node], sources: Mapping[str, Dependency]) -> None:
        self._nodes, self._sources = nodes, sources

    def __getitem__(self, task_id: str) -> Any:
        if task_id not in self._sources:
            raise KeyError(task_id)
        return self._nodes[task_id].value

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)

    def __repr__(self) -> str:
        return f"Upstream({dict(self)!r})"


class ConstellationView:
    """What an editor gets: a window on the live plan, and the version at which its cycle opened.

    It costs nothing and shows the plan as it is at each moment. ``frozen()`` gives a copy that stands still, which
    may also be changed and handed back as the answer."""

    __slots__ = ("_plan", "base_version")

    def __init__(self, plan: Constellation) -> None:
        self._plan = plan
        self.base_version = plan.version

    @property
    def id(self) -> str:
        return self._plan.id

    @property
    def version(self) -> int:
        return self._plan.version

    @property
    def dependencies(self) -> Iterator[Dependency]:
        return self._plan.dependencies

    def __getitem__(self, task_id: str) -> TaskView:
        return self._plan[task_id]

    def __contains__(self, task_id: object) -> bool:
        return task_id in self._plan

    def __iter__(self) -> Iterator[TaskView]:
        return iter(self._plan)

    def __len__(self) -> int:
        return len(self._plan)

    def modifiable(self) -> list[str]:
        """The tasks that an edit may change now."""
        return self._plan.modifiable()

    def story(self, task_id: str | None = None) -> list[Entry]:
        return self._plan.story(task_id)

    def frozen(self) -> Constellation:
        """A copy of the plan as it is now, free to be changed."""
        return self._plan.copy()
