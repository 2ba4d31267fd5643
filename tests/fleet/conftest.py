"""Every test has a state directory of its own, and may ask for a stage: a fleet in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.async_tests import async_fixture
from tests.fleet.fleet_scenes import Stage, staged
from tests.left_behind import nothing_is_left_behind, what_is_there_before

__all__ = ["nothing_is_left_behind", "stage", "state", "what_is_there_before"]


LONG_ONLY = (
    "test_claimer",
    "test_deputy",
    "test_device_health",
    "test_draining",
    "test_resting",
    "test_clock_jumps",
    "test_monitor",
    "test_own_score",
    "test_frozen_worker",
    "test_fleet_expressions",
    "test_selection_metrics",
)
BOTH = (
    "test_completion",
    "test_heartbeat",
    "test_lease",
    "test_membership",
    "test_limited_queue",
    "test_move",
    "test_run_logs",
    "test_run_results",
    "test_refusals",
    "test_device_logging",
)
"""The suites that run with devices on the store and with devices of a gateway; the first ones in the long tier only."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "store_only(why): a test, or a case of one, of devices that share the store")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    suite = metafunc.module.__name__.rpartition(".")[2]
    if "stage" not in metafunc.fixturenames or suite not in (*LONG_ONLY, *BOTH):
        return
    marks = (pytest.mark.long,) if suite in LONG_ONLY else ()
    metafunc.parametrize("stage", ["store", pytest.param("gateway", marks=marks)], indirect=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = [item for item in items if not (through_gateway(item) and item.get_closest_marker("store_only"))]


def through_gateway(item: pytest.Item) -> bool:
    return (
        isinstance(item, pytest.Function)
        and getattr(item, "callspec", None) is not None
        and (item.callspec.params.get("stage") == "gateway")
    )


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "asterism"


@async_fixture
async def stage(request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    async with staged(getattr(request, "param", "store")) as stage:
        yield stage
