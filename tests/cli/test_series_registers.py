"""Series on a remote by its name in a checkout, on one that hangs, and the metrics of commands."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from asterism.cli.series.series_context import EXIT_QUEUED, EXIT_UNAVAILABLE
from tests.cli.command_scenes import Scene
from tests.series.register_openers import bare_repository

NAME = "RFC-093"


class Checkout(Scene):
    """A checkout and its remote, beside each other."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.remote, self.work = folder / "remote.git", folder / "work"
        bare_repository(self.remote)
        subprocess.run(["git", "init", "--quiet", str(self.work)], check=True)
        (self.work / "sub").mkdir()

    def git(self, *words: str) -> str:
        return subprocess.run(["git", *words], cwd=self.work, check=True, capture_output=True, text=True).stdout

    def claims(self) -> None:
        assert self.ok("series", "claim", NAME, "--issue", "1", "--remote", "origin").startswith("claimed RFC-093")
        told = subprocess.run(["git", "-C", str(self.remote), "for-each-ref"], capture_output=True, text=True)
        assert "refs/asterism/series/RFC-093" in told.stdout


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    """One stands somewhere within it."""
    made = Checkout(tmp_path)
    monkeypatch.chdir(made.work / "sub")
    return made


# -- a remote by its name ----------------------------------------------------------------------------------------------


def test_a_relative_address_is_meant_from_where_the_checkout_begins(checkout: Checkout) -> None:
    checkout.git("remote", "add", "origin", "../remote.git")
    checkout.claims()


def test_the_command_for_ssh_of_the_checkout_is_used(checkout: Checkout) -> None:
    program = checkout.folder / "ssh"
    program.write_text('#!/bin/sh\nshift $(($# - 1))\nexec sh -c "$1"\n')
    program.chmod(0o755)
    checkout.git("config", "core.sshCommand", str(program))
    checkout.git("config", "ssh.variant", "ssh")
    checkout.git("remote", "add", "origin", f"git@example.invalid:{checkout.remote}")
    checkout.claims()


def test_an_address_that_the_checkout_writes_otherwise_is_found_and_written_so_once(checkout: Checkout) -> None:
    """Written twice, the address would be one that is not there."""
    checkout.git("config", f"url.file://{checkout.folder}/.insteadOf", "file://")
    checkout.git("remote", "add", "origin", "file://remote.git")
    checkout.claims()


def test_what_the_checkout_says_of_http_and_credentials_is_handed_on(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    from asterism.cli.series.series_context import resolve_remote

    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "user.name")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "ann")
    checkout.git("remote", "add", "origin", "https://example.invalid/remote.git")
    checkout.git("config", "http.https://example.invalid/.extraheader", "AUTHORIZATION: basic xyz")
    checkout.git("config", "credential.helper", "store --file=a b")
    checkout.git("config", "alias.x", "of no use elsewhere")
    address, environment = resolve_remote("origin")
    assert address == "https://example.invalid/remote.git"
    assert environment is not None
    count = int(environment["GIT_CONFIG_COUNT"])
    told = {environment[f"GIT_CONFIG_KEY_{n}"]: environment[f"GIT_CONFIG_VALUE_{n}"] for n in range(count)}
    assert told == {
        "user.name": "ann",
        "http.https://example.invalid/.extraheader": "AUTHORIZATION: basic xyz",
        "credential.helper": "store --file=a b",
    }


@pytest.fixture
def user(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The settings of the user, which are nobody else's."""
    file = checkout.folder / "gitconfig"
    file.touch()
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(file))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    return file


def handed_on() -> list[tuple[str, str]]:
    from asterism.cli.series.series_context import resolve_remote

    environment = resolve_remote("origin")[1]
    assert environment is not None
    count = int(environment["GIT_CONFIG_COUNT"])
    return [(environment[f"GIT_CONFIG_KEY_{n}"], environment[f"GIT_CONFIG_VALUE_{n}"]) for n in range(count)]


