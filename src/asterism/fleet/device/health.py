"""Health of a device: it takes no more runs after repeated trouble, or while work fails here but not elsewhere.

The circuit breaker itself is pure (core/run/circuit_breaker.py). This module feeds it with the ends of executions,
compares them with the runs that other devices completed, probes the device before it takes work again, and leaves a
notice when it stops and when it resumes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from asterism.core.errors import DeviceTrouble, DeviceUnavailable
from asterism.core.run.circuit_breaker import CLOSED, QUICK_FAILURE_SECONDS, Breaker, Completion
from asterism.execution.processes import LeaseExpired
from asterism.fleet.device.completion import HeldRun
from asterism.fleet.device.device_connection import DeviceConnection
from asterism.fleet.policy.device_policy import PolicyForbids
from asterism.store.store_errors import StoreError

log = logging.getLogger("asterism.device")

RUNS_COMPARED = 100
"""How many of the last runs of a workflow a device looks at when it compares itself with others."""

COMPARE_INTERVAL = 1.0
"""How often it compares at most, in seconds."""


class DeviceHealth:
    """``on_change`` is called when the device stops taking work, and when it takes work again."""

    def __init__(self, connection: DeviceConnection, device: str, on_change: Callable[[], None]) -> None:
        self._connection, self._device, self._on_change = connection, device, on_change
        self._breaker = CLOSED
        self._probed: float | None = None  # the ``retry_at`` after which the probe succeeded
        self._noticed = False  # whether the last notice said that the device has stopped
        self._compared_at = float("-inf")
        self._follow_up_due = False
        self._task: asyncio.Task[None] | None = None  # while a follow-up runs

    @property
    def well(self) -> bool:
        """Whether nothing speaks against the device: it takes as many runs as it has room for."""
        return self._breaker is CLOSED

    @property
    def suspended(self) -> str | None:
        """Why the device takes no work; None if it takes work, even if only one run as a trial."""
        return None if self._breaker.closed or self._on_trial else self._breaker.why

    @property
    def _on_trial(self) -> bool:
        """Whether the probe succeeded, and a run has yet to show that the device works again."""
        return self._probed is not None and self._probed == self._breaker.retry_at

    def allowance(self, held: Iterable[HeldRun]) -> int | None:
        """How many more runs the device may take; None for as many as there is room for."""
        retry_at = self._breaker.retry_at
        if retry_at is None:
            return None
        if not self._on_trial:
            return 0
        return self._breaker.allowance(self._connection.clock.time(), sum(run.since >= retry_at for run in held))

    def record_end(self, workflow: str, seconds: float, error: Exception | None) -> None:
        """An execution has ended by itself after so many seconds. A run that was declined, or lost because the device
        was frozen, says nothing about its health."""
        if isinstance(error, PolicyForbids | DeviceUnavailable | LeaseExpired):
            return
        before, now = self._breaker, self._connection.clock.time()
        if isinstance(error, DeviceTrouble):
            self._breaker = before.trouble(now, str(error))
        elif error is None or seconds >= QUICK_FAILURE_SECONDS:
            self._breaker = before.good()
        else:
            self._breaker = before.failed(now, self._connection.store_time(), workflow)
        self._follow(before)

    def _follow(self, before: Breaker) -> None:
        """Do what follows from a change of the breaker."""
        if self._breaker.suspicious:
            self._start_follow_up()
        if self._breaker.retry_at == before.retry_at:
            return
        self._start_follow_up()
        if self._breaker.closed:
            log.info("takes work again")
        else:
            log.error("stops taking work: %s", self._breaker.why)
        self._on_change()

    async def retry(self, held: Iterable[HeldRun], probe: Callable[[], Awaitable[None]]) -> None:
        """When the pause is over, probe the device before a run is put at risk. ``probe`` raises DeviceTrouble while
        the device cannot do its own part. A trial run that has lasted long enough need not be waited for."""
        retry_at = self._breaker.retry_at
        if retry_at is None:
            return
        now = self._connection.clock.time()
        if now < retry_at:
            return
        if self._on_trial:
            if any(run.started and run.since >= retry_at and now - run.since >= QUICK_FAILURE_SECONDS for run in held):
                before, self._breaker = self._breaker, self._breaker.good()
                self._follow(before)
            return
        try:
            await probe()
        except DeviceTrouble as error:
            if self._breaker.retry_at == retry_at:
                self._breaker = self._breaker.trouble(self._connection.clock.time(), str(error))
        else:
            self._probed = retry_at
            self._on_change()  # so that the coordinator, which knows only the profile, gives it one run

    # -- comparison with other devices, and notices ------------------------------------------------------------------

    def _start_follow_up(self) -> None:
        self._follow_up_due = True
        if self._task is None:
            self._task = asyncio.create_task(self._follow_up())
            self._task.add_done_callback(self._follow_up_done)

    def _follow_up_done(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            log.error("a bug in Asterism", exc_info=error)
        elif self._follow_up_due:  # since its last look
            self._start_follow_up()

    async def _follow_up(self) -> None:
        while self._follow_up_due:
            self._follow_up_due = False
            try:
                await self._compare()
                await self._leave_notice()
            except StoreError as error:
                log.warning("cannot compare with other devices, or leave a notice: %s", error)
                await self._connection.clock.sleep(1.0)
                self._follow_up_due = True

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _compare(self) -> None:
        now = self._connection.clock.time()
        if not self._breaker.suspicious or now - self._compared_at < COMPARE_INTERVAL:
            return  # the next failure brings us back here
        self._compared_at = now
        for workflow in sorted(self._breaker.failing):
            completed = await self._connection.recent_completions(workflow, RUNS_COMPARED)
            other = self._breaker.contradicted_by(self._device, completed)
            if other is not None:
                self._contradicted(other)
                return

    def _contradicted(self, other: Completion) -> None:
        before = self._breaker
        why = f"its last {before.failures} runs failed at once, while {other.device} completed {other.workflow!r}"
        self._breaker = before.contradicted(self._connection.clock.time(), why)
        self._follow(before)

    async def _leave_notice(self) -> None:
        stopped = not self._breaker.closed
        if stopped == self._noticed:
            return
        await self._connection.announce_health(self._breaker.why if stopped else None)
        self._noticed = stopped
