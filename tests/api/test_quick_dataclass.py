"""Quick dataclasses behave as those of the standard library."""

from __future__ import annotations

import dataclasses
import inspect
from dataclasses import field
from typing import Any

import pytest
from pydantic import TypeAdapter
from pydantic_core import to_json

from asterism.api import documents
from asterism.api.quick_dataclass import Request


class Terms(Request, kw_only=True):
    reason: str = ""
    words: list[str] = field(default_factory=list)


class Claim(Terms):
    series: str
    issue: int
    lease: float | None = None


QUICK: Any = Claim


@dataclasses.dataclass(frozen=True, kw_only=True)
class StandardTerms:
    reason: str = ""
    words: list[str] = field(default_factory=list)


STANDARD: Any = dataclasses.make_dataclass(
    "Claim", [("series", str), ("issue", int), ("lease", float | None, None)], bases=(StandardTerms,), frozen=True
)

CALLS: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...] = (
    (("a", 1), {}),
    (("a", 1, 2.0), {"reason": "x", "words": ["y"]}),
    (("a",), {"issue": 1}),
    ((), {"series": "a", "issue": 1}),
    (("a",), {}),
    (("a", 1), {"issue": 2}),
    (("a", 1), {"other": 2}),
    (("a", 1, 2.0, "x"), {}),
)


@pytest.mark.parametrize(("values", "named"), CALLS)
def test_a_call_makes_or_refuses_the_same(values: tuple[Any, ...], named: dict[str, Any]) -> None:
    try:
        expected = STANDARD(*values, **named)
    except TypeError:
        with pytest.raises(TypeError, match="Claim"):
            QUICK(*values, **named)
        return
    made = QUICK(*values, **named)
    assert dataclasses.asdict(made) == dataclasses.asdict(expected)
    assert repr(made) == repr(expected)
    assert (made == QUICK(*values, **named), made == expected) == (True, False)
    assert made != dataclasses.replace(made, issue=9)
    assert list(vars(made)) == list(vars(expected))


def test_instances_are_frozen_have_a_hash_and_share_no_default() -> None:
    made = QUICK("a", 1, words=())
    assert hash(made) == hash(QUICK("a", 1, words=()))
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.issue = 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        del made.issue
    assert QUICK("a", 1).words is not QUICK("a", 1).words


def test_the_signature_is_that_of_the_standard_library() -> None:
    quick, standard = inspect.signature(QUICK), inspect.signature(STANDARD)
    assert [(parameter.name, parameter.kind) for parameter in quick.parameters.values()] == [
        (parameter.name, parameter.kind) for parameter in standard.parameters.values()
    ]


def test_a_subclass_has_the_fields_of_its_base() -> None:
    class Longer(documents.Violation):
        more: int = 1
        last: int

    made = Longer(edit=None, rule="a", message="b", last=2)
    assert dataclasses.asdict(made) == {"edit": None, "rule": "a", "message": "b", "more": 1, "last": 2}
    assert made == Longer(edit=None, rule="a", message="b", more=1, last=2)


def test_pydantic_reads_and_writes_them() -> None:
    adapter = TypeAdapter(documents.Page[documents.Violation])
    page = adapter.validate_python({"items": [{"edit": None, "rule": "a", "message": "b", "newer": 1}]})
    assert page == documents.Page(items=[documents.Violation(edit=None, rule="a", message="b")])
    assert to_json(page) == b'{"items":[{"edit":null,"rule":"a","message":"b"}],"next":null,"now":null}'
