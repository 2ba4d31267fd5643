"""Every test has a state directory of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.left_behind import nothing_is_left_behind, what_is_there_before

__all__ = ["nothing_is_left_behind", "state", "what_is_there_before"]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "asterism"
