"""SVG: well-formed, self-contained, safe for any text, and every task and line is in it."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asterism.report import DrawnEdge, DrawnTask, Picture, svg
from asterism.report.picture import STATUSES

SPACE = "{http://www.w3.org/2000/svg}"

RELEASE = Picture(
    "release",
    (
        DrawnTask("fetch", "Fetch the sources", "completed"),
        DrawnTask("build", "build", "failed", "exit 2"),
        DrawnTask("alert", "Page someone", "running"),
        DrawnTask("report", "Write a report", "waiting"),
    ),
    (
        DrawnEdge("fetch", "build"),
        DrawnEdge("build", "alert", "failure"),
        DrawnEdge("build", "report", "completion"),
        DrawnEdge("fetch", "report", when="result.size > 1000000 && result.kind == 'full'"),
    ),
)


def parsed(picture: Picture) -> ElementTree.Element:
    return ElementTree.fromstring(svg(picture))


def boxes(root: ElementTree.Element) -> list[ElementTree.Element]:
    return [group for group in root.iter(f"{SPACE}g") if "star" in group.get("class", "").split()]


def lines(root: ElementTree.Element) -> list[ElementTree.Element]:
    return [path for path in root.findall(f"{SPACE}path") if "line" in path.get("class", "").split()]


def test_every_task_is_drawn_in_its_status() -> None:
    drawn = {box.get("data-task"): box.get("class") for box in boxes(parsed(RELEASE))}
    assert drawn == {
        "fetch": "star is-completed",
        "build": "star is-failed",
        "alert": "star is-running",
        "report": "star is-waiting",
    }


def test_every_line_is_drawn_in_its_kind_and_says_what_it_joins() -> None:
    drawn = {line.findtext(f"{SPACE}title"): line.get("class") for line in lines(parsed(RELEASE))}
    assert drawn == {
        "fetch → build": "line on-success",
        "build → alert (on failure)": "line on-failure",
        "build → report (on completion)": "line on-completion",
        "fetch → report (if result.size > 1000000 && result.kind == 'full')": "line on-condition",
    }


def test_a_condition_is_cut_on_its_tag_and_whole_in_its_tooltip() -> None:
    (tag,) = [group for group in parsed(RELEASE).iter(f"{SPACE}g") if group.get("class") == "tag"]
    assert tag.findtext(f"{SPACE}title") == "if result.size > 1000000 && result.kind == 'full'"
    assert tag.findtext(f"{SPACE}text") == "result.size > 1000000 &…"


def test_a_long_name_is_cut_in_its_box_and_whole_in_its_tooltip() -> None:
    name = "a-very-long-name-" * 10
    (box,) = boxes(parsed(Picture("plan", (DrawnTask(name, name),), ())))
    assert (box.findtext(f"{SPACE}title") or "").startswith(name)
    assert len(box.findtext(f"{SPACE}text") or "") == 26


def test_boxes_are_inside_the_sheet_and_do_not_overlap() -> None:
    picture = Picture(
        "wide",
        tuple(DrawnTask(f"t{number}", "some words to read") for number in range(40)),
        tuple(DrawnEdge(f"t{number // 3}", f"t{number}") for number in range(1, 30)),
    )
    root = parsed(picture)
    areas = []
    for box in boxes(root):
        left, top = map(float, re.findall(r"[\d.]+", box.get("transform", "")))
        rect = box.find(f"{SPACE}rect")
        assert rect is not None
        areas.append((left, top, left + float(rect.get("width", "")), top + float(rect.get("height", ""))))
    width, height = float(root.get("width", "")), float(root.get("height", ""))
    for number, (left, top, right, bottom) in enumerate(areas):
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height
        for other in areas[:number]:
            assert right <= other[0] or other[2] <= left or bottom <= other[1] or other[3] <= top


@pytest.mark.parametrize("status", [*STATUSES, "unheard of"])
def test_every_status_can_be_drawn(status: str) -> None:
    (box,) = boxes(parsed(Picture("plan", (DrawnTask("a", "a", status),), ())))
    assert status in (box.findtext(f"{SPACE}title") or "")


def test_an_empty_plan_is_a_drawing_that_says_so() -> None:
    assert "no tasks" in "".join(parsed(Picture("plan", (), ())).itertext())


@given(st.text(), st.text(), st.text(), st.text())
@settings(deadline=None)
def test_any_text_gives_well_formed_markup(name: str, label: str, status: str, condition: str) -> None:
    picture = Picture(label, (DrawnTask(name, label, status, condition), DrawnTask(name + "2", name)), ())
    joined = Picture(label, picture.tasks, (DrawnEdge(name, name + "2", condition, when=condition),))
    assert len(boxes(parsed(joined))) == 2


def test_markup_in_a_name_stays_text() -> None:
    root = parsed(Picture("<b>", (DrawnTask("<script>alert(1)</script>", '"><script>'),), ()))
    assert not list(root.iter(f"{SPACE}script"))
    assert boxes(root)[0].get("data-task") == "<script>alert(1)</script>"


def test_it_refers_to_nothing_outside_itself() -> None:
    text = svg(RELEASE).replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?:|@import|href|src=|url\((?!#)", text)


def test_it_is_drawn_for_light_and_dark() -> None:
    assert "prefers-color-scheme: dark" in svg(RELEASE)


def test_the_same_picture_gives_the_same_text() -> None:
    assert svg(RELEASE) == svg(RELEASE)


@pytest.mark.long
def test_a_deep_chain_can_be_drawn() -> None:
    drawn_tasks = tuple(DrawnTask(f"t{number}", f"t{number}") for number in range(10_000))
    chain = tuple(DrawnEdge(f"t{number}", f"t{number + 1}") for number in range(9_999))
    assert svg(Picture("chain", drawn_tasks, chain)).count('class="box"') == 10_000
