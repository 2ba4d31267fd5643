"""An order of a device for offered runs: how many, which ones, and how each of them is taken.

Before it takes an offered run, the device judges it: it reads the workflow and asks its executor, which knows the
device policy. Reading and judging happen on the event loop; inside the transaction of the store (``take``) the order
only looks up earlier judgements, and collects what has to be read or judged before it can be taken.

A gateway gets the order as data (``kinds``): it takes runs of the workflows that the device can execute, and the device
judges each of them just before the execution.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from asterism.core.run import transitions
from asterism.core.run.run import Run
from asterism.core.run.workflow import Workflow
from asterism.fleet.device.acceptance import Acceptance
from asterism.fleet.device.connection import DeviceConnection
from asterism.fleet.device.lease import Lease
from asterism.fleet.device.own_score import OwnScore
from asterism.fleet.device.worker import Worker

SAME_TIME = 0.01
"""Takes within this many seconds share one timestamp, so that most of their record is equal."""

JUDGED_AHEAD = 16
"""How many runs are judged at a time, at least, if each run has to be judged by itself."""


class EnoughSeen(Exception):
    """Ends the search of the store: enough runs have to be read or judged first."""


class Unseen(NamedTuple):
    """What must be read (``kinds``) or judged (``runs``) before it can be taken."""

    kinds: set[tuple[str, int]]
    runs: list[tuple[Run, Workflow]]

    def __bool__(self) -> bool:
        return bool(self.kinds or self.runs)


class KindsToTake(NamedTuple):
    """The workflows that a device can execute, as ``name@version``: those that it takes, each with its score, and
    those for which its lease is not fresh enough now."""

    fresh: Mapping[str, Mapping[str, float]]
    stale: frozenset[str]


class DeviceParts(NamedTuple):
    """The parts of a device that decide what it takes. ``able`` are the kinds that it can execute, ``cleared`` the ids
    of runs that were judged and would be executed."""

    connection: DeviceConnection
    worker: Worker
    lease: Lease
    acceptance: Acceptance
    own_score: OwnScore
    able: set[str]
    cleared: set[str]


class TakeOrder:
    """Up to ``limit`` runs of any kind except ``not_kinds``, of which the first ``free`` start at once; with ``above``,
    only runs of a higher priority. ``taken_kinds`` are the workflows of what was taken, or may have been."""

    def __init__(
        self, device: DeviceParts, not_kinds: frozenset[str], *, free: int, limit: int, above: int | None
    ) -> None:
        self._device, self.not_kinds = device, not_kinds
        self.free, self.limit, self.above = free, limit, above
        self.unseen = Unseen(set(), [])
        self.stale: list[Workflow] = []
        self.taken_kinds: dict[tuple[str, int], Workflow] = {}
        self._scores: dict[tuple[str, int], Mapping[str, float]] = {}  # ours when we ask, the same for all that we get
        self._held = len(device.worker.held)
        self._starts, self._moment = 0, float("-inf")

    def take(self, run: Run) -> Run | None:
        """The run as taken by this device, or None to leave it. The store may call this in another thread, and again:
        it only looks."""
        device = self._device
        worker = device.worker
        kind = (run.workflow, run.version)
        flow = self.taken_kinds.get(kind) or device.connection.remembered_workflow(*kind)
        if flow is None or (kind not in self.taken_kinds and run.kind not in device.able):
            if kind in self.unseen.kinds:
                raise EnoughSeen  # the whole queue may be of that kind
            self.unseen.kinds.add(kind)
            return None
        if run.id in worker.held or (self._starts >= self.free and worker.waited_in_vain(run.id)):
            return None
        now = device.connection.store_time()
        if device.acceptance.leaves_to_others(run, flow, now) or device.acceptance.refusal_reason(run, flow):
            return None
        if kind not in self.taken_kinds:
            if not device.lease.is_fresh(flow):
                self.stale.append(flow)
                return None
            self.taken_kinds[kind] = flow
            self._scores[kind] = device.own_score.scores(flow, self._held)
        if run.id not in device.cleared and worker.executor.judges_each(flow, run.input):
            if len(self.unseen.runs) >= max(self.limit, JUDGED_AHEAD):
                raise EnoughSeen
            self.unseen.runs.append((run, flow))
        if self.unseen.runs:
            return None  # nothing overtakes a run that must be judged first
        self._starts += 1
        if not (run.waiting_since or 0.0) <= self._moment <= now < self._moment + SAME_TIME:
            self._moment = now
        starts = self._starts <= self.free
        return transitions.take(run, worker.owner, flow, self._moment, starts=starts, scores=self._scores[kind])

    def forget_kinds(self) -> None:
        """Nothing was taken: the search ended early."""
        self.stale.clear()
        self.taken_kinds.clear()

    # -- for a gateway -----------------------------------------------------------------------------------------------

    def kinds(self) -> KindsToTake:
        """The workflows that the device can execute now."""
        device = self._device
        fresh, stale = {}, set()
        for name in sorted(device.able):
            flow = self._workflow(name)
            if flow is None:
                continue
            if device.lease.is_fresh(flow):
                fresh[name] = device.own_score.scores(flow, self._held)
            else:
                stale.add(name)
        return KindsToTake(fresh, frozenset(stale))

    def held(self) -> list[str]:
        """The ids of the runs that the device has."""
        return list(self._device.worker.held)

    def vain_waits(self) -> list[str]:
        """The ids of runs that the device does not take only to wait, the most recent ones."""
        return self._device.worker.vain_waits()

    def met(self, taken: list[Run], stale: list[str]) -> None:
        """A gateway has taken these runs, and left runs of these kinds because the lease was not fresh."""
        for name in {*(run.kind for run in taken)}:
            flow = self._workflow(name)
            if flow is not None:
                self.taken_kinds[flow.name, flow.version] = flow
        self.stale += [flow for name in stale if (flow := self._workflow(name)) is not None]

    def _workflow(self, kind: str) -> Workflow | None:
        name, _, version = kind.rpartition("@")
        return self._device.connection.remembered_workflow(name, int(version))
