"""Requests and documents are records."""

from __future__ import annotations

import pytest

from asterism.api import documents
from asterism.api.local.problem_statuses import InvalidRequest, read_request
from asterism.api.operations import OPERATIONS, ServerOperations
from asterism.api.plan_operations import ListPlans
from asterism.api.run_operations import OneRun
from asterism.api.series_operations import ClaimSeries
from asterism.core.record import decode, decode_json, encode_json, schemas


def test_a_subclass_has_the_fields_of_its_base() -> None:
    class Longer(documents.StoryEntry):
        more: int = 1
        last: int

    made = Longer(at=1.0, what="a", why="b", last=2)
    assert encode_json(made) == b'{"at":1.0,"what":"a","why":"b","task":null,"traceback":null,"more":1,"last":2}'
    assert made == Longer(at=1.0, what="a", why="b", more=1, last=2)


def test_a_request_is_frozen() -> None:
    request = OneRun(run="7c")
    with pytest.raises(AttributeError):
        request.run = "8"  # type: ignore[misc]


def test_a_client_ignores_fields_that_it_does_not_know() -> None:
    page = documents.Page(items=[documents.Violation(edit=None, rule="a", message="b")])
    text = b'{"items":[{"edit":null,"rule":"a","message":"b","newer":1}],"next":null,"newer":2}'
    assert decode_json(documents.Page[documents.Violation], text) == page
    assert decode(documents.Page[documents.Violation], {"items": [*page.items]}) == page


def test_all_mistakes_of_a_request_are_told() -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_request(ClaimSeries, {"series": "", "isue": 1, "lease": "x", "dry_run": "true"})
    assert [(mistake.place, mistake.kind) for mistake in refused.value.mistakes] == [
        (("series",), "invalid"),
        (("lease",), "invalid"),
        (("isue",), "unknown"),
        (("issue",), "missing"),
    ]


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "1e400"])
def test_a_number_of_an_address_is_finite(number: str) -> None:
    with pytest.raises(InvalidRequest):
        read_request(ListPlans, {"since": number})


def test_a_secret_is_not_part_of_the_repr() -> None:
    assert "s3cret" not in repr(documents.LoginCode(code="s3cret", expires_at=1.0))


def test_every_operation_has_a_schema() -> None:
    server = [value for value in vars(ServerOperations).values() if hasattr(value, "answer")]
    for operation in (*OPERATIONS.values(), *server):
        [request, _], definitions = schemas([operation.request, operation.answer], "#/{name}")
        assert definitions[request["$ref"].removeprefix("#/")]["additionalProperties"] is False
