"""Mistakes in the use of ``asterism series``: each has a helpful message and its exit code."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from asterism.cli.series.series_context import EXIT_UNAVAILABLE, EXIT_UNREADABLE
from tests.cli.command_scenes import Scene
from tests.series.register_openers import bare_repository

NAME = "RFC-093"


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """With a store in which nothing is yet but one series."""
    made = Scene(tmp_path)
    made.ok("series", "claim", NAME, "--issue", "1")
    made.run("series", "claim", NAME, "--issue", "2")
    return made


@pytest.mark.parametrize("words", [["release", "--issue", "1"], ["promote"], ["resume"], ["rebuild", "--empty"]])
def test_the_name_of_no_series_is_told_and_makes_none(scene: Scene, words: list[str]) -> None:
    told = scene.ok("series", words[0], "RFC-930", *words[1:])
    assert told.startswith("series RFC-930 does not exist in sqlite:")
    assert "RFC-930" not in scene.ok("series", "status")


@pytest.mark.parametrize("number", ["0", "-1", "abc", "", "1.5", "1234567890123456", "9" * 5000, "１"])
def test_what_is_no_number_of_an_issue_is_refused(scene: Scene, number: str) -> None:
    result = scene.run("series", "claim", NAME, "--issue", number)
    assert (result.exit_code, "is not the number of an issue (example: 123)." in result.stderr) == (64, True)


def test_a_rehearsal_says_what_would_be(scene: Scene) -> None:
    told = scene.ok("series", "release", NAME, "--issue", "1", "--dry-run")
    assert told == "would release #1 from RFC-093; #2 would then be active (revision 3)\n"
    told = scene.ok("series", "release", NAME, "--issue", "1", "--no-promote", "--dry-run")
    assert told == "would release #1 from RFC-093; no issue would be active, 1 waiting (revision 3)\n"
    scene.ok("series", "pause", NAME)
    scene.ok("series", "release", NAME, "--issue", "1")
    assert scene.ok("series", "resume", NAME, "--dry-run").startswith("would resume RFC-093; #2 would then be active")


def test_who_waits_is_told_who_made_the_other_one_active(scene: Scene) -> None:
    """Also if that was by a release."""
    scene.ok("series", "release", NAME, "--issue", "1", "--by", "bob")
    told = scene.run("series", "claim", NAME, "--issue", "3").stdout
    assert re.fullmatch(r"queued #3 in RFC-093 behind #2, active for .* s, by bob; it is number 1 .*\n", told), told


@pytest.mark.parametrize("remote", ["", "  "])
def test_a_remote_that_is_empty_is_told(scene: Scene, remote: str) -> None:
    """As in a script with a variable that is not set."""
    result = scene.run("series", "status", "--remote", remote)
    assert (result.exit_code, "--remote is empty: give an address" in result.stderr) == (64, True)


def test_a_transport_that_git_does_not_know_is_named(scene: Scene) -> None:
    result = scene.run("series", "status", "--remote", "foo://bar/x.git")
    assert (result.exit_code, "remote-foo" in result.stderr) == (EXIT_UNAVAILABLE, True), result.stderr


def test_a_directory_that_is_no_repository_is_told(scene: Scene) -> None:
    result = scene.run("series", "claim", NAME, "--issue", "1", "--remote", str(scene.folder))
    assert result.exit_code == EXIT_UNAVAILABLE
    assert "does not appear to be a git repository" in result.stderr


def test_a_store_that_is_not_there_is_told_as_data_too(scene: Scene) -> None:
    result = scene.run("series", "status", NAME, "--store", f"sqlite:///{scene.folder}/none.db", "--json")
    assert result.exit_code == EXIT_UNAVAILABLE
    told = json.loads(result.stdout)
    assert (told["status"], "there is no store" in told["error"]) == ("unavailable", True)
    assert "`series claim`, `serve` or `run --store URL` creates it" in told["error"]
    assert not (scene.folder / "none.db").exists()


def test_the_status_of_what_cannot_be_read_says_what_to_do(scene: Scene) -> None:
    remote = scene.folder / "remote.git"
    bare_repository(remote)
    git = ["git", "-C", str(remote), "-c", "user.name=x", "-c", "user.email=x@example.invalid"]
    blob = subprocess.run([*git, "hash-object", "-w", "--stdin"], input=b"{", capture_output=True, check=True).stdout
    entry = b"100644 blob " + blob.strip() + b"\tseries.json\n"
    tree = subprocess.run([*git, "mktree"], input=entry, capture_output=True, check=True).stdout.strip()
    made = subprocess.run([*git, "commit-tree", "-m", "x", tree.decode()], capture_output=True, check=True).stdout
    subprocess.run([*git, "update-ref", f"refs/asterism/series/{NAME}", made.strip().decode()], check=True)
    result = scene.run("series", "status", NAME, "--remote", str(remote))
    assert result.exit_code == EXIT_UNREADABLE
    assert "is not JSON" in result.stdout
    assert "The series counts as taken. Rebuild it from the open issues" in result.stdout
