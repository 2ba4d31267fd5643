"""Lists of the page: plans of schedules in one row, batches, notices with links, decisions on edits, the audit log."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.page.browser_scenes import PHONE, chromium, expect, needs_chromium, opened, serious_findings
from tests.page.plan_server import NOW, PlanScene, release_scene, served
from tests.page.sized_scenes import small_scene
from tests.process_scenes import PATIENCE

pytestmark = needs_chromium

BATCH = {
    **{"name": "thumbnails", "runs": 40, "waiting": 10, "running": 4, "completed": 25, "failed": 1, "cancelled": 0},
    **{"ended": False, "created_at": NOW() - 600, "ended_at": NOW() - 5, "now": NOW(), "rate": 0.5, "time_left": 28},
    "failures": [
        {
            "id": "run-7",
            "label": "image 7",
            "device": "lab-1",
            "ended_at": NOW(),
            "error": "exit code 1",
            "tail": "no <b>",
        }
    ],
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


def at_rest() -> PlanScene:
    scene = small_scene()
    scene.state = "at_rest"
    return scene


def test_a_plan_at_rest_is_resumed_with_a_button(browser: Any) -> None:
    scene = at_rest()
    with served(scene) as url, opened(browser, url, "#/plans/nightly/graph") as page:
        resume = page.get_by_role("button", name="Resume")
        with page.expect_response("**/resume"):
            resume.click()
    assert scene.posted == [("plans/nightly/resume", {})]


def nights(scene: PlanScene) -> None:
    """Five plans of the schedule ``etl``, which starts at three in New York, among other plans."""
    name = "America/New_York"
    schedule = {"name": "etl", "workflow": None, "plan": "etl", "cron": "0 3 * * *", "timezone": name, "start": 0}
    scene.schedules.append({**schedule, "due_in": 5, "paused": None})
    first = datetime(2026, 10, 30, 7, tzinfo=UTC)  # the clock of New York is set back on the first of November
    for number in range(5):
        tick = first + timedelta(days=number, hours=number >= 2)
        plan = {
            **scene.summary(),
            "name": f"etl-{tick:%Y%m%dT%H%M%SZ}",
            "state": "completed",
            "state_text": "completed",
        }
        scene.others.insert(0, plan)
    scene.others.insert(2, {**scene.summary(), "name": "etl-of-somebody", "state": "completed"})


def test_the_plans_of_a_schedule_are_one_row_with_ticks_in_its_zone(browser: Any) -> None:
    scene = small_scene()
    nights(scene)
    with served(scene) as url, opened(browser, url, "#/plans") as page:
        rows = page.locator("tbody tr")
        expect(rows).to_have_count(3, timeout=1000 * PATIENCE)
        assert rows.nth(1).locator("th").inner_text().startswith("etl · Tue 3 Nov, 03:00 GMT-5")
        page.get_by_role("button", name="4 earlier plans of etl").press("Enter")
        expect(rows).to_have_count(7, timeout=1000 * PATIENCE)
        ticks = [rows.nth(place).locator("th").inner_text() for place in (2, 3, 4, 5)]
        assert ticks == [
            f"{day} {offset}"
            for day, offset in zip(
                ("Mon 2 Nov, 03:00", "Sun 1 Nov, 03:00", "Sat 31 Oct, 03:00", "Fri 30 Oct, 03:00"),
                ("GMT-5", "GMT-5", "GMT-4", "GMT-4"),
                strict=True,
            )
        ]
        assert serious_findings(page) == []
        page.reload()
        expect(rows).to_have_count(7, timeout=1000 * PATIENCE)
        page.get_by_role("link", name="Sun 1 Nov, 03:00 GMT-5").click()
        page.wait_for_url("**/plans/etl-20261101T080000Z/graph")


def test_a_calendar_has_no_gaps_before_its_schedule_existed(browser: Any) -> None:
    scene = release_scene()
    first = min(tick["tick"] for tick in scene.ticks)
    early = [tick for tick in scene.ticks if tick["tick"] < first + 15 * 86_400]
    for tick in early[1:]:
        tick.update(state="none", work=None)
    early[0].update(state="succeeded", work="run-early")
    scene.schedules[0]["start"] = early[-1]["tick"] + 1
    with served(scene) as url, opened(browser, url, "#/fleet/schedules?schedule=nightly") as page:
        page.locator(".day.today.tick-running").wait_for()
        page.locator(f"[data-day='{early[0]['date']}'].tick-succeeded").wait_for()
        assert page.locator(f"[data-day='{early[1]['date']}'].tick-empty").count() == 1
        assert page.locator(f"[data-day='{early[-1]['date']}'].tick-empty").count() == 1


@pytest.mark.parametrize("size", [(1440, 900), PHONE], ids=["1440", "390"])
def test_a_batch_has_a_page_and_runs_are_filtered_by_it(browser: Any, size: tuple[int, int]) -> None:
    scene = release_scene()
    scene.batches = [dict(BATCH)]
    scene.runs[2]["batch"] = "thumbnails"
    with served(scene) as url, opened(browser, url, "#/fleet/batches", size=size) as page:
        page.get_by_role("link", name="thumbnails").click()
        main = page.get_by_role("region", name="Batch thumbnails").first
        for text in ("26 of 40", "30 runs/min", "28 s", "exit code 1", "no <b>"):
            main.get_by_text(text).first.wait_for()
        assert serious_findings(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
        main.get_by_role("button", name="Retry").click()
        with page.expect_response("**/retry"):
            main.get_by_role("button", name="Yes").click()
        assert scene.posted == [("batches/thumbnails/retry", {"limit": 500})]
        main.get_by_role("link", name="Its runs").click()
        batch = page.get_by_role("textbox", name="Batch")
        assert batch.input_value() == "thumbnails"
        expect(page.locator("tbody tr")).to_have_count(1, timeout=1000 * PATIENCE)
        page.locator("tbody tr").get_by_role("link", name="thumbnails").click()
        main.wait_for()


def test_notices_link_to_what_they_are_about(browser: Any) -> None:
    scene = release_scene()
    about = (
        ("approval", "plan release: an edit by ann waits for approval 1 (asterism plan approvals release)"),
        ("schedule", "schedule nightly: plan nightly-20261113T080000Z is late: it has not ended 2 h after its tick"),
        ("schedule", "schedule nightly: 3 missed ticks were not created"),
    )
    for number, (kind, message) in enumerate(about, start=3):
        scene.notices.append({**scene.notices[0], "number": number, "kind": kind, "message": message, "device": None})
    with served(scene) as url, opened(browser, url, "#/fleet/notices") as page:
        page.locator(".notices li").first.wait_for()
        links = page.locator(".notices li a").evaluate_all(
            "all => all.map((one) => [one.text, one.getAttribute('href')])"
        )
        assert links == [
            ["nightly", "#/fleet/schedules?schedule=nightly"],
            ["nightly", "#/fleet/schedules?schedule=nightly"],
            ["nightly-20261113T080000Z", "#/plans/nightly-20261113T080000Z/graph"],
            ["release", "#/plans/release/edits"],
            ["run run-2", "#/fleet/runs?run=run-2"],
            ["lab-1", "#/fleet/devices?device=lab-1"],
            ["old-box", "#/fleet/devices?device=old-box"],
        ]


def test_edits_say_who_approved_and_who_refused_them(browser: Any) -> None:
    scene = release_scene()
    decided = {**scene.approvals[0], "decided_at": NOW() - 5}
    scene.decided = [
        {**decided, "id": 2, "state": "approved", "decided_by": "bea", "why": "it is needed", "version": 1},
        {**decided, "id": 3, "state": "refused", "decided_by": "carl", "why": "too dear", "version": None},
        {**decided, "id": 4, "state": "expired", "decided_by": "", "why": "", "version": None},
    ]
    with served(scene) as url, opened(browser, url, "#/plans/release/edits") as page:
        batches = page.locator(".batch")
        batches.filter(has_text="version 1").get_by_text("approved by bea").wait_for()
        batches.filter(has_text="rejected").get_by_text("refused by carl").wait_for()
        batches.get_by_text("too dear").wait_for()
        batches.get_by_text("not decided in time").wait_for()


def test_the_audit_log_says_when_without_scrolling(browser: Any) -> None:
    scene = release_scene()
    for entry in scene.audit:
        entry.update(target="release-" + 12 * "0123456789", reason=40 * "because of this ")
    with served(scene) as url, opened(browser, url, "#/fleet/audit", size=(1440, 900)) as page:
        page.locator("tbody tr").first.wait_for()
        right = page.locator(".sheet").evaluate("sheet => sheet.getBoundingClientRect().right")
        ends = page.locator("td[data-label='When'], td[data-label='Why']").evaluate_all(
            "all => all.map((one) => one.getBoundingClientRect().right)"
        )
        assert max(ends) <= right + 1
