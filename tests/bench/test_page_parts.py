"""The benchmarks of the page: drawings that are not those of the plan give no figure."""

from __future__ import annotations

from typing import Any

import pytest

from bench import web_page


class _Page:
    """A page that draws so many tasks, and shows counts."""

    def __init__(self, drawn: int = 0, counts: str = "") -> None:
        self.drawn, self.counts = drawn, counts

    def evaluate(self, script: str) -> int:
        return self.drawn

    def locator(self, name: str) -> Any:
        return self

    def inner_text(self) -> str:
        return self.counts

    def wait_for_timeout(self, milliseconds: float) -> None:
        pass


def test_a_page_that_does_not_draw_every_task_gives_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    web_page.check_drawn(_Page(drawn=3), 3)
    with pytest.raises(AssertionError, match="2 of 3 tasks are drawn"):
        web_page.check_drawn(_Page(drawn=2), 3)
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
    watched = web_page._watch(60)
    assert (watched.tasks, watched.shown) == (60, "overview")
    assert "| 60 | overview | " in web_page.browser_text([watched])
