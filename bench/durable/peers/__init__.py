"""The engines that are compared, one module each, all of them with the same few names.

``NAME`` and ``VERSION()`` are for the table, ``SETTINGS`` says how it is set up: in its own recommended way of durable
steps, on SQLite if it can. ``LIMIT`` is how many tasks it is given at most, by shape: only the time for each counts,
and a larger plan would only take longer. ``session`` has a directory of its own and starts what the engine needs; it
yields the function that measures one graph. What counts is from the moment at which the engine gets the graph until it
says that all of it has ended; building and compiling graphs is left out, and so is the start of a server.

Every module looks into its own database afterwards and raises unless each task was recorded there: an engine that kept
nothing would be quick. A module is not called like the package it imports, which would hide it.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol, cast

from bench.durable import restate_server
from bench.graphs import Graph
from bench.measure import Sample


class Measure(Protocol):
    def __call__(self, graph: Graph, /) -> Sample: ...


class Peer(Protocol):
    NAME: str
    SETTINGS: str
    LIMIT: Mapping[str, int]

    def VERSION(self) -> str: ...
    def session(self, folder: Path) -> AbstractContextManager[Measure]: ...


# Name of the peer → the package that has to be installed for it.
PEERS = {
    "asterism": "asterism",
    "raw": "sqlite3",
    "dbos": "dbos",
    "dbos_sync": "dbos",
    "langgraph": "langgraph.checkpoint.sqlite",
    "prefect": "prefect",
    "restate": "restate",
    "apscheduler": "apscheduler",
}


def load(name: str) -> Peer:
    """The module of a peer; importing it imports nothing of the peer itself."""
    return cast(Peer, import_module(f"bench.durable.peers.{name}_steps"))


def installed(name: str) -> bool:
    if name == "restate" and not restate_server.PROGRAM.exists():
        return False
    try:
        return find_spec(PEERS[name]) is not None
    except ModuleNotFoundError:  # not even the package that would contain it
        return False


def recorded(records: int, tasks: int, what: str) -> None:
    """Raise unless every task left a record. (Some engines have records of more than the tasks.)"""
    if records < tasks:
        raise AssertionError(f"{records} {what} for {tasks} tasks: not every task was recorded")
