"""A request in words on the page: rounds with diffs, by keyboard, and only where a model and a scope allow it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_model_commands import MODEL
from tests.cli.test_model_commands import served as model_served
from tests.models.model_server import Reply
from tests.page.browser_scenes import PHONE, chromium, needs_chromium, opened, serious_findings
from tests.page.test_served_page import free_port, server, submit

pytestmark = [needs_chromium, pytest.mark.long]

PLAN = """asterism: 1
id: nightly
tasks:
  build: {shell: 'while [ ! -e go-on ]; do sleep 0.05; done'}
  mail: {shell: mail-it, after: build}
"""
CHAT = [
    {"op": "remove_task", "task_id": "mail"},
    {"op": "add_task", "task": {"id": "chat", "shell": "echo a message"}},
    {"op": "add_dependency", "source": "build", "target": "chat", "on": "success"},
]
RENAMED = [{"op": "update_task", "task_id": "mail", "changes": {"shell": "echo a message"}}]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


def test_a_person_asks_looks_asks_for_something_else_and_applies_it_by_keyboard(browser: Any, tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    script = [Reply.edits(*CHAT), Reply.edits(*RENAMED), Reply.refusal()]
    with (
        model_served(*script) as models,
        server(tmp_path, port, "--model", MODEL, "--budget", "9calls", **models.environment) as (_, login),
        opened(browser, url, login.removeprefix(f"{url}/"), failures=True) as page,
    ):
        submit(page, PLAN)
        page.goto(f"{url}/#/plans/nightly/graph")
        page.locator("[data-box=mail]").wait_for()
        page.keyboard.press("a")
        drawer = page.get_by_role("complementary", name="Ask for a change")
        request = drawer.get_by_label("Request")
        assert request.evaluate("(box) => box === document.activeElement")
        page.keyboard.type("send a chat message instead of the mail")
        page.keyboard.press("Control+Enter")
        drawer.get_by_text("remove task 'mail'").wait_for()
        drawer.get_by_text("echo a message").wait_for()  # what would be executed
        drawer.get_by_text("The model proposes 3 operations. The graph shows the outcome.").wait_for()
        page.locator("[data-box=chat]").wait_for()
        assert serious_findings(page) == []
        page.keyboard.type("keep the task, change its command")
        page.keyboard.press("Control+Enter")
        drawer.get_by_text("update task 'mail': shell").wait_for()
        drawer.get_by_text("shell: mail-it -> echo a message").wait_for()  # the old value, too
        drawer.get_by_text("3 operations, not applied").wait_for()
        assert serious_findings(page) == []
        drawer.get_by_role("button", name="Apply").press("Enter")
        drawer.wait_for(state="detached")
        page.goto(f"{url}/#/plans/nightly/edits")
        page.get_by_text("send a chat message instead of the mail; keep the task, change its command").first.wait_for()
        page.goto(f"{url}/#/plans/nightly/graph")
        page.get_by_role("button", name="Ask").press("Enter")
        drawer.get_by_label("Request").fill("delete everything")
        drawer.get_by_role("button", name="Ask").press("Enter")
        drawer.get_by_text("refused to answer").wait_for()
        page.keyboard.press("Escape")
        drawer.wait_for(state="detached")
        (tmp_path / "go-on").touch()


def test_all_edits_can_be_read_before_they_are_applied(browser: Any, tmp_path: Path) -> None:
    """The page left out those after the first hundred, and the terms of dependencies."""
    many = [{"op": "add_task", "task": {"id": f"t-{number}", "shell": f"run {number}"}} for number in range(110)]
    repair = {"op": "add_dependency", "source": "build", "target": "t-0", "on": "failure", "handled": True}
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with (
        model_served(Reply.edits(many[0], repair, *many[1:])) as models,
        server(tmp_path, port, "--model", MODEL, **models.environment) as (_, login),
        opened(browser, url, login.removeprefix(f"{url}/")) as page,
    ):
        submit(page, PLAN)
        page.goto(f"{url}/#/plans/nightly/graph")
        page.locator("[data-box=mail]").wait_for()
        page.keyboard.press("a")
        drawer = page.get_by_role("complementary", name="Ask for a change")
        drawer.get_by_label("Request").fill("more tasks")
        page.keyboard.press("Control+Enter")
        drawer.get_by_text("on failure, handled").wait_for()
        assert not drawer.get_by_text("run 109").is_visible()
        drawer.get_by_text("11 more edits").click()
        drawer.get_by_text("run 109").wait_for()
        (tmp_path / "go-on").touch()


def test_the_box_is_absent_without_a_model_and_for_those_who_may_not_edit(browser: Any, tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with server(tmp_path, port) as (_, login), opened(browser, url, login.removeprefix(f"{url}/")) as page:
        submit(page, PLAN)
        page.goto(f"{url}/#/plans/nightly/graph")
        page.get_by_role("button", name="Edit").first.wait_for()
        assert page.get_by_role("button", name="Ask").count() == 0
        page.locator("main").press("a")
        assert page.get_by_role("complementary", name="Ask for a change").count() == 0
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with (
        model_served(Reply.edits(*CHAT)) as models,
        server(tmp_path, port, "--model", MODEL, **models.environment) as (_, login),
    ):
        command = [sys.executable, "-m", "asterism", "token", "login", "--scope", "observe", "--json"]
        words = [*command, "--store", f"sqlite:///{tmp_path}/fleet.db", "--server", url]
        link = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        address = link.partition(f"{url}/")[2].partition('"')[0]
        with opened(browser, url, address, size=PHONE) as page:
            page.goto(f"{url}/#/plans/nightly/graph")
            page.locator("[data-box=mail]").wait_for()
            assert page.get_by_role("button", name="Ask").count() == 0
        (tmp_path / "go-on").touch()
