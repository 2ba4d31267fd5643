"""A plan file that is checked before it is submitted: mistakes by line, parameters, and nothing is stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from asterism.api.local.schedule_handlers import read_texts
from asterism.api.operation import API
from tests.server.server_scenes import ServerScene, server_scene

pytestmark = pytest.mark.virtual_time

PLAN = """asterism: 1
id: backup
params:
  day: {type: text, description: The day}
  parts: 4
  place: {default: eu, choices: [eu, us]}
tasks:
  load: {shell: echo load}
  mail: {shell: echo mail, after: load}
"""


async def checked(scene: ServerScene, text: str, **fields: Any) -> dict[str, Any]:
    async with scene.client("operate") as client:
        answer = await client.post(f"{API}/plan-checks", json={"text": text, **fields})
        assert answer.status_code == 200, answer.text
        return dict(answer.json())


async def test_a_valid_plan_tells_its_size_name_and_parameters() -> None:
    async with server_scene() as scene:
        found = await checked(scene, PLAN)
        assert (found["valid"], found["name"], found["tasks"], found["dependencies"]) == (True, "backup", 2, 1)
        assert found["findings"] == []
        shown = [(one["name"], one["type"], one["required"], one["default"]) for one in found["params"]]
        assert shown == [("day", "text", True, None), ("parts", "integer", False, 4), ("place", "text", False, "eu")]
        assert found["params"][2]["choices"] == ["eu", "us"]
        async with scene.client("admin") as client:
            assert (await client.get(f"{API}/plans")).json()["items"] == []
            assert (await client.get(f"{API}/audit")).json()["items"] == []


async def test_mistakes_have_their_lines_and_the_parameters_are_there_all_the_same() -> None:
    async with server_scene() as scene:
        found = await checked(scene, PLAN.replace("shell: echo mail", "shel: echo mail"), params={"place": "mars"})
        assert not found["valid"]
        by_line = {finding["line"]: finding["text"] for finding in found["findings"]}
        assert "did you mean 'shell'" in by_line[9]
        assert "must be one of" in by_line[6]
        assert [one["name"] for one in found["params"]] == ["day", "parts", "place"]


@pytest.mark.parametrize("text", ["", "- a", "a: [", "params: 1", "params: {x: {type: odd}}", "\x00"])
async def test_any_text_is_answered(text: str) -> None:
    async with server_scene() as scene:
        found = await checked(scene, text)
        assert (found["valid"], found["params"]) == (False, [])
        assert found["findings"]


async def test_only_those_who_may_submit_check() -> None:
    async with server_scene() as scene, scene.client("observe") as client:
        assert (await client.post(f"{API}/plan-checks", json={"text": PLAN})).status_code == 403


@pytest.mark.parametrize(
    ("text", "threads"),
    [("a: &a x\nb: [*a]", 1), ("a: &a x\nb: *a", 1), ("a: '*.csv'\nb: */5 * * * *\nc: rm *", 0), ("a: b", 0)],
)
async def test_many_aliases_are_read_in_a_thread(text: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short text may stand for a long one."""
    begun = []

    async def counted(function: Callable[[], Any]) -> Any:
        begun.append(function)
        return function()

    monkeypatch.setattr("asyncio.to_thread", counted)
    assert await read_texts(lambda: "read", [text]) == "read"
    assert len(begun) == threads


async def test_the_variables_of_the_server_are_nobodys_business(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither which ones it has, nor how long a short secret is: the devices have those that count."""
    monkeypatch.setenv("DOOR_CODE", "abcdef")
    task = "{shell: echo $DOOR_CODE, env: {X: {secret: DOOR_CODE}}}"
    text = f"asterism: 1\ntasks:\n  DOOR_CODE: {{shell: echo 1}}\n  use: {task}\n"
    async with server_scene() as scene:
        found = await checked(scene, text)
        monkeypatch.delenv("DOOR_CODE")
        assert found == await checked(scene, text)
