"""Odd text from outside neither acts on a terminal or a runner nor causes a traceback."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from asterism.cli.main import commands
from asterism.cli.series.series_context import EXIT_QUEUED, EXIT_UNREADABLE
from tests.cli.command_scenes import Scene
from tests.cli.local_github import GitHubServer, World, scenes
from tests.series.register_openers import bare_repository

NAME = "RFC-093"
NO_TEXT = os.fsdecode(b"\xff")


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def place_of(scene: Scene, kind: str) -> list[str]:
    if kind == "store":
        return []
    remote = scene.folder / "remote.git"
    bare_repository(remote)
    return ["--remote", f"file://{remote}"]


def on_github(server: Any, *words: str) -> Result:
    known = {**scenes.environ(server), "ASTERISM_SERIES_ASSIGNEE": "robot", "GITHUB_REPOSITORY": "acme/rocket"}
    result = CliRunner().invoke(commands, ["series", *words], env=known)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result


def test_a_reason_of_others_does_nothing_to_the_terminal(scene: Scene) -> None:
    scene.ok("series", "claim", NAME, "--issue", "1")
    reason = "x\n::error::owned\x1b]0;owned\x07"
    scene.ok("series", "pause", NAME, "--reason", reason)
    shown = "x ::error::owned·]0;owned·"
    table = scene.ok("series", "status")
    assert table.splitlines()[1].endswith(f"paused by ann: {shown}")
    assert len(table.splitlines()) == 2
    for words in (["status", NAME], ["pause", NAME], ["history", NAME]):
        told = scene.ok("series", *words)
        assert shown in told
        assert not any(line.lstrip().startswith("::") or "\x1b" in line for line in told.splitlines())
    queued = scene.run("series", "claim", NAME, "--issue", "2")
    assert (queued.exit_code, queued.stdout.count("\n")) == (EXIT_QUEUED, 1)


def test_nor_does_it_when_github_is_synced() -> None:
    with GitHubServer(scenes.world_of()) as server:
        on_github(server, "sync")
        on_github(server, "pause", NAME, "--github", "acme/rocket", "--reason", "x\n::error::owned\x1b")
        told = on_github(server, "sync").stdout
    assert told == "series RFC-093: #1 is active, 2 waiting, paused by " + told.partition("paused by ")[2]
    assert told.endswith(": x ::error::owned·\n")


def test_no_line_begins_with_the_name_of_a_series() -> None:
    """A runner of GitHub Actions takes a line that begins with two colons for a command."""
    world = World()
    world.add_issue("anything", labels=["series:::error::owned"])
    with GitHubServer(world) as server:
        result = on_github(server, "sync", "--assign", "stranger")
        place = ("--github", "acme/rocket")
        looks = [on_github(server, "status", *words, *place).stdout for words in ((), ("::error::owned",))]
    assert result.exit_code == 64
    assert "series ::error::owned: " in result.stderr
    assert all("series ::error::owned" in look for look in looks)
    lines = "".join((result.stdout, result.stderr, *looks)).splitlines()
    assert lines
    assert not [line for line in lines if line.lstrip().startswith("::")]


@pytest.mark.parametrize("kind", ["git", "store"])
@pytest.mark.parametrize(
    "words", [["claim", NAME, "--issue", "2", "--by", NO_TEXT], ["pause", NAME, "--reason", NO_TEXT]]
)
def test_bytes_that_are_no_text_are_refused_on_every_register(scene: Scene, kind: str, words: list[str]) -> None:
    place = place_of(scene, kind)
    scene.ok("series", "claim", NAME, "--issue", "1", *place)
    result = scene.run("series", *words, *place)
    assert (result.exit_code, "not valid UTF-8." in result.stderr) == (64, True), result.output
    assert json.loads(scene.ok("series", "status", NAME, "--json", *place))["revision"] == 1


def test_they_are_refused_by_a_sync_too() -> None:
    with GitHubServer(scenes.world_of()) as server:
        result = on_github(server, "sync", "--by", NO_TEXT)
        assert (result.exit_code, "not valid UTF-8." in result.stderr) == (64, True)
        assert server.call(lambda world: world.documents()) == {}


@pytest.mark.parametrize("login", ["", "@", " ", "ro bot", "ro\nbot"])
def test_what_is_no_login_is_refused_before_anything_is_changed(login: str) -> None:
    with GitHubServer(scenes.world_of()) as server:
        result = on_github(server, "sync", "--assign", login)
        assert (result.exit_code, "is not a login of GitHub" in result.stderr) == (64, True), result.output
        assert server.call(lambda world: world.documents()) == {}


def test_a_rehearsed_sync_writes_no_file(tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("metrics", "prometheus", "cache")}
    words = ["sync", *(word for name, file in files.items() for word in (f"--{name}", str(file)))]
    with GitHubServer(scenes.world_of()) as server:
        assert on_github(server, *words, "--dry-run").exit_code == 0
        assert list(tmp_path.iterdir()) == []
        assert on_github(server, *words).exit_code == 0
        before = {file: file.read_bytes() for file in files.values()}
        scenes.merged(server, 1)
        assert on_github(server, *words, "--dry-run").exit_code == 0
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_an_issue_that_is_closed_has_left() -> None:
    with GitHubServer(scenes.world_of()) as server:
        on_github(server, "sync")
        server.call(lambda world: world.close(1))
        for _ in range(2):
            result = on_github(server, "sync", "--issue", "1")
            assert (result.exit_code, result.stdout.splitlines()[-1]) == (
                0,
                "#1 is closed: it is no longer in RFC-093",
            )


def test_a_rehearsed_claim_on_a_store_that_is_not_there_says_what_would_be(scene: Scene) -> None:
    assert scene.ok("series", "claim", NAME, "--issue", "1", "--dry-run") == "would claim RFC-093 for #1 (revision 1)\n"
    assert not scene.file.exists()
    assert scene.ok("series", "claim", NAME, "--issue", "1") == "claimed RFC-093 for #1 (revision 1)\n"


def test_a_store_that_is_damaged_is_told_as_data_too(scene: Scene) -> None:
    scene.file.write_text("this is no database, " * 500)
    result = scene.run("series", "status", NAME, "--json")
    told = json.loads(result.stdout)
    assert (result.exit_code, told["status"], "is damaged" in told["error"]) == (EXIT_UNREADABLE, "unreadable", True)
