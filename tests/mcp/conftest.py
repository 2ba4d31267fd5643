"""Fixtures for the tests of MCP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from mcp.client.session import ClientSession

from asterism.mcp.mcp_tools import prepare_schemas


def pytest_collection_finish() -> None:
    """Make the schemas of the MCP tools before a test has an event loop, as a server does before it serves: the first
    list of tools would make all of them in one step. Workers that are forked afterwards have them."""
    prepare_schemas()


@pytest.fixture(scope="session", autouse=True)
def schemas_are_checked_once() -> Iterator[None]:
    """Each client of MCP checks the schema of each tool that it calls against the schema of schemas, which takes longer
    than the call. Here one check of a schema is enough for all clients."""
    check, valid = Draft202012Validator.check_schema, set[str]()

    def check_once(schema: Any, *arguments: Any, **named: Any) -> None:
        text = json.dumps([schema, repr(arguments), repr(named)], sort_keys=True)
        if text not in valid:
            check(schema, *arguments, **named)
            valid.add(text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Draft202012Validator, "check_schema", check_once)
        yield


@pytest.fixture(scope="session", autouse=True)
def results_are_checked_without_another_list() -> Iterator[None]:
    """Each client of MCP asks for all tools before it checks its first result, which takes longer than the call. Here
    one client asks, and the others have the schemas from it."""
    validate, schemas = ClientSession.validate_tool_result, dict[tuple[object, str], Any]()

    async def validate_with_known_schema(self: ClientSession, name: str, result: Any) -> None:
        key = (self._negotiated_version, name)
        if key in schemas:
            self._tool_output_schemas.setdefault(name, schemas[key])
        await validate(self, name, result)
        if name in self._tool_output_schemas:  # not a tool that the server does not show this client
            schemas[key] = self._tool_output_schemas[name]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClientSession, "validate_tool_result", validate_with_known_schema)
        yield
