"""Under ``global`` no task starts between the end of a reviewed task and the closing of the cycle that reviews it.

``hold(seed)`` runs a race and a wild race under ``global`` and writes down each start and each opening and closing of a
cycle, where it happens and with the time that was recorded. Two things are judged: the order of the steps (is the lock
right?) and the recorded times against each other (is the record right?). The clock moves on with every look at it, so
that two steps never have the same time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from asterism.core.plan.assignment_lock import AssignmentLock, EditCycle
from asterism.core.plan.graph import Graph
from asterism.core.plan.node import Node
from asterism.testing.virtual_time import run
from tests.laboratory.races.scenario import Race
from tests.laboratory.races.wild import Wild

TICK = 1e-6


class Step(NamedTuple):
    kind: str  # "end" (that is to be reviewed), "open", "close" or "start"
    name: Any  # the execution that ended or starts, or the number of the cycle
    at: float
    ends: frozenset[tuple[str, int]] = frozenset()  # what the cycle reviews


def hold(seed: int) -> list[str]:
    """Run both races of a seed under ``global``. An empty list is a good one."""
    problems = []
    wild = Wild(seed)
    wild.policy = "global"
    for contest in (Race(seed, "global"), wild):
        with recorded() as steps:
            run(asyncio.wait_for(contest.run(), 100_000), seed, TICK)
        problems += [*contest.problems, *order_problems(steps), *time_problems(steps)]
    return problems


@contextmanager
def recorded() -> Iterator[list[Step]]:
    """Everything the lock and the plan do, in the order in which they do it."""
    steps: list[Step] = []
    finish, open_, close, start = AssignmentLock.finish, AssignmentLock.add_cycle, AssignmentLock.close, Graph.start

    def finished(lock: AssignmentLock, node: Node, status: Any, now: float, *rest: Any) -> None:
        before = len(lock.waiting)
        finish(lock, node, status, now, *rest)
        steps.extend(Step("end", end, now) for end in lock.waiting[before:])

    def opened(lock: AssignmentLock, cycle: EditCycle) -> EditCycle:
        steps.append(Step("open", cycle.id, cycle.opened_at, frozenset(cycle.ends)))
        return open_(lock, cycle)

    def closed(lock: AssignmentLock, cycle: EditCycle, now: float, outcome: str) -> Any:
        steps.append(Step("close", cycle.id, now, frozenset(cycle.ends)))
        return close(lock, cycle, now, outcome)

    def started(graph: Graph, node: Node, device: str, now: float) -> int:
        epoch = start(graph, node, device, now)
        steps.append(Step("start", (node.id, epoch), now))
        return epoch

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AssignmentLock, "finish", finished)
        patch.setattr(AssignmentLock, "add_cycle", opened)
        patch.setattr(AssignmentLock, "close", closed)
        patch.setattr(Graph, "start", started)
        yield steps


def order_problems(steps: list[Step]) -> list[str]:
    """Starts while an end waits for its review or a cycle is open, in the order of the steps."""
    problems = []
    unreviewed: set[Any] = set()
    for step in steps:
        if step.kind == "end" or step.kind == "open":
            unreviewed.add(step.name)
        elif step.kind == "close":
            unreviewed -= {step.name, *step.ends}
        elif unreviewed:
            problems.append(f"{step.name} started while {sorted(map(str, unreviewed))} was not reviewed")
    return problems


def time_problems(steps: list[Step]) -> list[str]:
    """Starts whose recorded time lies between the recorded times of a cycle's first end and its closing."""
    ended = {step.name: step.at for step in steps if step.kind == "end"}
    opened = {step.name: min([step.at, *(ended[end] for end in step.ends)]) for step in steps if step.kind == "open"}
    spans = [(opened[step.name], step.at, step.name) for step in steps if step.kind == "close"]
    return [
        f"the record says that {step.name} started at {step.at}, in cycle {cycle} ({begin} to {end})"
        for step in steps
        if step.kind == "start"
        for begin, end, cycle in spans
        if begin <= step.at <= end
    ]
