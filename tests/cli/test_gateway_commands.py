"""``device invite``, ``device join --server`` and ``device revoke``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from asterism.peers.private_files import _new_identity
from tests.cli.command_scenes import Scene


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_an_invitation_is_the_command_to_run(scene: Scene) -> None:
    line = scene.ok("device", "invite", "--name", "lab-1", "--server", "https://host:7400")
    assert re.fullmatch(r"asterism device join lab-1 --server https://host:7400 --code astc_[\w-]{32}\n", line)
    any_lab = scene.run("device", "invite", "--name", "lab-*", "--can", "gpu", "--can", "cuda")
    assert "join NAME --can cuda,gpu --server" in any_lab.stdout
    assert "with a name like lab-* for NAME" in any_lab.stderr


def test_an_invitation_as_json(scene: Scene, tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_bytes(_new_identity())
    words = (
        "--name",
        "lab-*",
        "--can",
        "gpu,tpu",
        "--server",
        "https://host:7400",
        "--tls-cert",
        str(tmp_path / "cert.pem"),
    )
    invitation = scene.json("device", "invite", *words)
    assert (invitation["can"], invitation["name"], invitation["seconds"]) == (["gpu", "tpu"], "lab-*", 600.0)
    assert re.fullmatch("[0-9a-f]{64}", invitation["fingerprint"])
    assert invitation["command"].endswith(f"--code {invitation['code']} --fingerprint {invitation['fingerprint']}")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("invite",), "Missing option '--name'"),
        (("invite", "--name", "lab-1 "), "the name of a device must have 1 to 100 characters"),
        (("invite", "--name", "x", "--server", "http://host:7400"), "has to begin with https://"),
        (("invite", "--name", "x", "--server", "host"), "is not the address of a server"),
        (("revoke", "nobody"), "no device 'nobody' is enrolled"),
        (("join", "lab-1", "--code", "x"), "belong to --server"),
        (("join", "lab-1", "--server", "https://h", "--store", "sqlite:///a.db"), "has no store"),
        (("join", "lab-1", "--server", "https://h", "--code", "-"), "There is no code on standard input"),
        (("join", "lab-1", "--server", "http://127.0.0.1:1"), "is not enrolled at http://127.0.0.1:1"),
        (("join", "lab-1", "--server", "http://host:1"), "has to begin with https://"),
    ],
)
def test_mistakes_are_answered_with_what_to_do(scene: Scene, words: tuple[str, ...], said: str) -> None:
    scene.ok("device", "invite", "--name", "x")  # there is a store
    result = scene.run("device", *words)
    assert result.exit_code != 0
    assert said in result.output.replace("\n", " ")


def test_a_file_that_is_no_certificate_is_refused(scene: Scene, tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text("nothing")
    result = scene.run("device", "invite", "--name", "x", "--tls-cert", str(tmp_path / "cert.pem"))
    assert "is not a certificate in PEM" in result.output
