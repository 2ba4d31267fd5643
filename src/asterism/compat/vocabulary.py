"""The plain types of the documented API: states, kinds, execution results, events, refusals; and its names.

The text enumerations are strings, so a status compares equal to its name, whether that is a member or a string.

There are two sets of documented names, Galaxy and Orion (``Naming``). Reading a documented private name works; writing
it has an effect or raises (``Alias``, ``ReadOnly``). With an ordinary attribute the write would succeed and change
nothing, since the core holds the facts.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
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


@dataclass
class TaskConfiguration:
    """Settings of a task in one object, for ``TaskStar(config=…)``. ``retry_delay`` is the first wait before another
    attempt, in seconds; ``metadata`` goes into the task's data."""

    timeout: float | None = None
    retry_count: int = 0
    retry_delay: float = 1.0
    priority: TaskPriority | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


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
    AGENT_RESPONSE = "agent_response"
    AGENT_ACTION = "agent_action"
    DEVICE_CONNECTED = "device_connected"
    DEVICE_DISCONNECTED = "device_disconnected"
    DEVICE_STATUS_CHANGED = "device_status_changed"


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
class AgentEvent(Event):
    """An agent's response (``AGENT_RESPONSE``) or action (``AGENT_ACTION``). Only agents publish these."""

    agent_name: str
    agent_type: str
    output_type: str
    output_data: dict[str, Any] = field(default_factory=dict)


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


class IEventPublisher(ABC):
    @abstractmethod
    def subscribe(self, observer: IEventObserver, event_types: Iterable[EventType] | None = None) -> None: ...

    @abstractmethod
    def unsubscribe(self, observer: IEventObserver) -> None: ...

    @abstractmethod
    async def publish_event(self, event: Event) -> None: ...


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


class Alias:
    """A private name for a public attribute: reading and writing go there, with all its checks. ``write`` names the
    method that takes a new value, if it is not just set."""

    def __init__(self, public: str, write: str | None = None) -> None:
        self._read, self._write = attrgetter(public), write
        self._owner, _, self._name = f".{public}".rpartition(".")

    def __get__(self, thing: Any, owner: type) -> Any:
        return self if thing is None else self._read(thing)

    def __set__(self, thing: Any, value: Any) -> None:
        if self._write is not None:
            attrgetter(self._write)(thing)(value)
        else:
            setattr(attrgetter(self._owner[1:])(thing) if self._owner else thing, self._name, value)


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
