"""Telling a person: each notice of the store is passed to the command or address that the fleet's settings name.

A notice may be told twice if a coordinator dies in between, never not at all while it is kept."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from typing import Any

from asterism.runtime.fleet.fleet import Fleet
from asterism.runtime.fleet.settings import Settings
from asterism.runtime.http import request
from asterism.store.codec import notice_to_json
from asterism.store.errors import Conflict
from asterism.store.protocol import PutRegister

log = logging.getLogger("asterism.monitor")

KEY = "notified"
PATIENCE = 30.0
TOLD = frozenset({"failed", "brake", "clock", "replaced"})
"""The kinds that concern a person. A late result is normal."""


class Notifier:
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def deliver(self) -> None:
        store = self._fleet.store
        settings = await self._fleet.settings()
        if settings.notify_command is None and settings.notify_url is None:
            return
        cursor = await store.register(KEY)
        after = cursor.value["after"] if cursor is not None else 0
        found = await store.notices(after=after, limit=20)
        if not found:
            return
        for _, notice in found:
            if notice.kind in TOLD:
                await self._tell(settings, notice_to_json(notice))
        with contextlib.suppress(Conflict):
            await store.commit([PutRegister(KEY, {"after": found[-1][0]}, cursor and cursor.revision)])

    async def _tell(self, settings: Settings, notice: dict[str, Any]) -> None:
        """A command that fails or an address that does not answer is logged: nobody may stop the monitor."""
        try:
            async with asyncio.timeout(PATIENCE):
                if settings.notify_command is not None:
                    await _run(settings.notify_command, notice)
                if settings.notify_url is not None:
                    await request({"url": settings.notify_url, "method": "POST", "json": notice})
        except Exception as error:
            log.error("a notification could not be delivered: %s", error)


async def _run(command: tuple[str, ...], notice: dict[str, Any]) -> None:
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        await process.communicate(json.dumps(notice).encode())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        log.error("the notification command exited with %d", process.returncode)
