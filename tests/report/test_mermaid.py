"""Mermaid text: safe ids, labels that cannot be mistaken for syntax, a class for each status."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asterism.report import DrawnEdge, DrawnTask, Picture, mermaid
from asterism.report.picture import STATUSES


def test_a_small_plan_reads_as_expected() -> None:
    picture = Picture(
        "release",
        (
            DrawnTask("fetch", "Fetch sources", "completed"),
            DrawnTask("build", "build", "failed"),
            DrawnTask("alert", "alert"),
        ),
        (
            DrawnEdge("fetch", "build"),
            DrawnEdge("build", "alert", "failure"),
            DrawnEdge("fetch", "alert", when="size > 3"),
        ),
    )
    text = mermaid(picture).splitlines()
    assert text[:10] == [
        "---",
        'title: "release"',
        "---",
        "flowchart LR",
        '  n0["fetch<br/>Fetch sources"]:::completed',
        '  n1["build"]:::failed',
        '  n2["alert"]:::pending',
        "  n0 --> n1",
        '  n1 -->|"on failure"| n2',
        '  n0 -->|"if size #62; 3"| n2',
    ]
    assert [line.split()[1] for line in text if "classDef" in line] == list(STATUSES)
    assert [line.split()[1] for line in text if "linkStyle" in line] == ["1", "2"]


@pytest.mark.parametrize(
    ("name", "escaped"),
    [
        ("build-x86.step_2", "build-x86.step_2"),
        ("<script>", "#60;script#62;"),
        ('say "hi"', "say #34;hi#34;"),
        ("1. first", "1#46; first"),
        ("- item", "#45; item"),
        ("a_b_ **c**", "a_b#95; #42;#42;c#42;#42;"),
        ("`code`", "#96;code#96;"),
        ("#35;", "#35;35#59;"),
        ("two\nlines", "two lines"),
        ("\x1b[31m", "#183;#91;31m"),
        ("größe 大小", "größe 大小"),
    ],
)
def test_labels_are_escaped(name: str, escaped: str) -> None:
    assert f'  n0["{escaped}"]:::pending' in mermaid(Picture("plan", (DrawnTask(name, name),), ())).splitlines()


@given(st.text(), st.text(), st.text())
@settings(deadline=None)
def test_any_text_stays_inside_its_quotes(name: str, label: str, condition: str) -> None:
    drawn_tasks = (DrawnTask(name, label, condition), DrawnTask(name + "2", label))
    lines = mermaid(Picture(label, drawn_tasks, (DrawnEdge(name, name + "2", when=condition),))).split("\n")
    assert lines[0] == lines[2] == "---"
    assert re.fullmatch(r'  n0\["[^"\[\]{}<>|`]*(<br/>[^"\[\]{}<>|`]*)?"\]:::pending', lines[4])
    assert re.fullmatch(r'  n0 -->\|"if [^"|<>`]*"\| n1', lines[6])


def test_an_empty_plan_is_a_flowchart() -> None:
    assert "flowchart LR\n" in mermaid(Picture("plan", (), ()))


def test_a_cycle_is_refused() -> None:
    with pytest.raises(ValueError, match="cycle"):
        mermaid(Picture("plan", (DrawnTask("a", "a"), DrawnTask("b", "b")), (DrawnEdge("a", "b"), DrawnEdge("b", "a"))))
