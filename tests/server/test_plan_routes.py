"""Plans over HTTP: submit, view, edit, undo, pause, resume, cancel, retry, story, why, logs, versions."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from asterism.api.local import edit_handlers
from asterism.api.local.edit_handlers import EditedPlans
from asterism.base.http_limits import RequestRefused
from asterism.durable.plan_submissions import SUBMITTED
from asterism.durable.stored_plans import times_of
from asterism.store.protocol import Query
from tests.durable.durable_scenes import Stage, chain
from tests.durable.durable_work import DONE, gate
from tests.security.test_requests import problem
from tests.server.server_scenes import ended, plan_server, plan_text

pytestmark = pytest.mark.virtual_time

PLAN = "/api/v1/plans/nightly"
ADD = {"op": "add_task", "task": {"id": "mail", "shell": "true"}}


async def submitted(client: httpx.AsyncClient, text: str, **more: Any) -> dict[str, Any]:
    answer = await client.post("/api/v1/plans", json={"text": text, **more})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


async def test_a_submitted_plan_runs_to_its_end() -> None:
    async with plan_server() as (scene, stage), scene.client("operate") as client:
        document = await submitted(client, plan_text("a", "b"))
        assert (document["name"], document["version"], document["tasks"]) == ("nightly", 0, [])
        document = await ended(client)
        assert document["state"] == "completed"
        assert document["counts"] == {"completed": 2}
        assert [task["status"] for task in document["tasks"]] == ["completed", "completed"]
        assert document["dependencies"] == [{"source": "a", "target": "b", "on": "success", "when": None}]
        listed = (await client.get("/api/v1/plans")).json()["items"]
        assert [(plan["name"], plan["done"], plan["tasks"]) for plan in listed] == [("nightly", 2, 2)]
        await stage.until(lambda: True)
        assert DONE == {"a": 1, "b": 1}


async def test_a_submission_is_forgotten_when_the_plan_has_ended() -> None:
    async with plan_server() as (scene, stage), scene.client() as client:
        await submitted(client, plan_text("a"))
        await ended(client)
        for _ in range(100):
            await stage.until(lambda: True)
            if not await stage.store.registers(SUBMITTED):
                return
            await stage.fleet().clock.sleep(1.0)
        raise AssertionError("it is still there")


@pytest.mark.parametrize(
    "body", [{"name": "x/y", "text": plan_text("a")}, {"text": plan_text("a").replace("id: nightly", "id: x/y")}]
)
async def test_a_plan_with_an_invalid_name_is_an_invalid_request(body: dict[str, Any]) -> None:
    async with plan_server() as (scene, _), scene.client() as client:
        assert "without '/'" in problem(await client.post("/api/v1/plans", json=body), 422)
        assert (await client.get("/api/v1/plans")).json()["items"] == []


async def test_a_plan_file_with_mistakes_tells_all_of_them_and_reads_no_other_file() -> None:
    async with plan_server() as (scene, _), scene.client() as client:
        text = "asterism: 1\ninclude: /etc/passwd\ntasks:\n  a: {shell: x, after: nothing}\n"
        answer = await client.post("/api/v1/plans", json={"text": text})
        assert problem(answer, 422) == "the plan file has mistakes"
        messages = [violation["message"] for violation in answer.json()["violations"]]
        assert len(messages) == 2
        assert "cannot include files" in messages[0]
        assert not any("root" in message for message in messages)
        answer = await client.post("/api/v1/plans", json={"text": plan_text("a"), "name": "../x"})
        assert "without '/'" in problem(answer, 422)
        await submitted(client, plan_text("a"))
        answer = await client.post("/api/v1/plans", json={"text": plan_text("a")})
        assert answer.json()["type"] == "urn:asterism:problem:plan-exists"


async def test_parameters_fill_a_submitted_plan() -> None:
    text = "asterism: 1\nparams: {who: {type: text}}\ntasks:\n  a: {argv: [echo, '{params.who}']}\n"
    async with plan_server() as (scene, _), scene.client() as client:
        answer = await client.post("/api/v1/plans", json={"name": "p", "text": text})
        assert answer.status_code == 422
        document = await submitted(client, text, name="p", params={"who": "ann"})
        assert document["params"] == {"who": "ann"}


async def stored(stage: Stage) -> None:
    """A plan that no process runs."""
    from asterism.durable.journal_store import insert_plan

    await insert_plan(stage.store, chain("a", "b"))


async def test_an_edit_is_checked_applied_and_undone_in_the_name_of_the_caller() -> None:
    async with plan_server() as (scene, stage), scene.client("edit:nightly") as client:
        await stored(stage)
        dry = (await client.post(f"{PLAN}/edits", json={"edits": [ADD], "dry_run": True})).json()
        assert (dry["version_before"], dry["version"], dry["dry_run"]) == (0, 1, True)
        assert (await client.get(PLAN)).json()["version"] == 0
        done = (await client.post(f"{PLAN}/edits", json={"edits": [ADD], "reason": "news", "base_version": 0})).json()
        assert done["accepted"]
        versions = (await client.get(f"{PLAN}/versions")).json()
        assert [(version["version"], version["author"], version["reason"]) for version in versions["items"]][1:] == [
            (1, "ann", "news")
        ]
        assert (await client.post(f"{PLAN}/undo")).json()["version"] == 2
        past = (await client.get(f"{PLAN}/versions/1")).json()
        assert [task["id"] for task in past["tasks"]] == ["a", "b", "mail"]
        problem(await client.get(f"{PLAN}/versions/9"), 404)
        problem(await client.get(f"{PLAN}/versions/x"), 404)


async def test_a_rejected_edit_has_all_its_violations() -> None:
    async with plan_server() as (scene, stage), scene.client() as client:
        await stored(stage)
        edits = [{"op": "remove_task", "task_id": "x"}, {"op": "add_dependency", "dependency": {}}, ADD]
        answer = await client.post(f"{PLAN}/edits", json={"edits": edits})
        assert "cannot be read" in problem(answer, 422)
        assert "unknown key 'dependency'" in answer.json()["violations"][0]["message"]
        edits = [{"op": "remove_task", "task_id": "x"}, {"op": "cancel_task", "task_id": "y"}]
        answer = await client.post(f"{PLAN}/edits", json={"edits": edits})
        assert "nothing has changed" in problem(answer, 422)
        assert answer.json()["type"] == "urn:asterism:problem:edit-rejected"
        assert [(violation["edit"], violation["rule"]) for violation in answer.json()["violations"]] == [
            (0, "unknown_task"),
            (1, "unknown_task"),
        ]
        answer = await client.post(f"{PLAN}/edits", json={"edits": [ADD], "base_version": 7})
        assert answer.status_code == 422


async def test_a_running_plan_is_edited_by_its_owner_paused_and_resumed() -> None:
    async with plan_server() as (scene, stage), scene.client() as client:
        await submitted(client, plan_text("a", call="wait"))
        await stage.until(gate("a begun").is_set)
        task = {"id": "c", "call": "tests.durable.durable_work:work", "inputs": {"name": "c"}}
        done = await client.post(f"{PLAN}/edits", json={"edits": [{"op": "add_task", "task": task}]})
        assert done.json()["applied_by"] == "nightly@here"
        paused = (await client.post(f"{PLAN}/pause", json={"reason": "lunch"})).json()
        assert (paused["paused"], paused["applied_by"]) == ("by ann: lunch", "nightly@here")
        why = (await client.get(f"{PLAN}/tasks/a/why")).json()
        assert why["status"]
        assert (await client.post(f"{PLAN}/resume")).json()["paused"] is None
        gate("a").set()
        assert (await ended(client))["counts"] == {"completed": 2}
        problem(await client.post(f"{PLAN}/resume"), 409)


async def test_a_running_task_is_queued_then_starting_then_running() -> None:
    async with plan_server() as (scene, stage), scene.client() as client:
        stage.spawn(stage.orchestrator(local=0).run(chain("a", call="wait")))

        async def shown() -> dict[str, Any]:
            view = (await client.get(PLAN)).json()
            [task] = view["tasks"]
            [listed] = (await client.get("/api/v1/plans")).json()["items"]
            detail = (await client.get(f"{PLAN}/tasks/a")).json()
            assert task["status"] == detail["status"] == "running"
            assert view["counts"] == listed["counts"] == {task["phase"]: 1}
            assert (detail["phase"], detail["attempt"]) == (task["phase"], task["attempt"])
            return dict(task)

        await asyncio.sleep(30.0)  # of virtual time: it is offered by now
        task = await shown()
        assert (task["phase"], task["device"], task["attempt"]["begun_at"]) == ("queued", None, None)
        await stage.device("kitchen")
        await gate("a begun").wait()
        task = await shown()
        begun = task["attempt"]["begun_at"]
        assert (task["phase"], task["device"]) == ("running", "kitchen")
        assert begun - task["started_at"] >= 29.0
        run = next(iter(await stage.store.find(Query())))
        starting = times_of(run.changed(started_at=None))
        assert (starting.phase, times_of(run).phase) == ("starting", "running")
        await asyncio.sleep(2.0)
        gate("a").set()
        [task] = (await ended(client))["tasks"]
        assert (task["phase"], task["device"], task["attempt"]["begun_at"]) == (None, "kitchen", begun)
        assert task["attempt"]["ended_at"] - begun == pytest.approx(2.0, abs=0.5)


async def test_a_plan_that_no_process_runs_is_resumed_and_cancelled_by_the_server() -> None:
    async with plan_server() as (scene, stage), scene.client() as client:
        await stored(stage)
        assert (await client.post(f"{PLAN}/resume")).status_code == 200
        assert (await ended(client))["state"] == "completed"
    async with plan_server() as (scene, stage), scene.client() as client:
        await stored(stage)
        assert (await client.post(f"{PLAN}/cancel", json={"reason": "no"})).status_code == 200
        assert (await ended(client))["state"] == "cancelled"


async def test_a_plan_that_a_server_cancels_without_a_device_stays_cancelling_until_it_is_torn_down() -> None:
    teardown = '{call: "tests.durable.durable_work:work", inputs: {name: drop}, teardown: a}'
    async with plan_server(local=0) as (scene, stage), scene.client() as client:
        device = await stage.device("kitchen")
        await submitted(client, f"{plan_text('a', call='wait')}\n  drop: {teardown}")
        await stage.until(gate("a begun").is_set)
        device.drain(hand_back=True)
        await client.post(f"{PLAN}/cancel", json={"reason": "no"})
        await asyncio.sleep(4 * 300.0)  # far longer than no_device_timeout
        [listed] = (await client.get("/api/v1/plans")).json()["items"]
        shown = (await client.get(PLAN)).json()
        for document in (listed, shown):
            assert (document["state"], document["owner"], document["counts"]) == (
                "cancelling",
                "nightly@here",
                {"cancelled": 1, "queued": 1},
            )
        why = (await client.get(f"{PLAN}/tasks/drop/why")).json()
        assert why["reasons"][0]["kind"] == "no_device"
        await stage.device("attic")
        assert (await ended(client))["state"] == "cancelled"
    assert DONE == {"drop": 1}


async def test_what_failed_runs_again() -> None:
    async with plan_server() as (scene, _), scene.client() as client:
        await submitted(client, plan_text("a", call="fail"))
        assert (await ended(client))["state"] == "failed"
        answer = await client.post(f"{PLAN}/retry", json={"reason": "again"})
        assert answer.json()["tasks"] == ["a"]
        document = await ended(client)
        assert document["tasks"][0]["attempts"] == 2
        story = (await client.get(f"{PLAN}/story?task=a")).json()["items"]
        assert {entry["task"] for entry in story} == {"a"}
        task = (await client.get(f"{PLAN}/tasks/a")).json()
        assert [execution["status"] for execution in task["executions"]] == ["failed", "failed"]
        assert task["definition"]["call"] == "tests.durable.durable_work:fail"


async def test_what_is_not_there_is_a_problem() -> None:
    async with plan_server() as (scene, stage), scene.client() as client:
        await stored(stage)
        for path in ("/api/v1/plans/x", f"{PLAN}/tasks/x", f"{PLAN}/tasks/x/why", f"{PLAN}/tasks/x/logs"):
            problem(await client.get(path), 404)
        problem(await client.get(f"{PLAN}/story?task=x"), 404)
        problem(await client.get(f"{PLAN}/changes?since=x"), 422)
        for action in ("edits", "undo", "pause", "resume", "cancel", "retry"):
            body = {"edits": []} if action == "edits" else {}
            problem(await client.post(f"/api/v1/plans/x/{action}", json=body), 404)


@pytest.mark.parametrize(
    ("scope", "allowed", "refused"),
    [
        ("observe", ["GET "], ["POST /edits", "POST /pause"]),
        ("edit:nightly", ["GET ", "POST /edits"], ["POST /pause", "POST /retry"]),
        ("edit:other", [], ["GET ", "POST /edits", "POST /pause"]),
        ("operate", ["GET ", "POST /edits", "POST /pause"], []),
    ],
)
async def test_each_scope_allows_what_it_says(scope: str, allowed: list[str], refused: list[str]) -> None:
    async with plan_server() as (scene, stage), scene.client(scope) as client:
        await stored(stage)

        async def status(request: str) -> int:
            method, path = request.split(" ")
            body = {"edits": []} if path == "/edits" else {}
            return (await client.request(method, PLAN + path, json=body if method == "POST" else None)).status_code

        assert [await status(asked) for asked in allowed] == [200] * len(allowed)
        assert [await status(asked) for asked in refused] == [403] * len(refused)


async def test_edits_are_limited_in_a_minute() -> None:
    async with plan_server(edits_per_minute=3) as (scene, stage), scene.client() as client:
        await stored(stage)
        for _ in range(3):
            assert (await client.post(f"{PLAN}/edits", json={"edits": []})).status_code == 200
        answer = await client.post(f"{PLAN}/edits", json={"edits": []})
        assert "too many edits" in problem(answer, 429)
        assert (await client.get(PLAN)).status_code == 200
        await stage.fleet().clock.sleep(61.0)
        assert (await client.post(f"{PLAN}/edits", json={"edits": []})).status_code == 200


async def test_the_size_of_a_plan_that_runs_here_is_not_read_from_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edit_handlers, "MAX_TASKS", 3)
    monkeypatch.delattr(edit_handlers, "read_plan")
    async with plan_server() as (_, stage):
        orchestrator, sizes = stage.orchestrator(), EditedPlans()
        stage.spawn(orchestrator.run(chain("a", "b", call="wait")))
        await gate("a begun").wait()
        await sizes.add(orchestrator.fleet, "nightly", 1)
        with pytest.raises(RequestRefused, match="more than 3 tasks"):
            await sizes.add(orchestrator.fleet, "nightly", 2)
        gate("a").set()
        gate("b").set()


async def test_the_story_of_a_failed_function_has_its_traceback() -> None:
    async with plan_server() as (scene, _), scene.client() as client:
        await submitted(client, plan_text("a", call="fail"))
        await ended(client)
        story = (await client.get(f"{PLAN}/story")).json()["items"]
        drawer = (await client.get(f"{PLAN}/tasks/a")).json()["story"]
        for entries in (story, drawer):
            [text] = [entry["traceback"] for entry in entries if entry["traceback"] is not None]
            assert "in fail\n" in text
            assert text.endswith("ValueError: a is out of paper")
            assert [entry["what"] for entry in entries if entry["traceback"]] == ["failed"]
        logs = (await client.get(f"{PLAN}/tasks/a/logs")).json()["items"]
        assert {line["stream"] for line in logs} == {"traceback"}


async def test_a_task_is_added_with_its_dependencies() -> None:
    async with plan_server() as (scene, stage), scene.client("edit:nightly") as client:
        await stored(stage)
        added = {"op": "add_task", "task": {"id": "mail", "shell": "true", "after": ["a"]}}
        beside = {"op": "add_task", "task": {"id": "log", "shell": "true"}, "after": {"mail": "completion"}}
        answer = await client.post(f"{PLAN}/edits", json={"edits": [added, beside, {"op": "cancel_task"}]})
        assert answer.json()["violations"][0]["edit"] == 2  # the number of the edit as it was sent
        assert (await client.post(f"{PLAN}/edits", json={"edits": [added, beside]})).status_code == 200
        edges = {
            (edge["source"], edge["target"], edge["on"]) for edge in (await client.get(PLAN)).json()["dependencies"]
        }
        assert {("a", "mail", "success"), ("mail", "log", "completion")} <= edges
        wrong = {"op": "add_task", "task": {"id": "x", "shell": "true"}, "after": 5}
        assert "after= takes ids of tasks" in (await client.post(f"{PLAN}/edits", json={"edits": [wrong]})).text
