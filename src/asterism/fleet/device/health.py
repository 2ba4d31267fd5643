"""A device watches how its work ends, and stops taking more while it fails at what others can do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from asterism.base.processes import LeaseExpired
from asterism.core.errors import DeviceTrouble, DeviceUnavailable
from asterism.core.run.circuit_breaker import CLOSED, QUICK_FAILURE_SECONDS, Breaker
from asterism.core.run.run import COMPLETED, Run
from asterism.core.run.workflow import Workflow
from asterism.fleet.device.held_run import Holding
from asterism.fleet.fleet import Fleet
from asterism.fleet.policy.policy import PolicyForbids
from asterism.store.protocol import Notice, Query
from asterism.store.store_errors import StoreError

log = logging.getLogger("asterism.device")

COMPARED = 100
"""How many of the last runs of a workflow a device looks at when it compares itself with others."""

COMPARES_EVERY = 1.0
"""How often it does so at most, in seconds."""


class Circuit:
    """``probe`` raises DeviceTrouble as long as the device cannot do its own part. ``on_change`` is called when it
    stops taking work, and when it takes work again."""

    def __init__(
        self, fleet: Fleet, device: str, probe: Callable[[], Awaitable[None]], on_change: Callable[[], None]
    ) -> None:
        self._fleet, self._device, self._probe, self._on_change = fleet, device, probe, on_change
        self._breaker = CLOSED
        self._probed: float | None = None  # the ``retry_at`` after which the probe succeeded
        self._told = False  # whether the last notice said that we have stopped
        self._compared_at = float("-inf")
        self._something_to_do = False
        self._task: asyncio.Task[None] | None = None  # while there is

    @property
    def suspended(self) -> str | None:
        """Why the device takes nothing; None if it takes work, be it one run as a trial."""
        return None if self._breaker.closed or self._trying else self._breaker.why

    @property
    def _trying(self) -> bool:
        """Whether it can do its own part again, and has yet to show that with a run."""
        return self._probed is not None and self._probed == self._breaker.retry_at

    def allowance(self, held: Iterable[Holding]) -> int | None:
        """How many more runs the device may take; None for as many as there is room for."""
        retry_at = self._breaker.retry_at
        if retry_at is None:  # so it is nearly always, and this is on the way of every run
            return None
        if not self._trying:
            return 0
        return self._breaker.allowance(self._fleet.clock.time(), sum(one.since >= retry_at for one in held))

    def ended(self, workflow: Workflow, seconds: float, error: Exception | None) -> None:
        """An execution has ended by itself after so many seconds. What was declined, or lost because the device was
        frozen, says nothing."""
        if isinstance(error, PolicyForbids | DeviceUnavailable | LeaseExpired):
            return
        before, now = self._breaker, self._fleet.clock.time()
        if isinstance(error, DeviceTrouble):
            self._breaker = before.trouble(now, str(error))
        elif error is None or seconds >= QUICK_FAILURE_SECONDS:
            self._breaker = before.good()
        else:
            self._breaker = before.failed(now, self._fleet.store.clock(), workflow.name)
        self._look_at(before)

    def _look_at(self, before: Breaker) -> None:
        if self._breaker.suspicious:
            self._act()
        if self._breaker.retry_at == before.retry_at:
            return
        self._act()
        if self._breaker.closed:
            log.info("takes work again")
        else:
            log.error("stops taking work: %s", self._breaker.why)
        self._on_change()

    async def try_again(self, held: Iterable[Holding]) -> None:
        """When the pause is over, see whether the device can do its own part, before a run is put at risk. A run that
        goes on for long enough to show it need not be waited for."""
        retry_at, now = self._breaker.retry_at, self._fleet.clock.time()
        if retry_at is None or now < retry_at:
            return
        if self._trying:
            if any(one.started and one.since >= retry_at and now - one.since >= QUICK_FAILURE_SECONDS for one in held):
                before, self._breaker = self._breaker, self._breaker.good()
                self._look_at(before)
            return
        try:
            await self._probe()
        except DeviceTrouble as error:
            if self._breaker.retry_at == retry_at:
                self._breaker = self._breaker.trouble(self._fleet.clock.time(), str(error))
        else:
            self._probed = retry_at
            self._on_change()  # so that it is given one run, also by those who only know what it tells of itself

    # -- what takes time ---------------------------------------------------------------------------------------------

    def _act(self) -> None:
        self._something_to_do = True
        if self._task is None:
            self._task = asyncio.create_task(self._compare_and_tell())
            self._task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            log.error("a mistake in Asterism itself", exc_info=error)
        elif self._something_to_do:  # since its last look
            self._act()

    async def _compare_and_tell(self) -> None:
        while self._something_to_do:
            self._something_to_do = False
            try:
                await self._compare()
                await self._tell()
            except StoreError as error:
                log.warning("cannot compare with other devices, or leave a notice: %s", error)
                await self._fleet.clock.sleep(1.0)
                self._something_to_do = True

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _compare(self) -> None:
        now = self._fleet.clock.time()
        if not self._breaker.suspicious or now - self._compared_at < COMPARES_EVERY:
            return  # the next failure brings us back here
        self._compared_at = now
        for workflow in sorted(self._breaker.failing):
            query = Query(statuses=frozenset({COMPLETED}), workflow=workflow, newest=True, limit=COMPARED)
            found = self._breaker.contradicted_by(self._device, await self._fleet.store.find(query))
            if found is not None:
                self._contradicted(found)
                return

    def _contradicted(self, run: Run) -> None:
        before = self._breaker
        words = f"its last {before.failures} runs failed at once, while {run.device} completed {run.workflow!r}"
        self._breaker = before.contradicted(self._fleet.clock.time(), words)
        self._look_at(before)

    async def _tell(self) -> None:
        stopped = not self._breaker.closed
        if stopped == self._told:
            return
        at = self._fleet.store.clock()
        if stopped:
            why = self._breaker.why
            message = f"{self._device} has stopped taking work: {why}. It tries one run from time to time"
            notice = Notice(at, "suspended", message, None, self._device)
        else:
            notice = Notice(at, "resumed", f"{self._device} takes work again", None, self._device)
        await self._fleet.store.commit([notice])
        self._told = stopped
