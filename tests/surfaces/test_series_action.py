"""The GitHub Action: its steps are run as a runner would run them, with the same variables, against a local GitHub."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from series_github import GitHubServer, scenes

ROOT = Path(__file__).parents[2]
ACTION = ROOT / ".github" / "actions" / "series"


@pytest.fixture
def server():
    with GitHubServer(scenes.world_of()) as running:
        yield running
        assert running.world.doubles == []


def action() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ACTION / "action.yml").read_text("utf-8"))
    return found


def run_action(server: Any, folder: Path, **given: str) -> tuple[int, dict[str, str], str]:
    """What a runner does with a composite action: inputs with their defaults, ``if``, ``env``, ``run``, and the outputs
    that the step wrote. Returns how it ended, the outputs of the action, and what was printed."""
    form = action()
    inputs = {name: str(one.get("default", "")) for name, one in form["inputs"].items()}
    inputs |= {"repository": "acme/rocket", "metrics": str(folder / "m.json"), "install": "false"}
    inputs |= {name.replace("_", "-"): value for name, value in given.items()}
    output = folder / "output"
    output.touch()
    runner = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": os.environ.get("HOME", "/"),
        "GITHUB_ACTION_PATH": str(ACTION),
        "GITHUB_OUTPUT": str(output),
        "GITHUB_PATH": str(folder / "path"),
        "RUNNER_TEMP": str(folder),
        "GITHUB_API_URL": server.url,
    }
    code, said = 0, ""
    for step in form["runs"]["steps"]:
        if "if" in step and not chosen(step["if"], inputs):
            continue
        env = {name: filled(value, inputs) for name, value in step.get("env", {}).items()}
        assert "${{" not in step["run"]  # nothing from outside is written into a script
        assert step["shell"] == "bash"
        words = ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", step["run"]]
        done = subprocess.run(words, env={**runner, **env}, capture_output=True, text=True)
        code, said = done.returncode, said + done.stdout + done.stderr
        if code:
            break
    written = dict(line.split("=", 1) for line in output.read_text().splitlines())
    names = {
        name: re.fullmatch(r"\$\{\{ steps\.sync\.outputs\.(\w+) \}\}", one["value"])
        for name, one in form["outputs"].items()
    }
    return code, {name: written.get(match[1], "") for name, match in names.items() if match}, said


def filled(text: str, inputs: dict[str, str]) -> str:
    return re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda match: inputs[match[1]], str(text))


def chosen(condition: str, inputs: dict[str, str]) -> bool:
    match = re.fullmatch(r"inputs\.([\w-]+) == '(.*)'", condition)
    assert match
    return inputs[match[1]] == match[2]


def given(server: Any, **more: str) -> dict[str, str]:
    return {"token": scenes.environ(server)["GITHUB_TOKEN"], "assign": "robot", **more}


def test_the_issue_whose_turn_it_is_is_claimed(server, tmp_path):
    code, outputs, said = run_action(server, tmp_path, **given(server, issue="1"))
    assert (code, outputs) == (0, {"status": "claimed", "active": "1", "position": "0", "series": "RFC-093"}), said
    assert scenes.assigned(server) == [1]
    assert (tmp_path / "m.json").exists()


def test_one_that_waits_is_queued_and_the_step_succeeds(server, tmp_path):
    code, outputs, _ = run_action(server, tmp_path, **given(server, issue="3"))
    assert (code, outputs) == (0, {"status": "queued", "active": "1", "position": "2", "series": "RFC-093"})


def test_without_an_issue_everything_is_brought_in_step(server, tmp_path):
    code, outputs, _ = run_action(server, tmp_path, **given(server, mode="announce"))
    assert (code, outputs) == (0, {"status": "synced", "active": "", "position": "", "series": ""})
    assert scenes.assigned(server) == [1]


def test_who_only_observes_is_never_told_that_it_is_claimed(server, tmp_path):
    code, outputs, _ = run_action(server, tmp_path, **given(server, issue="1", mode="observe"))
    assert (code, outputs) == (0, {"status": "observed", "active": "1", "position": "0", "series": "RFC-093"})
    (tmp_path / "output").unlink()
    code, outputs, _ = run_action(server, tmp_path, **given(server, mode="observe"))
    assert (code, outputs["status"]) == (0, "observed")


def test_an_issue_of_no_series_does_not_fail_the_step(server, tmp_path):
    number = server.call(lambda world: world.add_issue("a question")).number
    code, outputs, _ = run_action(server, tmp_path, **given(server, issue=str(number)))
    assert (code, outputs) == (0, {"status": "none", "active": "", "position": "", "series": ""})


CONTENDED = """#!/bin/sh
echo '{"status": "contended", "error": "others were first"}'
exit 76
"""


@pytest.mark.parametrize(("fails", "expected"), [("false", 0), ("true", 76)])
def test_who_is_never_first_is_contended(server, tmp_path, monkeypatch, fails, expected):
    """The command is made to say so here: that it does when others are first is tested elsewhere."""
    program = tmp_path / "bin" / "asterism"
    program.parent.mkdir()
    program.write_text(CONTENDED)
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    code, outputs, said = run_action(server, tmp_path, **given(server, issue="1", fail_when_contended=fails))
    assert (code, outputs["status"]) == (expected, "contended")
    assert "::warning::" in said


def test_what_goes_wrong_fails_the_step_with_its_code(server, tmp_path):
    code, outputs, said = run_action(server, tmp_path, **given(server, token="wrong"))
    assert (code, outputs["status"]) == (69, "")
    assert "::error::" in said
    code, _, said = run_action(server, tmp_path, **given(server, assign="nobody-there"))
    assert code == 64
    assert scenes.environ(server)["GITHUB_TOKEN"] not in said


def test_what_a_stranger_writes_into_an_input_is_never_run(server, tmp_path):
    mark = tmp_path / "mark"
    evil = f'1"; touch {mark}; echo "$(touch {mark})`touch {mark}`'
    code, outputs, _ = run_action(server, tmp_path, **given(server, issue=evil))
    assert code != 0
    assert (mark.exists(), outputs["status"]) == (False, "")


def test_asterism_is_installed_from_the_revision_of_the_action(server, tmp_path):
    """With programs that note what they are asked for in the place of the real ones."""
    folder = tmp_path / "programs"
    folder.mkdir()
    noted = tmp_path / "noted"
    fake = folder / "python3"
    inner = f'#!/bin/sh\\necho "pip $*" >> {noted}\\n'
    lines = [
        "#!/bin/sh",
        f'echo "$*" >> {noted}',
        'mkdir -p "$3/bin"',
        f"""printf '{inner}' > "$3/bin/python\"""",
        'chmod +x "$3/bin/python"',
    ]
    fake.write_text("\n".join(lines) + "\n")
    fake.chmod(0o755)
    [install, _] = action()["runs"]["steps"]
    env = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "RUNNER_TEMP": str(tmp_path),
        "GITHUB_ACTION_PATH": str(ACTION),
        "GITHUB_PATH": str(tmp_path / "path"),
    }
    subprocess.run(["bash", "-e", "-o", "pipefail", "-c", install["run"]], env=env, check=True)
    made, installed = noted.read_text().splitlines()
    assert made == f"-m venv {tmp_path}/asterism"
    assert installed == f"pip -m pip install --quiet {ACTION}/../../..[github]"
    assert (ACTION / "../../.." / "pyproject.toml").resolve() == ROOT / "pyproject.toml"
    assert (tmp_path / "path").read_text() == f"{tmp_path}/asterism/bin\n"


def test_the_example_workflow_uses_the_action_as_it_is():
    workflow = yaml.safe_load((ROOT / "examples" / "github" / "series.yml").read_text("utf-8"))
    triggers = workflow[True]  # YAML takes the word on for a truth
    assert {"schedule", "issues", "pull_request_target"} <= set(triggers)
    assert not any(
        "actions/checkout" in step.get("uses", "") for job in workflow["jobs"].values() for step in job["steps"]
    )
    assert workflow["permissions"] == {"contents": "write", "issues": "write"}
    known = action()
    uses = [
        step for job in workflow["jobs"].values() for step in job["steps"] if "actions/series" in step.get("uses", "")
    ]
    assert len(uses) == 2
    for step in uses:
        assert set(step["with"]) <= set(known["inputs"])
        assert {name for name, one in known["inputs"].items() if one.get("required")} <= set(step["with"])
    text = (ROOT / "examples" / "github" / "series.yml").read_text("utf-8")
    assert set(re.findall(r"steps\.series\.outputs\.(\w+)", text)) <= set(known["outputs"])
