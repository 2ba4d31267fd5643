"""Manual progress: start, end and reset tasks by hand, while no orchestrator runs the plan.

While an orchestrator runs a plan, only devices report what its tasks have done, and every function here refuses.
Otherwise the documented API lets a program report it: start a task, end it, retry it, even write its private fields.
After each write the counters of the core agree with it.
"""

from __future__ import annotations

import time
from typing import Any

from asterism.compat.vocabulary import refuse, refusing
from asterism.core.errors import PlanError
from asterism.core.plan import joins
from asterism.core.plan import status as core
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.node import Node
from asterism.core.plan.node_records import own_copy

BY_HAND = "by hand"
"""The device name of a task that no orchestrator started."""

FACTS = ("status", "device", "attempts", "value", "error", "started_at", "ended_at", "worked")
"""The stored facts of a task's progress. Everything else in a node is derived."""

UNTOUCHED: dict[str, Any] = {
    "status": core.PENDING,
    "device": None,
    "value": None,
    "error": None,
    "started_at": None,
    "ended_at": None,
    "worked": 0.0,
}
"""The facts of a task that is to run again. ``attempts`` stays: it counts against ``retry_count``."""


def by_hand(plan: Constellation) -> None:
    """Refuse manual progress while an orchestrator runs the plan: then only devices report."""
    if plan.owner is not None:
        raise refuse(
            "progress", f"{plan.id!r} is being run: devices report the progress of its tasks, it cannot be set by hand"
        )


def start(plan: Constellation, node: Node, device: str | None) -> None:
    """Record that the task has started. Refused when it is not ready."""
    by_hand(plan)
    with refusing():
        plan.start(node, device or BY_HAND, time.time())


def finish(
    plan: Constellation, node: Node, status: core.TaskStatus, value: Any = None, error: BaseException | None = None
) -> None:
    """Record the end of a running task."""
    by_hand(plan)
    with refusing():
        if node.status is not core.RUNNING:
            raise PlanError(f"task {node.id!r} is {node.status}: it has to run before it can end")
        plan.finish(node, status, time.time(), value, error)


def reset(plan: Constellation, node: Node) -> None:
    """Let the task run again, as if it had not run; refused when others have started because of its end."""
    by_hand(plan)
    began = [child.id for child in node.children.values() if child.status not in (core.PENDING, core.CANCELLED)]
    with refusing():
        if began:
            raise PlanError(f"task {node.id!r} cannot run again: {', '.join(map(repr, began))} started after its end")
        _put_back(plan, node)


def state(plan: Constellation, node: Node, status: core.TaskStatus) -> None:
    """Record a status, with the times and the device that belong to it."""
    by_hand(plan)
    if status is core.PENDING:
        _put_back(plan, node)
        return
    if node.given_up:
        _forget_end(node)
    now, started, ended = time.time(), node.started_at, node.ended_at
    if started is None and status is not core.CANCELLED:
        started = now
    if status is core.RUNNING or ended is None:
        ended = None if status is core.RUNNING else now
    facts: dict[str, Any] = {"status": status, "started_at": started, "ended_at": ended}
    if started is not None:
        facts |= {"device": node.device or BY_HAND, "attempts": max(1, node.attempts)}
    write(plan, node, facts)


def _put_back(plan: Constellation, node: Node) -> None:
    """Make the task pending again, and the tasks below it that the end of a run gave up."""
    again = {node: node.given_up}
    below = list(node.children.values())
    while below:
        child = below.pop()
        if child not in again and child.given_up:
            again[child] = True
            below.extend(child.children.values())
    for pending_node, given_up in again.items():
        if given_up:
            _forget_end(pending_node)
        write(plan, pending_node, UNTOUCHED)


def _forget_end(node: Node) -> None:
    """The end of a run did not give the task up."""
    node.needless, node.given_up, node.reason = False, False, ""


def note(plan: Constellation, node: Node, **facts: Any) -> None:
    """Record facts that belong to a status: a result, an error, a time."""
    by_hand(plan)
    write(plan, node, facts)


def write(plan: Constellation, node: Node, facts: dict[str, Any]) -> None:
    """Change facts of a node, and update the tasks below it."""
    edges = [(child, tuple(child.parents), child.parents[node.id]) for child in node.children.values()]
    for _, _, dependency in edges:
        plan.unlink(dependency)
    plan.counts[node.status] -= 1
    for name, value in facts.items():
        setattr(node, name, value)
    plan.counts[node.status] += 1
    plan.running.pop(node.id, None)
    if node.status is core.RUNNING:
        plan.running[node.id] = None
    node.reviewed, node.unsettled = True, False
    plan.records.mark(node)
    if node.status is core.PENDING:
        node.epoch = 0
    if "worked" not in facts and node.started_at is not None and node.ended_at is not None:
        node.worked = max(0.0, node.ended_at - node.started_at)
    for child, order, dependency in edges:
        plan.link(dependency)
        child.parents = {source: child.parents[source] for source in order}
        plan.requeue(child)
    plan.rescope()
    if plan.deciders:
        joins.refresh(plan, [node])
        joins.requeue(plan)
    node.entry = None
    plan.requeue(node)


def carry(source: Node, plan: Constellation, node: Node) -> None:
    """Give a node of an idle plan the progress of another."""
    write(plan, node, {name: getattr(source, name) for name in FACTS} | {"value": own_copy(source.value)})


def reopen(plan: Constellation) -> None:
    """Make a plan that has ended, or was started by hand, ready to be changed and run again. Ended tasks stay as they
    are; every later change is an edit."""
    by_hand(plan)
    if plan.state in (core.ConstellationState.CREATED, core.ConstellationState.READY):
        return
    plan.on_applied, plan.clock = None, time.time  # these belonged to the last run
    plan.settle([(node.id, node.epoch) for node in plan.nodes.values() if not node.reviewed], time.time())
    plan.state = core.ConstellationState.READY
    for node in plan.nodes.values():
        plan.requeue(node)


def newly_ready(node: Node) -> list[str]:
    """The tasks that the end of this one has made ready."""
    return [child.id for child in node.children.values() if child.status is core.PENDING and not child.open]
