"""``asterism login``, ``logout`` and ``whoami`` at a real server, and commands that repeat safely."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from asterism.api import client as api_client
from asterism.api.credentials import Credentials
from asterism.api.server_logins import ServerLogins
from asterism.server import kept_answers
from asterism.server.http_service import HttpService
from tests.cli.command_scenes import Scene
from tests.cli.raw_server import cutting_proxy
from tests.cli.server_thread import ServerThread, server_thread
from tests.series.register_openers import certificate


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    scene = Scene(tmp_path)
    scene.workflow("echo", shell="echo")
    return scene


@pytest.fixture
def server(scene: Scene) -> Iterator[ServerThread]:
    with server_thread(scene.url) as server:
        yield server


def test_a_code_logs_in_once(scene: Scene, server: ServerThread) -> None:
    code = server.code("operate")
    done = scene.run("login", server.url, "--name", "lab", stdin=f"{server.url}/login?code={code}\n")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(f"Logged in to {server.url} as ann. Use it with: --store lab")
    assert "It allows operate until 20" in done.stderr
    kept = scene.folder / "config" / "asterism" / "servers.json"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    for store in ("lab", server.url):
        assert scene.ok("runs", "list", ASTERISM_STORE=store) == ""
        assert scene.ok("whoami", "--store", store).splitlines()[:2] == [f"ann at {server.url}", "  may      operate"]
    shown = scene.json("whoami", "--store", "lab")
    assert (shown["server"], shown["name"], shown["scopes"]) == (server.url, "ann", ["operate"])
    again = scene.run("login", server.url, stdin=f"{code}\n")
    assert again.exit_code == 64
    assert "this code was used or has expired; get a new one with: asterism token login" in again.stderr
    assert json.loads(kept.read_text()).keys() == {"lab"}


@pytest.mark.parametrize(
    "address",
    ["https://{host}", "http://{name}:1", "http://localhost:{port}", "{name}.evil.test", "http://{host}:99999"],
)
def test_the_code_of_a_link_of_another_server_is_sent_nowhere(scene: Scene, server: ServerThread, address: str) -> None:
    code, host = server.code(), server.url.partition("//")[2]
    name, _, port = host.partition(":")
    link = f"{address.format(host=host, name=name, port=port)}/login?code={code}"
    refused = scene.run("login", server.url, stdin=f"{link}\n")
    assert refused.exit_code == 64
    assert f"and not of {server.url}. Log in to that server" in refused.stderr
    assert code not in refused.output
    for text in (f"{host}/login?code={code}", f"?code={server.code()}"):
        assert scene.run("login", server.url, stdin=f"{text}\n").exit_code == 0, "the code still counts"


def test_a_token_from_standard_input_is_checked_and_kept(scene: Scene, server: ServerThread) -> None:
    token = server.token("observe")
    made = scene.run("login", server.url, "--token", "-", "--json", stdin=f"{token}\n")
    assert json.loads(made.stdout) | {"expires_at": 0} == {
        **{"server": "127-0-0-1", "url": server.url, "name": "ann", "scopes": ["observe"], "expires_at": 0}
    }
    assert token not in made.output
    wrong = scene.run("login", server.url, "--token", "-", "--name", "b", stdin="ast_wrong\n")
    assert wrong.exit_code == 64
    assert "this token is unknown, expired or revoked" in wrong.stderr
    assert scene.run("login", server.url, "--token", "-", stdin="").exit_code == 64
    refused = scene.run("runs", "create", "echo", ASTERISM_STORE="127-0-0-1")
    assert refused.exit_code == 64
    assert "this needs the scope operate" in refused.stderr
    other = server.token("operate")
    assert scene.ok("runs", "create", "echo", ASTERISM_STORE="127-0-0-1", ASTERISM_TOKEN=other)


def test_logout_revokes_the_token(scene: Scene, server: ServerThread) -> None:
    assert "You are logged in to no server" in scene.run("logout").stderr
    assert scene.run("login", server.url, "--name", "a", stdin=server.code()).exit_code == 0
    [login] = ServerLogins(scene.folder / "config" / "asterism" / "servers.json").all()

    async def active(service: HttpService) -> bool:
        return await Credentials(service.state.fleet.store).find(login.token) is not None

    assert server.ask(active)
    assert "no server is called 'b' here: known are: a" in scene.run("logout", "b").stderr
    assert scene.ok("logout") == f"Logged out of a ({server.url}).\n"
    assert not server.ask(active)
    lost = scene.run("runs", "list", ASTERISM_STORE=server.url)
    assert lost.exit_code == 64
    assert f"a token is needed: create one with: asterism token create; log in with: asterism login {server.url}" in (
        lost.stderr
    )


def test_logout_forgets_the_token_of_a_server_that_is_away(scene: Scene) -> None:
    with server_thread(scene.url) as server:
        assert scene.run("login", server.url, "--name", "a", stdin=server.code()).exit_code == 0
    done = scene.run("logout", "a")
    assert done.exit_code == 0
    assert "forgotten here but not revoked" in done.stderr
    assert scene.run("logout", "a").exit_code == 64


def test_a_file_that_others_can_read_is_not_used(scene: Scene, server: ServerThread) -> None:
    assert scene.run("login", server.url, "--name", "a", stdin=server.code()).exit_code == 0
    (scene.folder / "config" / "asterism" / "servers.json").chmod(0o644)
    refused = scene.run("runs", "list", ASTERISM_STORE="a")
    assert refused.exit_code == 64
    assert "other users can read" in refused.stderr


def test_a_private_authority_is_trusted_only_if_it_is_named(scene: Scene, tmp_path: Path) -> None:
    pem = certificate(tmp_path)
    with server_thread(scene.url, pem) as server:
        assert server.url.startswith("https://")
        strange = scene.run("login", server.url, stdin=server.code())
        assert strange.exit_code == 69
        assert "is not trusted (self-signed certificate): if it is of a private certificate authority" in strange.stderr
        assert f"asterism login {server.url} --ca FILE" in strange.stderr
        assert scene.run("login", server.url, "--name", "a", "--ca", str(pem), stdin=server.code()).exit_code == 0
        assert scene.ok("runs", "create", "echo", ASTERISM_STORE="a")
        pem.rename(tmp_path / "elsewhere.pem")
        moved = scene.run("runs", "list", ASTERISM_STORE="a")
        assert moved.exit_code == 64
        assert "cannot be read: No such file or directory; log in again with --ca" in moved.stderr


def test_whoami_of_a_store(scene: Scene) -> None:
    assert scene.ok("whoami") == "ann, on a store that this machine opens itself: everything is allowed.\n"


def test_whoami_at_a_server_that_nobody_knows(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(scene.folder)
    unknown = scene.run("whoami", "--store", "labb")
    assert unknown.exit_code == 64
    assert "no server is called 'labb' here: none is known; log in with: asterism login URL" in unknown.stderr
    Path("labb").touch()  # the file of a store
    assert "on a store that this machine opens itself" in scene.ok("whoami", "--store", "labb")


# -- repeats -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "ablation"])
def test_a_run_is_created_once_if_the_connection_is_cut_before_the_answer(
    kept: bool, scene: Scene, server: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def forget(*_: object) -> None:
        return None

    monkeypatch.setattr(api_client, "PAUSE", 0.0)
    if not kept:
        monkeypatch.setattr(kept_answers.KeptAnswers, "_begin", forget)
    with cutting_proxy(server.url, cuts=2) as url:
        printed = scene.ok("runs", "create", "echo", ASTERISM_STORE=url, ASTERISM_TOKEN=server.token())
    runs = [run["id"] for run in scene.json("runs", "list")]
    assert len(runs) == (1 if kept else 3)
    assert printed.strip() in runs
