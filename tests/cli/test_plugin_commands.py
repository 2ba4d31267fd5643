"""``asterism plugins``, and a plug-in that does not work beside others that do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.command_scenes import Scene
from tests.execution.plugin_packages import greetings, install

__all__ = ["greetings"]

ENTRIES = {
    "asterism.actions": {"argv": "greetings:Greet", "broken": "no_such_module:Thing"},
}


@pytest.fixture
def others(tmp_path: Path, greetings: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "more"
    install(folder, {}, ENTRIES, "others")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{greetings}")
    return folder


def listed(scene: Scene) -> dict[tuple[str, str], dict[str, Any]]:
    return {(line["name"], line["package"]): line for line in scene.json("plugins")}


def test_what_is_there_and_what_each_may_do(tmp_path: Path, others: Path) -> None:
    lines = listed(Scene(tmp_path))
    greet = lines["greet", "greetings"]
    assert (greet["version"], greet["place"], greet["value"]) == ("1.2", str(tmp_path / "site"), "greetings:Greet")
    assert (greet["secrets"], greet["starts_processes"], greet["uses_network"]) == (["GREETING"], True, False)
    assert greet["schema"]["required"] == ["name"]
    assert lines["container", "asterism"]["unavailable"].startswith("ASTERISM_CONTAINER_ENGINE is 'none-in")
    assert lines["argv", "others"]["error"] == "not used: a plug-in of this package has its name"
    assert "cannot be imported: ModuleNotFoundError" in lines["broken", "others"]["error"]


def test_the_list_as_a_table(tmp_path: Path, others: Path) -> None:
    out = Scene(tmp_path).ok("plugins")
    assert "greet" in out
    assert "start processes, read GREETING" in out


def test_a_plug_in_that_does_not_work_breaks_no_other_command(tmp_path: Path, others: Path) -> None:
    scene = Scene(tmp_path)
    (tmp_path / "plan.yaml").write_text("asterism: 1\ntasks:\n  a: {argv: [echo, b]}\n  c: {greet: {name: Ann}}\n")
    scene.ok("run", str(tmp_path / "plan.yaml"), "--plain")
    scene.ok("check", str(tmp_path / "plan.yaml"))


def test_it_is_about_this_machine(tmp_path: Path) -> None:
    done = Scene(tmp_path).run("plugins", "--store", "https://example.org")
    assert done.exit_code == 64
    assert "https://example.org is a server. Plug-ins are those of a machine" in done.stderr
