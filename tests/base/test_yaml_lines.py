"""YAML text becomes plain data with line numbers, and every way in which it cannot is told with its line."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from asterism.base import yaml_lines
from asterism.base.yaml_lines import Block, line_of, read
from asterism.planfile.plan_errors import Mistake


@pytest.fixture(params=["libyaml", "python"], autouse=True)
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything holds with the quick parser and, where PyYAML was built without it, with the slow one."""
    monkeypatch.setattr(yaml_lines, "_Loader", yaml.CSafeLoader if request.param == "libyaml" else yaml.SafeLoader)


def data(text: str) -> Any:
    found, mistakes = read(text)
    assert mistakes == []
    return found


def mistake(text: str) -> Mistake:
    _, [only] = read(text)
    return only


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("1", 1),
        ("-12", -12),
        ("1.5", 1.5),
        ("2e3", 2000.0),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("on", "on"),
        ("no", "no"),
        ("2026-01-01", "2026-01-01"),
        ("1:30", "1:30"),
        ("0755", "0755"),
        (".inf", ".inf"),
        ("1e999", "1e999"),
        ("9" * 400, "9" * 400),
        ('"1"', "1"),
        ("'true'", "true"),
        ("!!str 5", "5"),
        ("[1, a]", [1, "a"]),
        ("{a: 1, b: {c: d}}", {"a": 1, "b": {"c": "d"}}),
    ],
)
def test_values_are_those_of_json(written: str, meant: Any) -> None:
    found = data(f"key: {written}\n")["key"]
    assert found == meant
    assert type(found) is type(meant) or isinstance(found, type(meant) if meant is not None else type(None))


def test_keys_are_text_whatever_they_look_like() -> None:
    assert data("1: a\non: b\ntrue: c\n1.10: d\n") == {"1": "a", "on": "b", "true": "c", "1.10": "d"}


def test_lines_are_remembered() -> None:
    found = data("a: 1\nb:\n  - x\n  - y: 2\n    z: 3\n")
    assert line_of(found, ("a",)) == 1
    assert line_of(found, ("b", 0)) == 3
    assert line_of(found, ("b", 1, "z")) == 5
    assert line_of(found, ("b", 1, "missing")) == 4
    assert line_of(found, ("b", "not an index")) == 2
    assert line_of(found, ()) == 1


def test_an_empty_file_is_nothing() -> None:
    assert read("") == (None, [])
    assert read("# only a remark\n") == (None, [])


def test_a_key_that_is_there_twice_is_told_with_both_lines() -> None:
    found, [only] = read("a: 1\nb: 2\na: 3\n")
    assert only == Mistake(3, "the key 'a' is here twice; the first is in line 1")
    assert found == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: 1\n  b: 2\n", 2),
        ("a: 1\nb: @x\n", 2),
        ("a: 1\nb: *nothing\n", 2),
        ("a: 1\nb: \x01\n", 2),
        ("a: 1\n---\nb: 2\n", 2),
        ("a: 1\nb: !thing x\n", 2),
        ("a: 1\nb: !!set {x}\n", 2),
        ("a: 1\n? [b]\n: 2\n", 2),
        ("a: &a 1\n*a : 2\n", 2),
        ("a: 1\nb: &b [*b]\n", 2),
        ("a: 1\nb: " + "[" * 100 + "\n", 2),
    ],
)
def test_what_is_no_plan_as_yaml_is_told_with_its_line(text: str, line: int) -> None:
    assert mistake(text).line == line


def test_a_bracket_that_is_never_closed_is_told_with_the_line_it_began_in() -> None:
    only = mistake("a: 1\nb: [x,\nc: y\n")
    assert "line 2" in only.text
    assert only.text.startswith("this is not YAML: ")


def test_an_alias_shares_what_it_stands_for() -> None:
    found = data("a: &a {x: 1}\nb: *a\n")
    assert found["b"] is found["a"]
    assert isinstance(found["b"], Block)


def test_aliases_of_aliases_do_not_explode() -> None:
    lines = ["a0: &a0 [x, x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    only = mistake("\n".join(lines))
    assert "more than 10,000,000 values" in only.text


def test_a_million_open_brackets_are_refused_at_once() -> None:
    assert "nested more than" in mistake("a: " + "[" * 1_000_000).text
