"""Tables of text, cut to a width."""

from __future__ import annotations

import io
import sys

import pytest
from rich.text import Text

from asterism.cli.tables import Column, print_lines, table

COLUMNS = (
    Column("NAME", least=4),
    Column("STATE"),
    Column("AGE", right=True),
    Column("NOTE", least=6, needed=False),
    Column("EMPTY", needed=False),
)
ROWS = [
    ["kitchen-pc", Text("ready"), "3 s", "a rather long note", ""],
    ["数据库数据库", Text("silent"), "12 min", "", ""],
]


def shown(width: int | None) -> list[str]:
    return [line.plain for line in table(COLUMNS, ROWS, width)]


def test_without_a_width_nothing_is_cut_and_empty_columns_are_left_out() -> None:
    assert shown(None) == [
        "NAME          STATE      AGE  NOTE",
        "kitchen-pc    ready      3 s  a rather long note",
        "数据库数据库  silent  12 min",
    ]


def test_the_widest_columns_that_may_be_cut_are_cut() -> None:
    assert shown(40) == [
        "NAME         STATE      AGE  NOTE",
        "kitchen-pc   ready      3 s  a rather l…",
        "数据库数据…  silent  12 min",
    ]


def test_optional_columns_are_left_out_before_the_rest_gets_too_narrow() -> None:
    assert shown(22) == [
        "NAME    STATE      AGE",
        "kitch…  ready      3 s",
        "数据 …  silent  12 min",
    ]


@pytest.mark.parametrize("width", range(1, 60))
def test_no_line_is_longer_than_the_width(width: int) -> None:
    assert all(line.cell_len <= width for line in table(COLUMNS, ROWS, width))


def test_what_a_terminal_would_act_upon_is_made_harmless() -> None:
    [_, line] = table((Column("A"),), [["a\x1b[2Jb\nc"]])
    assert line.plain == "a·[2Jb c"


def test_a_table_without_rows_has_its_titles() -> None:
    assert [line.plain for line in table(COLUMNS, [], 80)] == ["NAME  STATE  AGE"]


@pytest.mark.parametrize("width", range(1, 60))
def test_a_name_is_cut_in_the_middle_to_the_width_there_is(width: int) -> None:
    columns = (Column("NAME", least=4, name=True), Column("STATE"))
    rows = [["backup-of-the-kitchen-2026-11-16", Text("ready")], ["短い名前短い名前短い名前", Text("ready")]]
    lines = table(columns, rows, width)
    assert all(line.cell_len <= width for line in lines)
    if 16 <= width < 38:
        assert lines[1].plain.startswith("bac")
        assert "-16  ready" in lines[1].plain
        assert "…" in lines[1].plain


@pytest.mark.parametrize("stream", ["closed", "abandoned"])
def test_a_list_does_not_fail_without_a_reader(stream: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Abandoned(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", None if stream == "closed" else Abandoned())
    print_lines(lambda width: [Text("a line"), Text("another")])
