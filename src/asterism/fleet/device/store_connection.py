"""The connection of a device that shares the store of its fleet: each step is a commit of the device itself."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from asterism.base.content_store import ContentAccess
from asterism.core.json_values import SizeLimit
from asterism.core.run.circuit_breaker import Completion
from asterism.core.run.placement import Weights
from asterism.core.run.run import COMPLETED, Owner, Progress, Run
from asterism.core.run.session import OPEN, Session, election_ranks
from asterism.fleet import settings
from asterism.fleet.device import membership
from asterism.fleet.device.device_connection import STEP_TIMEOUT, Complete, DeviceStep, End, OwnerStep, Standing
from asterism.fleet.device.take_order import LOOK_INTERVAL, EnoughSeen, TakeOrder
from asterism.fleet.fleet import Fleet, InProcessDevice
from asterism.fleet.stored_limits import LimitedQueue
from asterism.store.protocol import (
    LIMITED,
    OFFERED,
    HeartbeatReply,
    Notice,
    ProgressReport,
    PutLog,
    PutRun,
    Query,
    TakeRequest,
    Watch,
    Write,
    for_device,
)
from asterism.store.store_errors import StoreError, StoreUnavailable

if TYPE_CHECKING:
    from asterism.fleet.device.membership import DeviceHost

NO_LIMIT = float("inf")
SAME_END = 0.001
"""Results within this window share one timestamp, in seconds: records that differ in nothing else are encoded once."""


class StoreConnection:
    """``owner`` is the session of the device."""

    look_interval, looks_alone = LOOK_INTERVAL, True
    commits_together = True

    def __init__(self, fleet: Fleet, owner: Owner) -> None:
        self.fleet, self.owner, self._store = fleet, owner, fleet.store
        self.clock, self.url, self.store_time = fleet.clock, fleet.store.url, fleet.store.clock
        self.ended = fleet.waiters.ended
        self._limited = LimitedQueue(fleet.store, fleet.clock)
        self._last_end = float("-inf")  # the time of the last result

    def end_time(self) -> float:
        """The time of a result: now, or that of another result less than SAME_END ago."""
        now = self.store_time()
        if not self._last_end <= now < self._last_end + SAME_END:
            self._last_end = now
        return self._last_end

    def retry_pause(self) -> float:
        return 1.0

    @property
    def log_limit(self) -> int:
        return self.fleet.known_settings.log_limit

    # -- the session -------------------------------------------------------------------------------------------------

    async def open(self) -> str:
        identity = await membership.store_identity(self._store, self.clock)
        with contextlib.suppress(StoreError):
            await self.fleet.settings()  # known when the first run prints
        return identity

    async def join(self, session: Session, host: DeviceHost, *, replace: bool) -> None:
        await membership.join(self._store, self.clock, session, host, replace=replace)

    async def beat(self, profile: Mapping[str, Any], reports: Sequence[ProgressReport]) -> HeartbeatReply:
        reply = await self._store.heartbeat(self.owner.session, profile, reports)
        # a store that does not know the device at all is not the one that was joined: that file was moved away, and may
        # be restored
        if not reply.alive and await self._store.register(f"device/{self.owner.device}") is None:
            raise StoreUnavailable(f"{self.url} does not know this device: it is another store, or an empty one")
        return reply

    async def drain(self) -> None:
        await membership.mark_draining(self._store, self.owner.session, self.owner.device)

    async def leave(self) -> None:
        await membership.leave(self._store, self.owner.session, self.owner.device)

    def close(self) -> None:
        self._limited.close()

    def watch(self) -> Watch:
        return self._store.watch(frozenset({OFFERED, LIMITED, for_device(self.owner.device)}))

    def attach(self, device: InProcessDevice | None) -> None:
        self.fleet.local = device

    # -- runs --------------------------------------------------------------------------------------------------------

    async def own_runs(self) -> list[Run]:
        return await self._store.find(Query(session=self.owner.session))

    async def own_run(self, run_id: str) -> Run | None:
        run = await self._store.run(run_id)
        return run if run is not None and run.session == self.owner.session else None

    async def has_offers(self) -> bool:
        return bool(await self._store.find(Query(offered=True, limit=1)))

    async def take(self, order: TakeOrder) -> list[Run]:
        request = TakeRequest(self.owner.device, order.not_kinds, self.store_time(), order.limit, order.above)
        try:
            taken = await self._limited.take(request, order.take, order.free)
        except EnoughSeen:
            order.forget_kinds()
            return []
        order.look_in, order.look_when_free = taken.look_in, taken.look_when_free
        return taken.runs

    async def change(
        self, run: str | Run, step: DeviceStep, *, patience: float = STEP_TIMEOUT, tries: int | None = None
    ) -> Run:
        return await self.fleet.ledger.change(run, partial(self._apply, step), patience=patience, tries=tries)

    def _apply(self, step: DeviceStep, run: Run) -> Run:
        return step.apply(run, self.end_time() if isinstance(step, Complete) else self.store_time())

    async def end(self, run: Run, step: OwnerStep, log: Sequence[PutLog], *, tried: Run | None = None) -> None:
        known = run if tried is None else run.id
        apply = partial(self._apply, step)
        await self.fleet.ledger.change(known, apply, patience=NO_LIMIT, tried=tried, also=log)

    async def ends_under_way(self) -> None:
        """Ends are commits of their own."""

    async def end_together(self, ends: Sequence[End]) -> None:
        writes: list[Write] = [PutRun(end.after, end.before.revision) for end in ends]
        for end in ends:
            writes += end.log
        await self._store.commit(writes)

    async def notice_late_result(self, run_id: str, why: str) -> None:
        await self._store.commit([late_notice(self.store_time(), self.owner.device, run_id, why)])

    async def progress_of(self, run_id: str, epoch: int) -> Progress | None:
        report = (await self._store.reports([run_id])).get(run_id)
        return report.progress if report is not None and report.epoch == epoch else None

    # -- values ------------------------------------------------------------------------------------------------------

    async def fetch_input(self, run: Run) -> Any:
        return await self.fleet.blobs.fetch(run.input)

    async def keep(self, value: Any, run: Run, what: str) -> Any:
        return await self.fleet.blobs.keep(value, what)

    async def value_limit(self) -> SizeLimit:
        with contextlib.suppress(StoreError):
            await self.fleet.settings()
        return self.fleet.known_settings.value_limit

    async def artifacts(self, run: Run) -> ContentAccess:
        return await self.fleet.artifacts()

    # -- the fleet ---------------------------------------------------------------------------------------------------

    async def standing(self) -> Standing:
        ranks, weights = await election_standings(self.fleet)
        return Standing(ranks.get(self.owner.device, 0.0), weights, len(ranks))

    async def recent_completions(self, workflow: str, limit: int) -> list[Completion]:
        query = Query(statuses=frozenset({COMPLETED}), workflow=workflow, newest=True, limit=limit)
        runs = await self._store.find(query)
        return [Completion(run.workflow, run.device or "", run.ended_at or 0.0) for run in runs]

    async def announce_health(self, why: str | None) -> None:
        await self._store.commit([health_notice(self.store_time(), self.owner.device, why)])


async def election_standings(fleet: Fleet) -> tuple[Mapping[str, float], Weights]:
    """The election ranks of all devices that can be reached, and the weights of scores."""
    store = fleet.store
    now = store.clock()
    sessions = [session for session in await store.sessions() if session.state == OPEN and session.reachable(now)]
    ranks = election_ranks(sessions, await fleet.coordinator())
    return ranks, (await settings.read(store)).weights


def late_notice(now: float, device: str, run_id: str, why: str) -> Notice:
    """A result of a device was refused, because the run belongs to others."""
    return Notice(now, "late", f"a late result of {device} for run {run_id} was refused: {why}", run_id, device)


def health_notice(now: float, device: str, why: str | None) -> Notice:
    """A device has stopped taking work, or takes it again (None)."""
    if why is None:
        return Notice(now, "resumed", f"{device} takes work again", None, device)
    message = f"{device} has stopped taking work: {why}. It tries one run from time to time"
    return Notice(now, "suspended", message, None, device)
