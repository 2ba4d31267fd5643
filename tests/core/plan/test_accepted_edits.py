"""Edits that are mostly accepted: a generator reads the live plan and proposes what should be possible.

A blind generator hardly gets a batch in, so it tests rejections. This one tests what accepted batches do to a plan that
runs: invariants, replay of the journal, undo, taint and priorities after every step.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from asterism.core.errors import EditRejected, PlanError
from asterism.core.plan import inherited_priority
from asterism.core.plan.assignment_lock import POLICIES
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.diff import Outline, diff
from asterism.core.plan.edits import (
    AddDependency,
    AddTask,
    CancelTask,
    Edit,
    EditBatch,
    RemoveDependency,
    RemoveTaint,
    RemoveTask,
    UpdateDependency,
    UpdateTask,
)
from asterism.core.plan.graph import is_modifiable
from asterism.core.plan.journal import RecordedConstellation, RecordedLock, Step, replay
from asterism.core.plan.node import Node
from asterism.core.plan.status import COMPLETED, FAILED, PENDING, RUNNING, TERMINAL
from asterism.core.plan.task import Task
from tests.core.plan.test_plan_machine import check, evaluate
from tests.laboratory.plan_invariants import check_invariants

STEPS = 120
ENOUGH = 0.7
"""The least share of batches that is accepted."""

Proposal = Callable[["Fuzzer", Constellation], list[Edit]]


class Fuzzer:
    """One plan that runs and is edited. ``read`` are the untrusted tasks that could start since a person removed the
    taint; ``steps`` is the journal."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.now, self.made = 0.0, 0
        self.proposed = self.accepted = 0
        self.read: set[str] = set()
        self.steps: list[Step] = []
        plan = RecordedConstellation("fuzzed")
        _prepare(plan)
        for _ in range(chance.randint(3, 10)):
            before = [task.id for task in plan]
            plan.add(self.task(), chance.sample(before, min(len(before), chance.randint(0, 2))))
        self.first = plan.to_json()
        self.policy = chance.choice(POLICIES)
        self.plan, self.lock = self.opened()
        self.plan.record = self.steps.append
        self.plan.begin(self.tick())

    def opened(self) -> tuple[RecordedConstellation, RecordedLock]:
        """The plan as it was stored, with its lock."""
        plan = RecordedConstellation.from_json(self.first)
        _prepare(plan)
        lock = RecordedLock(plan, self.policy)
        lock.edit_on = lambda node, *end: node.number % 2 == 0
        return plan, lock

    def tick(self) -> float:
        self.now += 1.0
        return self.now

    def task(self) -> Task:
        self.made += 1
        kind = self.chance.choice(["", "", "revocable", "untrusted"])
        return Task(
            f"t{self.made}",
            priority=self.chance.choice(["low", "normal", "normal", "high", "critical"]),
            join=self.chance.choice(["all", "all", "any"]),
            **({kind: True} if kind else {}),
        )

    def some(self, nodes: list[Node]) -> Node | None:
        return self.chance.choice(nodes) if nodes else None

    # -- what happens to the plan --------------------------------------------------------------------------------------

    def step(self) -> None:
        self.chance.choice([self.run, self.run, self.review, self.edit, self.edit, self.edit])()
        self.verify()

    def run(self) -> None:
        """Start, end, retry or give back a task."""
        plan, busy = self.plan, [node for node in self.plan.nodes.values() if node.device and node.status is RUNNING]
        working = [node for node in busy if node.tentative is None]
        node = self.some(working)
        if node is None or (self.chance.random() < 0.4 and not self.lock.holds_everything and plan.queue.has_ready()):
            if not self.lock.holds_everything and plan.queue.has_ready():
                plan.start(plan.queue.pop(next(iter(plan.queue.lanes))), "device", self.tick())
            return
        what = self.chance.random()
        if what < 0.1:
            plan.retry(node, self.tick(), "bad luck")
            plan.queue.push(node)
        elif what < 0.2:
            plan.release(node, self.tick(), "the device left")
        else:
            self.lock.finish(node, self.chance.choice([COMPLETED, COMPLETED, FAILED]), self.tick(), 0)

    def review(self) -> None:
        """Open or close a cycle; or, if nothing can move, end the plan and retry it."""
        if self.lock.cycles and self.chance.random() < 0.7:
            self.lock.close(self.lock.cycles[self.chance.choice(sorted(self.lock.cycles))], self.tick(), "empty")
        elif self.lock.open(self.tick()) is None and self.lock.idle:
            moving = self.plan.queue.has_ready() or any(node.status is RUNNING for node in self.plan.nodes.values())
            if not moving:
                self.plan.close(self.tick())
                self.again()

    def again(self) -> None:
        names = sorted(self.plan.nodes)
        chosen = [self.chance.choice(names)] if names and self.chance.random() < 0.5 else []
        try:
            self.plan.run_again(self.tick(), chosen, why="again")
        except PlanError:  # nothing failed, or the task could not start
            self.plan.reopen([], self.tick(), "to go on")
        self.lock.reopened()

    # -- edits ---------------------------------------------------------------------------------------------------------

    def edit(self) -> None:
        if self.chance.random() < 0.15:
            self.undo()
            return
        batch = self.rewritten() if self.chance.random() < 0.2 else EditBatch(tuple(self.proposal()), "fuzzer")
        if not batch.edits:
            return
        before, free = self.picture(), not self.plan.provisionals
        applied = self.submit(batch)
        if applied is None or applied.inverse is None or self.chance.random() > 0.3:
            return
        self.verify()
        undone = self.submit(applied.inverse)
        assert undone is not None, "nothing has happened since, so it can be undone"
        if free:
            assert self.picture() == before

    def undo(self) -> None:
        try:
            batch = self.plan.undo_stack.batch("fuzzer")
        except EditRejected:
            return
        self.submit(batch)

    def submit(self, batch: EditBatch) -> Any:
        self.proposed += 1
        before = self.plan.to_json()
        try:
            applied = self.plan.apply(batch, self.tick())
        except EditRejected:
            assert self.plan.to_json() == before, "a rejected batch left traces"
            return None
        self.accepted += 1
        if any(isinstance(edit, RemoveTaint) for edit in batch.edits):
            self.read.clear()
        return applied

    def proposal(self) -> list[Edit]:
        """Up to three edits that follow from each other: each is tried on a copy."""
        copy, edits = self.scratch(), list[Edit]()
        for _ in range(self.chance.randint(1, 3)):
            more = self.chance.choice(PROPOSALS)(self, copy)
            try:
                copy.edit(more)
            except EditRejected:
                continue
            edits += more
        return edits

    def rewritten(self) -> EditBatch:
        """A whole plan that an editor hands back."""
        copy = self.scratch()
        for _ in range(self.chance.randint(1, 4)):
            try:
                copy.edit(self.chance.choice(STRUCTURAL)(self, copy))
            except EditRejected:
                continue
        return diff(Outline.of(self.plan), Outline.of(copy), author="fuzzer")

    def scratch(self) -> Constellation:
        copy = self.plan.copy()
        _prepare(copy)
        return copy

    # -- what holds after every step -----------------------------------------------------------------------------------

    def picture(self) -> Any:
        """The plan without its version, story and taint."""
        nodes = self.plan.nodes.values()
        progress = {
            node.id: (node.status, node.open, node.held, node.urgency, dict(node.verdicts or {})) for node in nodes
        }
        outline = Outline.of(self.plan)
        return outline.tasks, outline.dependencies, progress, dict(self.plan.counts)

    def verify(self) -> None:
        check_invariants(self.plan)
        for node in self.plan.nodes.values():
            if node.task.untrusted and (node.status is RUNNING or (node.status is PENDING and not node.open)):
                self.read.add(node.id)
        assert self.read <= self.plan.tainted, "what an editor has read stays read"

    def replayed(self) -> None:
        """Another process that replays the journal has the same plan, and so has one that reads a snapshot."""
        plan, lock = self.opened()
        replay(plan, lock, self.steps)
        assert plan.to_json() == self.plan.to_json()
        check_invariants(plan, [node for node in plan.nodes.values() if node.status is RUNNING])
        read = RecordedConstellation.from_json(self.plan.to_json())
        assert read.to_json() == self.plan.to_json()
        live = {node.id: node.urgency for node in self.plan.nodes.values() if node.status not in TERMINAL}
        assert live == {name: read.node(name).urgency for name in live}


