"""Chromium for the tests of the page: one browser for a module, and pages that notice errors and foreign requests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.process_scenes import PATIENCE

playwright_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = playwright_api.expect
CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")
"""The shell takes half the processor time: it has no windows, themes and extensions around the page."""
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (make chromium)")

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
ARGUMENTS += ["--disable-component-update", "--disable-sync"]
DESKTOP, PHONE = (1280, 800), (390, 844)
AXE = Path(__file__).parent / "axe.min.js"


@contextmanager
def chromium() -> Iterator[Any]:
    with playwright_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS, timeout=1000 * PATIENCE)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(
    browser: Any,
    url: str,
    address: str = "",
    theme: str = "light",
    size: tuple[int, int] = DESKTOP,
    *,
    failures: bool = False,
    now: float | None = None,
) -> Iterator[Any]:
    """A page. At its end there must have been no error and no request to another origin. With ``failures``, the test
    lets requests fail; its clock stands still at ``now``."""
    troubles: list[str] = []
    requests: list[str] = []
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme=theme,
        reduced_motion="reduce",
        timezone_id="UTC",
        locale="en-GB",
    )
    page = context.new_page()
    if now is not None:
        page.clock.set_fixed_time(now)
    page.set_default_timeout(1000 * PATIENCE)
    page.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: troubles.append(f"error: {error}"))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(f"{url}/{address}")
    page.locator("main").wait_for()
    yield page
    context.close()
    assert [requested for requested in requests if not requested.startswith((url, "data:"))] == []
    assert [trouble for trouble in troubles if not (failures and "Failed to load resource" in trouble)] == []


def serious_findings(page: Any) -> list[str]:
    """What axe-core finds that is serious or critical."""
    page.evaluate(AXE.read_text("utf-8"))  # the policy of the page refuses a script element
    results = page.evaluate("axe.run({ resultTypes: ['violations'] })")
    return [
        f"{violation['id']}: {violation['help']}: {violation['nodes'][0]['html'][:200]}"
        for violation in results["violations"]
        if violation["impact"] in ("serious", "critical")
    ]
