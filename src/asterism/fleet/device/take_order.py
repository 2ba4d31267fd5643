"""What a device takes: what it accepts now, its own score, and its order for offered runs.

An order says how many runs the device takes, which ones, and how each of them is taken.

Before it takes an offered run, the device judges it: it asks its executor, which knows the device policy, whether it
would execute runs of this kind (``Run.kind``), and this one. Judging happens on the event loop; inside the transaction
of the store (``take``) the order only looks up earlier judgements, and collects what has to be judged first.

A gateway gets the order as data (``kinds``): it takes runs of the kinds that the device can execute, and the device
judges each of them just before the execution.

The score of a device for runs that it takes itself, by the same formula as that of placement.

The record of a run keeps the score with which its device got it, so that scores can be compared with outcomes
(``fleet/selection_metrics.py``). A run that a device takes was scored by nobody: the device does it, from what it knows
without asking the store. Its election rank and the weights change rarely and are read from time to time, beside the
work.

What a device accepts now: whether it rests or is drained, what it refuses, and what it leaves to others.

Rules are expressions over the profile of the device (membership.py), as the last heartbeat measured it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from asterism.base.expressions import holds
from asterism.core.json_values import NOTHING, JsonObject
from asterism.core.record import replace
from asterism.core.run import transitions
from asterism.core.run.placement import DEFAULT_WEIGHTS, Candidate, mismatch_reason, resting_reason, score, unmet_reason
from asterism.core.run.run import Run
from asterism.core.run.session import RESTING, Session
from asterism.core.run.work import Work
from asterism.fleet.coordinator import Coordinator
from asterism.fleet.device.device_connection import DeviceConnection
from asterism.fleet.device.lease import Lease
from asterism.fleet.device.worker import Worker

SAME_TIME = 0.01
"""Takes within this many seconds share one timestamp, so that most of their record is equal."""

JUDGED_AHEAD = 16
"""How many runs are judged at a time, at least, if each run has to be judged by itself."""


class EnoughSeen(Exception):
    """Ends the search of the store: enough runs have to be judged first."""


class Unseen(NamedTuple):
    """What must be judged before it can be taken: kinds, each with a run of it, None if it cannot be read; and single
    runs."""

    kinds: dict[str, Run | None]
    runs: list[Run]

    def __bool__(self) -> bool:
        return bool(self.kinds or self.runs)


class KindsToTake(NamedTuple):
    """The kinds that a device can execute: those that it takes, each with its score, and those for which its lease is
    not fresh enough now."""

    fresh: Mapping[str, Mapping[str, float]]
    stale: frozenset[str]


class DeviceParts(NamedTuple):
    """The parts of a device that decide what it takes. ``able`` is the work of the kinds that it can execute,
    ``cleared`` the ids of runs that were judged and would be executed."""

    connection: DeviceConnection
    worker: Worker
    lease: Lease
    acceptance: Acceptance
    own_score: OwnScore
    able: dict[str, Work]
    cleared: set[str]


class TakeOrder:
    """Up to ``limit`` runs of any kind except ``not_kinds``; the first ``free`` of them start at once. With ``above``,
    only runs of a higher priority. ``taken_kinds`` has the work of what was taken, or may have been, by kind. The
    connection sets ``look_in``, in how many seconds a rate has room for more, and ``look_when_free``, whether there may
    be more once a slot is free."""

    def __init__(
        self, device: DeviceParts, not_kinds: frozenset[str], *, free: int, limit: int, above: int | None
    ) -> None:
        self._device, self.not_kinds = device, not_kinds
        self.free, self.limit, self.above = free, limit, above
        self.unseen = Unseen({}, [])
        self.look_in: float | None = None
        self.look_when_free = False
        self.stale: list[Work] = []
        self.taken_kinds: dict[str, Work] = {}
        self._scores: dict[str, Mapping[str, float]] = {}  # ours when we ask, the same for all that we get
        self._held = device.worker.in_use
        self._starts, self._moment = 0, float("-inf")

    def take(self, run: Run) -> Run | None:
        """The run as taken by this device, or None to leave it. The store may call this in another thread, and again:
        it only looks."""
        device = self._device
        worker = device.worker
        kind = run.kind
        if kind not in device.able:
            if kind in self.unseen.kinds:
                raise EnoughSeen  # the whole queue may be of that kind
            self.unseen.kinds[kind] = run
            return None
        if run.id in worker.held or (self._starts >= self.free and worker.waited_in_vain(run.id)):
            return None
        now = device.connection.store_time()
        if device.acceptance.leaves_to_others(run, now) or device.acceptance.refusal_reason(run):
            return None
        if kind not in self.taken_kinds:
            if not device.lease.is_fresh(run.work):
                self.stale.append(run.work)
                return None
            self.taken_kinds[kind] = run.work
            self._scores[kind] = device.own_score.scores(run.work, self._held)
        if run.id not in device.cleared and worker.executor.judges_each(run):
            if len(self.unseen.runs) >= max(self.limit, JUDGED_AHEAD):
                raise EnoughSeen
            self.unseen.runs.append(run)
        if run.uses is not None and self._starts >= self.free:
            return None  # it would hold its limits while it waits for a slot
        if self.unseen:
            return None  # nothing overtakes a run that must be judged first
        self._starts += 1
        if not (run.waiting_since or 0.0) <= self._moment <= now < self._moment + SAME_TIME:
            self._moment = now
        starts = self._starts <= self.free
        return transitions.take(run, worker.owner, self._moment, starts=starts, scores=self._scores[kind])

    def forget_kinds(self) -> None:
        """Nothing was taken: the search ended early."""
        self.stale.clear()
        self.taken_kinds.clear()

    # -- for a gateway -----------------------------------------------------------------------------------------------

    def kinds(self) -> KindsToTake:
        """The kinds that the device can execute now."""
        device = self._device
        fresh, stale = {}, set()
        for kind, work in sorted(device.able.items()):
            if device.lease.is_fresh(work):
                fresh[kind] = device.own_score.scores(work, self._held)
            else:
                stale.add(kind)
        return KindsToTake(fresh, frozenset(stale))

    def held(self) -> list[str]:
        """The ids of the runs that the device has."""
        return list(self._device.worker.held)

    def vain_waits(self) -> list[str]:
        """The ids of runs that the device does not take only to wait, the most recent ones."""
        return self._device.worker.vain_waits()

    def met(self, taken: list[Run], stale: list[str]) -> None:
        """A gateway has taken these runs, and left runs of these kinds because the lease was not fresh."""
        self.taken_kinds.update((run.kind, run.work) for run in taken)
        self.stale += [self._device.able[kind] for kind in stale if kind in self._device.able]


# -- own score ---------------------------------------------------------------------------------------------------------


log = logging.getLogger("asterism.device")

REFRESH_INTERVAL = 60.0
"""How often rank and weights are read, in seconds."""


class OwnScore:
    """``connection`` is how well the store is reached, in 0…1: each heartbeat sets it."""

    def __init__(self, fleet: DeviceConnection, session: Session) -> None:
        self._fleet, self._session = fleet, session
        self._rank: float | None = None
        self._weights = DEFAULT_WEIGHTS
        self._connection = 1.0
        self._known: dict[tuple[frozenset[str], frozenset[str], int], Mapping[str, float]] = {}
        self._interval = REFRESH_INTERVAL

    @property
    def connection(self) -> float:
        return self._connection

    @connection.setter
    def connection(self, quality: float) -> None:
        if quality != self._connection:
            self._connection = quality
            self._known.clear()

    def scores(self, work: Work, used: int) -> Mapping[str, float]:
        """The score for a run with this work while the device holds ``used`` runs, as ``Run.scores`` keeps it. Empty
        while its rank is not known."""
        key = (work.needs, work.wants, used)
        known = self._known.get(key)
        if known is None and self._rank is not None:
            session = self._session
            slots = max(session.slots, 1)
            here = Candidate(session.device, session.can, slots, min(used, slots), self._connection, self._rank)
            value = round(score(here, (None, work.needs), self._weights, work.wants), 2)
            known = self._known[key] = {session.device: value}
        return known or NOTHING

    async def refresh(self) -> None:
        """Read rank and weights. Raises StoreError, and anything for registers that are damaged."""
        self._rank, self._weights, devices = await self._fleet.standing()
        self._known.clear()
        # each device reads about one session a second at most, however many there are
        self._interval = max(REFRESH_INTERVAL, devices)

    async def refresh_until_cancelled(self) -> None:
        while True:
            await self.try_refresh()
            await self._fleet.clock.sleep(self._interval)

    async def try_refresh(self) -> None:
        """As ``refresh``. Without an answer the score stays as it was, or unknown: that must not end the work of this
        device, and heartbeat and coordinator report what is wrong with the store."""
        try:
            await self.refresh()
        except Exception as error:
            log.debug("cannot read the election rank: %s", error)


# -- acceptance --------------------------------------------------------------------------------------------------------


LOOK_INTERVAL = 5.0
"""How often a device looks for work without being woken, in seconds."""


class Acceptance:
    """``session`` is the device as the store knows it, ``measure`` returns what its machine says of itself. The device
    rests, and hands its work back, while the expression ``hands_back`` holds over its profile. ``draining`` is set when
    it is to take nothing more. A device without the store of its fleet has no ``coordinator``."""

    def __init__(
        self,
        session: Session,
        coordinator: Coordinator | None,
        draining: asyncio.Event,
        *,
        labels: Mapping[str, str],
        hands_back: str | None,
        measure: Callable[[], Mapping[str, Any]],
    ) -> None:
        self.session = session
        self._coordinator, self._draining = coordinator, draining
        self._labels, self.hands_back, self._measure = dict(labels), hands_back, measure
        self.resting: str | None = None
        """Why the device rests, as of the last heartbeat; None if it does not."""

        self.held_back: str | None = None
        """Why the device rests whatever its machine says; None if it does not."""

        self._shown: Mapping[str, Any] = {}  # the profile, as expressions see it

    def measure(self, suspended: str | None, held: int) -> JsonObject:
        """Measure the profile and decide whether the device rests. ``suspended`` says why its health keeps it from
        work, ``held`` is how many runs it holds."""
        profile = {**self._measure(), "labels": self._labels}
        if suspended is not None:
            profile["suspended"] = suspended
        self._shown = replace(self.session, profile=profile, used=held).expression_names()
        rests = self.hands_back is not None and holds(self.hands_back, self._shown) is True
        self.resting = self.held_back or (f"{self.hands_back!r} holds" if rests else None)
        return {**profile, RESTING: self.resting}

    @property
    def takes_offers(self) -> bool:
        """Whether the device takes runs that no device has."""
        return self.session.slots > 0 and not self.declines_for_now

    @property
    def draining(self) -> bool:
        """Whether the device is about to leave."""
        return self._draining.is_set()

    @property
    def declines_for_now(self) -> bool:
        """Whether what it declines now is not refused: it rests, or is about to leave."""
        return self.draining or self.resting is not None

    def refusal_reason(self, run: Run) -> str | None:
        """Why this device will not take a run; None if it will."""
        if self.resting is not None:
            return resting_reason(self.resting)
        if self._draining.is_set():
            return "it is being drained"
        return mismatch_reason(self.session, run, self._shown, holds)

    def leaves_to_others(self, run: Run, now: float) -> bool:
        """Whether the work prefers another device. The coordinator assigns the run to it; if it does not in time,
        any device may take the run."""
        elected = self._coordinator is not None and self._coordinator.elected
        return leaves_to_others(run, now, self._shown, elected=elected)


def leaves_to_others(run: Run, now: float, names: Mapping[str, Any], *, elected: bool) -> bool:
    """See ``Acceptance.leaves_to_others``. ``names`` are those of the device in expressions, and ``elected`` is whether
    it is the coordinator, which executes orchestrations."""
    work = run.work
    if not work.orchestration and work.prefers is None:
        return False
    if now - (run.waiting_since or 0.0) > 2 * LOOK_INTERVAL:
        return False
    if work.orchestration and not elected:
        return True
    return work.prefers is not None and unmet_reason(work.prefers, names, holds) is not None
