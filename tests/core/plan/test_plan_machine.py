"""Random plans, edits, ends, reviews, revocations: the invariants hold after every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from asterism.core.errors import EditRejected, PlanError
from asterism.core.plan import edits
from asterism.core.plan.assignment_lock import POLICIES, AssignmentLock
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.diff import Outline
from asterism.core.plan.edits import EditBatch
from asterism.core.plan.node import Node
from asterism.core.plan.ready_queue import CriticalPathRanks
from asterism.core.plan.status import (
    CANCELLED,
    COMPLETED,
    ENDED_STATES,
    FAILED,
    PENDING,
    RUNNING,
    TERMINAL,
    ConstellationState,
    TaskStatus,
)
from asterism.core.plan.task import OUTCOMES, Task
from asterism.core.plan.teardowns import teardowns_of
from tests.laboratory.plan_invariants import check_invariants

IDS = [f"t{number}" for number in range(8)]
ids = st.sampled_from(IDS)
outcomes = st.sampled_from(OUTCOMES)
conditions = st.sampled_from([None, None, "even", "raises"])


def evaluate(condition: str, status: TaskStatus, result: Any) -> bool | str:
    return "it raised" if condition == "raises" else result is None or result % 2 == 0


def check(condition: str) -> str | None:
    return "it does not parse" if condition == "broken" else None


joins = st.sampled_from(["all", "all", "any"])
tasks = st.builds(
    lambda task_id, kind, **fields: Task(task_id, **fields, **({kind: True} if kind else {})),
    ids,
    st.sampled_from(["", "revocable", "untrusted"]),
    priority=st.sampled_from(["low", "high"]),
    estimate=st.just(2.0),
    join=joins,
)

one_edit = st.one_of(
    st.builds(edits.AddTask, tasks),
    st.builds(edits.RemoveTask, ids, st.sampled_from([None, None, "remove", "bridge", "nonsense"])),
    st.builds(lambda task_id, minutes: edits.UpdateTask(task_id, timeout=minutes), ids, st.integers(-1, 3)),
    st.builds(lambda task_id, join: edits.UpdateTask(task_id, join=join), ids, joins),
    st.builds(
        lambda task_id, word: edits.UpdateTask(task_id, priority=word), ids, st.sampled_from(["low", "critical"])
    ),
    st.builds(
        lambda kind, ends, on, when, handled: kind(*ends, on, when, handled),
        st.sampled_from([edits.AddDependency, edits.AddDependency, edits.UpdateDependency]),
        st.tuples(ids, ids),
        outcomes,
        st.one_of(conditions, st.just("broken")),
        st.booleans(),
    ),
    st.builds(edits.RemoveDependency, ids, ids),
    st.builds(edits.CancelTask, ids),
    st.builds(edits.RemoveTaint, st.sampled_from(["read it", ""])),
)


class LivingPlan(RuleBasedStateMachine):
    """One plan, its lock, and everything that may happen to them."""

    Plan: type[Constellation] = Constellation
    Lock: type[AssignmentLock] = AssignmentLock

    @initialize(
        policy=st.sampled_from(POLICIES),
        cycles=st.integers(1, 3),
        ranked=st.booleans(),
        cancelled=st.booleans(),
        data=st.data(),
    )
    def build(self, policy: str, cycles: int, ranked: bool, cancelled: bool, data: st.DataObject) -> None:
        self.cancelled = cancelled
        self.plan = plan = self.Plan("living")
        plan.evaluate, plan.check_condition = evaluate, check
        for number, task_id in enumerate(data.draw(st.lists(ids, unique=True, max_size=6))):
            before = [task.id for task in plan]
            after = data.draw(st.lists(st.sampled_from(before), unique=True, max_size=2)) if before else []
            conditions_by_source = {
                source: {"on": data.draw(outcomes), "when": data.draw(conditions)} for source in after
            }
            kind = {data.draw(st.sampled_from(["revocable", "untrusted"])): data.draw(st.booleans())}
            task = Task(task_id, estimate=1.0 + number, join=data.draw(joins), **kind)
            try:
                plan.add(task, conditions_by_source)
            except PlanError:  # a teardown with a condition, or with another dependency than ``always``
                plan.add(task)
        if ranked:
            plan.ranks = CriticalPathRanks()
            plan.ranks.all(plan.nodes)
        self.lock = self.Lock(plan, policy, cycles, edit_on=lambda node, *end: node.id != "t0")
        self.ended: dict[str, tuple[TaskStatus, Any]] = {}
        self.read: set[str] = set()  # untrusted tasks that could start since a person removed the taint
        self.now = 0.0
        self.running: dict[int, Node] = {}
        self.before()
        plan.begin(self.tick())

    def before(self) -> None:
        """Called when all is made and nothing has happened."""

    def tick(self) -> float:
        self.now += 1.0
        return self.now

    def settled_running(self) -> list[Node]:
        """What a device is working on."""
        return [node for node in self.plan.nodes.values() if node.status is RUNNING and node.tentative is None]

    @rule()
    @precondition(lambda self: not self.lock.holds_everything and self.plan.queue.has_ready())
    def start(self) -> None:
        lane = next(iter(self.plan.queue.lanes))
        node = self.plan.queue.pop(lane)
        assert self.plan.nodes.get(node.id) is node, "a removed task was about to start"
        epoch = self.plan.start(node, "device", self.tick())
        assert epoch not in self.running, "an epoch was given twice"
        self.running[epoch] = node

    @rule(status=st.sampled_from([COMPLETED, COMPLETED, FAILED]), value=st.integers(0, 3), data=st.data())
    @precondition(lambda self: any(node.device for node in self.settled_running()))
    def end(self, status: TaskStatus, value: int, data: st.DataObject) -> None:
        node = data.draw(st.sampled_from([node for node in self.settled_running() if node.device]))
        self.lock.finish(node, status, self.tick(), value)

    @rule(data=st.data())
    @precondition(lambda self: any(node.device for node in self.settled_running()))
    def try_again(self, data: st.DataObject) -> None:
        node = data.draw(st.sampled_from([node for node in self.settled_running() if node.device]))
        self.plan.retry(node, self.tick(), "bad luck")
        self.plan.queue.push(node)

    @rule(data=st.data())
    @precondition(lambda self: any(node.device for node in self.settled_running()))
    def give_back(self, data: st.DataObject) -> None:
        node = data.draw(st.sampled_from([node for node in self.settled_running() if node.device]))
        self.plan.release(node, self.tick(), "the device left")

    @rule()
    def open_cycle(self) -> None:
        before = len(self.lock.cycles)
        cycle = self.lock.open(self.tick())
        assert len(self.lock.cycles) == before + (cycle is not None) <= self.lock.max_cycles

    @rule(data=st.data())
    @precondition(lambda self: self.lock.cycles)
    def close_cycle(self, data: st.DataObject) -> None:
        cycle = self.lock.cycles[data.draw(st.sampled_from(sorted(self.lock.cycles)))]
        for node in self.lock.close(cycle, self.tick(), "empty"):
            assert not node.provisional

    @rule(batch=st.lists(one_edit, min_size=1, max_size=4), back=st.integers(0, 3), based=st.booleans())
    def edit(self, batch: list[edits.Edit], back: int, based: bool) -> None:
        base = max(0, self.plan.version - back) if based else None
        self.try_to_apply(EditBatch(tuple(batch), "somebody", base_version=base))

    @rule(batch=st.lists(one_edit, min_size=1, max_size=3))
    def edit_and_undo(self, batch: list[edits.Edit]) -> None:
        before, provisional = self.picture(), self.plan.provisionals
        applied = self.try_to_apply(EditBatch(tuple(batch), "somebody"))
        if applied is None or applied.inverse is None:
            return
        undone = self.plan.apply(applied.inverse, self.tick())
        if not provisional:  # an undo does not bring back what was revoked
            assert self.picture() == before
        assert undone.inverse is not None
        check_invariants(self.plan)
        self.plan.apply(undone.inverse, self.tick())  # redo
        check_invariants(self.plan)

    @rule(how=st.sampled_from(["retry", "from", "edit"]), data=st.data())
    @precondition(lambda self: hasattr(self, "plan"))
    def end_and_run_again(self, how: str, data: st.DataObject) -> None:
        self._bring_to_its_end()
        before = {task.id: (task.status, task.value) for task in self.plan}
        free = [task_id for task_id in IDS if task_id not in self.plan]
        try:
            if how == "edit" and free:
                self.plan.edit([edits.AddTask(Task(free[0]))])
                again = []
            else:
                first = [data.draw(st.sampled_from(sorted(before)))] if how == "from" and before else []
                again = self.plan.run_again(self.tick(), first)
        except PlanError:  # nothing failed, or the task could not start
            again = []
            self.plan.reopen(again, self.tick(), "to go on")
        self.lock.reopened()
        for task_id, end in before.items():
            node = self.plan.nodes[task_id]
            given_up = end[0] is CANCELLED and node.status is PENDING
            assert given_up or task_id in again or (node.status, node.value) == end, "what was not chosen stays"
        self.ended.clear()

    def try_to_apply(self, batch: EditBatch) -> Any:
        before, version = self.picture(), self.plan.version
        story, epochs = len(self.plan.story()), {node.id: node.epoch for node in self.plan.nodes.values()}
        try:
            applied = self.plan.apply(batch, self.tick())
        except EditRejected as rejected:
            indices = [violation.edit for violation in rejected.violations]
            assert indices
            assert all(index is None or 0 <= index < len(batch.edits) for index in indices)
            assert (self.picture(), self.plan.version) == (before, version), "a rejected batch left traces"
            assert len(self.plan.story()) == story
            assert self.read <= self.plan.tainted
            assert epochs == {node.id: node.epoch for node in self.plan.nodes.values()}
            return None
        assert self.plan.version == version + 1
        if any(isinstance(edit, edits.RemoveTaint) for edit in batch.edits):
            self.read.clear()
        return applied

    def picture(self) -> Any:
        """The plan without its version and story."""
        outline = Outline.of(self.plan)
        progress = {
            node.id: (node.status, node.tentative, node.value, node.open, node.held, dict(node.verdicts or {}))
            for node in self.plan.nodes.values()
        }
        return outline.tasks, outline.dependencies, progress, dict(self.plan.counts)

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "plan"):
            check_invariants(self.plan)

    @invariant()
    def what_ended_stays(self) -> None:
        """I4 and I3: nothing terminal is ever removed, and no end changes."""
        if not hasattr(self, "plan"):
            return
        for task_id, end in self.ended.items():
            node = self.plan.nodes[task_id]
            assert (node.status, node.value) == end
        for node in self.plan.nodes.values():
            if node.status in TERMINAL:
                self.ended[node.id] = (node.status, node.value)

    @invariant()
    def what_was_read_stays_read(self) -> None:
        """Only a person removes the taint: no end, edit, undo, retry or reading from a record does."""
        if hasattr(self, "plan"):
            nodes = self.plan.nodes.values()
            startable = (node for node in nodes if node.status is RUNNING or (node.status is PENDING and not node.open))
            self.read.update(node.id for node in startable if node.task.untrusted)
            assert self.read <= self.plan.tainted

    @invariant()
    def nothing_waits_for_nothing(self) -> None:
        """A held task is held by an end that an open cycle names, or that waits for a cycle."""
        if not hasattr(self, "plan"):
            return
        named = {task for task, _ in self.lock.waiting} | {t for c in self.lock.cycles.values() for t in c.tasks}
        for node in self.plan.nodes.values():
            if not node.reviewed:
                assert node.id in named, f"{node.id} waits for a review that will not happen"

    def teardown(self) -> None:
        """From wherever it is, the plan can be brought to its end."""
        if not hasattr(self, "plan"):
            return
        started = [node for node in self.plan.setups if node.started_at is not None]
        if self.cancelled:
            self._cancel()
        self._bring_to_its_end()
        for setup in started:
            for teardown in teardowns_of(setup):
                assert teardown.started_at is not None or "cancelled" in self._why(teardown), "a teardown was skipped"
        assert Constellation.from_json(self.plan.to_json()).to_json() == self.plan.to_json()

    def _why(self, node: Node) -> list[str]:
        """What happened to a task: whether a person has cancelled it, or no device took it."""
        return [entry.what for entry in self.plan.story(node.id)]

    def _cancel(self) -> None:
        """As an orchestrator does: close all cycles, stop what runs, and leave the teardowns."""
        while self._close_any():
            pass
        self.plan.begin_cancel(self.tick())
        self.lock.waiting.clear()
        for node in list(self.plan.nodes.values()):
            if node.status is RUNNING and node.setup is None:
                self.plan.cancel(node, self.tick(), "the plan was cancelled")
                check_invariants(self.plan)

    def _bring_to_its_end(self) -> None:
        steps: list[Callable[[], bool]] = [self._close_any, self._finish_any, self._start_any]
        while True:
            while any(step() for step in steps):
                check_invariants(self.plan)
            assert not any(node.status is RUNNING for node in self.plan.nodes.values())
            cancelled = self.plan.state is ConstellationState.CANCELLING
            if cancelled:
                assert not self.plan.counts[PENDING], "a teardown never became ready"
            if self.plan.close(self.tick(), cancelled) in ENDED_STATES:
                break
            assert self.plan.queue.has_ready(), "the plan goes on, and nothing can move"
            check_invariants(self.plan)
        assert all(node.status in TERMINAL for node in self.plan.nodes.values())
        check_invariants(self.plan)

    def _close_any(self) -> bool:
        cycle = next(iter(self.lock.cycles.values()), None) or self.lock.open(self.tick())
        if cycle is not None:
            self.lock.close(cycle, self.tick(), "empty")
        return cycle is not None

    def _finish_any(self) -> bool:
        for node in self.settled_running():
            if node.device:
                self.lock.finish(node, COMPLETED, self.tick(), 0)
                return True
        return False

    def _start_any(self) -> bool:
        if self.lock.holds_everything or not self.plan.queue.has_ready():
            return False
        self.plan.start(self.plan.queue.pop(next(iter(self.plan.queue.lanes))), "device", self.tick())
        return True


TestLivingPlan = LivingPlan.TestCase
TestLivingPlan.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
