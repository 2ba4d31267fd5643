"""What the page offers to whom, against what the API answers to them; the name and the way out in the header."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from asterism.api.operation import API, path_fields
from asterism.api.operations import OPERATIONS
from tests.page.browser_scenes import PHONE, chromium, needs_chromium, opened, serious_findings
from tests.page.plan_server import PlanScene, release_scene, served
from tests.server.server_scenes import server_scene

pytestmark = [needs_chromium, pytest.mark.long]

SCOPES = ("observe", "operate", "series", "event", "admin", "edit:release", "edit:other")

VIEWS = {
    "#/plans": ".plans",
    "#/submit": ".submit-form, .plans",
    "#/plans/release/graph": ".box",
    "#/plans/release/graph?task=notes": ".drawer-status",
    "#/plans/release/graph?task=fetch": ".drawer-status",
    "#/plans/release/graph?approval=1": ".mark-added",
    "#/plans/release/edits": ".batch",
    "#/fleet/runs?status=failed": "table",
    "#/fleet/runs?run=run-0": ".drawer .facts",
    "#/fleet/schedules": "table",
}
"""Each with what is there when everything is."""

OFFERED = {
    *("edit_plan", "undo_edit", "approve_edit", "refuse_edit", "claim_cycle", "answer_cycle", "decide_budget"),
    *("pause_plan", "resume_plan", "cancel_plan", "retry_plan", "pause_schedule", "resume_schedule", "run_schedule"),
    *("submit_plan", "check_plan", "act_on_runs", "pause_run", "resume_run", "cancel_run", "retry_run"),
}
"""What the page offers to somebody who may do everything, in the views of the scenes below."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


def scenes(*scopes: str) -> Iterator[PlanScene]:
    """A plan that runs, a paused one, one that has ended, each with every kind of run."""
    for state, paused, status in (("executing", None, "processing"), ("executing", "by ann", "paused")):
        scene = release_scene()
        scene.state, scene.scopes, scene.paused = state, list(scopes), paused
        scene.runs[0].update(status=status, paused=paused)
        yield scene
    ended = release_scene()
    ended.state, ended.scopes = "partially_failed", list(scopes)
    ended.runs[0].update(status="failed", ended_at=ended.began)
    yield ended


def offered(browser: Any, *scopes: str) -> set[str]:
    """The operations behind all buttons that the page shows to somebody with these scopes."""
    found = set[str]()
    for scene in scenes(*scopes):
        with served(scene) as url, opened(browser, url, failures=True) as page:
            for view, landmark in VIEWS.items():
                page.evaluate("address => { location.hash = address; }", view)
                page.locator(f"main :is({landmark}, .empty, [aria-label=Series])").first.wait_for()
                found |= set(page.eval_on_selector_all("[data-operation]", "all => all.map(e => e.dataset.operation)"))
    return found


def refused(*scopes: str) -> set[str]:
    """The operations of the page that the API refuses to somebody with these scopes."""
    with ThreadPoolExecutor(1) as thread:  # the browser has a loop in this one
        return thread.submit(asyncio.run, _refused(*scopes)).result()


async def _refused(*scopes: str) -> set[str]:
    refusals = set[str]()
    async with server_scene() as server, server.client(*scopes) as client:
        for name in OFFERED:
            operation = OPERATIONS[name]
            known = dict.fromkeys(path_fields(operation.path), "1") | {"plan": "release"}
            answer = await client.request(operation.method, API + operation.path.format(**known), json={})
            if answer.status_code == 403:
                refusals.add(name)
    return refusals


@pytest.mark.parametrize("scope", SCOPES)
def test_the_page_offers_what_the_api_does_and_nothing_else(browser: Any, scope: str) -> None:
    assert offered(browser, scope) == OFFERED - refused(scope)


def test_a_page_that_asks_nobody_offers_what_is_refused(browser: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the list of the server, an observer would be offered everything."""
    monkeypatch.setattr("tests.page.plan_server.operations_of", lambda scopes, plan: [*OPERATIONS])
    assert offered(browser, "observe") & refused("observe")


def test_the_header_has_the_name_and_the_way_out(browser: Any) -> None:
    for size in (None, PHONE):
        scene = release_scene()
        with served(scene) as url, opened(browser, url, size=size or (1440, 900), failures=True) as page:
            page.get_by_title("Logged in as ann (admin)").wait_for()
            assert serious_findings(page) == []
            page.get_by_role("button", name="Log out").press("Enter")
            page.get_by_text("You are not signed in.").wait_for()
            assert ("logout", {}) in scene.posted
            assert page.get_by_role("link", name="Plans").count() == 0


def test_somebody_without_any_scope_is_told_so(browser: Any) -> None:
    scene = release_scene()
    scene.denied = "you are logged in as ann, but none of your groups may do anything here"
    with served(scene) as url, opened(browser, url, failures=True) as page:
        page.get_by_text("none of your groups").wait_for()
        assert page.get_by_role("alert").count() == 0
