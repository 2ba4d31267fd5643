"""Why a task does not run: its unmet dependencies, reviews, devices, each as a reason."""

from __future__ import annotations

from collections.abc import Sequence

from asterism.core.errors import error_text
from asterism.core.history import Reason
from asterism.core.plan.assignment_lock import AssignmentLock, EditCycle
from asterism.core.plan.awaited import KINDS, wait_text
from asterism.core.plan.edits import WaitingEdit
from asterism.core.plan.graph import Graph
from asterism.core.plan.inherited_priority import lender
from asterism.core.plan.joins import is_lost
from asterism.core.plan.node import Node
from asterism.core.plan.status import CANCELLED, PENDING, RUNNING, TERMINAL
from asterism.core.plan.task import Dependency
from asterism.core.plan.teardowns import between
from asterism.core.record import Record, replace


class Why(Record):
    """The answer. ``str`` gives it in one line."""

    task_id: str
    status: str
    holders: tuple[Reason, ...]

    def __str__(self) -> str:
        return f"{self.task_id} is {self.status}: {'; '.join(holder.text for holder in self.holders)}"


def why(
    graph: Graph,
    lock: AssignmentLock,
    node: Node,
    placement: Reason | None,
    now: float,
    edits: Sequence[WaitingEdit] = (),
) -> Why:
    """Why a task does not run, and from which task it has its priority, if that is not its own.

    ``placement`` is the reason that the orchestrator gives (devices, pauses). It counts if the plan itself lets the
    task start. ``edits`` wait for approval: one that changes the task always counts, any of them if the task cannot
    start as the plan is."""
    explanation = _reasons(graph, lock, node, placement, now, edits)
    source = None if node.status in TERMINAL else lender(node)
    if source is None:
        return explanation
    text = f"it counts with the priority {node.urgency.name.lower()} of {source.id!r}, which waits for it"
    return replace(explanation, holders=(*explanation.holders, Reason("priority", source.id, text)))


def _reasons(
    graph: Graph,
    lock: AssignmentLock,
    node: Node,
    placement: Reason | None,
    now: float,
    edits: Sequence[WaitingEdit],
) -> Why:
    if node.status is PENDING:
        unmet = _dependencies(graph, node)
        # an editor that reviews the end of an unmet dependency can still change the task
        unmet += tuple(_review(graph, lock, holder.name, now) for holder in unmet if graph.nodes[holder.name].unsettled)
        if unmet:
            unmet += _waiting_editors(lock, node, now, {holder.name for holder in unmet if holder.kind == "cycle"})
        if unmet and placement is not None and placement.kind == "approval":
            unmet += (placement,)
        stuck = any(holder.kind == "dependency" and graph.nodes[holder.name].status in TERMINAL for holder in unmet)
        waiting = tuple(
            approval_holder(edit, node.id) for edit in edits if node.id in edit.tasks or (stuck and edit.task is None)
        )
        for_the_world = node.awaits and node.task.approval is None
        awaited = (_awaited(node, now), *([placement] if placement is not None else [])) if for_the_world else ()
        holders = unmet or _reviews(graph, lock, node, now) or awaited
        holders = holders or (() if waiting and not placement else _placed(placement))
        holders += tuple(holder for holder in waiting if holder not in holders)
        if placement is not None and placement.kind == "pause" and placement not in holders:
            holders += (placement,)  # it keeps the task from its start, whatever else does
        return Why(node.id, "waiting" if node.open or node.awaits else "pending", holders)
    if node.tentative is not None:
        return Why(node.id, f"{node.tentative} provisionally", _unconfirmed(graph, lock, node, now))
    if node.status is RUNNING:
        return Why(
            node.id,
            "running",
            (_running(node, now), *([placement] if node.device is None and placement else [])),
        )
    reason = error_text(node.error) or node.reason
    text = f"it ended at {node.ended_at:.3f}" + (f" ({reason})" if reason else "")
    return Why(node.id, str(node.status), (Reason("ended", str(node.status), text),))


def approval_holder(edit: WaitingEdit, task: str) -> Reason:
    """An edit that waits for approval, as what holds a task, or keeps the plan with it from its end."""
    if edit.task == task:
        by = f" by {' or '.join(edit.by)}" if edit.by else ""
        return Reason("approval", str(edit.id), f"it waits for approval {edit.id}{by}")
    changes = " that changes it" if task in edit.tasks else ""
    text = f"an edit{changes} waits for approval {edit.id}, by {edit.batch.author or 'somebody'}"
    return Reason("approval", str(edit.id), text if changes else f"{text}, and until then the plan does not end")


def _dependencies(graph: Graph, node: Node) -> tuple[Reason, ...]:
    if not node.open:
        return ()
    unmet = []
    undecided = node.task.join == "any" and not node.doomed
    for source, dependency in node.parents.items():
        parent = graph.nodes[source]
        if parent.satisfies(dependency, node) or (undecided and is_lost(parent, dependency, node)):
            continue
        if dependency.on == "teardown":
            unmet.append(Reason("teardown", source, _not_due(graph, parent)))
            continue
        need = f"it waits until {source!r} is decided" if undecided else dependency.requirement
        unmet.append(Reason("dependency", source, f"{need}, {_obstacle(node, parent, dependency)}"))
    return tuple(unmet)


MOST_NAMED = 3
"""How many tasks between a set-up and its teardown a reason names."""


