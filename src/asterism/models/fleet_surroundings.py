"""What surrounds a plan in a store, for the prompt of its editor: the devices of the fleet, and the output of tasks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from asterism.core.run.session import ABROAD, is_reserved
from asterism.fleet.joinable_devices import DEVICES
from asterism.fleet.retention import PREFIX
from asterism.models.device_aliases import DeviceAliases
from asterism.store.protocol import Query

if TYPE_CHECKING:
    from asterism.fleet.fleet import Fleet


async def fleet_devices(fleet: Fleet) -> list[tuple[str, Iterable[str], int | None]]:
    """Id, capabilities and slots of the devices that take work, in the order of their names."""
    now = fleet.store.clock()
    sessions = [
        session
        for session in await fleet.store.sessions()
        if session.reachable(now) and session.slots and not session.draining
    ]
    return sorted((session.device, sorted(session.can), session.slots) for session in sessions)


async def known_capabilities(fleet: Fleet) -> frozenset[str]:
    """The capabilities that people of the fleet have written: in invitations of devices, in workflows, and on devices
    that join with access to the store. What a device behind a gateway or of a peer says is its own word."""
    enrolled = {register.key.removeprefix(DEVICES): register.value for register in await fleet.store.registers(DEVICES)}
    words = {word for value in enrolled.values() for word in value["can"] or ()}
    for session in await fleet.store.sessions():
        if session.device not in enrolled and session.state != ABROAD:
            words |= session.can
    return frozenset(words.union(*(flow.needs | flow.wants for flow in await fleet.workflows.all())))


async def fleet_aliases(fleet: Fleet) -> DeviceAliases:
    """Aliases for all devices that the fleet knows. Processes that run plans, and servers, are not among them: no
    machine can choose such a name."""
    sessions = await fleet.store.sessions(ended=True)
    names = {session.device for session in sessions if session.state == ABROAD or not is_reserved(session.device)}
    enrolled = {register.key.removeprefix(DEVICES) for register in await fleet.store.registers(DEVICES)}
    return DeviceAliases(names | enrolled)


async def task_output(fleet: Fleet, plan: str, task: str, epoch: int) -> str:
    """What the last attempt of an execution printed."""
    for run in await fleet.store.find(Query(key=f"{PREFIX}{plan}/{task}/{epoch}")):
        logs = await fleet.logs(run.id)
        if logs:
            return logs[-1].text
    return ""
