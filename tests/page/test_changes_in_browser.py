"""Changing one task in the browser: before it starts, in the place of one that failed, and with a retry from it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.page.browser_scenes import PHONE, chromium, expect, needs_chromium, opened
from tests.page.plan_server import served
from tests.page.sized_scenes import small_scene
from tests.process_scenes import PATIENCE

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


def test_a_failed_task_of_a_plan_that_ended_is_changed_and_the_plan_continues_from_it(browser: Any) -> None:
    scene = small_scene()
    scene.state = "partially_failed"
    with served(scene) as url, opened(browser, url, "#/plans/nightly/graph?task=lint") as page:
        page.get_by_role("button", name="Change and continue from here").press("Enter")
        form = page.get_by_role("complementary", name="Edit the plan")
        command = form.get_by_label("Command")
        expect(command).to_have_value("make lint", timeout=1000 * PATIENCE)
        command.fill("make lint FIX=1")
        form.get_by_role("button", name="Dry run").press("Enter")
        form.get_by_text("run 2 tasks again: lint, package").wait_for()
        change = {"op": "update_task", "task_id": "lint", "changes": {"shell": "make lint FIX=1"}}
        asked = {"from_tasks": ["lint"], "edits": [change], "reason": "", "dry_run": True}
        assert scene.posted == [("plans/nightly/retry", asked)]
        form.get_by_role("button", name="Change and continue").press("Enter")
        form.wait_for(state="detached")
        assert scene.posted[1:] == [("plans/nightly/retry", {**asked, "dry_run": False})]


def test_another_task_takes_the_place_of_one_that_failed_while_the_plan_goes_on(browser: Any) -> None:
    scene = small_scene()
    with served(scene) as url, opened(browser, url, "#/plans/nightly/graph?task=lint", size=PHONE) as page:
        page.get_by_role("button", name="Change and continue from here").click()
        form = page.get_by_role("complementary", name="Edit the plan")
        form.get_by_label("Command").fill("make lint FIX=1")
        form.get_by_role("button", name="Dry run").click()
        form.locator(".verdict .good").wait_for()
        form.get_by_role("button", name="Apply").click()
        form.wait_for(state="detached")
    nodes = scene.plan.nodes
    assert nodes["lint-2"].task.shell == "make lint FIX=1"
    assert set(nodes["lint-2"].parents) == {"fetch"}
    assert set(nodes["package"].parents) == {"lint-2", "test-core", "test-store", "test-page"}


def test_the_list_has_edit_beside_each_task_that_may_change(browser: Any) -> None:
    scene = small_scene()
    with served(scene) as url, opened(browser, url, "#/plans/nightly/graph?as=list") as page:
        page.locator(".task-list li").first.wait_for()
        names = [button.get_attribute("aria-label") for button in page.get_by_text("Edit", exact=True).all()]
        changeable = ["lint", "test-page", "package", "publish", "announce"]
        assert [name for name in names if name] == [f"Edit {task}" for task in changeable]
        page.get_by_role("button", name="Edit publish").click()
        page.get_by_role("complementary", name="Edit the plan").get_by_label("Command").wait_for()
