"""Roster of an orchestrator: the joined devices, and the choice of one for a task."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from asterism.core.json_values import NOTHING
from asterism.core.plan.constellation import Upstream
from asterism.core.plan.edit_rules import KnownDevices
from asterism.core.plan.node import Node
from asterism.core.plan.ready_queue import ReadyQueue
from asterism.core.plan.task import Lane, Task, lane_of, plugins_in
from asterism.core.record import field
from asterism.core.run.placement import STRATEGIES, Candidate, Strategy, capable, needed_capabilities
from asterism.execution.plugin_actions import plugin_capabilities
from asterism.orchestrator.devices import Device, LocalDevice, Work

if TYPE_CHECKING:
    from asterism.orchestrator.execution import Execution

logger = logging.getLogger("asterism.roster")


PROCESS, DEVICE = "process", "device"
"""How a record names who made a result: the process that ran the plan, by its machine, or a device."""


class Member(Candidate, kw_only=True, eq=False):
    """A device that has joined, and its load."""

    device: Device = field()
    left: bool = False
    waiting_lanes: dict[tuple[ReadyQueue, Lane], None] = field(default_factory=dict)
    """Lanes that wait for a slot of this device."""


class Roster:
    """The joined devices. Which of them can serve a lane is computed once, and again when a device joins or leaves."""

    def __init__(self, devices: Iterable[Device], strategy: str | Strategy) -> None:
        if isinstance(strategy, str) and strategy not in STRATEGIES:
            raise ValueError(f"strategy must be one of {', '.join(STRATEGIES)}, not {strategy!r}")
        self._strategy = STRATEGIES[strategy] if isinstance(strategy, str) else strategy
        self._members: dict[str, Member] = {}
        self._capable: dict[Lane, list[Member]] = {}
        self._assigned = 0
        self._seen: set[str] = set()  # names of all that ever joined
        for device in devices:
            self.join(device)

    def join(self, device: Device) -> Member:
        if device.slots is not None and device.slots < 1:
            raise ValueError(f"device {device.id!r}: slots must be 1 or more, or None for no limit, not {device.slots}")
        if device.id in self._members:
            raise ValueError(f"a device {device.id!r} has joined already")
        member = self._members[device.id] = Member(device.id, frozenset(device.can), device.slots, device=device)
        self._seen.add(device.id)
        self._capable.clear()
        return member

    def known_devices(self) -> KnownDevices | None:
        """The devices that an edit may name; None for any."""
        return KnownDevices(frozenset(self._seen))

    async def learn_devices(self) -> None:
        """Called before the answer of an editor is judged: the devices may have changed."""

    def leave(self, device_id: str) -> Member:
        try:
            member = self._members.pop(device_id)
        except KeyError:
            raise ValueError(f"no device {device_id!r} has joined; the devices are {self.names()}") from None
        member.left = True
        self._capable.clear()
        return member

    def find(self, device_id: str) -> Member | None:
        return self._members.get(device_id)

    def resumes(self, node: Node) -> Member | None:
        """The device that an earlier process gave a running task to, if it may have the task still."""
        return None if node.device is None else self.find(node.device)

    def names(self) -> str:
        return ", ".join(self._members) or "none"

    def profiles(self) -> list[tuple[str, frozenset[str], int | None]]:
        """Id, capabilities and slots of each device."""
        return [(member.id, frozenset(member.device.can), member.slots) for member in self._members.values()]

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    @property
    def slots(self) -> int | None:
        """How many tasks the devices can run at once; None if one of them has no limit."""
        slots = [member.slots for member in self._members.values()]
        return None if None in slots else sum(slot for slot in slots if slot is not None)

    def serves(self, member: Member, lane: Lane) -> bool:
        """Whether a device can run the tasks of a lane. The plug-ins of this process are looked up only for a lane that
        needs one."""
        if isinstance(member.device, LocalDevice) and plugins_in(needed_capabilities(lane)):
            member.can |= plugin_capabilities()
        return capable(member, lane)

    def capable(self, lane: Lane) -> list[Member]:
        """The devices that can serve a lane, busy or not."""
        members = self._capable.get(lane)
        if members is None:
            members = self._capable[lane] = [member for member in self._members.values() if self.serves(member, lane)]
        return members

    async def could_run(self, maker: Sequence[str], plan_id: str, task: Task) -> bool:
        """Whether the device that made a recorded result could run the task now."""
        return maker in [await self.maker(plan_id, member.id) for member in self.capable(lane_of(task))]

    async def maker(self, plan_id: str, device: str, began_at: float = math.inf) -> Sequence[str]:
        """How the record of a result names the device of a plan that made it: the one of that name when the execution
        began. Unless the plan file names others, the device of this process has the name of the machine: with and
        without a store, its records are the same."""
        member = self.find(device)
        return [PROCESS if member is not None and isinstance(member.device, LocalDevice) else DEVICE, device]

    def choose(self, lane: Lane) -> Member | None:
        """The device for the next task of a lane; None if all capable devices are busy, or there is none."""
        members = self._capable.get(lane) or self.capable(lane)
        if len(members) == 1:
            (member,) = members
            full = member.slots is not None and member.running >= member.slots
            return None if full or not member.reachable else member
        free = [member for member in members if member.free]
        if not free:
            return None
        try:
            chosen = self._strategy(free, lane)
        except Exception:
            logger.exception("the strategy raised; using the first free device")
            return free[0]
        if chosen in free:
            return chosen
        logger.error("the strategy chose %r, which is not a free device; using the first free device", chosen)
        return free[0]

    def assign(self, member: Member) -> int:
        """Take a slot of a device. Returns a serial number."""
        member.running += 1
        self._assigned += 1
        member.last_given = self._assigned
        return self._assigned

    def release(self, member: Member) -> None:
        """Free a slot of a device, and make the lanes that wait for it active again."""
        member.running -= 1
        if member.waiting_lanes:
            for queue, lane in member.waiting_lanes:
                queue.activate(lane)
            member.waiting_lanes.clear()

    def set_aside(self, queue: ReadyQueue, lane: Lane) -> None:
        """All capable devices are busy: skip the lane until one of them has a free slot."""
        queue.deactivate(lane)
        for member in self.capable(lane):
            member.waiting_lanes[queue, lane] = None


class Active(Work, kw_only=True, eq=False):
    """A task that runs on a device: the work, and what the orchestrator knows of its progress."""

    node: Node
    member: Member
    owner: Execution
    resumed: bool = False  # an earlier process started it, and it may be under way
    begun: bool = False
    stops: bool = False  # it was asked to stop before it began here
    durable: bool = False  # the process of a stored plan executes it, and its start is in the journal
    delay: float | None = None  # after a timeout: seconds until the next attempt
    job: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None

    @property
    def results(self) -> Mapping[str, Any]:
        sources = self.node.parents
        return Upstream(self.plan.nodes, sources) if sources else NOTHING
