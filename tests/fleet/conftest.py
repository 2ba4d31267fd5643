"""Every test has a state directory of its own, and may ask for a stage: a fleet in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.async_tests import async_fixture
from tests.fleet.fleet_scenes import Stage, staged
from tests.left_behind import nothing_is_left_behind, what_is_there_before

__all__ = ["nothing_is_left_behind", "stage", "state", "what_is_there_before"]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "asterism"


@async_fixture
async def stage() -> AsyncIterator[Stage]:
    async with staged() as stage:
        yield stage
