"""The devices of an orchestrator, and which of them takes a task."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from asterism.core.plan.ready_queue import Lane, ReadyQueue
from asterism.core.run.placement import STRATEGIES, Candidate, Strategy, capable
from asterism.orchestrator.devices import Device

logger = logging.getLogger("asterism.roster")


class Place(Candidate):
    """A device that has joined, with what selection needs to know of it."""

    __slots__ = ("awaited", "device", "left")

    def __init__(self, device: Device) -> None:
        super().__init__(device.id, frozenset(device.can), device.slots)
        self.device = device
        self.left = False
        self.awaited: dict[tuple[ReadyQueue, Lane], None] = {}  # who was set aside because this one, too, is busy


class Roster:
    """Who is here. Which devices could serve a lane is worked out once, and again when somebody joins or leaves."""

    def __init__(self, devices: Iterable[Device], strategy: str | Strategy) -> None:
        if isinstance(strategy, str) and strategy not in STRATEGIES:
            raise ValueError(f"strategy is one of {', '.join(STRATEGIES)}, not {strategy!r}")
        self._strategy = STRATEGIES[strategy] if isinstance(strategy, str) else strategy
        self._places: dict[str, Place] = {}
        self._capable: dict[Lane, list[Place]] = {}
        self._given = 0
        for device in devices:
            self.join(device)

    def join(self, device: Device) -> Place:
        if device.slots is not None and device.slots < 1:
            raise ValueError(f"device {device.id!r}: slots is 1 or more, or None for no limit, not {device.slots}")
        if device.id in self._places:
            raise ValueError(f"there is a device {device.id!r} already")
        place = self._places[device.id] = Place(device)
        self._capable.clear()
        return place

    def leave(self, device_id: str) -> Place:
        try:
            place = self._places.pop(device_id)
        except KeyError:
            raise ValueError(f"there is no device {device_id!r}; the devices are {self.names()}") from None
        place.left = True
        self._capable.clear()
        return place

    def find(self, device_id: str) -> Place | None:
        return self._places.get(device_id)

    def names(self) -> str:
        return ", ".join(self._places) or "none"

    def __iter__(self) -> Iterator[Place]:
        return iter(self._places.values())

    @property
    def slots(self) -> int | None:
        """How much can run at once in all; None if some device has no limit."""
        slots = [place.slots for place in self._places.values()]
        return None if None in slots else sum(slot for slot in slots if slot is not None)

    def capable(self, lane: Lane) -> list[Place]:
        """The devices that could serve a lane, busy or not."""
        found = self._capable.get(lane)
        if found is None:
            found = self._capable[lane] = [place for place in self._places.values() if capable(place, lane)]
        return found

    def choose(self, lane: Lane) -> Place | None:
        """The device for the next task of a lane; None if every capable one is busy, or there is none."""
        places = self.capable(lane)
        if len(places) == 1:
            return places[0] if places[0].free else None
        free = [place for place in places if place.free]
        if not free:
            return None
        try:
            chosen = self._strategy(free, lane)
        except Exception:
            logger.exception("the strategy failed; the first free device is taken")
            return free[0]
        if chosen in free:
            return chosen
        logger.error("the strategy chose %r, which is no free device; the first free one is taken", chosen)
        return free[0]

    def give(self, place: Place) -> int:
        """A task goes to a device. Returns a serial number."""
        place.running += 1
        self._given += 1
        place.last_given = self._given
        return self._given

    def take_back(self, place: Place) -> None:
        """A slot of a device is free: the lanes that waited for it are worth a look again."""
        place.running -= 1
        if place.awaited:
            for queue, lane in place.awaited:
                queue.activate(lane)
            place.awaited.clear()

    def set_aside(self, queue: ReadyQueue, lane: Lane) -> None:
        """Every device that could serve the lane is busy; any of them that becomes free brings it back."""
        queue.deactivate(lane)
        for place in self.capable(lane):
            place.awaited[queue, lane] = None
