"""`asterism notice list`: what it lists, and how it follows."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from asterism.api.local import fleet_handlers
from asterism.api.system import LocalSystem
from asterism.cli import cli_context
from asterism.cli.fleet.fleet_commands import follow_notices, read_notices
from asterism.fleet.fleet import Fleet
from asterism.store.memory import MemoryStore
from asterism.store.protocol import Notice
from asterism.store.store_errors import StoreUnavailable
from tests.cli.cli_scenes import read_until
from tests.cli.command_scenes import Scene

AGO = 1000.0


def with_notices(scene: Scene, *kinds: str) -> Scene:
    async def add(fleet: Fleet) -> None:
        now = fleet.store.clock()
        for number, kind in enumerate(kinds):
            at = now - AGO if number == 0 else now
            await fleet.store.commit([Notice(at, kind, f"number {number} \x1b[31m", None, "kitchen")])

    scene.ask(add)
    return scene


def test_notices_are_listed_with_the_latest_last(tmp_path: Path) -> None:
    scene = with_notices(Scene(tmp_path).made(), "failed", "late", "failed")
    lines = scene.ok("notice", "list").splitlines()
    assert [line.split()[2:5] for line in lines] == [
        ["failed", "number", "0"],
        ["late", "number", "1"],
        ["failed", "number", "2"],
    ]
    assert "\x1b" not in "".join(lines), "a notice does not act on the terminal"
    assert [notice["message"][:8] for notice in scene.json("notice", "list", "--limit", "1")] == ["number 2"]
    assert [notice["kind"] for notice in scene.json("notice", "list", "--kind", "late")] == ["late"]
    assert len(scene.json("notice", "list", "--since", "10m")) == 2
    assert len(scene.json("notice", "list", "--limit", "0")) == 3
    assert set(scene.json("notice", "list")[0]) == {"number", "at", "kind", "message", "run", "device"}


def test_notices_of_one_run(tmp_path: Path) -> None:
    scene = with_notices(Scene(tmp_path).made(), "failed")
    scene.workflow()
    run = scene.create()
    scene.ask(lambda fleet: fleet.store.commit([Notice(1.0, "failed", "it failed", run.id)]))
    assert [notice["run"] for notice in scene.json("notice", "list", "--run", run.id)] == [run.id]
    result = scene.run("notice", "list", "--run", "0000")
    assert result.exit_code == 64
    assert "no run has '0000' in its id" in result.stderr


def test_no_notices_are_said_to_be_none(tmp_path: Path) -> None:
    scene = Scene(tmp_path).made()
    assert scene.run("notice", "list").stderr == "There are no notices.\n"
    assert scene.run("notice", "list", "--kind", "late").stderr == "No notice matches.\n"
    assert scene.json("notice", "list") == []


def test_new_notices_are_followed(tmp_path: Path) -> None:
    scene = with_notices(Scene(tmp_path).made(), "failed")
    with scene.process("notices", "list", "-f", "--json") as process:
        first = read_until(process, "number 0")
        with_notices(scene, "old", "brake")
        rest = read_until(process, "number 1")
    assert json.loads(first[-1])["kind"] == "failed"
    assert json.loads(rest[-1])["kind"] == "brake"


async def test_every_notice_is_printed_once_and_an_outage_is_survived(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_handlers, "LOOK_INTERVAL", 0.001)
    monkeypatch.setattr(cli_context, "RECONNECT", (0.001, 0.001))
    async with Fleet(MemoryStore()) as fleet:
        await fleet.store.commit([Notice(1.0, "old", "before")])
        first, last = await read_notices(LocalSystem(fleet), 0)
        assert [notice.message for notice in first] == ["before"]
        following = asyncio.create_task(follow_notices(LocalSystem(fleet), last, as_json=False))
        notices, told = fleet.store.notices, asyncio.Event()

        async def unavailable(**filters: object) -> list[tuple[int, Notice]]:
            told.set()
            raise StoreUnavailable("the server restarts")

        monkeypatch.setattr(fleet.store, "notices", unavailable)
        await told.wait()
        monkeypatch.setattr(fleet.store, "notices", notices)
        printed = ""
        for number in range(3):
            await fleet.store.commit([Notice(2.0, "new", f"number {number}")])
        while "number 2" not in printed:
            await asyncio.sleep(0)
            printed += capsys.readouterr().out
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    assert [line.split("  ")[-1] for line in printed.splitlines()] == ["number 0", "number 1", "number 2"]
