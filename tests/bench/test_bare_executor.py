"""The yardstick of the benchmarks has to be right before it is quick."""

import asyncio

import pytest

from bench import graphs
from bench.peers import bare


@pytest.mark.parametrize("graph", [graphs.independent(20), graphs.chain(20), graphs.layers(4, 5)])
def test_every_task_runs_once_and_after_its_parents(graph: graphs.Graph) -> None:
    assert bare.run(graph).tasks == 20  # which checks the rest itself


def test_tasks_that_wait_for_nothing_run_together() -> None:
    at_once = most = 0

    async def body(task: int) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0)
        at_once -= 1

    asyncio.run(bare.execute(graphs.independent(5), body))
    assert most == 5


def test_no_tasks_are_done_at_once() -> None:
    assert bare.run([]).tasks == 0


def test_a_deep_chain_needs_no_recursion() -> None:
    assert bare.run(graphs.chain(5_000)).tasks == 5_000


def test_a_task_that_raises_ends_the_run() -> None:
    async def body(task: int) -> None:
        raise ValueError(f"task {task}")

    with pytest.raises(ValueError, match="task 0"):
        asyncio.run(bare.execute(graphs.chain(3), body))
