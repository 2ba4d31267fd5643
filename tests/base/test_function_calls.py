"""Functions by their import path."""

from __future__ import annotations

import pytest

from asterism.durable.fleet_device import NO_ACTION, no_action
from asterism.execution.function_calls import load_function


async def test_a_task_without_an_action_executes_a_function_that_is_found_by_its_path() -> None:
    assert load_function(NO_ACTION) is no_action
    assert await load_function(NO_ACTION)() is None


@pytest.mark.parametrize("path", ["no_such_module:f", "json:no_such_function", "json:decoder"])
def test_a_path_that_leads_to_no_function_is_an_import_error(path: str) -> None:
    with pytest.raises(ImportError):
        load_function(path)
