"""The coordinator: an elected device that monitors the others and delivers notices; and its deputy.

Every device stands for election. The coordinator runs the passes of the monitor (monitor.py) and delivers notices to
people (below). The deputy observes what the coordinator observes, so that it can act for a coordinator that dies.
A device has at most one of the two roles.

A role is a lease in the store, with a growing epoch. Correctness does not depend on there being only one coordinator;
the lease saves work. A holder that cannot renew it stops a little before it expires, by its own clock.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

from asterism.base.clock import Clock
from asterism.base.error_log import RecurringError
from asterism.base.secret_mask import Mask, environment_mask
from asterism.core.json_values import JsonObject
from asterism.execution.processes import Commands
from asterism.fleet.fleet import Fleet
from asterism.fleet.monitor import Monitor
from asterism.fleet.policy.device_policy import DevicePolicy
from asterism.fleet.policy.judged_requests import request
from asterism.fleet.role_lease import LONGEST_LEASE, RoleLease, put_lease, read_lease
from asterism.fleet.settings import COORDINATOR, DEPUTY, ELECTION_LEASE, Settings
from asterism.store.optimistic_update import try_commit
from asterism.store.protocol import NOTIFIED, Store, read_slot

log = logging.getLogger("asterism.device")

JITTER = 0.2
"""By which share the time between two passes varies, so that those of many devices do not coincide."""


class Coordinator:
    """``every`` is the interval between two passes. ``lease`` is how long a role lasts without being renewed: that of
    the fleet's settings if it is None, and three passes at least. All in seconds. ``policy`` is the device policy,
    which says which command and which address may get notices."""

    def __init__(
        self, fleet: Fleet, name: str, session: str, policy: DevicePolicy, *, every: float, lease: float | None
    ) -> None:
        self.fleet, self._every, self._lease = fleet, every, lease
        self.monitor = Monitor(fleet, name, every=every)
        self.leader = Election(COORDINATOR, fleet.store, fleet.clock, name, session)
        self.deputy = Election(DEPUTY, fleet.store, fleet.clock, name, session)
        self._notifier = Notifier(fleet, policy)

    @property
    def elected(self) -> bool:
        return self.leader.elected

    async def coordinate(self) -> None:
        """Stand for election and run passes, until it is cancelled."""
        trouble = RecurringError(log, "cannot monitor the fleet", "monitors the fleet again", self.fleet.clock.time)
        while True:
            self.monitor.due_in = float("inf")  # an earlier pass says nothing about the next one
            try:
                await self._run_pass()
                trouble.recovered()
            except Exception as error:  # no error of the coordinator may end the work of this device
                trouble.occurred(error)
            pause = self._every * self.fleet.chance.uniform(1.0 - JITTER, 1.0 + JITTER)
            await self.fleet.clock.sleep(min(pause, self.monitor.due_in))

    async def _run_pass(self) -> None:
        lease = self._lease if self._lease is not None else (await self.fleet.settings()).lease
        self.leader.lease = self.deputy.lease = min(max(lease, 3 * self._every), LONGEST_LEASE)
        if await self.leader.campaign():
            if self.deputy.elected:
                await self.deputy.resign()
            await self.monitor.run_pass()
        elif await self.deputy.campaign():
            await self.monitor.run_deputy_pass(self.leader.holder)

    async def deliver_notices(self) -> None:
        """Deliver notices while this device is the coordinator, until it is cancelled. A delivery may take long, so it
        runs beside the passes."""
        trouble = RecurringError(log, "cannot deliver notices", "delivers notices again", self.fleet.clock.time)
        while True:
            try:
                if self.elected:
                    await self._notifier.deliver()
                trouble.recovered()
            except Exception as error:
                trouble.occurred(error)
            await self.fleet.clock.sleep(self._every)

    async def resign(self) -> None:
        """Give up both roles, so that other devices can take them now."""
        await self.leader.resign()
        await self.deputy.resign()

    def close(self) -> None:
        self._notifier.close()


class Election:
    """The election to one role. ``lease`` is how long the role lasts without being renewed, in seconds. ``holder`` is
    the session that had the role when the store was last asked."""

    def __init__(
        self, role: str, store: Store, clock: Clock, device: str, session: str, lease: float = ELECTION_LEASE
    ) -> None:
        self._role, self._store, self._clock = role, store, clock
        self._device, self._session, self.lease = device, session, lease
        self.holder: str | None = None
        self.epoch = 0
        self._until = 0.0

    @property
    def elected(self) -> bool:
        return self._clock.time() < self._until

    async def campaign(self) -> bool:
        """Renew the lease, or take it if it is free. Returns whether this session has the role now."""
        sent = self._clock.time()
        lease, revision = await read_lease(self._store, self._role)
        now = self._store.clock()
        ours = lease is not None and lease.session == self._session
        # a lease that ends later than possible was written before the store's clock was set back
        free = lease is None or not now <= lease.until <= now + 2 * lease.lease
        self.holder = None if lease is None else lease.session
        if not ours and not free:
            self._until = 0.0
            return False
        epoch = lease.epoch + (not ours) if lease is not None else 1
        taken = RoleLease(self._device, self._session, epoch, now + self.lease, self.lease)
        if not await try_commit(self._store, [put_lease(self._role, taken, revision)]):
            self._until = 0.0
            return False
        self.holder = self._session
        self.epoch, self._until = epoch, sent + 0.8 * self.lease
        return True

    async def resign(self) -> None:
        """Give up the role, so that another device can take it now."""
        lease, revision = await read_lease(self._store, self._role)
        if lease is not None and lease.session == self._session:
            await try_commit(self._store, [put_lease(self._role, lease.over(), revision)])
        self._until = 0.0


# -- the notifier ------------------------------------------------------------------------------------------------------


monitor_log = logging.getLogger("asterism.monitor")

NOTICES_PER_PASS = 100
"""How many notices one pass reads."""

DELIVERY_TIMEOUT = 30.0
"""How long one delivery may take, in seconds."""

GRACE = 1.0
"""How long a command that took too long has to stop, in seconds."""

TRIES = 5
"""How often the delivery of a notice is tried before the next one has its turn."""

DELIVERED_KINDS = frozenset(
    {
        "failed",
        "brake",
        "clock",
        "replaced",
        "schedule",
        "budget",
        "conflict",
        "impostor",
        "restored",
        "enrolled",
        "revoked",
        "suspended",
        "resumed",
        "approval",
    }
)
"""The kinds of notices that are for people. A late result is normal."""


class Notifier:
    """``policy`` is the device policy of the device that delivers."""

    def __init__(self, fleet: Fleet, policy: DevicePolicy) -> None:
        self._fleet, self._policy = fleet, policy
        self._failures = 0  # in a row, with the same notice
        self._commands = Commands(GRACE)

    def close(self) -> None:
        self._commands.close()

    async def deliver(self) -> None:
        """Deliver the notices that were not delivered yet."""
        store = self._fleet.store
        settings = await self._fleet.settings()
        if not settings.notifies:
            return
        cursor = await read_slot(store, NOTIFIED, {"after": 0})
        notices = await store.notices(after=cursor.value["after"], limit=NOTICES_PER_PASS)
        for number, notice in notices:
            for_people = notice.kind in DELIVERED_KINDS
            if for_people and not await self._deliver(settings, notice.to_json()):
                self._failures += 1
                if self._failures < TRIES:
                    return  # the next pass tries again
            self._failures = 0
            if for_people or number == notices[-1][0]:
                if not await try_commit(store, [cursor.put({"after": number})]):
                    return  # another coordinator delivers, too
                cursor = cursor._replace(revision=(cursor.revision or 0) + 1)

    async def _deliver(self, settings: Settings, notice: JsonObject) -> bool:
        """Deliver one notice to all that the settings name. Returns whether all of it succeeded."""
        mask = environment_mask((), self._policy.holds_secret)
        deliveries = [
            _deliver_to(receiver, notify(Delivery(notice, target, self._policy, mask, self._commands)), mask)
            for notify, target, receiver in _receivers(settings)
        ]
        return all(await asyncio.gather(*deliveries))


def _receivers(settings: Settings) -> Iterator[tuple[Callable[[Delivery], Coroutine[Any, Any, None]], Any, str]]:
    """The notifiers that the settings name, what each gets, and what it is called in the log."""
    if settings.notify_command is not None:
        yield notify_command, settings.notify_command, f"the command {settings.notify_command[0]}"
    if settings.notify_url is not None:
        yield notify_url, settings.notify_url, "the notification address"


async def _deliver_to(receiver: str, delivery: Coroutine[Any, Any, Any], mask: Mask) -> bool:
    """Returns whether a delivery succeeded. A failure is logged, with secrets masked, and does not stop the others."""
    try:
        async with asyncio.timeout(DELIVERY_TIMEOUT):
            await delivery
        return True
    except TimeoutError:
        monitor_log.error("a notification could not be delivered: %s took longer than %g s", receiver, DELIVERY_TIMEOUT)
    except Exception as error:
        monitor_log.error("a notification could not be delivered to %s: %s", receiver, mask.text(str(error)))
    return False


@dataclass(frozen=True, slots=True)
class Delivery:
    """A notice, as JSON, and how it is delivered: ``target`` is the value of the setting, ``commands`` runs commands,
    ``mask`` hides the secrets of the device, and ``policy`` judges."""

    notice: JsonObject
    target: Any
    policy: DevicePolicy
    mask: Mask
    commands: Commands


async def notify_command(delivery: Delivery) -> None:
    """Run a command with the notice on its standard input. Raises what keeps it from exiting with 0."""
    policy, words = delivery.policy, delivery.target
    program = policy.command(words[0])
    argv = [program.name if program is not None else words[0], *words[1:]]
    environment = {name: value for name, value in os.environ.items() if policy.passes(name)}
    with tempfile.TemporaryFile() as stdin_file:
        stdin_file.write(json.dumps(delivery.notice).encode())
        stdin_file.seek(0)
        await delivery.commands.run(
            argv,
            environment,
            policy.directory(None),
            executable=program.file if program is not None else None,
            stdin=stdin_file,
        )


async def notify_url(delivery: Delivery) -> None:
    """Post the notice to an address. Raises as ``request`` does."""
    post = {"url": delivery.target, "method": "POST", "json": delivery.notice}
    await request(post, {}, delivery.policy, delivery.mask)
