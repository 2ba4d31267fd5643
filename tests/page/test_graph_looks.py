"""What the graph draws, as geometry: no two boxes overlap, nothing that is collapsed leaves a hole, and every name
that is drawn can be read. Pictures would differ with the fonts of a machine; these facts do not."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from asterism import Constellation, EditBatch, Task
from tests.long_tests import rest_long
from tests.page.browser_scenes import DESKTOP, PHONE, chromium, needs_chromium, opened, serious_findings
from tests.page.plan_server import PlanScene, served
from tests.page.sized_scenes import large_scene, middle_scene, small_scene

pytestmark = needs_chromium

WIDTH, HEIGHT = 204, 46
COLUMN, ROW = 252, 64
SMALLEST = 11.0
"""Pixels of a letter."""

DRAW = """async ([view, collapsed, size]) => {
    const { layoutOf } = await import("/page/layout.js");
    const { drawing } = await import("/page/graph_model.js");
    const { overview } = await import("/page/graph_overview.js");
    const model = drawing(view, layoutOf(view), { collapsed: new Set(collapsed) });
    const ids = (block) => ({ ...block, members: block.members.map((box) => box.id) });
    const plain = ({ boxes, blocks }) => ({ boxes: [...boxes.values()], blocks: [...blocks.values()].map(ids) });
    return { tasks: plain(model), overview: plain(overview(model, size)) };
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


def random_plan(seed: int) -> Constellation:
    """Layers of very different widths, some of whose tasks are twins, some with long edges."""
    chance, plan = random.Random(seed), Constellation("any")
    layers: list[list[str]] = []
    for depth in range(chance.randrange(2, 9)):
        layer = [
            f"{chance.choice(['load', 'clean', 'run'])}-{depth}-{turn}" for turn in range(chance.choice([1, 3, 14, 40]))
        ]
        twins = chance.random() < 0.5
        above = layers[chance.randrange(len(layers))] if layers and chance.random() < 0.3 else (layers or [[]])[-1]
        for task in dict.fromkeys(layer):
            plan.add(Task(task, shell="true"), after=above[:2] if twins else chance.sample(above, min(2, len(above))))
        layers.append(list(dict.fromkeys(layer)))
    return plan


def drawn(plan: Constellation, collapsed: list[str], size: tuple[int, int]) -> Any:
    """The arguments of DRAW."""
    view = PlanScene(plan).view()
    for task in view["tasks"]:
        task["group"] = "cleaned" if task["id"].startswith("clean-1") else None
    return [view, collapsed, {"width": size[0], "height": size[1]}]


def overlaps(boxes: list[Any]) -> list[tuple[str, str]]:
    found = []
    for place, box in enumerate(boxes):
        for other in boxes[place + 1 :]:
            if abs(box["x"] - other["x"]) < WIDTH - 0.1 and abs(box["y"] - other["y"]) < HEIGHT - 0.1:
                found.append((box["id"], other["id"]))
    return found


def holes(boxes: list[Any]) -> list[str]:
    """Columns and rows in which nothing stands."""
    found = []
    for what, free, half in (("x", COLUMN, WIDTH / 2), ("y", 2 * ROW, HEIGHT / 2)):
        ends = -float("inf")
        for at in sorted(box[what] for box in boxes):
            if at - half - ends > free and ends > -float("inf"):
                found.append(f"{what} {ends:.0f} to {at - half:.0f}")
            ends = max(ends, at + half)
    return found


@pytest.mark.parametrize("seed", rest_long(range(24), 8))
def test_no_boxes_overlap_and_what_is_collapsed_leaves_no_hole(page: Any, seed: int) -> None:
    plan = random_plan(seed)
    size = (DESKTOP, PHONE)[seed % 2]
    for collapsed in ([], ["cleaned"]):
        shown = page.evaluate(DRAW, drawn(plan, collapsed, size))
        tasks, overview = shown["tasks"], shown["overview"]
        assert overlaps(tasks["boxes"]) == [], seed
        assert overlaps(overview["boxes"]) == [], seed
        standing = [
            member
            for box in overview["boxes"]
            for member in (box["members"] if box["kind"] == "bundle" else [box["id"]])
        ]
        assert sorted(standing) == sorted(box["id"] for box in tasks["boxes"]), "each box is in the overview once"
        for block in tasks["blocks"]:
            inside = {
                box["id"]
                for box in tasks["boxes"]
                if block["left"] < box["x"] < block["right"] and block["top"] < box["y"] < block["bottom"]
            }
            assert inside == set(block["members"])
        if any(box["kind"] == "fold" for box in tasks["boxes"]):
            assert holes(tasks["boxes"]) == [], seed


@pytest.fixture(scope="module")
def page(browser: Any) -> Iterator[Any]:
    with served(small_scene()) as url, opened(browser, url, "#/plans") as page:
        yield page


NAMES = """() => {
    const camera = document.querySelector(".graph-drawing > g").getAttribute("transform");
    const zoom = Number(/scale\\(([^)]*)\\)/.exec(camera)[1]);
    return [...document.querySelectorAll(".box")].map((box) => {
        const names = [...box.querySelectorAll("text.name")];
        const room = box.querySelector(".body").getBBox().width;
        const within = ({ x, width }) => x >= 0 && x + width <= room;
        const sizes = names.map((name) => parseFloat(getComputedStyle(name).fontSize) * zoom);
        return { id: box.dataset.box, letters: Math.min(...sizes),
            fits: names.length > 0 && names.every((name) => within(name.getBBox())) };
    });
}"""


def test_an_overview_compares_names_with_one_collator(page: Any) -> None:
    """``localeCompare`` with options makes a collator for each pair of names: most of the time to the first view."""
    page.evaluate("""() => {
        window.compared = 0;
        const compare = String.prototype.localeCompare;
        String.prototype.localeCompare = function (...terms) {
            window.compared += 1;
            return compare.apply(this, terms);
        };
    }""")
    shown = page.evaluate(DRAW, drawn(large_scene(100).plan, [], DESKTOP))
    assert any(box["kind"] == "bundle" for box in shown["overview"]["boxes"])
    assert page.evaluate("window.compared") == 0


@pytest.mark.long
@pytest.mark.parametrize("size", [(1440, 900), (1024, 768), PHONE], ids=["1440", "1024", "390"])
@pytest.mark.parametrize("make", [small_scene, middle_scene, large_scene], ids=["10", "200", "5000"])
def test_every_name_that_is_drawn_can_be_read(browser: Any, make: Any, size: tuple[int, int]) -> None:
    scene = make()
    address = f"#/plans/{scene.plan.id}/graph"
    with served(scene) as url, opened(browser, url, address, size=size) as page:
        page.locator(".box").first.wait_for()
        for _ in range(3):
            unreadable = [name for name in page.evaluate(NAMES) if name["letters"] < SMALLEST or not name["fits"]]
            assert unreadable == []
            page.get_by_role("button", name="Zoom in").click()
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0]