def _not_due(graph: Graph, setup: Node) -> str:
    """What a teardown waits for."""
    if setup.status not in TERMINAL:
        return f"it tears down {setup.id!r}, which is {setup.status}"
    if not setup.has_begun:
        return f"it tears down {setup.id!r}, which never started"
    left = between(graph, setup)
    named = ", ".join(f"{node.id!r} ({node.status})" for node in left[:MOST_NAMED])
    more = f" and {len(left) - MOST_NAMED} more" if len(left) > MOST_NAMED else ""
    return f"it tears down {setup.id!r} when everything between them is over, and waits for {named}{more}"


def _waiting_editors(lock: AssignmentLock, node: Node, now: float, named: set[str]) -> tuple[Reason, ...]:
    """The open cycles whose editors wait for a person, and may repair what this task lacks; without those ``named``."""
    held = [cycle for cycle in lock.cycles.values() if cycle.on_hold and str(cycle.id) not in named]
    concerned = [cycle for cycle in held if cycle.stuck or not node.parents.keys().isdisjoint(cycle.tasks)]
    return tuple(_cycle(cycle, _ends_of(cycle), now) for cycle in concerned)


def _obstacle(node: Node, parent: Node, dependency: Dependency) -> str:
    verdict = node.verdicts.get(parent.id) if node.verdicts else None
    if isinstance(verdict, str):
        return f"but its condition {dependency.when!r} could not be evaluated: {verdict}"
    if verdict is False:
        return f"but its condition {dependency.when!r} does not hold"
    if parent.tentative is not None:
        return f"but {parent.id!r} {parent.tentative} provisionally"
    if parent.status in (PENDING, RUNNING):
        return f"and {parent.id!r} is {parent.status}"
    return f"but {parent.id!r} {'was ' if parent.status is CANCELLED else ''}{parent.status}"


def _reviews(graph: Graph, lock: AssignmentLock, node: Node, now: float) -> tuple[Reason, ...]:
    if graph.starts_early(node):  # it may start provisionally
        return ()
    if not lock.holds_everything:
        return tuple(_review(graph, lock, source, now) for source in node.parents if graph.nodes[source].unsettled)
    holders = [_cycle(cycle, _ends_of(cycle), now) for cycle in lock.cycles.values()]
    if lock.waiting:
        first, others = lock.waiting[0][0], len(lock.waiting) - 1
        ends = f"the ends of {first!r} and {others} more" if others else f"the end of {first!r}"
        text = f"{ends} {'wait' if others else 'waits'} for review"
        holders.append(Reason("review", first, text))
    return tuple(holders)


def _ends_of(cycle: EditCycle) -> str:
    """What a cycle reviews, in a few words."""
    if cycle.stuck:
        return "the stuck plan"
    named = ", ".join(map(repr, cycle.tasks[:3]))
    more = f" and {len(cycle.tasks) - 3} more" if len(cycle.tasks) > 3 else ""
    return f"the end of {named}{more}"


def _cycle(cycle: EditCycle, subject: str, now: float) -> Reason:
    by = f"by {cycle.claimed_by} " if cycle.claimed_by else ""
    age = f"{now - cycle.opened_at:.1f} s"
    held = f"; {cycle.on_hold}" if cycle.on_hold else ""
    return Reason("cycle", str(cycle.id), f"{subject} is being reviewed {by}in cycle {cycle.id}, for {age}{held}")


def _review(graph: Graph, lock: AssignmentLock, source: str, now: float) -> Reason:
    end = (source, graph.nodes[source].epoch)
    for cycle in lock.cycles.values():
        if end in cycle.ends:
            return _cycle(cycle, f"the end of {source!r}", now)
    if graph.nodes[source].provisional:
        return Reason(
            "provisional",
            source,
            f"{source!r} has ended provisionally: the ends above it are under review",
        )
    count = len(lock.cycles)
    are = "1 cycle is" if count == 1 else f"{count} cycles are"
    return Reason("review", source, f"the end of {source!r} waits for review: {are} open")


def _unconfirmed(graph: Graph, lock: AssignmentLock, node: Node, now: float) -> tuple[Reason, ...]:
    """What a provisional end waits for."""
    reason = error_text(node.error)
    text = f"it ended at {node.ended_at:.3f}{f' ({reason})' if reason else ''}, and waits to be confirmed"
    above = (_review(graph, lock, source, now) for source in node.parents if graph.nodes[source].unsettled)
    return Reason("provisional", node.id, text), *above


def _awaited(node: Node, now: float) -> Reason:
    """What a task waits for that is not in the plan."""
    wait, since = node.task.wait_for or {}, node.awaited_since or now
    (kind,) = (kind for kind in KINDS if kind in wait)
    return Reason(kind, str(wait[kind]), f"it waits {wait_text(wait)}; it has waited {now - since:.1f} s")


def _placed(placement: Reason | None) -> tuple[Reason, ...]:
    return (placement or Reason("turn", "", "it is ready and will be assigned next"),)


def _running(node: Node, now: float) -> Reason:
    if node.device is None:
        return Reason("retry", "", f"attempt {node.attempts} failed, and the next one has not begun")
    since = now - node.started_at if node.started_at is not None else 0.0
    kind = " provisionally" if node.provisional else ""
    return Reason(
        "device",
        node.device,
        f"it runs{kind} on {node.device!r} for {since:.1f} s, attempt {node.attempts}",
    )