def test_what_the_user_has_for_the_directory_alone_is_handed_on(checkout: Checkout, user: Path) -> None:
    """As with two accounts, one of them for the repositories in one folder."""
    included = checkout.folder / "for-work"
    included.write_text(f'[url "file://{checkout.folder}/"]\n\tinsteadOf = work:\n')
    user.write_text(f'[includeIf "gitdir:{checkout.work}/"]\n\tpath = {included}\n')
    checkout.git("remote", "add", "origin", "work:remote.git")
    checkout.claims()
    assert handed_on() == [(f"url.file://{checkout.folder}/.insteadof", "work:")]


def test_what_is_known_elsewhere_too_is_not_said_twice(
    checkout: Checkout, user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A header that is sent twice is refused by some."""
    user.write_text("[http]\n\textraHeader = A: 1\n\tsslVerify\n[credential]\n\thelper = store\n")
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "http.proxy")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "http://127.0.0.1:1")
    checkout.git("remote", "add", "origin", "https://example.invalid/remote.git")
    checkout.git("config", "http.extraHeader", "B: 2")
    assert handed_on() == [("http.extraheader", "B: 2"), ("http.proxy", "http://127.0.0.1:1")]


def test_a_list_that_is_another_one_here_begins_anew_elsewhere(checkout: Checkout, user: Path) -> None:
    included = checkout.folder / "for-work"
    included.write_text("[credential]\n\thelper = work\n[http]\n\tproxy = http://127.0.0.1:1\n")
    own = "[credential]\n\thelper = store\n[http]\n\tproxy = http://127.0.0.1:2\n"
    user.write_text(f'[includeIf "gitdir:{checkout.work}/"]\n\tpath = {included}\n{own}')
    checkout.git("remote", "add", "origin", "https://example.invalid/remote.git")
    assert handed_on() == [
        ("credential.helper", ""),
        ("credential.helper", "work"),
        ("credential.helper", "store"),
        ("http.proxy", "http://127.0.0.1:1"),
        ("http.proxy", "http://127.0.0.1:2"),
    ]


# -- a remote that hangs -----------------------------------------------------------------------------------------------


@pytest.fixture
def silent() -> Iterator[str]:
    """A machine that takes a connection and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/remote.git"


def test_a_deadline_is_kept_when_the_remote_hangs(tmp_path: Path, silent: str) -> None:
    words = ("series", "claim", NAME, "--issue", "1", "--deadline", "300ms", "--remote", silent)
    result = Scene(tmp_path).run(*words)
    assert result.exit_code == EXIT_UNAVAILABLE
    assert "did not answer within the deadline of 0.3 s" in result.stderr


# -- figures -----------------------------------------------------------------------------------------------------------


def test_what_was_counted_is_added_to_a_file(tmp_path: Path) -> None:
    scene, file = Scene(tmp_path), tmp_path / "figures.json"
    scene.ok("series", "claim", NAME, "--issue", "1", "--metrics", str(file))
    assert scene.run("series", "claim", NAME, "--issue", "2", "--metrics", str(file)).exit_code == EXIT_QUEUED
    scene.ok("series", "release", NAME, "--issue", "1", "--dry-run", "--metrics", str(file))
    scene.ok("series", "release", NAME, "--issue", "1", "--metrics", str(file))
    told = json.loads(file.read_text())
    assert (told["promotion_events"], told["duplicate_prevented"]) == (1, 0)
    assert (told["total"]["promotion_events"], told["total"]["duplicate_prevented"]) == (1, 1)


def test_figures_that_cannot_be_written_do_not_change_how_it_ended(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    words = ("series", "claim", NAME, "--issue", "1", "--metrics", str(tmp_path / "file" / "figures.json"))
    result = Scene(tmp_path).run(*words)
    assert result.exit_code == 0
    assert "cannot write the metrics to " in result.stderr
