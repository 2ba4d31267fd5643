"""The page in a browser: every view in both themes and at phone width, and all that a person does there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import date, timedelta
from typing import Any

import pytest

from asterism import Constellation, EditBatch, Task
from asterism.server.request_guard import SECURITY_HEADERS
from tests.page.browser_scenes import DESKTOP, PHONE, chromium, expect, needs_chromium, opened, serious_findings
from tests.page.plan_server import PlanScene, release_scene, served
from tests.page.views import VIEWS, open_view
from tests.process_scenes import PATIENCE

pytestmark = needs_chromium

NASTY = "<script>document.title='broken'</script><img src=x onerror=\"document.title='broken'\">"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.mark.long
def test_a_person_finds_a_task_and_edits_the_plan_with_the_keyboard_alone(browser: Any) -> None:
    scene = release_scene()
    with served(scene) as url, opened(browser, url, "#/plans/release/graph", failures=True) as page:
        page.locator(".box").first.wait_for()
        page.keyboard.press("/")
        page.keyboard.type("compile")
        page.keyboard.press("Enter")
        page.locator("[data-box=compile]:focus").wait_for()
        page.keyboard.press("ArrowRight")
        page.locator("[data-box^=test-]:focus").wait_for()
        page.keyboard.press("ArrowLeft")
        page.locator("[data-box=compile]:focus").wait_for()
        page.keyboard.press("Enter")
        page.get_by_role("complementary", name="Task compile").get_by_text("lab-1").wait_for()
        page.keyboard.press("Escape")
        page.locator(".drawer").wait_for(state="detached")
        assert "search=compile" in page.url

        page.keyboard.press("e")
        page.get_by_label("Add an operation").select_option("add_task")
        page.get_by_label("Id").fill("docs")
        page.get_by_label("After").select_option("package")
        page.get_by_role("button", name="Dry run").press("Enter")
        page.locator(".violations").get_by_text("docs").wait_for()
        page.get_by_label("Id").fill("smoke")
        page.get_by_role("button", name="Dry run").press("Enter")
        page.locator(".verdict .good").wait_for()
        page.locator("[data-box=smoke].mark-added").wait_for()
        assert "smoke" not in scene.plan
        places = dict(boxes(page))
        page.get_by_role("button", name="Apply").press("Enter")
        page.locator(".composer").wait_for(state="detached")
        page.locator("[data-box=smoke].mark-added").wait_for()
        assert [edge.source for edge in scene.plan["smoke"].dependencies] == ["package"]
        assert all(place == places.get(name, place) for name, place in boxes(page) if name != "smoke")


SEES_THE_CHANGE = """() => new MutationObserver(() => {
    const applied = !document.querySelector(".composer");
    window.changeSeen ||= applied && document.querySelector("[data-box=publish].mark-changed") !== null;
}).observe(document.body, { subtree: true, childList: true, attributes: true })"""


@pytest.mark.long
def test_every_kind_of_edit_is_shown_in_the_graph_before_it_is_applied(browser: Any) -> None:
    scene = release_scene()
    with served(scene) as url, opened(browser, url, "#/plans/release/graph?task=publish") as page:
        page.get_by_role("button", name="Edit publish").click()
        expect(page.get_by_label("Command")).to_have_value("make publish", timeout=1000 * PATIENCE)
        page.get_by_label("Command").fill("make publish-all")
        for kind, fields in {
            "add_task": {"Id": "verify"},
            "add_dependency": {"From": "verify", "To": "publish"},
            "remove_dependency": {"From": "site", "To": "publish"},
            "remove_task": {"Task": "roll-back"},
            "cancel_task": {"Task": "announce"},
        }.items():
            page.get_by_label("Add an operation").select_option(kind)
            for label, text in fields.items():
                page.get_by_label(label, exact=True).last.fill(text)
        page.get_by_label("After").select_option("package")
        page.get_by_role("button", name="Dry run").click()
        marked = {"publish": "changed", "verify": "added", "roll-back": "removed", "announce": "cancelled"}
        for task, mark in marked.items():
            page.locator(f"[data-box={task}].mark-{mark}").wait_for()
        assert page.locator(".line.mark-added").count() == 2
        assert page.locator(".line.mark-removed").count() == 2
        assert "verify" not in scene.plan
        planned = {name: place for name, place in boxes(page) if name != "roll-back"}
        page.evaluate(SEES_THE_CHANGE)  # the mark fades after some seconds
        page.get_by_role("button", name="Apply").click()
        page.locator(".composer").wait_for(state="detached")
        assert scene.plan.nodes["publish"].task.shell == "make publish-all"
        assert set(scene.plan.nodes["publish"].parents) == {"package", "sign", "verify"}
        assert "roll-back" not in scene.plan
        page.wait_for_function("window.changeSeen")
        assert dict(boxes(page)) == planned, "the plan is drawn as the dry run has shown it"


@pytest.mark.long
def test_collapsed_parts_leave_no_dependency_that_runs_backwards(browser: Any) -> None:
    plan = Constellation("parts")
    for name, after in {"a": [], "b": ["a"], "c": ["a", "b"], "d": ["c"], "e": ["b"], "f": ["d"]}.items():
        plan.add(Task(name, shell="true"), after=after)
    scene = PlanScene(plan)
    for name in "abcd":
        scene.set(name, "completed")
    scene.set("f", "waiting")
    with served(scene) as url, opened(browser, url, "#/plans/parts/graph") as page:
        page.locator("[data-box=a]").wait_for()
        page.keyboard.press("f")
        page.locator("[data-box=a]").wait_for(state="detached")
        assert page.locator(".fold").count() == 2  # a, and c behind b
        ends = """[...document.querySelectorAll('.line path')].map((path) => [0, path.getTotalLength()]
            .map((at) => path.getPointAtLength(at).x))"""
        assert all(start < end for start, end in page.evaluate(ends))
        page.get_by_role("button", name="1 waiting").click()
        page.locator("[data-box=e].dim").wait_for()
        assert page.locator("[data-box=f].dim").count() == 0


@pytest.mark.long
def test_tasks_that_wait_for_a_device_are_queued_and_have_no_lane(browser: Any) -> None:
    plan = Constellation("release")
    for number in range(12):
        plan.add(Task(f"t{number}", shell="true"))
    scene = PlanScene(plan)
    began = scene.began

    def attempt(begun: float | None, ended: float | None = None) -> dict[str, Any]:
        return {"created_at": began, "assigned_at": begun, "begun_at": begun, "ended_at": ended}

    for number in range(12):
        done, runs = number < 4, number < 8
        begun = began + (0 if done else 30) if runs else None
        ended = began + 30 if done else None
        facts = {"phase": None if done else "running" if runs else "queued", "attempt": attempt(begun, ended)}
        device = "lab-1" if runs else None
        status = "completed" if done else "running"
        scene.set(f"t{number}", status, device=device, started_at=began, ended_at=ended, **facts)
    with served(scene) as url, opened(browser, url, "#/plans/release/graph") as page:
        page.locator(".box.is-queued").first.wait_for()
        assert page.locator(".counts button").all_inner_texts() == ["◔\n4 queued", "◐\n4 running", "●\n4 completed"]
        page.locator("[data-box='t9']").click()
        drawer = page.locator(".drawer")
        drawer.get_by_text("Waited").wait_for()
        assert drawer.get_by_text("Took").count() == 0
        page.locator("[data-box='t2']").click()
        drawer.get_by_text("Took").wait_for()
        assert "30 s" in drawer.inner_text()
        page.goto(f"{url}/#/plans/release/timeline")
        page.locator(".bar.is-running").first.wait_for()
        assert page.locator(".bar").count() == 8
        assert page.locator(".lane-label").all_inner_texts() == ["lab-1"]
        assert len({page.locator(".bar").nth(place).bounding_box()["y"] for place in range(8)}) == 4


@pytest.mark.long
def test_the_timeline_has_lanes_cycles_and_holds_and_follows_time_travel(browser: Any) -> None:
    scene = release_scene()
    began = scene.began
    docs = {"device": "lab-2", "started_at": began + 13, "ended_at": began + 40, "provisional": True}
    scene.tell("task", task="docs", status="completed", review=True, **docs)
    with served(scene) as url, opened(browser, url, "#/plans/release/timeline") as page:
        page.locator(".bar").first.wait_for()
        assert page.locator(".lane-label").all_inner_texts() == ["lab-1", "lab-2", "laptop"]
        assert (page.locator(".cycle").count(), page.locator(".hold").count()) == (1, 1)
        count = page.locator(".bar").count()
        scene.set("test-4", "running", device="lab-2", started_at=began + 100)
        page.locator("[data-bar^='test-4']").wait_for()
        assert page.locator(".bar").count() == count + 1
        page.keyboard.press("+")
        assert "zoom=1.6" in page.url
        page.locator(".bar[tabindex='0']").focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowDown")
        page.locator("[data-bar^='docs']:focus").wait_for()
        page.keyboard.press("Enter")
        page.get_by_role("complementary", name="Task docs").wait_for()
        page.keyboard.press("2")
        page.get_by_role("slider", name="Version").press("Home")
        page.get_by_role("button", name="Earlier version").and_(page.locator("[disabled]")).wait_for()
        page.locator(".bar.is-running[data-bar^='fetch']").wait_for()
        assert page.locator(".bar").count() == 1


def test_bars_have_names_where_they_fit_and_cycles_and_holds_have_strips(browser: Any) -> None:
    plan = Constellation("bars")
    for name in ("long", "a-name-beside-its-bar", "check[linz]", "last"):
        plan.add(Task(name, shell="true"))
    scene = PlanScene(plan)
    began = scene.began
    times = {"long": (0, 60), "a-name-beside-its-bar": (60, 61), "check[linz]": (90, 91), "last": (95, 120)}
    for task, (start, end) in times.items():
        device = {"device": "lab-1", "started_at": began + start, "ended_at": began + end}
        scene.set(task, "completed", review=task == "long", **device)
    scene.tell("task", task="long", status="completed", review=True, **times_of(began, 0, 60))
    scene.tell("cycle", cycle=1, what="opened", tasks=["long"])
    scene.events[-1][1]["at"] = began + 60
    scene.state = "completed"
    with served(scene) as url, opened(browser, url, "#/plans/bars/timeline", size=(1440, 900)) as page:
        page.locator(".bar").first.wait_for()
        bars = page.locator(".bar").all()
        names = ["".join(bar.locator("text").all_text_contents()).strip("● ") for bar in bars]
        assert names == ["long", "a-name-beside-its-bar", "linz", "last"]
        assert page.locator(".strip-label").all_inner_texts() == ["edit cycles", "held"]
        tops = [page.locator(f".{kind} rect").first.bounding_box() for kind in ("cycle", "hold")]
        lane = page.locator(".bar rect").first.bounding_box()
        assert tops[0]["y"] + tops[0]["height"] <= tops[1]["y"]
        assert tops[1]["y"] + tops[1]["height"] <= lane["y"], "neither covers a bar or the other"


def times_of(began: float, start: float, end: float) -> dict[str, Any]:
    return {"device": "lab-1", "started_at": began + start, "ended_at": began + end, "provisional": False}


@pytest.mark.long
def test_the_fleet_shows_what_a_person_looks_for(browser: Any) -> None:
    scene = release_scene()
    scene.runs[0]["previous_assignments"] = [
        {
            "device": "old-box",
            "epoch": 1,
            "assigned_at": 1.0,
            "ended_at": 9.0,
            "reason": "lost",
            "detail": "",
            "score": 7,
        }
    ]
    for run, waiting in zip(scene.runs, (None, None, None, "device", "person", None), strict=True):
        run["waiting"] = waiting
    with served(scene) as url, opened(browser, url, "#/fleet/devices?device=lab-1") as page:
        main = page.get_by_role("main")
        for text in ("4 of 4 slots", "41 %", "heartbeat 6 min", "on battery", "coordinator"):
            main.get_by_text(text).first.wait_for()
        page.get_by_role("region", name="Runs that lab-1 holds").get_by_text("backup of host 0").wait_for()
        page.get_by_role("region", name="Earlier assignments of lab-1").get_by_text("backup of host 5").wait_for()
        page.goto(f"{url}/#/fleet/runs?waiting=device")
        main.get_by_text("waits for a device").wait_for()
        assert page.locator("tbody tr").count() == 1
        page.get_by_role("button", name="Pause", exact=True).click()
        page.get_by_role("button", name="Yes").click()
        main.get_by_text("pause: 1 run").wait_for()
        assert ("runs/actions", {"waiting": "device", "action": "pause", "limit": 200}) in scene.posted
        page.get_by_role("button", name="backup of host 3").press("Enter")
        drawer = page.get_by_role("complementary")
        for text in ("lab-1 ✓", "lab-2", "no device with 'gpu' is free", "old-box, 8 s, score 7.0"):
            drawer.get_by_text(text).first.wait_for()
        page.goto(f"{url}/#/fleet/series")
        for text in ("#130 is blocked by #128", "#120 is active", "#121, #124"):
            main.get_by_text(text).wait_for()
        page.goto(f"{url}/#/fleet/schedules")
        main.get_by_text("0 3 * * * Europe/Berlin").wait_for()
        page.goto(f"{url}/#/fleet/notices")
        main.get_by_text("sent no heartbeat").wait_for()
        scene.notices.append({**scene.notices[0], "number": 3, "message": "another one"})
        scene.tell("notice")
        page.get_by_role("button", name="Show 1 new notice").click()
        main.get_by_text("another one").wait_for()


def boxes(page: Any) -> list[tuple[str, str]]:
    """The boxes of the graph with their places."""
    script = (
        "[...document.querySelectorAll('[data-box]')].map((box) => [box.dataset.box, box.getAttribute('transform')])"
    )
    return [(name, place) for name, place in page.evaluate(script)]


@pytest.mark.long
def test_the_busiest_views_are_accessible(browser: Any) -> None:
    with served(release_scene()) as url, opened(browser, url, VIEWS["drawer"], size=PHONE) as page:
        page.locator(".drawer .output").wait_for()
        assert serious_findings(page) == []
        page.goto(f"{url}/{VIEWS['run']}")
        page.locator("tbody tr").first.wait_for()
        assert serious_findings(page) == []


@pytest.mark.long
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_every_view_is_accessible(browser: Any, theme: str, size: tuple[int, int]) -> None:
    """The page has two layouts: 1024 pixels are drawn as 1440 are. That all widths fit: ``test_view_looks.py``."""
    with served(release_scene()) as url, opened(browser, url, "", theme, size) as page:
        for name, address in VIEWS.items():
            open_view(page, url, name, address)
            assert serious_findings(page) == [], name


@pytest.mark.long
@pytest.mark.parametrize("address", ["#/plans", "#/fleet/devices", "#/fleet/runs", "#/fleet/series", "#/fleet/notices"])
def test_an_empty_view_says_what_to_type(browser: Any, address: str) -> None:
    scene = release_scene()
    for documents in (scene.devices, scene.runs, scene.series, scene.notices):
        documents.clear()
    with served(scene) as url, opened(browser, url, address) as page:
        if address == "#/plans":
            page.get_by_label("Search plans").fill("nothing of this name")
            page.get_by_text("No plan matches").wait_for()
        else:
            page.locator(".empty .command").first.wait_for()
            assert page.locator(".command").first.inner_text().startswith("asterism ")


@pytest.mark.long
def test_an_edit_of_another_person_is_marked_and_moves_nothing_else(browser: Any) -> None:
    scene = release_scene()
    with served(scene) as url, opened(browser, url, "#/plans/release/graph") as page:
        page.locator(".box").first.wait_for()
        before = dict(boxes(page))
        scene.edit(
            batch(
                {"op": "add_task", "task": {"id": "check", "shell": "true"}},
                {"op": "add_dependency", "source": "package", "target": "check"},
                {"op": "remove_task", "task_id": "announce"},
            )
        )
        page.locator("[data-box=check].mark-added").wait_for()
        page.locator(".ghost").get_by_text("announce").wait_for()
        after = dict(boxes(page))
        assert {name: after[name] for name in before.keys() & after.keys()} == {
            name: place for name, place in before.items() if name in after
        }
        assert page.locator(".line.mark-added").count() == 1


def batch(*edits: dict[str, Any]) -> EditBatch:
    return EditBatch.from_json({"edits": list(edits), "author": "ben", "reason": "it was missing"})


@pytest.mark.long
def test_an_approval_is_given_and_a_cycle_answered(browser: Any) -> None:
    scene = release_scene()
    with served(scene) as url, opened(browser, url, "#/plans/release/edits") as page:
        page.get_by_text("lint failed: mend it first").wait_for()
        page.get_by_role("link", name="Show in the graph").click()
        page.locator("[data-box=mend-lint].mark-added").wait_for()
        assert "mend-lint" not in scene.plan
        page.get_by_label("Reason for the decision").fill("fine")
        page.get_by_role("button", name="Approve").click()
        page.locator(".drawer").wait_for(state="detached")
        page.keyboard.press("3")
        assert ("plans/release/approvals/1/approve", {"reason": "fine"}) in scene.posted
        assert "mend-lint" in scene.plan
        page.locator(".batch").get_by_text("add task mend-lint").wait_for()

        page.get_by_role("button", name="Answer with edits").click()
        page.get_by_role("heading", name="Answer cycle 1").wait_for()
        page.get_by_label("Add an operation").select_option("cancel_task")
        page.get_by_label("Task", exact=True).fill("site")
        page.get_by_role("button", name="Answer", exact=True).click()
        page.locator(".composer").wait_for(state="detached")
        [answer] = [body for path, body in scene.posted if path == "plans/release/cycles/1/answer"]
        assert ("plans/release/cycles/1/claim", {}) in scene.posted
        assert answer == {"edits": [{"op": "cancel_task", "task_id": "site"}], "reason": ""}


def test_the_start_of_a_task_is_approved(browser: Any) -> None:
    scene = release_scene()
    scene.approvals[0].update(task="package", by=["release-*"], batch={"edits": []}, cost=0.0, effects={})
    scene.approvals[0].update(reasons=["task 'package' waits for approval by release-*"])
    scene.approvals[0].update(changes=["start task 'package'", "    shell: ./package.sh", "    device: lab-1"])
    with served(scene) as url, opened(browser, url, "#/plans/release/edits") as page:
        waiting = page.locator(".waiting", has_text="The start of package needs approval")
        waiting.wait_for()
        assert "Decided by\nrelease-*" in waiting.inner_text()
        assert "./package.sh" in waiting.inner_text()
        assert "lab-1" in waiting.inner_text()
        assert waiting.get_by_role("button").all_inner_texts() == ["Approve", "Refuse"]
        page.get_by_label("Reason for the decision").fill("tested")
        page.get_by_role("button", name="Approve").click()
        waiting.wait_for(state="detached")
        assert ("plans/release/approvals/1/approve", {"reason": "tested"}) in scene.posted


@pytest.mark.long
def test_a_waiting_edit_is_changed_and_a_task_for_an_agent_added(browser: Any) -> None:
    scene = release_scene()
    with served(scene) as url, opened(browser, url, "#/plans/release/edits", failures=True) as page:
        waiting = page.locator(".waiting").first
        for text in ("add task 'mend-lint' (cost=5)", "6.5", "mend-lint spends", "by a notice and the notify command"):
            waiting.get_by_text(text).wait_for()
        waiting.get_by_role("button", name="Change…").click()
        page.get_by_role("heading", name="Change edit 1").wait_for()
        expect(page.get_by_label("Command")).to_have_value("ruff check --fix", timeout=1000 * PATIENCE)
        page.get_by_label("Command").fill("ruff check --token [secret]")
        page.get_by_role("button", name="Approve changes").click()
        page.get_by_text("The edit contains a secret").wait_for()
        page.get_by_label("Command").fill("ruff check --fix src")
        page.get_by_label("Add an operation").select_option("add_task")
        page.get_by_label("Id").last.fill("changelog")
        page.get_by_label("Work").last.select_option("agent")
        page.get_by_role("button", name="Dry run").click()
        page.get_by_text("Edit 2: say what the agent has to do.").wait_for()
        page.get_by_label("What to do").fill("Write the changelog.")
        page.get_by_label("Tips").fill("Be short.\nName people.")
        page.get_by_label("Device").last.fill("coder")
        page.get_by_role("button", name="Dry run").click()
        page.locator("[data-box=changelog].mark-added").wait_for()
        assert serious_findings(page) == []
        assert "mend-lint" not in scene.plan
        page.get_by_role("button", name="Approve changes").click()
        page.locator(".composer").wait_for(state="detached")
        assert scene.plan.nodes["mend-lint"].task.shell == "ruff check --fix src"
        task = scene.plan.nodes["changelog"].task
        assert task.agent == {"description": "Write the changelog.", "tips": ["Be short.", "Name people."]}
        assert task.device == "coder"
        page.goto(f"{url}/#/plans/release/graph?task=notes")
        drawer = page.get_by_role("complementary", name="Task notes")
        for text in ("Write the release notes", "Leave out what only developers see.", '"required"'):
            drawer.get_by_text(text).first.wait_for()


@pytest.mark.long
def test_the_cost_of_models_is_shown_and_a_spent_budget_raised(browser: Any) -> None:
    scene = release_scene()
    with served(scene) as url, opened(browser, url, "#/plans") as page:
        page.locator(".attention").first.wait_for()
        assert page.locator(".attention").all_inner_texts() == ["1 approval waits", "budget spent"]
        page.goto(f"{url}/#/plans/release/edits")
        page.get_by_text("4 calls of openai:gpt-5, 4,816 tokens in, 352 out, price unknown, 11 s").wait_for()
        version = page.locator(".batch", has_text="version 1")
        version.get_by_text("2 calls of openai:gpt-5, 1,204 tokens in, 88 out, $1.98, 7.4 s").wait_for()
        page.locator(".batch", has_text="cycle 4").get_by_text("no edit").wait_for()
        page.locator(".waiting").first.get_by_text("$0.0031").wait_for()
        page.keyboard.press("1")
        banner = page.get_by_role("region", name="Budget of the editor")
        banner.get_by_text("$1.98 of $2.00 are spent, and $0.04 more are needed").wait_for()
        banner.get_by_role("button", name="Raise it").click()
        assert banner.get_by_role("button", name="Set the budget").is_disabled()
        banner.get_by_label("Dollars").fill("5")
        banner.get_by_label("Calls").fill("80")
        budget = scene.budget
        banner.get_by_role("button", name="Set the budget").click()
        banner.wait_for(state="detached")
        assert ("plans/release/budget", {"limits": "$5 80calls"}) in scene.posted
        scene.budget = budget
        scene.tell("plan")
        banner.get_by_role("button", name="Go on without an editor").click()
        banner.get_by_role("button", name="Yes").click()
        banner.wait_for(state="detached")
        assert ("plans/release/budget", {"without_editor": True}) in scene.posted


@pytest.mark.long
def test_an_edit_that_is_refused_names_every_violation(browser: Any) -> None:
    with served(release_scene()) as url, opened(browser, url, "#/plans/release/graph?task=site", failures=True) as page:
        page.get_by_role("button", name="Remove", exact=True).click()
        page.get_by_role("button", name="Apply").click()
        page.locator(".violations").get_by_text("dependents").wait_for()
        page.get_by_label("Its dependents").select_option("bridge")
        page.get_by_role("button", name="Dry run").click()
        page.locator("[data-box=site].mark-removed").wait_for()


@pytest.mark.long
def test_time_travel_shows_an_earlier_version_and_returns(browser: Any) -> None:
    scene = release_scene()
    with served(scene) as url, opened(browser, url, "#/plans/release/graph") as page:
        page.locator("[data-box=sign]").wait_for()
        before = dict(boxes(page))
        page.get_by_role("button", name="Earlier version").click()
        page.get_by_role("button", name="Earlier version").click()
        page.locator("[data-box=sign]").wait_for(state="detached")
        assert "version=0" in page.url
        assert dict(boxes(page)).items() <= before.items()
        assert page.get_by_role("button", name="Edit", exact=True).count() == 0
        page.reload()
        page.locator(".travel").get_by_text("Version 0").wait_for()
        page.get_by_role("button", name="Back to live").click()
        page.locator("[data-box=sign]").wait_for()
        assert "version" not in page.url


@pytest.mark.long
def test_after_a_lost_connection_nothing_is_missing_and_nothing_twice(browser: Any) -> None:
    scene = release_scene()
    with served(scene) as url, opened(browser, url, "#/plans/release/timeline", failures=True) as page:
        page.locator("[data-bar^='test-3']").wait_for()
        seen = str(len(scene.events))
        scene.away = True
        page.get_by_role("alert").get_by_text("connection to the server is lost").wait_for()
        scene.set("test-4", "running", device="lab-2", started_at=scene.began + 100)
        scene.set("test-4", "completed", ended_at=scene.began + 110)
        scene.set("test-5", "running", device="lab-2", started_at=scene.began + 111)
        scene.edit(batch({"op": "add_task", "task": {"id": "check", "shell": "true"}}))
        scene.away = False
        page.locator("[data-bar^='test-5'].is-running").wait_for()
        page.get_by_role("alert").wait_for(state="detached")
        assert scene.resumed[-1] == seen, "it goes on after the last event that it has seen"
        assert page.locator("[data-bar^='test-4'].is-completed").count() == 1
        assert page.locator("[data-bar^='test-4']").count() == page.locator("[data-bar^='test-5']").count() == 1
        page.keyboard.press("1")
        page.locator("[data-box=check]").wait_for()
        page.locator("[data-box=test-5].is-running").wait_for()


@pytest.mark.long
@pytest.mark.parametrize("away_at", ["the start", "the way back from an old version"])
def test_a_plan_is_shown_as_soon_as_the_server_is_there_again(browser: Any, away_at: str) -> None:
    scene = release_scene()
    address = "#/plans/release/graph" + ("" if away_at == "the start" else "?version=0")
    with served(scene) as url, opened(browser, url, "", failures=True) as page:
        if away_at == "the start":
            scene.away = True
            page.goto(f"{url}/{address}")
        else:
            page.goto(f"{url}/{address}")
            page.get_by_role("button", name="Back to live").wait_for()
            page.locator("[data-box=compile]").wait_for()
            scene.away = True
            page.get_by_role("button", name="Back to live").click()
        page.get_by_role("alert").get_by_text("connection to the server is lost").wait_for()
        scene.edit(batch({"op": "add_task", "task": {"id": "check", "shell": "true"}}))
        scene.away = False
        page.locator("[data-box=check]").wait_for()
        page.get_by_role("alert").wait_for(state="detached")


@pytest.mark.long
def test_live_output_goes_on(browser: Any) -> None:
    scene = release_scene()
    with served(scene) as url, opened(browser, url, "#/plans/release/graph?task=test-2") as page:
        page.get_by_role("log").get_by_text("collected 312 items").wait_for()
        scene.facts["test-2"]["output"].append("all passed")
        page.get_by_role("log").get_by_text("all passed").wait_for()
        assert page.get_by_role("log").inner_text().count("collected 312 items") == 1


def test_a_cycle_of_an_editor_does_not_wait_for_a_person(browser: Any) -> None:
    """Unless its editor waits for one, or the cycle has no editor."""
    scene = release_scene()
    scene.approvals, scene.budget = [], None
    badges = {
        ("repair", ""): None,
        ("repair", "the budget is spent"): "1 waiting for a person",
        (None, ""): "1 waiting",
    }
    with served(scene) as url:
        for (editor, on_hold), badge in badges.items():
            scene.cycles[0].update(claimed_by=editor, on_hold=on_hold)
            with opened(browser, url, "#/plans/release/graph") as page:
                review = page.locator(".plan-bar .review")
                if badge is None:
                    expect(review).to_have_text("repair reviews docs")
                    expect(page.locator(".plan-bar .attention")).to_have_count(0)
                else:
                    expect(page.locator(".plan-bar .attention")).to_contain_text(badge)
                    expect(review).to_have_count(0)


def test_script_in_any_text_is_inert(browser: Any) -> None:
    scene = release_scene()
    for name in ("lint", "test-2"):
        scene.facts[name].update(name=NASTY, reason=NASTY, device=NASTY, output=[NASTY], result={"text": NASTY})
        scene.facts[name].update(error=NASTY, group=NASTY, definition={"inputs": {NASTY: NASTY}})
    scene.cycles[0]["claimed_by"] = NASTY
    scene.rejected[0].update(author=NASTY, reason=NASTY)
    scene.approvals[0].update(batch={"author": NASTY, "reason": NASTY, "edits": [{"op": NASTY}]}, reasons=[NASTY])
    scene.approvals[0].update(effects={NASTY: [NASTY]}, escalates_to=[NASTY])
    scene.closed[1].update(outcome=NASTY, tasks=[NASTY], version=None, cost={**scene.closed[1]["cost"], "model": NASTY})
    scene.budget = {**(scene.budget or {}), "held_why": NASTY}
    agent = {"description": NASTY, "tips": [NASTY], "result": {NASTY: NASTY}}
    scene.facts["notes"].update(definition={"agent": agent})
    poisoned = json.loads(json.dumps([scene.devices, scene.runs, scene.schedules, scene.series, scene.notices]))
    for documents in poisoned:
        for document in documents:
            document.update(
                {name: NASTY for name, value in document.items() if isinstance(value, str) and name != "id"}
            )
    scene.devices, scene.runs, scene.schedules, scene.series, scene.notices = poisoned
    scene.edit(batch({"op": "add_task", "task": {"id": NASTY, "shell": NASTY}}))
    with served(scene) as url, opened(browser, url, failures=True) as page:
        for address in [*VIEWS.values(), "#/plans/release/graph?task=lint", "#/plans/release/graph?approval=1"]:
            page.goto(f"{url}/{address}")
            page.locator("main h2, main tr, .box, .bar, .task-list, .device, .notices, .empty").first.wait_for()
            page.locator(".loading").wait_for(state="detached")
            assert page.title() != "broken"
            assert page.locator("main script, main img").count() == 0


@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "ablation"])
def test_script_that_got_into_the_page_does_not_run(
    browser: Any, guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The policy of the page is the second line of defence."""
    if not guarded:
        monkeypatch.delitem(SECURITY_HEADERS, "content-security-policy")
    with served(release_scene()) as url:
        context = browser.new_context()
        page = context.new_page()
        page.goto(url)
        page.evaluate(
            "const script = document.createElement('script');"
            "script.textContent = 'window.broken = true';"
            "document.body.append(script)"
        )
        assert page.evaluate("window.broken === true") is not guarded
        context.close()


