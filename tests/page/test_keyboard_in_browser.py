"""Every view with the keyboard alone: each control is reached, its focus is seen, and its action is done."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.page.browser_scenes import DESKTOP, PHONE, chromium, needs_chromium, opened
from tests.page.plan_server import release_scene, served
from tests.page.views import VIEWS, open_view
from tests.process_scenes import soon

pytestmark = [needs_chromium, pytest.mark.long]

MOST_STOPS = 200

CONTROLS = """() => {
    const inside = document.querySelector("dialog[open]") ?? document;
    const all = [...inside.querySelectorAll("button, a[href], input, select, textarea, summary, [tabindex]")];
    const shown = all.filter((element) => !element.disabled && element.tabIndex >= 0
        && element.checkVisibility({ visibilityProperty: true }));
    shown.forEach((element, place) => { element.dataset.stop = place; });
    return shown.map((element) => element.dataset.stop);
}"""
FOCUSED = """() => {
    const element = document.activeElement;
    const box = element.querySelector(".body, rect");
    const outlined = (one) => getComputedStyle(one).outlineStyle !== "none";
    const drawn = (one) => one && ["outlineStyle", "stroke"].some((name) => getComputedStyle(one)[name] !== "none");
    const area = element.getBoundingClientRect();
    return { stop: element.dataset.stop ?? null, what: element.outerHTML.slice(0, 120),
        seen: drawn(box) || outlined(element) || outlined(element.parentElement),
        inSight: area.right > 0 && area.bottom > 0 && area.left < innerWidth && area.top < innerHeight };
}"""
"""Where the focus is, and whether one sees it."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_tab_reaches_every_control_of_every_view_and_its_focus_is_seen(browser: Any, size: tuple[int, int]) -> None:
    """What moves within a graph, a timeline or a calendar is reached by arrow keys, from one stop for Tab."""
    with served(release_scene()) as url, opened(browser, url, size=size) as page:
        for name, address in VIEWS.items():
            open_view(page, url, name, address)
            wanted, reached = set(page.evaluate(CONTROLS)), set()
            for _ in range(MOST_STOPS):
                page.keyboard.press("Tab")
                focused = page.evaluate(FOCUSED)
                if focused["stop"] in reached or reached == wanted:
                    break
                if focused["stop"] is not None:
                    assert focused["seen"], f"{name}: {focused['what']}"
                    assert focused["inSight"], f"{name}: {focused['what']}"
                    reached.add(focused["stop"])
            left = [
                page.locator(f"[data-stop='{stop}']").evaluate("one => one.outerHTML.slice(0, 120)")
                for stop in wanted - reached
            ]
            assert left == [], name


DONE = {
    "graph": [("Pause", [], "plans/release/pause"), ("Cancel", ["Yes"], "plans/release/cancel")],
    "edits": [
        ("Approve", [], "plans/release/approvals/1/approve"),
        ("Accept without edits", [], "plans/release/cycles/1/answer"),
        ("Undo the last edit", ["Yes"], "plans/release/undo"),
        ("Go on without an editor", ["Yes"], "plans/release/budget"),
    ],
    "runs": [("Retry", ["Yes"], "runs/actions")],
    "run": [("Pause", [], "runs/run-0/pause"), ("Cancel", ["Yes"], "runs/run-0/cancel")],
    "calendar": [("Pause", [], "schedules/nightly/pause"), ("Run now", [], "schedules/nightly/run")],
}
"""Of each view: the button, the buttons that confirm, and what is asked of the server."""

GOES_WITH_ITS_ITEM = ("Approve", "Accept without edits", "Go on without an editor")
"""The buttons that are gone after their action. Others keep the focus, or have it again after a question."""


@pytest.mark.parametrize("view", DONE)
def test_actions_are_done_with_the_keyboard(browser: Any, view: str) -> None:
    """A question has the focus: who presses Enter twice has answered it."""
    scene = release_scene()
    with served(scene) as url, opened(browser, url) as page:
        for button, answers, asked in DONE[view]:
            open_view(page, url, view, VIEWS[view])
            page.get_by_role("main").get_by_role("button", name=button, exact=True).first.focus()
            page.keyboard.press("Enter")
            for answer in answers:
                page.locator("button:focus", has_text=answer).wait_for()
                page.keyboard.press("Enter")
            soon(lambda asked=asked: asked in [path for path, _ in scene.posted])
            if button not in GOES_WITH_ITS_ITEM:
                page.wait_for_function("() => document.activeElement.matches('main button')")
