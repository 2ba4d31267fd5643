"""The list of plans, and a new plan: text or file, parameters as a form, mistakes by line, and who did what."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.page.browser_scenes import DESKTOP, PHONE, chromium, needs_chromium, opened, serious_findings
from tests.page.plan_server import release_scene, served
from tests.page.test_served_page import free_port, server, submit

pytestmark = [needs_chromium, pytest.mark.long]

PLAN = """asterism: 1
id: backup
tags: [eu]
params:
  host: {type: text, description: The machine}
  parts: 4
tasks:
  save: {shell: "echo $host $parts"}
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


def test_a_plan_is_checked_line_by_line_filled_in_and_submitted(browser: Any, tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with server(tmp_path, port) as (_, login), opened(browser, url, login.removeprefix(f"{url}/")) as page:
        page.get_by_role("link", name="New plan").press("Enter")
        text = page.get_by_label("Text of the plan file")
        text.fill(PLAN.replace("shell", "shel"))
        page.locator(".findings").get_by_text("did you mean 'shell'").wait_for()
        assert page.get_by_role("button", name="Submit").is_disabled()
        page.get_by_role("button", name="Line 8").press("Enter")
        chosen = "(area) => area.value.slice(area.selectionStart, area.selectionEnd)"
        assert "shel:" in text.evaluate(chosen)
        file = tmp_path / "nightly.yaml"
        file.write_text(PLAN, "utf-8")
        page.set_input_files("input[type=file]", str(file))
        page.locator("#findings .good").wait_for()
        page.get_by_text("Without a value: host").wait_for()
        page.get_by_label("host").fill("alpha")
        page.get_by_label("parts").fill("many")
        page.get_by_text("This is not a whole number.").wait_for()
        assert page.get_by_role("button", name="Submit").is_disabled()
        page.get_by_label("parts").fill("3")
        page.get_by_label("Reason").fill("the disk is old")
        assert serious_findings(page) == []
        page.get_by_role("button", name="Submit").press("Enter")
        page.locator("[data-box=save].is-completed").wait_for()
        page.goto(f"{url}/#/plans")
        row = page.get_by_role("row", name="backup")
        row.get_by_text("1 of 1").first.wait_for()
        row.get_by_role("button", name="Only plans with the tag eu").press("Enter")
        page.get_by_role("button", name="Show plans without the tag eu, too").wait_for()
        page.goto(f"{url}/#/fleet/audit?operation=submit_plan")
        page.get_by_role("row", name="submit plan").get_by_text("the disk is old").wait_for()
        with page.expect_download() as download:
            page.get_by_role("button", name="Download as JSON lines").press("Enter")
        [entry] = [json.loads(line) for line in Path(download.value.path()).read_text("utf-8").splitlines()]
        assert (entry["operation"], entry["target"], entry["outcome"]) == ("submit_plan", "backup", "done")


def test_the_list_shows_the_last_ends_of_the_plans_of_one_file(browser: Any, tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with server(tmp_path, port) as (_, login), opened(browser, url, login.removeprefix(f"{url}/")) as page:
        for number, code in enumerate((0, 3, 0)):
            submit(page, f"asterism: 1\nid: night-{number}\ntasks: {{a: {{shell: exit {code}}}}}\n", "night.yaml")
            page.get_by_role("row", name=f"night-{number}").get_by_text("1 of 1").first.wait_for()
        page.get_by_role("row", name="night-2").locator(".recent a").nth(2).wait_for()
        marks = page.locator("tr", has=page.get_by_role("link", name="night-2", exact=True)).locator(".recent a")
        assert [mark.get_attribute("class") for mark in marks.all()] == ["is-completed", "is-failed", "is-completed"]
        assert "night-1" in marks.nth(1).get_attribute("aria-label")


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_new_views_are_accessible_and_fit(browser: Any, size: tuple[int, int], theme: str) -> None:
    scene = release_scene()
    scene.checked["findings"] = [{"line": 2, "text": "unknown key", "warning": False, "file": ""}]
    with served(scene) as url, opened(browser, url, theme=theme, size=size) as page:
        for view, landmark in {"#/plans": "table", "#/submit": ".findings li", "#/fleet/audit": "table"}.items():
            page.goto(f"{url}/{view}")
            page.locator(landmark).first.wait_for()
            assert serious_findings(page) == [], view
            assert page.evaluate("document.documentElement.scrollWidth") <= size[0], view
