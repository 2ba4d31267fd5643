"""The ends of credentials: event streams and sessions wait here until theirs is revoked or expires.

One look at the store serves all who wait. The store wakes it after each change of a credential, in whatever process;
a look every ``LOOK_INTERVAL`` seconds notices what expires, and a wake that got lost. An outage of the store ends
nothing.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from asterism.api.credentials import Credentials
from asterism.store.protocol import CREDENTIALS_CHANGED, Store, Watch
from asterism.store.store_errors import StoreError

log = logging.getLogger(__name__)

LOOK_INTERVAL = 15.0
"""Seconds between two looks, if nothing wakes it."""


class CredentialEnds:
    """The credentials whose ends somebody waits for, and how many do."""

    def __init__(self, store: Store) -> None:
        self._store, self._credentials = store, Credentials(store)
        self._waiting: dict[str, asyncio.Event] = {}
        self._waiters: dict[str, int] = {}
        self._looking: asyncio.Task[None] | None = None

    async def wait(self, identity: str) -> None:
        """Return when a credential is revoked or has expired."""
        if self._looking is None or self._looking.done():
            watch = self._store.watch(frozenset({CREDENTIALS_CHANGED}))
            self._looking = asyncio.create_task(self._look(watch))
        ended = self._waiting.setdefault(identity, asyncio.Event())
        self._waiters[identity] = self._waiters.get(identity, 0) + 1
        try:
            with suppress(StoreError):  # it may have ended since the request was authenticated
                if not await self._credentials.is_active(identity):
                    return
            await ended.wait()
        finally:
            self._waiters[identity] -= 1
            if not self._waiters[identity]:
                del self._waiters[identity], self._waiting[identity]
            if not self._waiting:
                self._stop_looking()

    def _stop_looking(self) -> None:
        """Who waits next begins a new look: a task is not ``done()`` until its cancellation has been executed."""
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None

    async def _look(self, watch: Watch) -> None:
        try:
            while True:
                await watch.wait(LOOK_INTERVAL)
                try:
                    await self._end_waits()
                except StoreError:
                    continue
                except Exception:  # streams must not outlive their credentials because one look failed
                    log.exception("cannot look for credentials that ended; the next look is in %g s", LOOK_INTERVAL)
        finally:
            watch.close()

    async def _end_waits(self) -> None:
        now = self._store.clock()
        active = {credential.id for credential in await self._credentials.all() if credential.state(now) == "active"}
        for identity in self._waiting.keys() - active:
            self._waiting[identity].set()
