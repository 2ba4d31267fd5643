"""Telling a person: each notice of the store is passed to the command or address that the fleet's settings name.

A notice may be told twice if a coordinator dies in between. One that cannot be delivered is tried a few times before
the next has its turn. Whoever begins to be told (``settings.write``) is told of what comes from then on.

Whoever can write to the store names the command and the address. So the policy of the device judges them as it judges
work, also where a redirect leads; the command gets what every command here gets, and does not outlive the device."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import tempfile
from collections.abc import Coroutine
from typing import Any

from asterism.base.processes import Commands
from asterism.base.secret_mask import Mask, environment_mask
from asterism.fleet.device.device_requests import request
from asterism.fleet.fleet import Fleet
from asterism.fleet.policy.policy import DevicePolicy
from asterism.fleet.settings import Settings
from asterism.store.protocol import NOTIFIED, PutRegister
from asterism.store.row_codec import notice_to_json
from asterism.store.store_errors import Conflict

log = logging.getLogger("asterism.monitor")

AT_ONCE = 100
PATIENCE = 30.0
GRACE = 1.0
"""How long a command has to stop when it took too long, in seconds."""

TRIES = 5
"""How often a notice is tried before the next one has its turn."""

TOLD = frozenset(
    {"failed", "brake", "clock", "replaced", "series", "conflict", "impostor", "restored", "suspended", "resumed"}
)
"""The kinds that concern a person. A late result is normal."""


class Notifier:
    """``policy`` is that of the device which tells: what the store names is executed here only if it may be."""

    def __init__(self, fleet: Fleet, policy: DevicePolicy) -> None:
        self._fleet, self._policy = fleet, policy
        self._failed = 0
        self._commands = Commands(GRACE)

    def close(self) -> None:
        self._commands.close()

    async def deliver(self) -> None:
        store = self._fleet.store
        settings = await self._fleet.settings()
        if not settings.notifies:
            return
        cursor = await store.register(NOTIFIED)
        revision, after = (cursor.revision, cursor.value["after"]) if cursor is not None else (None, 0)
        found = await store.notices(after=after, limit=AT_ONCE)
        for number, notice in found:
            told = notice.kind in TOLD
            if told and not await self._tell(settings, notice_to_json(notice)):
                self._failed += 1
                if self._failed < TRIES:
                    return  # again, with the next pass
            self._failed = 0
            if told or number == found[-1][0]:
                try:
                    await store.commit([PutRegister(NOTIFIED, {"after": number}, revision)])
                except Conflict:  # somebody else is telling, too
                    return
                revision = (revision or 0) + 1

    async def _tell(self, settings: Settings, notice: dict[str, Any]) -> bool:
        """Whether everybody who is to be told has heard it."""
        told = []
        if settings.notify_command is not None:
            whom = f"the command {settings.notify_command[0]}"
            told.append(_within(self._run(settings.notify_command, notice), whom, self._mask()))
        if settings.notify_url is not None:
            terms = {"url": settings.notify_url, "method": "POST", "json": notice}
            told.append(_within(self._request(terms), "the notification address", self._mask()))
        return all(await asyncio.gather(*told))

    async def _run(self, command: tuple[str, ...], notice: dict[str, Any]) -> None:
        program = self._policy.command(command[0])
        argv = [program.name if program is not None else command[0], *command[1:]]
        environment = {name: value for name, value in os.environ.items() if self._policy.passes(name)}
        with tempfile.TemporaryFile() as given:
            given.write(json.dumps(notice).encode())
            given.seek(0)
            await self._commands.run(
                argv,
                environment,
                self._policy.directory(None),
                executable=program.file if program is not None else None,
                stdin=given,
            )

    async def _request(self, terms: dict[str, Any]) -> None:
        await request(terms, {}, self._policy, self._mask())

    def _mask(self) -> Mask:
        """For what a command says that was told: it gets the variables of this device."""
        return environment_mask((), self._policy.holds_secret)


async def _within(telling: Coroutine[Any, Any, Any], whom: str, mask: Mask) -> bool:
    """A command that fails or an address that does not answer is logged: nobody may stop the rest."""
    try:
        async with asyncio.timeout(PATIENCE):
            await telling
        return True
    except TimeoutError:
        log.error("a notification could not be delivered: %s took longer than %g s", whom, PATIENCE)
    except Exception as error:
        log.error("a notification could not be delivered to %s: %s", whom, mask.text(str(error)))
    return False