@pytest.mark.long
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_large_plan_is_accessible_in_every_view(browser: Any, theme: str) -> None:
    scene = middle_scene()
    with served(scene) as url, opened(browser, url, "", theme, PHONE) as page:
        for view in ("graph", "graph?task=clean-staff", "graph?as=list", "timeline", "edits"):
            page.goto(f"{url}/#/plans/warehouse/{view}")
            page.reload()
            page.locator(".box, .task-list li, .bar, .batch").first.wait_for()
            assert serious_findings(page) == [], view
            assert page.evaluate("document.documentElement.scrollWidth") <= PHONE[0], view


@pytest.mark.long
def test_the_overview_leads_to_tasks_and_back_with_the_keyboard(browser: Any) -> None:
    with served(middle_scene()) as url, opened(browser, url, "#/plans/warehouse/graph") as page:
        page.locator(".bundle").first.wait_for()
        page.get_by_role("button", name="110 waiting").wait_for()  # the elements count, their group does not
        assert page.locator("[data-box='train[0]']").count() == 0, "a large foreach is closed at first"
        page.keyboard.press("g")
        page.keyboard.press("ArrowRight")
        page.locator(".bundle:focus").wait_for()
        page.keyboard.press("Enter")
        page.locator("[data-box^=extract-]:focus").wait_for()
        page.keyboard.press("0")
        page.locator(".bundle").first.wait_for()
        page.get_by_role("button", name="2 failed", exact=False).first.wait_for()
        page.get_by_role("button", name="train: 60 tasks, collapsed").click()
        page.locator(".fold").wait_for(state="detached")


