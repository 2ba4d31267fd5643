"""The devices of a documented device manager: as devices of an orchestrator, and assigned to tasks.

``ManagedDevice`` and ``Fleet`` adapt the devices for a run. ``PlanRegistry`` is the documented ConstellationManager:
the registered plans, and the device of each task.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from asterism.compat.documented_plan import DocumentedPlan
from asterism.compat.task_star import TaskStar, needs_of
from asterism.compat.vocabulary import (
    GALAXY,
    Alias,
    DeviceManager,
    DeviceType,
    ExecutionResult,
    Naming,
    TaskFailed,
    member,
)
from asterism.core.errors import DeviceUnavailable
from asterism.core.json_values import JsonObject
from asterism.orchestrator.devices import Work
from asterism.orchestrator.orchestrator import Orchestrator

logger = logging.getLogger("asterism.compat.devices")
_assignment_logger = logging.getLogger("asterism.compat.assignments")

CONNECTED, DISCONNECTED = "connected", "disconnected"


class ManagedDevice:
    """One device of a manager. It has no limit of parallel tasks: the manager has its own queue."""

    slots = None

    def __init__(self, id: str, can: frozenset[str], fleet: Fleet) -> None:
        self.id, self.can = id, can
        self._fleet = fleet

    async def execute(self, work: Work) -> Any:
        """Return the ExecutionResult of a success. Raises the error that the manager reported otherwise."""
        if not self._fleet.is_connected(self.id):
            raise DeviceUnavailable(f"{self.id!r} has disconnected")
        self._fleet.add_execution(work.task.id)
        answer = await self._fleet.star(work.task.id).execute(self._fleet.manager)
        result = ExecutionResult.of(work.task.id, answer)  # a subclass of TaskStar may answer with a class of its own
        if result.is_successful:
            return result
        raise result.error if isinstance(result.error, Exception) else TaskFailed(result)


class Fleet:
    """The connected devices of a manager.

    ``star`` finds the handle of a task, ``changed`` is called when a device connects or disconnects."""

    def __init__(
        self, manager: DeviceManager, star: Callable[[str], TaskStar], changed: Callable[[str, str], None]
    ) -> None:
        self.manager, self.star = manager, star
        self._changed = changed
        self.executions: dict[str, asyncio.Task[Any]] = {}
        """The asyncio task of each task that is being executed."""
        self._types = {device: _type_of(profile) for device, profile in profiles_of(manager).items()}
        self.here = {device: self._device(device) for device in manager.get_connected_devices()}

    def add_execution(self, task_id: str) -> None:
        """Add the current asyncio task, until it ends."""
        execution = asyncio.current_task()
        assert execution is not None
        self.executions[task_id] = execution

        def remove(ended: asyncio.Task[Any]) -> None:
            if self.executions.get(task_id) is ended:
                del self.executions[task_id]

        execution.add_done_callback(remove)

    @property
    def known(self) -> set[str]:
        """Every device that the manager knows, connected or not."""
        return {*self._types, *self.here}

    def _device(self, device: str) -> ManagedDevice:
        """A device serves as its own type, and as each type that no device has, so that such a type is ignored."""
        own = self._types.get(device)
        present = {kind for kind in self._types.values() if kind is not None}
        serves = [kind for kind in DeviceType if own is None or kind is own or kind not in present]
        return ManagedDevice(device, frozenset().union(*map(needs_of, serves)), self)

    def _connected(self) -> set[str] | None:
        try:
            return set(self.manager.get_connected_devices())
        except Exception:
            logger.exception("the device manager could not list the connected devices")
            return None

    def is_connected(self, device: str) -> bool:
        """Whether the manager says so now; if it raises, its last answer."""
        connected = self._connected()
        return device in (self.here if connected is None else connected)

    def refresh(self, orchestrator: Orchestrator) -> None:
        """Let newly connected devices join and disconnected devices leave."""
        connected = self._connected()
        if connected is None:
            return
        for device in sorted(connected - self.here.keys()):
            self.here[device] = self._device(device)
            self._changed(device, CONNECTED)
            orchestrator.join(self.here[device])
        for device in sorted(self.here.keys() - connected):
            del self.here[device]
            self._changed(device, DISCONNECTED)
            orchestrator.leave(device)


def profiles_of(manager: Any) -> dict[str, Any]:
    """The profile of each device; empty if the device manager cannot list them."""
    try:
        profiles = manager.get_all_devices(connected=False)
    except Exception:
        logger.exception("the device manager could not list its devices")
        return {}
    return dict(profiles) if isinstance(profiles, Mapping) else {}


def part_of(profile: Any, name: str, default: Any = None) -> Any:
    """An entry of a profile, which is a mapping or an object."""
    return profile.get(name, default) if isinstance(profile, Mapping) else getattr(profile, name, default)


def _type_of(profile: Any) -> DeviceType | None:
    """The type that a profile states as ``device_type`` or ``os``, if it is one of the documented ones."""
    for name in ("device_type", "os"):
        try:
            return member(DeviceType, part_of(profile, name))
        except ValueError:
            continue
    return None


Chooser = Callable[[TaskStar], str]


class PlanRegistry:
    """The common part of ConstellationManager and OrionManager."""

    naming: ClassVar[Naming] = GALAXY

    def __init__(self, device_manager: DeviceManager | None = None, enable_logging: bool = True) -> None:
        self.device_manager = device_manager
        self._logging = enable_logging
        self._plans: dict[str, tuple[DocumentedPlan, dict[str, Any]]] = {}

    _device_manager = Alias("device_manager")

    # -- the plans -----------------------------------------------------------------------------------------------------

    def register(self, live: DocumentedPlan, metadata: Mapping[str, Any] | None = None) -> str:
        self._plans[live.plan_id] = (live, dict(metadata or {}))
        return live.plan_id

    def unregister(self, plan_id: str) -> bool:
        return self._plans.pop(plan_id, None) is not None

    def get(self, plan_id: str) -> DocumentedPlan | None:
        known = self._plans.get(plan_id)
        return None if known is None else known[0]

    def listed(self) -> list[JsonObject]:
        return [
            {**self._head(plan_id), "task_count": live.task_count, "dependency_count": live.dependency_count}
            for plan_id, (live, _) in self._plans.items()
        ]

    def _head(self, plan_id: str) -> JsonObject:
        live, metadata = self._plans[plan_id]
        return {self.naming.id_key: plan_id, "name": live.name, "state": live.state.value, "metadata": metadata}

    async def status(self, plan_id: str) -> JsonObject | None:
        """Progress of a registered plan; None if it is not registered."""
        if plan_id not in self._plans:
            return None
        live, _ = self._plans[plan_id]
        return {
            **self._head(plan_id),
            "statistics": live.get_statistics(),
            "ready_tasks": _ids(live.get_ready_tasks()),
            "running_tasks": _ids(live.get_running_tasks()),
            "completed_tasks": _ids(live.get_completed_tasks()),
            "failed_tasks": _ids(live.get_failed_tasks()),
        }

    # -- devices -------------------------------------------------------------------------------------------------------

    async def get_available_devices(self) -> list[JsonObject]:
        """The description of each connected device."""
        if self.device_manager is None:
            return []
        profiles = profiles_of(self.device_manager)
        return [_described(device, profiles.get(device)) for device in self.device_manager.get_connected_devices()]

    async def assign_devices_automatically(
        self, live: DocumentedPlan, strategy: str = "round_robin", device_preferences: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        """Give every task that has not started a device: the preferred one if it is connected, or by ``round_robin``,
        ``capability_match`` or ``load_balance``. All of it is one edit."""
        devices = await self.get_available_devices()
        if not devices:
            raise ValueError("no device is connected")
        if strategy not in _STRATEGIES:
            raise ValueError(f"strategy is one of {', '.join(_STRATEGIES)}, not {strategy!r}")
        ids, preferred = [device["device_id"] for device in devices], device_preferences or {}
        load: Counter[str] = Counter()
        choose, chosen = _STRATEGIES[strategy](devices, load), dict[str, str]()
        for task in live.get_pending_tasks():
            device = preferred.get(task.task_id)
            if device is None or device not in ids:
                device = choose(task)
            chosen[task.task_id] = device
            load[device] += 1
        live.update_tasks({task_id: {"target_device_id": device} for task_id, device in chosen.items()})
        if self._logging:
            _assignment_logger.info("%s: %d tasks have a device, by %s", live.plan_id, len(chosen), strategy)
        return chosen

    def reassign_task_device(self, live: DocumentedPlan, task_id: str, new_device_id: str) -> bool:
        """Give one task another device. False if there is no such task; ValueError if it has started."""
        task = live.get_task(task_id)
        if task is None:
            return False
        task.target_device_id = new_device_id
        return True

    def clear_device_assignments(self, live: DocumentedPlan) -> int:
        """Remove the devices of all tasks that have not started. Returns how many had one."""
        assigned = [task.task_id for task in live.get_pending_tasks() if task.target_device_id is not None]
        live.update_tasks({task_id: {"target_device_id": None} for task_id in assigned})
        return len(assigned)

    def validate(self, live: DocumentedPlan) -> tuple[bool, list[str]]:
        """Whether every task has a device."""
        errors = [
            f"task {task.task_id!r} has no device" for task in live.get_all_tasks() if task.target_device_id is None
        ]
        return not errors, errors

    def get_device_utilization(self, live: DocumentedPlan) -> dict[str, int]:
        """How many tasks each device has."""
        return dict(Counter(task.target_device_id for task in live.get_all_tasks() if task.target_device_id))

    def get_task_device_info(self, live: DocumentedPlan, task_id: str) -> JsonObject | None:
        """The description of a task's device; None if the task has no device or the device manager does not know it."""
        task = live.get_task(task_id)
        device = None if task is None else task.target_device_id
        profiles = {} if self.device_manager is None else profiles_of(self.device_manager)
        return _described(device, profiles[device]) if device is not None and device in profiles else None