def _prepare(plan: Constellation) -> None:
    plan.evaluate, plan.check_condition = evaluate, check


def _changeable(plan: Constellation) -> list[Node]:
    return [node for node in plan.nodes.values() if is_modifiable(node)]


def _add(fuzzer: Fuzzer, plan: Constellation) -> list[Edit]:
    task, names = fuzzer.task(), sorted(plan.nodes)
    sources = fuzzer.chance.sample(names, min(len(names), fuzzer.chance.randint(0, 3)))
    outcomes = ["success", "success", "completion", "failure"]
    return [AddTask(task), *(AddDependency(source, task.id, fuzzer.chance.choice(outcomes)) for source in sources)]


def _put_between(fuzzer: Fuzzer, plan: Constellation) -> list[Edit]:
    edges = [edge for node in _changeable(plan) for edge in node.parents.values()]
    if not edges:
        return _add(fuzzer, plan)
    edge, task = fuzzer.chance.choice(edges), fuzzer.task()
    return [
        *(AddTask(task), AddDependency(edge.source, task.id, edge.on, edge.when)),
        *(RemoveDependency(edge.source, edge.target), AddDependency(task.id, edge.target)),
    ]


def _remove(fuzzer: Fuzzer, plan: Constellation) -> list[Edit]:
    free = [node for node in _changeable(plan) if all(is_modifiable(child) for child in node.children.values())]
    node = fuzzer.some(free)
    if node is None:
        return []
    return [RemoveTask(node.id, "bridge" if node.children else None)]


