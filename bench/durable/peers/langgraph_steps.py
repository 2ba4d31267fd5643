"""``langgraph`` with its SQLite checkpointer; measured is ``ainvoke`` of a compiled graph in a new thread.

With ``durability="sync"`` what a superstep did is written before the next one begins; its default writes meanwhile, may
lose the last one, and was not quicker. The graphs are those of ``bench/peers/langgraph_peer.py``: a chain is one node
per task, anything else is one node that is sent to every task of a superstep.
"""

import itertools
from collections.abc import Iterator
from contextlib import AsyncExitStack, closing, contextmanager
from importlib.metadata import version
from pathlib import Path
from sqlite3 import connect
from typing import Any, TypedDict

from bench import loop
from bench.durable.peers import Measure, recorded
from bench.durable.work import step, trace
from bench.graphs import Graph, check, is_chain, waves
from bench.measure import Sample, timed
from bench.peers.langgraph_peer import QUIET
from bench.peers.surroundings import environment

NAME = "langgraph"
SETTINGS = (
    f'{loop.WORDS}; `AsyncSqliteSaver`, `durability="sync"`; the file as the saver opens it: write-ahead log, '
    "`synchronous=FULL`"
)
LIMIT = {"wide": 1_000, "chain": 500, "layered": 1_000}


class Progress(TypedDict):
    wave: int


def VERSION() -> str:
    return f"{version('langgraph')}, checkpointer {version('langgraph-checkpoint-sqlite')}"


def _line(length: int) -> Any:
    from langgraph.graph import END, START, StateGraph

    def node(number: int) -> Any:
        async def body(state: Progress) -> Progress:
            await step(number)
            return {"wave": number}  # a node that wrote nothing would leave no record of itself

        return body

    builder: Any = StateGraph(Progress)
    last = START
    for number in range(length):
        builder.add_node(str(number), node(number))
        builder.add_edge(last, str(number))
        last = str(number)
    builder.add_edge(last, END)
    return builder


def _rounds(graph: Graph) -> Any:
    from langgraph.graph import END, START, StateGraph
    from langgraph.types import Send

    supersteps = waves(graph)

    async def join(state: Progress) -> Progress:
        return {"wave": state["wave"] + 1}

    def fan_out(state: Progress) -> Any:
        if state["wave"] == len(supersteps):
            return END
        return [Send("work", number) for number in supersteps[state["wave"]]]

    builder: Any = StateGraph(Progress)
    builder.add_node("work", step)
    builder.add_node("join", join)
    builder.add_conditional_edges(START, fan_out, ["work", END])
    builder.add_edge("work", "join")
    builder.add_conditional_edges("join", fan_out, ["work", END])
    return builder


def _run(path: Path, graph: Graph) -> Sample:
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    builder = _line(len(graph)) if is_chain(graph) else _rounds(graph)
    # Two supersteps a wave at most; the default of 25 is meant to catch agents that go in circles.
    config = {"recursion_limit": 2 * len(graph) + 10, "configurable": {"thread_id": "bench"}}

    async def opened() -> Any:
        saver = await stack.enter_async_context(AsyncSqliteSaver.from_conn_string(str(path)))
        await saver.setup()
        return builder.compile(checkpointer=saver)

    stack = AsyncExitStack()
    with loop.runner() as runner:
        try:
            compiled = runner.run(opened())
            return timed(len(graph), lambda: runner.run(compiled.ainvoke({"wave": 0}, config, durability="sync")))
        finally:
            runner.run(stack.aclose())


def _records(path: Path) -> int:
    """Of tasks: what each wrote, before the superstep was over."""
    with closing(connect(path)) as connection:
        return int(connection.execute("SELECT count(DISTINCT task_id) FROM writes").fetchone()[0])


@contextmanager
def session(folder: Path) -> Iterator[Measure]:
    numbers = itertools.count()

    def measure(graph: Graph) -> Sample:
        path = folder / f"{next(numbers)}.db"
        trace.clear()
        sample = _run(path, graph)
        check(graph, trace)
        recorded(_records(path), len(graph), "tasks with writes")
        return sample

    with environment(QUIET):
        yield measure
