"""The notifier: delivers notices to the command and the address that the settings name.

A notice may be delivered twice if a coordinator dies in between. One that cannot be delivered is tried a few times
before the next has its turn. Notices that are older than the settings (``settings.write``) are not delivered.

The settings are in the store, where many can write. Therefore the device policy judges the command and the address as
it judges work, also the target of a redirect; the command gets the variables that every command here gets, and does not
outlive the device.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import tempfile
from collections.abc import Coroutine
from typing import Any

from asterism.base.secret_mask import Mask, environment_mask
from asterism.core.json_values import JsonObject
from asterism.execution.processes import Commands
from asterism.fleet.fleet import Fleet
from asterism.fleet.policy.device_policy import DevicePolicy
from asterism.fleet.policy.judged_requests import request
from asterism.fleet.settings import Settings
from asterism.store.optimistic_update import try_commit
from asterism.store.protocol import NOTIFIED, PutRegister

log = logging.getLogger("asterism.monitor")

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
        "series",
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
        cursor = await store.register(NOTIFIED)
        revision, after = (cursor.revision, cursor.value["after"]) if cursor is not None else (None, 0)
        notices = await store.notices(after=after, limit=NOTICES_PER_PASS)
        for number, notice in notices:
            for_people = notice.kind in DELIVERED_KINDS
            if for_people and not await self._deliver(settings, notice.to_json()):
                self._failures += 1
                if self._failures < TRIES:
                    return  # the next pass tries again
            self._failures = 0
            if for_people or number == notices[-1][0]:
                if not await try_commit(store, [PutRegister(NOTIFIED, {"after": number}, revision)]):
                    return  # another coordinator delivers, too
                revision = (revision or 0) + 1

    async def _deliver(self, settings: Settings, notice: JsonObject) -> bool:
        """Deliver one notice to the command and to the address. Returns whether both succeeded."""
        mask = environment_mask((), self._policy.holds_secret)
        deliveries = []
        if settings.notify_command is not None:
            receiver = f"the command {settings.notify_command[0]}"
            deliveries.append(_deliver_to(receiver, self._run(settings.notify_command, notice), mask))
        if settings.notify_url is not None:
            post = {"url": settings.notify_url, "method": "POST", "json": notice}
            deliveries.append(_deliver_to("the notification address", request(post, {}, self._policy, mask), mask))
        return all(await asyncio.gather(*deliveries))

    async def _run(self, command: tuple[str, ...], notice: JsonObject) -> None:
        program = self._policy.command(command[0])
        argv = [program.name if program is not None else command[0], *command[1:]]
        environment = {name: value for name, value in os.environ.items() if self._policy.passes(name)}
        with tempfile.TemporaryFile() as stdin_file:
            stdin_file.write(json.dumps(notice).encode())
            stdin_file.seek(0)
            await self._commands.run(
                argv,
                environment,
                self._policy.directory(None),
                executable=program.file if program is not None else None,
                stdin=stdin_file,
            )


async def _deliver_to(receiver: str, delivery: Coroutine[Any, Any, Any], mask: Mask) -> bool:
    """Returns whether a delivery succeeded. A failure is logged, with secrets masked, and does not stop the others."""
    try:
        async with asyncio.timeout(DELIVERY_TIMEOUT):
            await delivery
        return True
    except TimeoutError:
        log.error("a notification could not be delivered: %s took longer than %g s", receiver, DELIVERY_TIMEOUT)
    except Exception as error:
        log.error("a notification could not be delivered to %s: %s", receiver, mask.text(str(error)))
    return False
