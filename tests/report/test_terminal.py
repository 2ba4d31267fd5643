"""The terminal drawing: every edge can be read back from the glyphs alone, at any width, with any text.

The files under `golden/` hold what a reader sees. When a drawing is meant to change, look at the new one and
replace the file.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from asterism.report import DrawnEdge, DrawnTask, Picture, terminal

GOLDEN = Path(__file__).parent / "golden"
MARKS = "○◌◐●✗⊘⊖?"


def chain() -> Picture:
    statuses = ("completed", "completed", "running", "waiting")
    drawn_tasks = tuple(DrawnTask(f"step-{number}", f"Step {number}", status) for number, status in enumerate(statuses))
    return Picture(
        "chain", drawn_tasks, tuple(DrawnEdge(f"step-{number}", f"step-{number + 1}") for number in range(3))
    )


def diamond() -> Picture:
    return Picture(
        "diamond",
        (
            DrawnTask("fetch", "Fetch sources", "completed"),
            DrawnTask("build", "Build", "completed", "laptop"),
            DrawnTask("lint", "Lint", "failed", "exit 2"),
            DrawnTask("ship", "Ship it", "waiting"),
            DrawnTask("alert", "Page someone", "running"),
        ),
        (
            DrawnEdge("fetch", "build"),
            DrawnEdge("fetch", "lint"),
            DrawnEdge("build", "ship"),
            DrawnEdge("lint", "ship", "completion"),
            DrawnEdge("lint", "alert", "failure"),
            DrawnEdge("build", "alert", when="result.size > 1000000 && result.kind == 'full'"),
        ),
    )


def fan() -> Picture:
    parts = [f"part-{number}" for number in range(10)]
    statuses = ("completed", "running", "pending")
    middle = [DrawnTask(part, part, statuses[number % 3]) for number, part in enumerate(parts)]
    return Picture(
        "fan",
        (DrawnTask("split", "split", "completed"), *middle, DrawnTask("merge", "merge", "waiting")),
        (*(DrawnEdge("split", part) for part in parts), *(DrawnEdge(part, "merge") for part in parts)),
    )


def layered() -> Picture:
    chance = random.Random(7)
    drawn_tasks, lines = [], []
    for layer in range(5):
        for place in range(4):
            name = f"t{layer}.{place}"
            drawn_tasks.append(
                DrawnTask(name, name, ("completed", "completed", "running", "waiting", "waiting")[layer])
            )
            if layer:
                parents = chance.sample(range(4), chance.randint(1, 3))
                lines += [DrawnEdge(f"t{layer - 1}.{parent}", name) for parent in parents]
    return Picture("layered", tuple(drawn_tasks), tuple(lines))


def islands() -> Picture:
    return Picture(
        "islands",
        (
            *chain().tasks,
            *diamond().tasks,
            DrawnTask("alone", "alone", "removed"),
            DrawnTask("far", "一个任务", "cancelled"),
        ),
        (*chain().edges, *diamond().edges),
    )


def large() -> Picture:
    statuses = ["completed"] * 90 + ["failed"] * 5 + ["waiting"] * 205
    drawn_tasks = tuple(DrawnTask(f"t{number}", f"t{number}", status) for number, status in enumerate(statuses))
    lines = tuple(DrawnEdge(f"t{number // 4}", f"t{number}") for number in range(1, 300))
    return Picture("large", drawn_tasks, lines)


SHAPES = {shape.__name__: shape for shape in (chain, diamond, fan, layered, islands, large)}


@pytest.mark.parametrize("name", SHAPES)
def test_the_drawing_is_the_one_that_was_looked_at(name: str) -> None:
    assert terminal(SHAPES[name](), 100).plain + "\n" == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


def test_a_narrow_terminal_gets_a_list() -> None:
    assert terminal(diamond(), 36).plain + "\n" == (GOLDEN / "diamond-narrow.txt").read_text(encoding="utf-8")


def read_back(drawing: str, names: set[str]) -> set[tuple[str, str]]:
    """Follow the strokes of a drawing with nothing but the glyphs: the edges that a reader sees."""
    edges: set[tuple[str, str]] = set()
    owners: dict[int, str] = {}
    above = ""
    for line in drawing.split("\n")[3:]:
        words = line.split()
        name = next((word for word in words if word in names), None)
        cells = line if name is None else line[: line.index(f" {name} ")]
        if name is not None:
            column = next(place for place, glyph in enumerate(cells) if glyph in MARKS)
            joined = [*strokes(cells, column, -1), *strokes(cells, column, 1)]
            if above[column : column + 1] in {*"│├┤┼"}:
                joined.append(column)
            edges |= {(owners[lane], name) for lane in joined}
            owners[column] = name
        above = cells
    return edges


def strokes(cells: str, column: int, step: int) -> list[int]:
    """The lanes that the horizontal stroke from a mark joins, going left or right."""
    joined = []
    place = column + step
    while 0 <= place < len(cells):
        glyph = cells[place]
        passes_by = glyph == "│" and cells[place - 1 : place + 2] == "─│─"
        if glyph in "├╰┤╯┼┴":
            joined.append(place)
        if glyph not in "─┼┴" and not passes_by:
            break
        place += step
    return joined


@pytest.mark.parametrize("name", ["chain", "diamond", "fan", "layered", "islands"])
def test_every_edge_of_the_usual_shapes_can_be_read_back(name: str) -> None:
    picture = SHAPES[name]()
    edges = {(line.source, line.target) for line in picture.edges}
    assert read_back(terminal(picture, 120).plain, {drawn_task.id for drawn_task in picture.tasks}) == edges


@st.composite
def small_pictures(draw: st.DrawFn) -> Picture:
    count = draw(st.integers(1, 12))
    possible = [(source, target) for target in range(count) for source in range(target)]
    edges = draw(st.lists(st.sampled_from(possible), unique=True)) if possible else []
    status = st.sampled_from(["pending", "failed", "running"])
    statuses = draw(st.lists(status, min_size=count, max_size=count))
    return Picture(
        "plan",
        tuple(DrawnTask(f"t{task}", "label", chosen) for task, chosen in enumerate(statuses)),
        tuple(DrawnEdge(f"t{source}", f"t{target}") for source, target in edges),
    )


@given(small_pictures())
@settings(deadline=None)
def test_every_edge_of_any_graph_can_be_read_back(picture: Picture) -> None:
    edges = {(line.source, line.target) for line in picture.edges}
    assert read_back(terminal(picture, 200).plain, {drawn_task.id for drawn_task in picture.tasks}) == edges


@given(small_pictures(), st.integers(1, 100))
@settings(deadline=None)
def test_no_line_is_wider_than_the_terminal(picture: Picture, width: int) -> None:
    assert all(cell_len(line) <= width for line in terminal(picture, width).plain.split("\n"))


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("width", [1, 20, 50, 80])
def test_the_usual_shapes_fit_too(name: str, width: int) -> None:
    assert all(cell_len(line) <= width for line in terminal(SHAPES[name](), width).plain.split("\n"))


@pytest.mark.parametrize("width", [36, 120])
def test_what_a_line_asks_for_is_written_out(width: int) -> None:
    drawing = terminal(diamond(), width).plain
    assert "lint (on failure)" in drawing
    assert "lint (on completion)" in drawing
    assert "build (if result.size" in drawing


def test_no_control_character_reaches_the_terminal() -> None:
    picture = Picture("a\x1b[2J", (DrawnTask("b\x1b]0;x\x07", "c\nd\re", "failed", "f\x9bg"),), ())
    (*_, row) = terminal(picture, 80).plain.split("\n")
    assert row.split() == ["✗", "b·]0;x·", "c", "d", "e", "failed", "[f·g]"]
    assert "\x1b" not in terminal(picture, 80).plain


def test_markup_of_the_terminal_library_stays_text() -> None:
    console = Console(width=80, file=None)
    with console.capture() as capture:
        console.print(terminal(Picture("[red]", (DrawnTask("[bold]x[/bold]", "[link]"),), ()), 80))
    assert "[bold]x[/bold]  [link]" in capture.get()


def test_statuses_have_colours_on_a_colour_terminal() -> None:
    console = Console(width=80, force_terminal=True, color_system="standard", no_color=False)
    with console.capture() as capture:
        console.print(terminal(diamond(), 80))
    assert "\x1b[1;31m✗" in capture.get()
    assert "\x1b[32m●" in capture.get()


def test_a_deep_chain_is_summed_up() -> None:
    drawn_tasks = tuple(DrawnTask(f"t{number}", "label") for number in range(10_000))
    links = tuple(DrawnEdge(f"t{number}", f"t{number + 1}") for number in range(9_999))
    drawing = terminal(Picture("deep", drawn_tasks, links), 80).plain.split("\n")
    assert drawing[0] == "deep  10,000 tasks, 9,999 dependencies"
    assert len(drawing) < 50
    assert drawing[-1].split()[:2] == ["9,751-10,000", "250"]


def test_an_empty_plan_has_only_its_heading() -> None:
    assert terminal(Picture("nothing", (), ()), 80).plain == "nothing  0 tasks, 0 dependencies"


def test_the_same_picture_gives_the_same_drawing() -> None:
    assert terminal(layered(), 100) == terminal(layered(), 100)
