"""`langgraph`: a compiled `StateGraph` without a checkpointer; measured is `ainvoke`.

LangGraph runs in supersteps: whatever is due runs together, and the next superstep waits for all of it. A
chain is one node per task, with edges. Any other graph is one node that is sent to every task of a superstep
(`Send`), which gives the same supersteps as one node per task in a half to a quarter of the time.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any, TypedDict

from bench.graphs import Graph, check, is_chain, waves
from bench.measure import Sample, timed_async
from bench.peers import Measure
from bench.peers.surroundings import environment

NAME = "langgraph"
LIMIT = 10_000

QUIET = {"LANGSMITH_TRACING": "false", "LANGCHAIN_TRACING_V2": "false"}


class Progress(TypedDict):
    wave: int


def VERSION() -> str:
    return version("langgraph")


def _line(length: int, trace: list[int]) -> Any:
    from langgraph.graph import END, START, StateGraph

    def node(task: int) -> Any:
        async def body(state: Progress) -> None:
            trace.append(~task)
            await asyncio.sleep(0)
            trace.append(task)

        return body

    builder: Any = StateGraph(Progress)
    last = START
    for task in range(length):
        builder.add_node(str(task), node(task))
        builder.add_edge(last, str(task))
        last = str(task)
    builder.add_edge(last, END)
    return builder.compile()


def _rounds(graph: Graph, trace: list[int]) -> Any:
    from langgraph.graph import END, START, StateGraph
    from langgraph.types import Send

    supersteps = waves(graph)

    async def work(task: int) -> None:
        trace.append(~task)
        await asyncio.sleep(0)
        trace.append(task)

    async def join(state: Progress) -> Progress:
        return {"wave": state["wave"] + 1}

    def fan_out(state: Progress) -> Any:
        if state["wave"] == len(supersteps):
            return END
        return [Send("work", task) for task in supersteps[state["wave"]]]

    builder: Any = StateGraph(Progress)
    builder.add_node("work", work)
    builder.add_node("join", join)
    builder.add_conditional_edges(START, fan_out, ["work", END])
    builder.add_edge("work", "join")
    builder.add_conditional_edges("join", fan_out, ["work", END])
    return builder.compile()


def _measure(graph: Graph) -> Sample:
    trace: list[int] = []
    compiled = _line(len(graph), trace) if is_chain(graph) else _rounds(graph, trace)
    # Two supersteps a wave at most; the default of 25 is meant to catch agents that go in circles.
    config = {"recursion_limit": 2 * len(graph) + 10}
    sample = timed_async(len(graph), lambda: compiled.ainvoke({"wave": 0}, config))
    check(graph, trace)
    return sample


def run(graph: Graph) -> Sample:
    """Measure one run of a graph that has been compiled."""
    with session() as measure:
        return measure(graph)


@contextmanager
def session() -> Iterator[Measure]:
    with environment(QUIET):
        yield _measure
