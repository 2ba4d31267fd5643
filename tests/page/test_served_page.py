"""The page of the real server: a person logs in with the link, watches a plan and edits it; the server restarts."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.page.browser_scenes import chromium, needs_chromium, opened, serious_findings
from tests.process_scenes import PATIENCE

pytestmark = [needs_chromium, pytest.mark.long]

PLAN = """
asterism: 1
id: release
tasks:
  fetch:
    shell: echo fetched
  compile:
    shell: echo '<script>document.title = "broken"</script>'; while [ ! -e go-on ]; do sleep 0.05; done; echo compiled
    after: fetch
  lint:
    shell: exit 3
    after: fetch
  package:
    shell: echo packed
    after: compile
"""


@contextmanager
def server(folder: Path, port: int, *more: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """``asterism serve`` in a folder, with ``more`` options; the value is the process and the link of the login."""
    command = [sys.executable, "-m", "asterism", "serve", "--local", "3", "--store", f"sqlite:///{folder}/fleet.db"]
    process = subprocess.Popen(
        [*command, "--listen", f"127.0.0.1:{port}", "--json", *more],
        cwd=folder,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    text = ""
    while not text.rstrip().endswith("}"):
        line = process.stdout.readline()
        assert line, text
        text += line
    try:
        yield process, json.loads(text)["login"]
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def submit(page: Any, plan: str, file: str = "") -> None:
    script = """async ({ text, file }) => {
        const key = localStorage.getItem("asterism-page-key");
        const headers = { "Content-Type": "application/json", "X-Asterism-Page": key };
        return (await fetch("/api/v1/plans", { method: "POST", headers, body: JSON.stringify({ text, file }) })).status;
    }"""
    assert page.evaluate(script, {"text": plan, "file": file}) == 201


def test_a_plan_is_watched_edited_and_outlives_a_restart_of_the_server(tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with chromium() as browser, server(tmp_path, port) as (process, login):
        link = login.removeprefix(f"{url}/")
        with opened(browser, url, link, failures=True) as page:
            [session] = page.context.cookies()
            assert (session["httpOnly"], session["sameSite"], page.evaluate("document.cookie")) == (True, "Strict", "")
            assert "key=" not in page.url  # nor in the history of the browser
            submit(page, PLAN)
            page.goto(f"{url}/#/plans/release/graph")
            page.locator("[data-box=compile].is-running").wait_for()
            page.locator("[data-box=lint].is-failed").wait_for()
            page.locator("[data-box=compile]").click()
            page.get_by_role("log").get_by_text("broken").wait_for()
            assert page.title() == "release: Plan – Asterism"
            page.keyboard.press("Escape")
            edit(page)
            timeline_and_time_travel(page, url)
            process.kill()
            page.get_by_role("alert").get_by_text("connection to the server is lost").wait_for()
            with server(tmp_path, port):
                (tmp_path / "go-on").touch()
                page.get_by_role("alert").wait_for(state="detached")  # the page connects again by itself
                page.locator("[data-box=smoke].is-completed").wait_for()
                page.locator(".plan-bar").get_by_text("failed").first.wait_for()
                assert serious_findings(page) == []


def edit(page: Any) -> None:
    page.keyboard.press("e")
    page.get_by_label("Add an operation").select_option("add_task")
    page.get_by_label("Id").fill("smoke")
    page.get_by_label("Command").fill("echo smoke")
    page.get_by_label("After").select_option("package")
    page.get_by_role("button", name="Dry run").click()
    page.locator(".verdict .good").wait_for()
    page.get_by_label("Reason").fill("no release without smoke")
    page.get_by_role("button", name="Apply").click()
    page.locator(".composer").wait_for(state="detached")
    page.locator("[data-box=smoke]").wait_for()
    undo(page)


def undo(page: Any) -> None:
    """A task that was added by mistake is removed again by an undo."""
    page.keyboard.press("e")
    page.get_by_label("Add an operation").select_option("add_task")
    page.get_by_label("Id").fill("mistake")
    page.get_by_label("Command").fill("echo wrong")
    page.get_by_label("After").select_option("package")
    page.get_by_role("button", name="Apply").click()
    page.locator(".composer").wait_for(state="detached")  # the box alone may be the preview
    page.locator("[data-box=mistake]").wait_for()
    page.keyboard.press("3")
    page.get_by_role("button", name="Undo the last edit").click()
    page.get_by_role("button", name="Yes").click()
    page.get_by_text("undoes version 2").wait_for()
    page.keyboard.press("1")
    page.locator("[data-box=smoke]").wait_for()
    assert page.locator("[data-box=mistake]").count() == 0


def timeline_and_time_travel(page: Any, url: str) -> None:
    page.keyboard.press("3")
    page.locator(".batch").get_by_text("no release without smoke").wait_for()
    page.goto(f"{url}/#/plans/release/timeline")
    page.locator(".bar.is-running").get_by_text("compile").first.wait_for(state="attached")
    page.goto(f"{url}/#/plans/release/graph?version=0")
    page.locator("[data-box=smoke]").wait_for(state="detached")
    page.locator("[data-box=compile]").wait_for()
    page.get_by_role("button", name="Back to live").click()
    page.locator("[data-box=smoke]").wait_for()


ODD_NAMES = """
asterism: 1
id: ..
tasks:
  a/b: {shell: echo slash}
  ..: {shell: echo dots}
