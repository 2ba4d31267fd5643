"""The list of tasks in a terminal: every dependency is in it, at any width, with any text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from asterism.report import DrawnEdge, DrawnTask, Picture, terminal
from asterism.report.terminal import DEEPEST, MOST_TASKS, list_lines


def diamond() -> Picture:
    return Picture(
        "diamond",
        (
            DrawnTask("fetch", "Fetch sources", "completed"),
            DrawnTask("build", "Build", "completed", "laptop"),
            DrawnTask("lint", "Lint", "failed", "exit 2"),
            DrawnTask("ship", "Ship it", "waiting"),
            DrawnTask("alert", "Page someone", "running"),
            DrawnTask("notes", "notes", "pending"),
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


def test_the_list_is_the_one_that_was_looked_at() -> None:
    assert terminal(diamond(), 100).plain.splitlines() == [
        "diamond  6 tasks, 6 dependencies",
        "1 failed, 1 running, 2 completed, 1 waiting, 1 pending",
        "",
        "● fetch      completed  Fetch sources",
        "  ● build    completed  Build  [laptop]",
        "    ◌ ship   waiting    Ship it  ← lint (on completion)",
        "  ✗ lint     failed     Lint  [exit 2]",
        "    ◐ alert  running    ← lint (on failure), build (if result.size > 1000000 && result.kind…)",
        "○ notes      pending",
    ]
    narrow = terminal(diamond(), 40).plain
    assert "    ◌ ship   waiting    ← lint (on comp…" in narrow


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
def test_every_dependency_can_be_read_back(picture: Picture) -> None:
    """By the indentation: the task that a line stands below; and by name."""
    edges: set[tuple[str, str]] = set()
    above: list[str] = []
    for line in terminal(picture, 200).plain.splitlines()[3:]:
        depth = (len(line) - len(line.lstrip())) // 2
        words, _, named = line.partition("← ")
        task = words.split()[1]
        if depth:
            edges.add((above[depth - 1], task))
        above[depth:] = [task]
        edges |= {(source, task) for source in named.split(", ") if source}
    assert edges == {(edge.source, edge.target) for edge in picture.edges}


@given(small_pictures(), st.integers(1, 100))
@settings(deadline=None)
def test_no_line_is_wider_than_the_terminal(picture: Picture, width: int) -> None:
    assert all(cell_len(line) <= width for line in terminal(picture, width).plain.split("\n"))


@pytest.mark.parametrize("width", [1, 20, 50, 80])
def test_other_letters_fit_too(width: int) -> None:
    picture = Picture("任务", (*diamond().tasks, DrawnTask("一个任务" * 20, "任务" * 40, "cancelled")), diamond().edges)
    assert all(cell_len(line) <= width for line in terminal(picture, width).plain.split("\n"))


def test_no_control_character_reaches_the_terminal() -> None:
    picture = Picture("a\x1b[2J", (DrawnTask("b\x1b]0;x\x07", "c\nd\re", "failed", "f\x9bg"),), ())
    (*_, row) = terminal(picture, 80).plain.split("\n")
    assert row.split() == ["✗", "b·]0;x·", "failed", "c", "d", "e", "[f·g]"]
    assert "\x1b" not in terminal(picture, 80).plain


def test_markup_of_the_terminal_library_stays_text() -> None:
    console = Console(width=80, file=None)
    with console.capture() as capture:
        console.print(terminal(Picture("[red]", (DrawnTask("[bold]x[/bold]", "[link]"),), ()), 80))
    assert "[bold]x[/bold]  pending  [link]" in capture.get()


def test_statuses_have_colours_on_a_colour_terminal() -> None:
    console = Console(width=80, force_terminal=True, color_system="standard", no_color=False)
    with console.capture() as capture:
        console.print(terminal(diamond(), 80))
    assert "\x1b[1;31m✗" in capture.get()
    assert "\x1b[32m●" in capture.get()


def test_a_deep_chain_is_indented_to_a_depth_and_then_names_what_it_follows() -> None:
    tasks = tuple(DrawnTask(f"t{number}", "") for number in range(DEEPEST + 3))
    links = tuple(DrawnEdge(f"t{number}", f"t{number + 1}") for number in range(DEEPEST + 2))
    lines = terminal(Picture("deep", tasks, links), 120).plain.splitlines()[3:]
    assert [len(line) - len(line.lstrip()) for line in lines] == [2 * min(number, DEEPEST) for number in range(15)]
    assert [number for number, line in enumerate(lines) if line.endswith(f"← t{number - 1}")] == [13, 14]


def test_of_a_large_plan_what_has_completed_is_left_out_first() -> None:
    statuses = ["completed"] * 900 + ["failed"] * 5 + ["waiting"] * 205
    tasks = tuple(DrawnTask(f"t{number}", "", status) for number, status in enumerate(statuses))
    links = tuple(DrawnEdge(f"t{number // 4}", f"t{number}") for number in range(1, len(tasks)))
    lines = terminal(Picture("large", tasks, links), 100).plain.splitlines()
    assert len(lines) == MOST_TASKS + 4
    assert lines[-1] == "and 910 more tasks: 900 completed, 10 waiting"
    assert sum(" failed" in line for line in lines[3:]) == 5
    assert all("← t" in line for line in lines[3:-1]), "what a task stands below is not in the list, so it is named"
    done = Picture("done", tuple(DrawnTask(f"t{number}", "", "completed") for number in range(300)), ())
    assert terminal(done, 100).plain.splitlines()[-1] == "and 100 more tasks: 100 completed"


def test_ten_thousand_tasks_in_a_row_are_no_danger() -> None:
    tasks = tuple(DrawnTask(f"t{number}", "label") for number in range(10_000))
    links = tuple(DrawnEdge(f"t{number}", f"t{number + 1}") for number in range(9_999))
    assert list_lines(Picture("deep", tasks, links))[-1].depth == 9_999


def test_an_empty_plan_has_only_its_heading() -> None:
    assert terminal(Picture("nothing", (), ()), 80).plain == "nothing  0 tasks, 0 dependencies"


@pytest.mark.parametrize(
    ("tasks", "edges", "message"),
    [
        ("abc", ["ab", "bc", "cb"], "form a cycle: "),
        ("a", ["aa"], "form a cycle: a → a"),
        ("a", ["az"], "'z', which is not in the picture"),
        ("aa", [], "same id"),
    ],
)
def test_a_picture_that_is_not_a_graph_is_refused(tasks: str, edges: list[str], message: str) -> None:
    picture = Picture("plan", tuple(DrawnTask(task, "") for task in tasks), tuple(DrawnEdge(*edge) for edge in edges))
    with pytest.raises(ValueError, match=message):
        terminal(picture, 80)
