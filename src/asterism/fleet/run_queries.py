"""Runs as ``runs list`` and ``runs watch`` show them, read from the store, and the count of cancelled runs.

However large the fleet is, a snapshot reads only as many runs as are shown, and a bounded number of failed runs to
count those that were cancelled, which a store counts as failed. It finds owned runs by the sessions of their devices,
which is quick in every store.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

from asterism.base.secret_mask import Mask, environment_mask, secret_names
from asterism.core.errors import AsterismError
from asterism.core.json_values import plain_json
from asterism.core.record import Record, replace
from asterism.core.run.run import FAILED, OWNED, REPORTED_STATUSES, TERMINAL, UNOWNED, Run, RunStatus
from asterism.core.run.run_label import shown_label
from asterism.core.run.session import Session
from asterism.execution.task_inputs import is_secret
from asterism.fleet.fleet import Fleet
from asterism.store.protocol import Query

MOST_CANDIDATES = 10
"""How many runs an error lists if a part of an id matches several."""

FEWEST_LETTERS = 4
"""How many letters of a run's id are enough to name it: fewer match by chance."""

PAGE = 250
"""How many runs are read at a time where the store cannot filter: each may have a large input."""

MOST_SCANNED = 25_000
"""How many runs a part of a list looks at: a search that hits nothing takes less than 100 ms (``bench.runs.lists``)."""

MOST_PAGES = 20
"""How many pages of runs a part of a list reads where the store cannot filter."""

MOST_FAILED_RUNS = 1000
"""How many failed runs are read to count the cancelled ones."""


class AmbiguousRun(AsterismError):
    """A text that is a part of several runs' ids, or too short to be one."""


class NoSuchRun(AmbiguousRun):
    """A text that is a part of no run's id."""