"""


def test_the_drawer_shows_tasks_whose_names_have_slashes_and_dots(tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with (
        chromium() as browser,
        server(tmp_path, port) as (_, login),
        opened(browser, url, login.removeprefix(f"{url}/"), failures=True) as page,
    ):
        submit(page, ODD_NAMES)
        page.goto(f"{url}/#/plans/../graph")
        for name, printed in (("a/b", "slash"), ("..", "dots")):
            page.locator(f'[data-box="{name}"].is-completed').click()
            page.get_by_role("log").get_by_text(printed).wait_for()
            page.keyboard.press("Escape")


FILES = r"""
asterism: 1
id: film
tasks:
  render:
    shell: mkdir out; echo '<script>document.title = "broken"</script>' > out/page.html; printf 'a,b\n1,2\n' > out/t.csv
    outputs: {frames: "out/*"}
"""


def test_the_drawer_shows_and_downloads_files(tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with (
        chromium() as browser,
        server(tmp_path, port) as (_, login),
        opened(browser, url, login.removeprefix(f"{url}/"), failures=True) as page,
    ):
        submit(page, FILES)
        page.goto(f"{url}/#/plans/film/graph")
        page.locator("[data-box=render].is-completed").click()
        page.get_by_role("button", name="out/t.csv").click()
        page.get_by_role("rowheader", name="1").wait_for()
        page.get_by_role("button", name="out/page.html", exact=True).click()
        page.locator(".preview .output").get_by_text("<script>").wait_for()
        with page.expect_download() as download:
            page.get_by_title("Download out/page.html").click()
        assert download.value.suggested_filename == "page.html"
        assert "<script>" in download.value.path().read_text()
        assert page.title() != "broken"


def test_a_plan_that_runs_in_a_terminal_is_watched_by_its_link(tmp_path: Path) -> None:
    """``asterism run plan.yaml --serve`` prints a link. Without a terminal, it serves until the plan ends."""
    last = "while [ ! -e end ]; do sleep 0.05; done; echo packed"
    (tmp_path / "plan.yaml").write_text(PLAN.replace("exit 3", "echo clean").replace("echo packed", last))
    environment = {**os.environ, "ASTERISM_STORE": f"sqlite:///{tmp_path}/fleet.db"}
    command = [sys.executable, "-m", "asterism", "run", "plan.yaml", "--serve", "--plain"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as running:
        assert running.stdout is not None
        link = next(match for line in running.stdout if (match := re.search(r"http://\S+/login\?code=\S+", line)))
        url, _, rest = link.group().rpartition("/")
        with chromium() as browser, opened(browser, url, rest, failures=True) as page:
            page.get_by_role("link", name="release").first.click()
            page.locator("[data-box=compile].is-running").wait_for()
            (tmp_path / "go-on").touch()
            page.locator("[data-box=compile].is-completed").wait_for()
            page.locator("[data-box=package].is-running").wait_for()
            (tmp_path / "end").touch()
            output, _ = running.communicate(timeout=PATIENCE)
    assert running.returncode == 0
    assert "package completed" in output


REVIEWED = """
asterism: 1
id: reviewed
tasks:
  fetch:
    shell: echo fetched
  site:
    shell: echo built
    after: fetch