ROWS = """async ([[view, collapsed], perRow]) => {
    const { layoutOf } = await import("/page/layout.js");
    const { drawing } = await import("/page/graph_model.js");
    const { inRows } = await import("/page/graph_rows.js");
    const model = drawing(view, layoutOf(view), { collapsed: new Set(collapsed) });
    const { boxes, edges } = inRows(model, { perRow, down: [] });
    return { boxes: [...boxes.values()], ways: edges.filter((edge) => edge.square).map((edge) => edge.points) };
}"""


@pytest.mark.parametrize("seed", rest_long(range(100, 124), 8))
def test_ways_from_row_to_row_run_through_no_box(page: Any, seed: int) -> None:
    for collapsed in ([], ["cleaned"]):
        shown = page.evaluate(ROWS, [drawn(random_plan(seed), collapsed, DESKTOP)[:2], 1 + seed % 3])
        assert overlaps(shown["boxes"]) == [], seed
        for way in shown["ways"]:
            assert passes(way, shown["boxes"]) == [], seed


def passes(way: list[list[float]], boxes: list[Any]) -> list[str]:
    """The boxes that a way of straight lines runs through."""
    found = []
    for (x1, y1), (x2, y2) in pairwise(way):
        for box in boxes:
            apart = max(x1, x2) <= box["x"] - WIDTH / 2 or min(x1, x2) >= box["x"] + WIDTH / 2
            apart = apart or max(y1, y2) <= box["y"] - HEIGHT / 2 or min(y1, y2) >= box["y"] + HEIGHT / 2
            found += [] if apart else [box["id"]]
    return found


def low_plan(layers: int = 13) -> Constellation:
    """Layers of one or two tasks; a dependency skips rows, and the last layer has one task."""
    plan = Constellation("low")
    before: list[str] = []
    for depth in range(layers - 1):
        layer = [f"{what} of stage {depth:02}" for what in ("transform", "verify")[: 1 + depth % 2]]
        for name in layer:
            plan.add(Task(name.replace(" ", "-"), shell="true"), after=before)
        before = [name.replace(" ", "-") for name in layer]
    plan.add(Task("announce", shell="true"), after=[*before, "transform-of-stage-02"])
    return plan


def places(page: Any) -> dict[str, str]:
    """Where each box of the drawing stands, and each removed task."""
    script = """(all) => all.map((box) =>
        [box.dataset.box ?? box.querySelector(".name").textContent, box.getAttribute("transform")])"""
    return dict(page.locator(".box").evaluate_all(script))


@pytest.mark.parametrize(("size", "layers"), [((1440, 900), 9), ((1440, 900), 13), ((1024, 768), 7)])
def test_layers_of_a_wide_and_low_plan_fill_the_height(browser: Any, size: tuple[int, int], layers: int) -> None:
    """They stood in one row in the middle, and most of the height was empty."""
    plan = low_plan(layers)
    with served(PlanScene(plan)) as url, opened(browser, url, "#/plans/low/graph", size=size) as page:
        page.locator(".box").first.wait_for()
        assert page.locator(".graph-note").count() == 0, "no overview"
        frame = page.locator(".graph").bounding_box()
        areas = [page.locator(f"[data-box={task.id}] .body").bounding_box() for task in plan]
        assert all(area["width"] >= 0.6 * WIDTH for area in areas)
        assert all(area["x"] >= 0 and area["x"] + area["width"] <= size[0] for area in areas)
        top, bottom = min(area["y"] for area in areas), max(area["y"] + area["height"] for area in areas)
        assert frame["y"] <= top
        assert bottom <= frame["y"] + frame["height"]
        assert bottom - top > frame["height"] / 2
        for task in plan:
            assert "…" not in page.locator(f"[data-box={task.id}] text.name").all_text_contents()


