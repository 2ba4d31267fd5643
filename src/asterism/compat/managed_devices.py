"""The devices of a documented device manager as devices of an orchestrator."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from asterism.compat.task_star import TaskStar, needs_of
from asterism.compat.vocabulary import (
    DeviceManager,
    DeviceType,
    ExecutionResult,
    TaskFailed,
    member,
)
from asterism.core.errors import DeviceUnavailable
from asterism.orchestrator.devices import Work
from asterism.orchestrator.orchestrator import Orchestrator

logger = logging.getLogger("asterism.compat.devices")
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
        self._types = {device: _type_of(profile) for device, profile in profiles_of(manager).items()}
        self.here = {device: self._device(device) for device in manager.get_connected_devices()}

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


def part_of(profile: Any, name: str) -> Any:
    """An entry of a profile, which is a mapping or an object."""
    return profile.get(name) if isinstance(profile, Mapping) else getattr(profile, name, None)


def _type_of(profile: Any) -> DeviceType | None:
    """The type that a profile states as ``device_type`` or ``os``, if it is one of the documented ones."""
    for name in ("device_type", "os"):
        try:
            return member(DeviceType, part_of(profile, name))
        except ValueError:
            continue
    return None
