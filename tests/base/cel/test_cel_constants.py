"""Names of an expression replaced by constants: the value is the same as with the names."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asterism.base.cel.cel_values import InvalidExpression
from asterism.base.expressions import names_used, select, with_constants

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=2), inner, max_size=3),
    max_leaves=6,
)


@given(VALUES)
def test_a_constant_has_the_value_that_the_name_had(value: Any) -> None:
    names = {"params": {"x": value}, "item": value}
    for text in ("[params.x, item, result]", '{"a": params.x}.a', "params['x']", "item"):
        assert select(with_constants(text, names), {"result": 1}) == select(text, {**names, "result": 1})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("result.params.x == params.x", "result.params.x == 1"),
        ("'params.x' + \"item\"", "'params.x' + \"item\""),
        ("result.map(n, n + params.x)", "result.map(n, n + 1)"),
        ("params.x - item", "1 - (-2)"),
        ("item.size()", "(-2).size()"),
        ("items == item", "items == (-2)"),
        ("has(result.item)", "has(result.item)"),
        ("params", '{"x": 1}'),
        ("// params.x\nparams.x", "// params.x\n1"),
    ],
)
def test_only_the_names_themselves_are_replaced(text: str, expected: str) -> None:
    assert with_constants(text, {"params": {"x": 1}, "item": -2}) == expected


def test_an_unknown_parameter_and_text_that_is_no_expression() -> None:
    with pytest.raises(InvalidExpression, match=r"there is no params\.y; there is x"):
        with_constants("params.y", {"params": {"x": 1}})
    with pytest.raises(InvalidExpression):
        with_constants("'", {"params": {}})
    assert names_used("params.x == item", ["item", "index"]) == {"item"}
    assert names_used("'", ["item"]) == set()