class UnknownBatch(AsterismError):
    """No run belongs to a batch of this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no run belongs to batch {name!r}; list the batches with: asterism batch list")


async def find_run(fleet: Fleet, text: str) -> Run:
    """The run with this id, or the only run with this text in its id. Raises AmbiguousRun."""
    wanted = text.strip().lower()
    if not wanted:
        raise AmbiguousRun("the id of the run is empty")
    exact = await fleet.store.run(wanted)
    if exact is not None:
        return exact
    if len(wanted) < FEWEST_LETTERS:
        raise AmbiguousRun(f"{text!r} is too short: give at least {FEWEST_LETTERS} letters of the run's id")
    runs = await fleet.runs(Query(id_like=wanted, newest=True, limit=MOST_CANDIDATES + 1))
    if not runs:
        raise NoSuchRun(f"no run has {text!r} in its id; find it by its label with: asterism runs list --search TEXT")
    if len(runs) == 1:
        return runs[0]
    more = f"\n  and more than {MOST_CANDIDATES} in all" if len(runs) > MOST_CANDIDATES else ""
    lines = "".join(
        f"\n  {run.id}  {f'{run.label}  ' if run.label is not None else ''}{run.workflow}  {run.reported_status}"
        for run in runs[:MOST_CANDIDATES]
    )
    raise AmbiguousRun(f"several runs have {text!r} in their ids; give more letters:{lines}{more}")


class RunList(Record):
    """A part of a list of runs. ``next`` is the value of ``after`` for the part that follows; None at the end."""

    runs: Sequence[Run]
    next: str | None


Choice = Callable[[Sequence[Run]], Awaitable[Sequence[Run]]]


async def list_runs(
    fleet: Fleet, query: Query, limit: int, *, statuses: Collection[str] = (), choose: Choice | None = None
) -> RunList:
    """At most ``limit`` runs of a query, the newest first. It looks at a bounded number of runs, so there may be fewer,
    even none, before the end of the list.

    :param statuses: what the reported status is one of; ``open`` and ``ended`` stand for several.
    :param choose: which of some runs are listed: a condition that a query cannot have. It is asked page by page.
    """
    words = _words(statuses)
    query = replace(query, statuses=_states(words), newest=True, limit=limit + 1)
    if words is not None or choose is not None:
        query = replace(query, limit=max(limit + 1, PAGE))
    end = await fleet.store.scan_end(query, MOST_SCANNED)
    query = replace(query, until=end)
    listed: list[Run] = []
    for _ in range(MOST_PAGES):
        page = await fleet.store.find(query)
        chosen: Sequence[Run] = [run for run in page if words is None or run.reported_status in words]
        listed += chosen if choose is None else await choose(chosen)
        if len(listed) > limit:
            return RunList(listed[:limit], listed[limit - 1].id)
        if len(page) < (query.limit or 0):
            return RunList(listed, end)
        query = replace(query, after=page[-1].id)
    return RunList(listed, query.after)


def masks_of(runs: Iterable[Run]) -> dict[str, Mask]:
    """For each run, by id, the mask that hides the secrets that it and its workflow refer to."""
    masks = {}
    shared: dict[frozenset[str], Mask] = {}  # a mask reads all variables of the process when it is first used
    for run in runs:
        input_values = run.input.values() if isinstance(run.input, Mapping) else ()
        names = set(secret_names(list(filter(is_secret, input_values))))
        names.update(secret_names([run.work.env, run.work.http]))
        masks[run.id] = shared.setdefault(frozenset(names), environment_mask(names))
    return masks


def labels_of(runs: Sequence[Run], masks: Mapping[str, Mask] | None = None) -> dict[str, str]:
    """What lists call these runs, by id: their labels, else what they do, with secrets masked. ``masks`` are those of
    ``masks_of``, if the caller has them."""
    if masks is None:
        masks = masks_of([run for run in runs if run.label is None])
    return {
        run.id: run.label if run.label is not None else shown_label(run, masks[run.id].data(plain_json(run.input)))
        for run in runs
    }


def _words(statuses: Collection[str]) -> frozenset[str] | None:
    """The statuses of the filter, with ``open`` and ``ended`` expanded; None for all."""
    if not statuses:
        return None
    groups = {"ended": {"completed", "failed", "cancelled"}}
    groups["open"] = set(REPORTED_STATUSES) - groups["ended"]
    return frozenset().union(*(groups.get(word, {word}) for word in statuses))


def _states(words: frozenset[str] | None) -> frozenset[RunStatus] | None:
    return None if words is None else frozenset().union(*(REPORTED_STATUSES[word] for word in words))


# -- snapshots ---------------------------------------------------------------------------------------------------------


class FleetSnapshot(Record):
    """Owned and waiting runs are in the order of their creation, ended runs have the latest first. ``cancelled`` is how
    many of the failed runs were cancelled, None if there are too many to count."""

    now: float
    counts: Mapping[RunStatus, int]
    cancelled: int | None
    sessions: Mapping[str, Session]
    coordinator: str | None
    owned: Sequence[Run]
    waiting: Sequence[Run]
    ended: Sequence[Run]

    @property
    def open(self) -> int:
        """How many runs have not ended."""
        return sum(number for status, number in self.counts.items() if status not in TERMINAL)

    @property
    def runs(self) -> list[Run]:
        return [*self.owned, *self.waiting, *self.ended]


async def take_snapshot(
    fleet: Fleet, limit: int, before: Collection[str] = (), counter: CancelledCount | None = None
) -> FleetSnapshot:
    """At most ``limit`` runs of each kind. ``before`` are the open runs of the last snapshot: those that have ended
    since are among the ended ones, however old they are. ``counter`` counts the cancelled runs."""
    store = fleet.store
    counts = await store.counts()
    sessions = {session.id: session for session in await store.sessions()}
    owned = await _owned(fleet, sessions, counts, limit)
    waiting = (
        await fleet.store.find(Query(statuses=UNOWNED, limit=limit)) if any(counts.get(s) for s in UNOWNED) else []
    )
    ended = {run.id: run for run in await fleet.store.find(Query(statuses=TERMINAL, newest=True, limit=limit))}
    there = {run.id for run in (*owned, *waiting)}
    for run_id in [run_id for run_id in before if run_id not in there and run_id not in ended][:limit]:
        run = await store.run(run_id)
        if run is not None and run.ended:
            ended[run.id] = run
    latest = sorted(ended.values(), key=lambda run: (-(run.ended_at or 0.0), run.id))
    coordinator = await fleet.coordinator()
    cancelled = await counter.count(fleet, counts.get(FAILED, 0), latest) if counter is not None else None
    return FleetSnapshot(store.clock(), counts, cancelled, sessions, coordinator, owned, waiting, latest)


async def _owned(
    fleet: Fleet, sessions: Mapping[str, Session], counts: Mapping[RunStatus, int], limit: int
) -> list[Run]:
    runs: dict[str, Run] = {}
    for session in sessions.values():
        if session.used and len(runs) < limit:
            runs |= {run.id: run for run in await fleet.store.find(Query(session=session.id, limit=limit))}
    total = sum(counts.get(status, 0) for status in OWNED)
    if len(runs) < min(limit, total):  # some belong to a device that has left
        runs |= {run.id: run for run in await fleet.store.find(Query(statuses=OWNED, limit=limit))}
    return sorted(runs.values(), key=lambda run: run.id)[:limit]


class CancelledCount:
    """Counts the cancelled runs among the failed ones. An ended run does not change, so each is read once."""

    def __init__(self) -> None:
        self._cancelled: dict[str, bool] = {}

    async def count(self, fleet: Fleet, failed: int, seen: Sequence[Run]) -> int | None:
        """How many of the ``failed`` runs were cancelled; None if there are too many to read.

        ``seen`` are runs that the caller has read. A run among them that is not counted yet means that another one was
        pruned."""
        if failed > MOST_FAILED_RUNS:
            return None
        known = {run.id: run.cancelled for run in seen if run.status is FAILED}
        if len(known) == failed:  # the caller has read all of them
            self._cancelled = known
        elif len(self._cancelled) != failed or not known.keys() <= self._cancelled.keys():
            self._cancelled = await self._read(fleet)
        return min(failed, sum(self._cancelled.values()))  # more may have ended since the count

    async def _read(self, fleet: Fleet) -> dict[str, bool]:
        cancelled: dict[str, bool] = {}
        after: str | None = None
        while len(cancelled) <= MOST_FAILED_RUNS:
            page = await fleet.store.find(Query(statuses=frozenset({FAILED}), after=after, limit=PAGE))
            cancelled |= {run.id: run.cancelled for run in page}
            if len(page) < PAGE:
                break
            after = page[-1].id
        return cancelled
