"""What any test may ask for."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests import async_tests
from tests.loop_watchdog import Plugin as LoopWatchdog
from tests.store.postgres_server import Server

# How fast an example is made and tried says something of the machine, and nothing of what is tested.
settings.register_profile("asterism", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("asterism")

_numbers = itertools.count(1)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(LoopWatchdog(), "loop watchdog")
    config.pluginmanager.register(async_tests, "async tests")


@pytest.fixture(scope="session", autouse=True)
def state_of_nobody(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Devices of tests leave nothing in the home of whoever runs them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    """One PostgreSQL server for all tests that leave it running; who stops or kills one has one of their own."""
    with Server() as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: Server) -> str:
    """The address of an empty store, in a schema of its own."""
    return postgres_server.url(schema=f"test_{next(_numbers)}")
