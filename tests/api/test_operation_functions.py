"""The function that does an operation fits its declaration: it is found by its name, when the operation is called."""

from __future__ import annotations

from typing import Any, cast, get_type_hints

import pytest

from asterism.api.operation import Operation
from asterism.api.operations import OPERATIONS
from asterism.api.system import LocalSystem


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_a_function_takes_the_request_of_its_operation_and_returns_the_answer(
    operation: Operation[Any, Any, Any],
) -> None:
    hints = get_type_hints(operation.function, localns={"LocalSystem": LocalSystem})
    assert list(hints) == ["system", "request", "return"]
    assert issubclass(cast(type, operation.request), hints["request"])
    assert hints["return"] == operation.answer
