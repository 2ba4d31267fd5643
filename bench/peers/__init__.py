"""The executors that the benchmarks compare, one module each, all of them with the same few names.

`NAME` and `VERSION()` are for the table. `session()` starts what the peer needs (a cluster, a server) and
yields the function that measures one graph; leaving it ends every process and removes every file.
`run(graph)` is a session for one graph. `LIMIT` is the largest graph that the peer finishes in some ten
seconds; a larger one is not worth the wait, for only the time per task counts.

What counts is from the moment at which the peer gets the graph until the last task has ended. Where a peer
builds or compiles a graph in a step of its own, that step is left out, and so is the start of a cluster or
server. The modules are not called like the packages they import, which would hide these.
"""

from contextlib import AbstractContextManager
from importlib import import_module
from typing import Protocol, cast

from bench.graphs import Graph
from bench.measure import Sample


class Measure(Protocol):
    def __call__(self, graph: Graph, /) -> Sample: ...


class Peer(Protocol):
    NAME: str
    LIMIT: int

    def VERSION(self) -> str: ...
    def session(self) -> AbstractContextManager[Measure]: ...
    def run(self, graph: Graph) -> Sample: ...


# Name of the peer → the package that has to be installed for it.
PEERS = {
    "asterism": "asterism",
    "bare": "asyncio",
    "pydantic_graph": "pydantic_graph",
    "langgraph": "langgraph",
    "ray": "ray",
    "dask": "distributed",
    "prefect": "prefect",
}


def load(name: str) -> Peer:
    """The module of a peer; importing it imports nothing of the peer itself."""
    return cast(Peer, import_module(f"bench.peers.{name}_peer" if name != "bare" else "bench.peers.bare"))