@pytest.mark.long
def test_filters_and_folds_are_in_the_address(browser: Any) -> None:
    with served(release_scene()) as url, opened(browser, url, "#/plans/release/graph") as page:
        page.get_by_role("button", name="Collapse groups").click()
        page.get_by_role("button", name=re.compile("test: 6 tasks, collapsed")).wait_for()
        assert page.locator("[data-box=test-1]").count() == 0
        page.get_by_role("button", name="4 completed").click()
        page.reload()
        page.get_by_role("button", name=re.compile("test: 6 tasks, collapsed")).wait_for()
        assert page.get_by_role("button", name="4 completed").get_attribute("aria-pressed") == "true"
        page.get_by_role("button", name=re.compile("test: 6 tasks, collapsed")).press("Enter")
        page.locator("[data-box=test-1]").wait_for()
        page.goto(f"{url}/#/fleet/runs")
        page.get_by_label("Status").select_option("failed")
        page.get_by_role("button", name="backup of host 2").wait_for()
        assert page.url.endswith("#/fleet/runs?status=failed")
        page.get_by_role("button", name="Cancel", exact=True).click()
        page.get_by_role("button", name="Yes").click()
        page.get_by_text("cancel: 1 run, 1 refused (it has ended)").wait_for()


def test_a_large_group_is_one_box_whose_failed_elements_are_listed(browser: Any) -> None:
    plan = Constellation("release")
    plan.add(Task("load"))
    scene = PlanScene(plan)
    scene.facts["load"] = {"status": "running", "behind": {"completed": 9_900, "failed": 2}}
    reasons = {"load[7]": "exited with 3", "load[8]": "exited with 4"}
    scene.facts |= {name: {"id": name, "status": "failed", "reason": why} for name, why in reasons.items()}
    scene.elements = [scene._task(name, scene.facts) | {"group": "load"} for name in reasons]
    with served(scene) as url, opened(browser, url, "#/plans/release/graph") as page:
        page.get_by_role("button", name="load, running, 2 failed, 9900 completed").click()
        drawer = page.get_by_role("complementary", name="Task load")
        expect(drawer.get_by_role("button", name="2 failed")).to_have_attribute("aria-pressed", "true")
        drawer.get_by_role("button", name="load[8]").click()
        page.get_by_role("complementary", name="Task load[8]").get_by_text("exited with 4").wait_for()
        page.get_by_role("searchbox").fill("[7")
        page.get_by_text("1 match").wait_for()
        page.get_by_role("button", name="List").click()
        page.get_by_role("button", name="load[7]").wait_for()
        page.get_by_role("searchbox").fill("")
        page.goto(f"{url}/#/plans/release/graph?task=load")
        page.get_by_role("button", name="Show all in the graph").click()
        page.wait_for_url("**opened=load**")


