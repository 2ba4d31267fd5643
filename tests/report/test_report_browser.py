"""The report in a browser, opened from a file: no error, no request, and the same views as the page of the server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from asterism import Constellation, ConstellationView, EditBatch, Event, LocalDevice, Orchestrator, Result, Task, edits
from asterism.notebook import result_html
from asterism.report.result_report import EarlierRun, PlanOrigin, Recording, write_report
from tests.page.browser_scenes import DESKTOP, PHONE, chromium, needs_chromium, serious_findings
from tests.process_scenes import PATIENCE

pytestmark = needs_chromium

NASTY = "<script>document.title = 'broken'</script>"


async def work() -> str:
    print("fetched", NASTY)
    return NASTY


async def fail() -> None:
    raise RuntimeError(f"no luck {NASTY}")


async def repair(view: ConstellationView, events: Sequence[Event]) -> EditBatch | None:
    if events[-1].kind == "task_failed":
        return EditBatch((edits.RemoveTask("nothing"),), reason="a slip")
    if events[-1].kind != "edit_rejected":
        return None
    return EditBatch((edits.AddTask(Task("mail", call=work)), edits.RemoveTask("pdf")), reason="no PDF")


async def ran(plan: Constellation) -> tuple[Result, Recording]:
    orchestrator = Orchestrator([LocalDevice("laptop")], editor=repair)
    recording = Recording(plan, orchestrator.events)
    result = await orchestrator.run(plan)
    recording.close()
    return result, recording


def failed() -> tuple[Result, Recording]:
    plan = Constellation("release")
    plan.add(Task("fetch", call=work))
    plan.add(Task("build", call=fail, description=NASTY), after="fetch")
    plan.add(Task("pdf", call=work), after="build")
    with ThreadPoolExecutor() as threads:  # the browser has the loop of this one
        return threads.submit(asyncio.run, ran(plan)).result()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@contextmanager
def shown(browser: Any, file: Path, size: tuple[int, int] = DESKTOP, theme: str = "light") -> Iterator[Any]:
    """A file in a browser. At the end there must have been no error and no request but the file."""
    troubles: list[str] = []
    requests: list[str] = []
    context = browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=theme)
    page = context.new_page()
    page.set_default_timeout(1000 * PATIENCE)
    page.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(file.as_uri())
    yield page
    context.close()
    assert (troubles, set(requests)) == ([], {file.as_uri()})


def view(page: Any, name: str) -> None:
    page.get_by_role("navigation", name="Plan").get_by_role("link", name=name).click()


def test_the_views_of_a_report(browser: Any, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    earlier = [EarlierRun("release-1", "completed", 100.0, 101.0)]
    result, recording = failed()
    write_report(file, result, recording, origin=PlanOrigin("release.yaml", {"day": NASTY}, earlier))
    with shown(browser, file) as page:
        page.get_by_role("heading", name="release").wait_for()
        assert page.title() == "release: report"
        text = page.locator("main").inner_text()
        for part in (
            "partially failed",
            f"RuntimeError: no luck {NASTY}",
            f"day\n{NASTY}",
            "release-1",
            "from release.yaml",
        ):
            assert part in text, part
        page.get_by_role("link", name="build").click()
        drawer = page.locator(".drawer")
        drawer.get_by_text("no luck").first.wait_for()
        drawer.get_by_text("Traceback", exact=False).first.wait_for()
        page.keyboard.press("Escape")

        page.locator("[data-box=pdf].is-removed").wait_for()
        page.locator("[data-box=fetch]").click()
        drawer.get_by_text(f"fetched {NASTY}").wait_for()
        assert page.get_by_role("button", name="Edit").count() == 0, "nothing can be changed"
        page.get_by_role("searchbox").fill("buil")
        page.locator("[data-box=fetch].dim").wait_for()
        page.get_by_role("searchbox").fill("")
        page.get_by_role("button", name="1 failed").click()
        page.locator("[data-box=fetch].dim").wait_for()
        page.get_by_role("button", name="List").click()
        page.locator(".task-list li").first.wait_for()
        assert page.locator(".task-list li").count() == 1

        view(page, "Timeline")
        page.locator("[data-bar]").first.wait_for()
        assert page.locator("[data-bar]").count() == 3
        assert "edit cycles" in page.locator(".timeline").inner_text()
        page.locator("[data-bar^=fetch]").press("Enter")
        drawer.wait_for()

        view(page, "Edits")
        page.get_by_text("remove task 'pdf'").wait_for()
        page.get_by_text("there is no task 'nothing'").wait_for()
        assert page.get_by_text("show this version").count() == 0
        page.keyboard.press("1")
        page.get_by_role("heading", name="Earlier runs").wait_for()
        page.get_by_role("button", name="Dark theme").click()
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        assert page.title() == "release: report"


@pytest.mark.parametrize("name", ["Summary", "Plan", "Timeline", "Edits"])
def test_a_report_can_be_read_by_everybody(browser: Any, tmp_path: Path, name: str) -> None:
    write_report(tmp_path / "report.html", *failed())
    for theme in ("light", "dark"):
        with shown(browser, tmp_path / "report.html", PHONE, theme) as page:
            view(page, name)
            page.wait_for_timeout(50)
            assert page.evaluate("document.documentElement.scrollWidth") == PHONE[0]
            assert serious_findings(page) == []


def test_the_report_of_a_large_plan_has_all_tasks(browser: Any, tmp_path: Path) -> None:
    plan = Constellation("large")
    for number in range(2_000):
        plan.add(Task(f"t{number}", call=work), after=f"t{number - 40}" if number >= 40 else None)
    write_report(tmp_path / "report.html", Result(plan, [], None, "scoped"))
    with shown(browser, tmp_path / "report.html") as page:
        page.keyboard.press("2")
        page.locator(".box").first.wait_for()
        page.get_by_role("searchbox").fill("t1999")
        page.get_by_role("button", name="List").click()
        page.locator(".task-list li").filter(has_text="t1999").click()
        page.locator(".drawer").get_by_text("t1959").wait_for()


def test_a_report_in_the_frame_of_a_notebook(browser: Any, tmp_path: Path) -> None:
    """The frame has no origin: no storage, no address of its own."""
    file = tmp_path / "notebook.html"
    file.write_text(f"<!doctype html><body>{result_html(*failed())}", encoding="utf-8")
    context = browser.new_context()
    page = context.new_page()
    troubles: list[str] = []
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.goto(file.as_uri())
    frame = page.frame_locator("iframe")
    frame.get_by_role("heading", name="release").wait_for()
    frame.get_by_role("link", name="Timeline").click()
    frame.locator("[data-bar]").first.wait_for()
    frame.get_by_role("link", name="Plan").click()
    frame.locator("[data-box=fetch]").click()
    frame.locator(".drawer").wait_for()
    frame.get_by_role("button", name="Dark theme").click()
    assert troubles == []
    assert page.url == file.as_uri()
    context.close()
