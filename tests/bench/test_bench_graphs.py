"""The graphs of the benchmarks, and the proof of a run, which has to notice a run that went wrong."""

import pytest

from bench import graphs


def marks(*tasks: int) -> list[int]:
    """The trace of tasks that run one after the other."""
    return [mark for task in tasks for mark in (~task, task)]


def test_independent_tasks_have_no_parents() -> None:
    assert graphs.independent(3) == [(), (), ()]


def test_a_chain_is_single_file() -> None:
    assert graphs.chain(4) == [(), (0,), (1,), (2,)]
    assert graphs.chain(0) == []


def test_each_task_of_a_layer_has_three_distinct_parents_in_the_layer_before() -> None:
    graph = graphs.layers(5, 20, seed=1)
    assert len(graph) == 100
    assert graph[:20] == [()] * 20
    for task, parents in enumerate(graph[20:], start=20):
        assert len(set(parents)) == 3
        assert {parent // 20 for parent in parents} == {task // 20 - 1}


def test_layers_are_the_same_for_the_same_seed_only() -> None:
    assert graphs.layers(4, 10, seed=1) == graphs.layers(4, 10, seed=1)
    assert graphs.layers(4, 10, seed=1) != graphs.layers(4, 10, seed=2)


def test_no_layers_are_no_tasks() -> None:
    assert graphs.layers(0, 20) == []


def test_children_mirror_parents() -> None:
    assert graphs.children([(), (0,), (0, 1)]) == [[1, 2], [2], []]


def test_waves_have_no_edge_inside_and_lose_no_task() -> None:
    assert graphs.waves([(), (), (0,), (0, 2), ()]) == [[0, 1, 4], [2], [3]]
    assert graphs.waves([]) == []


@pytest.mark.parametrize(
    ("graph", "answer"),
    [(graphs.chain(5), True), (graphs.independent(5), False), (graphs.layers(3, 5), False)],
)
def test_a_chain_is_told_from_other_graphs(graph: graphs.Graph, answer: bool) -> None:
    assert graphs.is_chain(graph) is answer


def test_check_accepts_any_order_that_respects_the_parents() -> None:
    graph: graphs.Graph = [(), (), (0,)]
    graphs.check(graph, marks(0, 1, 2))
    graphs.check(graph, marks(1, 0, 2))
    graphs.check(graph, [~1, ~0, 0, ~2, 2, 1])


@pytest.mark.parametrize(
    ("trace", "complaint"),
    [
        (marks(0), "1 of 2 tasks did not run to their end: \\[1\\]"),
        ([*marks(0), ~1], "1 of 2 tasks did not run to their end: \\[1\\]"),
        (marks(0, 1, 1), "task 1 ran more than once"),
        ([*marks(0, 1), 1], "did not run to their end"),
        (marks(1, 0), "task 1 started before its parents \\[0\\] had ended"),
        ([~0, ~1, 0, 1], "task 1 started before its parents \\[0\\] had ended"),
    ],
)
def test_check_notices_a_wrong_run(trace: list[int], complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        graphs.check(graphs.chain(2), trace)
