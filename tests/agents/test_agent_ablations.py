"""Each safeguard around agents, switched off: what it prevents then happens."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from asterism.agents import a2a_executor
from asterism.agents.a2a_executor import A2aAgent
from asterism.base.secret_mask import Mask
from asterism.fleet.device import executor
from asterism.fleet.policy import device_policy
from asterism.fleet.policy.device_policy import DevicePolicy
from tests.agents.a2a_server import A2aServer
from tests.agents.test_a2a_executor import Scene as A2aScene
from tests.agents.test_a2a_executor import lost_run
from tests.agents.test_acp_executor import Scene, policy


async def test_without_permissions_an_agent_does_what_it_likes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DevicePolicy, "permission", lambda self, kind: None)
    file = tmp_path / "a.txt"
    touch = {"run": {"command": "touch", "args": [str(tmp_path / "b.txt")]}}
    answer = await Scene().run({"write": [str(file), "changed"]}, touch, {"permission": {"title": "anything"}})
    assert "<allow_once>" in answer
    assert file.read_text() == "changed"
    assert (tmp_path / "b.txt").exists()


async def test_without_following_links_a_link_leads_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    (inside / "link").symlink_to(outside)
    step = {"write": [str(inside / "link" / "a.txt"), "x"]}
    await Scene(policy(inside, "edit")).run(step)
    assert not (outside / "a.txt").exists()
    monkeypatch.setattr(device_policy.os.path, "realpath", os.path.abspath)
    await Scene(policy(inside, "edit")).run(step)
    assert (outside / "a.txt").exists()


async def test_without_its_refusal_a_secret_is_in_the_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "a-long-secret-value")
    monkeypatch.setattr(executor, "_refuse_secret_inputs", lambda flow, run_input: None)
    masked = await Scene().run({"repeat_prompt": 1}, run_input={"token": {"secret": "TOKEN"}})
    assert "a-long-secret-value" not in masked, "the mask is the second line of defence"
    monkeypatch.setattr(Mask, "data", lambda self, value: value)
    answer = await Scene().run({"repeat_prompt": 1}, run_input={"token": {"secret": "TOKEN"}})
    assert "a-long-secret-value" in answer


async def test_without_judging_its_address_a_card_leads_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(a2a_executor, "_judge", lambda target, url, policy: None)
    async with A2aServer(url="http://169.254.169.254/latest") as server:
        agent = await A2aAgent.connect(server.url, DevicePolicy.open())
    assert agent.card.supported_interfaces[0].url == "http://169.254.169.254/latest"


async def test_without_looking_for_its_task_a_lost_run_begins_another(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(self: object) -> None:
        return None

    monkeypatch.setattr(a2a_executor._Conversation, "_open_task", nothing)
    async with A2aServer() as server:
        steps = [{"text": "done"}, {"end": "COMPLETED"}]
        await A2aScene(server).run(*steps)
        await A2aScene(server).run(*steps, run=lost_run())
        assert len(server.executor.asked) == 2
