"""``asterism mcp`` as a process: a client of the official SDK starts it and speaks with it over stdio."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from tests.cli.command_scenes import Scene
from tests.forked_commands import ForkedCommand
from tests.mcp.mcp_scenes import Refused, call
from tests.process_scenes import PATIENCE

PLAN = """
asterism: 1
id: nightly
tasks:
  a: {shell: "echo hello; cat"}
  b: {shell: echo done, after: a}
"""
HELD_PLAN = """
asterism: 1
id: weekly
tasks:
  a: {shell: "true", device: nowhere}
  b: {shell: "true", after: a}
"""


BOB = ("--scope", "edit:nightly", "--scope", "edit:weekly", "--by", "bob")


def server(scene: Scene, log: Any, *words: str) -> Any:
    environment = {**os.environ, **scene.env}
    arguments = ["-m", "asterism", "mcp", *words]
    return stdio_client(StdioServerParameters(command=sys.executable, args=arguments, env=environment), errlog=log)


@pytest.mark.long
async def test_two_clients_of_two_processes_plan_watch_and_edit(tmp_path: Path) -> None:
    """The first task reads standard input, which is empty: it does not read what the client says."""
    scene = Scene(tmp_path)
    with (tmp_path / "log").open("w+") as log:
        async with (
            Client(server(scene, log, "--local", "2", "--by", "ann")) as ann,
            Client(server(scene, log, *BOB), mode="legacy") as bob,
        ):
            done = await call(ann, "submit_plan", text=PLAN, follow=True)
            assert (done["ended"], done["counts"]) == (True, {"completed": 2})
            lines = (await call(ann, "read_task_logs", plan="nightly", task="a"))["items"]
            assert [line["text"] for line in lines] == ["hello"]
            add = {"op": "add_task", "task": {"id": "c", "shell": "true"}}
            assert (await call(bob, "edit_plan", plan="nightly", edits=[add], reason="more"))["version"] == 1
            with pytest.raises(Refused, match="this needs the scope operate"):
                await call(bob, "cancel_plan", plan="nightly")
            changes = await call(ann, "read_changes", plan="nightly", since_version=0)
            assert [change["author"] for change in changes["items"] if change["kind"] == "edit"] == ["bob"]
            await edit_at_once(ann, bob)
        log.seek(0)
        assert "Traceback" not in log.read()


async def edit_at_once(ann: Client, bob: Client) -> None:
    """Two batches for one version: one is applied, the other one learns why not. Both clients have the scope of an
    editor, also the one that may do everything."""
    await call(ann, "submit_plan", text=HELD_PLAN, scopes=["edits=update_task tasks=* fields=timeout"])
    batches = [[{"op": "update_task", "task_id": "b", "changes": {"timeout": seconds}}] for seconds in (60, 90)]
    answers = await asyncio.gather(
        *(
            call(client, "edit_plan", plan="weekly", edits=batch, base_version=0)
            for client, batch in zip((ann, bob), batches, strict=True)
        ),
        return_exceptions=True,
    )
    [refused] = [answer for answer in answers if isinstance(answer, Refused)]
    [applied] = [answer for answer in answers if isinstance(answer, dict)]
    assert applied["version"] == 1
    assert [violation["rule"] for violation in refused.problem["violations"]] == ["stale"]
    for client in (ann, bob):
        with pytest.raises(Refused) as rejected:
            await call(client, "edit_plan", plan="weekly", edits=[{"op": "remove_task", "task_id": "b"}])
        assert [violation["rule"] for violation in rejected.value.problem["violations"]] == ["scope"]


@pytest.mark.parametrize("end", ["input", "SIGTERM", "SIGINT"])
def test_it_ends_with_its_client_or_a_signal(tmp_path: Path, end: str) -> None:
    scene = Scene(tmp_path)
    with ForkedCommand(
        ["mcp"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **scene.env},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            process.stdin.write(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}) + "\n")
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["id"] == 1
            if end == "input":
                process.stdin.close()
            else:
                process.send_signal(signal.Signals[end])
            assert process.wait(PATIENCE) == 0
            assert "Traceback" not in process.stderr.read()
        finally:
            process.kill()


def test_a_wrong_scope_names_the_scopes(tmp_path: Path) -> None:
    result = Scene(tmp_path).run("mcp", "--scope", "root")
    assert result.exit_code == 64
    assert "the scopes are: observe, operate, series, event, admin" in result.stderr
