"""Metrics of stored plans: their tasks, edits, edit cycles and holds.

At most ``MAX_PLANS`` plans are read: those that have not ended or ended within the window, the newest first. The holds
and rejections of a plan are those since the last compaction of its journal. The plans of one schedule are counted
together: a label value for each tick would never end."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from asterism.base.openmetrics import Family
from asterism.core.errors import AsterismError
from asterism.core.schedule.ticks import without_time
from asterism.durable.editor_budget import LIMITS, Spent, read_account
from asterism.durable.journal_store import Head, StoredConstellation, load, read_heads
from asterism.durable.plan_summaries import live_sessions, open_runs, running_tasks, state_name
from asterism.durable.stored_plans import StoredPlan
from asterism.orchestrator.result import Result, covered
from asterism.store.protocol import Store
from asterism.store.store_errors import StoreError

MAX_PLANS = 50


async def plan_families(store: Store, window: float) -> list[Family]:
    """The metrics of the plans of a store; plans that cannot be read are only counted by state."""
    heads = await read_heads(store)
    live = await live_sessions(store, {head.owner for head in heads if not head.ended})
    plans = {}
    for head in _recent(heads, store.clock() - window):
        try:
            record = await load(store, head.name)
        except StoreError:
            raise
        except AsterismError:  # damaged, or removed meanwhile
            continue
        running = {} if record.head.ended else {head.name: running_tasks(record.plan)}
        runs = (await open_runs(store, running)).get(head.name, {})
        plans[head.name] = StoredPlan(record, live.get(head.owner or ""), runs=runs)
    states: Counter[tuple[str, ...]] = Counter()
    for head in heads:
        state = plans[head.name].record.plan.state if head.name in plans else head.state
        states[(state_name(state, live.get(head.owner or ""), cancelling=head.cancelling),)] += 1
    accounts = [(name, await read_account(store, name)) for name in plans]
    spent = [(without_time(name), account.spent) for name, account in accounts if account is not None]
    return [
        Family("asterism_plans", "Plans in the store.", ("state",), states),
        *_task_families(plans.values()),
        *_families(plan.record for plan in plans.values()),
        *(_editor_families(spent) if spent else ()),
    ]


def _recent(heads: Iterable[Head], since: float) -> list[Head]:
    recent = [head for head in heads if head.ended_at is None or head.ended_at >= since]
    return sorted(recent, key=lambda head: -head.created_at)[:MAX_PLANS]


def _editor_families(accounts: Iterable[tuple[str, Spent]]) -> list[Family]:
    """What the models that edit plans have cost. A store without them has no such metrics."""
    spent: defaultdict[str, Spent] = defaultdict(Spent)
    for name, cost in accounts:
        spent[name] += cost
    samples: list[dict[tuple[str, ...], float]] = [
        {(name,): getattr(cost, figure) for name, cost in spent.items()} for figure in LIMITS
    ]
    dollars, tokens, calls, seconds, tasks = samples
    return [
        Family("asterism_editor_calls", "Calls of models that edit the plan.", ("plan",), calls),
        Family("asterism_editor_tokens", "Tokens of these calls, in and out.", ("plan",), tokens),
        Family("asterism_editor_dollars", "What these calls cost, in dollars.", ("plan",), dollars),
        Family("asterism_editor_added_tasks", "Tasks that models have added to the plan.", ("plan",), tasks),
        Family("asterism_editor_seconds", "Time that these calls took.", ("plan",), seconds, "seconds"),
    ]


def _task_families(plans: Iterable[StoredPlan]) -> list[Family]:
    """Running tasks by what they do: those that wait for a device are queued."""
    tasks: defaultdict[tuple[str, ...], float] = defaultdict(float)
    for stored in plans:
        for status, count in stored.counts.items():
            tasks[without_time(stored.record.head.name), status] += count
    return [Family("asterism_plan_tasks", "Tasks of the plan.", ("plan", "status"), tasks)] if tasks else []


def _families(plans: Iterable[StoredConstellation]) -> list[Family]:
    edits: defaultdict[tuple[str, ...], float] = defaultdict(float)
    cycles: defaultdict[tuple[str, ...], float] = defaultdict(float)
    held: defaultdict[tuple[str, ...], float] = defaultdict(float)
    holds: defaultdict[tuple[str, ...], float] = defaultdict(float)
    seconds: defaultdict[tuple[str, ...], float] = defaultdict(float)
    for stored in plans:
        name = without_time(stored.head.name)
        result = Result(stored.plan, stored.lock.history, None, stored.lock.policy)
        edits[name, "accepted"] += stored.plan.version
        edits[name, "rejected"] += sum(cycle.rejections for cycle in stored.lock.history)
        cycles[(name,)] += stored.lock.opened
        held[(name,)] += sum(node.held > 0 for node in stored.plan.nodes.values())
        holds[(name,)] += len(result.holds)
        seconds[(name,)] += covered((start, end) for _, start, end in result.holds)
    return [
        Family("asterism_plan_edits", "Edits of the plan.", ("plan", "answer"), edits),
        Family("asterism_plan_edit_cycles", "Edit cycles of the plan that were opened.", ("plan",), cycles),
        Family("asterism_plan_held_tasks", "Tasks that an end under review holds now.", ("plan",), held),
        Family("asterism_plan_holds", "Ready tasks that were held by an end under review.", ("plan",), holds),
        Family(
            "asterism_plan_hold_seconds",
            "Time in which at least one ready task was held.",
            ("plan",),
            seconds,
            "seconds",
        ),
    ]
