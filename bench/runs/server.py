"""The PostgreSQL server of the benchmarks: a real one, durable, with the memory that a server of its own would get."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from tests.store.postgres_server import Server

SETTINGS = {"shared_buffers": "512MB", "max_connections": 200, "max_wal_size": "4GB", "checkpoint_timeout": "30min"}
"""So that no checkpoint comes in between; everything else, such as what a commit means, is as it comes."""

_numbers = itertools.count()


@contextmanager
def server() -> Iterator[Server]:
    with Server(SETTINGS) as running:
        yield running


@contextmanager
def database(on: Server) -> Iterator[str]:
    """The address of a new database, which goes with the block."""
    name = f"bench_{next(_numbers)}"
    on.sql(f"CREATE DATABASE {name}")
    try:
        on.sql("CHECKPOINT")
        yield on.url(name)
    finally:
        on.sql(f"DROP DATABASE {name} WITH (FORCE)")


def ask(on: Server, url: str, query: str) -> str:
    """What a query answers in the database of that address: columns are separated by ``|``."""
    return on.sql(query, urlsplit(url).path.removeprefix("/")).strip()


def version(on: Server) -> str:
    return on.sql("SHOW server_version").split()[0]
