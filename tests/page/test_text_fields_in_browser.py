"""Every field for text keeps newlines, tabs, quotes and unicode, and a form sends nothing that was not typed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from asterism import EditBatch
from tests.page.browser_scenes import chromium, expect, needs_chromium, opened
from tests.page.plan_server import PlanScene, release_scene, served
from tests.page.sized_scenes import small_scene
from tests.process_scenes import PATIENCE

pytestmark = needs_chromium

SCRIPT = 'set -e\n\tif [ "$a" = \'b\' ]; then\n\t\techo "größer – 日本語 🚀" \\\n\t\t  `date`\n\tfi\n\nexit 0\n'
"""Several lines with tabs, quotes and unicode, and an empty line."""
AGENT = {"description": SCRIPT, "tips": ["one", "two lines\nof one tip"], "result": {"type": "object"}}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


def composer(page: Any) -> Any:
    page.locator(".box").first.wait_for()
    page.keyboard.press("e")
    return page.get_by_role("complementary", name="Edit the plan")


def test_a_script_is_edited_with_all_its_lines(browser: Any) -> None:
    scene = small_scene()
    scene.edit(EditBatch.from_json({"edits": [change("package", shell=SCRIPT, description=SCRIPT)]}))
    with served(scene) as url, opened(browser, url, "#/plans/nightly/graph?task=package") as page:
        page.get_by_role("button", name="Edit package").click()
        form = page.get_by_role("complementary", name="Edit the plan")
        for label in ("Command", "Description"):
            expect(form.get_by_label(label)).to_have_value(SCRIPT, timeout=1000 * PATIENCE)
        form.get_by_label("Command").fill(f"{SCRIPT}exit 1\n")
        form.get_by_label("Reason").fill("first\n\t\"second\" – 'third'")
        form.get_by_role("button", name="Apply").click()
        form.wait_for(state="detached")
    [(path, body)] = scene.posted
    assert path == "plans/nightly/edits"
    assert body["edits"] == [change("package", shell=f"{SCRIPT}exit 1\n")], "what was not typed is not sent"
    assert body["reason"] == "first\n\t\"second\" – 'third'"


def test_a_field_that_has_its_old_text_again_is_not_sent(browser: Any) -> None:
    scene = small_scene()
    with served(scene) as url, opened(browser, url, "#/plans/nightly/graph?task=package") as page:
        page.get_by_role("button", name="Edit package").click()
        form = page.get_by_role("complementary", name="Edit the plan")
        for label, text in (("Command", "make package"), ("Description", ""), ("Timeout in seconds", "")):
            form.get_by_label(label).fill("7")
            form.get_by_label(label).fill(text)
        form.get_by_label("Retries").fill("2")
        form.get_by_role("button", name="Apply").click()
        form.wait_for(state="detached")
    assert scene.posted[0][1]["edits"] == [change("package", retries=2)]


def test_every_field_of_an_edit_keeps_its_text(browser: Any) -> None:
    scene = small_scene()
    with served(scene) as url, opened(browser, url, "#/plans/nightly/graph") as page:
        form = composer(page)

        def add(operation: str) -> Any:
            form.get_by_label("Add an operation").select_option(operation)
            return form.locator(".operations > li").last

        fields = add("add_task")
        fields.get_by_label("Id").fill("größe")
        fields.get_by_label("Command").fill(SCRIPT)
        fields.get_by_label("Device").fill('büro "2"')
        fields.get_by_label("After").select_option("package")
        fields.get_by_label("After").select_option("docs")
        fields.get_by_role("button", name="Leave out docs").click()
        fields.get_by_label("More fields (JSON)").fill('{\n\t"env": {"A": "ä\\n\\t\'"}\n}')
        fields = add("add_task")
        fields.get_by_label("Id").fill("notes")
        fields.get_by_label("Work").select_option("agent")
        fields.get_by_label("What to do").fill(SCRIPT)
        fields.get_by_label("Tips").fill('"one"\n\ttwo – ü')
        fields.get_by_label("Expected result").fill('{\n\t"title": "ü"}')
        assert "größe" in fields.get_by_label("After").inner_text(), "a task of this batch can be chosen"
        fields.get_by_label("After").select_option("größe")
        fields = add("cancel_task")
        fields.get_by_label("Task").fill("announce")
        fields.get_by_label("Reason").fill(SCRIPT)
        fields = add("add_dependency")
        fields.get_by_role("combobox", name="From").fill("docs")
        fields.get_by_role("combobox", name="To").fill("package")
        fields.get_by_label("Condition").fill("result.ok\n\t&& result.text == 'ü'")
        with page.expect_response("**/edits"):
            form.get_by_role("button", name="Dry run").click()
    edits = scene.posted[0][1]["edits"]
    agent = {"description": SCRIPT, "tips": ['"one"', "two – ü"], "result": {"title": "ü"}}
    assert edits == [
        {
            "op": "add_task",
            "task": {"id": "größe", "shell": SCRIPT, "device": 'büro "2"', "env": {"A": "ä\n\t'"}},
        },
        {"op": "add_dependency", "source": "package", "target": "größe"},
        {"op": "add_task", "task": {"id": "notes", "agent": agent}},
        {"op": "add_dependency", "source": "größe", "target": "notes"},
        {"op": "cancel_task", "task_id": "announce", "reason": SCRIPT},
        {"op": "add_dependency", "source": "docs", "target": "package", "when": "result.ok\n\t&& result.text == 'ü'"},
    ]


def waiting_scene() -> PlanScene:
    """An edit waits with a script, work for an agent, and a reason of two lines."""
    scene = release_scene()
    tasks = [{"id": "mend", "shell": SCRIPT}, {"id": "describe", "agent": AGENT}]
    batch = {
        "author": "model",
        "reason": "first\n\tsecond",
        "edits": [{"op": "add_task", "task": task} for task in tasks],
    }
    scene.approvals[0]["batch"] = batch
    return scene


def test_a_waiting_edit_that_nobody_changes_is_approved_as_it_is(browser: Any) -> None:
    scene = waiting_scene()
    with served(scene) as url, opened(browser, url, "#/plans/release/edits") as page:
        page.get_by_role("button", name="Change…").click()
        form = page.get_by_role("complementary", name="Edit the plan")
        expect(form.get_by_label("Command")).to_have_value(SCRIPT, timeout=1000 * PATIENCE)
        form.get_by_role("button", name="Approve changes").click()
        form.wait_for(state="detached")
    assert scene.posted == [("plans/release/approvals/1/approve", {})]


def test_of_a_waiting_edit_only_what_is_changed_differs(browser: Any) -> None:
    scene = waiting_scene()
    waiting = scene.approvals[0]["batch"]["edits"]
    with served(scene) as url, opened(browser, url, "#/plans/release/edits") as page:
        page.get_by_role("button", name="Change…").click()
        form = page.get_by_role("complementary", name="Edit the plan")
        form.get_by_label("What to do").fill(f"{SCRIPT}more")
        form.get_by_role("button", name="Approve changes").click()
        form.wait_for(state="detached")
    [(_, body)] = scene.posted
    described = {"op": "add_task", "task": {"id": "describe", "agent": {**AGENT, "description": f"{SCRIPT}more"}}}
    assert body == {"edits": [waiting[0], described], "reason": "first\n\tsecond"}


def test_the_reason_of_a_decision_keeps_its_lines(browser: Any) -> None:
    scene = waiting_scene()
    with served(scene) as url, opened(browser, url, "#/plans/release/edits") as page:
        page.get_by_label("Reason for the decision").fill(SCRIPT)
        page.get_by_role("button", name="Refuse").click()
        page.get_by_label("Reason for the decision").wait_for(state="detached")
    assert scene.posted == [("plans/release/approvals/1/refuse", {"reason": SCRIPT})]


def test_a_new_plan_keeps_the_text_of_all_its_fields(browser: Any) -> None:
    scene = small_scene()
    declared = {"description": "", "choices": None, "default": None, "required": False}
    params = [{"name": "script", "type": "text", **declared}, {"name": "cities", "type": "list", **declared}]
    scene.checked = {**scene.checked, "params": [*params, {"name": "count", "type": "integer", **declared}]}
    with served(scene) as url, opened(browser, url, "#/submit") as page:
        page.get_by_label("Text of the plan file").fill(SCRIPT)
        page.get_by_label("script", exact=True).fill(SCRIPT)
        page.get_by_label("cities", exact=True).fill('[\n\t"Köln",\n"\'"]')
        page.get_by_label("Reason").fill(SCRIPT)
        with page.expect_response("**/plans"):
            page.get_by_role("button", name="Submit").click()
    body = next(body for path, body in scene.posted if path == "plans")
    given = {"script": SCRIPT, "cities": ["Köln", "'"]}
    assert body == {"text": SCRIPT, "file": "", "params": given, "reason": SCRIPT}


def change(task: str, **changes: Any) -> dict[str, Any]:
    return {"op": "update_task", "task_id": task, "changes": changes}
