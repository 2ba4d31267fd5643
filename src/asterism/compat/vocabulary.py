"""The plain types of the documented API: states, kinds, execution results, events, refusals; and its names.

The text enumerations are strings, so a status compares equal to its name, whether that is a member or a string.

There are two sets of documented names, Galaxy and Orion (``Naming``). The private names that the documents show can be
read; writing one raises (``ReadOnly``), since the core holds the facts.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, IntEnum, StrEnum
from operator import attrgetter
from typing import Any, NoReturn, Protocol, Self, TypeVar

from asterism.core.errors import AsterismError, EditRejected, Violation
from asterism.core.plan.node_records import own_copy


class TaskStatus(StrEnum):
    """A task that waits for others is ``PENDING``; ``WAITING_DEPENDENCY`` is accepted and means the same."""

    PENDING = "pending"
    WAITING_DEPENDENCY = "waiting_dependency"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class TaskPriority(IntEnum):
    LOW = 1
    MEDIUM = 2
    HIGH = 3
    CRITICAL = 4


class DependencyType(StrEnum):
    """``UNCONDITIONAL`` and ``COMPLETION_ONLY`` fire when the task before has completed or failed, ``SUCCESS_ONLY``
    when it has completed, ``CONDITIONAL`` when a function of its result says so."""

    UNCONDITIONAL = "unconditional"
    CONDITIONAL = "conditional"
    SUCCESS_ONLY = "success_only"
    COMPLETION_ONLY = "completion_only"


class DeviceType(StrEnum):
    WINDOWS = "windows"
    MACOS = "macos"
    LINUX = "linux"
    ANDROID = "android"
    IOS = "ios"
    WEB = "web"
    API = "api"


class ConstellationState(StrEnum):
    """``CANCELLED`` is not in the documented list, which has no word for a cancelled run."""

    CREATED = "created"
    READY = "ready"
    EXECUTING = "executing"
    COMPLETED = "completed"
    FAILED = "failed"
    PARTIALLY_FAILED = "partially_failed"
    CANCELLED = "cancelled"


TERMINAL = frozenset({TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED})

STATE_LEVELS: dict[TaskStatus, int] = {
    TaskStatus.PENDING: 0,
    TaskStatus.WAITING_DEPENDENCY: 1,
    TaskStatus.RUNNING: 2,
    TaskStatus.COMPLETED: 3,
    TaskStatus.FAILED: 3,
    TaskStatus.CANCELLED: 3,
}
"""Progress of a task; all end states are on one level."""


def is_more_advanced(status: TaskStatus, other: TaskStatus) -> bool:
    return STATE_LEVELS[status] > STATE_LEVELS[other]


@dataclass
class ExecutionResult:
    """The answer of a device manager. ``status`` is a TaskStatus or its text, ``error`` an exception or a message."""

    task_id: str
    status: TaskStatus | str
    result: Any = None
    error: Exception | str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    start_time: datetime | None = None
    end_time: datetime | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """The error stays the same object: a copy would lose where it was raised."""
        twin = type(self).__new__(type(self))
        for name, value in vars(self).items():
            setattr(twin, name, value if name == "error" else own_copy(value))
        return twin

    @classmethod
    def of(cls, task_id: str, answer: Any) -> ExecutionResult:
        """Convert the answer of a device manager, which may be of another class with the same fields, or some of them.
        Without a status it is completed, unless it has an error."""
        if isinstance(answer, ExecutionResult):
            return answer
        if not hasattr(answer, "status") and not hasattr(answer, "result"):
            raise TypeError(f"the device manager answered {answer!r} for {task_id!r}, not an ExecutionResult")
        status, error = getattr(answer, "status", None), getattr(answer, "error", None)
        error = error if isinstance(error, Exception | str) else None
        if not isinstance(status, str | Enum):
            status = TaskStatus.COMPLETED if error is None else TaskStatus.FAILED
        return cls(task_id, status, getattr(answer, "result", None), error)  # type: ignore[arg-type]

    @property
    def is_successful(self) -> bool:
        return str(getattr(self.status, "value", self.status)).lower() in ("completed", "success")

    @property
    def execution_time(self) -> float | None:
        if self.start_time is None or self.end_time is None:
            return None
        return (self.end_time - self.start_time).total_seconds()


class DeviceManager(Protocol):
    """The methods of a device manager that the orchestrator calls."""

    async def assign_task_to_device(
        self, *, task_id: str, device_id: str, task_description: str, task_data: dict[str, Any], timeout: float
    ) -> ExecutionResult: ...

    def get_connected_devices(self) -> list[str]: ...

    def get_all_devices(self, connected: bool = False) -> Mapping[str, Any]: ...


class TaskFailed(RuntimeError):
    """A device manager reported a failure as text, not as an exception. ``execution`` is its whole answer."""

    def __init__(self, execution: ExecutionResult) -> None:
        self.execution = execution
        status = getattr(execution.status, "value", execution.status)
        reason = execution.error if execution.error is not None else execution.result
        super().__init__(str(reason) if reason is not None else f"the device reported {status!r} and no reason")


AnyEnum = TypeVar("AnyEnum", bound=Enum)


def member(kind: type[AnyEnum], value: Any) -> AnyEnum:
    """A member of an enumeration by itself, its name in any case, or its value. Raises ValueError."""
    if isinstance(value, str) and value.upper() in kind.__members__:
        return kind[value.upper()]
    return kind(value)


class EventType(Enum):
    TASK_STARTED = "task_started"
    TASK_COMPLETED = "task_completed"
    TASK_FAILED = "task_failed"
    CONSTELLATION_STARTED = "constellation_started"
    CONSTELLATION_COMPLETED = "constellation_completed"
    CONSTELLATION_FAILED = "constellation_failed"
    CONSTELLATION_MODIFIED = "constellation_modified"
    ORION_STARTED = "orion_started"
    ORION_COMPLETED = "orion_completed"
    ORION_FAILED = "orion_failed"
    ORION_MODIFIED = "orion_modified"
    DEVICE_CONNECTED = "device_connected"
    DEVICE_DISCONNECTED = "device_disconnected"


TASK_ENDS = frozenset({EventType.TASK_COMPLETED, EventType.TASK_FAILED})


@dataclass
class Event:
    event_type: EventType
    source_id: str
    timestamp: float
    data: dict[str, Any]


@dataclass
class TaskEvent(Event):
    task_id: str
    status: str
    result: Any = None
    error: BaseException | None = None


@dataclass
class ConstellationEvent(Event):
    constellation_id: str
    constellation_state: str
    new_ready_tasks: list[str] | None = None


@dataclass
class OrionEvent(Event):
    orion_id: str
    orion_state: str
    new_ready_tasks: list[str] | None = None


@dataclass
class DeviceEvent(Event):
    """A device connected or disconnected while a plan was running. ``all_devices`` holds the profile of each."""

    device_id: str
    device_status: str
    device_info: Any = None
    all_devices: dict[str, Any] = field(default_factory=dict)


class IEventObserver(ABC):
    @abstractmethod
    async def on_event(self, event: Event) -> None:
        """Called with one event after the other, in the order in which they were published."""


class ModificationRejected(EditRejected, ValueError):
    """A refused change; ``violations`` lists every reason."""


@contextlib.contextmanager
def refusing() -> Iterator[None]:
    """Raise errors of the core as ModificationRejected."""
    try:
        yield
    except ModificationRejected:
        raise
    except EditRejected as rejected:
        raise ModificationRejected(rejected.violations) from rejected
    except AsterismError as error:
        raise ModificationRejected([Violation(None, "invalid", str(error))]) from error


def refuse(rule: str, why: str) -> ModificationRejected:
    """The error for a change that breaks one rule."""
    return ModificationRejected([Violation(None, rule, why)])


# -- names -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Naming:
    """The names of a plan in attributes and in event data."""

    noun: str
    event: type[ConstellationEvent] | type[OrionEvent]

    @property
    def id_key(self) -> str:
        return f"{self.noun}_id"

    @property
    def new_key(self) -> str:
        return f"new_{self.noun}"

    def event_type(self, what: str) -> EventType:
        """``started``, ``completed``, ``failed`` or ``modified``."""
        return EventType(f"{self.noun}_{what}")


GALAXY = Naming("constellation", ConstellationEvent)
ORION = Naming("orion", OrionEvent)


class ReadOnly:
    """A private name that can only be read. ``instead`` says how to change what it shows."""

    def __init__(self, public: str, instead: str) -> None:
        self._read = attrgetter(public)
        self._instead = instead

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, thing: Any, owner: type) -> Any:
        return self if thing is None else self._read(thing)

    def __set__(self, thing: Any, value: Any) -> NoReturn:
        raise AttributeError(f"{type(thing).__name__}.{self._name} cannot be written: {self._instead}")
