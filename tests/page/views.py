"""The views of the page: the address of each, and what is there when it is drawn."""

from __future__ import annotations

from typing import Any

VIEWS = {
    "plans": "#/plans",
    "graph": "#/plans/release/graph",
    "drawer": "#/plans/release/graph?task=test-2",
    "failed": "#/plans/release/graph?task=lint",
    "list": "#/plans/release/graph?as=list",
    "past": "#/plans/release/graph?version=0",
    "approval": "#/plans/release/graph?approval=1",
    "agent": "#/plans/release/graph?task=notes",
    "composer": "#/plans/release/graph",
    "timeline": "#/plans/release/timeline",
    "edits": "#/plans/release/edits",
    "devices": "#/fleet/devices?device=lab-1",
    "runs": "#/fleet/runs?status=failed",
    "run": "#/fleet/runs?run=run-0",
    "schedules": "#/fleet/schedules",
    "calendar": "#/fleet/schedules?schedule=nightly",
    "series": "#/fleet/series",
    "notices": "#/fleet/notices",
    "audit": "#/fleet/audit",
    "submit": "#/submit",
    "help": "#/plans",
}
KEYS = {"composer": "e", "help": "?"}
"""The views that have no address of their own, and the key that opens each."""
OPENED = {"composer": ".composer", "help": "dialog[open]"}
"""What these keys open."""

PLAN_VIEWS = {
    "plans": "#/plans",
    "graph": "#/plans/{plan}/graph",
    "failed": "#/plans/{plan}/graph?task={failed}",
    "list": "#/plans/{plan}/graph?as=list",
    "timeline": "#/plans/{plan}/timeline",
    "edits": "#/plans/{plan}/edits",
    "devices": "#/fleet/devices",
    "runs": "#/fleet/runs",
}
"""The views of one plan, for plans of several sizes."""

LANDMARKS = {
    "graph": ".box",
    "drawer": ".drawer .output",
    "failed": ".drawer h2",
    "list": ".task-list li",
    "timeline": ".bar",
    "edits": ".batch, .empty",
    "calendar": ".day.today.tick-running",
    "past": ".box",
    "approval": ".mark-added",
    "submit": "#findings .good",
    "audit": "table",
    "composer": ".box",
}
"""What is there when a view is drawn, if it is not a heading, a list or a table."""


def open_view(page: Any, url: str, name: str, address: str) -> None:
    """Show a view with nothing of the view before, and wait until it is drawn."""
    page.goto(f"{url}/{address}")
    page.reload()
    page.locator(LANDMARKS.get(name, "main h2, main li, main tr")).first.wait_for()
    page.locator(".loading").wait_for(state="detached")
    if name in KEYS:
        page.keyboard.press(KEYS[name])
        page.locator(OPENED[name]).wait_for()
