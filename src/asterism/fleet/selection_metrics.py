"""Metrics of a fleet from its stored records: how long runs wait, what devices decline and lose, scores and outcomes.

Any process can compute them, and nothing is counted while work is done. They describe the runs that were created within
a window of time, at most ``limit`` of them: the newest. So the cost is bounded, whatever the store holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from asterism.base.openmetrics import Family, Histogram
from asterism.core.run.run import COMPLETED, Run, RunStatus
from asterism.core.run.session import REACHABLE_STATES, Session
from asterism.core.run.transitions import declines, outcomes, waiting_time, work_time
from asterism.core.schedule.ticks import without_time
from asterism.fleet.fleet import Fleet
from asterism.store.protocol import Query, Store

WINDOW = 3600.0
"""The default window, in seconds."""

MAX_RUNS = 10_000
"""How many runs are read at most, by default."""

PAGE = 500

SECONDS = (0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0)
SCORES = (20.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 100.0)
"""The upper bounds of the buckets."""


@dataclass
class SelectionMetrics:
    """What the runs of a window say. The keys begin with workflow and device, empty for a run without a device."""

    runs: int = 0
    ends: Counter[tuple[str, ...]] = field(default_factory=Counter)
    assignments: Counter[tuple[str, ...]] = field(default_factory=Counter)
    declined: Counter[tuple[str, ...]] = field(default_factory=Counter)
    waiting: dict[tuple[str, ...], Histogram] = field(default_factory=dict)
    working: dict[tuple[str, ...], Histogram] = field(default_factory=dict)
    scores: dict[tuple[str, ...], Histogram] = field(default_factory=dict)

    def add(self, run: Run) -> None:
        self.runs += 1
        flow = without_time(run.workflow)  # a series of metrics for each tick would never end
        last = (flow, run.device or "")
        if run.ended:
            self.ends[(*last, run.reported_status)] += 1
        if run.started_at is not None and (waited := waiting_time(run)) is not None:
            self.waiting.setdefault(last, Histogram(SECONDS)).observe(waited)
        if run.status is COMPLETED and (took := work_time(run)) is not None:
            self.working.setdefault(last, Histogram(SECONDS)).observe(took)
        for outcome in outcomes(run):
            key = (flow, outcome.device, outcome.reason)
            self.assignments[key] += 1
            if outcome.score is not None:
                self.scores.setdefault(key, Histogram(SCORES)).observe(outcome.score)
        for device in declines(run):
            self.declined[flow, device] += 1

    def families(self) -> list[Family]:
        return [
            _family("window_run_ends", "Runs of the window that ended, by their last device.", self.ends, "outcome"),
            _family(
                "window_assignment_ends",
                "Assignments of the window that ended; reason timeout is a loss.",
                self.assignments,
                "reason",
            ),
            _family("window_declines", "Runs of the window that a device declined.", self.declined),
            _family(
                "window_waiting_seconds", "Time from creation to start, without earlier assignments.", self.waiting
            ),
            _family("window_work_seconds", "Time from start to end of the completed runs of the window.", self.working),
            _family(
                "window_score",
                "Score with which a device got a run, by how that assignment ended.",
                self.scores,
                "reason",
            ),
        ]


def _family(name: str, text: str, samples: Mapping[tuple[str, ...], float | Histogram], *labels: str) -> Family:
    """A metric by workflow and device, and further ``labels``."""
    unit = "seconds" if name.endswith("_seconds") else ""
    return Family(f"asterism_{name}", text, ("workflow", "device", *labels), samples, unit)


async def read_window(store: Store, window: float, limit: int) -> tuple[SelectionMetrics, float]:
    """The metrics of the runs that were created in the last ``window`` seconds, the newest ``limit`` of them, and how
    many seconds these cover."""
    now = store.clock()
    metrics, after = SelectionMetrics(), None
    while metrics.runs < limit:
        page = await store.find(Query(newest=True, after=after, limit=min(PAGE, limit - metrics.runs)))
        for run in page:
            if run.created_at < now - window:
                return metrics, window
            metrics.add(run)
        if len(page) < PAGE:
            break
        after = page[-1].id
    return (metrics, now - page[-1].created_at) if metrics.runs >= limit and page else (metrics, window)


async def fleet_families(fleet: Fleet, window: float = WINDOW, limit: int = MAX_RUNS) -> list[Family]:
    """All metrics of a fleet: its runs and devices now, and those of the window."""
    store = fleet.store
    metrics, covered = await read_window(store, window, limit)
    counts = await store.counts()
    statuses: dict[tuple[str, ...], float] = {(str(status),): counts.get(status, 0) for status in RunStatus}
    return [
        Family("asterism_runs", "Runs in the store.", ("status",), statuses),
        *await _waiting(store),
        *await _devices(store),
        Family("asterism_window_seconds", "The window of the metrics named so.", (), {(): window}, "seconds"),
        Family(
            "asterism_window_covered_seconds",
            "How much of the window is covered; less if it has more runs than are read.",
            (),
            {(): covered},
            "seconds",
        ),
        Family("asterism_window_runs", "Runs that were created in the window, and read.", (), {(): metrics.runs}),
        *metrics.families(),
    ]


async def _waiting(store: Store) -> list[Family]:
    now = store.clock()
    numbers: Counter[tuple[str, ...]] = Counter()
    ages: dict[tuple[str, ...], float] = {}
    for group in await store.waiting():
        key = (without_time(group.workflow), group.pinned or "")
        numbers[key] += group.number
        ages[key] = max(ages.get(key, 0.0), now - group.since)
    return [
        _family("runs_waiting", "Runs that wait for a device; device if only that may take it.", numbers),
        _family("runs_waiting_oldest_seconds", "How long the oldest of them waits.", ages),
    ]


async def _devices(store: Store) -> list[Family]:
    now = store.clock()
    sessions = [session for session in await store.sessions() if session.state in REACHABLE_STATES]
    gauges: dict[str, tuple[str, Callable[[Session], float]]] = {
        "reachable": ("Whether the last heartbeat of the device is recent.", lambda session: session.reachable(now)),
        "slots": ("Slots of the device.", lambda session: session.slots),
        "used": ("Runs that the device owns.", lambda session: session.used),
        "connection": ("Connection quality of the device, 0 to 1.", lambda session: session.quality),
    }
    return [
        Family(
            f"asterism_device_{name}", text, ("device",), {(session.device,): +value(session) for session in sessions}
        )
        for name, (text, value) in gauges.items()
    ]
