"""Fixtures for the tests of models."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def sdks() -> None:
    """Import the SDKs before a test has an event loop: that takes a second, in which the loop would do nothing else."""
    import pydantic_ai.direct
    import pydantic_ai.models.anthropic
    import pydantic_ai.models.openai  # noqa: F401
