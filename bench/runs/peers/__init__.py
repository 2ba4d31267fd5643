"""The queues that are compared, one module each, all of them with the same few names.

``NAME`` and ``VERSION()`` are for the table, ``SETTINGS`` says how it is set up: in the way that its own documents
recommend where much is to be done, with nothing that was acknowledged ever lost. ``work`` has a database of its own. It
puts jobs that do nothing into the queue, as quickly as the queue allows; then it starts the workers, all in one
process, and waits until the last job is recorded as done. ``batch`` is how many jobs a worker has in hand at a time. It
returns the seconds that each of the two took.

A module is not called like the package it imports, which would hide it.
"""

from importlib import import_module
from typing import NamedTuple, Protocol, cast


class Timing(NamedTuple):
    """In seconds; ``cpu`` is what the process itself computed while it worked."""

    created: float
    worked: float
    cpu: float


class Peer(Protocol):
    NAME: str
    SETTINGS: str
    UVLOOP: bool
    """Whether it is quicker with the event loop of that name."""

    DONE: str
    """A query of its own tables: how many jobs are done, and how many are in any other state."""

    def VERSION(self) -> str: ...
    async def work(self, url: str, jobs: int, batch: int, workers: int) -> Timing: ...


# Name of the peer → the package that has to be installed for it.
PEERS = {
    "asterism": "asterism",
    "asterism_apart": "asterism",
    "pgqueuer": "pgqueuer",
    "procrastinate": "procrastinate",
}


# Beside these there is ``asterism_pushed``, which does not work off a queue and is compared with nothing.


def load(name: str) -> Peer:
    """The module of a peer; importing it imports nothing of the peer itself."""
    return cast(Peer, import_module(f"bench.runs.peers.{name}_queue"))
