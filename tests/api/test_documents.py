"""Requests and documents are frozen dataclasses, also for pydantic."""

from __future__ import annotations

import dataclasses

import pytest
from pydantic import TypeAdapter
from pydantic_core import to_json

from asterism.api import documents
from asterism.api.run_operations import OneRun


def test_a_subclass_has_the_fields_of_its_base() -> None:
    class Longer(documents.Violation):
        more: int = 1
        last: int

    made = Longer(edit=None, rule="a", message="b", last=2)
    assert dataclasses.asdict(made) == {"edit": None, "rule": "a", "message": "b", "more": 1, "last": 2}
    assert made == Longer(edit=None, rule="a", message="b", more=1, last=2)


def test_a_request_is_frozen() -> None:
    request = OneRun(run="7c")
    with pytest.raises(dataclasses.FrozenInstanceError):
        request.run = "8"  # type: ignore[misc]


def test_pydantic_reads_and_writes_them() -> None:
    adapter = TypeAdapter(documents.Page[documents.Violation])
    page = adapter.validate_python({"items": [{"edit": None, "rule": "a", "message": "b", "newer": 1}]})
    assert page == documents.Page(items=[documents.Violation(edit=None, rule="a", message="b")])
    assert to_json(page) == b'{"items":[{"edit":null,"rule":"a","message":"b"}],"next":null,"now":null}'
