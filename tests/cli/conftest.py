"""Undo what a command changes in the test process."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def search_path_is_restored() -> Iterator[None]:
    """`run` and `check` let modules beside a plan be imported."""
    before = list(sys.path)
    yield
    sys.path[:] = before
