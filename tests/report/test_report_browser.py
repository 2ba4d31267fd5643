"""The report in a browser: no error, no request, and working controls."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from asterism.report import DrawnEdge, DrawnTask, ExecutionBar, Picture, Report, StoryLine, TaskRow, report
from tests.page.browser_scenes import chromium, needs_chromium
from tests.process_scenes import PATIENCE

pytestmark = needs_chromium

NASTY = "<script>document.title = 'broken'</script>"
RUN = Report(
    title="release",
    state="completed",
    started_at=0.0,
    ended_at=3.0,
    figures=(("Makespan", "3 s"),),
    picture=Picture(
        "release",
        (DrawnTask("fetch", "Fetch", "completed"), DrawnTask(NASTY, "Odd", "failed")),
        (DrawnEdge("fetch", NASTY),),
    ),
    executions=(
        ExecutionBar("fetch", "laptop", 0, 0.0, 1.0, "completed", False),
        ExecutionBar(NASTY, "laptop", 0, 1.0, 3.0, "failed", False),
    ),
    cycles=(),
    holds=(),
    tasks=(
        TaskRow("fetch", "completed", "laptop", 1, 0.0, 1.0, "", "1"),
        TaskRow(NASTY, "failed", "laptop", 1, 1.0, 3.0, NASTY, NASTY),
    ),
    edits=(),
    stories=(
        ("fetch", (StoryLine(0.0, "dispatched", "ready"),)),
        (NASTY, (StoryLine(1.0, "failed", NASTY),)),
    ),
)


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Any]:
    """The report, open in a browser. At the end there must have been no error and no request but the file."""
    file = tmp_path / "report.html"
    file.write_text(report(RUN), encoding="utf-8")
    troubles: list[str] = []
    requests: list[str] = []
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(1000 * PATIENCE)
        page.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(file.as_uri())
        yield page
    assert (troubles, requests) == ([], [file.as_uri()])


@pytest.mark.long
def test_the_page_works(page: Any) -> None:
    assert page.title() == "release: report"
    story = page.locator("details").first
    story.locator("summary").click()
    assert story.evaluate("story => story.open")
    assert story.get_by_text("dispatched").is_visible()

    # A click on a bar of the timeline opens the story of its task; the keyboard closes it again.
    page.locator(".timeline .execution").nth(1).click()
    odd = page.locator("details").nth(1)
    assert odd.evaluate("story => story.open")
    page.keyboard.press("Enter")
    assert not odd.evaluate("story => story.open")

    page.locator(".star").first.hover()
    assert page.locator(".tooltip").inner_text().startswith("fetch")

    page.get_by_role("button", name="Started").click()
    page.get_by_role("button", name="Started").click()
    assert page.locator("tbody th").all_inner_texts() == [NASTY, "fetch"]
    page.get_by_role("searchbox").fill("FET")
    assert page.locator("tbody tr:visible").count() == 1
    assert page.locator("details:visible").count() == 1


@pytest.mark.long
def test_the_page_never_scrolls_sideways_on_a_phone(page: Any) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") == 390