def test_an_edit_of_a_plan_in_rows_moves_nothing_else(browser: Any) -> None:
    scene = PlanScene(low_plan())
    added = [
        {"op": "add_task", "task": {"id": "check", "shell": "true"}},
        {"op": "add_dependency", "source": "verify-of-stage-03", "target": "check"},
    ]
    batch = {"author": "ben", "reason": "", "edits": [*added, {"op": "remove_task", "task_id": "announce"}]}
    waiting = {"id": 1, "at": scene.began, "expires_at": None, "tasks": [], "cycle": None, "reasons": [], "effects": {}}
    scene.approvals = [{**waiting, "batch": batch}]
    with served(scene) as url, opened(browser, url, "#/plans/low/graph", size=(1440, 900)) as page:
        page.locator(".box").first.wait_for()
        before = places(page)
        page.goto(f"{url}/#/plans/low/graph?approval=1")
        page.locator("[data-box=check].mark-added").wait_for()
        assert before.items() <= places(page).items(), "a preview moves nothing"
        page.goto(f"{url}/#/plans/low/graph")
        page.locator("[data-box=check]").wait_for(state="detached")
        assert places(page) == before
        scene.approvals = []
        scene.edit(EditBatch.from_json(batch))
        page.locator("[data-box=check].mark-added").wait_for()
        page.locator(".ghost").wait_for()
        assert before.items() <= places(page).items(), "nor does the edit, and what is removed keeps its place"


OVERVIEW_EDGES = """async ([view, collapsed, size]) => {
    const { layoutOf } = await import("/page/layout.js");
    const { drawing } = await import("/page/graph_model.js");
    const { overview } = await import("/page/graph_overview.js");
    const model = drawing(view, layoutOf(view), { collapsed: new Set(collapsed) });
    const { boxes, edges } = overview(model, size);
    return { boxes: [...boxes.values()], edges: [...edges] };
}"""


@pytest.mark.parametrize("size", [(2400, 800), DESKTOP, (500, 800)], ids=["wide", "desktop", "narrow"])
def test_the_overview_draws_dependencies_that_skip_a_layer(page: Any, size: tuple[int, int]) -> None:
    plan = Constellation("skips")
    for depth in range(6):
        for turn in range(4):
            plan.add(Task(f"part-{depth}-{turn}", shell="true"), after=[f"part-{depth - 1}-0"] if depth else [])
    plan.add(Task("early", shell="true"))
    plan.add(Task("last", shell="true"), after=["early", "part-5-0", "part-2-3"])
    shown = page.evaluate(OVERVIEW_EDGES, drawn(plan, [], size))
    place = {box["id"]: box for box in shown["boxes"]}
    [second] = [box for box in shown["boxes"] if "part-2-3" in box.get("members", [])]
    right, left = second["x"] + WIDTH / 2, place["last"]["x"] - WIDTH / 2
    begins = [edge for edge in shown["edges"] if edge["points"][0] == [right, second["y"]] and len(edge["points"]) > 3]
    assert begins, "a line leaves the box and passes others"
    assert any(edge["points"][-1] == [left, place["last"]["y"]] for edge in shown["edges"])
    for edge in begins:
        assert passes(edge["points"], shown["boxes"]) == []


def test_elements_of_a_matrix_have_readable_names(browser: Any) -> None:
    """They were shown as "…13,…os…"."""
    plan = Constellation("matrix")
    plan.add(Task("build", shell="true"))
    elements = [
        f"test[{python}, {system}]" for python in ("3.12", "3.13", "3.14") for system in ("ubuntu-24.04", "macos-14")
    ]
    for before, layer in (("build", "test"), ("", "pack")):
        for name in elements:
            plan.add(Task(name.replace("test", layer), shell="true"), after=before or name)
    for number in range(6):
        plan.add(
            Task(f"step-{number}", shell="true"), after=f"step-{number - 1}" if number else "pack[3.12, ubuntu-24.04]"
        )
    with (
        served(PlanScene(plan)) as url,
        opened(browser, url, "#/plans/matrix/graph", size=(1440, 900)) as page,
    ):
        page.locator(".box").first.wait_for()
        for name in elements:
            lines = page.locator(f'[data-box="{name}"] text.name').all_text_contents()
            assert "…" not in "".join(lines), name
            assert name[5:-1].replace(" ", "") in "".join(lines).replace(" ", "")
