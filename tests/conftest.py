"""Fixtures and plugins for every test."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import itertools
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import certifi
import pytest

from tests import async_tests, forked_commands, inherited_signals, long_tests, property_tests
from tests.huge_pages import Plugin as HugePages
from tests.loop_watchdog import Plugin as LoopWatchdog
from tests.store.postgres_server import NoServer, RunningServer, Server

# httpcore tries to import sniffio for each lock. Where it is not installed, Python searches its whole path every time:
# that was most of the processor time of tests that send HTTP requests. None ends the search at once.
if importlib.util.find_spec("sniffio") is None:
    sys.modules["sniffio"] = None  # type: ignore[assignment]

pytest_plugins = ["asterism.testing.pytest_plugin"]

inherited_signals.keep_to_ourselves()

_numbers = itertools.count(1)
_shared_server = pytest.StashKey[Server]()


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(HugePages(), "huge pages")
    config.pluginmanager.register(LoopWatchdog(), "loop watchdog")
    config.pluginmanager.register(async_tests, "async tests")
    config.pluginmanager.register(long_tests, "long tests")
    config.pluginmanager.register(property_tests, "property tests")
    forked_commands.use_servers(getattr(config, "workerinput", {}).get("servers_of_commands", {}))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """The garbage collector ignores the nine thousand test items: each collection looked at all of them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        gc.set_threshold(10_000)  # by default it is 700: Hypothesis and the loop watchdog are called at each collection


@pytest.fixture(scope="session", autouse=True)
def state_of_nobody(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Devices of tests write nothing into the user's home."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.setenv("ASTERISM_CONTAINER_ENGINE", "none-in-tests")  # what a device can do is the same on all machines
        yield


@pytest.fixture(scope="session", autouse=True)
def one_authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Clients of HTTP trust one public authority instead of all: each client reads them anew, which takes 50 ms, and no
    test reaches a server that they vouch for."""
    end = "-----END CERTIFICATE-----\n"
    file = tmp_path_factory.mktemp("authorities") / "one.pem"
    file.write_text(certifi.contents().partition(end)[0] + end, encoding="ascii")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(file))
        yield


# -- PostgreSQL ------------------------------------------------------------------------------------------------------


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tests in several processes share the servers: pytest-xdist calls this in the main process, for each worker."""
    servers = {name: forked_commands.shared_server(name).path for name in forked_commands.SERVERS}
    node.workerinput["servers_of_commands"] = servers
    stash = node.config.stash
    with contextlib.suppress(NoServer):  # a test that needs the server then fails with the reason
        if _shared_server not in stash:
            stash[_shared_server] = Server({"max_connections": 400})
        server = stash[_shared_server]
        node.workerinput["postgres_server"] = (str(server.folder), str(server.binaries))


def pytest_unconfigure(config: pytest.Config) -> None:
    if _shared_server in config.stash:
        config.stash[_shared_server].close()


@pytest.fixture(scope="session")
def postgres_server(request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    """One PostgreSQL server for all tests that leave it running; a test that stops or kills one starts its own.

    Each worker of pytest-xdist has a database of its own: notifications and advisory locks belong to one database.
    """
    worker: dict[str, Any] = getattr(request.config, "workerinput", {})
    if "postgres_server" in worker:
        folder, binaries = map(Path, worker["postgres_server"])
        yield RunningServer(folder, binaries).own_database(worker["workerid"])
    else:
        with Server() as server:
            yield server


@pytest.fixture
def postgres_url(postgres_server: RunningServer) -> str:
    """The address of an empty store, in a schema of its own."""
    return postgres_server.url(schema=f"test_{next(_numbers)}")
