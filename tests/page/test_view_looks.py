"""What every view looks like, as facts that hold with the fonts of any machine: nothing overlaps, nothing is cut, rows
are aligned, and nothing scrolls sideways. ``pictures.py`` draws the same views for the eyes of a person.

The geometry itself is no baseline: it moves with each font, and a changed number would not say whether it looks worse.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.page.browser_scenes import PHONE, chromium, needs_chromium, opened
from tests.page.pictures import SIZES, THEMES, scenes
from tests.page.plan_server import release_scene, served
from tests.page.sized_scenes import SCENES
from tests.page.views import VIEWS, open_view

pytestmark = [needs_chromium, pytest.mark.long]

TABLET = SIZES[1024]

OVERLAPS = """() => {
    const layer = (element) => element.closest("dialog, .drawer, .travel, .graph, .top, main");
    const unseen = "svg, script, style, option, .visually-hidden, .skip, .word, textarea, .plan-lines";
    const apart = (one, other) => one.left >= other.right || one.right <= other.left || one.top >= other.bottom
        || one.bottom <= other.top;
    const clipped = (element, area) => {
        for (let above = element; above !== document.body; above = above.parentElement) {
            const hides = getComputedStyle(above).overflow !== "visible";
            if (hides && apart(area, above.getBoundingClientRect())) return true;
        }
        return false;
    };
    const texts = [];
    const inside = document.querySelector("dialog[open]") ?? document.body;
    const walker = document.createTreeWalker(inside, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const [text, element] = [walker.currentNode.data.trim().slice(0, 40), walker.currentNode.parentElement];
        if (!text || element.closest(unseen) || !element.checkVisibility({ visibilityProperty: true })) continue;
        const range = document.createRange();
        range.selectNodeContents(walker.currentNode);
        const end = getComputedStyle(element).overflow === "visible" ? Infinity : element.getBoundingClientRect().right;
        for (const { left, top, right, bottom, width } of range.getClientRects()) {
            const area = { left, top, right: Math.min(right, end), bottom };
            if (width > 1 && !clipped(element, area)) texts.push({ element, area, text });
        }
    }
    const found = [];
    texts.forEach((one, place) => {
        for (const other of texts.slice(place + 1)) {
            if (one.element === other.element || layer(one.element) !== layer(other.element)) continue;
            const wide = Math.min(one.area.right, other.area.right) - Math.max(one.area.left, other.area.left);
            const high = Math.min(one.area.bottom, other.area.bottom) - Math.max(one.area.top, other.area.top);
            if (wide > 2 && high > 4) found.push(`${one.text} / ${other.text}`);
        }
    });
    return found;
}"""
"""Texts that are drawn over each other."""

CUT = """() => {
    const labels = "button, .status, .attention, .tag, h2, dt, .count, .tabs a, .top a, kbd";
    return [...document.querySelectorAll(labels)].filter((one) => {
        const { display, textOverflow } = getComputedStyle(one);
        return one.checkVisibility() && one.scrollWidth > one.clientWidth + 1 && display !== "inline"
            && textOverflow !== "ellipsis" && !one.closest("svg, .visually-hidden");
    }).map((one) => one.outerHTML.slice(0, 120));
}"""
"""Controls and labels that are narrower than their text."""


DIFFER_WITH_SIZE = ("graph", "failed", "list", "timeline")

LINES = """(all) => all.map((one) => {
    const range = document.createRange();
    range.selectNodeContents(one);
    return new Set([...range.getClientRects()].map((area) => area.top)).size;
})"""
"""Of each element: how many lines its text has."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.mark.parametrize("width", SIZES)
@pytest.mark.parametrize("kind", ["release", *map(str, SCENES)])
def test_nothing_overlaps_is_cut_or_scrolls_sideways(browser: Any, kind: str, width: int) -> None:
    make, views = next((make, views) for name, make, views in scenes() if name == kind)
    if kind in ("200", "5000"):
        views = {name: views[name] for name in DIFFER_WITH_SIZE}
    with served(make()) as url, opened(browser, url, theme=THEMES[width % 4 // 2], size=SIZES[width]) as page:
        for name, address in views.items():
            open_view(page, url, name, address)
            assert page.evaluate(OVERLAPS) == [], name
            assert page.evaluate(CUT) == [], name
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name


def test_the_list_of_keys_overlapped_without_its_narrower_columns(browser: Any) -> None:
    """Ablation: the check sees what was wrong."""
    with served(release_scene()) as url, opened(browser, url, size=PHONE) as page:
        open_view(page, url, "help", VIEWS["help"])
        assert page.evaluate(OVERLAPS) == []
        narrow = "rows => rows.forEach((row) => (row.style.gridTemplateColumns = '90px 1fr'))"
        page.locator(".keys > div").evaluate_all(narrow)
        assert any("arrow keys" in pair for pair in page.evaluate(OVERLAPS))


def edges(page: Any, selector: str, edge: str) -> set[int]:
    """The different places of one edge of the elements."""
    script = "(all, edge) => all.map((one) => Math.round(one.getBoundingClientRect()[edge]))"
    return set(page.locator(selector).evaluate_all(script, edge))


def test_columns_are_aligned(browser: Any) -> None:
    """Also those of rows that have a button or a tag more than others."""
    with served(release_scene()) as url, opened(browser, url, size=TABLET) as page:
        open_view(page, url, "list", VIEWS["list"])
        assert len(edges(page, ".task-list .status", "left")) == 1
        open_view(page, url, "devices", "#/fleet/devices")
        assert len(edges(page, ".device-head .meter", "left")) == 1
        assert len(edges(page, ".device-head .status", "left")) == 1


def test_tools_of_the_graph_stay_together(browser: Any) -> None:
    with served(release_scene()) as url, opened(browser, url, size=TABLET) as page:
        open_view(page, url, "graph", VIEWS["graph"])
        assert len(edges(page, ".tools > button, .tools > span", "top")) == 1


def test_durations_beside_a_drawer_are_one_line(browser: Any) -> None:
    with served(release_scene()) as url, opened(browser, url, size=TABLET) as page:
        open_view(page, url, "run", VIEWS["run"])
        lines = page.locator("tbody td[data-label='Took']").evaluate_all(LINES)
        assert max(lines) == 1


@pytest.mark.parametrize("width", SIZES)
def test_the_times_above_a_timeline_are_complete(browser: Any, width: int) -> None:
    with served(release_scene()) as url, opened(browser, url, size=SIZES[width]) as page:
        open_view(page, url, "timeline", VIEWS["timeline"])
        right = page.locator(".timeline-scroll svg").evaluate("svg => svg.getBoundingClientRect().right")
        ends = page.locator(".tick text").evaluate_all("all => all.map((one) => one.getBoundingClientRect().right)")
        assert ends
        assert max(ends) <= right + 1


def test_words_of_actions_on_runs_fit_their_number(browser: Any) -> None:
    with served(release_scene()) as url, opened(browser, url) as page:
        open_view(page, url, "runs", VIEWS["runs"])
        page.get_by_text("The one run of this filter:").wait_for()
        page.get_by_role("button", name="Cancel", exact=True).click()
        page.get_by_text("Cancel the one run of this filter?").wait_for()


def test_a_box_says_who_holds_its_task(browser: Any) -> None:
    """The name of the editor alone looked like a second name of the task."""
    with served(release_scene()) as url, opened(browser, url, size=SIZES[1440]) as page:
        open_view(page, url, "graph", VIEWS["graph"])
        assert "held by ann" in page.locator("[data-box=site]").text_content()


def test_a_plan_that_is_checked_is_not_yet_called_good(browser: Any) -> None:
    with served(release_scene()) as url, opened(browser, url) as page:
        page.route("**/plan-checks", lambda route: None)
        page.goto(f"{url}/#/submit")
        page.get_by_text("Checking…").wait_for()
        assert page.locator("#findings .good").count() == 0
        assert page.get_by_label("Text of the plan file").get_attribute("spellcheck") == "false"
