"""A plan with a large group over HTTP: one task with counts until it is opened, and its elements some at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from asterism.core.plan.group_elements import LARGE
from asterism.durable.journal_store import insert_plan
from tests.async_tests import async_fixture
from tests.core.plan.test_folded_groups import grouped_plan
from tests.server.server_scenes import server_scene

pytestmark = pytest.mark.virtual_time

PLAN = "/api/v1/plans/nightly"
ELEMENTS = LARGE + 1


@async_fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with server_scene() as scene, scene.client("observe") as client:
        await insert_plan(scene.fleet.store, grouped_plan())
        yield client


async def test_a_large_group_is_one_task_with_counts_until_it_is_opened(client: httpx.AsyncClient) -> None:
    whole = (await client.get(PLAN)).json()
    folded = (await client.get(PLAN, params={"folded": "true"})).json()
    opened = (await client.get(PLAN, params={"folded": "true", "opened": "load|other"})).json()
    assert [task["id"] for task in folded["tasks"]] == ["list", "load", "sum"]
    assert folded["tasks"][1]["behind"] == {"waiting": ELEMENTS}
    assert len(folded["dependencies"]) == 2
    assert opened["tasks"] == whole["tasks"]
    assert whole["tasks"][-2]["behind"] == {}


async def test_its_drawing_has_one_place_for_it(client: httpx.AsyncClient) -> None:
    text = (await client.get(f"{PLAN}/drawing", params={"form": "mermaid"})).json()["text"]
    assert f"load<br/>{ELEMENTS} waiting" in text
    assert "load[1" not in text


async def test_its_elements_are_listed_some_at_a_time(client: httpx.AsyncClient) -> None:
    found: list[str] = []
    after: str | None = None
    while not found or after is not None:
        query = {"group": "load", "status": "waiting", "limit": "40", **({"after": after} if after else {})}
        page = (await client.get(f"{PLAN}/tasks", params=query)).json()
        found, after = [*found, *(task["id"] for task in page["items"])], page["next"]
    assert found == [f"load[{number}]" for number in range(ELEMENTS)]
    searched = (await client.get(f"{PLAN}/tasks", params={"search": "LOAD[10"})).json()["items"]
    assert [task["id"] for task in searched] == ["load[10]", "load[100]"]
    assert (await client.get(f"{PLAN}/tasks", params={"status": "failed"})).json()["items"] == []
    assert (await client.get(f"{PLAN}/tasks", params={"group": "lod"})).status_code == 404
