"""Which of several devices gets a task.

Filter: capable, reachable, not excluded. Then one of four strategies. ``score`` is the default::

    40 * (1 - load) + 30 * connection quality + 20 * election rank + 10 * relevant capabilities

All four are in 0…1. Relevant capabilities are the share of what is wanted that the device has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from asterism.core.plan.ready_queue import Lane


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


def score_parts(
    device: Candidate, lane: Lane, weights: Weights = DEFAULT_WEIGHTS, wants: frozenset[str] = frozenset()
) -> dict[str, float]:
    """What the score is made of, by the names of the weights."""
    return {
        "load": weights.load * (1.0 - device.load),
        "connection": weights.connection * device.connection,
        "rank": weights.rank * device.rank,
        "capability": weights.capability * _relevant(device.can, wants or needs_of(lane)),
    }


def score(
    device: Candidate, lane: Lane, weights: Weights = DEFAULT_WEIGHTS, wants: frozenset[str] = frozenset()
) -> float:
    return sum(score_parts(device, lane, weights, wants).values())


def _relevant(can: frozenset[str], asked: frozenset[str]) -> float:
    """The share of what is asked for that a device has. ``asked`` is what is wanted, or needed if nothing is: every
    candidate has all of the latter, so only what is wanted tells candidates apart."""
    return len(asked & can) / len(asked) if asked else 0.0


def by_score(devices: Sequence[Candidate], lane: Lane) -> Candidate:
    return max(devices, key=lambda device: score(device, lane))


def round_robin(devices: Sequence[Candidate], lane: Lane) -> Candidate:
    return min(devices, key=lambda device: device.last_given)


def capability_match(devices: Sequence[Candidate], lane: Lane) -> Candidate:
    """The most specialised device that fits: it has the fewest capabilities the task does not ask for, and of equals
    the most of those it does."""
    asked = needs_of(lane)
    return min(devices, key=lambda device: (len(device.can - asked), -len(device.can & asked), device.load))


def load_balance(devices: Sequence[Candidate], lane: Lane) -> Candidate:
    return min(devices, key=lambda device: (device.load, device.running))


Strategy = Callable[[Sequence[Candidate], Lane], Candidate]

STRATEGIES: dict[str, Strategy] = {
    "score": by_score,
    "round_robin": round_robin,
    "capability_match": capability_match,
    "load_balance": load_balance,
}
