"""The number of values of a JSON text, whatever its strings have and wherever it is cut."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from asterism.base.json_count import JsonCount

texts = st.text(alphabet='ab"\\,[{\n é', max_size=8)
values = st.recursive(
    st.none() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


def structure(value: Any) -> int:
    """One for each list and object, and one for each value in it but the first."""
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        return 0
    return 1 + max(len(value) - 1, 0) + sum(map(structure, value))


@given(values, st.integers(min_value=0))
@example(["\\", '"', {}], 0)
@example(['a\\"', []], 3)
def test_brackets_and_commas_outside_of_strings_are_counted_however_the_text_is_cut(value: Any, seed: int) -> None:
    text = json.dumps(value, ensure_ascii=bool(seed % 2), indent=seed % 3 or None).encode()
    cuts = sorted(random.Random(seed).sample(range(len(text) + 1), min(3, len(text))))
    count, so_far = JsonCount(), 0
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        so_far = count.add(text[start:end])
    assert so_far == structure(value)


@pytest.mark.parametrize(
    "parts", [[b'data: [1,2,3]\n\ndata: [1]\n: "\n'], [b"data: [1,", b"2,3]\n\nda", b'ta: [1]\n: "\n']]
)
def test_lines_are_counted_one_by_one(parts: list[bytes]) -> None:
    lines = JsonCount(lines=True)
    assert max(map(lines.add, parts)) == 3
    assert lines.add(b"data: [[[[[") == 5
