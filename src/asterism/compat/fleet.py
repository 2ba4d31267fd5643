"""A device manager as devices of the runtime."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from asterism.compat.living import LivingPlan
from asterism.compat.specs import needs_of
from asterism.compat.vocabulary import DeviceManager, DeviceType, TaskFailed, member
from asterism.runtime.devices import Work
from asterism.runtime.orchestrator import Orchestrator

logger = logging.getLogger("asterism.compat.devices")


class ManagedDevice:
    """One device of a manager. There is no limit to what it does at once: the manager queues as it likes."""

    slots = None

    def __init__(self, id: str, can: frozenset[str], manager: DeviceManager, live: LivingPlan) -> None:
        self.id, self.can = id, can
        self._manager, self._live = manager, live

    async def execute(self, work: Work) -> Any:
        """The ExecutionResult of a success; anything else is raised, with what the manager said about it."""
        star = self._live.get_task(work.task.id)
        assert star is not None, "a task that runs cannot be removed"
        result = await star.execute(self._manager)
        if result.is_successful:
            return result
        raise result.error if isinstance(result.error, Exception) else TaskFailed(result)


class Fleet:
    """The connected devices of a manager, kept up to date with what it says."""

    def __init__(self, manager: DeviceManager, live: LivingPlan) -> None:
        self._manager, self._live = manager, live
        self._types = {
            device: _type_of(profile) for device, profile in manager.get_all_devices(connected=False).items()
        }
        self.here = {device: self._device(device) for device in manager.get_connected_devices()}

    @property
    def known(self) -> set[str]:
        """Every device the manager has heard of, connected or not."""
        return {*self._types, *self.here}

    def _device(self, device: str) -> ManagedDevice:
        """A device serves as its own type, and as the types that no device has: a wish nobody can fulfil is dropped."""
        own = self._types.get(device)
        present = {kind for kind in self._types.values() if kind is not None}
        serves = [kind for kind in DeviceType if own is None or kind is own or kind not in present]
        return ManagedDevice(device, frozenset().union(*map(needs_of, serves)), self._manager, self._live)

    def refresh(self, orchestrator: Orchestrator) -> None:
        """Let devices join and leave that have connected or disconnected since."""
        try:
            connected = set(self._manager.get_connected_devices())
        except Exception:
            logger.exception("the device manager could not say which devices are connected")
            return
        for device in connected - self.here.keys():
            self.here[device] = self._device(device)
            orchestrator.join(self.here[device])
        for device in self.here.keys() - connected:
            del self.here[device]
            orchestrator.leave(device)


def _type_of(profile: Any) -> DeviceType | None:
    """The type that a profile states as ``device_type`` or ``os``, if it is one of the documented ones."""
    for name in ("device_type", "os"):
        value = profile.get(name) if isinstance(profile, Mapping) else getattr(profile, name, None)
        try:
            return member(DeviceType, value)
        except ValueError:
            continue
    return None