@pytest.mark.long
def test_rows_stay_where_they_are_while_one_reads(browser: Any) -> None:
    scene = release_scene()
    with served(scene) as url, opened(browser, url, "#/fleet/runs") as page:
        page.get_by_role("button", name="backup of host 5").wait_for()
        before = page.locator("tbody th").all_inner_texts()
        scene.runs.insert(0, {**scene.runs[0], "id": "run-new", "label": "new one"})
        scene.tell("run")
        page.get_by_role("button", name="Show 1 new run").wait_for()
        assert page.locator("tbody th").all_inner_texts() == before
        page.get_by_role("button", name="Show 1 new run").click()
        page.get_by_role("button", name="new one").wait_for()


def test_the_calendar_of_a_schedule_is_walked_with_the_keyboard_and_opens_what_ran(browser: Any) -> None:
    scene = release_scene()
    with served(scene) as url, opened(browser, url, "#/fleet/schedules") as page:
        page.get_by_role("link", name="nightly").click()
        today = page.locator(".day.today")
        expect(today).to_have_attribute("aria-label", re.compile("running, late$"), timeout=1000 * PATIENCE)
        page.get_by_role("status").get_by_text("Late:").wait_for()
        assert page.locator(".day[tabindex='0']").count() == 1, "one day at a time can be reached with Tab"
        today.focus()
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowUp")
        focused = page.evaluate("document.activeElement.dataset.day")
        assert date.fromisoformat(focused) == date.fromisoformat(scene.today) - timedelta(days=8)
        twice = next(tick["date"] for tick in scene.ticks if tick["date"].endswith("-04"))
        page.locator(f"[data-day='{twice}']").focus()
        page.keyboard.press("Enter")
        rows = page.locator(".day-ticks tbody tr")
        expect(rows).to_have_count(2, timeout=1000 * PATIENCE)
        assert rows.first.inner_text().startswith("03:00 +01:00")
        assert serious_findings(page) == []
        page.reload()
        expect(rows).to_have_count(2, timeout=1000 * PATIENCE)
        today.click()
        page.wait_for_url(f"**/fleet/runs?run=run-{scene.today}")


@pytest.mark.long
def test_a_calendar_shows_what_was_created_since(browser: Any) -> None:
    scene = release_scene()
    with served(scene) as url, opened(browser, url, "#/fleet/schedules?schedule=nightly") as page:
        page.locator(".day.today.tick-running").wait_for()
        for tick in scene.ticks:
            if tick["date"] == scene.today:
                tick.update(state="succeeded", late=False)
        scene.tell("run")
        page.locator(".day.today.tick-succeeded").wait_for()
        page.get_by_role("status").wait_for(state="detached")
