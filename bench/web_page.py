"""The page of the server: the time to the first view, and frames while a plan changes.

Chromium draws without a graphics card here, so frames per second are a lower bound.
"""

import re
import shutil
import threading
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from asterism import Constellation, Task
from bench.page import table, time_text

HEAD = """# Benchmarks: the page

Written by `python -m bench page`. Times are wall time, in a Chromium that draws without a graphics card. What an edit
moves is held by tests (`tests/page/test_layout_in_browser.py`): only tasks whose layer changes.
"""

WIDTH = 40
SECONDS = 6.0
"""How long the tasks of a plan change while frames are counted."""

BOX = ".box"
SHOWN_WITHIN = 60.0
"""Seconds after the last change in which the page must show it."""

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
        page.goto(f"{url}/#/plans/large/graph")
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
