"""Heartbeats of a device (the store may refuse them), and ``enforce_leases``, which stops work without a lease.

A heartbeat carries the profile of the device and what is new of its runs. The store refuses the
heartbeats of a session that has ended or was replaced: then no more are sent. Otherwise its answer names the runs that
the device holds and what people ask of them: the device stops what it does not hold any more, gives back what it does
not know, and takes up what it was given without hearing of it. ``enforce_leases`` runs beside and stops, by the
device's own clock, whatever the store may soon take away (lease.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Any

from asterism.base.error_log import RecurringError
from asterism.core.run.run import ASSIGNED
from asterism.fleet.device.claimer import Claimer
from asterism.fleet.device.completion import HeldRun
from asterism.fleet.device.device_connection import DeviceConnection
from asterism.fleet.device.lease import Lease, margin
from asterism.fleet.device.worker import FENCED, LOST, Worker
from asterism.store.protocol import HeartbeatReply
from asterism.store.store_errors import StoreUnavailable

log = logging.getLogger("asterism.device")

REPORT_DELAY = 1.0
"""How soon progress and output are reported, in seconds."""


class Heartbeat:
    """``measure`` returns the profile. ``on_draining`` is called when the store asks the device to drain."""

    def __init__(
        self,
        connection: DeviceConnection,
        lease: Lease,
        worker: Worker,
        claimer: Claimer,
        *,
        measure: Callable[[], Mapping[str, Any]],
        on_draining: Callable[[], None],
    ) -> None:
        self._connection, self.clock = connection, connection.clock
        self.lease, self.worker, self.claimer = lease, worker, claimer
        self._measure, self._on_draining = measure, on_draining
        self.quality = 1.0
        """How well the store is reached, in 0…1."""
        self._report_timer: asyncio.TimerHandle | None = None

    # -- beating -----------------------------------------------------------------------------------------------------

    async def beat_until_ended(self) -> None:
        """Send heartbeats. Returns when the store says that this session is over."""
        trouble = RecurringError(log, "no heartbeat", "heartbeats again", self.clock.time)
        lease = self.lease
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(lease.next_renewal_in):
                        await lease.renewal_due.wait()
                lease.renewal_due.clear()
                try:
                    alive = await self.beat()
                except StoreUnavailable as error:
                    self.quality *= 0.7
                    trouble.occurred(error)
                    lease.next_renewal_in = min(self._interval / 5, 5.0)
                    continue
                if not alive:
                    return
                trouble.recovered()
                lease.next_renewal_in = self._interval
                if lease.work_waits:
                    lease.work_waits = False
                    self.claimer.wake()
        finally:
            self._cancel_report_timer()

    @property
    def _interval(self) -> float:
        return self.lease.interval(*(held.run.work.heartbeat for held in self.worker))

    def report_soon(self) -> None:
        """A run has something to report: send a heartbeat soon, but not for every line."""
        if self._report_timer is None:
            self._report_timer = asyncio.get_running_loop().call_later(REPORT_DELAY, self._report_now)

    def _report_now(self) -> None:
        self._report_timer = None
        if any(held.changed for held in self.worker):
            self.lease.renewal_due.set()

    def _cancel_report_timer(self) -> None:
        if self._report_timer is not None:
            self._report_timer.cancel()
            self._report_timer = None

    async def beat(self) -> bool:
        """Send one heartbeat. Returns whether the session is alive in the store. Raises StoreUnavailable."""
        sent = self.clock.time()
        if self._report_timer is not None:
            self._cancel_report_timer()
        changed = [held for held in self.worker if held.changed]
        reports = [held.report() for held in changed]
        for held in changed:
            held.changed = False
        profile = {**self._measure(), "quality": round(self.quality, 3)}
        timeout = self.lease.timeout
        try:
            async with asyncio.timeout(min(timeout, *(held.run.timeout for held in self.worker), timeout) / 3):
                try:
                    reply = await self._connection.beat(profile, reports)
                except ValueError as error:  # the report of one execution must not end the device
                    log.error("a report cannot be stored: %s", error)
                    reply = await self._connection.beat(profile, ())
        except (StoreUnavailable, TimeoutError) as error:
            for held in changed:
                held.report_written(False)  # it may not have arrived
            if isinstance(error, TimeoutError):
                raise StoreUnavailable(f"{self._connection.url} did not answer a heartbeat") from None
            raise
        for held in changed:
            held.report_written(True)
        if not reply.alive:
            return False
        self.lease.renewed(sent)
        for held in self.worker:
            # a run that is being stopped is killed a moment later: its guard decides if this process is frozen
            spare = margin(self.lease.timeout_of(held.run.timeout), self.lease.grace) / 2
            self.worker.executor.allow(held.run.id, self.lease.remaining(held.run) + spare)
        took = self.clock.time() - sent
        self.quality = 0.8 * self.quality + 0.2 * max(0.0, 1.0 - took / self._interval)
        self.claimer.own_score.connection = round(self.quality, 3)
        with contextlib.suppress(StoreUnavailable):  # the next answer repeats what could not be done now
            await self._follow_reply(reply, sent)
        return True

    async def _follow_reply(self, reply: HeartbeatReply, sent: float) -> None:
        """Stop what the store has taken away or asks to stop, and take up what it says is ours. Nothing here pauses:
        the next heartbeat must not be late."""
        if reply.draining:
            self._on_draining()
        granted = {grant.run: grant for grant in reply.held}
        for held in self.worker:
            grant = granted.get(held.run.id)
            if grant is not None and grant.epoch == held.grant.epoch:
                if grant.stop_request is not None:
                    self.worker.stop(held, grant.stop_request)
            elif held.since < sent and not held.ending:
                # a run that came after the request cannot be in the reply; the end of another may be written already
                log.warning("the store has taken the run away", extra={"run": held.run.id})
                self.worker.stop(held, LOST)
        for grant in reply.held:
            if grant.status is ASSIGNED:
                self.claimer.wake()
            elif grant.run not in self.worker.held:
                if self.worker.knows(grant.run, grant.epoch):
                    await self.worker.disown(grant.run, grant.epoch)
                else:
                    await self.claimer.adopt(grant.run, grant.epoch)

    # -- the end of the lease ----------------------------------------------------------------------------------------

    async def enforce_leases(self) -> None:
        """Stop in time whatever the store may soon take away. Runs until it is cancelled."""
        while True:
            await self.worker.occupied.wait()
            shortest, grace = self.lease.timeout, self.lease.grace
            for held in self.worker:
                spare = margin(self.lease.timeout_of(held.run.timeout), grace)
                shortest = min(shortest, spare)
                left = self.lease.remaining(held.run)
                if left <= 0.0:
                    self._fence(held, kill=left <= -spare / 2)
                elif not held.started and held.run.due_at is not None:
                    spare = margin(held.run.work.claim_timeout, grace)
                    shortest = min(shortest, spare)
                    if self._connection.store_time() >= held.run.due_at - spare:
                        self.worker.give_up_waiting(held)
            # often, since a machine that was asleep does not notice the time that has passed
            await self.clock.sleep(min(1.0, shortest / 4))

    def _fence(self, held: HeldRun, *, kill: bool) -> None:
        if held.stopping is None and not held.ending:
            log.warning("stopped: the store was not reached in time", extra={"run": held.run.id})
        self.worker.stop(held, FENCED)
        if kill:
            self.worker.kill(held)
