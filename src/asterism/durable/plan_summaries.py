"""Summaries of stored plans: what lists show of a plan without reading its journal.

The process that runs a plan writes its summary (``PutPlan``) together with a record of the journal, at most a quarter
of a second after a step (``journal_writer.LIST_INTERVAL``). If it dies before, a list finds that the journal went on,
and reads it. What depends on the time is not in the summary: whether the owner is alive, and which running tasks have
begun. A list looks that up for the plans of one page, all at once. A plan whose head was written without a summary,
from a backup, is read in full once, and gets it then.

This module imports nothing of the plan itself, so that a list is quick to start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from asterism.base.text import plural
from asterism.core.errors import AsterismError
from asterism.core.plan.node import QUEUED, RUNNING, STARTING, AttemptTimes, is_process
from asterism.core.plan.status import TERMINAL, ConstellationState
from asterism.core.record import Record, decode, field, replace
from asterism.core.run.run import OWNED, Run
from asterism.core.run.run_label import PLAN_PREFIX
from asterism.core.run.session import ABROAD, Session
from asterism.core.run.transitions import was_executed
from asterism.store.protocol import PlanQuery, PlanRow, PutPlan, Query, Store
from asterism.store.store_errors import StoreUnavailable

if TYPE_CHECKING:
    from asterism.core.plan.journal import RecordedConstellation
    from asterism.core.plan.node import Node
    from asterism.durable.journal_store import Head

ENDED = ("completed", "failed", "partially_failed", "cancelled")
STATES = (*(state.value for state in ConstellationState if state not in ENDED), "at_rest", *ENDED)

PHASES = (QUEUED, STARTING, RUNNING)

MOST_RUNNING = 100
"""How many running tasks a summary names at most. A list reads a plan with more of them in full."""


# -- writing -----------------------------------------------------------------------------------------------------------


def summary_of(
    head: Head, plan: RecordedConstellation, cycles: int, record: int, open_cycles: Sequence[int] = ()
) -> PutPlan:
    """The write of the summary of a plan as it is now; after that of its head. ``cycles`` is how many edit cycles were
    opened, ``record`` the number of the last record of the journal."""
    running = None if len(plan.running) > MOST_RUNNING else list(map(list, running_tasks(plan)))
    summary = {
        "version": plan.version,
        "tasks": len(plan.nodes),
        "counts": {str(status): count for status, count in plan.counts.items() if count},
        "running": running,
        "created_at": head.created_at,
        "started_at": plan.started_at,
        "changed_at": max(head.created_at, plan.last_at),
        "ended_at": plan.ended_at,
        "closed": head.ended,
        "cancelling": head.cancelling,
        "cancel_reason": head.cancel_reason,
        "paused": head.paused,
        "owner": head.owner,
        "device": head.device,
        "epoch": head.epoch,
        "approvals": "approvals" in head.terms,
        "cycles": cycles,
        "file": head.file,
        "tags": list(head.tags),
        "record": record,
        "waits": "" if plan.running else _waits(plan, open_cycles),
    }
    return PutPlan(head.name, str(plan.state), {"state": str(plan.state), **summary})


def _waits(plan: RecordedConstellation, open_cycles: Sequence[int]) -> str:
    """What the plan waits for if no task runs, in a word. A task that needs approval is counted elsewhere."""
    kinds = {kind for node in plan.nodes.values() if node.awaits for kind in node.task.wait_for or ()}
    words = [f"edit cycle {cycle} is open" for cycle in open_cycles[:1]]
    return ", ".join([*words, *(word for kind, word in _WORLD.items() if kind in kinds)])


_WORLD = {"event": "waits for an event", "until": "waits for a time", "plan": "waits for another plan"}


def running_tasks(plan: RecordedConstellation) -> list[tuple[str, int, bool]]:
    """The id and the epoch of each running task, and whether it is with the process that runs the plan."""
    nodes = [plan.nodes[task] for task in plan.running]
    return [(node.id, node.epoch, is_with_owner(node)) for node in nodes]


def is_with_owner(node: Node) -> bool:
    """Whether the process that runs a plan decides how a task goes on, or executes it."""
    return node.tentative is not None or node.task.foreach is not None or is_process(node.device)


# -- one plan ----------------------------------------------------------------------------------------------------------


class PlanSummary(Record, kw_only=True):
    """What is stored of a plan for lists. ``closed`` is whether its head says that it has ended, which is written after
    its last step. ``running`` are the running tasks (see ``running_tasks``)."""

    name: str
    state: str
    version: int
    tasks: int
    counts: Mapping[str, int]
    running: Sequence[tuple[str, int, bool]]
    created_at: float
    started_at: float | None
    changed_at: float
    ended_at: float | None
    closed: bool
    cancelling: bool
    owner: str | None
    device: str | None
    epoch: int
    approvals: bool
    cycles: int
    file: str | None
    tags: Sequence[str]
    record: int
    """The last record of the journal that it includes."""

    waits: str = ""
    """What it waits for, if no task runs."""

    paused: str | None = None
    cancel_reason: str | None = None
    """Who asked for it, and why."""


class ListedPlan(Record):
    """A plan in a list: its summary, and what is so at this moment. ``owner`` is the live session that runs the plan,
    ``gone`` the one that ran it last, if none does. ``waiting`` is how many approvals wait for a person;
    ``budget_held`` whether the budget of its editor is spent; ``runs`` are the runs of its running tasks, by task."""

    summary: PlanSummary
    owner: Session | None = None
    gone: Session | None = None
    waiting: int = 0
    budget_held: bool = False
    runs: Mapping[str, Run] = field(default_factory=dict)

    @property
    def counts(self) -> dict[str, int]:
        """How many tasks have each status, with the phases of those that count as running for the plan."""
        counts = {status: count for status, count in self.summary.counts.items() if status != RUNNING}
        phases = Counter(
            phase_of(self.runs.get(task), self.owner, with_owner=with_owner)
            for task, _, with_owner in self.summary.running
        )
        return counts | {phase: phases[phase] for phase in PHASES if phases[phase]}

    @property
    def done(self) -> int:
        """How many tasks have ended."""
        return sum(self.summary.counts.get(status, 0) for status in TERMINAL)

    @property
    def repaired(self) -> bool:
        """Whether the plan completed although tasks failed: other tasks handled each failure."""
        return self.summary.state == ConstellationState.COMPLETED and "failed" in self.summary.counts

    @property
    def state(self) -> str:
        """``state_name`` in words: ``at rest``, ``partially failed``, ``repaired``."""
        return "repaired" if self.repaired else self.state_name.replace("_", " ")

    @property
    def state_name(self) -> str:
        """See the function of this name."""
        return state_name(self.summary.state, self.owner, cancelling=self.cancelling)

    @property
    def cancelling(self) -> bool:
        """Whether the plan has not ended and its owner, or its next owner, cancels it."""
        return self.summary.state not in ENDED and self.summary.cancelling

    @property
    def paused(self) -> str | None:
        """Who paused the plan, and why; None if it is not paused, or has ended."""
        return None if self.summary.closed else self.summary.paused

    @property
    def budget_spent(self) -> bool:
        """Whether the budget of its editor holds the plan."""
        return self.budget_held and not self.summary.closed

    @property
    def stalled(self) -> str:
        """Why nothing moves while a process runs the plan, such as ``3 queued``; empty if a task is executed."""
        counts = self.counts
        if (
            self.state_name != ConstellationState.EXECUTING
            or self.paused is not None
            or counts.keys() & {STARTING, RUNNING}
        ):
            return ""
        queued = f"{counts[QUEUED]:,} queued" if QUEUED in counts else ""
        return ", ".join(filter(None, [queued, self.summary.waits, self.waits_for_person]))

    @property
    def waits_for_person(self) -> str:
        """What a person has to decide, such as ``1 approval waits``; empty if nothing."""
        waits = f"{plural(self.waiting, 'approval')} wait{'s' if self.waiting == 1 else ''}"
        return ", ".join([*([waits] if self.waiting else []), *(["budget spent"] if self.budget_spent else [])])


class UnreadablePlan(Record):
    name: str
    created_at: float
    why: str


def state_name(state: str, owner: Session | None, *, cancelling: bool) -> str:
    """The state of a plan as people see it: its own, or ``cancelling`` once its head says so, or ``at_rest`` if it has
    started and no process runs it."""
    if cancelling and state not in ENDED:
        return "cancelling"
    return "at_rest" if owner is None and state == ConstellationState.EXECUTING else str(state)


def phase_of(run: Run | None, owner: Session | None, *, with_owner: bool) -> str:
    """What a task does that counts as running: queued, starting or running. ``with_owner`` is whether it is with the
    process that runs the plan, unless it has an open run. Without that process, only a task that a live device executes
    is running."""
    if run is not None and not run.ended:
        return times_of(run).phase
    return RUNNING if owner is not None and (with_owner or run is not None) else QUEUED


def times_of(run: Run) -> AttemptTimes:
    """The times of the last attempt of a run."""
    assigned = run.assigned_at if run.device is not None else None
    return AttemptTimes(run.created_at, assigned, run.started_at, run.ended_at, was_executed(run))


# -- reading -----------------------------------------------------------------------------------------------------------


async def list_plans(store: Store, query: PlanQuery) -> list[ListedPlan | UnreadablePlan]:
    """The plans of a query; ``live`` of it is looked up here. Raises StoreUnavailable."""
    if query.states is not None:
        query = replace(query, live=frozenset(await live_sessions(store)))
    rows = [row if damage_of(row) is None else row._replace(summary=None) for row in await store.plans(query)]
    owners = {row.summary["owner"] for row in rows if row.summary is not None and not row.summary["closed"]} - {None}
    live = await live_sessions(store, owners) if owners else {}
    plans: list[tuple[PlanRow, PlanSummary | UnreadablePlan]] = []
    for row in rows:
        plan: PlanSummary | UnreadablePlan | None
        try:
            plan = await _summary(store, row, live)
        except StoreUnavailable:
            raise
        except AsterismError as error:
            plan = UnreadablePlan(row.name, row.created_at, str(error))
        if plan is not None:
            plans.append((row, plan))
    open_plans = [plan for _, plan in plans if isinstance(plan, PlanSummary) and not plan.closed]
    if late := {plan.owner for plan in open_plans} - owners - {None}:  # of plans that were read in full
        live = {**live, **await live_sessions(store, late)}
    moment = await _moment(store, open_plans, live)
    return [plan if isinstance(plan, UnreadablePlan) else _listed(row, plan, moment) for row, plan in plans]


def damage_of(row: PlanRow) -> str | None:
    """Why the summary of a plan cannot be read; None if it can, or there is none. Then the plan is read in full."""
    try:
        if row.summary is not None:
            fields = dict(row.summary)
            decode(PlanSummary, {**fields, "name": row.name, "running": fields.get("running") or []})
    except (TypeError, ValueError) as error:
        return str(error)
    return None


async def damaged_summaries(store: Store) -> list[str]:
    """A sentence for each summary that cannot be read."""
    problems, query = list[str](), PlanQuery()
    while rows := await store.plans(query):
        damages = [(row.name, damage_of(row)) for row in rows]
        problems += [f"the summary of plan {name} cannot be read: {why}" for name, why in damages if why is not None]
        query = replace(query, after=(rows[-1].created_at, rows[-1].name))
    return problems


async def _summary(store: Store, row: PlanRow, live: Mapping[str, Session]) -> PlanSummary | None:
    """None for a plan that was removed since its row was read."""
    if row.summary is None or row.summary["running"] is None or await _is_old(store, row.name, row.summary, live):
        from asterism.durable.journal_store import complete_summary  # slow to import, and rare

        return await complete_summary(store, row)
    return decode(PlanSummary, {**row.summary, "name": row.name})


async def _is_old(store: Store, name: str, summary: Mapping[str, Any], live: Mapping[str, Session]) -> bool:
    """Whether the owner of a plan died after a step, and before it wrote the summary again."""
    if summary["closed"] or summary["owner"] is None or summary["owner"] in live:
        return False
    from asterism.durable.journal_store import record_key  # slow to import, and rare

    return await store.register(record_key(name, summary["record"] + 1)) is not None


class _Moment(Record):
    """What is so at this moment, for the open plans of a page: sessions by id, edits and runs by plan."""

    live: Mapping[str, Session]
    known: Mapping[str, Session]
    waiting: Mapping[str, int]
    runs: Mapping[str, Mapping[str, Run]]


async def _moment(store: Store, plans: Sequence[PlanSummary], live: Mapping[str, Session]) -> _Moment:
    owners = {plan.owner for plan in plans if plan.owner is not None}
    known = {session.id: session for session in await store.sessions(ended=True)} if owners - live.keys() else {}
    waiting = {plan.name: await _waiting_edits(store, plan) for plan in plans if plan.approvals}
    return _Moment(live, known, waiting, await open_runs(store, {plan.name: plan.running for plan in plans}))


async def _waiting_edits(store: Store, plan: PlanSummary) -> int:
    """How many edits of a plan wait. Those of an earlier plan of that name are not its own."""
    edits = [register.value for register in await store.registers(f"approval/{plan.name}/")]
    return sum(edit["state"] == "waiting" and edit["at"] >= plan.created_at for edit in edits)


def _listed(row: PlanRow, plan: PlanSummary, moment: _Moment) -> ListedPlan:
    budget_held = plan.cycles > 0 and row.budget is not None and row.budget["account"].get("held_since") is not None
    if plan.closed:
        return ListedPlan(plan, budget_held=budget_held)
    owner = moment.live.get(plan.owner or "")
    return ListedPlan(
        plan,
        owner,
        gone=None if owner is not None else moment.known.get(plan.owner or ""),
        waiting=moment.waiting.get(plan.name, 0),
        budget_held=budget_held,
        runs=moment.runs[plan.name],
    )


async def open_runs(store: Store, running: Mapping[str, Iterable[Sequence[Any]]]) -> dict[str, dict[str, Run]]:
    """The runs of the running tasks of some plans, by plan and task. A plan itself learns when they end which device
    had them, and when they began. A run whose device is dead waits for another one, though the coordinator may not have
    noticed."""
    tasks = {f"{PLAN_PREFIX}{plan}/{task[0]}/{task[1]}": (plan, task[0]) for plan in running for task in running[plan]}
    runs = await store.find(Query(keys=frozenset(tasks))) if tasks else []
    owned = [run.session for run in runs if run.status in OWNED]
    live = await live_sessions(store, owned) if owned else {}
    runs_by_plan: dict[str, dict[str, Run]] = {plan: {} for plan in running}
    for run in runs:
        plan, task = tasks[run.key or ""]
        dead = run.status in OWNED and run.session not in live
        runs_by_plan[plan][task] = run.changed(device=None, started_at=None) if dead else run
    return runs_by_plan


async def live_owner(store: Store, head: Head) -> Session | None:
    """The live session that runs a plan; None if no process does."""
    return None if head.owner is None else (await live_sessions(store, [head.owner])).get(head.owner)


async def last_owner(store: Store, head: Head) -> Session | None:
    """The session that ran a plan last, though it is gone; None if there was none, or it is forgotten."""
    if head.owner is None:
        return None
    return next((session for session in await store.sessions(ended=True) if session.id == head.owner), None)


async def live_sessions(store: Store, among: Iterable[str | None] | None = None) -> dict[str, Session]:
    """The sessions, or those of these, whose processes live, as far as this store knows: their last heartbeat is
    recent, and they are not known to have died on this machine. A device of an absent peer goes on with its work."""
    wanted, now = None if among is None else set(among), store.clock()
    sessions = [
        session
        for session in await store.sessions()
        if (wanted is None or session.id in wanted) and (session.state == ABROAD or session.reachable(now))
    ]
    identity = await store.register("store/id") if sessions else None
    if identity is None:
        return {session.id: session for session in sessions}
    from asterism.fleet.device.membership import died_here  # slow to import

    return {session.id: session for session in sessions if not died_here(str(identity.value["id"]), session)}
