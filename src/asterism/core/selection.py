"""Which of several devices gets a task.

Filter: capable, reachable, not excluded. Then one of four strategies. ``score`` is the default::

    40 * (1 - load) + 30 * connection quality + 20 * election rank + 10 if it has a capability the task names

Loads, qualities and ranks are in 0…1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from asterism.core.ready import Lane


@dataclass(frozen=True, slots=True)
class Weights:
    load: float = 40.0
    connection: float = 30.0
    rank: float = 20.0
    capability: float = 10.0


@dataclass(slots=True, eq=False)
class Candidate:
    """What selection knows of a device."""

    id: str
    can: frozenset[str] = frozenset()
    slots: int | None = None  # None: as many as there are
    running: int = 0
    connection: float = 1.0
    rank: float = 0.0
    reachable: bool = True
    last_given: int = 0  # when it was given work last, as a serial number: the memory of round_robin

    @property
    def load(self) -> float:
        """The share of its slots in use. A device without a limit grows busier for ever and is never full."""
        return self.running / (self.slots if self.slots is not None else self.running + 1)

    @property
    def free(self) -> bool:
        return self.reachable and (self.slots is None or self.running < self.slots)


def capable(device: Candidate, lane: Lane) -> bool:
    """Whether the device is of the kind that the tasks of a lane ask for."""
    if lane is None:
        return True
    wanted, needs = lane
    return (wanted is None or wanted == device.id) and needs <= device.can


def needs_of(lane: Lane) -> frozenset[str]:
    return lane[1] if lane is not None else frozenset()


DEFAULT_WEIGHTS = Weights()


def score(device: Candidate, lane: Lane, weights: Weights = DEFAULT_WEIGHTS) -> float:
    relevant = bool(needs_of(lane) & device.can)
    return (
        weights.load * (1.0 - device.load)
        + weights.connection * device.connection
        + weights.rank * device.rank
        + weights.capability * relevant
    )


def by_score(devices: Sequence[Candidate], lane: Lane) -> Candidate:
    return max(devices, key=lambda device: score(device, lane))


def round_robin(devices: Sequence[Candidate], lane: Lane) -> Candidate:
    return min(devices, key=lambda device: device.last_given)


def capability_match(devices: Sequence[Candidate], lane: Lane) -> Candidate:
    """The most specialised device that fits: it has the fewest capabilities the task does not ask for."""
    return min(devices, key=lambda device: (len(device.can - needs_of(lane)), device.load))


def load_balance(devices: Sequence[Candidate], lane: Lane) -> Candidate:
    return min(devices, key=lambda device: (device.load, device.running))


Strategy = Callable[[Sequence[Candidate], Lane], Candidate]

STRATEGIES: dict[str, Strategy] = {
    "score": by_score,
    "round_robin": round_robin,
    "capability_match": capability_match,
    "load_balance": load_balance,
}
