"""Runs, devices, schedules, series, notices, metrics and events of a fleet over HTTP."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from asterism.core.run.work import Workflow
from asterism.durable.journal_store import insert_plan
from asterism.fleet import run_queries
from asterism.server import event_stream
from asterism.store.protocol import Notice
from asterism.store.store_errors import StoreUnavailable
from tests.durable.durable_scenes import Stage, chain
from tests.durable.durable_work import gate
from tests.security.test_requests import problem
from tests.server.server_scenes import EventClient, ServerScene, ended, plan_server, plan_text

pytestmark = pytest.mark.virtual_time

API = "/api/v1"


async def a_workflow(stage: Stage, call: str = "work") -> None:
    await stage.fleet().workflows.add(Workflow("w", call=f"tests.durable.durable_work:{call}"))


async def created(client: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    answer = await client.post(f"{API}/runs", json={"workflow": "w", "input": {"name": "x"}, **fields})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


async def run_status(client: httpx.AsyncClient, run: str) -> str:
    return str((await client.get(f"{API}/runs/{run}")).json()["status"])


async def test_a_run_is_created_executed_and_shown() -> None:
    async with plan_server() as (scene, stage), scene.client("operate") as client:
        await a_workflow(stage)
        await stage.device("lab")
        run = await created(client, label="first")
        assert run["created_by"] == "ann"
        while await run_status(client, run["id"]) != "completed":
            await stage.fleet().clock.sleep(1.0)
        assert (await client.get(f"{API}/runs/{run['id']}/output")).json()["output"] == "x done"
        log = (await client.get(f"{API}/runs/{run['id']}/logs")).json()
        assert (log["items"], log["next"], log["ended"]) == ([], "0.0", True)
        device = (await client.get(f"{API}/devices/lab")).json()
        assert (device["name"], device["holds"], [latest["id"] for latest in device["latest"]]) == (
            "lab",
            [],
            [run["id"]],
        )
        again = (await client.post(f"{API}/runs/{run['id']}/retry")).json()
        assert again["retry_of"] == run["id"]


async def test_runs_are_listed_in_parts_and_by_filter() -> None:
    async with plan_server() as (scene, stage), scene.client() as client:
        await a_workflow(stage)
        made = [(await created(client, label=f"run {number}"))["id"] for number in range(5)]
        first = (await client.get(f"{API}/runs?limit=3")).json()
        rest = (await client.get(f"{API}/runs?limit=3&after={first['next']}")).json()
        assert [run["id"] for run in [*first["items"], *rest["items"]]] == sorted(made, reverse=True)
        assert rest["next"] is None
        matching = (await client.get(f"{API}/runs?search=run%203&status=open")).json()["items"]
        assert [run["label"] for run in matching] == ["run 3"]
        assert (await client.get(f"{API}/runs?status=completed,failed")).json()["items"] == []
        assert "is not a status" in problem(await client.get(f"{API}/runs?status=odd"), 422)
        why = (await client.get(f"{API}/runs/{made[0]}/why")).json()
        assert why["reasons"]


async def test_runs_are_found_by_what_they_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_queries, "PAGE", 2)
    async with plan_server() as (scene, stage), scene.client() as client:
        await a_workflow(stage)
        made = [(await created(client, series="main" if number < 2 else None))["id"] for number in range(5)]
        await client.post(f"{API}/runs/{made[4]}/pause", json={"reason": "lunch"})
        free = sorted([made[2], made[3]], reverse=True)
        for wanted, ids in {"turn": [made[1], made[0]], "person": [made[4]], "device": free}.items():
            page = (await client.get(f"{API}/runs?waiting={wanted}")).json()
            assert [(listed["id"], listed["waiting"]) for listed in page["items"]] == [(run, wanted) for run in ids]
        first = (await client.get(f"{API}/runs?waiting=device&limit=1")).json()
        rest = (await client.get(f"{API}/runs?waiting=device&limit=1&after={first['next']}")).json()
        assert ([listed["id"] for listed in rest["items"]], rest["next"]) == (free[1:], None)
        done = (await client.post(f"{API}/runs/actions", json={"action": "cancel", "waiting": "turn"})).json()
        assert sorted(done["changed"]) == sorted(made[:2])
        problem(await client.get(f"{API}/runs?waiting=godot"), 422)


@pytest.mark.parametrize(
    "filters", ["search=run%200", "waiting=person", "status=paused", "status=paused&search=run%200"]
)
async def test_a_request_looks_at_a_bounded_number_of_runs(monkeypatch: pytest.MonkeyPatch, filters: str) -> None:
    monkeypatch.setattr(run_queries, "PAGE", 1)
    monkeypatch.setattr(run_queries, "MOST_PAGES", 2)
    monkeypatch.setattr(run_queries, "MOST_SCANNED", 2)
    async with plan_server() as (scene, stage), scene.client() as client:
        await a_workflow(stage)
        made = [(await created(client, label=f"run {number}"))["id"] for number in range(6)]
        await client.post(f"{API}/runs/{made[0]}/pause", json={"reason": "lunch"})
        ids, after, parts = [], "", 0
        while after is not None:
            page = (await client.get(f"{API}/runs?{filters}&limit=1{after and f'&after={after}'}")).json()
            ids += [run["id"] for run in page["items"]]
            after, parts = page["next"], parts + 1
        assert (ids, parts) == ([made[0]], 3)


async def test_an_action_on_a_filter_reaches_every_run_that_matches() -> None:
    async with plan_server() as (scene, stage), scene.client() as client:
        await a_workflow(stage)
        made = [(await created(client))["id"] for _ in range(3)]
        body = {"action": "pause", "workflow": "w", "reason": "lunch"}
        done = (await client.post(f"{API}/runs/actions", json=body)).json()
        assert (sorted(done["changed"]), done["refused"], done["next"]) == (sorted(made), {}, None)
        assert (await client.get(f"{API}/runs/{made[0]}")).json()["paused"] == "by ann: lunch"
        done = (await client.post(f"{API}/runs/actions", json={"action": "retry", "all": True})).json()
        assert done["changed"] == []
        assert "only a run that has ended" in done["refused"][made[0]]
        assert (await client.post(f"{API}/runs/{made[0]}/resume")).json()["paused"] is None
        assert (await client.post(f"{API}/runs/{made[0]}/cancel")).json()["status"] == "cancelled"
        problem(await client.post(f"{API}/runs/{made[0]}/pause"), 409)


@pytest.mark.parametrize("term", [{"key": "k\0"}, {"key": "plan:x"}, {"label": "a\nb"}, {"series": "\t"}])
async def test_a_run_with_an_invalid_term_is_an_invalid_request(term: dict[str, str]) -> None:
    async with plan_server() as (scene, stage), scene.client() as client:
        await a_workflow(stage)
        answer = await client.post(f"{API}/runs", json={"workflow": "w", "input": {"name": "x"}, **term})
        assert next(iter(term)) in problem(answer, 422)


@pytest.mark.parametrize("body", [{}, {"limit": 5}, {"status": ""}, {"all": False}])
async def test_an_action_without_a_condition_is_refused(body: dict[str, Any]) -> None:
    async with plan_server() as (scene, stage), scene.client() as client:
        await a_workflow(stage)
        run = await created(client)
        answer = await client.post(f"{API}/runs/actions", json={"action": "cancel", **body})
        assert "this would act on every run" in problem(answer, 422)
        assert await run_status(client, run["id"]) == run["status"]
        done = (await client.post(f"{API}/runs/actions", json={**body, "action": "cancel", "all": True})).json()
        assert done["changed"] == [run["id"]]


async def test_a_run_is_moved_and_a_slow_move_goes_on() -> None:
    async with plan_server() as (scene, stage), scene.client() as client:
        await a_workflow(stage, "stubborn")
        await stage.device("one")
        run = await created(client)
        await stage.until(gate("x begun").is_set)
        await stage.device("two")
        path = f"{API}/runs/{run['id']}/move"
        assert "with --stop" in problem(await client.post(path, json={"device": "two"}), 409)
        problem(await client.post(path, json={"device": "nowhere", "stop": True}), 404)
        answer = await client.post(path, json={"device": "two", "stop": True})
        assert answer.status_code in (200, 202)
        gate("x").set()
        while await run_status(client, run["id"]) != "completed":
            await stage.fleet().clock.sleep(1.0)


async def test_a_device_is_drained() -> None:
    async with plan_server() as (scene, stage), scene.client() as client:
        device = await stage.device("lab")
        assert [listed["name"] for listed in (await client.get(f"{API}/devices")).json()["items"]] == ["lab"]
        assert (await client.post(f"{API}/devices/lab/drain")).json()["draining"]
        await stage.until(device.draining.is_set)
        problem(await client.post(f"{API}/devices/x/drain"), 404)
        problem(await client.get(f"{API}/devices/x"), 404)


async def test_a_schedule_creates_a_plan_that_the_server_runs() -> None:
    async with plan_server() as (scene, _), scene.client() as client:
        body = {"name": "s", "text": plan_text("a"), "every": 3600}
        assert (await client.post(f"{API}/schedules", json=body)).status_code == 201
        tick = (await client.post(f"{API}/schedules/s/run")).json()
        [plan] = (await client.get(f"{API}/schedules/s")).json()["open"]
        assert (await ended(client, plan))["state"] == "completed"
        assert tick["outcome"]
        assert (await client.post(f"{API}/schedules/s/pause", json={"reason": "x"})).json()["paused"] == "by ann: x"
        assert (await client.post(f"{API}/schedules/s/resume")).json()["paused"] is None
        assert [schedule["name"] for schedule in (await client.get(f"{API}/schedules")).json()["items"]] == ["s"]
        assert (await client.delete(f"{API}/schedules/s")).status_code == 200
        problem(await client.get(f"{API}/schedules/s"), 404)


@pytest.mark.parametrize(
    "body",
    [
        {"name": "s", "every": 60},
        {"name": "s", "workflow": "w"},
        {"name": "s", "workflow": "w", "text": "x", "every": 60},
        {"name": "s", "workflow": "w", "cron": "61 * * * *"},
        {"name": "s", "text": "tasks: 1", "every": 60},
        {"name": "a/b", "workflow": "w", "every": 60},
    ],
)
async def test_a_schedule_that_contradicts_itself_is_refused(body: dict[str, Any]) -> None:
    async with plan_server() as (scene, stage), scene.client() as client:
        await a_workflow(stage)
        problem(await client.post(f"{API}/schedules", json=body), 422)


async def test_a_series_is_claimed_and_released_with_its_own_scope() -> None:
    async with plan_server() as (scene, _), scene.client("series") as client, scene.client("operate") as other:
        path = f"{API}/series/RFC-1"
        problem(await other.post(f"{path}/claim", json={"issue": 1}), 403)
        assert (await client.post(f"{path}/claim", json={"issue": 1})).json()["active"] == 1
        assert (await client.post(f"{path}/claim", json={"issue": 2})).json()["queue"] == [2]
        shown = (await client.get(path)).json()
        assert (shown["active"], shown["status"], len(shown["changes"])) == (1, "active", 2)
        assert (await client.post(f"{path}/release", json={"issue": 1})).json()["active"] == 2
        assert [entry["name"] for entry in (await other.get(f"{API}/series")).json()["items"]] == ["RFC-1"]
        problem(await client.get(f"{API}/series/nothing"), 404)
        problem(await client.get(f"{API}/runs"), 403)


async def test_notices_and_metrics_are_served() -> None:
    async with plan_server() as (scene, stage), scene.client("observe") as client:
        await stage.store.commit([Notice(stage.store.clock(), "lost", f"notice {number}") for number in range(3)])
        first = (await client.get(f"{API}/notices?limit=2")).json()
        rest = (await client.get(f"{API}/notices?after={first['next']}")).json()
        assert [notice["message"] for notice in [*first["items"], *rest["items"]]] == [f"notice {n}" for n in range(3)]
        answer = await client.get(f"{API}/metrics")
        assert answer.headers["content-type"].startswith("application/openmetrics-text")
        assert answer.text.endswith("# EOF\n")
        assert (await client.get(f"{API}/workflows")).json()["items"] == []


async def followed(scene: ServerScene, stage: Stage, **headers: str) -> EventClient:
    client = EventClient(scene, f"{API}/events", await scene.token("observe"), **headers)
    await stage.until(lambda: client.status == 200)
    return client


async def test_the_events_of_a_fleet_are_runs_devices_and_notices() -> None:
    async with plan_server() as (scene, stage), scene.client() as client:
        await a_workflow(stage)
        follower = await followed(scene, stage)
        await follower.until(1)
        await stage.device("lab")
        run = await created(client)
        await stage.store.commit([Notice(stage.store.clock(), "lost", "a notice")])
        await stage.until(lambda: any(event.get("status") == "completed" for event in follower.events))
        kinds = [event["event"] for event in follower.events]
        assert kinds[0] == "reset"
        assert {"run", "device", "notice"} <= set(kinds)
        assert follower.events[-1]["kind"] in ("run", "device", "notice")
        last = follower.events[-1]["id"]
        other = await followed(scene, stage, last_event_id=follower.events[1]["id"])
        await stage.until(lambda: bool(other.events) and other.events[-1]["id"] == last)
        assert [event["id"] for event in other.events] == [event["id"] for event in follower.events[2:]]
        await follower.leave()
        await other.leave()
        await stage.fleet().clock.sleep(event_stream.KEPT_FOR + 2 * event_stream.LOOK_INTERVAL)
        again = await followed(scene, stage, last_event_id=last)
        await again.until(1)
        assert [event["event"] for event in again.events] == ["reset"]
        await again.leave()
        assert run["id"]


@pytest.mark.parametrize("kept", [True, False], ids=["guarded", "ablation"])
async def test_a_lone_client_of_a_fleet_resumes_and_gets_each_event_once(
    monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    if not kept:
        monkeypatch.setattr(event_stream, "KEPT_FOR", 0.0)
    async with plan_server() as (scene, stage):
        follower = await followed(scene, stage)
        await follower.until(1)
        seen, last = list[str](), follower.events[0]["id"]
        for number in range(10):
            await follower.leave()
            await stage.store.commit([Notice(stage.store.clock(), "lost", f"while away {number}")])
            await stage.fleet().clock.sleep(7.0 * (number % 4))
            follower = await followed(scene, stage, last_event_id=last)
            await stage.store.commit([Notice(stage.store.clock(), "lost", f"while here {number}")])
            text = f"while here {number}"
            await stage.until(
                lambda text=text, client=follower: text in [event.get("message") for event in client.events]
            )
            seen += [event.get("message", event["event"]) for event in follower.events]
            last = follower.events[-1]["id"]
        await follower.leave()
        every = [f"while {where} {number}" for number in range(10) for where in ("away", "here")]
        assert (seen == every) is kept
        assert ("reset" in seen) is not kept


async def test_a_feed_without_clients_ends_after_a_while() -> None:
    async with plan_server() as (scene, stage):
        follower = await followed(scene, stage)
        await follower.until(1)
        await follower.leave()
        task = scene.state.fleet_feed._task
        assert task is not None
        assert not task.done()
        await stage.fleet().clock.sleep(event_stream.KEPT_FOR + 2 * event_stream.LOOK_INTERVAL)
        assert task.done()


async def test_a_feed_whose_beginning_failed_begins_for_the_next_client(monkeypatch: pytest.MonkeyPatch) -> None:
    async with plan_server() as (scene, stage):
        real, failing = stage.store.notices, True

        async def notices(**filters: Any) -> Any:
            if failing:
                raise StoreUnavailable("gone for a moment")
            return await real(**filters)

        monkeypatch.setattr(stage.store, "notices", notices)
        first = await followed(scene, stage)
        await stage.until(first.task.done)
        assert first.over
        failing = False
        second = await followed(scene, stage)
        await second.until(1)
        await stage.device("lab")
        await stage.until(lambda: any(event["event"] == "device" for event in second.events))
        failing = True  # what changes during an outage comes after it
        await stage.store.commit([Notice(stage.store.clock(), "lost", "during the outage")])
        await stage.device("other")
        await stage.fleet().clock.sleep(5.0)
        failing = False
        await stage.until(lambda: {"other"} <= {event.get("name") for event in second.events})
        await stage.until(lambda: any(event.get("message") == "during the outage" for event in second.events))
        await second.leave()


async def test_an_error_of_a_feed_ends_its_streams_and_the_next_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    async with plan_server() as (scene, stage):
        follower = await followed(scene, stage)
        await follower.until(1)
        with monkeypatch.context() as patch:
            patch.setattr(scene.state.fleet_feed, "_changes", None)
            await stage.until(follower.task.done)
        again = await followed(scene, stage, last_event_id=follower.events[0]["id"])
        assert [event["event"] for event in await again.until(1)] == ["reset"]
        await again.leave()


async def test_a_scope_for_one_plan_sees_no_other() -> None:
    async with plan_server() as (scene, stage), scene.client("edit:nightly") as client:
        await insert_plan(stage.store, chain("a"))
        assert (await client.get(f"{API}/plans/nightly")).status_code == 200
        for path in ("plans", "plans/other", "runs", "devices", "notices", "series", "metrics", "schedules", "events"):
            problem(await client.get(f"{API}/{path}"), 403)


@pytest.mark.parametrize("after", ["x", "1", "1.2.3", "-1.0", "1." + "9" * 20])
async def test_a_wrong_position_in_a_log_is_an_invalid_request(after: str) -> None:
    async with plan_server() as (scene, stage), scene.client() as client:
        await a_workflow(stage)
        run = await created(client)
        answer = await client.get(f"{API}/runs/{run['id']}/logs", params={"after": after})
        assert "is not the `next` of an earlier answer" in problem(answer, 422)
