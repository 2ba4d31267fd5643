"""The number of values of a JSON text, whatever its strings have and wherever it is cut."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from asterism.base.strict_json import JsonCount

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


def most(count: JsonCount, *parts: bytes) -> int:
    return max(map(count.add, parts))


@pytest.mark.parametrize(
    "parts", [[b'data: [1,2,3]\n\ndata: [1]\n: "\n'], [b"data: [1,", b"2,3]\n\nda", b'ta: [1]\n: "\n']]
)
def test_events_are_counted_one_by_one(parts: list[bytes]) -> None:
    count = JsonCount(events=True)
    assert most(count, *parts) == 3
    assert count.add(b"\ndata: [[[[[") == 5


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r", "\u2028".encode(), "\x85".encode(), b"\x0b", b"\x1e"])
@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_the_lines_of_one_event_are_counted_together(end: bytes, size: int) -> None:
    """A comment with a quotation mark between them hides nothing."""
    text = (b"data: [" + end + b': "' + end) * 50
    parts = [text[start : start + size] for start in range(0, len(text), size)]
    assert most(JsonCount(events=True), *parts) == 50


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_an_empty_line_ends_an_event(end: bytes, size: int) -> None:
    text = (b'data: {"a": "' + "é\u2027".encode() + b'"}' + end + end) * 50
    parts = [text[start : start + size] for start in range(0, len(text), size)]
    assert most(JsonCount(events=True), *parts) == 1


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32"])
def test_json_in_another_encoding_hides_nothing(encoding: str) -> None:
    assert JsonCount().add(("∀" + "[" * 50).encode(encoding)) >= 50
