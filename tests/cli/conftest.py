"""Undo what a command changes in the test process."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator

import pytest

from tests.forked_commands import Server, shared_server
from tests.store.postgres_server import RunningServer
from tests.store.store_engines import empty_postgres


@pytest.fixture(autouse=True)
def search_path_is_restored() -> Iterator[None]:
    """`run` and `check` let modules beside a plan be imported."""
    before = list(sys.path)
    yield
    sys.path[:] = before


@pytest.fixture
def model_commands() -> Server:
    """Commands that have imported the clients of models already, which takes seconds."""
    return shared_server("commands of models")


@pytest.fixture
def emptied_postgres_url(postgres_server: RunningServer) -> str:
    """An empty store. Its tables are emptied for each test, which takes less time than to create them; so no process of
    an earlier test may still be there."""
    asyncio.run(empty_postgres(postgres_server.url(), "commands"))
    return postgres_server.url(schema="commands")
