"""Fixtures for the tests of agents."""

from __future__ import annotations

import pytest

from asterism.mcp.mcp_tools import prepare_schemas


@pytest.fixture(scope="session", autouse=True)
def schemas() -> None:
    """Make the schemas of the MCP tools before a test has an event loop, as a server does before it serves: the first
    list of tools would make all of them in one step."""
    prepare_schemas()
