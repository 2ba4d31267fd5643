"""Types of options: durations, sizes, pairs, JSON, ages."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from asterism.cli.cli_context import format_size, format_time
from asterism.cli.option_types import duration, json_object, json_value, pair
from asterism.cli.option_types import size as size_of
from tests.cli.command_scenes import Scene


@pytest.mark.parametrize("words", [["monitor", "--every"], ["device", "join", "a", "--every"]], ids=" ".join)
def test_a_monitor_interval_of_zero_is_refused(tmp_path: Path, words: list[str]) -> None:
    result = Scene(tmp_path).made().run(*words, "0")
    assert result.exit_code == 64
    assert "the duration must be above zero." in result.stderr


def test_a_duration_may_have_spaces_around_it() -> None:
    assert duration(" 15m ") == 900
    with pytest.raises(click.BadParameter, match="'5x' is not a valid duration"):
        duration("5x")


@pytest.mark.parametrize(("text", "number"), [("65536", 65536), ("64k", 65536), ("10M", 10 << 20), ("1.5GiB", 3 << 29)])
def test_a_size_is_a_number_and_a_letter(text: str, number: int) -> None:
    assert size_of(text) == number


def test_anything_else_is_no_size() -> None:
    with pytest.raises(click.BadParameter, match="'lots' is not a valid size"):
        size_of("lots")


def test_a_pair_has_a_name_and_may_have_signs_in_its_value() -> None:
    assert pair("a=b=c") == ("a", "b=c")
    assert pair("a=") == ("a", "")
    for text in ("a", "=b"):
        with pytest.raises(click.BadParameter, match="is not NAME=VALUE"):
            pair(text)


def test_json_may_stand_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "given.json").write_text('\ufeff{"a": [1, "é"]}', encoding="utf-8")
    assert json_value(f"@{tmp_path / 'given.json'}") == {"a": [1, "é"]}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{'a': 1}", "it is not JSON: Expecting property name enclosed in double quotes, line 1, column 2"),
        ('{"a": NaN}', "NaN is not JSON"),
        ("[" * 100_000, "it is nested too deep"),
        ("@/no/such/file.json", "/no/such/file.json cannot be read: No such file or directory"),
        ("[1]", "the value is a list, not a JSON object"),
        ("7", "the value is a bare value"),
        ("null", "the value is null"),
    ],
)
def test_input_that_is_not_an_object_is_refused_with_the_reason(text: str, words: str) -> None:
    with pytest.raises(click.BadParameter) as refusal:
        json_object(text)
    assert words in refusal.value.message


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "given.json").write_bytes(b'{"a": "\xff"}')
    with pytest.raises(click.BadParameter, match="it is not text in UTF-8"):
        json_value(f"@{tmp_path / 'given.json'}")


def test_sizes_and_moments_in_words() -> None:
    assert [format_size(number) for number in (12, 64 << 10, 10 << 20, 3 << 30)] == [
        "12 bytes",
        "64 KiB",
        "10 MiB",
        "3 GiB",
    ]
    assert format_time(None) == ""
    assert format_time(1e300) == f"{1e300:.0f}"
