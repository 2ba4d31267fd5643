"""The race hunt in the test suite, and the proof that it would notice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from asterism.core.errors import EditRejected
from asterism.core.plan import apply as apply_module
from asterism.core.plan import graph as graph_module
from asterism.core.plan.apply import Applied
from asterism.core.plan.assignment_lock import AssignmentLock
from asterism.core.plan.graph import Graph
from asterism.orchestrator.edit_cycles import EditCycles, batch_of
from asterism.orchestrator.execution import Execution
from tests.laboratory.races.holds import hold
from tests.laboratory.races.scenario import race
from tests.laboratory.races.wild import wild

OPEN_CYCLES = Execution.open_cycles

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Editors break on purpose, thousands of times."""
    with caplog.at_level("CRITICAL", logger="asterism"):
        yield


@pytest.mark.hunt(few=25, many=600)
def test_no_interleaving_breaks_a_promise(seeds: range) -> None:
    for seed in seeds:
        problems = race(seed)
        assert not problems, f"python -m tests.laboratory.races --seed {seed}: {problems}"


@pytest.mark.long
def test_the_wild_hunt_notices_when_a_task_starts_before_its_last_execution_has_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Execution, "_still_stopping", lambda self, node: False)
    assert any("worked on twice" in problem for seed in range(700, 1300) for problem in wild(seed))


@pytest.mark.hunt(few=10, many=300)
def test_nothing_hangs_or_breaks_when_everything_goes_wrong_at_once(seeds: range) -> None:
    for seed in seeds:
        problems = wild(seed)
        assert not problems, f"python -m tests.laboratory.races --seed {seed}: {problems}"


@pytest.mark.hunt(few=6, many=300)
def test_under_global_nothing_starts_while_an_end_is_unreviewed(seeds: range) -> None:
    for seed in seeds:
        problems = hold(seed)
        assert not problems, f"python -m tests.laboratory.races --seed {seed}: {problems}"


def test_the_hunt_notices_a_start_in_an_open_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends that wait for a cycle are forgotten: only open cycles hold."""
    monkeypatch.setattr(AssignmentLock, "holds_everything", property(lambda lock: bool(lock.cycles)))
    monkeypatch.setattr(Execution, "open_cycles", _open_cycles_late)
    assert any("started while" in problem for seed in range(50) for problem in hold(seed))


def test_the_hunt_notices_a_start_with_a_time_that_is_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    start = Execution.start_one
    monkeypatch.setattr(Execution, "start_one", lambda self, now: start(self, now - 1.0))
    assert any("the record says" in problem for seed in range(50) for problem in hold(seed))


def _open_cycles_late(self: Execution) -> None:
    """The cycle is opened one tick after the step that would open it."""
    if not self.done.done() and not self.cancelling:
        self._loop.call_soon(OPEN_CYCLES, self)


def first_bad_seed(policy: str | None, first: int = 0, most: int = 1500) -> list[str]:
    for seed in range(first, first + most):
        problems = race(seed, policy)
        if problems:
            return problems
    return []


# -- ablations: one safeguard off at a time, and the hunt must notice --------------------------------------------------


def hold_one_tick_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Record the end first, and hold what lies below it in the next step of the loop, as hand-written systems do."""

    def finish(self: AssignmentLock, node: Any, status: Any, now: float, value: Any = None, error: Any = None) -> None:
        self.graph.finish(node, status, now, value, error, review=False)
        epoch = node.epoch

        def late() -> None:
            if node.epoch != epoch or self.graph.nodes.get(node.id) is not node:
                return
            node.reviewed = False
            if not node.unsettled:
                node.unsettled = True
                for child in node.children.values():
                    child.held += 1
                    self.graph.requeue(child)
            self.waiting.append((node.id, epoch))

        asyncio.get_running_loop().call_soon(late)

    monkeypatch.setattr(AssignmentLock, "finish", finish)


def skip_the_base_version_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply_module, "stale_keys", lambda graph, base_version, names: [])


def release_before_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Close the cycle as soon as the answer is there, and check and apply it one tick later."""

    def judge(self: EditCycles, cycle: Any, answer: Any, author: str) -> Applied:
        batch, _ = batch_of(answer, self._plan, cycle, author)
        self._close(cycle, "accepted")

        def later() -> None:
            try:
                self._plan.apply(batch, self._now())
            except EditRejected as rejected:
                self._publish("edit_rejected", cycle, violations=rejected.violations)

        self._loop.call_soon(later)
        return Applied(self._plan.version, batch, None)

    monkeypatch.setattr(EditCycles, "_judge", judge)


def let_edits_reach_running_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply_module, "is_modifiable", lambda node: True)


def believe_stopped_executions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave a revoked execution running and take its word when it comes."""

    def stop(self: Execution, epoch: int) -> None:
        self.active[epoch].node.epoch = epoch

    monkeypatch.setattr(Execution, "stop", stop)


def revoke_only_the_edited_task(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (apply_module, graph_module):
        monkeypatch.setattr(module, "provisional_below", lambda node: [node])


def count_void_reviews(monkeypatch: pytest.MonkeyPatch) -> None:
    """A review of a revoked execution settles the one that replaced it."""
    settle = Graph.settle

    def any_epoch(self: Graph, ends: Any, now: float) -> Any:
        return settle(self, [(t, self.nodes[t].epoch) for t, _ in ends if t in self.nodes], now)

    monkeypatch.setattr(Graph, "settle", any_epoch)


def start_provisionally_without_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start tasks below unreviewed ends although they are not revocable."""

    def requeue(self: Graph, node: Any) -> None:
        if node.status == "pending" and not node.open and node.entry is None:
            self.queue.push(node)

    monkeypatch.setattr(Graph, "requeue", requeue)


@pytest.mark.parametrize(
    ("switch_off", "policy", "first"),
    [
        (hold_one_tick_late, "scoped", 0),
        (hold_one_tick_late, "global", 0),
        (hold_one_tick_late, "speculative", 0),
        (skip_the_base_version_check, None, 160),
        (release_before_validation, "scoped", 0),
        (release_before_validation, "global", 0),
        (let_edits_reach_running_tasks, None, 45),
        (believe_stopped_executions, "speculative", 0),
        (revoke_only_the_edited_task, "speculative", 0),
        (count_void_reviews, "speculative", 185),
        (start_provisionally_without_leave, "scoped", 0),
    ],
)
@pytest.mark.long
def test_the_hunt_notices_when_a_safeguard_is_off(
    switch_off: Callable[[pytest.MonkeyPatch], None], policy: str | None, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch_off(monkeypatch)
    assert first_bad_seed(policy, first), f"{switch_off.__name__} went unnoticed"
