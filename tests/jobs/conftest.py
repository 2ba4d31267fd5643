"""A desk for each story, and what a command changes in the test process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import search_path_is_restored  # noqa: F401 - used by each story
from tests.jobs.desk import Desk


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.chdir(tmp_path)
    return Desk(tmp_path)