"""


GATED = """
asterism: 1
id: gated
tasks:
  test: {shell: echo tested}
  deploy: {shell: echo deployed, after: test, approval: {timeout: 4h}}
  clean: {shell: echo cleaned, approval: {by: root@somewhere-else}}
  forget: {shell: echo forgotten, approval: {else: skip}}
"""


def test_the_start_of_a_task_is_approved_where_one_looks_at_it(tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with (
        chromium() as browser,
        server(tmp_path, port) as (_, login),
        opened(browser, url, login.removeprefix(f"{url}/"), failures=True) as page,
    ):
        submit(page, GATED)
        page.goto(f"{url}/#/plans/gated/graph")
        page.locator("[data-box=deploy]").get_by_text("waiting · for approval").wait_for()
        page.locator("[data-box=clean]").click()
        drawer = page.get_by_role("complementary")
        drawer.get_by_text("root@somewhere-else", exact=True).wait_for()
        drawer.get_by_role("button", name="Approve").click()
        drawer.get_by_text("is decided by root@somewhere-else").wait_for()
        page.locator("[data-box=deploy]").click()
        drawer.get_by_text("The start of deploy needs approval").wait_for()
        assert serious_findings(page) == []
        drawer.get_by_label("Reason for the decision").fill("the tests are green")
        drawer.get_by_role("button", name="Approve").click()
        page.locator("[data-box=deploy].is-completed").wait_for()
        drawer.get_by_role("button", name="Approve").wait_for(state="detached")
        page.keyboard.press("3")
        waiting = page.locator(".waiting", has_text="The start of forget needs approval")
        waiting.get_by_role("link", name="Show in the graph").wait_for()
        waiting.get_by_role("button", name="Refuse").click()
        page.locator(".batch", has_text="The start of forget").get_by_text("refused by").wait_for()
        page.locator(".batch", has_text="The start of deploy").get_by_text("the tests are green").wait_for()
        assert page.get_by_role("button", name="Undo the last edit").is_disabled()


def change_a_waiting_edit(page: Any) -> None:
    page.keyboard.press("e")
    page.get_by_label("Add an operation").select_option("add_task")
    page.get_by_label("Id").fill("mail")
    page.get_by_label("Command").fill("rm letters")
    page.get_by_role("button", name="Apply").click()
    waiting = page.locator(".waiting", has_text="add task 'mail'")
    waiting.get_by_text("mail deletes").wait_for()
    waiting.get_by_role("button", name="Change…").click()
    page.get_by_label("Command").fill("echo letters")
    page.get_by_role("button", name="Dry run").click()
    page.locator("[data-box=mail].mark-added").wait_for()
    page.get_by_role("button", name="Approve changes").click()
    page.locator(".composer").wait_for(state="detached")
    page.locator("[data-box=mail].is-completed").wait_for()


def test_a_cycle_is_answered_and_an_edit_approved(tmp_path: Path) -> None:
    """A plan whose editors are people: each end waits for them, and a task that one adds waits for approval."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    (tmp_path / "plan.yaml").write_text(REVIEWED)
    run = [sys.executable, "-m", "asterism", "run", "plan.yaml", "--store", f"sqlite:///{tmp_path}/fleet.db", "--local"]
    run += ["--editor", "outside", "--approve", "edits=add_task", "--plain"]
    with chromium() as browser, server(tmp_path, port) as (_, login):
        running = subprocess.Popen(run, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            with opened(browser, url, login.removeprefix(f"{url}/"), failures=True) as page:
                page.get_by_role("link", name="reviewed").click()
                page.locator("[data-box=site].held").wait_for()
                page.get_by_role("link", name="waiting for a person").click()
                page.get_by_role("button", name="Answer with edits").click()
                page.get_by_label("Add an operation").select_option("add_task")
                page.get_by_label("Id").fill("smoke")
                page.get_by_label("Command").fill("echo smoke")
                page.get_by_label("After").select_option("fetch")
                page.get_by_role("button", name="Answer", exact=True).click()
                page.get_by_role("button", name="Approve").click()
                page.locator(".batch").get_by_text("add task smoke").wait_for()
                page.goto(f"{url}/#/plans/reviewed/graph")
                page.locator("[data-box=smoke]").wait_for()
                change_a_waiting_edit(page)
        finally:
            running.terminate()
            running.wait(60)
