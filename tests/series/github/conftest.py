"""Fixtures of the tests of series on GitHub: a server, and what it has. A module with another world overrides that."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.series.github.github_fixtures import world_of
from tests.series.github.github_server import GitHubServer
from tests.series.github.github_world import World


@pytest.fixture
def world() -> World:
    """Three issues of one series."""
    return world_of()


@pytest.fixture
def server(world: World) -> Iterator[GitHubServer]:
    """A server. At the end it must never have had two assigned issues of one series."""
    with GitHubServer(world) as running:
        yield running
        assert running.world.doubles == []
