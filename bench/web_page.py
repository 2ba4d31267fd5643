"""The page of the server: the layout after an edit, the time to the first view, and frames while a plan changes.

Chromium draws without a graphics card here, so frames per second are a lower bound.
"""

import random
import re
import shutil
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from asterism import Constellation, Task
from asterism.report.layout import Dependency, PlanLayout, fresh, updated
from bench.page import table, time_text

HEAD = """# Benchmarks: the page

Written by `python -m bench page`. Times of the layout are processor time; those of the browser are wall time, in a
Chromium that draws without a graphics card.
"""

TASKS, WIDTH = 2_000, 40
EDITS = 60
SECONDS = 6.0
"""How long the tasks of a plan change while frames are counted."""

BOX = ".box"
SHOWN_WITHIN = 60.0
"""Seconds after the last change in which the page must show it."""

Shape = tuple[list[str], list[Dependency]]


@dataclass(frozen=True, slots=True)
class EditCost:
    """Edits of one task in a plan: the tasks they moved, those that moved in the same layer, and processor seconds."""

    what: str
    moved: list[int]
    needless: int
    seconds: list[float]


def layered(chance: random.Random) -> Shape:
    """Layers of tasks, each after two of the layer before it."""
    tasks = [f"t{number}" for number in range(TASKS)]
    pairs = {
        (tasks[(number // WIDTH - 1) * WIDTH + chance.randrange(WIDTH)], tasks[number])
        for number in range(WIDTH, TASKS)
        for _ in range(2)
    }
    return tasks, sorted(pairs)


def _add(shape: Shape, chance: random.Random) -> Shape:
    tasks, pairs = shape
    return [*tasks, "new"], [*pairs, (chance.choice(tasks), "new")]


def _insert(shape: Shape, chance: random.Random) -> Shape:
    tasks, pairs = shape
    source, target = chance.choice(pairs)
    rest = [pair for pair in pairs if pair != (source, target)]
    return [*tasks, "new"], [*rest, (source, "new"), ("new", target)]


def _remove(shape: Shape, chance: random.Random) -> Shape:
    tasks, pairs = shape
    gone = chance.choice(tasks)
    return [task for task in tasks if task != gone], [pair for pair in pairs if gone not in pair]


def _rewire(shape: Shape, chance: random.Random) -> Shape:
    tasks, pairs = shape
    target = chance.choice(tasks[WIDTH:])
    layer = int(target[1:]) // WIDTH
    rest = [pair for pair in pairs if pair[1] != target]
    return tasks, [*rest, (tasks[(layer - 1) * WIDTH + chance.randrange(WIDTH)], target)]


KINDS: dict[str, Callable[[Shape, random.Random], Shape]] = {
    "add a task": _add,
    "put a task between two": _insert,
    "remove a task": _remove,
    "rewire a task": _rewire,
}


def edits() -> tuple[float, list[EditCost]]:
    """The processor time of a layout from scratch, and the costs of edits."""
    chance = random.Random(8)
    shape = layered(chance)
    began = time.process_time()
    before = fresh(*shape)
    whole = time.process_time() - began
    check_layout(before, shape)
    return whole, [_cost(what, before, shape, edit, chance) for what, edit in KINDS.items()]


def _cost(
    what: str, before: PlanLayout, shape: Shape, edit: Callable[[Shape, random.Random], Shape], chance: random.Random
) -> EditCost:
    moves: list[int] = []
    seconds: list[float] = []
    needless = 0
    for _ in range(EDITS):
        edited = edit(shape, chance)
        began = time.process_time()
        after = updated(before, *edited)
        seconds.append(time.process_time() - began)
        check_layout(after, edited)
        gone = {task for task, place in after.places.items() if before.places.get(task, place) != place}
        moves.append(len(gone))
        needless += sum(before.places[task].layer == after.places[task].layer for task in gone)
    return EditCost(what, moves, needless, seconds)


def check_layout(layout: PlanLayout, shape: Shape) -> None:
    """Raise AssertionError unless a layout has a place for each task, and each below those that it comes after."""
    tasks, pairs = shape
    places = layout.places
    assert places.keys() == set(tasks), f"{len(places)} places for {len(tasks)} tasks"
    above = [pair for pair in pairs if places[pair[0]].layer >= places[pair[1]].layer]
    assert not above, f"{len(above)} tasks are not below what they come after: {above[:5]}"


def layout_text(whole: float, costs: list[EditCost]) -> str:
    rows = [
        (
            cost.what,
            f"{statistics.median(cost.moved):g} / {max(cost.moved)}",
            str(cost.needless),
            time_text(statistics.median(cost.seconds)),
        )
        for cost in costs
    ]
    return f"""## What an edit of one task moves

A plan of {TASKS:,} tasks in layers of {WIDTH}, each after two of the layer before it; {EDITS} edits of each kind.
"Needless" counts tasks that moved although their layer is the same (goal: 0). A layout from scratch takes
{time_text(whole)}.

""" + table(("edit", "tasks moved (median / most)", "needless", "layout takes"), rows)


# -- in the browser ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Watched:
    """A plan in the browser, as the overview of its layers or as its ``tasks``: seconds to its first view, and the
    processor seconds of the page's main thread in them; frames per second, the longest pause in seconds, and the share
    of a core that the main thread needs meanwhile. Other work on the machine does not count as that of the thread."""

    tasks: int
    shown: str
    first_view: float
    first_work: float
    frames: float
    longest: float
    busy: float


def watch() -> list[Watched]:
    return [_watch(1_000), _watch(5_000), _watch(5_000, "tasks")]


COUNT = """() => {
    window.frames_seen = [];
    const count = (at) => { window.frames_seen.push(at); requestAnimationFrame(count); };
    requestAnimationFrame(count);
}"""


def _watch(count: int, shown: str = "overview") -> Watched:
    from playwright.sync_api import sync_playwright

    from tests.page.plan_server import PlanScene, served

    plan = Constellation("large")
    for number in range(count):
        layer, place = divmod(number, WIDTH)
        after = [f"t{(layer - 1) * WIDTH + above % WIDTH}" for above in (place, place + 1)] if layer else []
        plan.add(Task(f"t{number}", shell="true"), after=after)
    scene = PlanScene(plan)
    with served(scene) as url, sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu"]
        chromium = shutil.which("chromium") or shutil.which("chromium-headless-shell")
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.set_default_timeout(300_000)
        page.goto(f"{url}/#/plans/large/graph")  # the layout is known afterwards, as in a plan that is being watched
        page.locator(BOX).first.wait_for()
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        page.reload()
        page.locator(BOX).first.wait_for()
        first_view = page.evaluate("performance.now()") / 1000
        first_work = _computed(session)
        check_drawn(page, count)
        if shown == "tasks":
            page.locator(".bundle").first.click()
            page.locator(".box:not(.bundle)").first.wait_for()
        page.evaluate(COUNT)
        before = _computed(session)
        changing = threading.Thread(target=_change, args=(scene, count))
        changing.start()
        page.wait_for_timeout(1000 * SECONDS)
        frames: list[float] = page.evaluate("window.frames_seen")
        busy = (_computed(session) - before) / (frames[-1] - frames[0]) * 1000
        changing.join()
        check_counts(page, count)
        browser.close()
    assert len(frames) > 1, f"{len(frames)} frames were drawn"
    gaps = [(after - before) / 1000 for before, after in pairwise(frames)]
    return Watched(count, shown, first_view, first_work, len(gaps) / sum(gaps), max(gaps), busy)


DRAWN = """() => [...document.querySelectorAll(".box")].reduce((sum, box) => sum
    + Number(/([0-9,]+) tasks?[,.]/.exec(box.querySelector("title").textContent)?.[1].replace(",", "") ?? 1), 0)"""
"""The tasks that are drawn: a box of the overview says how many it stands for."""


def check_drawn(page: Any, count: int) -> None:
    """Raise AssertionError unless each task is drawn, as a box or in a box of its layer."""
    drawn = page.evaluate(DRAWN)
    assert drawn == count, f"{drawn} of {count} tasks are drawn"


def check_counts(page: Any, count: int) -> None:
    """Raise AssertionError unless the page comes to show that every task has completed."""
    shown = page.locator(".counts")
    text, deadline = "", time.monotonic() + SHOWN_WITHIN
    while time.monotonic() < deadline:
        text = " ".join(shown.inner_text().split())
        if re.fullmatch(rf"\S+ {count:,} completed", text):
            return
        page.wait_for_timeout(100)
    raise AssertionError(f"{count} tasks have completed, and the page shows: {text}")


def _computed(session: Any) -> float:
    """The processor seconds of the page's main thread so far."""
    metrics = {metric["name"]: metric["value"] for metric in session.send("Performance.getMetrics")["metrics"]}
    return float(metrics["TaskDuration"])


TICKS, AT_WORK = 100, 5
"""In so many steps all tasks start; each completes so many steps later."""


def _change(scene: Any, count: int) -> None:
    """Every task starts and completes once, evenly over the time."""
    for tick in range(TICKS + AT_WORK):
        now = time.time()
        for number in _share(tick, count):
            scene.set(f"t{number}", "running", device="lab", started_at=now)
        for number in _share(tick - AT_WORK, count):
            scene.set(f"t{number}", "completed", ended_at=now)
        time.sleep(SECONDS / (TICKS + AT_WORK))


def _share(tick: int, count: int) -> range:
    """The tasks of one step."""
    return range(tick * count // TICKS, (tick + 1) * count // TICKS) if 0 <= tick < TICKS else range(0)


def browser_text(watched: list[Watched]) -> str:
    rows = [
        (
            f"{view.tasks:,}",
            view.shown,
            time_text(view.first_view),
            time_text(view.first_work),
            f"{view.frames:.0f}",
            time_text(view.longest),
            f"{view.busy:.0%}",
        )
        for view in watched
    ]
    return f"""## In the browser

Time from the request of the page to the drawn plan, and frames per second while every task starts and completes within
{SECONDS:g} s (goal: 30 with 5,000 tasks, and a first view within 1.5 s). "Work" is the processor time of the page's
main thread until the first view, "main thread" the share of a core that it needs while the plan changes.

""" + table(("tasks", "shown", "first view", "work", "frames per second", "longest pause", "main thread"), rows)
