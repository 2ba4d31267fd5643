"""``asterism token`` and the refusals of ``asterism serve``."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import pytest

from asterism.api.credentials import LOGINS
from asterism.cli.fleet.server_process import announce
from asterism.fleet.fleet import Fleet
from tests.cli.command_scenes import Scene


def test_a_token_is_created_listed_and_revoked(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    created = scene.run("token", "create", "--scope", "operate", "--for", "ci")
    token = created.stdout.strip()
    assert token.startswith("ast_")
    assert token not in created.stderr
    identity = token.split("_")[1]
    assert f"asterism token revoke {identity}" in created.stderr
    [listed] = scene.json("token", "list")
    assert (listed["id"], listed["name"], listed["scopes"], listed["state"]) == (identity, "ci", ["operate"], "active")
    assert token not in scene.ok("token", "list")
    assert scene.ok("token", "revoke", identity) == f"Revoked {identity} of ci.\n"
    assert scene.json("token", "list")[0]["state"] == "revoked"
    assert "no token has the id 'nothing'" in scene.run("token", "revoke", "nothing").stderr


def test_a_wrong_scope_names_the_scopes(tmp_path: Path) -> None:
    result = Scene(tmp_path).run("token", "create", "--scope", "root", "--for", "ci")
    assert result.exit_code == 64
    assert "the scopes are: observe, operate, series, event, admin and edit:PLAN" in result.stderr


def test_a_login_link_has_a_code_that_the_store_does_not_have(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.ok("token", "create", "--scope", "observe", "--for", "ci")
    link = scene.ok("token", "login", "--server", "https://host.example/").strip()
    assert link.startswith("https://host.example/login?code=")
    assert link.partition("=")[2].encode() not in scene.file.read_bytes()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--listen", "0.0.0.0:0"], "other machines can reach 0.0.0.0: give --tls-cert and --tls-key, or --behind"),
        (["--listen", "0.0.0.0:0", "--behind-proxy"], "clients cannot name 0.0.0.0: give"),
        (["--listen", "nonsense"], "not a valid address"),
        (["--tls-cert", "cert.pem"], "both --tls-cert and --tls-key"),
    ],
)
def test_an_address_that_other_machines_reach_needs_tls(tmp_path: Path, words: list[str], message: str) -> None:
    result = Scene(tmp_path).run("serve", *words)
    assert result.exit_code == 64
    assert message in result.stderr


@pytest.mark.parametrize(
    ("words", "secret", "message"),
    [
        (["--label", "bot"], "", "--label is for the series webhook: give --github ORG/REPO too"),
        (["--github", "acme/rocket"], "", "The series webhook needs --assign LOGIN"),
        (["--github", "acme/rocket", "--assign", "robot"], "short", "a secret of at least 16 characters"),
        (
            ["--behind-proxy", "--proxy-from", "127.0.0.1", "--group", "*=observe"],
            "",
            "--proxy-from needs --proxy-secret-file FILE: without a secret, every program",
        ),
        (["--peers", "--behind-proxy"], "", "peers check the certificate of the store"),
    ],
)
def test_what_else_it_could_answer_needs_all_of_its_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], secret: str, message: str
) -> None:
    """A repository in the environment alone, as in a job of GitHub, makes no webhook."""
    monkeypatch.setenv("GITHUB_REPOSITORY", "acme/rocket")
    monkeypatch.setenv("GITHUB_WEBHOOK_SECRET", secret)
    result = Scene(tmp_path).run("serve", "--listen", "127.0.0.1:0", *words)
    assert result.exit_code == 64
    assert message in result.stderr


def test_the_help_lists_the_options_of_the_webhook_apart(tmp_path: Path) -> None:
    own, _, webhook = Scene(tmp_path).ok("serve", "--help").partition("Series webhook, with --github:")
    assert "  --peers " in own
    assert "--every" not in own
    assert "  --every DURATION " in webhook


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        result = Scene(tmp_path).run("serve", "--listen", address)
    assert result.exit_code == 64
    assert f"cannot listen on {address}: another process listens there" in result.stderr


@pytest.mark.parametrize("login", [True, False])
async def test_the_link_is_printed_unless_the_output_is_a_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], login: bool
) -> None:
    async with await Fleet.open(f"sqlite:///{tmp_path / 'fleet.db'}", create=True) as fleet:
        await announce(fleet, "http://127.0.0.1:7420", login=login, as_json=False)
        codes = len(await fleet.store.registers(LOGINS))
    printed = capsys.readouterr()
    assert (("/login?code=" in printed.out), codes) == (login, int(login))
    assert "/login?code=" not in printed.err
    assert printed.err.endswith("asterism token login --server http://127.0.0.1:7420\n")


async def test_the_addresses_of_webhook_and_peers_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    also = {"webhook": "http://127.0.0.1:7400/webhook", "peers": "https://127.0.0.1:7400"}
    async with await Fleet.open(f"sqlite:///{tmp_path / 'fleet.db'}", create=True) as fleet:
        await announce(fleet, "http://127.0.0.1:7400", also=also, as_json=False)
        printed = capsys.readouterr().err
        await announce(fleet, "http://127.0.0.1:7400", also=also, as_json=True)
        assert json.loads(capsys.readouterr().out).items() >= also.items()
    assert "Receiving the series webhook at http://127.0.0.1:7400/webhook\n" in printed
    assert "Invite one with: asterism peer invite NAME --url https://127.0.0.1:7400\n" in printed


def test_advised_commands_name_the_store_that_was_given(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    words = ("token", "create", "--scope", "observe", "--for", "ci")
    assert f" --store {scene.url}" in scene.run(*words, "--store", scene.url).stderr
    assert "--store" not in scene.run(*words).stderr


def test_a_plan_is_served_while_it_runs(tmp_path: Path) -> None:
    """The task asks the server about its own plan."""
    scene = Scene(tmp_path)
    token = scene.ok("token", "create", "--scope", "observe", "--for", "task").strip()
    ask = (
        "import json, os, sys, urllib.request as u; url = sys.stdin.readline().strip(); "
        "r = u.Request(url + '/api/v1/plans/p', headers={'Authorization': 'Bearer ' + os.environ['TOKEN']}); "
        "print(json.load(u.urlopen(r))['counts'])"
    )
    plan = tmp_path / "plan.yaml"
    address = tmp_path / "address"
    os.mkfifo(address)
    line = f'{sys.executable} -c "{ask}" < {address}'
    plan.write_text(json.dumps({"asterism": 1, "id": "p", "tasks": {"a": {"shell": line}}}))
    words = ["run", str(plan), "--serve", "--store", scene.url, "--plain", "--result", "a"]
    with scene.process(*words, TOKEN=token) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        link = next(text for text in process.stderr if "Watch it at" in text)
        address.write_text(link.split()[3].partition("/login")[0] + "\n")
        assert process.stdout.read() == "{'running': 1}\n"
        assert process.wait() == 0
