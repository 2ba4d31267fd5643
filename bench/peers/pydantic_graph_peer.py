"""`pydantic_graph`: steps joined by edges, built with its `GraphBuilder`; measured is `Graph.run`.

A chain is one step per task. Any other graph is run wave by wave: one step that is mapped over the tasks of a
wave, a join, and round again. One step and one join per task would be the more literal translation, but takes
at least three times as long to run, and to build: half a minute for a thousand tasks, growing with the cube.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from types import NoneType
from typing import Any

from bench.graphs import Graph, check, is_chain, waves
from bench.measure import Sample, timed_async
from bench.peers import Measure

NAME = "pydantic_graph"
LIMIT = 10_000


def VERSION() -> str:
    return version("pydantic-graph")


def _line(length: int, trace: list[int]) -> Any:
    from pydantic_graph import GraphBuilder

    def step(task: int) -> Any:
        async def body(ctx: Any) -> None:
            trace.append(~task)
            await asyncio.sleep(0)
            trace.append(task)

        return builder.step(body, node_id=f"task {task}")

    # Spans are switched off: they are for those who watch a run.
    builder: Any = GraphBuilder(state_type=list, auto_instrument=False)
    last = builder.start_node
    for following in map(step, range(length)):
        builder.add_edge(last, following)
        last = following
    builder.add_edge(last, builder.end_node)
    return builder.build()


def _rounds(trace: list[int]) -> Any:
    """A loop that takes wave after wave from the end of the list that is its state."""
    from pydantic_graph import GraphBuilder, reduce_null

    async def body(ctx: Any) -> None:
        trace.append(~ctx.inputs)
        await asyncio.sleep(0)
        trace.append(ctx.inputs)

    def wave(ctx: Any) -> Any:
        return ctx.state.pop() if ctx.state else None

    builder: Any = GraphBuilder(state_type=list, auto_instrument=False)
    work = builder.step(body, node_id="work")
    join = builder.join(reduce_null, initial=None, node_id="join")
    fork = (
        builder.decision()
        .branch(builder.match(list).map().to(work))
        .branch(builder.match(NoneType).to(builder.end_node))
    )
    builder.add(
        builder.edge_from(builder.start_node).transform(wave).to(fork),
        builder.edge_from(work).to(join),
        builder.edge_from(join).transform(wave).to(fork),
    )
    return builder.build()


def run(graph: Graph) -> Sample:
    """Measure one run of a graph that has been built."""
    trace: list[int] = []
    built = _line(len(graph), trace) if is_chain(graph) else _rounds(trace)
    state = waves(graph)[::-1]
    sample = timed_async(len(graph), lambda: built.run(state=state))
    check(graph, trace)
    return sample


@contextmanager
def session() -> Iterator[Measure]:
    yield run
