"""Edit cycles and approvals over HTTP: list, claim, answer, approve, refuse."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from asterism import AsyncClient
from asterism.api import documents
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edit_rules import ApprovalRule
from asterism.core.plan.edits import RemoveTask
from asterism.core.record import decode
from asterism.models import Budget, ModelEditor
from tests.durable.durable_scenes import DONE, Stage, chain, task
from tests.durable.durable_work import gate
from tests.models.editor_scenes import REPAIR, ScriptedCaller, pipeline
from tests.security.test_requests import problem
from tests.server.server_scenes import BASE, ServerScene, ended, plan_server, plan_text

pytestmark = pytest.mark.virtual_time

PLAN = "/api/v1/plans/nightly"
REMOVE = {"op": "remove_task", "task_id": "b", "dependents": "bridge"}
ADD = {"op": "add_task", "task": {"id": "d", "call": "tests.durable.durable_work:work", "inputs": {"name": "d"}}}


@asynccontextmanager
async def running(**options: Any) -> AsyncIterator[tuple[ServerScene, Stage]]:
    """A server beside a process that runs a plan whose first task waits at its gate."""
    async with plan_server() as (scene, stage):
        stage.spawn(stage.orchestrator(**options).run(chain("a", "b", "c", call="wait")))
        await gate("a begun").wait()
        yield scene, stage


def open_gates() -> None:
    for name in "abc":
        gate(name).set()


OUTSIDE: dict[str, Any] = {"external": True, "claim_timeout": float("inf"), "edit_on": lambda task: task.id == "a"}
RULES: dict[str, Any] = {"approvals": [ApprovalRule.parse("destructive")]}


@asynccontextmanager
async def bob(scene: ServerScene) -> AsyncIterator[httpx.AsyncClient]:
    async with scene.client(token=await scene.token("operate", name="bob")) as client:
        yield client


async def items(client: httpx.AsyncClient, what: str) -> list[Any]:
    answer = await client.get(f"{PLAN}/{what}")
    assert answer.status_code == 200, answer.text
    return list(answer.json()["items"])


# -- cycles ------------------------------------------------------------------------------------------------------------


async def test_an_editor_claims_and_answers_a_cycle() -> None:
    async with running(**OUTSIDE) as (scene, _), scene.client("edit:nightly") as editor, bob(scene) as other:
        open_gates()
        await asyncio.sleep(2.0)
        answer = (await editor.get(f"{PLAN}/cycles")).json()
        (cycle,) = answer["items"]
        assert (answer["answered_by"], cycle["tasks"], cycle["claimed_by"]) == ("nightly@here", ["a"], None)
        assert cycle["ends"] == [{"task": "a", "status": "completed", "reason": ""}]
        path = f"{PLAN}/cycles/{cycle['id']}"
        claimed = (await editor.post(f"{path}/claim", json={"lease": 120})).json()
        assert claimed["claimed_by"]
        for step in ("claim", "answer"):
            refused = await other.post(f"{path}/{step}")
            assert "is claimed by" in problem(refused, 409)
            assert refused.json()["type"] == "urn:asterism:problem:cycle-claimed"
        rejected = await editor.post(f"{path}/answer", json={"edits": [{"op": "remove_task", "task_id": "x"}]})
        assert [violation["rule"] for violation in rejected.json()["violations"]] == ["unknown_task"]
        done = (await editor.post(f"{path}/answer", json={"edits": [REMOVE], "reason": "enough"})).json()
        assert (done["accepted"], done["version"], done["applied_by"]) == (True, 1, "nightly@here")
        assert (await ended(editor))["state"] == "completed"
        assert set(DONE) == {"a", "c"}
        version = (await items(editor, "versions"))[1]
        assert (version["author"], version["reason"]) == (claimed["claimed_by"], "enough")


async def test_an_answer_without_edits_goes_on() -> None:
    async with running(**OUTSIDE) as (scene, _), scene.client() as client:
        open_gates()
        await asyncio.sleep(2.0)
        answer = await client.post(f"{PLAN}/cycles/1/answer")
        assert answer.json()["version"] == 0
        assert set(DONE) <= {"a", "b", "c"}
        await ended(client)


async def test_cycles_that_are_not_there() -> None:
    async with running() as (scene, _), scene.client() as client:
        assert await items(client, "cycles") == []
        for number, status in (("7", 404), ("x", 404), ("9" * 30, 404)):
            for step in ("claim", "answer"):
                problem(await client.post(f"{PLAN}/cycles/{number}/{step}"), status)
        problem(await client.post(f"{PLAN}/cycles/1/claim", json={"lease": 0}), 422)
        problem(await client.get("/api/v1/plans/unknown/cycles"), 404)
        open_gates()


# -- approvals ---------------------------------------------------------------------------------------------------------


async def test_an_edit_waits_and_a_person_approves_it() -> None:
    async with running(**RULES) as (scene, _), scene.client("edit:nightly") as robot, scene.client("operate") as ann:
        waits = await robot.post(f"{PLAN}/edits", json={"edits": [REMOVE], "reason": "not needed"})
        assert "waits for approval 1" in problem(waits, 409)
        assert (waits.json()["type"], waits.json()["approval"]) == ("urn:asterism:problem:edit-waits", 1)
        (edit,) = await items(robot, "approvals")
        assert (edit["id"], edit["tasks"], edit["batch"]["reason"]) == (1, ["b", "c"], "not needed")
        assert (await ann.get(PLAN)).json()["approvals"] == [edit]
        for step in ("approve", "refuse"):  # a credential for edits does not approve its own
            assert "scope" in problem(await robot.post(f"{PLAN}/approvals/1/{step}"), 403)
        assert [entry["state"] for entry in await items(robot, "approvals")] == ["waiting"]
        done = (await ann.post(f"{PLAN}/approvals/1/approve")).json()
        assert (done["version"], [entry["op"] for entry in done["edits"]]) == (1, ["remove_task"])
        assert await items(ann, "approvals") == []
        (decided,) = await items(ann, "approvals?all=true")
        assert decided["state"] == "approved"
        assert "it was approved already by" in problem(await ann.post(f"{PLAN}/approvals/1/approve"), 404)
        kinds = [entry["what"] for entry in await items(ann, "changes") if entry["kind"] == "approval"]
        assert kinds == ["edit waits", "edit approved"]
        open_gates()
        await ended(ann)
        assert set(DONE) == {"a", "c"}


async def test_a_credential_for_edits_does_not_take_the_approval_of_a_task_away() -> None:
    async with plan_server() as (scene, stage):
        plan = Constellation("nightly")
        plan.add(task("a", approval={"timeout": 3600.0}))
        stage.spawn(stage.orchestrator().run(plan))
        async with scene.client("edit:nightly") as robot, scene.client("operate") as ann:
            while not (await ann.get(f"{PLAN}/approvals")).json().get("items"):
                await scene.fleet.clock.sleep(0.1)
            take = {"op": "update_task", "task_id": "a", "changes": {"approval": None}}
            refused = await robot.post(f"{PLAN}/edits", json={"edits": [take]})
            assert "rejected" in problem(refused, 422)
            assert "only a person removes" in refused.text
            assert (await ann.post(f"{PLAN}/approvals/1/refuse")).status_code == 200
            await ended(ann)
        assert set(DONE) == set()


async def test_an_edit_is_changed_or_refused() -> None:
    async with running(**RULES) as (scene, _), scene.client("operate") as ann:
        for _ in range(2):
            await ann.post(f"{PLAN}/edits", json={"edits": [REMOVE]})
        rejected = await ann.post(
            f"{PLAN}/approvals/1/approve", json={"edits": [{"op": "remove_task", "task_id": "x"}]}
        )
        assert problem(rejected, 422) == "the edit was rejected, and nothing has changed"
        assert (await ann.post(f"{PLAN}/approvals/1/approve", json={"edits": [ADD]})).json()["version"] == 1
        refused = (await ann.post(f"{PLAN}/approvals/2/refuse", json={"reason": "we need it"})).json()
        assert (refused["state"], refused["why"]) == ("refused", "we need it")
        open_gates()
        await ended(ann)
        assert set(DONE) == {"a", "b", "c", "d"}


async def test_a_waiting_edit_tells_its_cost_its_effects_and_when_people_hear_of_it_again() -> None:
    options = {"approvals": [ApprovalRule.parse("cost=5")], "approval_escalation": 600.0}
    async with running(**options) as (scene, stage), scene.client("operate") as ann:
        await stage.fleet().configure(notify_url="https://example.com/hook")
        clean = {"op": "add_task", "task": {"id": "clean", "shell": "rm -r build", "cost": 6, "effects": ["spends"]}}
        await ann.post(f"{PLAN}/edits", json={"edits": [clean, ADD]})
        (edit,) = await items(ann, "approvals")
        assert (edit["cost"], edit["effects"]) == (6, {"clean": ["deletes", "spends"]})
        assert (edit["escalates_at"], edit["escalates_to"]) == (edit["at"] + 600, ["url"])
        decode(documents.Plan, (await ann.get(PLAN)).json())
        (listed,) = (await ann.get("/api/v1/plans")).json()["items"]
        assert listed["waiting_edits"] == 1
        await ann.post(f"{PLAN}/approvals/1/refuse")
        open_gates()
        await ended(ann)


async def test_approvals_that_are_not_there() -> None:
    async with running() as (scene, _), scene.client() as client:
        assert await items(client, "approvals") == []
        for number in ("1", "x", "9" * 30):
            problem(await client.post(f"{PLAN}/approvals/{number}/approve"), 404)
            problem(await client.post(f"{PLAN}/approvals/{number}/refuse"), 404)
        problem(await client.post(f"{PLAN}/approvals/1/approve", json={"edits": []}), 422)
        problem(await client.get("/api/v1/plans/unknown/approvals"), 404)
        open_gates()


async def test_the_answers_fit_their_documents() -> None:
    async with running(**OUTSIDE, **RULES) as (scene, _), scene.client() as client:
        gate("a").set()
        await asyncio.sleep(2.0)
        decode(documents.Cycles, (await client.get(f"{PLAN}/cycles")).json())
        claimed = (await client.post(f"{PLAN}/cycles/1/claim")).json()
        decode(documents.CycleDetails, claimed)
        await client.post(f"{PLAN}/cycles/1/answer", json={"edits": [REMOVE]})
        page = documents.Page[documents.WaitingEdit]
        assert decode(page, (await client.get(f"{PLAN}/approvals")).json()).items[0].cycle == 1
        decode(documents.Plan, (await client.get(PLAN)).json())
        await client.post(f"{PLAN}/approvals/1/refuse")
        open_gates()
        await ended(client)


async def test_a_submitted_plan_has_its_rules() -> None:
    async with plan_server() as (scene, _), scene.client("operate") as ann:
        text = plan_text("a", "b", call="wait")
        wrong = await ann.post("/api/v1/plans", json={"text": text, "approvals": ["edits=fly"]})
        assert "an approval rule: edits[0] must be" in problem(wrong, 422)
        await ann.post("/api/v1/plans", json={"text": text, "approvals": ["destructive", "tasks=deploy-*"]})
        await gate("a begun").wait()
        waits = await ann.post(f"{PLAN}/edits", json={"edits": [REMOVE]})
        assert waits.json()["approval"] == 1
        assert (await ann.post(f"{PLAN}/approvals/1/approve")).json()["version"] == 1
        open_gates()
        await ended(ann)
        assert set(DONE) == {"a"}


# -- scopes of editors -------------------------------------------------------------------------------------------------


async def test_a_credential_for_edits_alone_is_an_editor_with_a_scope() -> None:
    async with plan_server() as (scene, _), scene.client("operate") as ann, scene.client("edit:nightly") as robot:
        text = plan_text("a", "b", "c", call="wait")
        bad = await ann.post("/api/v1/plans", json={"text": text, "scopes": ["nonsense"]})
        assert "is not a scope" in problem(bad, 422)
        await ann.post("/api/v1/plans", json={"text": text, "scopes": ["edits=cancel_task tasks=*"]})
        await gate("a begun").wait()
        outside = await robot.post(f"{PLAN}/edits", json={"edits": [REMOVE]})
        assert [violation["rule"] for violation in outside.json()["violations"]] == ["scope"]
        outside = await robot.post(f"{PLAN}/edits", json={"edits": [REMOVE], "dry_run": True})
        assert outside.status_code == 422
        done = await robot.post(f"{PLAN}/edits", json={"edits": [{"op": "cancel_task", "task_id": "c"}]})
        assert done.json()["version"] == 1
        assert (await ann.post(f"{PLAN}/edits", json={"edits": [ADD]})).json()["version"] == 2
        open_gates()
        await ended(ann)


WAITS: dict[str, Any] = {
    "a task": {"wait_for": {"plan": "secret", "task": "t"}},
    "an event": {"wait_for": {"event": "paid/7"}},
    "a tick": {"wait_for": {"plan": "secret", "task": "t", "tick": "2026-11-17T03:00"}},
    "known later": {"foreach": {"from": "a", "template": {"wait_for": {"plan": "{item}", "task": "t"}}}},
    "an element": {"foreach": {"from": "a", "template": {"wait_for": {"event": "paid"}}}},
    "nested": {
        "foreach": {"from": "a", "template": {"foreach": {"from": "a", "template": {"wait_for": {"event": "x"}}}}}
    },
}


@pytest.mark.parametrize("what", WAITS)
async def test_a_credential_for_edits_alone_waits_for_no_plan_that_it_may_not_observe(what: str) -> None:
    """At each door: an edit, a dry run, a change of a task, the answer to a cycle, and the undo of a removal."""
    add: list[Any] = [{"op": "add_task", "task": {"id": "spy", **WAITS[what]}}]
    add += [{"op": "add_dependency", "source": "a", "target": "spy"}]
    change = [{"op": "update_task", "task_id": "c", "changes": {"call": None, "inputs": {}, **WAITS[what]}}]
    async with running(**OUTSIDE) as (scene, _), scene.client("edit:nightly") as robot, bob(scene) as ann:
        for edits in (add, change):
            for path in ("edits", "cycles/1/answer"):
                refused = await robot.post(f"{PLAN}/{path}", json={"edits": edits})
                assert "this needs the scope observe" in problem(refused, 403)
            assert (await robot.post(f"{PLAN}/edits", json={"edits": edits, "dry_run": True})).status_code == 403
        async with scene.client("edit:nightly", "observe") as reader:
            allowed = await reader.post(f"{PLAN}/edits", json={"edits": add, "dry_run": True})
            assert allowed.status_code == 200, allowed.text
        assert (await ann.post(f"{PLAN}/edits", json={"edits": add})).status_code == 200
        remove = [{"op": "remove_task", "task_id": "spy"}]
        assert (await ann.post(f"{PLAN}/edits", json={"edits": remove})).status_code == 200
        assert "this needs the scope observe" in problem(await robot.post(f"{PLAN}/undo"), 403)
        open_gates()
        await asyncio.sleep(2.0)
        assert (await robot.post(f"{PLAN}/cycles/1/answer")).status_code == 200
        await ended(ann)


async def test_a_credential_for_edits_of_two_plans_waits_in_one_for_the_other() -> None:
    edits = [{"op": "add_task", "task": {"id": "later", "wait_for": {"plan": "weekly", "task": "t"}}}]
    until = [{"op": "add_task", "task": {"id": "later", "wait_for": {"until": "2026-11-18T09:00"}}}]
    async with running() as (scene, _), scene.client("edit:nightly", "edit:week*") as robot, bob(scene) as ann:
        for allowed in (edits, until):
            done = await robot.post(f"{PLAN}/edits", json={"edits": allowed, "dry_run": True})
            assert done.status_code == 200, done.text
        open_gates()
        await ended(ann)


async def test_an_editor_outside_learns_why_its_answer_was_refused() -> None:
    options = {**OUTSIDE, **RULES}
    async with running(**options) as (scene, _), scene.client("edit:nightly") as robot, scene.client("operate") as ann:
        open_gates()
        await asyncio.sleep(2.0)
        waits = await robot.post(f"{PLAN}/cycles/1/answer", json={"edits": [REMOVE]})
        assert "waits for approval 1" in problem(waits, 409)
        await ann.post(f"{PLAN}/approvals/1/refuse", json={"reason": "we need it"})
        cycle = (await items(robot, "cycles"))[0]
        decode(documents.CycleDetails, cycle)
        assert [(refusal["approval"], refusal["reason"]) for refusal in cycle["refusals"]] == [(1, "we need it")]
        await robot.post(f"{PLAN}/cycles/{cycle['id']}/answer")
        await ended(ann)


# -- budgets -----------------------------------------------------------------------------------------------------------


async def test_a_spent_budget_is_shown_and_raised() -> None:
    async with plan_server() as (scene, stage):
        caller = ScriptedCaller(REPAIR)
        model = ModelEditor("test:scripted", caller=caller, fleet=stage.fleet(), budget=Budget(calls=0))
        job = stage.spawn(stage.orchestrator(editor=model).run(pipeline()))
        async with bob(scene) as client:
            path = "/api/v1/plans/pipeline/budget"
            for _ in range(200):
                answer = await client.get(path)
                if answer.status_code == 200 and answer.json().get("held_since") is not None:
                    break
                await asyncio.sleep(0.5)
            shown = decode(documents.EditorBudget, answer.json())
            assert (shown.budget, shown.spent) == ({"calls": 0, "tasks": 500}, {})
            assert (shown.held_why, shown.held_until) == ("0 of 0 calls are spent", shown.held_since + 86_400)
            plan = decode(documents.Plan, (await client.get("/api/v1/plans/pipeline")).json())
            assert plan.budget == shown
            (listed,) = (await client.get("/api/v1/plans")).json()["items"]
            assert (listed["budget_spent"], listed["waiting_edits"]) == (True, 0)
            assert problem(await client.post(path, json={}), 422)
            assert problem(await client.post(path, json={"limits": "lots"}), 422)
            raised = await client.post(path, json={"limits": "5calls"})
            assert (raised.status_code, raised.json()["budget"]) == (200, {"calls": 5, "tasks": 500})
            assert raised.json()["decided_by"] == "bob"
            result = await job
            assert result["publish"].status == "completed"
            ended = await client.post(path, json={"without_editor": True})
            assert ended.json()["without_editor"] is True


async def test_the_cost_of_a_model_is_told_with_the_cycle_and_the_version_that_it_made() -> None:
    async with plan_server() as (scene, stage):
        caller = ScriptedCaller([], REPAIR, seconds=2.0)
        model = ModelEditor("test:scripted", caller=caller, fleet=stage.fleet(), ask="all")
        result = await stage.orchestrator(editor=model).run(pipeline())
        async with bob(scene) as client:
            answer = (await client.get("/api/v1/plans/pipeline/versions")).json()
            versions = decode(documents.Versions, answer)
        assert [(cycle.tasks, cycle.outcome, cycle.version) for cycle in versions.cycles[:2]] == [
            (["build"], "empty", None),
            (["test"], "accepted", 1),
        ]
        cost = versions.cycles[1].cost
        assert cost is not None
        assert (cost.model, cost.calls, cost.input_tokens, cost.output_tokens) == ("test:scripted", 1, 1000, 100)
        assert (cost.dollars, cost.seconds) == (pytest.approx(0.002), 2.0)
        assert versions.cost is not None
        assert (versions.cost.calls, versions.cost.dollars) == (result.editor_cost.calls, result.editor_cost.dollars)


async def test_the_answer_of_a_cycle_that_a_person_approved_has_its_version() -> None:
    async with plan_server() as (scene, stage), bob(scene) as client:
        model = ModelEditor("test:scripted", caller=ScriptedCaller(REPAIR), fleet=stage.fleet())
        rules = [ApprovalRule.parse("edits=add_task")]
        job = stage.spawn(stage.orchestrator(editor=model, approvals=rules).run(pipeline()))
        await asyncio.sleep(5.0)
        path = "/api/v1/plans/pipeline"
        (cycle,) = (await client.get(f"{path}/versions")).json()["cycles"]
        assert (cycle["outcome"], cycle["version"], cycle["cost"]["calls"]) == ("waiting", None, 1)
        await client.post(f"{path}/approvals/1/approve")
        assert (await client.get(f"{path}/versions")).json()["cycles"][0]["version"] == 1
        await job


async def test_a_plan_without_a_model_has_no_budget() -> None:
    async with running() as (scene, _), bob(scene) as client:
        assert problem(await client.get(f"{PLAN}/budget"), 404)
        open_gates()


# -- what a caller learns ----------------------------------------------------------------------------------------------


async def test_a_dry_run_says_that_an_edit_would_wait_and_an_approval_keeps_its_reason() -> None:
    async with running(**RULES) as (scene, _), scene.client("operate") as ann:
        dry = (await ann.post(f"{PLAN}/edits", json={"edits": [REMOVE], "dry_run": True})).json()
        assert dry["accepted"]
        assert dry["waits"] == ["remove task 'b', bridged (edits=remove_task,cancel_task,remove_dependency)"]
        assert (await ann.post(f"{PLAN}/edits", json={"edits": [ADD], "dry_run": True})).json()["waits"] == []
        assert await items(ann, "approvals") == []
        await ann.post(f"{PLAN}/edits", json={"edits": [REMOVE]})
        client = AsyncClient(BASE, await scene.token(), transport=httpx.ASGITransport(scene.app))  # type: ignore[arg-type]
        async with client:
            assert (await client.edit_plan("nightly", [RemoveTask("c")], dry_run=True)).waits
            assert (await client.approve_edit("nightly", 1, reason="fine by me")).version == 1
        assert [entry["why"] for entry in await items(ann, "approvals?all=true")] == ["fine by me"]
        assert any("fine by me" in entry["why"] for entry in await items(ann, "story"))
        open_gates()
        await ended(ann)


async def test_a_retry_with_edits_that_need_approval_is_rejected() -> None:
    async with plan_server() as (scene, _), scene.client("operate") as ann:
        await ann.post("/api/v1/plans", json={"text": plan_text("a", call="fail"), "approvals": ["all"]})
        await ended(ann)
        answer = await ann.post(f"{PLAN}/retry", json={"edits": [ADD]})
        assert (answer.status_code, [violation["rule"] for violation in answer.json()["violations"]]) == (
            422,
            ["approval"],
        )
        answer = await ann.post(f"{PLAN}/edits", json={"edits": [ADD]})
        assert (answer.status_code, [violation["rule"] for violation in answer.json()["violations"]]) == (
            422,
            ["ended"],
        )
        assert await items(ann, "approvals") == []