def _ids(tasks: Iterable[TaskStar]) -> list[str]:
    return [task.task_id for task in tasks]


def _described(device: str, profile: Any) -> JsonObject:
    kind = part_of(profile, "device_type") or part_of(profile, "os") or "unknown"
    return {
        "device_id": device,
        "device_type": str(getattr(kind, "value", kind)).lower(),
        "capabilities": list(part_of(profile, "capabilities") or []),
        "status": CONNECTED,
        "metadata": dict(part_of(profile, "metadata") or {}),
    }


def _round_robin(devices: list[JsonObject], load: Counter[str]) -> Chooser:
    turns = itertools.cycle(device["device_id"] for device in devices)
    return lambda task: str(next(turns))


def _capability_match(devices: list[JsonObject], load: Counter[str]) -> Chooser:
    def choose(task: TaskStar) -> str:
        fitting = [device for device in devices if device["device_type"] == task.device_type]
        return str((fitting or devices)[0]["device_id"])

    return choose


def _load_balance(devices: list[JsonObject], load: Counter[str]) -> Chooser:
    return lambda task: str(min((device["device_id"] for device in devices), key=lambda device: load[device]))


_STRATEGIES: dict[str, Callable[[list[JsonObject], Counter[str]], Chooser]] = {
    "round_robin": _round_robin,
    "capability_match": _capability_match,
    "load_balance": _load_balance,
}
