"""The benchmarks of the page: layouts and drawings that are not those of the plan give no figure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from asterism.report.layout import fresh
from bench import web_page

SHAPE: web_page.Shape = (["a", "b", "c"], [("a", "b"), ("b", "c")])


def test_a_layout_of_another_plan_is_noticed() -> None:
    layout = fresh(*SHAPE)
    web_page.check_layout(layout, SHAPE)
    with pytest.raises(AssertionError, match="3 places for 4 tasks"):
        web_page.check_layout(layout, ([*SHAPE[0], "d"], SHAPE[1]))
    with pytest.raises(AssertionError, match="1 tasks are not below what they come after"):
        web_page.check_layout(layout, (SHAPE[0], [("c", "a")]))


def test_edits_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_page, "TASKS", 160)
    monkeypatch.setattr(web_page, "EDITS", 2)
    whole, costs = web_page.edits()
    assert "| rewire a task | " in web_page.layout_text(whole, costs)
    assert [len(cost.seconds) for cost in costs] == [2] * len(web_page.KINDS)
    monkeypatch.setattr(web_page, "updated", lambda before, *shape: replace(before))
    with pytest.raises(AssertionError, match="160 places for 161 tasks"):
        web_page.edits()


class _Page:
    """A page with so many boxes, a note, and counts."""

    def __init__(self, boxes: int = 0, note: str = "", counts: str = "") -> None:
        self.boxes, self.texts = boxes, {".graph-note": note, ".counts": counts}

    def locator(self, name: str) -> Any:
        page, text = self, self.texts.get(name, "")

        class Located:
            def count(self) -> int:
                return page.boxes

            def inner_text(self) -> str:
                return text

        return Located()

    def wait_for_timeout(self, milliseconds: float) -> None:
        pass


def test_a_page_that_does_not_draw_every_task_gives_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    canvas = "canvas.graph-canvas"
    web_page.check_drawn(_Page(boxes=3), web_page.BOX, 3)
    web_page.check_drawn(_Page(note="2,000 tasks drawn without names"), canvas, 2000)
    with pytest.raises(AssertionError, match="2 of 3 tasks are drawn"):
        web_page.check_drawn(_Page(boxes=2), web_page.BOX, 3)
    with pytest.raises(AssertionError, match="1,999 tasks drawn"):
        web_page.check_drawn(_Page(note="1,999 tasks drawn without names"), canvas, 2000)
    web_page.check_counts(_Page(counts="●\n2,000 completed"), 2000)
    monkeypatch.setattr(web_page, "SHOWN_WITHIN", 0.001)
    for counts in ("● 1,950 completed ● 50 running", "● 2,000 running", ""):
        with pytest.raises(AssertionError, match="2000 tasks have completed, and the page shows"):
            web_page.check_counts(_Page(counts=counts), 2000)


def test_every_task_starts_and_completes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_page, "SECONDS", 0.0)
    told: list[tuple[str, str]] = []

    class Scene:
        def set(self, task: str, status: str, **facts: Any) -> None:
            told.append((task, status))

    web_page._change(Scene(), 130)
    assert sorted(told) == sorted(
        (f"t{number}", status) for number in range(130) for status in ("running", "completed")
    )


@pytest.mark.long
def test_the_browser_shows_every_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_page, "SECONDS", 0.5)
    watched = web_page._watch(60, web_page.BOX)
    assert (watched.tasks, watched.drawn) == (60, "SVG")
    assert "| 60 | SVG | " in web_page.browser_text([watched])
