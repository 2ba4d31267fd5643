"""The page about runs names every state, event, reason, function and field there is, with its default."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import pytest

from asterism.core.record import defaults_of
from asterism.core.run import transitions
from asterism.core.run.placement import STRATEGIES
from asterism.core.run.run import OWNED, REASONS, TRANSITIONS, Assignment, Run, RunStatus, state_diagram
from asterism.core.run.work import MAX_NUMBER, Workflow
from tests.docs.docs_pages import blocks
from tests.docs.test_reference import first_names, page, rows, section

RUNS = page("docs/reference/runs.md")
FUNCTIONS = [name for name, _ in inspect.getmembers(transitions, inspect.isfunction) if not name.startswith("_")]


def written(value: Any) -> str:
    """A default as the page writes it."""
    plain = str(value) if isinstance(value, StrEnum) else dict(value) if isinstance(value, Mapping) else value
    return repr(plain).replace("'", '"')


def test_the_diagram_is_that_of_the_table() -> None:
    [drawn] = [block.text for block in blocks(RUNS) if block.language == "mermaid"]
    assert drawn == state_diagram(), "put the text of run.state_diagram() into docs/reference/runs.md"


def test_every_state_is_listed_with_its_owner() -> None:
    told = {name.strip("`"): owned for name, _, owned in rows(section(RUNS, "## States"))}
    assert list(told) == [str(status) for status in RunStatus]
    assert {name for name, owned in told.items() if owned == "yes"} == OWNED


def test_every_event_is_told_with_functions_that_exist() -> None:
    told = {row[0].strip("`"): row[1] for row in rows(section(RUNS, "## Events")) if len(row) == 2}
    assert list(told) == list(TRANSITIONS)
    for event, through in told.items():
        named = re.findall(r"`(\w+)`", through)
        assert named, event
        assert not [name for name in named if name not in FUNCTIONS], event


def test_every_function_is_told() -> None:
    told = [row[0].strip("`") for row in rows(section(RUNS, "## Events")) if len(row) == 3]
    functions = [getattr(transitions, name) for name in FUNCTIONS]
    changes = [function for function in functions if inspect.signature(function).return_annotation == "Run"]
    assert sorted(told) == sorted(
        function.__name__ for function in changes if function.__module__ == transitions.__name__
    )


def test_who_speaks_is_who_shows_a_grant() -> None:
    told = {row[0].strip("`"): row[1] for row in rows(section(RUNS, "## Events")) if len(row) == 3}
    shows = {name for name in told if "grant" in inspect.signature(getattr(transitions, name)).parameters}
    assert {name for name, who in told.items() if who == "the owner"} == shows


def test_every_reason_is_told() -> None:
    assert [row[0].strip("`") for row in rows(section(RUNS, "## Reasons"))] == list(REASONS)
    assert not [name for name in Assignment._fields if f"`{name}`" not in section(RUNS, "## Reasons")]
    assert not [name for name in transitions.RELEASE_REASONS if f"`{name}`" not in section(RUNS, "## Events")]


def test_the_marks_are_fields_of_a_run() -> None:
    assert first_names(section(RUNS, "## Marks")) < {*Run.__struct_fields__}


@pytest.mark.parametrize("kind", [Run, Workflow])
def test_every_field_is_told_with_its_default(kind: Any) -> None:
    told = {row[0].strip("`"): row[1].strip("`") for row in rows(section(RUNS, f"## {kind.__name__}"))}
    assert list(told) == [*kind.__struct_fields__]
    defaults = defaults_of(kind)
    for name in kind.__struct_fields__:
        assert told[name] == (written(defaults[name]) if name in defaults else "required"), name


def test_what_follows_from_the_fields_is_told() -> None:
    named = [name for name, value in vars(Run).items() if isinstance(value, property)]
    assert not [name for name in named if f"`run.{name}`" not in section(RUNS, "## Run")]


def test_the_limits_are_told() -> None:
    told = section(RUNS, "## Workflow")
    assert f"greater than 0 and at most {MAX_NUMBER:,}" in told
    assert f"from 0 to {MAX_NUMBER:,}" in told
    assert not [name for name in STRATEGIES if f"`{name}`" not in told]
