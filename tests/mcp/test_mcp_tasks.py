"""The Tasks extension: long work is a handle that the client polls; without the extension, the call waits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp import Client, MCPError

from asterism.core.run.work import Workflow
from asterism.mcp.mcp_tasks import EXTENSION, Work, task_id, work_of
from tests.durable.durable_work import gate
from tests.mcp.mcp_scenes import (
    Refused,
    TasksExtension,
    ask_task,
    call,
    ended,
    open_gates,
    plan_client,
    running_plan,
    server_of,
)
from tests.server.server_scenes import plan_text

pytestmark = pytest.mark.virtual_time


async def test_a_followed_plan_is_a_task_that_ends_with_the_plan() -> None:
    tasks = TasksExtension()
    async with plan_client(extensions=[tasks]) as (client, _, _):
        document = await call(client, "submit_plan", text=plan_text("a", "b"), follow=True)
        assert (document["ended"], document["counts"]) == (True, {"completed": 2})
        assert [handle.status for handle in tasks.handles] == ["working"]
        assert tasks.states[-1] == "completed"
        again = await call(client, "follow_plan", plan="nightly")  # it has ended: no task is needed
        assert again["ended"]
        assert len(tasks.handles) == 1
        await call(client, "submit_plan", text=plan_text("a"), name="other")  # not followed: neither
        assert len(tasks.handles) == 1


async def test_without_the_extension_the_call_waits_and_is_repeated() -> None:
    async with running_plan() as (client, _, stage):
        began = stage.now()
        assert not (await call(client, "follow_plan", plan="nightly", timeout=5))["ended"]
        assert 5.0 <= stage.now() - began < 6.0
        open_gates()
        while not (document := await call(client, "follow_plan", plan="nightly"))["ended"]:
            pass
        assert document["counts"] == {"completed": 3}


async def test_an_older_client_gets_no_task_even_if_it_declares_the_extension() -> None:
    async with running_plan(mode="legacy", extensions=[TasksExtension()]) as (client, _, _):
        assert not (await call(client, "follow_plan", plan="nightly", timeout=0.5))["ended"]


async def test_a_task_outlives_the_server_and_belongs_to_its_plan() -> None:
    async with running_plan(extensions=[TasksExtension()]) as (client, scene, _):
        handle: Any = await client.session.call_tool("follow_plan", {"plan": "nightly"}, allow_claimed=True)
        async with Client(server_of(scene), extensions=[TasksExtension()]) as later:
            state = await ask_task(later.session, "get", handle.task_id)
            assert state.status == "working"
            assert state.status_message.startswith("plan 'nightly' is executing (")
            open_gates()
            await ended(later)
            state = await ask_task(later.session, "get", handle.task_id)
            assert state.result is not None
            assert state.result.structured_content["counts"] == {"completed": 3}
        async with Client(server_of(scene, "edit:other"), extensions=[TasksExtension()]) as stranger:
            with pytest.raises(MCPError, match="this needs the scope observe or edit:nightly"):
                await ask_task(stranger.session, "get", handle.task_id)


async def test_to_cancel_a_task_cancels_what_its_call_began_and_nothing_else() -> None:
    async with plan_client(extensions=[TasksExtension()]) as (client, scene, stage):
        await stage.device("shed")
        await scene.fleet.workflows.add(Workflow("dig", call="tests.durable.durable_work:wait"))

        async def task(tool: str, **arguments: Any) -> str:
            handle: Any = await client.session.call_tool(tool, arguments, allow_claimed=True)
            return str(handle.task_id)

        created = await task("create_run", workflow="dig", input={"name": "dig"}, follow=True)
        await gate("dig begun").wait()
        [run] = (await call(client, "list_runs", workflow="dig"))["items"]
        await ask_task(client.session, "cancel", await task("follow_run", run=run["id"]))
        await asyncio.sleep(10.0)
        assert (await ask_task(client.session, "get", created)).status == "working"
        await ask_task(client.session, "cancel", created)
        await asyncio.sleep(10.0)
        state = await ask_task(client.session, "get", created)
        assert state.result is not None
        assert state.result.structured_content["status"] == "cancelled"
        await ask_task(client.session, "cancel", created)  # it has ended: nothing happens
        submitted = await task("submit_plan", text=plan_text("a", call="wait"), follow=True)
        await gate("a begun").wait()
        await ask_task(client.session, "cancel", submitted)
        assert (await ended(client))["state"] == "cancelled"


async def test_mistakes_with_tasks_are_errors_of_the_protocol() -> None:
    async with plan_client(extensions=[TasksExtension()]) as (client, scene, _):
        gone = task_id(Work("run", "0" * 26, False))
        for identity in ("", "nonsense", "é", "e30", gone, task_id(Work("plan", "nothing", True))):
            for method in ("get", "cancel"):
                if (identity, method) == (gone, "cancel"):
                    continue  # a call that only follows has nothing to cancel
                with pytest.raises(MCPError) as refused:
                    await ask_task(client.session, method, identity)
                assert refused.value.error.code == -32602, identity
        async with Client(server_of(scene)) as plain:
            for method in ("get", "update", "cancel"):
                with pytest.raises(MCPError) as refused:
                    await ask_task(plain.session, method, gone, {} if method == "update" else None)
                assert refused.value.error.code == -32021
                assert refused.value.error.data == {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
            assert EXTENSION in (plain.server_capabilities.extensions or {})


async def test_a_stopping_server_ends_waits() -> None:
    async with running_plan() as (client, scene, stage):
        began = stage.now()
        waits = [
            asyncio.create_task(call(client, "follow_plan", plan="nightly", timeout=50)),
            asyncio.create_task(call(client, "wait_for_events", plan="nightly", timeout=50)),
        ]
        await asyncio.sleep(1.0)
        scene.state.stopping.set()
        await asyncio.gather(*waits)
        assert stage.now() - began < 5.0


async def test_a_plan_that_cannot_be_submitted_becomes_no_task() -> None:
    tasks = TasksExtension()
    async with plan_client(extensions=[tasks]) as (client, _, _):
        with pytest.raises(Refused) as refused:
            await call(client, "submit_plan", text="asterism: 1\ntasks: {a: {shell: x, after: y}}", follow=True)
        assert refused.value.kind == "invalid-plan"
        assert tasks.handles == []


@given(st.sampled_from(["run", "plan"]), st.text(max_size=100), st.booleans())
def test_an_id_names_its_work_and_is_safe_in_a_header(kind: Any, name: str, begun: bool) -> None:
    identity = task_id(Work(kind, name, begun))
    assert identity.isascii()
    assert identity.replace("-", "").replace("_", "").isalnum()
    assert work_of(identity) == Work(kind, name, begun)


@given(st.text(max_size=60))
def test_any_other_text_is_refused(text: str) -> None:
    try:
        work = work_of(text)
    except MCPError:
        return
    assert work.kind in ("run", "plan")
