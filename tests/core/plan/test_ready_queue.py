"""The ready queue: priority first, then rank, then who was ready first; one heap per kind of device."""

from __future__ import annotations

from typing import Any

from asterism.core.plan.node import Node
from asterism.core.plan.ready_queue import ReadyQueue
from asterism.core.plan.task import ANY_DEVICE, Lane, Task, lane_of
from tests.core.plan.tiny_plans import begin, chain


def queued(queue: ReadyQueue, task_id: str, rank: float = 0.0, **fields: Any) -> Node:
    node = Node(Task(task_id, **fields), 1)
    node.rank = rank
    queue.push(node)
    return node


def drained(queue: ReadyQueue, lane: Lane = ANY_DEVICE) -> list[str]:
    popped = []
    while lane in queue.lanes and queue.peek(lane) is not None:
        popped.append(queue.pop(lane).id)
    return popped


def test_priority_goes_before_rank_and_rank_before_age() -> None:
    queue = ReadyQueue()
    queued(queue, "old")
    queued(queue, "young")
    queued(queue, "long tail", rank=5.0)
    queued(queue, "low", rank=9.0, priority="low")
    queued(queue, "critical", priority="critical")
    assert drained(queue) == ["critical", "long tail", "old", "young", "low"]


def test_tasks_for_different_kinds_of_devices_wait_in_different_lanes() -> None:
    queue = ReadyQueue()
    queued(queue, "any")
    queued(queue, "gpu", needs="gpu")
    queued(queue, "here", device="laptop")
    assert set(queue.lanes) == {ANY_DEVICE, (None, frozenset({"gpu"})), ("laptop", frozenset())}
    assert drained(queue, lane_of(Task("x", needs="gpu"))) == ["gpu"]
    assert drained(queue, lane_of(Task("x", device="laptop"))) == ["here"]
    assert drained(queue) == ["any"]


def test_a_task_that_overtakes_in_one_lane_changes_nothing_in_another() -> None:
    queue = ReadyQueue()
    queued(queue, "first")
    queued(queue, "second", priority="high")
    queued(queue, "gpu", needs="gpu")
    assert [queue.length(lane) for lane in queue.lanes] == [2, 1]
    assert drained(queue, lane_of(Task("x", needs="gpu"))) == ["gpu"]
    assert drained(queue) == ["second", "first"]


def test_looking_at_the_best_leaves_it_in_its_place() -> None:
    queue = ReadyQueue()
    node = queued(queue, "a")
    assert queue.peek(ANY_DEVICE) is queue.peek(ANY_DEVICE) is node.entry
    assert len(queue) == 1


def test_a_node_that_was_taken_knows_that_it_is_no_longer_queued() -> None:
    queue = ReadyQueue()
    node = queued(queue, "a")
    assert queue.pop(ANY_DEVICE) is node
    assert node.entry is None
    assert not queue.has_ready()


def test_an_entry_that_its_node_has_given_up_is_dropped_when_it_comes_to_the_top() -> None:
    queue = ReadyQueue()
    first = queued(queue, "first")
    queued(queue, "second")
    first.entry = None
    assert len(queue) == 1
    assert drained(queue) == ["second"]
    assert queue.lanes == {}


def test_a_node_that_is_pushed_again_moves_to_where_it_now_belongs() -> None:
    queue = ReadyQueue()
    queued(queue, "steady", rank=1.0)
    mover = queued(queue, "mover")
    mover.rank = 2.0
    queue.push(mover)
    assert len(queue) == 2
    assert drained(queue) == ["mover", "steady"]


def test_a_lane_in_which_nothing_stands_any_more_is_closed() -> None:
    queue = ReadyQueue()
    queued(queue, "a").entry = None
    assert queue.peek(ANY_DEVICE) is None
    assert ANY_DEVICE not in queue.lanes


def test_anything_looks_into_every_lane() -> None:
    queue = ReadyQueue()
    assert not queue.has_ready()
    queued(queue, "gone").entry = None
    assert not queue.has_ready()
    queued(queue, "here", needs="gpu")
    assert queue.has_ready()


def test_a_lane_that_was_set_aside_is_looked_at_again_when_it_is_said() -> None:
    queue = begin(chain("a")).queue
    assert list(queue.active_lanes) == [None]
    queue.deactivate(None)
    assert not queue.active_lanes
    queue.activate(("nowhere", frozenset()))  # a lane without work is not worth it
    assert not queue.active_lanes
    queue.activate(None)
    assert list(queue.active_lanes) == [None]
    queue.deactivate(None)
    queue.activate_all()
    assert list(queue.active_lanes) == [None]
    queue.pop(None)
    assert not queue.active_lanes
