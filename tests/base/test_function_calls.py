"""Functions by their import path."""

from __future__ import annotations

import pytest

from asterism.durable.fleet_device import NO_ACTION, no_action
from asterism.execution.function_calls import load_function


@pytest.mark.parametrize("path", [NO_ACTION, "asterism.runtime.durable.dispatching:nothing_to_do"])
async def test_workflows_of_earlier_stores_find_the_function_of_a_task_without_an_action(path: str) -> None:
    """The path is stored in workflows, so it outlives the module that once had the function."""
    assert load_function(path) is no_action
    assert await load_function(path)() is None


@pytest.mark.parametrize("path", ["no_such_module:f", "json:no_such_function", "json:decoder"])
def test_a_path_that_leads_to_no_function_is_an_import_error(path: str) -> None:
    with pytest.raises(ImportError):
        load_function(path)
