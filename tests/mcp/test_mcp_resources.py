"""Resources and prompts of the MCP server."""

from __future__ import annotations

import json
import re

import mcp_types as types
import pytest
from mcp import Client, MCPError

from asterism.core.plan.edits import EDITS, edits_from_json
from asterism.mcp.mcp_resources import PROMPTS, _with_aliases
from asterism.mcp.mcp_tools import TOOLS
from asterism.models.device_aliases import DeviceAliases
from asterism.planfile.loader import examine
from tests.mcp.mcp_scenes import ADD, MODES, call, ended, plan_client, running_plan, server_of
from tests.server.server_scenes import plan_text

pytestmark = pytest.mark.virtual_time


async def text_of(client: Client, uri: str) -> tuple[str | None, str]:
    [content] = (await client.read_resource(uri)).contents
    assert isinstance(content, types.TextResourceContents)
    return content.mime_type, content.text


@pytest.mark.parametrize("mode", MODES)
async def test_plan_story_and_report_are_resources(mode: str) -> None:
    async with plan_client(mode=mode) as (client, _, _):
        await call(client, "submit_plan", text=plan_text("a", "b"), name="night <ly>")
        await ended(client, "night <ly>")
        resources = (await client.list_resources()).resources
        assert [resource.name for resource in resources] == [
            f"{kind} of night <ly>" for kind in ("plan", "story", "report")
        ]
        texts = dict([await text_of(client, str(resource.uri)) for resource in resources])
        assert json.loads(texts["application/json"])["counts"] == {"completed": 2}
        assert texts["text/markdown"].startswith("# Story of plan night <ly>\n\n- ")
        assert " a completed\n" in texts["text/markdown"]
        assert "<h1>night &lt;ly&gt;</h1>" in texts["text/html"]
        templates = (await client.list_resource_templates()).resource_templates
        assert [template.uri_template for template in templates] == [
            "asterism://plans/{plan}",
            "asterism://plans/{plan}/story",
            "asterism://plans/{plan}/report",
        ]


async def test_a_plan_that_runs_has_a_report_too() -> None:
    async with running_plan() as (client, _, _):
        await call(client, "edit_plan", plan="nightly", edits=[ADD], reason="<script>")
        media, text = await text_of(client, "asterism://plans/nightly/report")
        assert media == "text/html"
        assert "executing" in text
        assert "<script>alert" not in text
        assert "-" not in text.partition(" after ")[2][:1], "the time it took is not negative"
        assert (await call(client, "read_plan", plan="nightly"))["ended_at"] is None


async def test_unknown_and_foreign_resources_are_refused() -> None:
    async with running_plan("edit:nightly") as (client, scene, _):
        for uri, message in (
            ("asterism://plans/other", "this needs the scope observe or edit:other"),
            ("asterism://plans/nightly/secrets", "there is no resource"),
            ("asterism://plans/nightly%2Fstory/report", "no plan has such a name"),
            ("asterism://plans/../nightly", "there is no resource"),
            ("file:///etc/passwd", "there is no resource"),
        ):
            with pytest.raises(MCPError, match=message):
                await client.read_resource(uri)
        assert (await text_of(client, "asterism://plans/nightly"))[0] == "application/json"
        async with Client(server_of(scene, "series")) as stranger:
            assert (await stranger.list_resources()).resources == []
        async with Client(server_of(scene, "observe")) as reader:
            with pytest.raises(MCPError, match=r"^there is no plan 'other'$"):
                await reader.read_resource("asterism://plans/other/story")


async def test_names_of_plans_are_completed() -> None:
    async with running_plan() as (client, _, _):
        for ref in (
            types.ResourceTemplateReference(uri="asterism://plans/{plan}"),
            types.PromptReference(name="edit_plan"),
        ):
            answer = await client.complete(ref, {"name": "plan", "value": "ni"})
            assert answer.completion.values == ["nightly"]
            assert (await client.complete(ref, {"name": "plan", "value": "x"})).completion.values == []
        other = await client.complete(types.PromptReference(name="write_plan"), {"name": "request", "value": "n"})
        assert other.completion.values == []


@pytest.mark.parametrize("mode", MODES)
async def test_prompts_are_filled(mode: str) -> None:
    async with plan_client(mode=mode) as (client, _, _):
        listed = (await client.list_prompts()).prompts
        assert [prompt.name for prompt in listed] == ["edit_plan", "review_plan", "write_plan"]
        filled = await client.get_prompt("edit_plan", {"plan": "nightly"})
        [message] = filled.messages
        assert isinstance(message.content, types.TextContent)
        assert message.content.text.startswith("Edit the plan 'nightly' of Asterism")
        with pytest.raises(MCPError, match="needs the argument 'request'"):
            await client.get_prompt("write_plan", {})
        with pytest.raises(MCPError, match="there is no prompt 'nothing'"):
            await client.get_prompt("nothing", {})


def test_prompts_tell_the_truth() -> None:
    """Every tool that a prompt names exists, every edit that it shows is valid, and so is its plan file."""
    texts = {name: prompt.filled("nightly") for name, prompt in PROMPTS.items()}
    tools = {word for text in texts.values() for word in re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", text)}
    known = {*TOOLS, *PROMPTS, *EDITS, "base_version", "dry_run", "task_id", "unknown_task", "duplicate_task"}
    assert tools <= known, tools - known
    shown = re.findall(r'^ +(\{"op".*?\})(?: {3}|$)', texts["edit_plan"], re.MULTILINE)
    assert {edits_from_json([json.loads(example)])[0].op for example in shown} == set(EDITS) - {
        "remove_taint"
    }  # only a person does that
    lines = texts["write_plan"].splitlines()
    start = next(number for number, line in enumerate(lines) if line.strip() == "asterism: 1")
    end = next(number for number, line in enumerate(lines) if line.startswith("   Each task"))
    plan, mistakes = examine("\n".join(line[3:] for line in lines[start:end]), "prompt", texts={})
    assert not mistakes
    assert plan is not None
    assert len(plan.constellation) == 4


def test_tasks_of_a_report_that_are_called_as_fields_are_have_aliases_too() -> None:
    aliases = DeviceAliases(["kitchen"])
    tasks = {name: {"story": [{"why": "on kitchen"}]} for name in ("data", "device", "why")}
    shown = _with_aliases({"plan": {"device": "kitchen"}, "tasks": tasks, "logs": {"device": []}}, aliases)
    assert "kitchen" not in str(shown)
    assert list(shown["tasks"]) == ["data", "device", "why"]
