"""YAML text becomes plain data with line numbers, and every error names its line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from asterism.base import yaml_lines
from asterism.base.yaml_lines import Mistake, YamlMapping, line_of, parse_yaml, read_text


@pytest.fixture(params=["libyaml", "python"], autouse=True)
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything holds with the quick parser and, where PyYAML was built without it, with the slow one."""
    monkeypatch.setattr(yaml_lines, "_Loader", yaml.CSafeLoader if request.param == "libyaml" else yaml.SafeLoader)


def data(text: str) -> Any:
    document, mistakes = parse_yaml(text)
    assert mistakes == []
    return document


def mistake(text: str) -> Mistake:
    _, [only] = parse_yaml(text)
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
    value = data(f"key: {written}\n")["key"]
    assert value == meant
    assert type(value) is type(meant) or isinstance(value, type(meant) if meant is not None else type(None))


@pytest.mark.parametrize("tag", ["!!int 5", "!!float 5", "!!bool true", "!!null ~", "!!binary aGk=", "!mine 5", "! 5"])
def test_a_tag_that_is_not_text_or_a_collection_is_a_mistake(tag: str) -> None:
    assert "has no meaning here" in mistake(f"a: 1\nb: {tag}\n").text
    assert mistake(f"a: 1\nb: {tag}\n").line == 2


def test_a_format_may_read_plain_scalars_by_its_own_rules() -> None:
    assert parse_yaml("a: [~, '~', x]", plain=str.upper) == ({"a": ["~", "~", "X"]}, [])


def test_a_format_may_accept_every_standard_tag() -> None:
    text = "a: [!!bool true, !!int 5, !!int '5', !!str 5, ! x, !!map {k: 1}]"
    assert parse_yaml(text, any_standard_tag=True) == ({"a": [True, 5, "5", "5", "x", {"k": 1}]}, [])
    assert "'!mine'" in parse_yaml("a: !mine x", any_standard_tag=True)[1][0].text


def test_the_depth_can_be_limited() -> None:
    assert parse_yaml("a: [[x]]", max_depth=3) == ({"a": [["x"]]}, [])
    assert parse_yaml("a:\n- [[x]]", max_depth=3)[1] == [Mistake(2, "this is nested too deep: 3 levels are allowed")]


def test_text_is_read_from_a_file_in_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1")
    assert read_text(path) == ("a: 1", [])
    assert read_text(path, max_bytes=7) == ("a: 1", [])
    assert read_text(path, max_bytes=6) == ("", [Mistake(1, "the file is larger than 6 bytes")])
    path.write_bytes(b"a: 1\nb: \xff")
    assert read_text(path) == ("", [Mistake(2, "the file is not text in UTF-8")])


def test_keys_are_text_whatever_they_look_like() -> None:
    assert data("1: a\non: b\ntrue: c\n1.10: d\n") == {"1": "a", "on": "b", "true": "c", "1.10": "d"}


def test_lines_are_remembered() -> None:
    document = data("a: 1\nb:\n  - x\n  - y: 2\n    z: 3\n")
    assert line_of(document, ("a",)) == 1
    assert line_of(document, ("b", 0)) == 3
    assert line_of(document, ("b", 1, "z")) == 5
    assert line_of(document, ("b", 1, "missing")) == 4
    assert line_of(document, ("b", "not an index")) == 2
    assert line_of(document, ()) == 1


def test_an_empty_file_is_nothing() -> None:
    assert parse_yaml("") == (None, [])
    assert parse_yaml("# only a remark\n") == (None, [])


def test_a_key_that_is_there_twice_is_told_with_both_lines() -> None:
    document, [only] = parse_yaml("a: 1\nb: 2\na: 3\n")
    assert only == Mistake(3, "the key 'a' is here twice; the first is in line 1")
    assert document == {"a": 1, "b": 2}


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
    document = data("a: &a {x: 1}\nb: *a\n")
    assert document["b"] is document["a"]
    assert isinstance(document["b"], YamlMapping)


def test_aliases_of_aliases_do_not_explode() -> None:
    lines = ["a0: &a0 [x, x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    only = mistake("\n".join(lines))
    assert "more than 10,000,000 values" in only.text


def test_aliases_of_long_texts_do_not_explode() -> None:
    for long in (f"[{'x' * 20_000}]", f"{{{'x' * 1_000}: 1}}"):
        lines = [f"a0: &a0 {long}"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 6)]
        assert mistake("\n".join(lines)).text == "the aliases stand for more than 67,108,864 characters"
    document = data(f"a: &a {'x' * 20_000}\nb: [{', '.join(['*a'] * 800)}]\n")
    assert len(document["b"]) == 800


def test_a_million_open_brackets_are_refused_at_once() -> None:
    assert "nested too deep: 50 levels are allowed" in mistake("a: " + "[" * 1_000_000).text