def _remove_all_below(fuzzer: Fuzzer, plan: Constellation) -> list[Edit]:
    free = []
    for node in _changeable(plan):
        below, stack = {node}, [node]
        while stack:
            new = [child for child in stack.pop().children.values() if child not in below]
            below.update(new)
            stack += new
        if len(below) <= 3 and all(map(is_modifiable, below)):
            free.append(node)
    removed = fuzzer.some(free)
    return [] if removed is None else [RemoveTask(removed.id, "remove")]


def _replace(fuzzer: Fuzzer, plan: Constellation) -> list[Edit]:
    """Another task under the same id keeps the dependents."""
    node = fuzzer.some(_changeable(plan))
    if node is None or not all(map(is_modifiable, node.children.values())):
        return []
    return [RemoveTask(node.id), AddTask(Task(node.id, priority="high"))]


def _rewire(fuzzer: Fuzzer, plan: Constellation) -> list[Edit]:
    target = fuzzer.some(_changeable(plan))
    if target is None:
        return []
    before = [node for node in plan.nodes.values() if node.label < target.label and node.id not in target.parents]
    source, known = fuzzer.some(before), sorted(target.parents)
    if known and fuzzer.chance.random() < 0.6:
        name = fuzzer.chance.choice(known)
        when = fuzzer.chance.choice([None, None, "even"])
        on = fuzzer.chance.choice(["success", "completion"])
        return [fuzzer.chance.choice([RemoveDependency(name, target.id), UpdateDependency(name, target.id, on, when)])]
    return [] if source is None else [AddDependency(source.id, target.id)]


def _update(fuzzer: Fuzzer, plan: Constellation) -> list[Edit]:
    node = fuzzer.some(_changeable(plan))
    if node is None:
        return []
    other = "low" if node.task.priority > 1 else "critical"
    changes: list[dict[str, Any]] = [{"priority": other}, {"timeout": 3.0 + fuzzer.made}]
    changes.append({"join": "all" if node.task.join == "any" else "any"})
    if not node.task.revocable:
        changes.append({"untrusted": not node.task.untrusted})
    return [UpdateTask(node.id, **fuzzer.chance.choice(changes))]


def _cancel(fuzzer: Fuzzer, plan: Constellation) -> list[Edit]:
    node = fuzzer.some([node for node in plan.nodes.values() if node.status not in TERMINAL])
    return [] if node is None else [CancelTask(node.id)]


def _trust(fuzzer: Fuzzer, plan: Constellation) -> list[Edit]:
    return [RemoveTaint("read it")]


STRUCTURAL: tuple[Proposal, ...] = (_add, _put_between, _remove, _remove_all_below, _rewire, _update)
PROPOSALS: tuple[Proposal, ...] = (*STRUCTURAL, *STRUCTURAL, _replace, _cancel, _trust)


@pytest.mark.hunt(few=4, many=1500)
def test_accepted_edits_keep_every_promise(seeds: range) -> None:
    proposed = accepted = 0
    for seed in seeds:
        fuzzer = Fuzzer(seed)
        for _ in range(STEPS):
            fuzzer.step()
        fuzzer.replayed()
        proposed, accepted = proposed + fuzzer.proposed, accepted + fuzzer.accepted
    assert accepted > ENOUGH * proposed > 0, f"{accepted} of {proposed} batches were accepted"


@pytest.mark.parametrize("part", ["linked", "unlinked", "ended", "recompute"])
@pytest.mark.long
def test_without_a_part_of_the_inheritance_a_priority_is_wrong(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inherited_priority, part, lambda *arguments: None)
    with pytest.raises(AssertionError):
        test_accepted_edits_keep_every_promise(range(10))


def test_if_an_undo_removed_the_taint_it_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(self: Fuzzer) -> None:
        self.plan.tainted.clear()

    monkeypatch.setattr(Fuzzer, "undo", forgetful)
    with pytest.raises(AssertionError, match=r"taint|stays read"):
        test_accepted_edits_keep_every_promise(range(10))
