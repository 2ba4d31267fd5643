"""Fixtures for the tests of agents."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def sdk() -> None:
    """Import the SDK of ACP before a test has an event loop: that takes a second, in which the loop would do nothing
    else. A worker that runs other tests does without."""
    import acp  # noqa: F401
